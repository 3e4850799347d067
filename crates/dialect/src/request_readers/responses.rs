//! Reads OpenAI's `/v1/responses`.

mod items;
mod tools;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::openai_fields;
use crate::conversation::{Conversation, Effort, Format, Logprobs, Message, Part, Role};
use crate::error::ConvertError;
use crate::json::{Fields, ObjectWriter, Text, is_string, read_value};

/// Fields that only OpenAI's platform acts on.
const PLATFORM: &[&str] =
    &["truncation", "max_tool_calls", "context_management", "client_metadata"];

/// The fields that refer to data stored by the platform.
const STORED: &[&str] = &["previous_response_id", "conversation", "prompt"];

/// The members that a response echoes from its request, with the value for a missing one.
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

/// Reads the body.
pub(crate) fn read_body(body: &[u8]) -> Result<Conversation<'_>, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    // First: the fields that are taken below are not there afterwards.
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
    conversation.max_tokens = fields.take_whole("max_output_tokens", "a whole number")?;
    fill_thinking_and_format(&mut conversation, &mut fields)?;
    fill_logprobs(&mut conversation, &mut fields)?;
    conversation.tools.list = tools::read_tools(&mut fields)?;
    tools::discard_hosted_choice(&mut fields);
    openai_fields::fill_tool_choice(&mut conversation.tools, &mut fields)?;
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

/// Returns the members of the response that echo the request.
fn echo_of(fields: &Fields<'_>) -> String {
    let mut out = Vec::with_capacity(512);
    {
        let mut object = ObjectWriter::inside(&mut out);
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
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Reasoning {
        effort: Option<Effort>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, bound(deserialize = "'de: 'a"))]
    struct TextField<'a> {
        format: Option<&'a RawValue>,
        verbosity: Option<Text<'a>>,
    }
    #[derive(Deserialize)]
    struct FormatKind<'a> {
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
    let TextField { format, verbosity } = text.unwrap_or_default();
    conversation.verbosity = verbosity;
    let Some(format) = format else { return Ok(()) };
    let FormatKind { kind } = read_value(format, "text", FORMAT)?;
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
    let top = fields.take_whole("top_logprobs", "a number from 0 to 20")?;
    let enabled = include.iter().any(|one| &**one == "message.output_text.logprobs");
    conversation.logprobs = Logprobs { enabled, top };
    Ok(())
}
