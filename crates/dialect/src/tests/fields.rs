//! Fields that the backend's API has under another name, or lacks.

use penstock_api::Engine;
use penstock_api::Operation::{Chat, Messages, OllamaChat, Responses};
use serde_json::{Value, json};

use super::{
    convert, convert_for, events, lines, refused, respond, respond_whole, sse, stream_terms,
};

fn responses(fields: Value) -> Value {
    let mut body = json!({"input": "x"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn verbosity_is_kept_where_the_api_has_it() {
    let body = responses(json!({"text": {"verbosity": "low"}}));
    assert_eq!(convert(Responses, Chat, &body)["verbosity"], "low");
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "verbosity": "low"});
    for (client, body) in [(Responses, &body), (Chat, &chat)] {
        for backend in [Messages, OllamaChat] {
            let sent = convert(client, backend, body);
            assert_eq!((sent.get("verbosity"), sent.get("text")), (None, None), "{sent}");
        }
    }
    let own = json!({"messages": [{"role": "user", "content": "x"}], "verbosity": "high"});
    assert_eq!(convert(OllamaChat, Chat, &own)["verbosity"], "high", "an unknown field passes");
}

#[test]
fn description_of_a_schema_is_kept_for_chat() {
    let format = json!({"type": "json_schema", "name": "n", "description": "d",
        "schema": {"type": "object"}, "strict": true});
    let sent = convert(Responses, Chat, &responses(json!({"text": {"format": format}})));
    let schema = &sent["response_format"]["json_schema"];
    assert_eq!((&schema["description"], &schema["name"]), (&json!("d"), &json!("n")), "{sent}");
}

#[test]
fn detail_of_an_image_is_kept_for_chat() {
    let url = "data:image/png;base64,iVBORw0KGgoAAAAN";
    for (detail, expected) in [("high", Some("high")), ("auto", Some("auto")), ("original", None)] {
        let image = json!({"type": "input_image", "image_url": url, "detail": detail});
        let body = json!({"input": [{"role": "user", "content": [image]}]});
        let sent = convert(Responses, Chat, &body);
        let image = &sent["messages"][0]["content"][0]["image_url"];
        assert_eq!(image["url"], url);
        assert_eq!(image.get("detail").and_then(Value::as_str), expected, "{sent}");
        let sent = convert(Responses, Messages, &body).to_string();
        assert!(!sent.contains("detail"), "{sent}");
    }
}

#[test]
fn title_and_context_of_a_document_are_text() {
    let text = |fields: Value| {
        let mut document = json!({"type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "body"}});
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": [document]}]});
        convert(Messages, Chat, &body)["messages"][0]["content"].clone()
    };
    assert_eq!(text(json!({})), "body");
    assert_eq!(text(json!({"title": null, "context": ""})), "body");
    assert_eq!(text(json!({"title": "t"})), "t\nbody");
    assert_eq!(text(json!({"title": "t", "context": "c"})), "t\nc\nbody");
}

#[test]
fn thinking_is_read_from_the_member_that_has_it() {
    for (one, other) in [("reasoning_content", "reasoning"), ("reasoning", "reasoning_content")] {
        for empty in [json!(""), json!(null), json!([])] {
            let message = json!({"role": "assistant", "content": "a", one: "hm", other: empty});
            let whole = json!({"choices": [{"message": message, "finish_reason": "stop"}]});
            let response = respond_whole((Messages, Chat), &whole);
            assert_eq!(response["content"][0]["thinking"], "hm", "{whole}");
        }
        let message = json!({"role": "assistant", "content": "a", one: "hm", other: ""});
        let body = json!({"messages": [{"role": "user", "content": "x"}, message]});
        let sent = convert(Chat, OllamaChat, &body);
        assert_eq!(sent["messages"][1]["thinking"], "hm", "{sent}");
    }
}

#[test]
fn whole_numbers_may_be_written_as_floats() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let chat = |limit: &str| json!({"messages": messages, limit: 1e3, "n": 1.0});
    assert_eq!(convert(Chat, Messages, &chat("max_tokens"))["max_tokens"], 1000);
    let sent = convert(Chat, OllamaChat, &chat("max_completion_tokens"));
    assert_eq!(sent["options"]["num_predict"], 1000);
    let anthropic = json!({"messages": messages, "max_tokens": 64.0,
        "thinking": {"type": "enabled", "budget_tokens": 1024.0}});
    assert_eq!(convert(Messages, Chat, &anthropic)["max_tokens"], 64);
    let body = responses(json!({"max_output_tokens": 64.0}));
    assert_eq!(convert(Responses, Chat, &body)["max_tokens"], 64);
    let ollama = json!({"messages": messages, "options": {"num_predict": -2.0}});
    assert_eq!(convert(OllamaChat, Chat, &ollama).get("max_tokens"), None, "no limit");
    assert_eq!(
        refused(Chat, Messages, &json!({"messages": messages, "max_tokens": 1.5})),
        "max_tokens"
    );
}

#[test]
fn stop_text_of_an_engine_is_a_stop_sequence() {
    let body = json!({"max_tokens": 9, "stop_sequences": ["END", "x"], "stream": true,
        "messages": [{"role": "user", "content": "x"}]});
    let (_, converted) = convert_for(Engine::Vllm, Messages, Chat, &body).unwrap();
    for (finish, member, value, expected) in [
        ("stop", "stop_reason", json!("END"), ("stop_sequence", json!("END"))),
        ("stop", "matched_stop", json!("x"), ("stop_sequence", json!("x"))),
        ("stop", "stop_reason", json!("<|im_end|>"), ("end_turn", json!(null))),
        ("stop", "stop_reason", json!(151_645), ("end_turn", json!(null))),
        ("stop", "stop_reason", json!(null), ("end_turn", json!(null))),
        ("length", "stop_reason", json!("END"), ("max_tokens", json!(null))),
    ] {
        let choice = |content: &str| {
            json!({"choices": [{"index": 0, content: {"content": "a"}, "finish_reason": finish,
                member: value}]})
        };
        let stream = sse(&[choice("delta")]) + "data: [DONE]\n\n";
        let events = events(&respond((Messages, Chat), &converted.reply, &stream));
        let delta = &events.iter().find(|one| one["type"] == "message_delta").unwrap()["delta"];
        let terms = converted.reply.clone().of_complete();
        let whole = respond((Messages, Chat), &terms, &choice("message").to_string());
        let whole = super::events(&whole);
        let of_whole = &whole.iter().find(|one| one["type"] == "message_delta").unwrap()["delta"];
        for delta in [delta, of_whole] {
            assert_eq!(
                (&delta["stop_reason"], &delta["stop_sequence"]),
                (&json!(expected.0), &expected.1)
            );
        }
    }
}

#[test]
fn older_function_call_is_a_call() {
    let choice = |member: &str, value: Value, finish: Value| {
        json!({"choices": [{"index": 0, member: {"content": null, "function_call": value},
            "finish_reason": finish}]})
    };
    let call = json!({"name": "f", "arguments": "{\"x\":1}"});
    let whole = choice("message", call, json!("function_call"));
    let response = respond_whole((Messages, Chat), &whole);
    let block = &response["content"][0];
    assert_eq!((&block["name"], &block["input"]), (&json!("f"), &json!({"x": 1})), "{response}");
    assert_eq!(response["stop_reason"], "tool_use");
    let pieces = [json!({"name": "f", "arguments": "{\"x\""}), json!({"arguments": ":1}"})];
    let mut chunks: Vec<Value> =
        pieces.into_iter().map(|piece| choice("delta", piece, Value::Null)).collect();
    chunks.push(choice("delta", Value::Null, json!("function_call")));
    let stream = sse(&chunks) + "data: [DONE]\n\n";
    let lines = lines(&respond((OllamaChat, Chat), &stream_terms(), &stream));
    let function = &lines[0]["message"]["tool_calls"][0]["function"];
    assert_eq!((&function["name"], &function["arguments"]["x"]), (&json!("f"), &json!(1)));
    let empty = choice("message", json!({}), json!("stop"));
    assert_eq!(respond_whole((Messages, Chat), &empty)["content"][0]["type"], "text");
}
