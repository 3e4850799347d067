//! `POST /v1/completions`: whole, and as chunks.

use std::sync::Arc;

use penstock_api::Operation;
use serde_json::{Value, json};

use super::chat::usage;
use super::reply::ReplyContent;
use super::{CREATED, Events, StreamEvent, unnamed_event};

pub(super) fn whole(reply: &ReplyContent) -> Value {
    let choice = choice(&reply.text(), Some(finish_reason(reply)));
    completion(reply, &json!([choice]), &usage(reply))
}

pub(super) fn events(reply: ReplyContent) -> Events {
    let reply = Arc::new(reply);
    let finish = choice("", Some(finish_reason(&reply)));
    let finish = completion(&reply, &json!([finish]), &Value::Null);
    let usage = reply.includes_usage.then(|| completion(&reply, &json!([]), &usage(&reply)));
    let tail = [Some(finish), usage].into_iter().flatten().map(|value| unnamed_event(&value));
    let tail: Vec<_> = tail.chain([b"data: [DONE]\n\n".to_vec()]).collect();
    let tokens = (0..reply.count()).map(move |index| {
        let (wait, text) = reply.token(index);
        let value = completion(&reply, &json!([choice(&text, None)]), &Value::Null);
        StreamEvent::token(wait, unnamed_event(&value))
    });
    Events::new(Operation::Completions, tokens.chain(tail.into_iter().map(StreamEvent::at_once)))
}

fn completion(reply: &ReplyContent, choices: &Value, usage: &Value) -> Value {
    json!({
        "id": format!("cmpl-{}", reply.id),
        "object": "text_completion",
        "created": CREATED,
        "model": reply.model,
        "choices": choices,
        "usage": usage,
    })
}

fn choice(text: &str, finish: Option<&str>) -> Value {
    json!({"index": 0, "text": text, "logprobs": null, "finish_reason": finish})
}

fn finish_reason(reply: &ReplyContent) -> &'static str {
    if reply.is_cut { "length" } else { "stop" }
}
