//! Reads OpenAI's `/v1/responses`.

mod items;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::openai_fields;
use crate::dialect::conversation::{
    Conversation, Effort, Format, Logprobs, Message, Part, Role, Tool,
};
use crate::dialect::error::ConvertError;
use crate::dialect::json::{Fields, Object, Text, is_string, read_value};

/// Fields that only OpenAI's platform acts on.
const PLATFORM: &[&str] =
    &["truncation", "max_tool_calls", "context_management", "client_metadata"];

/// Fields whose meaning is stored by the platform.
const STORED: &[&str] = &["previous_response_id", "conversation", "prompt"];

/// Tools that the platform runs by itself: the model is not offered them.
const HOSTED: &[&str] =
    &["web_search", "file_search", "code_interpreter", "image_generation", "tool_search"];

/// What a response echoes of its request, and what it says where the request says nothing.
const ECHO: &[(&str, &str)] = &[
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", "null"),
    ("temperature", "1.0"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "1.0"),
    ("truncation", "\"disabled\""),
    ("user", "null"),
];

/// The arguments of a tool that takes any text.
const FREE_FORM: &str = r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}"#;

#[derive(Deserialize)]
struct ResponsesTool<'a> {
    #[serde(rename = "type", borrow)]
    kind: Text<'a>,
    #[serde(default, borrow)]
    name: Option<Text<'a>>,
    #[serde(default, borrow)]
    description: Option<Text<'a>>,
    #[serde(default, borrow)]
    parameters: Option<&'a RawValue>,
    #[serde(default, borrow)]
    strict: Option<&'a RawValue>,
}

/// Reads the body.
pub(super) fn read_body(body: &[u8]) -> Result<Conversation<'_>, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let mut conversation = Conversation { echo: echo_of(&fields), ..Conversation::default() };
    for field in STORED {
        if fields.take(field).is_some() {
            let reason = "only OpenAI's platform stores what it refers to";
            return Err(ConvertError::Unsupported { field, reason });
        }
    }
    if fields.take_as("background", "true or false")? == Some(true) {
        let reason = "no engine responds later";
        return Err(ConvertError::Unsupported { field: "background", reason });
    }
    fields.discard(PLATFORM);
    openai_fields::fill_generation(&mut conversation, &mut fields)?;
    conversation.max_tokens = fields.take_as("max_output_tokens", "a whole number")?;
    fill_thinking_and_format(&mut conversation, &mut fields)?;
    fill_logprobs(&mut conversation, &mut fields)?;
    conversation.tools.list = read_tools(&mut fields)?;
    conversation.tools.choice =
        fields.take("tool_choice").map(openai_fields::read_tool_choice).transpose()?;
    conversation.tools.parallel = fields.take_as("parallel_tool_calls", "true or false")?;
    let instructions: Option<Text<'_>> = fields.take_as("instructions", "a string")?;
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        conversation.messages.push(Message { role: Role::System, parts: vec![Part::Text(text)] });
    }
    match fields.take("input") {
        None => return Err(ConvertError::Empty { field: "input" }),
        Some(raw) if is_string(raw) => {
            let parts = vec![Part::Text(read_value(raw, "input", "a string or a list of items")?)];
            conversation.messages.push(Message { role: Role::User, parts });
        }
        Some(raw) => items::read_items(raw, &mut conversation.messages)?,
    }
    conversation.extra = fields;
    Ok(conversation)
}

/// The members of the response that repeat the request.
fn echo_of(fields: &Fields<'_>) -> String {
    let mut out = Vec::with_capacity(512);
    {
        let mut object = Object::inside(&mut out);
        for (name, default) in ECHO {
            let own = fields.iter().find(|(own, value)| own == name && value.get() != "null");
            object.raw(name, own.map_or(default, |(_, value)| value.get()));
        }
    }
    // A line break between two values would end the line of the event.
    out.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    String::from_utf8(out).unwrap_or_default()
}

fn fill_thinking_and_format<'a>(
    conversation: &mut Conversation<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    #[derive(Deserialize)]
    struct Reasoning {
        #[serde(default)]
        effort: Option<Effort>,
    }
    #[derive(Deserialize)]
    struct TextField<'a> {
        #[serde(default, borrow)]
        format: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Kind<'a> {
        #[serde(rename = "type", borrow)]
        kind: Text<'a>,
    }
    const FORMAT: &str = "an object whose format is text, json_object or json_schema with a schema";
    let reasoning: Option<Reasoning> =
        fields.take_as("reasoning", "an object whose effort is from none to max")?;
    if let Some(effort) = reasoning.and_then(|reasoning| reasoning.effort) {
        conversation.thinking = openai_fields::of_effort(effort);
    }
    let text: Option<TextField<'_>> = fields.take_as("text", FORMAT)?;
    let Some(format) = text.and_then(|text| text.format) else { return Ok(()) };
    let Kind { kind } = read_value(format, "text", FORMAT)?;
    conversation.format = match &*kind {
        "text" => None,
        "json_object" => Some(Format::Json),
        "json_schema" => {
            let named: openai_fields::NamedSchema<'_> = read_value(format, "text", FORMAT)?;
            Some(named.into())
        }
        _ => return Err(ConvertError::Invalid { field: "text", expected: FORMAT }),
    };
    Ok(())
}

fn fill_logprobs<'a>(
    conversation: &mut Conversation<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    let include: Vec<Text<'_>> = fields.take_list("include", "a string")?;
    let top = fields.take_as("top_logprobs", "a number from 0 to 20")?;
    let enabled = include.iter().any(|one| &**one == "message.output_text.logprobs");
    conversation.logprobs = Logprobs { enabled, top };
    Ok(())
}

fn read_tools<'a>(fields: &mut Fields<'a>) -> Result<Vec<Tool<'a>>, ConvertError> {
    const EXPECTED: &str = "a function or a custom tool with a name";
    let tools: Vec<ResponsesTool<'_>> = fields.take_list("tools", EXPECTED)?;
    let mut list = Vec::with_capacity(tools.len());
    for (index, tool) in tools.into_iter().enumerate() {
        let is_free_form = match &*tool.kind {
            "function" => false,
            "custom" => true,
            hosted if HOSTED.iter().any(|name| hosted.starts_with(name)) => continue,
            _ => {
                return Err(ConvertError::InvalidItem {
                    field: "tools",
                    index,
                    expected: EXPECTED,
                });
            }
        };
        let invalid = ConvertError::InvalidItem { field: "tools", index, expected: EXPECTED };
        let free_form = || serde_json::from_str(FREE_FORM).ok();
        list.push(Tool {
            name: tool.name.ok_or(invalid)?,
            description: tool.description,
            schema: if is_free_form { free_form() } else { tool.parameters },
            strict: tool.strict,
            is_free_form,
        });
    }
    Ok(list)
}
