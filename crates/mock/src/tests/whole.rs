//! Responses in one piece.

use penstock_api::{Capabilities, Dialect, OPERATIONS};
use serde_json::json;

use super::client::Client;
use super::{chat, engine, post, post_chat, with};
use crate::{EngineModel, MockEngine, MockSpec};

fn weather_tool() -> serde_json::Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!({"name": "weather", "parameters": parameters, "input_schema": parameters})
}

#[tokio::test]
async fn chat_names_engine_and_model() {
    let engine = engine().await;
    let response = post_chat(&engine, &chat()).await;
    assert_eq!(response.status, 200);
    let response = response.json();
    assert_eq!(response["object"], "chat.completion");
    let text = response["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with("a serving m: "), "{text}");
    assert_eq!(response["choices"][0]["finish_reason"], "stop");
    assert_eq!(response["usage"]["completion_tokens"], 8);
}

#[tokio::test]
async fn equal_requests_get_equal_bytes() {
    let engine = engine().await;
    let [one, other] = [post_chat(&engine, &chat()).await, post_chat(&engine, &chat()).await];
    assert_eq!(one.body, other.body);
}

#[tokio::test]
async fn max_tokens_shortens_in_every_dialect() {
    let engine = engine().await;
    let short = post_chat(&engine, &with(chat(), &json!({"max_completion_tokens": 3}))).await;
    assert_eq!(short.json()["usage"]["completion_tokens"], 3);
    assert_eq!(short.json()["choices"][0]["finish_reason"], "length");
    let long = post_chat(&engine, &with(chat(), &json!({"max_tokens": 3000}))).await;
    assert_eq!(long.json()["usage"]["completion_tokens"], 8, "bounded by the pace");
    let body = json!({"model": "m", "input": "hi", "max_output_tokens": 2});
    let response = post(&engine, "/v1/responses", &body).await.json();
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["usage"]["output_tokens"], 2);
    let message = post(&engine, "/v1/messages", &with(chat(), &json!({"max_tokens": 2}))).await;
    assert_eq!(message.json()["stop_reason"], "max_tokens");
}

#[tokio::test]
async fn tools_are_called_with_arguments_of_their_schema() {
    let engine = engine().await;
    let tool = weather_tool();
    let wrapped = json!({"tools": [{"type": "function", "function": tool}]});
    let response = post_chat(&engine, &with(chat(), &wrapped)).await.json();
    let call = &response["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "weather");
    assert_eq!(call["function"]["arguments"], r#"{"city":"a"}"#);
    assert_eq!(response["choices"][0]["finish_reason"], "tool_calls");

    let message = post(&engine, "/v1/messages", &with(chat(), &json!({"tools": [tool]}))).await;
    assert_eq!(message.json()["content"][0]["input"], json!({"city": "a"}));
    assert_eq!(message.json()["stop_reason"], "tool_use");

    let body = json!({"model": "m", "input": "hi", "tools": [tool]});
    let response = post(&engine, "/v1/responses", &body).await.json();
    assert_eq!(response["output"][0]["type"], "function_call");
    assert_eq!(response["output"][0]["arguments"], r#"{"city":"a"}"#);
}

#[tokio::test]
async fn no_tool_is_called_when_none_is_wanted() {
    let engine = engine().await;
    let tools = json!([{"type": "function", "function": weather_tool()}]);
    let refused = with(chat(), &json!({"tools": tools, "tool_choice": "none"}));
    let mut with_result = with(chat(), &json!({"tools": tools}));
    let result = json!({"role": "tool", "tool_call_id": "call_1", "content": "sunny"});
    with_result["messages"].as_array_mut().unwrap().push(result);
    for body in [refused, with_result, with(chat(), &json!({"tools": []}))] {
        let response = post_chat(&engine, &body).await.json();
        assert_eq!(response["choices"][0]["finish_reason"], "stop", "{body}");
    }
}

#[tokio::test]
async fn json_formats_get_json_of_the_schema() {
    let engine = engine().await;
    let object = with(chat(), &json!({"response_format": {"type": "json_object"}}));
    let response = post_chat(&engine, &object).await.json();
    let content = response["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(content, r#"{"engine":"a","model":"m"}"#);
    let schema = json!({"type": "object", "properties": {
        "sky": {"enum": ["blue"]}, "days": {"type": "array", "items": {"type": "integer"}},
    }});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let response = post_chat(&engine, &with(chat(), &json!({"response_format": format}))).await;
    let content = response.json()["choices"][0]["message"]["content"].clone();
    assert_eq!(content, r#"{"days":[1],"sky":"blue"}"#);
    let body = json!({"model": "m", "input": "hi", "text": {"format": {"type": "json_object"}}});
    let response = post(&engine, "/v1/responses", &body).await.json();
    assert_eq!(response["output"][0]["content"][0]["text"], r#"{"engine":"a","model":"m"}"#);
}

#[tokio::test]
async fn images_are_mentioned() {
    let engine = engine().await;
    let content =
        json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    let response = post_chat(&engine, &body).await;
    assert!(response.text().contains("a serving m sees an image"), "{}", response.text());
}

#[tokio::test]
async fn what_a_model_cannot_do_is_refused() {
    let model = EngineModel {
        context_length: 10,
        capabilities: Capabilities::NONE,
        ..EngineModel::new("m")
    };
    let engine = MockEngine::start_local(MockSpec::new("a", [model])).await.unwrap();
    let image = json!({"messages": [{"content": [{"type": "image_url"}]}]});
    let tools = json!({"tools": [weather_tool()]});
    let format = json!({"response_format": {"type": "json_object"}});
    for (more, name) in [(image, "vision"), (tools, "tools"), (format, "json_mode")] {
        let response = post_chat(&engine, &with(chat(), &more)).await;
        assert_eq!(response.status, 400);
        assert!(response.text().contains(name), "{}", response.text());
    }
    let long = json!({"messages": [{"role": "user", "content": "1234".repeat(11)}]});
    let response = post_chat(&engine, &with(chat(), &long)).await;
    assert_eq!(response.json()["error"]["code"], "context_length_exceeded");
    let fits = json!({"messages": [{"role": "user", "content": "1234".repeat(10)}]});
    assert_eq!(post_chat(&engine, &with(chat(), &fits)).await.status, 200);
}

#[tokio::test]
async fn every_operation_requires_a_known_model() {
    let engine = engine().await;
    for row in OPERATIONS {
        let Some(path) = row.path() else { continue };
        let form = |model: &str| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\
                 \x01\x02\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n\
                 {model}\r\n--b--\r\n"
            )
        };
        for (model, status) in [("m", 200), ("other", 404)] {
            let mut client = Client::connect(&engine).await;
            if row.body == penstock_api::BodyFormat::Multipart {
                let kind = "Content-Type: multipart/form-data; boundary=b\r\n";
                client.post_with(path, kind, form(model).as_bytes()).await;
            } else {
                let body = json!({"model": model, "input": "hi", "prompt": "hi", "messages": []});
                client.post(path, &body).await;
            }
            let response = client.response().await.unwrap();
            assert_eq!(response.status, status, "{} {model}", row.name);
            if status == 404 && row.dialect == Dialect::Anthropic {
                assert_eq!(response.json()["error"]["type"], "not_found_error");
                assert_eq!(response.json()["type"], "error");
            } else if status == 404 && row.dialect == Dialect::Ollama {
                assert!(response.json()["error"].is_string(), "{}", row.name);
            } else if status == 404 {
                assert_eq!(response.json()["error"]["code"], "model_not_found", "{}", row.name);
            }
        }
    }
}

#[tokio::test]
async fn vectors_rankings_and_media_have_their_shapes() {
    let engine = engine().await;
    let body = json!({"model": "m", "input": ["one", "two"], "dimensions": 4});
    let list = post(&engine, "/v1/embeddings", &body).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    assert_eq!(list["data"][1]["index"], 1);
    assert_eq!(list["data"][1]["embedding"].as_array().unwrap().len(), 4);
    assert_ne!(list["data"][0]["embedding"], list["data"][1]["embedding"]);
    let body = json!({"model": "m", "input": [1, 2, 3]});
    let list = post(&engine, "/v1/embeddings", &body).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "token numbers are one text");

    let body =
        json!({"model": "m", "query": "q", "documents": ["x", {"text": "y"}, "z"], "top_n": 2});
    let ranked = post(&engine, "/v1/rerank", &body).await.json();
    let scores: Vec<f64> = ranked["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["relevance_score"].as_f64().unwrap())
        .collect();
    assert!(scores.len() == 2 && scores[0] >= scores[1], "{scores:?}");
    let body = json!({"model": "m", "text_1": "q", "text_2": ["x", "y"]});
    let scored = post(&engine, "/v1/score", &body).await.json();
    assert!(scored["data"][1]["score"].is_f64());
    let judged = post(&engine, "/v1/moderations", &json!({"model": "m", "input": "x"})).await;
    assert_eq!(judged.json()["results"][0]["flagged"], false);
    let body = json!({"model": "m", "input": "x", "voice": "v"});
    let spoken = post(&engine, "/v1/audio/speech", &body).await;
    assert!(spoken.has_header("Content-Type: audio/mpeg"));
    assert_eq!((spoken.body.len(), spoken.body[255]), (48 << 10, 255));
    let drawn = post(&engine, "/v1/images/generations", &json!({"model": "m", "n": 2})).await;
    assert_eq!(drawn.json()["data"].as_array().unwrap().len(), 2);
}
