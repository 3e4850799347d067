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

use super::conversation::{Conversation, Part, Role, Tools};
use super::json::Text;

/// Returns a text unless it is empty: clients send an empty one for a missing one.
fn filled(text: Option<Text<'_>>) -> Option<Text<'_>> {
    text.filter(|text| !text.is_empty())
}

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

/// Drops the settings of tool calls where no tool is offered: the client has sent none, or only
/// tools that a platform runs. Engines refuse the settings without tools.
pub(super) fn drop_settings_without_tools(mut conversation: Conversation<'_>) -> Conversation<'_> {
    if conversation.tools.list.is_empty() {
        conversation.tools = Tools::default();
        // Ollama's own API has no such fields; its clients' fields would pass as unknown ones.
        conversation.extra.discard(&["tool_choice", "parallel_tool_calls"]);
    }
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

    #[test]
    fn choice_and_parallel_calls_need_tools() {
        let messages = json!([{"role": "user", "content": "x"}]);
        let search = json!([{"type": "web_search_20250305", "name": "web_search"}]);
        let forced = json!({"type": "tool", "name": "web_search"});
        let any = json!({"type": "any", "disable_parallel_tool_use": true});
        let function = json!({"type": "function", "function": {"name": "f"}});
        for (operation, fields) in [
            (Operation::Chat, json!({"tool_choice": "auto", "parallel_tool_calls": true})),
            (Operation::Chat, json!({"tools": [], "tool_choice": function})),
            (
                Operation::Chat,
                json!({"tools": [function], "tool_choice": {"type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": []}}}),
            ),
            (
                Operation::Responses,
                json!({"tools": [], "tool_choice": "auto", "parallel_tool_calls": false}),
            ),
            (
                Operation::Responses,
                json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}),
            ),
            (
                Operation::Responses,
                json!({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
            ),
            (Operation::Messages, json!({"max_tokens": 1, "tools": search, "tool_choice": forced})),
            (Operation::Messages, json!({"max_tokens": 1, "tools": [], "tool_choice": any})),
            (
                Operation::OllamaChat,
                json!({"tools": [], "tool_choice": "required", "parallel_tool_calls": true}),
            ),
        ] {
            let mut body = json!({"messages": messages, "input": "x"});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let text = body.to_string();
            let read = read_request(operation, text.as_bytes()).unwrap().unwrap();
            let is_extra = |name: &str| name == "tool_choice" || name == "parallel_tool_calls";
            assert_eq!((read.tools.choice, read.tools.parallel), (None, None), "{fields}");
            assert!(!read.extra.iter().any(|(name, _)| is_extra(name)), "{fields}");
        }
    }

    #[test]
    fn forced_choice_of_a_tool_of_the_platform_is_dropped() {
        let messages = json!([{"role": "user", "content": "x"}]);
        let own = json!({"name": "f", "input_schema": {"type": "object"}});
        let search = json!({"type": "web_search_20250305", "name": "web_search"});
        let choose = |name: &str| {
            let choice = json!({"type": "tool", "name": name, "disable_parallel_tool_use": true});
            let body = json!({"max_tokens": 1, "messages": messages, "tools": [own, search],
                "tool_choice": choice})
            .to_string();
            let read = read_request(Operation::Messages, body.as_bytes()).unwrap().unwrap();
            assert_eq!((read.tools.list.len(), read.tools.parallel), (1, Some(false)), "{name}");
            read.tools.choice.map(|choice| format!("{choice:?}"))
        };
        assert_eq!(choose("web_search"), None);
        assert_eq!(choose("f").as_deref(), Some("Named(\"f\")"));
        assert_eq!(choose("g").as_deref(), Some("Named(\"g\")"), "the engine refuses a mistake");
        let body = json!({"input": "x", "parallel_tool_calls": true,
            "tools": [{"type": "function", "name": "f"}, {"type": "web_search_preview"}],
            "tool_choice": {"type": "web_search_preview"}})
        .to_string();
        let read = read_request(Operation::Responses, body.as_bytes()).unwrap().unwrap();
        assert_eq!((read.tools.choice, read.tools.parallel), (None, Some(true)));
    }
}
