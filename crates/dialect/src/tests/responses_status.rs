//! The status of the items of `/v1/responses` where the limit of tokens, or a filter, has cut the
//! response.

use penstock_api::Operation::{Chat, Responses};
use serde_json::{Value, json};

use super::{events, respond, respond_whole, sse, stream_terms};

/// Returns the statuses of the items of a response: of the last event, of the whole response.
fn statuses(delta: &Value, finish: &str) -> [Vec<String>; 2] {
    let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let stream = sse(&[chunk]) + "data: [DONE]\n\n";
    let events = events(&respond((Responses, Chat), &stream_terms(), &stream));
    let whole = json!({"choices": [{"message": delta, "finish_reason": finish}]});
    let whole = respond_whole((Responses, Chat), &whole);
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let done = done.map(|event| event["item"].clone()).collect();
    let last = events.last().unwrap()["response"]["output"].clone();
    assert_eq!(last, Value::Array(done));
    [last, whole["output"].clone()].map(|output| {
        let items = output.as_array().unwrap().iter();
        items.map(|item| item["status"].as_str().unwrap().to_owned()).collect()
    })
}

#[test]
fn item_that_the_limit_cut_is_incomplete() {
    let call = |index: u64, arguments: &str| {
        json!({"index": index, "id": format!("c{index}"),
            "function": {"name": "f", "arguments": arguments}})
    };
    let calls = |list: &[Value]| json!({"content": "a", "tool_calls": list});
    for (delta, finish, expected) in [
        (json!({"content": "a"}), "length", &["incomplete"][..]),
        (json!({"content": "a"}), "content_filter", &["incomplete"]),
        (json!({"content": "a"}), "stop", &["completed"]),
        (calls(&[call(0, "{\"x\": \"")]), "length", &["completed", "incomplete"]),
        (calls(&[call(0, "{\"x\": \"")]), "tool_calls", &["completed", "completed"]),
        (calls(&[call(0, "")]), "length", &["completed", "incomplete"]),
        (calls(&[call(0, "{}")]), "length", &["completed", "completed"]),
        (
            calls(&[call(0, "{"), call(1, "{")]),
            "length",
            &["completed", "incomplete", "incomplete"],
        ),
        (
            calls(&[call(0, "{}"), call(1, "{")]),
            "length",
            &["completed", "completed", "incomplete"],
        ),
    ] {
        assert_eq!(statuses(&delta, finish), [expected, expected], "{delta} {finish}");
    }
}
