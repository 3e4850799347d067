//! Other clients on backends of Anthropic's `/v1/messages`.

use penstock_api::Operation::{Chat, Messages, OllamaChat, Responses};
use serde_json::{Value, json};

use super::{
    convert, events, lines, refused, respond, respond_whole, sse, stream_terms, try_respond,
};
use crate::{BadResponse, ReplyTerms};

#[test]
fn chat_becomes_a_request_of_anthropics() {
    let body = json!({"model": "m", "messages": [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.example/a"}}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "ok"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "and?"},
    ], "stop": "x", "user": "u", "seed": 5, "presence_penalty": 1, "temperature": 0.2,
        "parallel_tool_calls": false, "tool_choice": "required", "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}});
    assert_eq!(
        convert(Chat, Messages, &body),
        json!({
            "model": "backend-model", "max_tokens": 4096, "system": "a\nb", "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "image", "source": {"type": "url", "url": "https://x.example/a"}}]},
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "ok"}]},
                    {"type": "text", "text": "and?"}]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "temperature": 0.2, "stop_sequences": ["x"], "stream": false, "metadata": {"user_id": "u"},
        })
    );
    for (field, fields) in [
        ("format", json!({"response_format": {"type": "json_object"}})),
        ("logprobs", json!({"logprobs": true})),
    ] {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(refused(Chat, Messages, &body), field);
    }
    let alone = json!({"model": "m", "messages": [{"role": "system", "content": "x"}]});
    let alone = convert(Chat, Messages, &alone);
    assert_eq!(alone.get("system"), None);
    assert_eq!(alone["messages"][0]["role"], "user", "the API demands a message");
}

#[test]
fn thinking_excludes_what_anthropics_api_refuses_beside_it() {
    let body = |fields: Value| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}],
            "temperature": 0.2, "top_k": 5, "top_p": 0.5,
            "tools": [{"type": "function", "function": {"name": "f"}}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        convert(Chat, Messages, &body)
    };
    let has = |body: &Value, names: [&str; 4]| names.map(|name| body.get(name).is_some());
    let names = ["thinking", "temperature", "top_k", "top_p"];
    let thinks = body(json!({"reasoning_effort": "high", "tool_choice": "auto"}));
    assert_eq!(has(&thinks, names), [true, false, false, false], "{thinks}");
    assert_eq!(thinks["tool_choice"], json!({"type": "auto"}));
    let narrow = body(json!({"reasoning_effort": "high", "top_p": 0.97}));
    assert_eq!(has(&narrow, names), [true, false, false, true], "{narrow}");
    let choice = json!({"type": "function", "function": {"name": "f"}});
    for choice in [json!("required"), choice] {
        let forced = body(json!({"reasoning_effort": "high", "tool_choice": choice}));
        assert_eq!(has(&forced, names), [false, true, true, true], "{forced}");
        assert_eq!(forced["output_config"]["effort"], "high");
    }
    let off = body(json!({"reasoning_effort": "none", "tool_choice": "required"}));
    assert_eq!(off["thinking"], json!({"type": "disabled"}));
    assert_eq!(has(&off, names), [true; 4], "{off}");
}

#[test]
fn results_come_first_in_the_turn_of_the_user() {
    let call =
        json!({"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let body = json!({"model": "m", "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "tool_calls": [call]},
        {"role": "user", "content": "c"},
        {"role": "tool", "tool_call_id": "t1", "content": "d"},
    ]});
    let content = convert(Chat, Messages, &body)["messages"][2]["content"].clone();
    assert_eq!(content[0]["type"], "tool_result");
    assert_eq!(content[1], json!({"type": "text", "text": "c"}));
}

#[test]
fn text_of_whitespace_alone_is_no_text() {
    let messages = |list: Value| convert(Chat, Messages, &json!({"messages": list}));
    let call = json!({"id": "t1", "function": {"name": "f", "arguments": "{}"}});
    let sent = messages(json!([
        {"role": "system", "content": " "},
        {"role": "user", "content": [{"type": "text", "text": "\t"}, {"type": "text", "text": " x "}]},
        {"role": "assistant", "content": "\n\n", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": [{"type": "text", "text": "\r\n"}]},
        {"role": "user", "content": " "},
        {"role": "assistant", "content": " "},
        {"role": "user", "content": "y"},
    ]));
    let list = &sent["messages"];
    assert_eq!(sent.get("system"), None);
    assert_eq!(list[0]["content"], json!([{"type": "text", "text": " x "}]), "kept as it is");
    let blocks = |index: usize| list[index]["content"].as_array().unwrap();
    assert_eq!((blocks(1).len(), &blocks(1)[0]["type"]), (1, &json!("tool_use")));
    assert_eq!((blocks(2).len(), &blocks(2)[0]["content"]), (2, &json!([])));
    assert_eq!(blocks(2)[1]["text"], "y", "turns around an empty one are one turn");
}

#[test]
fn empty_turn_of_the_user_stays_a_turn() {
    for empty in [json!(""), json!(" \n"), json!([]), json!([{"type": "text", "text": ""}])] {
        let empty = json!({"role": "user", "content": empty});
        let body = json!({"messages": [empty, {"role": "assistant", "content": "a"}, empty]});
        let sent = convert(Chat, Messages, &body);
        for (index, expected) in [(0, json!("(empty)")), (2, json!("(empty)"))] {
            assert_eq!(sent["messages"][index]["content"], expected, "{sent}");
        }
        assert_eq!(sent["messages"].as_array().unwrap().len(), 3);
    }
}

/// Returns a stream as Anthropic sends it.
fn anthropic_stream() -> String {
    sse(&[
        json!({"type": "message_start", "message": {"id": "msg_1", "content": [],
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 1}}}),
        json!({"type": "ping"}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"x\""}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ":1}"}}),
        json!({"type": "content_block_stop", "index": 2}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ])
}

#[test]
fn anthropics_stream_becomes_chunks_and_lines() {
    let terms = ReplyTerms { include_usage: true, ..stream_terms() };
    let events = events(&respond((Chat, Messages), &terms, &anthropic_stream()));
    let deltas: Vec<&Value> =
        events[..6].iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(deltas[1]["reasoning_content"], "hm");
    assert_eq!(deltas[2]["content"], "a");
    assert_eq!(deltas[3]["tool_calls"][0]["id"], "t");
    assert_eq!(deltas[5]["tool_calls"][0]["function"]["arguments"], ":1}");
    assert_eq!(events[6]["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(
        events[7]["usage"],
        json!({
            "prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 7},
        })
    );
    assert_eq!(events[8], "[DONE]");
    let lines = lines(&respond((OllamaChat, Messages), &stream_terms(), &anthropic_stream()));
    assert_eq!(lines[2]["message"]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!(lines[3]["prompt_eval_count"], 10);
}

#[test]
fn anthropics_whole_message_becomes_a_chat_completion() {
    let body = json!({
        "type": "message", "role": "assistant", "content": [
            {"type": "text", "text": "a"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}],
        "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 4},
    });
    let body = respond_whole((Chat, Messages), &body);
    assert_eq!(body["choices"][0]["message"]["content"], "a");
    assert_eq!(
        body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
        "{\"x\":1}"
    );
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(body["usage"]["total_tokens"], 7);
}

#[test]
fn streamed_call_without_arguments_has_an_empty_object() {
    let start = |index: u64| {
        json!({"type": "content_block_start", "index": index,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}})
    };
    let delta = |index: u64, piece: &str| {
        json!({"type": "content_block_delta", "index": index,
            "delta": {"type": "input_json_delta", "partial_json": piece}})
    };
    let stream = sse(&[
        start(0),
        start(1),
        delta(1, ""),
        start(2),
        delta(2, "{\"x\":1}"),
        start(3),
        delta(3, " "),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        json!({"type": "message_stop"}),
    ]);
    let mut arguments = vec![String::new(); 4];
    for event in events(&respond((Chat, Messages), &stream_terms(), &stream)) {
        for call in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let place = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            arguments[place] += call["function"]["arguments"].as_str().unwrap();
        }
    }
    assert_eq!(arguments, ["{}", "{}", "{\"x\":1}", " {}"]);
    let out = respond((Responses, Messages), &stream_terms(), &stream);
    let mut arguments = vec![String::new(); 4];
    for event in events(&out) {
        if event["type"] == "response.function_call_arguments.delta" {
            let place = usize::try_from(event["output_index"].as_u64().unwrap()).unwrap();
            arguments[place] += event["delta"].as_str().unwrap();
        }
    }
    assert_eq!(
        arguments.iter().map(|one| one.trim()).collect::<Vec<_>>(),
        ["{}", "{}", "{\"x\":1}", "{}"]
    );
}

#[test]
fn tools_that_the_platform_runs_are_no_calls() {
    for kind in ["server_tool_use", "mcp_tool_use"] {
        let input = json!({"q": 1});
        let used =
            |input: &Value| json!({"type": kind, "id": "s", "name": "web_search", "input": input});
        let result = json!({"type": "web_search_tool_result", "tool_use_id": "s",
            "content": [{"type": "web_search_result", "title": "t"}]});
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        let text = json!({"type": "text", "text": "a"});
        let whole = json!({"type": "message", "stop_reason": "tool_use",
            "content": [used(&input), result, text, call]});
        let message = respond_whole((Chat, Messages), &whole)["choices"][0]["message"].clone();
        assert_eq!(message["content"], "a");
        let start = |index: u64, block: &Value| json!({"type": "content_block_start", "index": index, "content_block": block});
        let delta = |index: u64, piece: &str| {
            json!({"type": "content_block_delta", "index": index,
                "delta": {"type": "input_json_delta", "partial_json": piece}})
        };
        let stop = |index: u64| json!({"type": "content_block_stop", "index": index});
        let stream = sse(&[
            start(0, &used(&json!({}))),
            delta(0, ""),
            delta(0, "{\"q\""),
            delta(0, ":1}"),
            stop(0),
            start(1, &result),
            stop(1),
            start(2, &text),
            stop(2),
            start(3, &call),
            delta(3, "{}"),
            stop(3),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
            json!({"type": "message_stop"}),
        ]);
        let lines = lines(&respond((OllamaChat, Messages), &stream_terms(), &stream));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[0]["message"]["content"], "a");
        let calls = &lines[1]["message"]["tool_calls"];
        assert_eq!((&calls[0]["function"]["name"], &calls[1]), (&json!("f"), &Value::Null));
    }
    let (_, result) = try_respond(
        (Chat, Messages),
        &stream_terms(),
        &sse(&[json!({"type": "content_block_delta", "index": 7,
            "delta": {"type": "input_json_delta", "partial_json": "{"}})]),
    );
    let malformed = BadResponse::Malformed { expected: "event of Anthropic's API" };
    assert_eq!(result, Err(malformed), "a piece of no block");
}

#[test]
fn stop_text_survives_where_both_have_it() {
    let stream = sse(&[
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}}),
        json!({"type": "message_stop"}),
    ]);
    let events = events(&respond((Chat, Messages), &stream_terms(), &stream));
    assert_eq!(events[2]["choices"][0]["finish_reason"], "stop");
}

#[test]
fn cut_and_failed_streams_of_anthropics_are_visible() {
    let whole = anthropic_stream();
    let (start, _) = whole.split_at(whole.find("message_delta").unwrap() - 20);
    let (_, result) = try_respond((Chat, Messages), &stream_terms(), start);
    assert_eq!(
        result,
        Err(BadResponse::Malformed { expected: "event of Anthropic's API" }),
        "a torn event is no event"
    );
    let (start, _) = whole.split_at(
        whole
            .find("data: {\"delta\":{\"stop_reason")
            .unwrap_or(whole.rfind("data: {\"type\":\"message_delta").unwrap_or(0)),
    );
    let (_, result) = try_respond((Chat, Messages), &stream_terms(), start);
    assert_eq!(result, Err(BadResponse::EndedEarly));
    let failed = sse(&[
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
    ]);
    let events = events(&respond((Chat, Messages), &stream_terms(), &failed));
    assert_eq!(events[0]["error"]["message"], "Overloaded");
    assert_eq!(events.len(), 1);
}
