//! Reads `/v1/chat/completions`.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{filled, openai_fields};
use crate::conversation::{Call, CallResult, Conversation, Message, Part, Role};
use crate::error::ConvertError;
use crate::image;
use crate::json::{Fields, Text, is_string};

/// The fields that request an output no other API has a form for.
const OTHER_OUTPUT: &[&str] =
    &["audio", "prediction", "web_search_options", "functions", "function_call"];

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ChatMessage<'a> {
    role: Text<'a>,
    content: Option<&'a RawValue>,
    reasoning_content: Option<Text<'a>>,
    reasoning: Option<Text<'a>>,
    refusal: Option<Text<'a>>,
    tool_calls: Option<Vec<ChatCall<'a>>>,
    tool_call_id: Option<Text<'a>>,
    name: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ChatCall<'a> {
    id: Option<Text<'a>>,
    function: ChatFunction<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ChatFunction<'a> {
    name: Text<'a>,
    arguments: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ContentPart<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    text: Option<Text<'a>>,
    refusal: Option<Text<'a>>,
    image_url: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ImageUrl<'a> {
    url: Text<'a>,
}

/// Reads the body.
pub(crate) fn read(body: &[u8]) -> Result<Conversation<'_>, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let mut conversation = Conversation::default();
    openai_fields::fill_generation(&mut conversation, &mut fields)?;
    openai_fields::fill_chat(&mut conversation, &mut fields)?;
    for field in OTHER_OUTPUT {
        if fields.take(field).is_some() {
            let reason = "its API has nothing like it";
            return Err(ConvertError::Unsupported { field, reason });
        }
    }
    let modalities: Option<Vec<Text<'_>>> = fields.take_as("modalities", "a list of strings")?;
    if modalities.into_iter().flatten().any(|one| &*one != "text") {
        let reason = "its API generates text";
        return Err(ConvertError::Unsupported { field: "modalities", reason });
    }
    let messages: Vec<ChatMessage<'_>> =
        fields.take_list("messages", "an object with role and content")?;
    if messages.is_empty() {
        return Err(ConvertError::Empty { field: "messages" });
    }
    for (index, message) in messages.into_iter().enumerate() {
        conversation.messages.push(read_message(message, index)?);
    }
    conversation.extra = fields;
    Ok(conversation)
}

fn read_message(message: ChatMessage<'_>, index: usize) -> Result<Message<'_>, ConvertError> {
    let invalid = |expected| ConvertError::InvalidItem { field: "messages", index, expected };
    let role = match &*message.role {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => return Err(invalid("a message of system, user, assistant or tool")),
    };
    let mut parts = Vec::with_capacity(2);
    // Engines use one name or the other.
    let thinking = filled(message.reasoning_content).or(filled(message.reasoning));
    if let Some(text) = thinking {
        parts.push(Part::Thinking { text, signature: None });
    }
    read_content(message.content, index, &mut parts)?;
    // The words of an earlier response, although the API has them in another field.
    if let Some(text) = filled(message.refusal) {
        parts.push(Part::Text(text));
    }
    for call in message.tool_calls.into_iter().flatten() {
        let id = call.id.unwrap_or_default();
        let arguments = call.function.arguments.unwrap_or_default();
        // A call without arguments may come with an empty text.
        let arguments = if arguments.trim().is_empty() { "{}".into() } else { arguments };
        parts.push(Part::Call(Call { id, name: call.function.name, arguments }));
    }
    if role == Role::Tool {
        let (call, name) = (message.tool_call_id.unwrap_or_default(), message.name);
        let name = name.unwrap_or_default();
        parts = vec![Part::Result(CallResult { call, name, parts, is_error: false })];
    }
    Ok(Message { role, parts })
}

fn read_content<'a>(
    content: Option<&'a RawValue>,
    index: usize,
    parts: &mut Vec<Part<'a>>,
) -> Result<(), ConvertError> {
    let invalid = |expected| ConvertError::InvalidItem { field: "messages", index, expected };
    let Some(content) = content else { return Ok(()) };
    if is_string(content) {
        let text: Text<'_> = serde_json::from_str(content.get())
            .map_err(|_error| invalid("a message whose content is text"))?;
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        return Ok(());
    }
    let list: Vec<ContentPart<'_>> = serde_json::from_str(content.get())
        .map_err(|_error| invalid("a message whose content is a string or a list of parts"))?;
    for part in list {
        match (&*part.kind, part.text, part.image_url) {
            ("text", Some(text), _) => parts.push(Part::Text(text)),
            ("refusal", ..) => parts.push(Part::Text(part.refusal.unwrap_or_default())),
            ("image_url", _, Some(raw)) => parts.push(Part::Image(
                image::of_url(
                    read_image(raw).ok_or(invalid("a message whose image_url has a url"))?,
                )
                .into(),
            )),
            _ => return Err(invalid("a message of text and image_url parts")),
        }
    }
    Ok(())
}

/// Returns the address of `image_url`: an object with `url`, or just the address.
fn read_image(raw: &RawValue) -> Option<Text<'_>> {
    if is_string(raw) {
        return serde_json::from_str(raw.get()).ok();
    }
    serde_json::from_str::<ImageUrl<'_>>(raw.get()).ok().map(|image| image.url)
}
