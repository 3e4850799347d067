//! `POST /v1/responses`: whole, and as numbered events.

use std::sync::Arc;

use penstock_api::Operation;
use serde_json::{Value, json};

use super::reply::ReplyContent;
use super::{CREATED, Events, StreamEvent, named_event};

pub(super) fn whole(reply: &ReplyContent) -> Value {
    response(reply, status(reply), &json!([item(reply, status(reply))]))
}

pub(super) fn events(reply: ReplyContent) -> Events {
    let reply = Arc::new(reply);
    let (lead, tail) = match reply.tool {
        None => (text_lead(&reply), text_tail(&reply)),
        Some(_) => (call_lead(&reply), call_tail(&reply)),
    };
    let (started, count) = (lead.len(), usize::try_from(reply.count()).unwrap_or(usize::MAX));
    let tokens = (0..reply.count()).zip(started..).map(move |(index, number)| {
        let (wait, text) = reply.token(index);
        let mut event = match reply.tool {
            None => part_event("response.output_text.delta", &reply),
            Some(_) => item_event("response.function_call_arguments.delta", &reply),
        };
        set(&mut event, "delta", json!(text));
        StreamEvent::token(wait, numbered(event, number))
    });
    let lead = lead
        .into_iter()
        .zip(0..)
        .map(|(event, number)| StreamEvent::at_once(numbered(event, number)));
    // The tokens are made one by one, so the numbers after them follow from their count.
    let tail = tail
        .into_iter()
        .zip(started.saturating_add(count)..)
        .map(|(event, number)| StreamEvent::at_once(numbered(event, number)));
    Events::new(Operation::Responses, lead.chain(tokens).chain(tail))
}

fn text_lead(reply: &ReplyContent) -> Vec<Value> {
    let mut lead = call_lead(reply);
    let mut part = part_event("response.content_part.added", reply);
    set(&mut part, "part", text_part(""));
    lead.push(part);
    lead
}

fn text_tail(reply: &ReplyContent) -> Vec<Value> {
    let mut text = part_event("response.output_text.done", reply);
    set(&mut text, "text", json!(reply.text()));
    let mut part = part_event("response.content_part.done", reply);
    set(&mut part, "part", text_part(&reply.text()));
    let mut tail = vec![text, part];
    tail.extend(last(reply));
    tail
}

fn call_lead(reply: &ReplyContent) -> Vec<Value> {
    let started = response(reply, "in_progress", &json!([]));
    vec![
        json!({"type": "response.created", "response": started}),
        json!({"type": "response.in_progress", "response": started}),
        json!({
            "type": "response.output_item.added",
            "output_index": 0,
            "item": item(reply, "in_progress"),
        }),
    ]
}

fn call_tail(reply: &ReplyContent) -> Vec<Value> {
    let mut arguments = item_event("response.function_call_arguments.done", reply);
    set(&mut arguments, "arguments", json!(reply.text()));
    set(&mut arguments, "name", json!(reply.tool));
    let mut tail = vec![arguments];
    tail.extend(last(reply));
    tail
}

fn last(reply: &ReplyContent) -> [Value; 2] {
    let item = item(reply, status(reply));
    let kind = format!("response.{}", status(reply));
    [
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": kind, "response": response(reply, status(reply), &json!([item]))}),
    ]
}

fn item_event(kind: &str, reply: &ReplyContent) -> Value {
    json!({"type": kind, "item_id": item_id(reply), "output_index": 0})
}

fn part_event(kind: &str, reply: &ReplyContent) -> Value {
    let mut event = item_event(kind, reply);
    set(&mut event, "content_index", json!(0));
    if kind.starts_with("response.output_text") {
        set(&mut event, "logprobs", json!([]));
    }
    event
}

fn numbered(mut event: Value, number: usize) -> Vec<u8> {
    set(&mut event, "sequence_number", json!(number));
    named_event(&event)
}

fn set(event: &mut Value, field: &str, value: Value) {
    if let Some(fields) = event.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn item(reply: &ReplyContent, status: &str) -> Value {
    let is_in_progress = status == "in_progress";
    match &reply.tool {
        None => {
            let content =
                if is_in_progress { json!([]) } else { json!([text_part(&reply.text())]) };
            json!({
                "id": item_id(reply),
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": content,
            })
        }
        Some(name) => json!({
            "id": item_id(reply),
            "type": "function_call",
            "status": status,
            "call_id": format!("call_{}", reply.id),
            "name": name,
            "arguments": if is_in_progress { String::new() } else { reply.text() },
        }),
    }
}

fn response(reply: &ReplyContent, status: &str, output: &Value) -> Value {
    let usage = json!({
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.count(),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens.saturating_add(reply.count()),
    });
    let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
    json!({
        "id": format!("resp_{}", reply.id),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "model": reply.model,
        "output": output,
        "error": null,
        "incomplete_details": incomplete,
        "instructions": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": if status == "in_progress" { Value::Null } else { usage },
    })
}

fn status(reply: &ReplyContent) -> &'static str {
    if reply.is_cut { "incomplete" } else { "completed" }
}

fn item_id(reply: &ReplyContent) -> String {
    let kind = if reply.tool.is_some() { "fc" } else { "msg" };
    format!("{kind}_{}", reply.id)
}
