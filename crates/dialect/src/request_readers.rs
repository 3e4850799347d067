//! Readers of requests: one per operation that clients call. Each fills a [`Conversation`] and
//! takes every field it knows; the remaining fields pass through.

pub(super) mod chat;
pub(super) mod completions;
pub(super) mod messages;
pub(super) mod ollama_chat;
pub(super) mod ollama_generate;
mod ollama_options;
mod openai_fields;
pub(super) mod responses;

pub(super) use ollama_options::read_keep_alive;

use penstock_api::without_billing_line;

use super::conversation::{Conversation, Part, Role};

/// Drops the line of Claude Code's instructions that differs in every request: after it, no engine
/// would find a prompt in its prefix cache.
pub(super) fn drop_billing_line(mut conversation: Conversation<'_>) -> Conversation<'_> {
    conversation.messages.retain_mut(|message| {
        if message.role != Role::System {
            return true;
        }
        let had_parts = !message.parts.is_empty();
        message.parts.retain_mut(|part| {
            let Part::Text(text) = part else { return true };
            let rest = without_billing_line(text);
            if rest.len() == text.len() {
                return true;
            }
            *text = rest.to_owned().into();
            !text.is_empty()
        });
        !(had_parts && message.parts.is_empty())
    });
    conversation
}

#[cfg(test)]
mod tests {
    use penstock_api::Operation;
    use serde_json::{Value, json};

    use super::*;
    use crate::codecs::read_request;

    fn systems(operation: Operation, body: &Value) -> Vec<String> {
        let text = body.to_string();
        let conversation = read_request(operation, text.as_bytes()).unwrap().unwrap();
        let messages = conversation.messages.iter();
        let systems = messages.filter(|message| message.role == Role::System);
        systems.map(|message| message.text().into_owned()).collect()
    }

    #[test]
    fn changing_line_of_claude_code_reaches_no_other_dialect() {
        let line = "x-anthropic-billing-header: cc_version=2.1.30; cc_entrypoint=cli; cch=00ff1;";
        let user = json!({"role": "user", "content": line});
        let of = |system: Value| {
            let body = json!({"max_tokens": 1, "system": system, "messages": [user]});
            systems(Operation::Messages, &body)
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(of(json!([text(line), text("Be brief.")])), ["Be brief."]);
        assert_eq!(of(json!(format!("{line}\nBe brief."))), ["Be brief."]);
        assert!(of(json!([text(line)])).is_empty(), "no empty message is left");
        assert_eq!(of(json!("Be brief.")), ["Be brief."]);
        let body =
            json!({"messages": [{"role": "system", "content": [text(line), text("Hi.")]}, user]});
        assert_eq!(systems(Operation::Chat, &body), ["Hi."]);
        let bytes = body.to_string();
        let read = read_request(Operation::Chat, bytes.as_bytes()).unwrap().unwrap();
        assert_eq!(&*read.messages[1].text(), line, "a user may write the same");
    }
}
