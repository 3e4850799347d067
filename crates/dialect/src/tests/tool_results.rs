//! Turns with tools: results with images among them in dialects whose results are text, and calls
//! whose arguments the model has written wrong.

use penstock_api::Operation::{self, Chat, Messages, OllamaChat, Responses};
use serde_json::{Value, json};

use super::convert;

const PNG: &str = "iVBORw0KGgoAAAANSUhEUg==";

/// Returns a request with two calls, whose first result is an image, and a text after the second.
fn request(client: Operation) -> Value {
    let url = format!("data:image/png;base64,{PNG}");
    match client {
        Chat => json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [
                {"id": "c1", "function": {"name": "f"}}, {"id": "c2", "function": {"name": "g"}}]},
            {"role": "tool", "tool_call_id": "c1",
                "content": [{"type": "image_url", "image_url": {"url": url}}]},
            {"role": "tool", "tool_call_id": "c2", "content": "r2"},
            {"role": "user", "content": "go on"},
        ]}),
        Responses => json!({"input": [
            {"role": "user", "content": "x"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1",
                "output": [{"type": "input_image", "image_url": url}]},
            {"type": "function_call_output", "call_id": "c2", "output": "r2"},
            {"role": "user", "content": "go on"},
        ]}),
        _ => json!({"max_tokens": 9, "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
                {"type": "tool_use", "id": "c2", "name": "g", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                    "data": PNG}}]}]},
            {"role": "user", "content": [
                {"type": "text", "text": "go on"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "r2"}]},
        ]}),
    }
}

#[test]
fn images_of_results_come_after_all_results() {
    for (client, backend) in [
        (Responses, Chat),
        (Responses, OllamaChat),
        (Chat, OllamaChat),
        (Messages, Chat),
        (Messages, OllamaChat),
    ] {
        let sent = convert(client, backend, &request(client));
        let list = sent["messages"].as_array().unwrap();
        let roles: Vec<_> = list.iter().map(|one| one["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"], "{sent}");
        let ids = [&list[2]["tool_call_id"], &list[3]["tool_call_id"]];
        assert_eq!(ids, ["c1", "c2"], "{sent}");
        let last = list[4].to_string();
        assert!(last.contains(PNG) && last.contains("go on"), "{last}");
    }
}

/// Returns a turn whose call has these arguments.
fn call(client: Operation, arguments: &str) -> Value {
    match client {
        Chat => json!({"messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [
                {"id": "c1", "function": {"name": "f", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "no JSON"},
        ]}),
        _ => json!({"input": [
            {"role": "user", "content": "x"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": "no JSON"},
        ]}),
    }
}

#[test]
fn broken_arguments_of_an_earlier_turn_stay_readable() {
    for (arguments, object) in [
        ("{\"cmd\": \"ls", json!({"invalid_arguments": "{\"cmd\": \"ls"})),
        ("[1]", json!({"invalid_arguments": "[1]"})),
        ("{} x", json!({"invalid_arguments": "{} x"})),
        ("null", json!({})),
        (" ", json!({})),
        (" {\"a\": 1}\n", json!({"a": 1})),
    ] {
        for client in [Chat, Responses] {
            let body = call(client, arguments);
            let ollama = convert(client, OllamaChat, &body);
            let call = &ollama["messages"][1]["tool_calls"][0]["function"];
            assert_eq!(call["arguments"], object, "{ollama}");
            let anthropic = convert(client, Messages, &body);
            assert_eq!(anthropic["messages"][1]["content"][0]["input"], object, "{anthropic}");
        }
        let chat = convert(Responses, Chat, &call(Responses, arguments));
        let sent = &chat["messages"][1]["tool_calls"][0]["function"]["arguments"];
        let expected = if arguments == " " { "{}" } else { arguments };
        assert_eq!(sent, expected, "the chat API has a text");
    }
}
