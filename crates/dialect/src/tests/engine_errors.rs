//! Errors of engines keep their text in every dialect.

use penstock_api::Operation::{Chat, Messages, OllamaChat};
use serde_json::{Value, json};

use super::{stream_terms, try_respond};
use crate::convert_error;

fn converted(client: penstock_api::Operation, status: u16, body: &str) -> Value {
    serde_json::from_slice(&convert_error(client, status, body.as_bytes())).unwrap()
}

#[test]
fn every_known_form_keeps_its_text() {
    for body in [
        json!({"error": {"code": 400, "message": "too long", "type": "server_error",
            "n_ctx": 512}}),
        json!({"error": "too long"}),
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}),
        json!({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}),
        json!({"detail": "too long"}),
        json!([{"error": {"code": 400, "message": "too long", "status": "INVALID_ARGUMENT"}}]),
        json!({"id": "c", "choices": [
            {"finish_reason": "error", "error": {"code": 502, "message": "too long"}}]}),
    ] {
        let body = body.to_string();
        assert_eq!(converted(OllamaChat, 400, &body), json!({"error": "too long"}), "{body}");
        assert_eq!(converted(Chat, 400, &body)["error"]["message"], "too long", "{body}");
        let anthropic = converted(Messages, 400, &body);
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["message"], "too long", "{body}");
        assert_eq!(anthropic["error"]["type"], "invalid_request_error");
    }
}

#[test]
fn type_and_code_of_the_engine_survive_for_openai_clients() {
    let body = json!({"error": {"message": "m", "type": "server_error", "code": 400}});
    let error = converted(Chat, 400, &body.to_string())["error"].clone();
    assert_eq!(
        error,
        json!({
            "message": "m", "type": "server_error", "param": null, "code": 400,
        })
    );
}

#[test]
fn too_long_prompt_is_reported_in_words_that_clients_of_each_api_recognize() {
    let words_and_numbers = "prompt is too long: 8016 tokens > 512 maximum; this model's maximum context length is 512 tokens";
    let text = "request (8016 tokens) exceeds the available context size (512 tokens)";
    let body =
        json!({"error": {"message": text, "type": "exceed_context_size_error", "code": 400}});
    let message = format!("{text}: {words_and_numbers}");
    let chat = converted(Chat, 400, &body.to_string())["error"].clone();
    assert_eq!((&chat["message"], &chat["code"]), (&json!(message), &json!(400)));
    assert_eq!(converted(Messages, 400, &body.to_string())["error"]["message"], message);
    assert_eq!(converted(OllamaChat, 400, &body.to_string()), json!({"error": message}));
    let anthropic = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}"#;
    let chat = converted(Chat, 400, anthropic)["error"].clone();
    assert_eq!(chat["message"], "prompt is too long: 9 tokens > 8 maximum", "once is enough");
    assert_eq!(chat["code"], "context_length_exceeded");
    let ollama = r#"{"error":"the input length exceeds the context length"}"#;
    let words = "the input length exceeds the context length: prompt is too long";
    assert_eq!(converted(Messages, 400, ollama)["error"]["message"], words);
}

#[test]
fn types_follow_the_status_where_the_engine_has_none() {
    for (status, openai, anthropic) in [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (404, "not_found_error", "not_found_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "api_error", "api_error"),
        (503, "api_error", "overloaded_error"),
    ] {
        let body = r#"{"error":"x"}"#;
        assert_eq!(converted(Chat, status, body)["error"]["type"], openai, "{status}");
        assert_eq!(converted(Messages, status, body)["error"]["type"], anthropic, "{status}");
    }
}

#[test]
fn text_that_is_no_json_survives_within_bounds() {
    assert_eq!(converted(OllamaChat, 502, "Bad gateway\n"), json!({"error": "Bad gateway"}));
    let empty = converted(OllamaChat, 502, "");
    assert_eq!(empty["error"], "The backend responded with status 502");
    let long = converted(OllamaChat, 502, &"é".repeat(9999));
    assert_eq!(long["error"].as_str().unwrap().chars().count(), 2048);
}

#[test]
fn failed_choice_without_an_error_is_reported_in_words() {
    let body = r#"{"id":"c","choices":[{"delta":{"content":""},"finish_reason":"abort"}]}"#;
    let error = converted(OllamaChat, 502, body);
    assert_eq!(error["error"], "The backend reports that the generation failed");
    let other = r#"{"choices":[{"finish_reason":"stop"}],"message":"too long"}"#;
    assert_eq!(converted(OllamaChat, 400, other)["error"], "too long");
}

#[test]
fn errors_within_a_stream_keep_their_text_in_every_form() {
    let start = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
    for error in [
        r#"data: {"object":"error","message":"boom","type":"InternalServerError","code":500}"#,
        r#"data: {"type":"error","message":"boom"}"#,
        "event: error\ndata: {\"message\":\"boom\"}",
        "event: error\ndata: boom",
        "event:error\ndata: {\"detail\":\"boom\"}",
        r#"data: {"error":"boom"}"#,
        r#"data: {"choices":[{"finish_reason":"error","error":{"code":502,"message":"boom"}}]}"#,
    ] {
        let payload = format!("{start}{error}\n\ndata: [DONE]\n\n");
        for client in [Messages, OllamaChat, penstock_api::Operation::Responses] {
            let (text, _) = try_respond((client, Chat), &stream_terms(), &payload);
            assert!(text.contains("hi") && text.contains("boom"), "{error}: {text}");
            for end in ["message_stop", "\"done\":true", "response.completed"] {
                assert!(!text.contains(end), "{error}: {text}");
            }
        }
    }
    let payload =
        format!("data: null\n\nevent: other\n{start}event: error\n\n{start}data: [DONE]\n\n");
    let payload = payload.replace("\"hi\"}", "\"hi\"},\"finish_reason\":\"stop\"");
    let (text, result) = try_respond((OllamaChat, Chat), &stream_terms(), &payload);
    assert!(result.is_ok() && text.contains("\"done\":true"), "no data, no error: {text}");
}
