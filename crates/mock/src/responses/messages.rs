//! `POST /v1/messages`: whole, and as events.

use std::sync::Arc;

use penstock_api::Operation;
use serde_json::{Value, json};

use super::reply::ReplyContent;
use super::{Events, StreamEvent, named_event};

pub(super) fn whole(reply: &ReplyContent) -> Value {
    let content = match &reply.tool {
        None => json!({"type": "text", "text": reply.text()}),
        Some(name) => {
            let input: Value = serde_json::from_str(&reply.text()).unwrap_or(Value::Null);
            json!({"type": "tool_use", "id": call_id(reply), "name": name, "input": input})
        }
    };
    let mut message = message(reply, &json!([content]), reply.count());
    if let Some(reason) = message.get_mut("stop_reason") {
        *reason = json!(stop_reason(reply));
    }
    message
}

pub(super) fn events(reply: ReplyContent) -> Events {
    let reply = Arc::new(reply);
    let block = match &reply.tool {
        None => json!({"type": "text", "text": ""}),
        Some(name) => {
            json!({"type": "tool_use", "id": call_id(&reply), "name": name, "input": {}})
        }
    };
    let lead = [
        json!({"type": "message_start", "message": message(&reply, &json!([]), 0)}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "ping"}),
    ];
    let tail = [
        json!({"type": "content_block_stop", "index": 0}),
        json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason(&reply), "stop_sequence": null},
            "usage": {"output_tokens": reply.count()},
        }),
        json!({"type": "message_stop"}),
    ];
    let tokens = (0..reply.count()).map(move |index| {
        let (wait, text) = reply.token(index);
        let delta = match reply.tool {
            None => json!({"type": "text_delta", "text": text}),
            Some(_) => json!({"type": "input_json_delta", "partial_json": text}),
        };
        let event = json!({"type": "content_block_delta", "index": 0, "delta": delta});
        StreamEvent::token(wait, named_event(&event))
    });
    let list = lead.into_iter().map(at_once).chain(tokens).chain(tail.into_iter().map(at_once));
    Events::new(Operation::Messages, list)
}

fn at_once(event: Value) -> StreamEvent {
    StreamEvent::at_once(named_event(&event))
}

/// Returns a message that has not stopped yet.
fn message(reply: &ReplyContent, content: &Value, output_tokens: u32) -> Value {
    json!({
        "id": format!("msg_{}", reply.id),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": null,
        "stop_sequence": null,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": output_tokens},
    })
}

fn stop_reason(reply: &ReplyContent) -> &'static str {
    match (&reply.tool, reply.is_cut) {
        (Some(_), _) => "tool_use",
        (None, true) => "max_tokens",
        (None, false) => "end_turn",
    }
}

fn call_id(reply: &ReplyContent) -> String {
    format!("toolu_{}", reply.id)
}
