//! Conversions from the view of clients and backends: recorded shapes in, expected shapes out.

mod chat_responses_to_ollama;
mod chat_to_ollama;
mod cost;
mod embeddings;
mod engine_errors;
mod fields;
mod messages;
mod messages_backend;
mod ollama_generate;
mod ollama_to_chat;
mod properties;
mod responses;
mod responses_status;
mod stream_orders;
mod tool_results;

use std::time::Duration;

use penstock_api::{Engine, Operation, ReasoningField};
use serde_json::Value;

use super::{
    BadResponse, ConvertError, Converted, ReplyContext, ReplyTerms, RequestTerms,
    ResponseConverter, ResponseLimits, convert_request,
};

/// The pairs of client and backend that generate text.
const PAIRS: &[(Operation, Operation)] = &[
    (Operation::OllamaChat, Operation::Chat),
    (Operation::OllamaChat, Operation::Messages),
    (Operation::OllamaGenerate, Operation::Chat),
    (Operation::OllamaGenerate, Operation::Completions),
    (Operation::OllamaGenerate, Operation::Messages),
    (Operation::Chat, Operation::OllamaChat),
    (Operation::Chat, Operation::Messages),
    (Operation::Completions, Operation::OllamaGenerate),
    (Operation::Messages, Operation::Chat),
    (Operation::Messages, Operation::OllamaChat),
    (Operation::Responses, Operation::Chat),
    (Operation::Responses, Operation::Messages),
    (Operation::Responses, Operation::OllamaChat),
];

/// Converts a request for an engine.
fn convert_for(
    engine: Engine,
    from: Operation,
    to: Operation,
    body: &Value,
) -> Result<(Value, Converted), ConvertError> {
    let terms = RequestTerms { model: "backend-model", engine, num_ctx: None };
    let converted = convert_request(from, to, body.to_string().as_bytes(), &terms)?;
    let body = serde_json::from_slice(&converted.body)
        .unwrap_or_else(|error| panic!("{error}: {}", converted.body.escape_ascii()));
    Ok((body, converted))
}

/// Returns the converted body alone, for llama.cpp.
fn convert(from: Operation, to: Operation, body: &Value) -> Value {
    convert_for(Engine::LlamaCpp, from, to, body).unwrap().0
}

/// Returns the field that a refusal names.
fn refused(from: Operation, to: Operation, body: &Value) -> &'static str {
    let error = convert_for(Engine::LlamaCpp, from, to, body).unwrap_err();
    error.field().unwrap_or_else(|| panic!("{error} names no field"))
}

fn context() -> ReplyContext {
    ReplyContext {
        model: "client-model".to_owned(),
        request_id: "r1".to_owned(),
        arrived_at: Duration::new(1_700_000_000, 5),
        reasoning: ReasoningField::Both,
        limits: ResponseLimits::default(),
    }
}

fn stream_terms() -> ReplyTerms {
    ReplyTerms { stream: true, ..ReplyTerms::default() }
}

/// Returns the client's output for `payload`, and the end of the conversion.
fn try_respond(
    (client, backend): (Operation, Operation),
    terms: &ReplyTerms,
    payload: &str,
) -> (String, Result<(), BadResponse>) {
    let mut converter = ResponseConverter::new(client, backend, terms.clone(), context());
    let mut out = Vec::new();
    let result = converter
        .feed(payload.as_bytes(), Duration::from_millis(100), &mut out)
        .and_then(|()| converter.finish(Duration::from_millis(300), &mut out));
    (String::from_utf8(out).unwrap(), result)
}

/// Returns everything that a client receives for `payload`.
fn respond(pair: (Operation, Operation), terms: &ReplyTerms, payload: &str) -> String {
    let (out, result) = try_respond(pair, terms, payload);
    assert_eq!(result, Ok(()), "{out}");
    out
}

/// Returns the complete response that a client receives for a complete response.
fn respond_whole(pair: (Operation, Operation), payload: &Value) -> Value {
    let text = respond(pair, &ReplyTerms::default(), &payload.to_string());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the lines of a stream of JSON lines.
fn lines(text: &str) -> Vec<Value> {
    assert!(text.ends_with('\n'), "a stream ends with a complete line: {text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the data of server-sent events; `[DONE]` is the string of that name.
fn events(text: &str) -> Vec<Value> {
    assert!(text.ends_with("\n\n"), "a stream ends with a complete event: {text}");
    let data = |event: &str| {
        let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
        if data == "[DONE]" { data.into() } else { serde_json::from_str(&data).unwrap() }
    };
    text.split_terminator("\n\n").map(data).collect()
}

/// Returns a stream of server-sent events.
fn sse(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

/// Returns a stream of JSON lines.
fn ndjson(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_conversion_of_the_operation_table_exists() {
    let mut body = serde_json::json!({
        "model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x", "stream": true,
    });
    for row in penstock_api::OPERATIONS {
        for target in row.converts_to {
            // In the Responses API, `prompt` is one that the platform stores.
            let prompt =
                if row.operation == Operation::Responses { Value::Null } else { "x".into() };
            body["prompt"] = prompt;
            let converted = convert_for(Engine::Vllm, row.operation, *target, &body);
            let (_, converted) = converted.unwrap_or_else(|error| panic!("{}: {error}", row.name));
            assert_eq!(converted.operation, *target, "{}", row.name);
            if matches!(target, Operation::ApplyTemplate | Operation::Tokenize) {
                // This is an intermediate step of a count; its response is not converted.
                continue;
            }
            let terms = converted.reply;
            let (_, result) = try_respond((row.operation, *target), &terms, "data: {}\n\n{}\n");
            let unknown = BadResponse::Malformed { expected: "response that can be converted" };
            assert_ne!(result, Err(unknown), "{}", row.name);
        }
    }
    let none = convert_for(Engine::Vllm, Operation::Rerank, Operation::Chat, &body).unwrap_err();
    assert!(matches!(none, ConvertError::NoConversion { .. }));
}

#[test]
fn thinking_is_in_the_configured_fields() {
    let body = r#"{"message":{"content":"x","thinking":"t"},"done":true,"done_reason":"stop"}"#;
    let lines = format!("{}\n{}\n", body.replace("true", "false"), body);
    for (reasoning, expected) in [
        (ReasoningField::Both, [true, true]),
        (ReasoningField::ReasoningContent, [true, false]),
        (ReasoningField::Reasoning, [false, true]),
        (ReasoningField::None, [false, false]),
    ] {
        for (stream, payload) in [(false, body), (true, &*lines)] {
            let terms = ReplyTerms { stream, ..ReplyTerms::default() };
            let context = ReplyContext { reasoning, ..context() };
            let (client, backend) = (Operation::Chat, Operation::OllamaChat);
            let mut converter = ResponseConverter::new(client, backend, terms, context);
            let mut out = Vec::new();
            converter.feed(payload.as_bytes(), Duration::ZERO, &mut out).unwrap();
            converter.finish(Duration::ZERO, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let has = ["\"reasoning_content\":\"t\"", "\"reasoning\":\"t\""];
            assert_eq!(has.map(|field| text.contains(field)), expected, "{text}");
            assert!(text.contains("\"content\":\"x\""), "{text}");
        }
    }
}

#[test]
fn complete_response_becomes_a_stream_of_all_of_it() {
    let call =
        serde_json::json!([{"id": "t", "function": {"name": "f", "arguments": "{\"a\":1}"}}]);
    let message = serde_json::json!({"role": "assistant", "content": "hello", "tool_calls": call});
    let payload = serde_json::json!({"choices": [{"index": 0, "finish_reason": "tool_calls",
        "message": message}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
    for (client, last) in [
        (Operation::Messages, "message_stop"),
        (Operation::Responses, "response.completed"),
        (Operation::OllamaChat, "\"done\":true"),
    ] {
        let text = respond((client, Operation::Chat), &stream_terms().of_complete(), &{
            // Line breaks are no ends of events here.
            serde_json::to_string_pretty(&payload).unwrap()
        });
        assert!(text.contains("hello") && text.contains("\"f\""), "{text}");
        assert!(text.trim_end().lines().next_back().unwrap().contains(last), "{text}");
    }
    let (_, cut) = try_respond(
        (Operation::Messages, Operation::Chat),
        &stream_terms().of_complete(),
        "{\"choices\":[]}",
    );
    assert_eq!(cut, Err(BadResponse::EndedEarly));
}

#[test]
fn refusal_has_its_own_part_in_responses() {
    use serde_json::json;
    let whole = json!({"choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": null, "refusal": "nope"}}]});
    let response = respond_whole((Operation::Responses, Operation::Chat), &whole);
    let part = json!({"type": "refusal", "refusal": "nope"});
    assert_eq!(response["output"][0]["content"], json!([part]));
    let message = respond_whole((Operation::Messages, Operation::Chat), &whole);
    assert_eq!(message["content"], json!([{"type": "text", "text": "nope"}]));
    let chunk = |delta: Value, finish: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let stream = sse(&[
        chunk(json!({"content": "Well."}), Value::Null),
        chunk(json!({"refusal": "no"}), Value::Null),
        chunk(json!({"refusal": "pe"}), json!("stop")),
    ]) + "data: [DONE]\n\n";
    let out = respond((Operation::Responses, Operation::Chat), &stream_terms(), &stream);
    let all = events(&out);
    let of = |kind: &str| all.iter().filter(|one| one["type"] == kind).collect::<Vec<_>>();
    let deltas: Vec<_> = of("response.refusal.delta").iter().map(|one| &one["delta"]).collect();
    assert_eq!(deltas, ["no", "pe"]);
    assert_eq!(of("response.refusal.done")[0]["refusal"], "nope");
    assert_eq!(of("response.content_part.done")[1]["part"], part);
    let output = &of("response.completed")[0]["response"]["output"];
    assert_eq!(output[0]["content"][0]["text"], "Well.");
    assert_eq!(output[1]["content"], json!([part]));
    let text = respond((Operation::OllamaChat, Operation::Chat), &stream_terms(), &stream);
    assert!(text.contains("\"no\"") && text.contains("\"pe\""), "{text}");
}
