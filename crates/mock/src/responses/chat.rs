//! `POST /v1/chat/completions`: whole, and as chunks.

use std::sync::Arc;

use penstock_api::Operation;
use serde_json::{Value, json};

use super::reply::ReplyContent;
use super::{CREATED, Events, StreamEvent, unnamed_event};

pub(super) fn whole(reply: &ReplyContent) -> Value {
    let message = match &reply.tool {
        None => json!({"role": "assistant", "content": reply.text()}),
        Some(name) => json!({
            "role": "assistant",
            "content": null,
            "tool_calls": [{
                "id": call_id(reply),
                "type": "function",
                "function": {"name": name, "arguments": reply.text()},
            }],
        }),
    };
    json!({
        "id": format!("chatcmpl-{}", reply.id),
        "object": "chat.completion",
        "created": CREATED,
        "model": reply.model,
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": null,
            "finish_reason": finish_reason(reply),
        }],
        "usage": usage(reply),
    })
}

pub(super) fn events(reply: ReplyContent) -> Events {
    let reply = Arc::new(reply);
    let role = chunk(&reply, &json!({"role": "assistant", "content": ""}), None);
    let call = reply.tool.as_ref().map(|name| {
        let function = json!({"name": name, "arguments": ""});
        let call =
            json!({"index": 0, "id": call_id(&reply), "type": "function", "function": function});
        chunk(&reply, &json!({"tool_calls": [call]}), None)
    });
    let finish = chunk(&reply, &json!({}), Some(finish_reason(&reply)));
    let usage = reply.includes_usage.then(|| {
        let mut last = envelope(&reply, &json!([]));
        last.extend([("usage".to_owned(), usage(&reply))]);
        unnamed_event(&Value::Object(last))
    });
    let tail = [Some(finish), usage, Some(b"data: [DONE]\n\n".to_vec())];
    let tokens = (0..reply.count()).map(move |index| {
        let (wait, text) = reply.token(index);
        let delta = if reply.tool.is_some() {
            json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        } else {
            json!({"content": text})
        };
        StreamEvent::token(wait, chunk(&reply, &delta, None))
    });
    let lead = [Some(role), call].into_iter().flatten().map(StreamEvent::at_once);
    let tail = tail.into_iter().flatten().map(StreamEvent::at_once);
    Events::new(Operation::Chat, lead.chain(tokens).chain(tail))
}

fn chunk(reply: &ReplyContent, delta: &Value, finish: Option<&str>) -> Vec<u8> {
    let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
    let mut chunk = envelope(reply, &json!([choice]));
    if reply.includes_usage {
        // OpenAI's chunks have the member with null once the client requests usage.
        chunk.insert("usage".to_owned(), Value::Null);
    }
    unnamed_event(&Value::Object(chunk))
}

fn envelope(reply: &ReplyContent, choices: &Value) -> serde_json::Map<String, Value> {
    let fields = [
        ("id", json!(format!("chatcmpl-{}", reply.id))),
        ("object", json!("chat.completion.chunk")),
        ("created", json!(CREATED)),
        ("model", json!(reply.model)),
        ("choices", choices.clone()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the token counts as chat and completions report them.
pub(super) fn usage(reply: &ReplyContent) -> Value {
    json!({
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.count(),
        "total_tokens": reply.prompt_tokens.saturating_add(reply.count()),
    })
}

fn finish_reason(reply: &ReplyContent) -> &'static str {
    match (&reply.tool, reply.is_cut) {
        (Some(_), _) => "tool_calls",
        (None, true) => "length",
        (None, false) => "stop",
    }
}

fn call_id(reply: &ReplyContent) -> String {
    format!("call_{}", reply.id)
}
