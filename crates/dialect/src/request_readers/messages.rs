//! Reads Anthropic's `/v1/messages`.

mod blocks;
mod tools;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::openai_fields;
use crate::conversation::{Conversation, Effort, Format, Message, Role, Sampling, Thinking};
use crate::error::ConvertError;
use crate::json::{Fields, Text};
use crate::whole::Whole;

/// The fields of Anthropic's platform that no engine acts on.
const PLATFORM: &[&str] = &[
    "metadata",
    "service_tier",
    "context_management",
    "inference_geo",
    "cache_control",
    "container",
    "speed",
    "betas",
];

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct AnthropicMessage<'a> {
    role: Text<'a>,
    content: &'a RawValue,
}

/// Reads the body.
pub(crate) fn read_body(body: &[u8]) -> Result<Conversation<'_>, ConvertError> {
    let mut fields = Fields::of_body(body)?;
    let mut conversation = Conversation::default();
    // The writer puts the backend's name for it in this place.
    fields.discard(&["model"]);
    fields.discard(PLATFORM);
    conversation.stream = fields.take_as("stream", "true or false")?.unwrap_or(false);
    conversation.max_tokens = fields.take_whole("max_tokens", "a whole number")?;
    conversation.stop = fields.take_list("stop_sequences", "a string")?;
    let mut sampling = Sampling::default();
    for name in ["temperature", "top_p", "top_k"] {
        if let Some(value) = fields.take(name) {
            sampling.push(name, value);
        }
    }
    conversation.sampling = sampling;
    fill_thinking_and_format(&mut conversation, &mut fields)?;
    tools::fill_tools(&mut conversation, &mut fields)?;
    // First, because the other APIs have it as the first message.
    if let Some(system) = fields.take("system") {
        let mut parts = Vec::new();
        blocks::read_content(system, "system", &mut parts)?;
        conversation.messages.push(Message { role: Role::System, parts });
    }
    let messages: Vec<AnthropicMessage<'_>> =
        fields.take_list("messages", "an object with role and content")?;
    if messages.is_empty() {
        return Err(ConvertError::Empty { field: "messages" });
    }
    for (index, message) in messages.into_iter().enumerate() {
        let role = match &*message.role {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            _ => {
                let expected = "a message of user or assistant";
                return Err(ConvertError::InvalidItem { field: "messages", index, expected });
            }
        };
        let mut parts = Vec::with_capacity(2);
        blocks::read_content(message.content, "messages", &mut parts)?;
        conversation.messages.push(Message { role, parts });
    }
    if let Some(servers) = fields.take("mcp_servers").filter(|servers| servers.get() != "[]") {
        debug_assert!(!servers.get().is_empty(), "a JSON value is not empty");
        let reason = "its engine calls no MCP servers";
        return Err(ConvertError::Unsupported { field: "mcp_servers", reason });
    }
    conversation.extra = fields;
    Ok(conversation)
}

fn fill_thinking_and_format<'a>(
    conversation: &mut Conversation<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    #[derive(Deserialize)]
    #[serde(bound(deserialize = "'de: 'a"))]
    struct ThinkingField<'a> {
        #[serde(rename = "type")]
        kind: Text<'a>,
        budget_tokens: Option<Whole<u64>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, bound(deserialize = "'de: 'a"))]
    struct OutputConfig<'a> {
        effort: Option<Effort>,
        format: Option<openai_fields::NamedSchema<'a>>,
    }
    let thinking: Option<ThinkingField<'_>> =
        fields.take_as("thinking", "an object with a type")?;
    if let Some(thinking) = thinking {
        let enabled = Some(&*thinking.kind != "disabled");
        conversation.thinking = Thinking {
            enabled,
            effort: None,
            budget: thinking.budget_tokens.map(|Whole(count)| count),
        };
    }
    let output: Option<OutputConfig<'_>> =
        fields.take_as("output_config", "an object with an effort or a format with a schema")?;
    if let Some(output) = output {
        conversation.thinking.effort = output.effort;
        conversation.format = output.format.map(Format::from);
    }
    let older: Option<openai_fields::NamedSchema<'_>> =
        fields.take_as("output_format", "an object with a schema")?;
    // Clients of the beta have it at the top; `output_config.format` has replaced it.
    if let Some(named) = older {
        conversation.format = Some(named.into());
    }
    Ok(())
}
