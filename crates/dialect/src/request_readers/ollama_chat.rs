//! Reads `/api/chat`.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{filled, ollama_options, openai_fields};
use crate::conversation::{Call, CallResult, Conversation, Message, Part, Role, Tools};
use crate::error::ConvertError;
use crate::image;
use crate::json::{Fields, Text};

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct OllamaMessage<'a> {
    role: Text<'a>,
    content: Option<Text<'a>>,
    thinking: Option<Text<'a>>,
    images: Option<Vec<Text<'a>>>,
    tool_calls: Option<Vec<OllamaCall<'a>>>,
    tool_name: Option<Text<'a>>,
    name: Option<Text<'a>>,
    tool_call_id: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct OllamaCall<'a> {
    id: Option<Text<'a>>,
    function: OllamaFunction<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct OllamaFunction<'a> {
    name: Text<'a>,
    arguments: Option<&'a RawValue>,
}

/// Reads the body of `/api/chat`.
pub(crate) fn read(body: &[u8]) -> Result<Conversation<'_>, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let mut conversation = Conversation::default();
    ollama_options::fill(&mut conversation, &mut fields)?;
    let messages: Vec<OllamaMessage<'_>> =
        fields.take_list("messages", "an object with role and content")?;
    if messages.is_empty() {
        return Err(ConvertError::Empty { field: "messages" });
    }
    for (index, message) in messages.into_iter().enumerate() {
        conversation.messages.push(read_message(message, index)?);
    }
    let list = openai_fields::read_chat_tools(&mut fields)?;
    conversation.tools = Tools { list, ..Tools::default() };
    conversation.extra = fields;
    Ok(conversation)
}

fn read_message(message: OllamaMessage<'_>, index: usize) -> Result<Message<'_>, ConvertError> {
    let role = match &*message.role {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            let expected = "a message of system, user, assistant or tool";
            return Err(ConvertError::InvalidItem { field: "messages", index, expected });
        }
    };
    let mut parts = Vec::with_capacity(2);
    if let Some(text) = message.thinking.filter(|text| !text.is_empty()) {
        parts.push(Part::Thinking { text, signature: None });
    }
    if let Some(text) = message.content.filter(|text| !text.is_empty()) {
        parts.push(Part::Text(text));
    }
    for image in message.images.into_iter().flatten() {
        parts.push(Part::Image(image::of_base64(image)?.into()));
    }
    for call in message.tool_calls.into_iter().flatten() {
        let arguments = call.function.arguments.map_or("{}", RawValue::get);
        // Ollama has objects here, OpenAI texts: a text would be escaped twice.
        if !arguments.starts_with('{') {
            let expected = "a message whose tool calls have an object as arguments";
            return Err(ConvertError::InvalidItem { field: "messages", index, expected });
        }
        let id = call.id.unwrap_or_default();
        let (name, arguments) = (call.function.name, arguments.into());
        parts.push(Part::Call(Call { id, name, arguments }));
    }
    if role == Role::Tool {
        let name = filled(message.tool_name).or(message.name).unwrap_or_default();
        let call = message.tool_call_id.unwrap_or_default();
        // Ollama matches results by name or order, so that the id may be missing.
        parts = vec![Part::Result(CallResult { call, name, parts, is_error: false })];
    }
    Ok(Message { role, parts })
}
