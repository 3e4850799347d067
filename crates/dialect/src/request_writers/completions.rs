//! Writes `/v1/completions`: raw prompts, and plain ones for models without a chat template.

use super::chat::{write_extra, write_generation};
use crate::RequestTerms;
use crate::conversation::{Conversation, Part, Role};
use crate::error::ConvertError;
use crate::json::ObjectWriter;

/// Writes the body.
pub(crate) fn write(
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ConvertError> {
    let mut body = ObjectWriter::new(out);
    body.text("model", terms.model);
    match &conversation.raw {
        Some(raw) => {
            body.text("prompt", &raw.prompt);
            body.text_if("suffix", raw.suffix.as_deref());
        }
        None => body.text("prompt", &plain_prompt(conversation)?),
    }
    write_generation(conversation, terms, &terms.engine.row().fields, &mut body);
    if conversation.logprobs.enabled {
        // 0 alternatives are not the same as no probabilities here.
        body.number("logprobs", conversation.logprobs.top.unwrap_or(0));
    }
    write_extra(conversation, is_written, &mut body);
    Ok(())
}

fn is_written(conversation: &Conversation<'_>, name: &str) -> bool {
    match name {
        "model" | "prompt" | "suffix" | "stream" | "stream_options" => true,
        "max_tokens" => conversation.max_tokens.is_some(),
        "stop" => !conversation.stop.is_empty(),
        "logprobs" => conversation.logprobs.enabled,
        _ => false,
    }
}

/// Returns the prompt for a backend without a chat template; parts that only a template could place
/// are an error.
fn plain_prompt<'c>(
    conversation: &'c Conversation<'_>,
) -> Result<std::borrow::Cow<'c, str>, ConvertError> {
    let reason = "it serves completions only, which have no form for it";
    let unsupported = |field| ConvertError::Unsupported { field, reason };
    let [message] = conversation.messages.as_slice() else { return Err(unsupported("system")) };
    let is_text = message.parts.iter().all(|part| matches!(part, Part::Text(_)));
    if message.role != Role::User || !is_text {
        return Err(unsupported("images"));
    }
    if conversation.format.is_some() {
        return Err(unsupported("format"));
    }
    if conversation.thinking.enabled == Some(true) {
        return Err(unsupported("think"));
    }
    Ok(message.text())
}
