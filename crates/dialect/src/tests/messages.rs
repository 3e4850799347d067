//! Clients of Anthropic's `/v1/messages` on other backends.

use penstock_api::Engine;
use penstock_api::Operation::{Chat, Completions, Messages, OllamaChat, OllamaGenerate};
use serde_json::{Value, json};

use super::{
    convert, convert_for, events, refused, respond, respond_whole, sse, stream_terms, try_respond,
};
use crate::{BadResponse, ReplyTerms};

fn messages(fields: Value) -> Value {
    let mut body = json!({
        "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
    });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn request_becomes_a_chat_completion() {
    let body = messages(json!({
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "stop_sequences": ["x"], "temperature": 0.5, "top_k": 4, "stream": true,
        "metadata": {"user_id": "u"}, "service_tier": "auto",
        "thinking": {"type": "enabled", "budget_tokens": 2048},
    }));
    let (body, converted) = convert_for(Engine::Vllm, Messages, Chat, &body).unwrap();
    assert!(converted.reply.is_stream());
    assert_eq!(
        body,
        json!({
            "model": "backend-model",
            "messages": [
                {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"},
            ],
            "max_tokens": 9, "stop": ["x"], "temperature": 0.5, "top_k": 4,
            "chat_template_kwargs": {"enable_thinking": true},
            "stream": true, "stream_options": {"include_usage": true},
        })
    );
}

#[test]
fn blocks_become_parts_calls_and_tool_messages() {
    let body = messages(json!({"messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "a"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "doc"}},
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "xx"},
            {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [
                {"type": "text", "text": "ok"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "BBBB"}},
            ]},
            {"type": "text", "text": "go on"},
        ]},
    ]}));
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    assert_eq!(
        convert(Messages, Chat, &body)["messages"],
        json!([
            {"role": "user", "content": [
                {"type": "text", "text": "a"},
                image("data:image/png;base64,AAAA"),
                image("https://x.example/a.png"),
                {"type": "text", "text": "doc"},
            ]},
            {"role": "assistant", "content": "b", "reasoning_content": "hm", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
            {"role": "tool", "tool_call_id": "t1", "name": "f", "content": "ok"},
            {"role": "user", "content": [
                image("data:image/png;base64,BBBB"), {"type": "text", "text": "go on"}]},
        ])
    );
    let ollama = convert_for(Engine::Ollama, Messages, OllamaChat, &body).unwrap_err();
    assert_eq!(ollama.field(), Some("image_url"), "Ollama takes no addresses");
}

#[test]
fn tools_and_choices_become_openais() {
    let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"}});
    let hosted = json!({"type": "web_search_20250305", "name": "web_search"});
    for (choice, expected) in [
        (json!({"type": "auto"}), json!("auto")),
        (json!({"type": "any"}), json!("required")),
        (json!({"type": "none"}), json!("none")),
        (
            json!({"type": "tool", "name": "f"}),
            json!({"type": "function", "function": {"name": "f"}}),
        ),
    ] {
        let body = messages(json!({"tools": [tool, hosted], "tool_choice": choice}));
        let body = convert(Messages, Chat, &body);
        assert_eq!(
            body["tools"],
            json!([{"type": "function", "function": {
            "name": "f", "description": "d", "parameters": {"type": "object"}}}])
        );
        assert_eq!(body["tool_choice"], expected, "{choice}");
    }
    let one = json!({"type": "auto", "disable_parallel_tool_use": true});
    let body = convert(Messages, Chat, &messages(json!({"tools": [tool], "tool_choice": one})));
    assert_eq!(body["parallel_tool_calls"], false);
}

#[test]
fn format_and_effort_come_from_output_config() {
    let body = messages(json!({"output_config": {
        "effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}}}));
    let body = convert(Messages, Chat, &body);
    assert_eq!(body["reasoning_effort"], "high");
    assert_eq!(body["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
}

#[test]
fn what_other_engines_cannot_do_is_refused() {
    let content = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    for (field, fields) in [
        ("mcp_servers", json!({"mcp_servers": [{"url": "x"}]})),
        ("messages", content(json!({"type": "server_tool_use", "id": "x"}))),
        ("messages", content(json!({"type": "image", "source": {"type": "file", "file_id": "x"}}))),
        (
            "messages",
            content(json!({"type": "document", "source": {"type": "base64", "data": "x"}})),
        ),
        ("messages", content(json!({"type": "tool_use", "id": "a", "name": "f", "input": "x"}))),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": [{"role": "tool", "content": "x"}]})),
        ("tool_choice", json!({"tool_choice": {"type": "tool"}})),
        ("system", json!({"system": 5})),
    ] {
        assert_eq!(refused(Messages, Chat, &messages(fields.clone())), field, "{fields}");
    }
}

fn chunk(delta: Value, finish: Option<&str>) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[test]
fn chat_stream_becomes_events_with_indexed_blocks() {
    let call = json!({"tool_calls": [{"index": 0, "id": "t1", "function": {"name": "f", "arguments": ""}}]});
    let piece = json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]});
    let stream = sse(&[
        chunk(json!({"role": "assistant", "content": ""}), None),
        chunk(json!({"reasoning_content": "hm"}), None),
        chunk(json!({"content": "a"}), None),
        chunk(json!({"content": "b"}), None),
        chunk(call, None),
        chunk(piece, None),
        chunk(json!({}), Some("tool_calls")),
        json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 5}}}),
    ]) + "data: [DONE]\n\n";
    let text = respond((Messages, Chat), &stream_terms(), &stream);
    assert!(text.starts_with("event: message_start\ndata: {\"type\":\"message_start\""), "{text}");
    let events = events(&text);
    assert_eq!(
        kinds(&events),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let indexes: Vec<Option<u64>> = events.iter().map(|event| event["index"].as_u64()).collect();
    assert_eq!(indexes[1..11], [0, 0, 0, 1, 1, 1, 1, 2, 2, 2].map(Some));
    assert_eq!(events[0]["message"]["id"], "msg_r1");
    assert_eq!(events[0]["message"]["model"], "client-model");
    assert_eq!(events[2]["delta"], json!({"type": "thinking_delta", "thinking": "hm"}));
    assert_eq!(events[5]["delta"], json!({"type": "text_delta", "text": "a"}));
    assert_eq!(
        events[8]["content_block"],
        json!({"type": "tool_use", "id": "t1", "name": "f", "input": {}})
    );
    assert_eq!(events[9]["delta"], json!({"type": "input_json_delta", "partial_json": "{}"}));
    assert_eq!(events[11]["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(events[11]["usage"]["input_tokens"], 4);
    assert_eq!(events[11]["usage"]["cache_read_input_tokens"], 5);
    assert_eq!(events[11]["usage"]["output_tokens"], 4);
}

#[test]
fn empty_responses_have_an_empty_text() {
    let stream = sse(&[chunk(json!({}), Some("stop"))]);
    let events = events(&respond((Messages, Chat), &stream_terms(), &stream));
    let kinds = kinds(&events);
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn pieces_behind_whole_arguments_are_an_error() {
    let piece = |index: u64, name: Option<&str>| {
        chunk(
            json!({"tool_calls": [{"index": index, "function": {"name": name, "arguments": "{}"}}]}),
            None,
        )
    };
    let stream = sse(&[piece(0, Some("f")), piece(1, Some("g")), piece(0, None)]);
    let (_, result) = try_respond((Messages, Chat), &stream_terms(), &stream);
    assert_eq!(result, Err(BadResponse::MixedCalls));
}

#[test]
fn failed_generation_is_no_normal_end() {
    let failed = Err(BadResponse::GenerationFailed);
    for reason in ["error", "abort"] {
        let whole = json!({"choices": [{"message": {"content": "a"}, "finish_reason": reason}]});
        let terms = ReplyTerms::default();
        let (out, result) = try_respond((Messages, Chat), &terms, &whole.to_string());
        assert_eq!((out.as_str(), result), ("", failed), "{reason}");
        let stream = sse(&[chunk(json!({"content": "a"}), None), chunk(json!({}), Some(reason))]);
        let (out, result) = try_respond((Messages, Chat), &stream_terms(), &stream);
        assert_eq!(result, failed, "{reason}");
        assert!(!out.contains("message_stop"), "{out}");
        let text = sse(&[json!({"choices": [{"text": "a", "finish_reason": reason}]})]);
        let (_, result) = try_respond((OllamaGenerate, Completions), &stream_terms(), &text);
        assert_eq!(result, failed, "{reason}");
    }
    let unknown = json!({"choices": [{"message": {"content": "a"}, "finish_reason": "eos"}]});
    assert_eq!(respond_whole((Messages, Chat), &unknown)["stop_reason"], "end_turn");
}

#[test]
fn stop_reasons_become_anthropics() {
    for (finish, reason) in
        [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")]
    {
        let body = json!({"choices": [{"message": {"content": "a"}, "finish_reason": finish}]});
        let body = respond_whole((Messages, Chat), &body);
        assert_eq!(body["stop_reason"], reason);
        assert_eq!(body["content"], json!([{"type": "text", "text": "a"}]));
        assert_eq!(body["type"], "message");
    }
}

#[test]
fn errors_in_a_stream_are_events_of_the_name() {
    let stream = sse(&[json!({"error": {"message": "boom"}})]);
    let text = respond((Messages, Chat), &stream_terms(), &stream);
    assert_eq!(
        text,
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"boom\"}}\n\n"
    );
}

#[test]
fn tools_that_clients_run_become_functions() {
    let tools = json!([
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9},
        {"type": "computer_20251124", "name": "computer", "display_width_px": 800, "display_height_px": 600},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "custom", "name": "f", "input_schema": {"type": "object"}, "defer_loading": true},
    ]);
    let body = convert(Messages, Chat, &messages(json!({"tools": tools})));
    let functions: Vec<&Value> =
        body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]).collect();
    let names: Vec<&Value> = functions.iter().map(|function| &function["name"]).collect();
    let expected =
        ["bash", "str_replace_editor", "str_replace_based_edit_tool", "computer", "memory", "f"];
    assert_eq!(names, expected);
    assert!(functions.iter().all(|function| function["parameters"]["type"] == "object"));
    let commands =
        |index: usize| functions[index]["parameters"]["properties"]["command"]["enum"].to_string();
    assert!(commands(1).contains("undo_edit") && !commands(2).contains("undo_edit"));
    assert!(
        functions[3]["description"].as_str().unwrap().ends_with("The screen has 800 x 600 pixels.")
    );
    // The model's call is returned under the name that the client knows.
    let call =
        json!([{"id": "c", "function": {"name": "bash", "arguments": "{\"command\":\"ls\"}"}}]);
    let response =
        json!({"choices": [{"message": {"tool_calls": call}, "finish_reason": "tool_calls"}]});
    let block = &respond_whole((Messages, Chat), &response)["content"][0];
    assert_eq!((&block["name"], &block["input"]), (&json!("bash"), &json!({"command": "ls"})));
    let unknown = messages(json!({"tools": [{"type": "teleporter_20990101", "name": "t"}]}));
    assert_eq!(refused(Messages, Chat, &unknown), "tools", "never dropped in silence");
}

#[test]
fn search_results_and_found_tools_become_text() {
    let found = json!({"type": "search_result", "source": "https://x.example", "title": "A title",
        "content": [{"type": "text", "text": "words"}], "citations": {"enabled": true}});
    let body = messages(json!({"messages": [
        {"role": "user", "content": [found, {"type": "text", "text": "so?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "tool_reference", "tool_name": "get_weather"}, found]}]},
    ]}));
    let body = convert(Messages, Chat, &body);
    let text = "A title\nhttps://x.example\nwords";
    assert_eq!(body["messages"][0]["content"][0]["text"], text);
    assert_eq!(body["messages"][2]["content"], format!("get_weather\n{text}"));
}
