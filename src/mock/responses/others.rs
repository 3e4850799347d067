//! The operations that respond in one piece and generate no text: embeddings, ranking, audio,
//! images.

use serde_json::{Value, json};

use super::request::Request;
use super::{CREATED, Whole, hash};
use crate::api::Operation;
use crate::mock::examples::PIXELS;

const DIMENSIONS: usize = 16;

/// Long enough to need several reads, with every byte value in it.
const SPEECH_LENGTH: usize = 48 << 10;

pub(super) fn response(request: &Request<'_>) -> Whole {
    let value = match request.operation {
        Operation::Embeddings => embeddings(request),
        Operation::Rerank => rerank(request),
        Operation::Score => score(request),
        Operation::Moderations => moderations(request),
        Operation::Speech => return speech(request),
        Operation::Transcriptions | Operation::Translations => json!({"text": transcript(request)}),
        Operation::ImageGenerations | Operation::ImageEdits => images(request),
        Operation::Chat | Operation::Completions | Operation::Responses | Operation::Messages => {
            debug_assert!(false, "operations that generate text are served elsewhere");
            Value::Null
        }
    };
    Whole::value(200, &value)
}

fn embeddings(request: &Request<'_>) -> Value {
    let dimensions = request.body.get("dimensions").and_then(Value::as_u64);
    let dimensions = dimensions.map_or(DIMENSIONS, |given| usize::try_from(given).unwrap_or(0));
    let data: Vec<Value> = inputs(request)
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let text = input.to_string();
            let vector: Vec<f64> = (0..dimensions.min(8192))
                .map(|dimension| fraction(&format!("{text}{dimension}")) * 2.0 - 1.0)
                .collect();
            json!({"object": "embedding", "index": index, "embedding": vector})
        })
        .collect();
    json!({"object": "list", "model": request.model.id, "data": data, "usage": usage(request)})
}

/// The inputs to embed: one text or one list of token numbers, or a list of either.
fn inputs(request: &Request<'_>) -> Vec<Value> {
    match request.body.get("input") {
        Some(Value::Array(items)) if !items.first().is_some_and(Value::is_number) => items.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    }
}

fn rerank(request: &Request<'_>) -> Value {
    let documents = list(request, "documents");
    let mut results: Vec<(f64, usize, Value)> = documents
        .into_iter()
        .enumerate()
        .map(|(index, document)| {
            let text = document.get("text").unwrap_or(&document).clone();
            (fraction(&text.to_string()), index, json!({"text": text}))
        })
        .collect();
    results.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    let most = request.body.get("top_n").and_then(Value::as_u64);
    results.truncate(most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX));
    let results: Vec<Value> = results
        .into_iter()
        .map(|(score, index, document)| {
            json!({"index": index, "document": document, "relevance_score": score})
        })
        .collect();
    json!({
        "id": format!("rerank-{}", request.id),
        "model": request.model.id,
        "results": results,
        "usage": usage(request),
    })
}

fn score(request: &Request<'_>) -> Value {
    let data: Vec<Value> = list(request, "text_2")
        .iter()
        .enumerate()
        .map(|(index, text)| {
            json!({"index": index, "object": "score", "score": fraction(&text.to_string())})
        })
        .collect();
    json!({
        "id": format!("score-{}", request.id),
        "object": "list",
        "created": CREATED,
        "model": request.model.id,
        "data": data,
        "usage": usage(request),
    })
}

fn moderations(request: &Request<'_>) -> Value {
    let result = json!({
        "flagged": false,
        "categories": {"violence": false},
        "category_scores": {"violence": 0.01},
    });
    let results = vec![result; inputs(request).len()];
    json!({"id": format!("modr-{}", request.id), "model": request.model.id, "results": results})
}

fn speech(request: &Request<'_>) -> Whole {
    let content_type = match request.body.get("response_format").and_then(Value::as_str) {
        Some("wav") => "audio/wav",
        Some("opus") => "audio/ogg",
        Some(_) | None => "audio/mpeg",
    };
    let body = (0..=u8::MAX).cycle().take(SPEECH_LENGTH).collect();
    Whole { content_type, ..Whole::json(200, body) }
}

fn transcript(request: &Request<'_>) -> String {
    format!("{} serving {} transcribed audio", request.spec.name, request.model.id)
}

fn images(request: &Request<'_>) -> Value {
    // A form carries its numbers as text.
    let count = request.body.get("n").and_then(|count| match count {
        Value::String(text) => text.parse().ok(),
        count => count.as_u64(),
    });
    let count = usize::try_from(count.unwrap_or(1).min(10)).unwrap_or(1);
    let data = vec![json!({"b64_json": PIXELS}); count];
    json!({"created": CREATED, "data": data})
}

/// A list, or a single item as a list of one.
fn list(request: &Request<'_>, field: &str) -> Vec<Value> {
    match request.body.get(field) {
        Some(Value::Array(items)) => items.clone(),
        Some(one) => vec![one.clone()],
        None => Vec::new(),
    }
}

fn usage(request: &Request<'_>) -> Value {
    json!({"prompt_tokens": request.prompt_tokens, "total_tokens": request.prompt_tokens})
}

/// A number in 0..=1 that depends on `text` alone.
fn fraction(text: &str) -> f64 {
    // Five digits: the same text on every client, however it prints a float.
    let part = u32::try_from(hash(text.bytes()) >> 16 & 0xffff).unwrap_or(0);
    (f64::from(part) / 65_535.0 * 1e5).round() / 1e5
}
