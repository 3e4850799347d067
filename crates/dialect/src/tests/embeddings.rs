//! Embeddings both ways, and requests with nothing to generate.

use std::time::Duration;

use penstock_api::Engine;
use penstock_api::Operation::{self, Embeddings, OllamaEmbed, OllamaEmbeddings};
use serde_json::{Value, json};

use super::{context, convert, convert_for, refused};
use crate::{BadResponse, ConvertError, ResponseConverter};

/// Returns the response to `request` of a backend that sends `response`.
fn exchange(
    (client, backend): (Operation, Operation),
    request: &Value,
    response: &Value,
) -> Result<Value, BadResponse> {
    let (_, converted) = convert_for(Engine::LlamaCpp, client, backend, request).unwrap();
    let mut converter = ResponseConverter::new(client, backend, converted.reply, context());
    let mut out = Vec::new();
    // The response comes in two parts, so the converter has to gather it.
    let text = response.to_string();
    let (start, end) = text.split_at(text.len() / 2);
    converter.feed(start.as_bytes(), Duration::ZERO, &mut out)?;
    converter.feed(end.as_bytes(), Duration::ZERO, &mut out)?;
    assert!(out.is_empty(), "nothing is sent before the response is complete");
    converter.finish(Duration::from_millis(5), &mut out)?;
    Ok(serde_json::from_slice(&out).unwrap())
}

fn openai(vectors: &[(usize, Value)]) -> Value {
    let item = |(index, vector): &(usize, Value)| json!({"object": "embedding", "index": index, "embedding": vector});
    let data: Vec<Value> = vectors.iter().map(item).collect();
    json!({"object": "list", "data": data, "usage": {"prompt_tokens": 6, "total_tokens": 6}})
}

#[test]
fn embed_becomes_embeddings() {
    let body = json!({
        "model": "m", "input": ["a", "b"], "truncate": true, "dimensions": 2, "keep_alive": "1m",
        "options": {"num_ctx": 1}, "user": "u",
    });
    assert_eq!(
        convert(OllamaEmbed, Embeddings, &body),
        json!({
            "model": "backend-model", "input": ["a", "b"], "encoding_format": "float",
            "dimensions": 2, "user": "u",
        })
    );
    let lm_studio = convert_for(Engine::LmStudio, OllamaEmbed, Embeddings, &body).unwrap().0;
    assert_eq!(lm_studio["ttl"], 60);
}

#[test]
fn every_text_gets_its_vector_at_length_one() {
    let request = json!({"model": "m", "input": ["a", "b", "c"]});
    let response = openai(&[(2, json!([0.0, 0.0])), (0, json!([3.0, 4.0])), (1, json!([0.0, 2]))]);
    let body = exchange((OllamaEmbed, Embeddings), &request, &response).unwrap();
    let close = |place: usize, expected: [f64; 2]| {
        let vector = body["embeddings"][place].as_array().unwrap();
        for (float, expected) in vector.iter().zip(expected) {
            assert!((float.as_f64().unwrap() - expected).abs() < 1e-6, "{vector:?}");
        }
    };
    close(0, [0.6, 0.8]);
    close(1, [0.0, 1.0]);
    close(2, [0.0, 0.0]);
    assert_eq!(body["prompt_eval_count"], 6);
    assert_eq!(body["total_duration"], 5_000_000);
    assert_eq!(body["model"], "client-model");
}

#[test]
fn the_older_form_keeps_the_length() {
    let request = json!({"model": "m", "prompt": "a"});
    assert_eq!(convert(OllamaEmbeddings, Embeddings, &request)["input"], "a");
    // The floats are 1.5 and -2, little-endian.
    let response = openai(&[(0, json!("AADAPwAAAMA="))]);
    let body = exchange((OllamaEmbeddings, Embeddings), &request, &response).unwrap();
    assert_eq!(body, json!({"embedding": [1.5, -2.0]}));
}

#[test]
fn embeddings_become_ollamas() {
    let request = json!({"model": "m", "input": "a", "user": "u", "dimensions": 8,
        "encoding_format": "base64"});
    assert_eq!(
        convert(Embeddings, OllamaEmbed, &request),
        json!({
            "model": "backend-model", "input": "a", "dimensions": 8,
        })
    );
    let response = json!({"model": "x", "embeddings": [[1.5, -2.0]], "prompt_eval_count": 4});
    let body = exchange((Embeddings, OllamaEmbed), &request, &response).unwrap();
    assert_eq!(
        body,
        json!({
            "object": "list", "model": "client-model",
            "data": [{"object": "embedding", "index": 0, "embedding": "AADAPwAAAMA="}],
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
        })
    );
    let floats = json!({"model": "m", "input": ["a"]});
    let body = exchange((Embeddings, OllamaEmbed), &floats, &response).unwrap();
    assert_eq!(body["data"][0]["embedding"], json!([1.5, -2.0]));
}

#[test]
fn malformed_requests_name_the_field() {
    for (field, body) in [
        ("encoding_format", json!({"input": "a", "encoding_format": "int8"})),
        ("input", json!({"input": [1, 2]})),
        ("input", json!({"input": {"text": "a"}})),
    ] {
        assert_eq!(refused(Embeddings, OllamaEmbed, &body), field, "{body}");
    }
}

#[test]
fn bad_responses_are_errors() {
    let request = json!({"model": "m", "input": ["a", "b"]});
    let one = openai(&[(0, json!([1.0]))]);
    let malformed = openai(&[(0, json!("AAA=")), (1, json!("AADAPwAAAMA="))]);
    for response in [one, malformed, json!({}), json!({"data": 5})] {
        let result = exchange((OllamaEmbed, Embeddings), &request, &response);
        assert!(matches!(result, Err(BadResponse::Malformed { .. })), "{response}: {result:?}");
    }
    let error = json!({"error": {"message": "no pooling"}});
    let body = exchange((OllamaEmbed, Embeddings), &request, &error).unwrap();
    assert_eq!(body, json!({"error": "no pooling"}));
}

#[test]
fn requests_without_texts_are_not_converted() {
    for body in [json!({"input": []}), json!({"input": ""}), json!({})] {
        let error = convert_for(Engine::Vllm, OllamaEmbed, Embeddings, &body).unwrap_err();
        assert_eq!(error, ConvertError::Empty { field: "input" });
    }
}
