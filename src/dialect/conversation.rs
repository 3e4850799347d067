//! The request between two dialects: what any of them can say, as borrowed text. Readers fill it,
//! writers print it; neither knows the other.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::{Fields, Text};

/// A request to generate text.
#[derive(Debug, Default)]
pub(super) struct Conversation<'a> {
    /// The messages, system messages among them.
    pub(super) messages: Vec<Message<'a>>,
    /// A prompt that is continued as it is, without a chat template; then there are no messages.
    pub(super) raw: Option<RawPrompt<'a>>,
    /// The tools.
    pub(super) tools: Tools<'a>,
    /// The form of the output.
    pub(super) format: Option<Format<'a>>,
    /// How the model thinks before it responds.
    pub(super) thinking: Thinking,
    /// How tokens are drawn.
    pub(super) sampling: Sampling<'a>,
    /// The most tokens to generate.
    pub(super) max_tokens: Option<u64>,
    /// Texts that end the generation.
    pub(super) stop: Vec<Text<'a>>,
    /// The probabilities of tokens.
    pub(super) logprobs: Logprobs,
    /// Whether the response is a stream.
    pub(super) stream: bool,
    /// Whether the client wants a usage event in the stream.
    pub(super) include_usage: bool,
    /// How long the model stays loaded.
    pub(super) keep_alive: Option<KeepAlive>,
    /// What the response echoes of the request: members of a JSON object, with a comma at their end.
    pub(super) echo: String,
    /// Fields that no reader knows.
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
    /// Instructions.
    System,
    /// The user, or the application.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One message.
#[derive(Debug)]
pub(super) struct Message<'a> {
    /// Its author.
    pub(super) role: Role,
    /// Its content, in order.
    pub(super) parts: Vec<Part<'a>>,
}

impl<'a> Message<'a> {
    /// Its texts as one.
    pub(super) fn text(&self) -> Cow<'_, str> {
        joined_text(&self.parts)
    }

    /// What the model thought before it, as one text.
    pub(super) fn thinking(&self) -> Option<Cow<'_, str>> {
        join(self.parts.iter().filter_map(|part| match part {
            Part::Thinking { text, .. } => Some(&**text),
            Part::Text(_) | Part::Image(_) | Part::Call(_) | Part::Result(_) => None,
        }))
    }

    /// Its tool calls.
    pub(super) fn calls(&self) -> impl Iterator<Item = &Call<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Call(call) => Some(call),
            Part::Text(_) | Part::Image(_) | Part::Thinking { .. } | Part::Result(_) => None,
        })
    }

    /// The results of tool calls in it.
    pub(super) fn results(&self) -> impl Iterator<Item = &CallResult<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Result(result) => Some(result),
            Part::Text(_) | Part::Image(_) | Part::Thinking { .. } | Part::Call(_) => None,
        })
    }

    /// What a user message has beside results of tool calls: the images of these results, then its own
    /// parts. For dialects whose results are text.
    pub(super) fn beside_results(&self) -> Vec<&Part<'a>> {
        let is_image = |part: &&Part<'_>| matches!(part, Part::Image(_));
        let images = self.results().flat_map(|result| &result.parts).filter(is_image);
        let own = self.parts.iter().filter(|part| !matches!(part, Part::Result(_)));
        images.chain(own).collect()
    }
}

/// The texts among parts as one.
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
    /// Text.
    Text(Text<'a>),
    /// An image.
    Image(Image<'a>),
    /// What the model thought.
    Thinking {
        /// The text.
        text: Text<'a>,
        /// Anthropic's proof that the text is its own.
        signature: Option<Text<'a>>,
    },
    /// A call of a tool.
    Call(Call<'a>),
    /// The result of a call.
    Result(CallResult<'a>),
}

/// An image in a message.
#[derive(Debug)]
pub(super) enum Image<'a> {
    /// The image itself, in base64.
    Inline {
        /// Its media type.
        media: Text<'a>,
        /// The bytes in base64.
        base64: Text<'a>,
    },
    /// An address that the backend would have to fetch. penstock never does.
    Address(Text<'a>),
}

/// A call of a tool by the model.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Its id; empty until [`link`](super::link::link_calls) gives it one.
    pub(super) id: Text<'a>,
    /// The tool.
    pub(super) name: Text<'a>,
    /// The arguments: the text of a JSON object.
    pub(super) arguments: Text<'a>,
}

/// The result of a tool call.
#[derive(Debug)]
pub(super) struct CallResult<'a> {
    /// The id of the call; empty until [`link`](super::link::link_calls) finds it.
    pub(super) call: Text<'a>,
    /// The tool, as far as known.
    pub(super) name: Text<'a>,
    /// Texts and images.
    pub(super) parts: Vec<Part<'a>>,
    /// Whether the tool failed.
    pub(super) is_error: bool,
}

/// The tools that the model may call.
#[derive(Debug, Default)]
pub(super) struct Tools<'a> {
    /// The tools.
    pub(super) list: Vec<Tool<'a>>,
    /// Which of them it must call.
    pub(super) choice: Option<ToolChoice<'a>>,
    /// Whether it may call several at once.
    pub(super) parallel: Option<bool>,
}

/// A tool that the model may call.
#[derive(Debug)]
pub(super) struct Tool<'a> {
    /// Its name.
    pub(super) name: Text<'a>,
    /// What it does.
    pub(super) description: Option<Text<'a>>,
    /// The JSON schema of its arguments.
    pub(super) schema: Option<&'a RawValue>,
    /// Whether the arguments must match the schema exactly.
    pub(super) strict: Option<&'a RawValue>,
    /// Whether it takes any text: its schema then has that text as `input`.
    pub(super) is_free_form: bool,
    /// The namespace that it is of, and its name there.
    pub(super) namespace: Option<(Text<'a>, Text<'a>)>,
}

/// The name of a tool of a namespace in the APIs that have none.
pub(super) fn flat_name(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// Which tools the model must call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ToolChoice<'a> {
    /// As it likes.
    Auto,
    /// None.
    None,
    /// At least one.
    Required,
    /// This one.
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
        /// Its name, where the dialect has one.
        name: Option<Text<'a>>,
        /// Whether the output must match exactly.
        strict: Option<&'a RawValue>,
    },
}

/// How the model thinks before it responds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thinking {
    /// Whether it thinks at all.
    pub(super) enabled: Option<bool>,
    /// How much.
    pub(super) effort: Option<Effort>,
    /// The most tokens it may think.
    pub(super) budget: Option<u64>,
}

/// How much the model thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Effort {
    /// Not at all.
    None,
    /// As little as it can.
    Minimal,
    /// A little.
    Low,
    /// The usual amount.
    Medium,
    /// Much.
    High,
    /// More than that.
    #[serde(alias = "ultra")]
    XHigh,
    /// As much as it can.
    Max,
}

impl Effort {
    /// The value of `reasoning_effort`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
            Self::Max => "max",
        }
    }
}

/// How tokens are drawn. The values pass as they were written; the engine checks them.
#[derive(Debug, Default)]
pub(super) struct Sampling<'a> {
    /// Every option with its name in llama.cpp's API: the widest set of all.
    options: Vec<(Text<'a>, &'a RawValue)>,
}

impl<'a> Sampling<'a> {
    /// Whether an option is set. For many names, [`names`](Self::names) is the faster way.
    pub(super) fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(own, _)| &**own == name)
    }

    /// The names of the options that are set.
    pub(super) fn names(&self) -> HashSet<&str> {
        self.options.iter().map(|(name, _)| &**name).collect()
    }

    /// Adds an option.
    pub(super) fn push(&mut self, name: impl Into<Text<'a>>, value: &'a RawValue) {
        self.options.push((name.into(), value));
    }

    /// The options, with their names in llama.cpp's API.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.options.iter().map(|(name, value)| (&**name, *value))
    }
}

/// Which probabilities of tokens the client wants.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Logprobs {
    /// Those of the generated tokens.
    pub(super) enabled: bool,
    /// Of how many alternatives, too.
    pub(super) top: Option<u64>,
}

/// How long the model stays loaded after the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAlive {
    /// This many seconds; 0 unloads it.
    Seconds(u64),
    /// Forever.
    Forever,
}
