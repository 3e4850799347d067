use serde_json::{Value, json};

use super::*;

fn read(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

fn error(operation: Operation, body: &Value) -> EnsembleError {
    EnsembleRequest::read(operation, body.to_string().as_bytes()).unwrap_err()
}

#[test]
fn drafts_keep_what_is_not_theirs_to_change() {
    let body = r#"{"model":"moe-m","messages":[{"role":"user","content":"q"}],"stream":true,
        "stream_options":{"include_usage":true},"seed":7,"n":3,"temperature":0,
        "x":123456789012345678901234567890,"tools":[{"z":1,"a":2}]}"#;
    let request = EnsembleRequest::read(Operation::Chat, body.as_bytes()).unwrap();
    let draft = String::from_utf8(request.draft("m")).unwrap();
    assert!(draft.contains("123456789012345678901234567890"), "{draft}");
    assert!(draft.contains(r#"[{"z":1,"a":2}]"#), "{draft}");
    let draft: Value = serde_json::from_str(&draft).unwrap();
    assert_eq!((&draft["model"], &draft["stream"]), (&json!("m"), &json!(false)));
    assert_eq!(draft["temperature"], 1);
    for name in ["stream_options", "seed", "n"] {
        assert!(draft.get(name).is_none(), "{name}");
    }
}

#[test]
fn drafts_of_ollama_set_the_temperature_in_options() {
    let body = json!({"model": "moe-m", "prompt": "q", "options": {"seed": 1, "num_ctx": 8}});
    let body = body.to_string();
    let request = EnsembleRequest::read(Operation::OllamaGenerate, body.as_bytes()).unwrap();
    assert_eq!(request.query(), "q");
    let expected = json!({
        "model": "m", "stream": false, "prompt": "q", "options": {"num_ctx": 8, "temperature": 1},
    });
    assert_eq!(read(&request.draft("m")), expected);
    assert_eq!(read(&request.with_prompt("m", "p"))["prompt"], "p");
}

#[test]
fn the_query_is_the_last_text_of_the_user() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:,"}});
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": "first"},
        {"role": "user", "name": "n", "content": [
            {"type": "text", "text": "a", "cache_control": {}}, image, {"type": "text", "text": "b"},
        ]},
        {"role": "assistant", "content": null, "tool_calls": []},
        {"role": "tool", "content": "r"},
        {"role": "user", "content": [{"type": "tool_result", "content": "r"}]},
    ]);
    let body = json!({"model": "moe-m", "messages": messages, "stream": true}).to_string();
    let request = EnsembleRequest::read(Operation::Messages, body.as_bytes()).unwrap();
    assert_eq!(request.query(), "a\nb");
    let rebuilt = read(&request.with_prompt("m", "{\"p\"}"));
    let mut expected = messages;
    expected[2]["content"] =
        json!([{"type": "text", "text": "{\"p\"}", "cache_control": {}}, image]);
    assert_eq!(rebuilt, json!({"model": "m", "stream": true, "messages": expected}));
}

#[test]
fn input_of_responses_is_a_text_or_a_list() {
    for (input, expected) in [
        (json!("q"), json!("p")),
        (
            json!([{"role": "user", "content": [{"type": "input_text", "text": "q"}]}]),
            json!([{"role": "user", "content": [{"type": "input_text", "text": "p"}]}]),
        ),
    ] {
        let body = json!({"model": "moe-m", "input": input, "store": true}).to_string();
        let request = EnsembleRequest::read(Operation::Responses, body.as_bytes()).unwrap();
        assert_eq!(request.query(), "q");
        assert_eq!(read(&request.draft("m"))["store"], false);
        let last = read(&request.with_prompt("m", "p"));
        assert_eq!((&last["input"], &last["store"]), (&expected, &json!(true)));
    }
}

#[test]
fn requests_that_are_no_ensembles_say_why() {
    let user = json!([{"role": "user", "content": "q"}]);
    assert_eq!(error(Operation::Embeddings, &json!({"input": "q"})), EnsembleError::Operation);
    for messages in [
        json!([]),
        json!([{"role": "system", "content": "s"}]),
        json!([{"role": "user", "content": " "}]),
        json!([{"role": "user", "content": [{"type": "image"}]}, 7]),
        json!(7),
    ] {
        assert_eq!(error(Operation::Chat, &json!({"messages": messages})), EnsembleError::NoQuery);
    }
    let stored = json!({"input": user, "previous_response_id": "r"});
    let field = "previous_response_id";
    assert_eq!(error(Operation::Responses, &stored), EnsembleError::Field { field });
    let raw = json!({"prompt": "q", "raw": true});
    assert_eq!(error(Operation::OllamaGenerate, &raw).field(), Some("raw"));
    let plain = json!({"prompt": "q", "raw": false}).to_string();
    assert!(EnsembleRequest::read(Operation::OllamaGenerate, plain.as_bytes()).is_ok());
    assert_eq!(EnsembleRequest::read(Operation::Chat, b"[]").unwrap_err(), EnsembleError::NotJson);
}

#[test]
fn responses_of_every_api_are_read_as_text() {
    let call = json!({"name": "f", "arguments": "{}"});
    for (operation, body, expected) in [
        (Operation::Chat, json!({"choices": [{"message": {"content": " a "}}]}), Some("a")),
        (
            Operation::Chat,
            json!({"choices": [{"message": {"content": null, "tool_calls": [{"function": call}]}}]}),
            Some("Tool call: f {}"),
        ),
        (
            Operation::Chat,
            json!({"choices": [{"message": {"content": "<think>\nhm</think>\n\na"}}]}),
            Some("a"),
        ),
        (
            Operation::Chat,
            json!({"choices": [{"finish_reason": "stop", "message": {"content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]},
                {"type": "text", "text": "a"},
                {"type": "reference"},
                {"type": "text", "text": "b"},
            ]}}]}),
            Some("ab"),
        ),
        (Operation::Chat, json!({"choices": [{"message": {"content": []}}]}), None),
        (
            Operation::Chat,
            json!({"choices": [{"finish_reason": "error", "message": {"content": "half"}}]}),
            None,
        ),
        (Operation::Chat, json!({"choices": [{"message": {"content": ""}}]}), None),
        (Operation::Chat, json!({"choices": []}), None),
        (Operation::OllamaChat, json!({"message": {"content": "a"}}), Some("a")),
        (Operation::OllamaGenerate, json!({"response": "a"}), Some("a")),
        (
            Operation::Messages,
            json!({"content": [
                {"type": "thinking", "thinking": "t"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "name": "f", "input": {}},
            ]}),
            Some("a\nTool call: f {}"),
        ),
        (
            Operation::Responses,
            json!({"output": [
                {"type": "reasoning"},
                {"type": "message", "content": [{"type": "output_text", "text": "a"}]},
            ]}),
            Some("a"),
        ),
    ] {
        let text = response_text(operation, body.to_string().as_bytes());
        assert_eq!(text.as_deref(), expected, "{body}");
    }
    assert_eq!(response_text(Operation::Chat, b"data: {}"), None);
}

#[test]
fn a_critique_is_one_message() {
    let expected = json!({
        "model": "m", "stream": false, "max_tokens": 9,
        "messages": [{"role": "user", "content": "p\""}],
    });
    assert_eq!(read(&critique_body("m", "p\"", 9)), expected);
}
