//! llama.cpp's own `POST /completion` and `POST /infill`: whole, and as events.

use std::sync::Arc;

use penstock_api::Operation;
use serde_json::{Value, json};

use super::reply::ReplyContent;
use super::{Events, StreamEvent, unnamed_event};

pub(super) fn whole(reply: &ReplyContent) -> Value {
    last(reply, &reply.text())
}

pub(super) fn events(reply: ReplyContent) -> Events {
    let reply = Arc::new(reply);
    let end = unnamed_event(&last(&reply, ""));
    let tokens = (0..reply.count()).map(move |index| {
        let (wait, text) = reply.token(index);
        StreamEvent::token(
            wait,
            unnamed_event(&json!({"content": text, "stop": false, "index": 0})),
        )
    });
    Events::new(Operation::NativeCompletion, tokens.chain([StreamEvent::at_once(end)]))
}

/// Returns a complete response, or the last event of a stream.
fn last(reply: &ReplyContent, content: &str) -> Value {
    json!({
        "index": 0,
        "content": content,
        "stop": true,
        "model": reply.model,
        "tokens_predicted": reply.count(),
        "tokens_evaluated": reply.prompt_tokens,
        "stop_type": if reply.is_cut { "limit" } else { "eos" },
    })
}
