//! Readers of requests: one per operation that clients call. Each fills a [`Conversation`] and takes
//! every field it knows; what is left are fields that pass as they are.

mod chat;
mod completions;
mod messages;
mod ollama_chat;
mod ollama_generate;
mod ollama_options;
mod openai_fields;
mod responses;

pub(super) use ollama_options::read_keep_alive;

use super::conversation::Conversation;
use super::error::ConvertError;
use crate::api::Operation;

/// Reads the body of a request that generates text; `None` if no reader for the operation exists.
pub(super) fn read_request(
    operation: Operation,
    body: &[u8],
) -> Option<Result<Conversation<'_>, ConvertError>> {
    match operation {
        Operation::OllamaChat => Some(ollama_chat::read(body)),
        Operation::OllamaGenerate => Some(ollama_generate::read(body)),
        Operation::Chat => Some(chat::read(body)),
        Operation::Completions => Some(completions::read(body)),
        Operation::Responses => Some(responses::read_body(body)),
        Operation::Messages | Operation::CountTokens => Some(messages::read_body(body)),
        _ => None,
    }
}
