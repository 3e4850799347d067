//! The request between two dialects, with everything that any of them can express, as borrowed
//! text. Readers fill it, writers print it; neither knows the other.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{Fields, ObjectWriter, Text, is_object};

/// A request to generate text.
#[derive(Debug, Default)]
pub(super) struct Conversation<'a> {
    /// The messages, including system messages.
    pub(super) messages: Vec<Message<'a>>,
    /// A prompt that is continued as it is, without a chat template; there are no messages then.
    pub(super) raw: Option<RawPrompt<'a>>,
    pub(super) tools: Tools<'a>,
    /// The form of the output.
    pub(super) format: Option<Format<'a>>,
    /// The settings for thinking before the response.
    pub(super) thinking: Thinking,
    /// The sampling options.
    pub(super) sampling: Sampling<'a>,
    /// The maximum number of tokens to generate.
    pub(super) max_tokens: Option<u64>,
    /// The wanted length of the text, in OpenAI's words.
    pub(super) verbosity: Option<Text<'a>>,
    /// The texts that end the generation.
    pub(super) stop: Vec<Text<'a>>,
    /// The requested token probabilities.
    pub(super) logprobs: Logprobs,
    /// True if the response is a stream.
    pub(super) stream: bool,
    /// True if the client wants a usage event in the stream.
    pub(super) include_usage: bool,
    /// The time that the model stays loaded.
    pub(super) keep_alive: Option<ModelKeepAlive>,
    /// The parts of the request that the response echoes: members of a JSON object, with a trailing
    /// comma.
    pub(super) echo: String,
    /// The fields that no reader knows.
    pub(super) extra: Fields<'a>,
}

/// A prompt without a template.
#[derive(Debug)]
pub(super) struct RawPrompt<'a> {
    /// The text before the gap, or the whole prompt.
    pub(super) prompt: Text<'a>,
    /// The text after the gap.
    pub(super) suffix: Option<Text<'a>>,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The author of instructions.
    System,
    /// The user, or the application.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) role: Role,
    /// Its content, in order.
    pub(super) parts: Vec<Part<'a>>,
}

impl<'a> Message<'a> {
    /// Returns its texts as one.
    pub(super) fn text(&self) -> Cow<'_, str> {
        joined_text(&self.parts)
    }

    /// Returns the model's thinking before the message, as one text.
    pub(super) fn thinking(&self) -> Option<Cow<'_, str>> {
        join(self.parts.iter().filter_map(|part| match part {
            Part::Thinking { text, .. } => Some(&**text),
            Part::Text(_) | Part::Image(_) | Part::Call(_) | Part::Result(_) => None,
        }))
    }

    /// Returns its tool calls.
    pub(super) fn calls(&self) -> impl Iterator<Item = &Call<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            Part::Text(_) | Part::Image(_) | Part::Thinking { .. } | Part::Result(_) => None,
        })
    }

    /// Returns its results of tool calls.
    pub(super) fn results(&self) -> impl Iterator<Item = &CallResult<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Result(result) => Some(result),
            Part::Text(_) | Part::Image(_) | Part::Thinking { .. } | Part::Call(_) => None,
        })
    }

    /// Returns the parts of a user message other than results of tool calls: the images of these
    /// results, then the user's own parts. For dialects whose results are text.
    pub(super) fn beside_results(&self) -> Vec<&Part<'a>> {
        let is_image = |part: &&Part<'_>| matches!(part, Part::Image(_));
        let images = self.results().flat_map(|result| &result.parts).filter(is_image);
        let own = self.parts.iter().filter(|part| !matches!(part, Part::Result(_)));
        images.chain(own).collect()
    }
}

/// Joins the texts among parts.
pub(super) fn joined_text<'m>(parts: &'m [Part<'_>]) -> Cow<'m, str> {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(&**text),
        Part::Image(_) | Part::Thinking { .. } | Part::Call(_) | Part::Result(_) => None,
    });
    join(texts).unwrap_or_default()
}

/// Joins texts with line breaks; a single one is not copied.
pub(super) fn join<'t>(mut texts: impl Iterator<Item = &'t str>) -> Option<Cow<'t, str>> {
    let first = texts.next()?;
    Some(texts.fold(Cow::Borrowed(first), |whole, text| whole + "\n" + text))
}

/// A part of a message.
#[derive(Debug)]
pub(super) enum Part<'a> {
    Text(Text<'a>),
    Image(Image<'a>),
    /// The model's thinking.
    Thinking {
        /// The text.
        text: Text<'a>,
        /// Anthropic's proof that its model wrote the text.
        signature: Option<Text<'a>>,
    },
    /// A call of a tool.
    Call(Call<'a>),
    /// The result of a call.
    Result(CallResult<'a>),
}

/// An image in a message.
#[derive(Debug)]
pub(super) struct Image<'a> {
    /// The place of its bytes.
    pub(super) source: ImageSource<'a>,
    /// The detail with which the model is to see it, in OpenAI's words.
    pub(super) detail: Option<Text<'a>>,
}

impl<'a> From<ImageSource<'a>> for Image<'a> {
    fn from(source: ImageSource<'a>) -> Self {
        Self { source, detail: None }
    }
}

/// The place of an image's bytes.
#[derive(Debug)]
pub(super) enum ImageSource<'a> {
    /// The image itself, in base64.
    Inline {
        /// Its media type.
        media: Text<'a>,
        /// The bytes in base64.
        base64: Text<'a>,
    },
    /// A URL that the backend would have to fetch. penstock never fetches it.
    Address(Text<'a>),
}

/// A call of a tool by the model.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Its id; empty until [`link`](super::link::link_calls) gives it one.
    pub(super) id: Text<'a>,
    /// The name of the tool.
    pub(super) name: Text<'a>,
    /// The arguments: the text of a JSON object, unless the model has failed to write one.
    pub(super) arguments: Text<'a>,
}

impl Call<'_> {
    /// Returns the arguments as a JSON object, for dialects that have one in place of a text. Text
    /// that is no object, as a model may have written it, becomes a member of one: the client can
    /// repair no earlier turn, and the result of the call says what was wrong.
    pub(super) fn object(&self) -> Cow<'_, str> {
        if is_object(&self.arguments) {
            return Cow::Borrowed(&self.arguments);
        }
        if matches!(self.arguments.trim(), "" | "null") {
            return Cow::Borrowed("{}");
        }
        let mut object = Vec::new();
        ObjectWriter::new(&mut object).text("invalid_arguments", &self.arguments);
        String::from_utf8_lossy(&object).into_owned().into()
    }
}

/// The result of a tool call.
#[derive(Debug)]
pub(super) struct CallResult<'a> {
    /// The id of the call; empty until [`link`](super::link::link_calls) finds it.
    pub(super) call: Text<'a>,
    /// The name of the tool, if known.
    pub(super) name: Text<'a>,
    /// The texts and images of the result.
    pub(super) parts: Vec<Part<'a>>,
    /// True if the tool failed.
    pub(super) is_error: bool,
}

/// The tools that the model may call.
#[derive(Debug, Default)]
pub(super) struct Tools<'a> {
    pub(super) list: Vec<Tool<'a>>,
    /// The tools that the model must call.
    pub(super) choice: Option<ToolChoice<'a>>,
    /// If set, the model may call several tools at once.
    pub(super) parallel: Option<bool>,
}

/// A tool that the model may call.
#[derive(Debug)]
pub(super) struct Tool<'a> {
    pub(super) name: Text<'a>,
    /// The description of its purpose.
    pub(super) description: Option<Text<'a>>,
    /// The JSON schema of its arguments.
    pub(super) schema: Option<&'a RawValue>,
    /// If set, the arguments must match the schema exactly.
    pub(super) strict: Option<&'a RawValue>,
    /// True if it takes any text; its schema then has that text as `input`.
    pub(super) is_free_form: bool,
    /// The namespace of the tool, and its name there.
    pub(super) namespace: Option<(Text<'a>, Text<'a>)>,
}

/// Returns the name of a namespaced tool in APIs without namespaces.
pub(super) fn flat_name(namespace: &str, name: &str) -> String {
    // The name of a tool may have letters, digits, `_` and `-` only.
    format!("{namespace}__{name}")
}

/// The tools that the model must call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToolChoice<'a> {
    /// The model decides.
    Auto,
    /// No tool may be called.
    None,
    /// At least one tool.
    Required,
    /// This tool.
    Named(Text<'a>),
}

/// The form of the output.
#[derive(Debug)]
pub(super) enum Format<'a> {
    /// Any JSON object.
    Json,
    /// JSON that matches a schema.
    Schema {
        /// The schema.
        schema: &'a RawValue,
        /// The name of the schema, if the dialect has one.
        name: Option<Text<'a>>,
        /// The description of its purpose.
        description: Option<Text<'a>>,
        /// If set, the output must match exactly.
        strict: Option<&'a RawValue>,
    },
}

/// The settings for thinking before the response.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thinking {
    /// If set, turns thinking on or off.
    pub(super) enabled: Option<bool>,
    /// The amount of thinking.
    pub(super) effort: Option<Effort>,
    /// The maximum number of thinking tokens.
    pub(super) budget: Option<u64>,
}

penstock_api::named! {
    /// The amount of thinking, by the value of `reasoning_effort`.
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Effort {
        /// No thinking.
        None = "none",
        /// The minimum.
        Minimal = "minimal",
        /// A small amount.
        Low = "low",
        /// The usual amount.
        Medium = "medium",
        /// A large amount.
        High = "high",
        /// More than `High`.
        #[serde(alias = "ultra")]
        XHigh = "xhigh",
        /// The maximum.
        Max = "max",
    }
}

/// The sampling options. Values pass through as written; the engine checks them.
#[derive(Debug, Default)]
pub(super) struct Sampling<'a> {
    /// Each option under its name in llama.cpp's API: the largest set of all.
    options: Vec<(Text<'a>, &'a RawValue)>,
}

impl<'a> Sampling<'a> {
    /// Returns whether an option is set. For many names, [`names`](Self::names) is faster.
    pub(super) fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(own, _)| &**own == name)
    }

    /// Returns the names of the options that are set.
    pub(super) fn names(&self) -> HashSet<&str> {
        self.options.iter().map(|(name, _)| &**name).collect()
    }

    /// Adds an option.
    pub(super) fn push(&mut self, name: impl Into<Text<'a>>, value: &'a RawValue) {
        self.options.push((name.into(), value));
    }

    /// Returns the options, under their names in llama.cpp's API.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.options.iter().map(|(name, value)| (&**name, *value))
    }
}

/// The token probabilities that the client wants.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Logprobs {
    /// If set, the probabilities of the generated tokens.
    pub(super) enabled: bool,
    /// The number of alternatives whose probabilities are wanted too.
    pub(super) top: Option<u64>,
}

/// The time that the model stays loaded after the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelKeepAlive {
    /// This number of seconds; 0 unloads the model.
    Seconds(u64),
    /// Forever.
    Forever,
}
