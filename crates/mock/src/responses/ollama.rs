//! Ollama's own API: `/api/chat` and `/api/generate`, whole and as JSON lines, and `/api/embed`.

use std::sync::Arc;

use penstock_api::Operation;
use serde_json::{Map, Value, json};

use super::others::{inputs, vector};
use super::reply::ReplyContent;
use super::request::ParsedRequest;
use super::{Events, StreamEvent, WholeResponse};

/// [`super::CREATED`] as this API writes it.
const CREATED_AT: &str = "2026-01-01T00:00:00.000000001Z";
const DIMENSIONS: usize = 16;

pub(super) fn chat(reply: &ReplyContent) -> Value {
    done(reply, &[("message", message(reply, &reply.text()))])
}

pub(super) fn generate(reply: &ReplyContent) -> Value {
    done(reply, &[("response", json!(reply.text())), ("context", json!([1, 2, 3]))])
}

pub(super) fn chat_lines(reply: ReplyContent) -> Events {
    let last = done(&reply, &[("message", json!({"role": "assistant", "content": ""}))]);
    let piece = |text: &str| member("message", json!({"role": "assistant", "content": text}));
    match &reply.tool {
        None => lines(Operation::OllamaChat, reply, piece, &last),
        // A call comes in one piece, before the last line.
        Some(_) => {
            let call = partial(&reply, member("message", message(&reply, &reply.text())));
            let wait = reply.pace.whole(reply.count());
            let events = [StreamEvent::token(wait, line(&call)), StreamEvent::at_once(line(&last))];
            Events::new(Operation::OllamaChat, events.into_iter())
        }
    }
}

pub(super) fn generate_lines(reply: ReplyContent) -> Events {
    let last = done(&reply, &[("response", json!("")), ("context", json!([1, 2, 3]))]);
    lines(Operation::OllamaGenerate, reply, |text| member("response", json!(text)), &last)
}

/// Returns the response to a request without a prompt: the model is loaded or unloaded.
pub(super) fn residency(request: &ParsedRequest<'_>, operation: Operation) -> Option<Value> {
    let (field, text) = match operation {
        Operation::OllamaChat => ("messages", "message"),
        Operation::OllamaGenerate => ("prompt", "response"),
        _ => return None,
    };
    let is_empty = match request.body.get(field) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => false,
    };
    let unloads = request.body.get("keep_alive").is_some_and(|kept| kept == 0 || kept == "0");
    let reason = if unloads { "unload" } else { "load" };
    let value = match text {
        "message" => json!({"role": "assistant", "content": ""}),
        _ => json!(""),
    };
    let mut fields = envelope(&request.model.id, member(text, value));
    fields.extend([("done".to_owned(), json!(true)), ("done_reason".to_owned(), json!(reason))]);
    is_empty.then_some(Value::Object(fields))
}

pub(super) fn embed(request: &ParsedRequest<'_>) -> WholeResponse {
    let given = request.body.get("dimensions").and_then(Value::as_u64);
    let dimensions = given.and_then(|given| usize::try_from(given).ok()).unwrap_or(DIMENSIONS);
    let vectors: Vec<Vec<f64>> =
        inputs(request).iter().map(|input| vector(input, dimensions.min(8192))).collect();
    let value = json!({
        "model": request.model.id,
        "embeddings": vectors,
        "total_duration": 14_143_917,
        "load_duration": 1_019_500,
        "prompt_eval_count": request.prompt_tokens,
    });
    WholeResponse::value(200, &value)
}

pub(super) fn embeddings(request: &ParsedRequest<'_>) -> WholeResponse {
    let prompt = request.body.get("prompt").filter(|prompt| *prompt != "");
    // Ollama's old path has an empty vector for an empty prompt, and no error.
    let vector = prompt.map(|prompt| vector(prompt, DIMENSIONS)).unwrap_or_default();
    WholeResponse::value(200, &json!({"embedding": vector}))
}

fn lines(
    operation: Operation,
    reply: ReplyContent,
    piece: impl Fn(&str) -> NamedValue + Send + 'static,
    last: &Value,
) -> Events {
    let last = StreamEvent::at_once(line(last));
    let reply = Arc::new(reply);
    let tokens = (0..reply.count()).map(move |index| {
        let (wait, text) = reply.token(index);
        StreamEvent::token(wait, line(&partial(&reply, piece(&text))))
    });
    Events::new(operation, tokens.chain([last]))
}

fn message(reply: &ReplyContent, text: &str) -> Value {
    match &reply.tool {
        None => json!({"role": "assistant", "content": text}),
        Some(name) => {
            let arguments: Value = serde_json::from_str(text).unwrap_or_default();
            let function = json!({"name": name, "arguments": arguments});
            json!({"role": "assistant", "content": "", "tool_calls": [{"function": function}]})
        }
    }
}

/// A member of an object.
struct NamedValue {
    name: &'static str,
    value: Value,
}

fn member(name: &'static str, value: Value) -> NamedValue {
    NamedValue { name, value }
}

fn envelope(model: &str, last: NamedValue) -> Map<String, Value> {
    let fields =
        [("model", json!(model)), ("created_at", json!(CREATED_AT)), (last.name, last.value)];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn partial(reply: &ReplyContent, piece: NamedValue) -> Value {
    let mut fields = envelope(&reply.model, piece);
    fields.insert("done".to_owned(), json!(false));
    Value::Object(fields)
}

/// Returns a complete response, or the last line of a stream.
fn done(reply: &ReplyContent, content: &[(&'static str, Value)]) -> Value {
    let nanos = |wait: std::time::Duration| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    let (first, all) = (nanos(reply.pace.first_token), nanos(reply.pace.whole(reply.count())));
    let more = [
        ("done", json!(true)),
        ("done_reason", json!(if reply.is_cut { "length" } else { "stop" })),
        ("total_duration", json!(all)),
        // Loaded already: a client that adds up the durations gets the total.
        ("load_duration", json!(0)),
        ("prompt_eval_count", json!(reply.prompt_tokens)),
        ("prompt_eval_duration", json!(first)),
        ("eval_count", json!(reply.count())),
        ("eval_duration", json!(all.saturating_sub(first))),
    ];
    let model = [("model", json!(reply.model)), ("created_at", json!(CREATED_AT))];
    let fields = model.into_iter().chain(content.iter().cloned()).chain(more);
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect())
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}
