//! The operations that count, split or format text: no model runs.

use serde_json::{Value, json};

use super::WholeResponse;
use super::request::ParsedRequest;

pub(super) fn count_tokens(request: &ParsedRequest<'_>) -> WholeResponse {
    WholeResponse::value(200, &json!({"input_tokens": request.prompt_tokens}))
}

pub(super) fn input_tokens(request: &ParsedRequest<'_>) -> WholeResponse {
    let value = json!({"object": "response.input_tokens", "input_tokens": request.prompt_tokens});
    WholeResponse::value(200, &value)
}

/// Splits a text into tokens of four characters, as everywhere in a mock engine.
pub(super) fn tokenize(request: &ParsedRequest<'_>) -> WholeResponse {
    let tokens: Vec<u32> = (0..request.prompt_tokens).collect();
    let longest = request.model.context_length;
    let value = json!({"tokens": tokens, "count": tokens.len(), "max_model_len": longest});
    WholeResponse::value(200, &value)
}

/// Joins tokens; vLLM calls the resulting text `prompt`, llama.cpp `content`.
pub(super) fn detokenize(request: &ParsedRequest<'_>) -> WholeResponse {
    let tokens = request.body.get("tokens").and_then(Value::as_array).map_or(0, Vec::len);
    let text = "text".repeat(tokens);
    WholeResponse::value(200, &json!({"prompt": text, "content": text}))
}

pub(super) fn apply_template(request: &ParsedRequest<'_>) -> WholeResponse {
    let messages = request.body.get("messages").and_then(Value::as_array);
    let written = messages.into_iter().flatten().map(|message| {
        let field = |name| message.get(name).and_then(Value::as_str).unwrap_or("");
        format!("<|{}|>{}\n", field("role"), field("content"))
    });
    WholeResponse::value(200, &json!({"prompt": written.collect::<String>() + "<|assistant|>"}))
}

pub(super) fn nothing(_request: &ParsedRequest<'_>) -> WholeResponse {
    debug_assert!(false, "no path leads to this operation");
    WholeResponse::value(200, &Value::Null)
}
