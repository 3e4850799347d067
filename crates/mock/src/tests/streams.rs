//! Responses as events.

use serde_json::{Value, json};

use super::{chat, chat_stream, engine, post, post_chat, with};

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    kinds.dedup();
    kinds
}

#[tokio::test]
async fn chat_stream_has_the_text_of_the_whole_response() {
    let engine = engine().await;
    let whole = post_chat(&engine, &chat()).await.json();
    let stream = post_chat(&engine, &chat_stream()).await;
    assert!(stream.has_header("Content-Type: text/event-stream"));
    assert!(stream.text().ends_with("data: [DONE]\n\n"));
    let events = stream.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events.len(), 1 + 8 + 1, "role, tokens, finish");
    assert_eq!(events[9]["choices"][0]["finish_reason"], "stop");
    let text: String = events[1..9]
        .iter()
        .map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    assert!(events.iter().all(|event| event.get("usage").is_none()), "no usage was requested");
    engine.wait_for(|counters| counters.events == 11 && counters.responded == 2).await.unwrap();
}

#[tokio::test]
async fn requested_usage_comes_last() {
    let engine = engine().await;
    let body = with(chat_stream(), &json!({"stream_options": {"include_usage": true}}));
    let events = post_chat(&engine, &body).await.events();
    let last = events.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 8);
    assert_eq!(events[0]["usage"], Value::Null);
    let body = json!({"model": "m", "prompt": "hi", "stream": true,
        "stream_options": {"include_usage": true}});
    let events = post(&engine, "/v1/completions", &body).await.events();
    assert_eq!(events[0]["choices"][0]["text"], "a serving m:");
    assert_eq!(events[8]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[9]["usage"]["completion_tokens"], 8);
}

#[tokio::test]
async fn streamed_tool_calls_add_up_to_json() {
    let engine = engine().await;
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let events = post_chat(&engine, &with(chat_stream(), &json!({"tools": [tool]}))).await.events();
    let call = |event: &Value| event["choices"][0]["delta"]["tool_calls"][0].clone();
    assert_eq!(call(&events[1])["function"]["name"], "f");
    let arguments: String = events[2..]
        .iter()
        .filter_map(|event| call(event)["function"]["arguments"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(arguments, r#"{"city":"a"}"#);
    let finish = &events.last().unwrap()["choices"][0]["finish_reason"];
    assert_eq!(finish, "tool_calls");
}

#[tokio::test]
async fn messages_stream_in_anthropics_order() {
    let engine = engine().await;
    let stream = post(&engine, "/v1/messages", &chat_stream()).await;
    let text = stream.text();
    assert!(text.starts_with("event: message_start\ndata: {"), "{text}");
    assert!(!text.contains("[DONE]"));
    let events = stream.events();
    let order = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&events), order);
    assert_eq!(events[3]["delta"], json!({"type": "text_delta", "text": "a serving m:"}));
    assert_eq!(events[12]["usage"]["output_tokens"], 8);
    assert_eq!(events[12]["delta"]["stop_reason"], "end_turn");
}

#[tokio::test]
async fn responses_stream_in_numbered_order() {
    let engine = engine().await;
    let body = json!({"model": "m", "input": "hi", "stream": true});
    let stream = post(&engine, "/v1/responses", &body).await;
    let events = stream.events();
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&events), order);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let last = &events.last().unwrap()["response"];
    let whole = post(&engine, "/v1/responses", &json!({"model": "m", "input": "hi"})).await.json();
    assert_eq!(last["output"][0]["content"], whole["output"][0]["content"]);
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = json!([{"type": "function", "name": "f", "parameters": parameters}]);
    let events =
        post(&engine, "/v1/responses", &with(body, &json!({"tools": tools}))).await.events();
    let done = events.iter().find(|event| event["type"] == "response.function_call_arguments.done");
    assert_eq!(done.unwrap()["arguments"], r#"{"city":"a"}"#);
}
