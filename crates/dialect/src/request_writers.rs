//! Writers of requests: one per operation that backends serve. Each prints a [`Conversation`].

mod chat;
mod completions;
mod messages;
mod ollama;

use penstock_api::Operation;

use super::RequestTerms;
use super::conversation::Conversation;
use super::error::ConvertError;

/// Writes the body of a request to a backend, and returns the resulting operation: a raw prompt
/// becomes a completion wherever chat was wanted. Returns `None` if no writer for the operation
/// exists.
pub(super) fn write_request(
    operation: Operation,
    conversation: &Conversation<'_>,
    terms: &RequestTerms<'_>,
    out: &mut Vec<u8>,
) -> Option<Result<Operation, ConvertError>> {
    let (operation, write): (_, WriteRequest) = match operation {
        Operation::Chat if conversation.raw.is_some() => {
            (Operation::Completions, completions::write)
        }
        Operation::Chat => (Operation::Chat, chat::write),
        Operation::Completions => (Operation::Completions, completions::write),
        // Both take the messages of a chat, and the other inputs of a template.
        Operation::ApplyTemplate | Operation::Tokenize => (operation, chat::write),
        Operation::Messages => (Operation::Messages, messages::write),
        Operation::OllamaChat => (Operation::OllamaChat, ollama::write_chat),
        Operation::OllamaGenerate => (Operation::OllamaGenerate, ollama::write_generate),
        _ => return None,
    };
    Some(write(conversation, terms, out).map(|()| operation))
}

/// Appends the body of a request.
type WriteRequest =
    fn(&Conversation<'_>, &RequestTerms<'_>, &mut Vec<u8>) -> Result<(), ConvertError>;
