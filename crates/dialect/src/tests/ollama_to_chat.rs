//! Requests of `/api/chat` for backends with `/v1/chat/completions`.

use penstock_api::Engine;
use penstock_api::Operation::{Chat, OllamaChat};
use serde_json::{Value, json};

use super::{convert, convert_for, refused};
use crate::ConvertError;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAE=";
const JPEG: &str = "/9j/4AAQSkZJRgABAQ==";

fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn for_engine(engine: Engine, fields: Value) -> Value {
    convert_for(engine, OllamaChat, Chat, &chat(fields)).unwrap().0
}

#[test]
fn request_becomes_a_chat_completion() {
    let body = json!({
        "model": "llama3",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi \"you\"\n"},
        ],
        "options": {"temperature": 0.5, "num_predict": 7, "num_ctx": 4096, "top_k": 3, "stop": "x"},
        "user": "u-1",
    });
    let (chat, converted) = convert_for(Engine::Vllm, OllamaChat, Chat, &body).unwrap();
    assert_eq!(converted.operation, Chat);
    assert!(converted.reply.is_stream(), "an absent `stream` means true");
    let expected = json!({
        "model": "backend-model",
        "messages": body["messages"],
        "temperature": 0.5,
        "top_k": 3,
        "max_tokens": 7,
        "stop": ["x"],
        "stream": true,
        "stream_options": {"include_usage": true},
        "user": "u-1",
    });
    assert_eq!(chat, expected);
}

#[test]
fn whole_responses_are_requested_without_stream_options() {
    let body = convert(OllamaChat, Chat, &chat(json!({"stream": false})));
    assert_eq!(body["stream"], false);
    assert_eq!(body.get("stream_options"), None);
}

#[test]
fn text_comes_before_images_with_their_media_type() {
    let message = json!({"role": "user", "content": "what?", "images": [PNG, JPEG]});
    let body = convert(OllamaChat, Chat, &json!({"model": "m", "messages": [message]}));
    let expected = json!([
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PNG}")}},
        {"type": "image_url", "image_url": {"url": format!("data:image/jpeg;base64,{JPEG}")}},
    ]);
    assert_eq!(body["messages"][0]["content"], expected);
    let address = json!({"role": "user", "content": "", "images": ["https://example.com/a.png"]});
    let refusal = json!({"model": "m", "messages": [address]});
    assert_eq!(refused(OllamaChat, Chat, &refusal), "images", "no address is ever fetched");
}

#[test]
fn tool_calls_and_results_are_joined_by_ids() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"city": "Ulm"}}});
    let body = json!({"model": "m", "messages": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call("wind"), call("rain")]},
        {"role": "tool", "tool_name": "rain", "content": "3 mm"},
        {"role": "tool", "content": "5 m/s"},
        {"role": "assistant", "tool_calls": [{"id": "x1", "function": {"name": "wind", "arguments": {}}}]},
        {"role": "tool", "tool_call_id": "x1", "content": "6 m/s"},
    ]});
    let messages = convert(OllamaChat, Chat, &body)["messages"].clone();
    assert_eq!(messages[1]["content"], Value::Null);
    assert_eq!(
        messages[1]["tool_calls"][0],
        json!({
            "id": "call_0", "type": "function",
            "function": {"name": "wind", "arguments": "{\"city\":\"Ulm\"}"},
        })
    );
    assert_eq!(
        messages[2],
        json!({
            "role": "tool", "tool_call_id": "call_1", "name": "rain", "content": "3 mm",
        })
    );
    assert_eq!(messages[3]["tool_call_id"], "call_0", "the oldest call without a result");
    assert_eq!(messages[3]["name"], "wind");
    assert_eq!(messages[5]["tool_call_id"], "x1");
}

/// Returns the ids of the calls that results get, for messages after the first.
fn ids_of_results(messages: &[Value]) -> Vec<String> {
    let first = json!({"role": "user", "content": "x"});
    let messages: Vec<_> = std::iter::once(&first).chain(messages).collect();
    let body = convert(OllamaChat, Chat, &json!({"model": "m", "messages": messages}));
    let results = body["messages"].as_array().unwrap().iter();
    let results = results.filter(|message| message["role"] == "tool");
    results.map(|message| message["tool_call_id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn results_of_one_tool_come_in_the_order_of_its_calls() {
    let call = json!({"function": {"name": "wind", "arguments": {}}});
    let calls = json!({"role": "assistant", "tool_calls": [call, call]});
    let one = json!({"role": "assistant", "tool_calls": [call]});
    for result in [
        json!({"role": "tool", "tool_name": "wind", "content": "x"}),
        json!({"role": "tool", "name": "wind", "content": "x"}),
        json!({"role": "tool", "content": "x"}),
    ] {
        let (calls, result) = (calls.clone(), result.clone());
        let both = [calls, result.clone(), result.clone()];
        assert_eq!(ids_of_results(&both), ["call_0", "call_1"], "{result}");
        let apart = [one.clone(), one.clone(), result.clone(), result.clone()];
        assert_eq!(ids_of_results(&apart), ["call_0", "call_1"], "in two messages: {result}");
    }
}

#[test]
fn results_belong_to_the_last_turn_with_an_open_call() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {}}});
    let calls =
        json!({"role": "assistant", "tool_calls": [call("wind"), call("rain"), call("wind")]});
    let user = json!({"role": "user", "content": "no, wait"});
    let wind = json!({"role": "tool", "tool_name": "wind", "content": "x"});
    let any = json!({"role": "tool", "content": "x"});
    let (calls, user) = (&calls, &user);
    for results in [[&wind, &wind, &any], [&any, &any, &any]] {
        let given_up = [&[calls, user, calls], &results[..]].concat();
        let given_up: Vec<_> = given_up.into_iter().cloned().collect();
        let mut ids = ids_of_results(&given_up);
        ids.sort();
        assert_eq!(ids, ["call_3", "call_4", "call_5"], "the first calls got no results");
    }
    let late = [calls.clone(), wind.clone(), user.clone(), wind.clone(), any.clone()];
    assert_eq!(ids_of_results(&late), ["call_0", "call_2", "call_1"]);
}

#[test]
fn arguments_that_are_no_object_are_refused() {
    let body = json!({"model": "m", "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ]});
    let error = convert_for(Engine::Vllm, OllamaChat, Chat, &body).unwrap_err();
    assert!(error.to_string().starts_with("messages[1] must be"), "{error}");
}

#[test]
fn tools_pass_with_their_schema() {
    let tool = json!({"type": "function", "function": {
        "name": "f", "description": "d", "parameters": {"type": "object", "properties": {}},
    }});
    let body = convert(OllamaChat, Chat, &chat(json!({"tools": [tool]})));
    assert_eq!(body["tools"], json!([tool]));
}

#[test]
fn format_becomes_a_response_format() {
    for (format, expected) in [
        (json!("json"), json!({"type": "json_object"})),
        (json!(""), Value::Null),
        (
            json!({"type": "object"}),
            json!({"type": "json_schema", "json_schema": {"name": "response", "schema": {"type": "object"}}}),
        ),
    ] {
        let body = convert(OllamaChat, Chat, &chat(json!({"format": format})));
        assert_eq!(body["response_format"], expected, "{format}");
    }
    assert_eq!(refused(OllamaChat, Chat, &chat(json!({"format": "xml"}))), "format");
}

#[test]
fn think_depends_on_what_the_engine_understands() {
    let off = for_engine(Engine::LlamaCpp, json!({"think": false}));
    assert_eq!(off["chat_template_kwargs"], json!({"enable_thinking": false}));
    let strict = for_engine(Engine::OpenAi, json!({"think": true}));
    assert_eq!(strict.get("chat_template_kwargs"), None);
    for (level, effort) in [("low", "low"), ("high", "high"), ("max", "high")] {
        let body = for_engine(Engine::OpenAi, json!({"think": level}));
        assert_eq!(body["reasoning_effort"], effort);
    }
    assert_eq!(refused(OllamaChat, Chat, &chat(json!({"think": "hard"}))), "think");
}

#[test]
fn thinking_of_the_assistant_goes_where_the_engine_reads_it() {
    let body = json!({"model": "m", "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y", "thinking": "hm"},
    ]});
    for (engine, member) in [
        (Engine::LlamaCpp, Some("reasoning_content")),
        (Engine::Vllm, Some("reasoning_content")),
        (Engine::Ollama, Some("reasoning")),
        (Engine::OpenAi, None),
    ] {
        let message =
            convert_for(engine, OllamaChat, Chat, &body).unwrap().0["messages"][1].clone();
        let mut expected = json!({"role": "assistant", "content": "y"});
        if let Some(member) = member {
            expected[member] = json!("hm");
        }
        assert_eq!(message, expected, "{engine:?}");
    }
}

#[test]
fn options_depend_on_the_engine() {
    let options = json!({
        "temperature": 0.1, "top_p": 0.9, "seed": 7, "presence_penalty": 0.2, "frequency_penalty": 0.3,
        "top_k": 40, "min_p": 0.05, "typical_p": 0.9, "repeat_penalty": 1.1, "repeat_last_n": 64,
        "num_keep": 4, "num_ctx": 8192, "num_gpu": 1, "mirostat": 2, "penalize_newline": true,
        "dry_multiplier": 0.8,
    });
    let common = json!({
        "temperature": 0.1, "top_p": 0.9, "seed": 7, "presence_penalty": 0.2, "frequency_penalty": 0.3,
    });
    for (engine, own) in [
        (
            Engine::LlamaCpp,
            json!({
                "top_k": 40, "min_p": 0.05, "typical_p": 0.9, "repeat_penalty": 1.1,
                "repeat_last_n": 64, "n_keep": 4, "dry_multiplier": 0.8,
            }),
        ),
        (Engine::Vllm, json!({"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1})),
        (Engine::LmStudio, json!({"top_k": 40, "repeat_penalty": 1.1})),
        (Engine::OpenAi, json!({})),
        (Engine::Other, json!({})),
    ] {
        let mut expected = for_engine(engine, json!({}));
        for object in [&common, &own] {
            expected.as_object_mut().unwrap().extend(object.as_object().unwrap().clone());
        }
        assert_eq!(for_engine(engine, json!({"options": options})), expected, "{engine:?}");
    }
}

#[test]
fn num_predict_becomes_the_limit_that_the_model_takes() {
    let options = |limit: i64| json!({"options": {"num_predict": limit}});
    assert_eq!(for_engine(Engine::OpenAi, options(9))["max_tokens"], 9);
    for limit in [-1, -2] {
        assert_eq!(for_engine(Engine::Vllm, options(limit)).get("max_tokens"), None);
    }
    let terms = crate::RequestTerms { model: "gpt-5-mini", engine: Engine::OpenAi, num_ctx: None };
    let body = chat(options(9)).to_string();
    let body = crate::convert_request(OllamaChat, Chat, body.as_bytes(), &terms).unwrap();
    let body: Value = serde_json::from_slice(&body.body).unwrap();
    assert_eq!(body["max_completion_tokens"], 9);
    assert_eq!(body.get("max_tokens"), None);
}

#[test]
fn keep_alive_is_for_engines_that_unload_models() {
    for (value, ttl) in [
        (json!(30), json!(30)),
        (json!("1m30s"), json!(90)),
        (json!("1.5h"), json!(5400)),
        (json!("90"), json!(90)),
        (json!("500ms"), json!(1)),
        (json!(-1), Value::Null),
        (json!("-1m"), Value::Null),
    ] {
        let body = for_engine(Engine::LmStudio, json!({"keep_alive": value}));
        assert_eq!(body["ttl"], ttl, "{value}");
    }
    assert_eq!(for_engine(Engine::Vllm, json!({"keep_alive": 30})).get("ttl"), None);
    for value in [json!("soon"), json!("5x"), json!(""), json!([]), json!(1e300)] {
        let body = chat(json!({"keep_alive": value}));
        assert_eq!(refused(OllamaChat, Chat, &body), "keep_alive", "{value}");
    }
}

#[test]
fn unknown_fields_survive_and_repeat_none_that_is_written() {
    let unknown = json!({
        "tool_choice": "required", "parallel_tool_calls": false, "logit_bias": {"5": 1},
        "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}, "top_k": 5, "n": 1,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    });
    let mut fields = unknown.clone();
    fields["think"] = json!(true);
    fields["stream_options"] = json!({"include_usage": false});
    fields["logprobs"] = json!(true);
    fields["top_logprobs"] = json!(2);
    let body = for_engine(Engine::Vllm, fields);
    for (name, value) in unknown.as_object().unwrap() {
        assert_eq!(body[name], *value, "{name}");
    }
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    assert_eq!(body["logprobs"], true);
    assert_eq!(body["top_logprobs"], 2);
    for field in ["truncate", "shift", "think", "options"] {
        assert_eq!(body.get(field), None, "{field}");
    }
}

#[test]
fn empty_requests_load_a_model_and_are_not_converted() {
    for body in [json!({"model": "m"}), json!({"model": "m", "messages": []})] {
        let error = convert_for(Engine::Vllm, OllamaChat, Chat, &body).unwrap_err();
        assert_eq!(error, ConvertError::Empty { field: "messages" });
    }
}

#[test]
fn malformed_requests_name_the_field() {
    for (field, value) in [
        ("messages", json!("x")),
        ("messages", json!([{"content": "x"}])),
        ("messages", json!([{"role": "robot", "content": "x"}])),
        ("stream", json!("yes")),
        ("options", json!([])),
        ("num_predict", json!({"num_predict": "many"})),
        ("stop", json!({"stop": 5})),
        ("tools", json!([{"type": "function"}])),
        ("logprobs", json!("yes")),
    ] {
        let name = if matches!(field, "num_predict" | "stop") { "options" } else { field };
        assert_eq!(refused(OllamaChat, Chat, &chat(json!({name: value}))), field, "{value}");
    }
    let terms = crate::RequestTerms { model: "m", engine: Engine::Vllm, num_ctx: None };
    for body in ["", "[]", "{\"messages\":", "\u{1}"] {
        let error = crate::convert_request(OllamaChat, Chat, body.as_bytes(), &terms);
        assert_eq!(error, Err(ConvertError::NotJson), "{body}");
    }
}
