//! OpenAI's `/v1/responses` on backends without it.

use penstock_api::Engine;
use penstock_api::Operation::{Chat, Messages, OllamaChat, Responses};
use serde_json::{Value, json};

use super::{context, convert, convert_for, events, refused, respond, sse, try_respond};
use crate::{BadResponse, ConvertError, Converted, ResponseConverter};

fn request(fields: Value) -> Value {
    let mut body = json!({"model": "m", "input": "hi"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn converted(fields: Value) -> (Value, Converted) {
    convert_for(Engine::LlamaCpp, Responses, Chat, &request(fields)).unwrap()
}

#[test]
fn request_becomes_a_chat_completion() {
    let (body, converted) = converted(json!({
        "instructions": "be brief", "max_output_tokens": 9, "temperature": 0.5, "stream": true,
        "reasoning": {"effort": "low", "summary": "auto"}, "parallel_tool_calls": false,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true},
            "verbosity": "low"},
        "tools": [
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": false},
            {"type": "web_search", "external_web_access": false},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "store": false, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "truncation": "auto", "service_tier": "auto",
    }));
    assert!(converted.reply.is_stream());
    assert_eq!(
        body,
        json!({
            "model": "backend-model",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {
                "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": false}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": false,
            "response_format": {"type": "json_schema", "json_schema": {
                "name": "n", "schema": {"type": "object"}, "strict": true}},
            "reasoning_effort": "low", "verbosity": "low", "temperature": 0.5, "max_tokens": 9,
            "stream": true, "stream_options": {"include_usage": true},
        })
    );
}

#[test]
fn items_become_messages() {
    let input = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "user", "content": [
            {"type": "input_text", "text": "hi"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "a\n\"b\""},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
    ]);
    let (body, _) = converted(json!({"instructions": "a", "input": input}));
    assert_eq!(
        body["messages"],
        json!([
            {"role": "system", "content": "a\nb"},
            {"role": "user", "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}]},
            {"role": "assistant", "content": "ok", "reasoning_content": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                {"id": "c2", "type": "function", "function": {
                    "name": "patch", "arguments": "{\"input\":\"a\\n\\\"b\\\"\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "1"},
            {"role": "tool", "tool_call_id": "c2", "name": "patch", "content": "2"},
        ])
    );
    for target in [OllamaChat, Messages] {
        let body = request(json!({"input": "hi", "instructions": "a"}));
        assert_eq!(convert(Responses, target, &body)["model"], "backend-model");
    }
}

#[test]
fn what_only_the_platform_can_do_is_refused() {
    for (field, fields) in [
        ("previous_response_id", json!({"previous_response_id": "resp_1"})),
        ("conversation", json!({"conversation": "conv_1"})),
        ("prompt", json!({"prompt": {"id": "p"}})),
        ("background", json!({"background": true})),
        ("input", json!({"input": [{"type": "item_reference", "id": "x"}]})),
        (
            "input",
            json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}),
        ),
        (
            "input",
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]}),
        ),
        ("input", json!({"input": 5})),
        ("tools", json!({"tools": [{"type": "mcp", "server_url": "x"}]})),
        ("tools", json!({"tools": [{"type": "function"}]})),
        ("tools", json!({"tools": [{"type": "local_shell"}]})),
        ("tools", json!({"tools": [{"type": "apply_patch"}]})),
        (
            "tools",
            json!({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace", "name": "o"}]}]}),
        ),
        (
            "tool_choice",
            json!({"tool_choice": {"type": "allowed_tools", "mode": "odd", "tools": []}}),
        ),
        ("tool_choice", json!({"tool_choice": {"type": "odd"}})),
        ("text", json!({"text": {"format": {"type": "xml"}}})),
        ("reasoning", json!({"reasoning": {"effort": "lots"}})),
    ] {
        assert_eq!(refused(Responses, Chat, &request(fields.clone())), field, "{fields}");
    }
    for fields in [json!({"input": null}), json!({"input": []})] {
        let error = convert_for(Engine::Vllm, Responses, Chat, &request(fields)).unwrap_err();
        assert_eq!(error, ConvertError::Empty { field: "input" });
    }
}

fn chunk(delta: Value, finish: Option<&str>) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

fn stream_of(fields: Value, chunks: &[Value]) -> (Vec<Value>, Result<(), BadResponse>) {
    let mut fields = fields;
    fields["stream"] = json!(true);
    let (_, converted) = converted(fields);
    let (text, result) =
        try_respond((Responses, Chat), &converted.reply, &(sse(chunks) + "data: [DONE]\n\n"));
    let events = events(&text);
    for (event, number) in events.iter().zip(0..) {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    (events, result)
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

#[test]
fn stream_has_the_events_that_clients_need() {
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let (events, result) = stream_of(
        json!({"instructions": "be\nbrief", "tools": [tool]}),
        &[
            chunk(json!({"role": "assistant", "content": ""}), None),
            chunk(json!({"reasoning_content": "hm"}), None),
            chunk(json!({"content": "a"}), None),
            chunk(json!({"content": "b"}), None),
            chunk(
                json!({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{\"x\""}}]}),
                None,
            ),
            chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}), None),
            chunk(json!({}), Some("tool_calls")),
            json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4,
            "completion_tokens_details": {"reasoning_tokens": 1}}}),
        ],
    );
    assert_eq!(result, Ok(()));
    assert_eq!(kinds(&events), KINDS_OF_A_STREAM);
    check_contents(&events, &tool);
}

const KINDS_OF_A_STREAM: [&str; 21] = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
];

fn check_contents(events: &[Value], tool: &Value) {
    let created = &events[0]["response"];
    assert_eq!(created["id"], "resp_r1");
    assert_eq!(created["status"], "in_progress");
    assert_eq!(created["instructions"], "be\nbrief");
    assert_eq!(created["tools"], json!([tool]));
    assert_eq!(created["usage"], Value::Null);
    assert_eq!(
        events[10],
        json!({
            "type": "response.output_text.delta", "sequence_number": 10, "item_id": "msg_r1_1",
            "output_index": 1, "content_index": 0, "delta": "a", "logprobs": [],
        })
    );
    assert_eq!(events[12]["text"], "ab");
    let part = json!({"type": "output_text", "text": "ab", "annotations": [], "logprobs": []});
    assert_eq!(events[13]["part"], part);
    assert_eq!(events[18]["arguments"], "{\"x\":1}");
    assert_eq!(events[18]["name"], "f");
    let last = &events[20]["response"];
    assert_eq!(last["status"], "completed");
    assert_eq!(last["output"], json!([events[7]["item"], events[14]["item"], events[19]["item"]]));
    assert_eq!(last["output"][1]["content"][0]["text"], "ab");
    assert_eq!(last["output"][2]["call_id"], "c1");
    assert_eq!(
        last["usage"],
        json!({
            "input_tokens": 9, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 13,
        })
    );
}

#[test]
fn free_form_tools_keep_their_form() {
    let tool = json!({"type": "custom", "name": "patch", "description": "d",
        "format": {"type": "grammar", "syntax": "lark", "definition": "x"}});
    let (body, _) = converted(json!({"tools": [tool]}));
    let parameters = &body["tools"][0]["function"]["parameters"];
    assert_eq!(parameters["required"], json!(["input"]));
    let piece = |arguments: &str| {
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "c1",
            "function": {"name": "patch", "arguments": arguments}}]}),
            Some("tool_calls"),
        )
    };
    let (events, result) = stream_of(json!({"tools": [tool]}), &[piece("{\"input\":\"a\\nb\"}")]);
    assert_eq!(result, Ok(()));
    assert_eq!(
        kinds(&events)[2..6],
        [
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
        ]
    );
    assert_eq!(events[3]["delta"], "a\nb");
    assert_eq!(
        events[5]["item"],
        json!({
            "id": "ctc_r1_0", "type": "custom_tool_call", "status": "completed", "call_id": "c1",
            "name": "patch", "input": "a\nb",
        })
    );
    let (events, result) = stream_of(json!({"tools": [tool]}), &[piece("{\"input\":\"ab")]);
    assert_eq!(result, Ok(()));
    assert_eq!(events[3]["delta"], "{\"input\":\"ab", "a cut call is shown as it is");
}

#[test]
fn ends_before_the_models_own_are_incomplete() {
    for (finish, reason) in [("length", "max_output_tokens"), ("content_filter", "content_filter")]
    {
        let (events, _) = stream_of(json!({}), &[chunk(json!({"content": "a"}), Some(finish))]);
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(last["response"]["incomplete_details"]["reason"], reason);
    }
}

#[test]
fn whole_response_has_the_same_items() {
    let (_, converted) = converted(json!({"include": ["message.output_text.logprobs"]}));
    let token = json!({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []});
    let whole = json!({
        "choices": [{"message": {"content": "a", "reasoning": "hm", "tool_calls": [
            {"id": "c1", "function": {"name": "f", "arguments": ""}}]},
            "logprobs": {"content": [token]}, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    });
    let text = respond((Responses, Chat), &converted.reply, &whole.to_string());
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(body["object"], "response");
    assert_eq!(body["status"], "completed");
    assert_eq!(body["output"][0]["content"], json!([{"type": "reasoning_text", "text": "hm"}]));
    assert_eq!(body["output"][1]["content"][0]["logprobs"], json!([token]));
    assert_eq!(body["output"][2]["arguments"], "{}");
    assert_eq!(body["usage"]["total_tokens"], 3);
    assert_eq!(body["parallel_tool_calls"], true);
}

#[test]
fn failures_are_numbered_events() {
    use penstock_api::ErrorCode;
    let chunks = [chunk(json!({"content": "a"}), None), json!({"error": "boom"})];
    let (events, result) = stream_of(json!({}), &chunks);
    assert_eq!(result, Ok(()));
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["id"], "resp_r1");
    assert_eq!(last["response"]["error"], json!({"code": "server_error", "message": "boom"}));
    let (_, converted) = converted(json!({"stream": true}));
    let mut converter = ResponseConverter::new(Responses, Chat, converted.reply, context());
    let mut out = Vec::new();
    converter.cut(ErrorCode::UpstreamClosed, "closed", &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("event: response.failed\n"), "{text}");
    let error = &super::events(&text)[0]["response"]["error"];
    assert_eq!(*error, json!({"code": "upstream_closed", "message": "closed"}));
}

#[test]
fn tools_of_a_namespace_are_flat_for_the_backend_alone() {
    let function = json!({"type": "function", "name": "close", "description": "d",
        "parameters": {"type": "object"}, "strict": false});
    let custom = json!({"type": "custom", "name": "patch"});
    let tools = json!([{"type": "namespace", "name": "agents", "description": "Agents", "tools": [function, custom]},
        {"type": "function", "name": "close"}]);
    let choice = json!({"type": "function", "namespace": "agents", "name": "close"});
    let input = json!([
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c0", "namespace": "agents", "name": "close", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c0", "output": "done"},
        {"type": "local_shell_call", "call_id": "c1", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c1", "output": "a.txt"},
    ]);
    let (body, _) = converted(json!({"tools": tools, "tool_choice": choice, "input": input}));
    let names: Vec<&Value> =
        body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["agents__close", "agents__patch", "close"]);
    assert_eq!(body["tool_choice"]["function"]["name"], "agents__close");
    assert_eq!(body["messages"][1]["tool_calls"][0]["function"]["name"], "agents__close");
    assert_eq!(body["messages"][2]["name"], "agents__close");
    assert_eq!(body["messages"][3]["tool_calls"][0]["function"]["name"], "local_shell");
    assert_eq!(body["messages"][4]["content"], "a.txt");
    let call = |index: u32, name: &str, arguments: &str| json!({"index": index, "id": format!("c{index}"), "function": {"name": name, "arguments": arguments}});
    let calls = json!([
        call(0, "agents__close", "{}"),
        call(1, "close", "{}"),
        call(2, "agents__patch", "{\"input\":\"x\"}")
    ]);
    let chunks = [chunk(json!({"tool_calls": calls}), Some("tool_calls"))];
    let (events, result) = stream_of(json!({"tools": tools}), &chunks);
    assert_eq!(result, Ok(()));
    let output = &events.last().unwrap()["response"]["output"];
    let seen: Vec<_> = output
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (&item["type"], &item["namespace"], &item["name"]))
        .collect();
    assert_eq!(
        seen,
        [
            (&json!("function_call"), &json!("agents"), &json!("close")),
            (&json!("function_call"), &Value::Null, &json!("close")),
            (&json!("custom_tool_call"), &json!("agents"), &json!("patch")),
        ]
    );
    let added = events.iter().find(|event| event["type"] == "response.output_item.added").unwrap();
    assert_eq!(
        (&added["item"]["namespace"], &added["item"]["name"]),
        (&json!("agents"), &json!("close"))
    );
}

#[test]
fn tools_that_are_not_allowed_are_not_offered() {
    let tools = json!([{"type": "function", "name": "f"}, {"type": "function", "name": "g"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]);
    for (mode, names) in [("auto", vec!["f", "n__f"]), ("required", vec!["f", "n__f"])] {
        let choice = json!({"type": "allowed_tools", "mode": mode, "tools": [
            {"type": "function", "name": "f"}, {"type": "function", "namespace": "n", "name": "f"}, {"type": "web_search"}]});
        let (body, _) = converted(json!({"tools": tools, "tool_choice": choice}));
        let offered = body["tools"].as_array().unwrap().iter();
        assert_eq!(offered.map(|tool| &tool["function"]["name"]).collect::<Vec<_>>(), names);
        assert_eq!(body["tool_choice"], mode);
    }
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool("f"), tool("g")],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("g")]}}});
    let body = convert(Chat, Messages, &chat);
    assert_eq!(body["tools"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&body["tools"][0]["name"], &body["tool_choice"]["type"]),
        (&json!("g"), &json!("any"))
    );
}
