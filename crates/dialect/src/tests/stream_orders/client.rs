//! A strict reader of converted responses. It refuses anything that the dialect does not allow: a
//! block that opens inside another, a delta of a block that is not open, a sum that differs from
//! its pieces.

use penstock_api::Operation::{self, Chat, Completions, Messages, OllamaChat, OllamaGenerate};
use serde_json::{Value, json};

use super::Call;
use crate::tests::{events, lines};

/// The content that a client has received.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Received {
    pub(super) thinking: String,
    pub(super) text: String,
    pub(super) calls: Vec<Call>,
    pub(super) ending: &'static str,
    pub(super) tokens: (u64, u64),
}

fn text_of<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn tokens(usage: &Value, names: [&str; 2]) -> (u64, u64) {
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    (count(names[0]), count(names[1]))
}

fn call(id: &Value, name: &Value, arguments: &str) -> Call {
    let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| panic!("{arguments}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    Call { id: text(id), name: text(name), arguments }
}

fn ending(name: &str) -> &'static str {
    match name {
        "length" | "max_tokens" | "incomplete" => "length",
        "tool_calls" | "tool_use" => "calls",
        "stop" | "end_turn" | "completed" => "stop",
        other => panic!("unknown ending {other}"),
    }
}

/// Reads a stream.
pub(super) fn received(client: Operation, text: &str) -> Received {
    match client {
        OllamaChat | OllamaGenerate => {
            let lines = lines(text);
            let (last, before) = lines.split_last().unwrap();
            assert!(before.iter().all(|line| line["done"] == false) && last["done"] == true);
            lines.iter().fold(Received::default(), |all, line| ollama(all, line, client))
        }
        Chat => chat(&events(text)),
        Completions => {
            let mut seen = Received::default();
            for event in events(text) {
                seen.text += text_of(&event, "/choices/0/text");
                if let Some(reason) =
                    event.pointer("/choices/0/finish_reason").and_then(Value::as_str)
                {
                    seen.ending = ending(reason);
                }
                if event["usage"].is_object() {
                    seen.tokens = tokens(&event["usage"], ["prompt_tokens", "completion_tokens"]);
                }
            }
            seen
        }
        Messages => anthropic(&events(text)),
        _ => responses(&events(text)),
    }
}

fn ollama(mut seen: Received, line: &Value, client: Operation) -> Received {
    let (message, name) = match client {
        OllamaChat => (&line["message"], "/content"),
        _ => (line, "/response"),
    };
    seen.text += text_of(message, name);
    seen.thinking += text_of(message, "/thinking");
    for one in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &one["function"];
        seen.calls.push(call(&one["id"], &function["name"], &function["arguments"].to_string()));
    }
    if line["done"] == true {
        seen.ending = ending(text_of(line, "/done_reason"));
        seen.tokens = tokens(line, ["prompt_eval_count", "eval_count"]);
    }
    seen
}

fn chat(events: &[Value]) -> Received {
    let mut seen = Received::default();
    let mut calls: Vec<(Value, String, String)> = Vec::new();
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    for event in events {
        let delta = &event["choices"][0]["delta"];
        seen.text += text_of(delta, "/content");
        seen.thinking += text_of(delta, "/reasoning_content");
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(piece["index"].as_u64().unwrap()).unwrap();
            assert!(index <= calls.len(), "calls start in order");
            if index == calls.len() {
                calls.push((piece["id"].clone(), String::new(), String::new()));
            }
            calls[index].1 += text_of(piece, "/function/name");
            calls[index].2 += text_of(piece, "/function/arguments");
        }
        if let Some(reason) = event.pointer("/choices/0/finish_reason").and_then(Value::as_str) {
            seen.ending = ending(reason);
        }
        if event["usage"].is_object() {
            seen.tokens = tokens(&event["usage"], ["prompt_tokens", "completion_tokens"]);
        }
    }
    let calls = calls.into_iter().map(|(id, name, arguments)| call(&id, &name.into(), &arguments));
    seen.calls = calls.collect();
    seen
}

fn anthropic(events: &[Value]) -> Received {
    let mut seen = Received::default();
    let mut open: Option<(u64, Value, String)> = None;
    let mut next = 0;
    let [first, .., last] = events else { panic!("{events:?}") };
    assert_eq!((&first["type"], &last["type"]), (&json!("message_start"), &json!("message_stop")));
    for event in events {
        match text_of(event, "/type") {
            "content_block_start" => {
                assert!(open.is_none(), "a block opens inside another");
                assert_eq!(event["index"], next);
                open = Some((next, event["content_block"].clone(), String::new()));
                next += 1;
            }
            "content_block_delta" => {
                let (index, _, text) = open.as_mut().unwrap();
                assert_eq!(event["index"], *index);
                for member in ["text", "thinking", "partial_json"] {
                    *text += event["delta"][member].as_str().unwrap_or_default();
                }
            }
            "content_block_stop" => {
                let (index, block, text) = open.take().unwrap();
                assert_eq!(event["index"], index);
                match text_of(&block, "/type") {
                    "text" => seen.text += &text,
                    "thinking" => seen.thinking += &text,
                    _ => {
                        let arguments = if text.is_empty() { "{}" } else { &*text };
                        seen.calls.push(call(&block["id"], &block["name"], arguments));
                    }
                }
            }
            "message_delta" => {
                assert!(open.is_none(), "a block is open at the end");
                seen.ending = ending(text_of(event, "/delta/stop_reason"));
                seen.tokens = tokens(&event["usage"], ["input_tokens", "output_tokens"]);
            }
            _ => {}
        }
    }
    seen
}

fn responses(events: &[Value]) -> Received {
    let mut open: Option<(Value, String)> = None;
    let mut items = Vec::new();
    for (event, number) in events.iter().zip(0..) {
        assert_eq!(event["sequence_number"], number);
        match text_of(event, "/type") {
            "response.output_item.added" => {
                assert!(open.is_none(), "an item opens inside another");
                assert_eq!(event["output_index"], items.len());
                open = Some((event["item"].clone(), String::new()));
            }
            "response.output_item.done" => {
                let (item, _) = open.take().unwrap();
                assert_eq!(event["item"]["id"], item["id"]);
                items.push(event["item"].clone());
            }
            kind if kind.ends_with(".delta") => {
                let (item, text) = open.as_mut().unwrap();
                assert_eq!(event["item_id"], item["id"]);
                *text += text_of(event, "/delta");
            }
            kind if kind.ends_with(".done") && kind != "response.content_part.done" => {
                let (_, text) = open.as_ref().unwrap();
                let whole = text_of(event, "/text").to_owned() + text_of(event, "/arguments");
                assert!(whole == *text || (text.is_empty() && whole == "{}"), "{whole} is {text}");
            }
            _ => {}
        }
    }
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"], Value::from(items));
    response(last)
}

fn response(body: &Value) -> Received {
    let mut seen = Received::default();
    for item in body["output"].as_array().unwrap() {
        match text_of(item, "/type") {
            "message" => seen.text += text_of(item, "/content/0/text"),
            "reasoning" => seen.thinking += text_of(item, "/content/0/text"),
            _ => {
                let arguments = text_of(item, "/arguments");
                seen.calls.push(call(&item["call_id"], &item["name"], arguments));
            }
        }
    }
    seen.ending = ending(text_of(body, "/status"));
    seen.tokens = tokens(&body["usage"], ["input_tokens", "output_tokens"]);
    seen
}

/// Reads a complete response.
pub(super) fn whole(client: Operation, text: &str) -> Received {
    let body: Value = serde_json::from_str(text).unwrap();
    match client {
        OllamaChat | OllamaGenerate => ollama(Received::default(), &body, client),
        Chat | Completions => {
            let choice = &body["choices"][0];
            let message = &choice["message"];
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let calls = calls.map(|one| {
                let function = &one["function"];
                call(&one["id"], &function["name"], text_of(function, "/arguments"))
            });
            Received {
                thinking: text_of(message, "/reasoning_content").to_owned(),
                text: text_of(message, "/content").to_owned() + text_of(choice, "/text"),
                calls: calls.collect(),
                ending: ending(text_of(choice, "/finish_reason")),
                tokens: tokens(&body["usage"], ["prompt_tokens", "completion_tokens"]),
            }
        }
        Messages => {
            let mut seen = Received {
                ending: ending(text_of(&body, "/stop_reason")),
                tokens: tokens(&body["usage"], ["input_tokens", "output_tokens"]),
                ..Received::default()
            };
            for block in body["content"].as_array().unwrap() {
                match text_of(block, "/type") {
                    "text" => seen.text += text_of(block, "/text"),
                    "thinking" => seen.thinking += text_of(block, "/thinking"),
                    _ => seen.calls.push(call(
                        &block["id"],
                        &block["name"],
                        &block["input"].to_string(),
                    )),
                }
            }
            seen
        }
        _ => response(&body),
    }
}
