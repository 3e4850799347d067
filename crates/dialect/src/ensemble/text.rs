//! The text of a complete response, in the form of each API: the text as a reader sees it, with
//! tool calls as lines and without the model's thinking.

use penstock_api::Operation;
use serde_json::Value;

use crate::event::is_failure;

const THOUGHT: (&str, &str) = ("<think>", "</think>");

/// Returns the text of a response; `None` if it has none, or reports that the generation failed.
pub fn response_text(operation: Operation, body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let pieces = match operation {
        Operation::OllamaGenerate => vec![text(&body, "/response")],
        Operation::OllamaChat => message_pieces(body.get("message")?),
        Operation::Messages => body.get("content")?.as_array()?.iter().map(block_piece).collect(),
        Operation::Responses => {
            let items = body.get("output")?.as_array()?.iter();
            items.flat_map(item_pieces).collect()
        }
        _ => choice_pieces(body.pointer("/choices/0")?)?,
    };
    let pieces: Vec<String> = pieces.into_iter().flatten().collect();
    let joined = pieces.join("\n");
    let visible = without_thoughts(&joined).trim();
    (!visible.is_empty()).then(|| visible.to_owned())
}

fn text(value: &Value, pointer: &str) -> Option<String> {
    let text = value.pointer(pointer)?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

fn choice_pieces(choice: &Value) -> Option<Vec<Option<String>>> {
    let has_failed = choice.get("finish_reason").and_then(Value::as_str).is_some_and(is_failure);
    if has_failed { None } else { choice.get("message").map(message_pieces) }
}

fn message_pieces(message: &Value) -> Vec<Option<String>> {
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let calls = calls.map(|call| tool_call(call.get("function")?, "arguments"));
    std::iter::once(content(message)).chain(calls).collect()
}

/// The text of a content: a string, or a list of parts.
fn content(message: &Value) -> Option<String> {
    match message.get("content")? {
        Value::Array(parts) => {
            let piece = |part| text(part, "/text").or_else(|| text(part, "/refusal"));
            Some(parts.iter().filter_map(piece).collect())
        }
        _ => text(message, "/content"),
    }
}

fn block_piece(block: &Value) -> Option<String> {
    match block.get("type")?.as_str()? {
        "text" => text(block, "/text"),
        "tool_use" => tool_call(block, "input"),
        _ => None,
    }
}

fn item_pieces(item: &Value) -> Vec<Option<String>> {
    match item.get("type").and_then(Value::as_str) {
        Some("message") => {
            let parts = item.get("content").and_then(Value::as_array).into_iter().flatten();
            parts.map(|part| text(part, "/text")).collect()
        }
        Some("function_call") => vec![tool_call(item, "arguments")],
        _ => Vec::new(),
    }
}

fn tool_call(call: &Value, arguments: &str) -> Option<String> {
    let name = call.get("name")?.as_str()?;
    let arguments = match call.get(arguments) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    };
    Some(format!("Tool call: {name} {arguments}"))
}

/// Returns the text without the thinking before it, which some engines do not separate.
fn without_thoughts(text: &str) -> &str {
    let inside = text.trim_start().strip_prefix(THOUGHT.0);
    inside.and_then(|inside| inside.split_once(THOUGHT.1)).map_or(text, |(_, visible)| visible)
}
