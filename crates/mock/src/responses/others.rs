//! The operations that respond in one piece and generate no text: embeddings, ranking, audio,
//! images.

use serde_json::{Value, json};

use super::request::ParsedRequest;
use super::{CREATED, WholeResponse, hash};
use crate::examples::PIXELS;

const DIMENSIONS: usize = 16;

/// A length that needs several reads, with every byte value in it.
const SPEECH_LENGTH: usize = 48 << 10;

pub(super) fn embeddings(request: &ParsedRequest<'_>) -> WholeResponse {
    let dimensions = request.body.get("dimensions").and_then(Value::as_u64);
    let dimensions = dimensions.map_or(DIMENSIONS, |given| usize::try_from(given).unwrap_or(0));
    let data: Vec<Value> = inputs(request)
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let vector = vector(input, dimensions.min(8192));
            json!({"object": "embedding", "index": index, "embedding": vector})
        })
        .collect();
    ok(&json!({"object": "list", "model": request.model.id, "data": data, "usage": usage(request)}))
}

/// Responds in llama.cpp's native form: a vector per token or, pooled, one.
pub(super) fn native_embedding(request: &ParsedRequest<'_>) -> WholeResponse {
    let vectors = inputs(request)
        .into_iter()
        .enumerate()
        .map(|(index, input)| json!({"index": index, "embedding": [vector(&input, DIMENSIONS)]}));
    ok(&Value::Array(vectors.collect()))
}

pub(super) fn vector(input: &Value, dimensions: usize) -> Vec<f64> {
    let text = input.to_string();
    (0..dimensions).map(|dimension| fraction(&format!("{text}{dimension}")) * 2.0 - 1.0).collect()
}

pub(super) fn classify(request: &ParsedRequest<'_>) -> WholeResponse {
    let data = inputs(request).into_iter().enumerate().map(|(index, input)| {
        let first = fraction(&input.to_string());
        let label = if first < 0.5 { "LABEL_1" } else { "LABEL_0" };
        json!({"index": index, "label": label, "probs": [first, 1.0 - first], "num_classes": 2})
    });
    list_of(request, "classify", data.collect())
}

pub(super) fn pooling(request: &ParsedRequest<'_>) -> WholeResponse {
    let data = inputs(request).into_iter().enumerate().map(|(index, input)| {
        json!({"index": index, "object": "pooling", "data": vector(&input, DIMENSIONS)})
    });
    list_of(request, "pool", data.collect())
}

/// Returns a list as in vLLM's pooling operations.
fn list_of(request: &ParsedRequest<'_>, kind: &str, data: Vec<Value>) -> WholeResponse {
    ok(&json!({
        "id": format!("{kind}-{}", request.id),
        "object": "list",
        "created": CREATED,
        "model": request.model.id,
        "data": data,
        "usage": usage(request),
    }))
}

fn ok(value: &Value) -> WholeResponse {
    WholeResponse::value(200, value)
}

/// Returns the inputs to embed: one text or one list of token numbers, or a list of either.
pub(super) fn inputs(request: &ParsedRequest<'_>) -> Vec<Value> {
    match request.body.get("input").or_else(|| request.body.get("content")) {
        // A list of numbers is one tokenized text, and no list of inputs.
        Some(Value::Array(items)) if !items.first().is_some_and(Value::is_number) => items.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    }
}

pub(super) fn rerank(request: &ParsedRequest<'_>) -> WholeResponse {
    let documents = list(request, "documents");
    let mut results: Vec<(f64, usize, Value)> = documents
        .into_iter()
        .enumerate()
        .map(|(index, document)| {
            let text = document.get("text").unwrap_or(&document).clone();
            (fraction(&text.to_string()), index, json!({"text": text}))
        })
        .collect();
    // By position among equals: equal requests get equal bytes.
    results.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    let most = request.body.get("top_n").and_then(Value::as_u64);
    results.truncate(most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX));
    let results: Vec<Value> = results
        .into_iter()
        .map(|(score, index, document)| {
            json!({"index": index, "document": document, "relevance_score": score})
        })
        .collect();
    ok(&json!({
        "id": format!("rerank-{}", request.id),
        "model": request.model.id,
        "results": results,
        "usage": usage(request),
    }))
}

pub(super) fn score(request: &ParsedRequest<'_>) -> WholeResponse {
    let data: Vec<Value> = list(request, "text_2")
        .iter()
        .enumerate()
        .map(|(index, text)| {
            json!({"index": index, "object": "score", "score": fraction(&text.to_string())})
        })
        .collect();
    list_of(request, "score", data)
}

pub(super) fn moderations(request: &ParsedRequest<'_>) -> WholeResponse {
    let result = json!({
        "flagged": false,
        "categories": {"violence": false},
        "category_scores": {"violence": 0.01},
    });
    let results = vec![result; inputs(request).len()];
    let id = format!("modr-{}", request.id);
    ok(&json!({"id": id, "model": request.model.id, "results": results}))
}

pub(super) fn speech(request: &ParsedRequest<'_>) -> WholeResponse {
    let content_type = match request.body.get("response_format").and_then(Value::as_str) {
        Some("wav") => "audio/wav",
        Some("opus") => "audio/ogg",
        Some(_) | None => "audio/mpeg",
    };
    let body = (0..=u8::MAX).cycle().take(SPEECH_LENGTH).collect();
    WholeResponse { content_type, ..WholeResponse::json(200, body) }
}

pub(super) fn transcript(request: &ParsedRequest<'_>) -> WholeResponse {
    let text = format!("{} serving {} transcribed audio", request.spec.name, request.model.id);
    ok(&json!({ "text": text }))
}

pub(super) fn images(request: &ParsedRequest<'_>) -> WholeResponse {
    // A form has its numbers as text.
    let count = request.body.get("n").and_then(|count| match count {
        Value::String(text) => text.parse().ok(),
        count => count.as_u64(),
    });
    let count = usize::try_from(count.unwrap_or(1).min(10)).unwrap_or(1);
    let data = vec![json!({"b64_json": PIXELS}); count];
    ok(&json!({"created": CREATED, "data": data}))
}

/// Returns a list; a single item becomes a list of one.
fn list(request: &ParsedRequest<'_>, field: &str) -> Vec<Value> {
    match request.body.get(field) {
        Some(Value::Array(items)) => items.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    }
}

fn usage(request: &ParsedRequest<'_>) -> Value {
    json!({"prompt_tokens": request.prompt_tokens, "total_tokens": request.prompt_tokens})
}

/// Returns a number in 0..=1 that depends only on `text`.
fn fraction(text: &str) -> f64 {
    // Five digits give the same text on every client, however it prints a float.
    let part = u32::try_from(hash(text.bytes()) >> 16 & 0xffff).unwrap_or(0);
    (f64::from(part) / 65_535.0 * 1e5).round() / 1e5
}
