//! The common fields of OpenAI's chat, completions and responses: sampling, limits, tools.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::conversation::{
    Conversation, Effort, Format, Logprobs, Sampling, Thinking, Tool, ToolChoice, Tools, flat_name,
};
use crate::error::ConvertError;
use crate::json::{Fields, Text, is_string, read_value};

/// The sampling options that the engines of `/v1` take.
const SAMPLING: &[&str] = &[
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repeat_last_n",
];

/// The options of vLLM and SGLang, with llama.cpp's names for them.
const RENAMED: &[(&str, &str)] = &[("repetition_penalty", "repeat_penalty")];

/// The fields of OpenAI's platform that no engine acts on.
const PLATFORM: &[&str] = &[
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// A function that the model may call.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct Function<'a> {
    name: Text<'a>,
    description: Option<Text<'a>>,
    parameters: Option<&'a RawValue>,
    strict: Option<&'a RawValue>,
}

/// A tool in the form of Ollama's and OpenAI's chat.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct FunctionTool<'a> {
    function: Function<'a>,
}

impl<'a> From<Function<'a>> for Tool<'a> {
    fn from(function: Function<'a>) -> Self {
        Tool {
            name: function.name,
            description: function.description,
            schema: function.parameters,
            strict: function.strict,
            is_free_form: false,
            namespace: None,
        }
    }
}

/// Reads `tools` in the form of Ollama's and OpenAI's chat.
pub(super) fn read_chat_tools<'a>(fields: &mut Fields<'a>) -> Result<Vec<Tool<'a>>, ConvertError> {
    let tools: Vec<FunctionTool<'_>> = fields.take_list("tools", "an object with a function")?;
    Ok(tools.into_iter().map(|tool| tool.function.into()).collect())
}

/// Takes the fields that control generation.
pub(super) fn fill_generation<'a>(
    conversation: &mut Conversation<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct OpenAiStreamOptions {
        include_usage: Option<bool>,
    }
    fields.discard(&["model"]);
    // They concern OpenAI's platform, and change no token of the response.
    fields.discard(PLATFORM);
    conversation.stream = fields.take_as("stream", "true or false")?.unwrap_or(false);
    let options: Option<OpenAiStreamOptions> = fields.take_as("stream_options", "an object")?;
    conversation.include_usage = options.and_then(|one| one.include_usage).unwrap_or(false);
    conversation.stop = fields.take("stop").map(read_stop).transpose()?.unwrap_or_default();
    let choices: Option<u64> = fields.take_whole("n", "a whole number")?;
    // Refused, not dropped: a client that asks for three choices would read one as all of them.
    if choices.is_some_and(|choices| choices != 1) {
        let reason = "its API generates one choice";
        return Err(ConvertError::Unsupported { field: "n", reason });
    }
    let mut sampling = Sampling::default();
    for name in SAMPLING {
        if let Some(value) = fields.take(name) {
            sampling.push(*name, value);
        }
    }
    for (own, name) in RENAMED {
        if let Some(value) = fields.take(own) {
            sampling.push(*name, value);
        }
    }
    conversation.sampling = sampling;
    Ok(())
}

/// Takes the fields that only conversations have.
pub(super) fn fill_chat<'a>(
    conversation: &mut Conversation<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    let newer = fields.take_whole("max_completion_tokens", "a whole number")?;
    let older = fields.take_whole("max_tokens", "a whole number")?;
    // OpenAI has replaced the older name, which engines go on taking.
    conversation.max_tokens = newer.or(older);
    conversation.tools.list = read_chat_tools(fields)?;
    fill_tool_choice(&mut conversation.tools, fields)?;
    conversation.format = fields.take("response_format").map(read_format).transpose()?.flatten();
    conversation.thinking = read_thinking(fields)?;
    conversation.verbosity = fields.take_as("verbosity", "low, medium or high")?;
    let enabled = fields.take_as("logprobs", "true or false")?.unwrap_or(false);
    let top = fields.take_whole("top_logprobs", "a number from 0 to 20")?;
    conversation.logprobs = Logprobs { enabled, top };
    Ok(())
}

/// Reads `stop`: a string or a list of strings.
pub(super) fn read_stop(raw: &RawValue) -> Result<Vec<Text<'_>>, ConvertError> {
    const STOP: &str = "a string or a list of strings";
    if is_string(raw) {
        return Ok(vec![read_value(raw, "stop", STOP)?]);
    }
    read_value(raw, "stop", STOP)
}

/// The accepted forms of `tool_choice`.
const CHOICE: &str = "auto, none, required, a function, or allowed_tools with a mode and tools";

/// A function in `tool_choice`: chat and responses name it in different places.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct NamedTool<'a> {
    name: Option<Text<'a>>,
    namespace: Option<Text<'a>>,
    function: Option<ToolName<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ToolName<'a> {
    name: Text<'a>,
}

impl<'a> NamedTool<'a> {
    fn into_name(self) -> Option<Text<'a>> {
        let name = self.name.or(self.function.map(|function| function.name))?;
        Some(match self.namespace {
            Some(namespace) => flat_name(&namespace, &name).into(),
            None => name,
        })
    }
}

/// The tools among which the model may choose, with `mode` auto or required.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct AllowedTools<'a> {
    mode: Text<'a>,
    tools: Vec<NamedTool<'a>>,
}

/// Takes `tool_choice` and `parallel_tool_calls` of chat and of responses. Tools that are not
/// allowed are not offered: no other API can offer a tool and forbid it.
pub(super) fn fill_tool_choice<'a>(
    tools: &mut Tools<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    #[derive(Default, Deserialize)]
    #[serde(default, bound(deserialize = "'de: 'a"))]
    struct ChoiceKind<'a> {
        #[serde(rename = "type")]
        kind: Option<Text<'a>>,
        allowed_tools: Option<&'a RawValue>,
    }
    tools.parallel = fields.take_as("parallel_tool_calls", "true or false")?;
    let Some(raw) = fields.take("tool_choice") else { return Ok(()) };
    if is_string(raw) {
        tools.choice = Some(read_tool_choice(raw)?);
        return Ok(());
    }
    let kind: ChoiceKind<'_> = read_value(raw, "tool_choice", CHOICE)?;
    if kind.kind.as_deref() != Some("allowed_tools") {
        tools.choice = Some(read_tool_choice(raw)?);
        return Ok(());
    }
    // Chat nests the list, Responses does not.
    let allowed = kind.allowed_tools.unwrap_or(raw);
    let allowed: AllowedTools<'_> = read_value(allowed, "tool_choice", CHOICE)?;
    tools.choice = Some(match &*allowed.mode {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        _ => return Err(ConvertError::Invalid { field: "tool_choice", expected: CHOICE }),
    });
    let names = allowed.tools.into_iter().filter_map(NamedTool::into_name);
    let names: HashSet<String> = names.map(|name| name.to_string()).collect();
    // Other APIs have no such list: a tool that may not be called is left out.
    tools.list.retain(|tool| names.contains(&*tool.name));
    Ok(())
}

fn read_tool_choice(raw: &RawValue) -> Result<ToolChoice<'_>, ConvertError> {
    match raw.get() {
        "\"auto\"" => Ok(ToolChoice::Auto),
        "\"none\"" => Ok(ToolChoice::None),
        "\"required\"" => Ok(ToolChoice::Required),
        _ => {
            let named: NamedTool<'_> = read_value(raw, "tool_choice", CHOICE)?;
            let invalid = ConvertError::Invalid { field: "tool_choice", expected: CHOICE };
            named.into_name().map(ToolChoice::Named).ok_or(invalid)
        }
    }
}

/// A JSON schema with its name.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct NamedSchema<'a> {
    schema: &'a RawValue,
    name: Option<Text<'a>>,
    description: Option<Text<'a>>,
    strict: Option<&'a RawValue>,
}

impl<'a> From<NamedSchema<'a>> for Format<'a> {
    fn from(named: NamedSchema<'a>) -> Self {
        let NamedSchema { schema, name, description, strict } = named;
        Format::Schema { schema, name, description, strict }
    }
}

fn read_format(raw: &RawValue) -> Result<Option<Format<'_>>, ConvertError> {
    #[derive(Deserialize)]
    #[serde(bound(deserialize = "'de: 'a"))]
    struct ResponseFormat<'a> {
        #[serde(rename = "type")]
        kind: Text<'a>,
        json_schema: Option<NamedSchema<'a>>,
    }
    const EXPECTED: &str = "text, json_object, or json_schema with a schema";
    let invalid = ConvertError::Invalid { field: "response_format", expected: EXPECTED };
    let format: ResponseFormat<'_> = read_value(raw, "response_format", EXPECTED)?;
    match &*format.kind {
        "text" => Ok(None),
        "json_object" => Ok(Some(Format::Json)),
        "json_schema" => format.json_schema.map(|named| Some(named.into())).ok_or(invalid),
        _ => Err(invalid),
    }
}

/// Reads `reasoning_effort`, and the equivalents of llama.cpp and vLLM.
fn read_thinking(fields: &mut Fields<'_>) -> Result<Thinking, ConvertError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct TemplateArguments {
        enable_thinking: Option<bool>,
    }
    // OpenAI's own field first; the other one is an extension of vLLM and SGLang.
    if let Some(effort) = fields.take_as("reasoning_effort", EFFORT)? {
        return Ok(of_effort(effort));
    }
    let Some(arguments) = fields.take("chat_template_kwargs") else {
        return Ok(Thinking::default());
    };
    let TemplateArguments { enable_thinking: enabled } =
        read_value(arguments, "chat_template_kwargs", "an object")?;
    Ok(Thinking { enabled, ..Thinking::default() })
}

/// The accepted values of `reasoning_effort`.
pub(super) const EFFORT: &str = "none, minimal, low, medium, high, xhigh or max";

/// Returns thinking with this effort.
pub(super) fn of_effort(effort: Effort) -> Thinking {
    Thinking { enabled: Some(effort != Effort::None), effort: Some(effort), budget: None }
}
