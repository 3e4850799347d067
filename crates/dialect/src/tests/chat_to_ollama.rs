//! `/v1/chat/completions` on backends that have only Ollama's own API.

use penstock_api::Engine;
use penstock_api::Operation::{Chat, OllamaChat};
use serde_json::{Value, json};

use super::{convert, convert_for, events, ndjson, refused, respond, respond_whole, stream_terms};
use crate::ReplyTerms;

const PAIR: (penstock_api::Operation, penstock_api::Operation) = (Chat, OllamaChat);

fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn request_becomes_ollamas_with_the_defaults_of_its_v1() {
    let (body, converted) =
        convert_for(Engine::Ollama, Chat, OllamaChat, &chat(json!({}))).unwrap();
    assert!(!converted.reply.is_stream(), "an absent `stream` means false");
    assert_eq!(
        body,
        json!({
            "model": "backend-model",
            "messages": [{"role": "user", "content": "hi"}],
            "options": {"temperature": 1.0, "top_p": 1.0},
            "stream": false,
        })
    );
}

#[test]
fn options_of_the_client_win() {
    let body = convert(
        Chat,
        OllamaChat,
        &chat(json!({
            "temperature": 0, "max_completion_tokens": 5, "max_tokens": 9, "stop": ["a", "b"],
            "seed": 3, "top_k": 4, "repetition_penalty": 1.2, "logit_bias": {},
            "options": {"num_ctx": 8192, "top_p": 0.3}, "keep_alive": "5m",
        })),
    );
    assert_eq!(
        body["options"],
        json!({
            "num_ctx": 8192, "top_p": 0.3, "temperature": 0, "seed": 3, "top_k": 4,
            "repeat_penalty": 1.2, "num_predict": 5, "stop": ["a", "b"],
        })
    );
    assert_eq!(body["keep_alive"], "5m");
}

#[test]
fn parts_calls_and_results_become_ollamas() {
    let body = convert(
        Chat,
        OllamaChat,
        &json!({"model": "m", "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": [
                {"type": "text", "text": "what?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
            ]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": " {\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "ok"}]},
        ]}),
    );
    assert_eq!(
        body["messages"],
        json!([
            {"role": "system", "content": "be\nbrief"},
            {"role": "user", "content": "what?", "images": ["AAAA"]},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]},
            {"role": "tool", "content": "ok", "tool_name": "f", "tool_call_id": "a"},
        ])
    );
}

#[test]
fn what_ollama_cannot_do_is_refused() {
    let image = json!([{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://10.0.0.1/a.png"}}]}]);
    let audio = json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    for (field, fields) in [
        ("image_url", json!({"messages": image})),
        ("messages", json!({"messages": audio})),
        ("messages", json!({"messages": []})),
        ("tool_choice", json!({"tools": [tool], "tool_choice": "required"})),
        ("tool_choice", json!({"tools": [tool], "tool_choice": tool})),
        ("tool_choice", json!({"tool_choice": "maybe"})),
        ("n", json!({"n": 2})),
        ("audio", json!({"audio": {"voice": "x"}})),
        ("modalities", json!({"modalities": ["text", "audio"]})),
        ("functions", json!({"functions": []})),
        ("response_format", json!({"response_format": {"type": "xml"}})),
        ("reasoning_effort", json!({"reasoning_effort": "a lot"})),
        ("options", json!({"options": 5})),
    ] {
        assert_eq!(refused(Chat, OllamaChat, &chat(fields.clone())), field, "{fields}");
    }
}

#[test]
fn tool_choice_none_drops_the_tools() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let with = |choice: &str| {
        convert(Chat, OllamaChat, &chat(json!({"tools": [tool], "tool_choice": choice})))
    };
    assert_eq!(with("auto")["tools"], json!([tool]));
    assert_eq!(with("none").get("tools"), None);
}

#[test]
fn format_and_effort_become_ollamas() {
    for (fields, field, expected) in [
        (json!({"response_format": {"type": "text"}}), "format", Value::Null),
        (json!({"response_format": {"type": "json_object"}}), "format", json!("json")),
        (
            json!({"response_format": {"type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "object"}}}}),
            "format",
            json!({"type": "object"}),
        ),
        (json!({"reasoning_effort": "none"}), "think", json!(false)),
        (json!({"reasoning_effort": "minimal"}), "think", json!("low")),
        (json!({"reasoning_effort": "medium"}), "think", json!("medium")),
        (json!({"reasoning_effort": "xhigh"}), "think", json!("max")),
        (json!({"reasoning_effort": "ultra"}), "think", json!("max")),
        (json!({"chat_template_kwargs": {"enable_thinking": false}}), "think", json!(false)),
        (json!({"think": true}), "think", json!(true)),
        (json!({"logprobs": true, "top_logprobs": 3}), "top_logprobs", json!(3)),
    ] {
        let body = convert(Chat, OllamaChat, &chat(fields.clone()));
        assert_eq!(body[field], expected, "{fields}");
    }
}

fn line(message: Value) -> Value {
    json!({"model": "x", "created_at": "t", "message": message, "done": false})
}

fn end(reason: &str) -> Value {
    json!({
        "model": "x", "created_at": "t", "message": {"role": "assistant", "content": ""},
        "done": true, "done_reason": reason, "total_duration": 9, "load_duration": 1,
        "prompt_eval_count": 7, "prompt_eval_duration": 2, "eval_count": 3, "eval_duration": 4,
    })
}

#[test]
fn lines_become_chunks_as_ollama_itself_sends_them() {
    let terms = ReplyTerms { include_usage: true, ..stream_terms() };
    let stream = ndjson(&[
        line(json!({"role": "assistant", "content": "a", "thinking": "hm"})),
        line(json!({"role": "assistant", "content": "b"})),
        end("length"),
    ]);
    let events = events(&respond(PAIR, &terms, &stream));
    let head = json!({
        "id": "chatcmpl-r1", "object": "chat.completion.chunk", "created": 1_700_000_000,
        "model": "client-model", "system_fingerprint": "fp_ollama",
    });
    for event in &events[..events.len() - 1] {
        for (name, value) in head.as_object().unwrap() {
            assert_eq!(event[name], *value);
        }
    }
    let deltas: Vec<Value> =
        events[..5].iter().map(|event| event["choices"][0]["delta"].clone()).collect();
    assert_eq!(
        deltas,
        [
            json!({"role": "assistant", "content": ""}),
            json!({"reasoning_content": "hm", "reasoning": "hm"}),
            json!({"content": "a"}),
            json!({"content": "b"}),
            json!({}),
        ]
    );
    assert_eq!(events[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[5]["choices"], json!([]));
    assert_eq!(
        events[5]["usage"],
        json!({
            "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
        })
    );
    assert_eq!(events[6], "[DONE]");
    assert_eq!(events.len(), 7);
}

#[test]
fn usage_chunk_is_only_for_clients_that_want_it() {
    let out = respond(PAIR, &stream_terms(), &ndjson(&[end("stop")]));
    assert!(!out.contains("usage"), "{out}");
    assert_eq!(events(&out).last().unwrap(), "[DONE]");
}

#[test]
fn calls_of_tools_are_the_reason_even_where_ollama_says_stop() {
    let call = json!({"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}});
    let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let mut last = end("stop");
    for stream in [ndjson(&[line(message.clone()), last.clone()]), {
        last["message"] = message;
        ndjson(&[last])
    }] {
        let events = events(&respond(PAIR, &stream_terms(), &stream));
        let call = &events[1]["choices"][0]["delta"]["tool_calls"][0];
        assert_eq!(call["id"], "a");
        assert_eq!(call["function"]["name"], "f");
        let piece = &events[2]["choices"][0]["delta"]["tool_calls"][0];
        assert_eq!(*piece, json!({"index": 0, "function": {"arguments": "{\"x\":1}"}}));
        assert_eq!(events[3]["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn whole_response_becomes_a_chat_completion() {
    let mut whole = end("stop");
    whole["message"] = json!({"role": "assistant", "content": "hi", "thinking": "hm"});
    whole["logprobs"] = json!([{"token": "hi", "logprob": -0.1}]);
    let body = respond_whole(PAIR, &whole);
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(
        body["choices"][0],
        json!({
            "index": 0,
            "message": {"role": "assistant", "content": "hi", "reasoning_content": "hm", "reasoning": "hm"},
            "logprobs": {"content": [{"token": "hi", "logprob": -0.1}]},
            "finish_reason": "stop",
        })
    );
    assert_eq!(body["usage"]["total_tokens"], 10);
}

#[test]
fn errors_end_a_stream_without_done() {
    let stream = ndjson(&[
        line(json!({"role": "assistant", "content": "a"})),
        json!({"error": "unexpected EOF"}),
    ]);
    let events = events(&respond(PAIR, &stream_terms(), &stream));
    let last = events.last().unwrap();
    assert_eq!(last["error"]["message"], "unexpected EOF");
    assert_eq!(last["error"]["type"], "api_error");
}

#[test]
fn configured_context_is_that_of_clients_without_one() {
    let terms = crate::RequestTerms { model: "m", engine: Engine::Ollama, num_ctx: Some(32_768) };
    let converted = |fields: Value| {
        let body = chat(fields).to_string();
        let converted = crate::convert_request(Chat, OllamaChat, body.as_bytes(), &terms);
        serde_json::from_slice::<Value>(&converted.unwrap().body).unwrap()
    };
    assert_eq!(converted(json!({}))["options"]["num_ctx"], 32_768);
    let own = converted(json!({"options": {"num_ctx": 4096}}));
    assert_eq!(own["options"]["num_ctx"], 4096, "the client's own counts");
}
