//! Responses of `/v1/chat/completions` for clients of `/api/chat`.

use penstock_api::Operation::{Chat, OllamaChat};
use serde_json::{Value, json};

use super::{lines, respond, respond_whole, sse, stream_terms, try_respond};
use crate::{BadResponse, ReplyTerms};

const PAIR: (penstock_api::Operation, penstock_api::Operation) = (OllamaChat, Chat);

fn chunk(delta: Value, finish: Option<&str>) -> Value {
    json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
}

#[test]
fn stream_becomes_lines_with_one_end() {
    let stream = [
        ": ping\n\n".to_owned(),
        sse(&[
            chunk(json!({"role": "assistant", "content": null}), None),
            chunk(json!({"reasoning_content": "hm"}), None),
            chunk(json!({"content": "Hel"}), None),
            chunk(json!({"content": "lo"}), None),
            chunk(json!({}), Some("length")),
            json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
        ]),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat();
    let lines = lines(&respond(PAIR, &stream_terms(), &stream));
    let contents: Vec<&str> =
        lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["", "Hel", "lo", ""]);
    assert_eq!(lines[0]["message"]["thinking"], "hm");
    assert_eq!(lines[1]["message"].get("thinking"), None);
    assert_eq!(lines[0]["created_at"], "2023-11-14T22:13:20.100000005Z");
    assert_eq!(lines[0]["model"], "client-model");
    let ends: Vec<bool> = lines.iter().map(|line| line["done"].as_bool().unwrap()).collect();
    assert_eq!(ends, [false, false, false, true]);
    assert_eq!(lines[3]["done_reason"], "length");
    assert_eq!(lines[3]["prompt_eval_count"], 9);
    assert_eq!(lines[3]["eval_count"], 2);
    assert_eq!(lines[3]["total_duration"], 100_000_000);
    assert_eq!(lines[3]["load_duration"], 0);
}

#[test]
fn an_event_of_several_lines_may_be_cut_between_carriage_return_and_line_feed() {
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\r\ndata: \"finish_reason\":\"stop\"}]}\r\n\r\n";
    let terms = stream_terms();
    let mut converter = crate::ResponseConverter::new(OllamaChat, Chat, terms, super::context());
    let mut out = Vec::new();
    for byte in event.bytes() {
        converter.feed(&[byte], std::time::Duration::ZERO, &mut out).unwrap();
    }
    converter.finish(std::time::Duration::ZERO, &mut out).unwrap();
    assert_eq!(lines(&String::from_utf8(out).unwrap()).len(), 2);
}

#[test]
fn counts_and_times_come_from_the_engine_where_it_reports_them() {
    let timings = json!({
        "cache_n": 4, "prompt_n": 6, "prompt_ms": 1.5, "predicted_n": 3, "predicted_ms": 2.25,
    });
    let mut last = chunk(json!({}), Some("stop"));
    last["timings"] = timings;
    let stream = sse(&[chunk(json!({"content": "x"}), None), last]) + "data: [DONE]\n\n";
    let lines = lines(&respond(PAIR, &stream_terms(), &stream));
    let end = lines.last().unwrap();
    assert_eq!(end["prompt_eval_count"], 10);
    assert_eq!(end["eval_count"], 3);
    assert_eq!(end["prompt_eval_duration"], 1_500_000);
    assert_eq!(end["eval_duration"], 2_250_000);
}

#[test]
fn tokens_are_counted_where_no_engine_reports_them() {
    let stream = sse(&[
        chunk(json!({"content": "a"}), None),
        chunk(json!({"content": "b"}), None),
        chunk(json!({}), Some("content_filter")),
    ]);
    let (out, result) = try_respond(PAIR, &stream_terms(), &stream);
    assert_eq!(result, Ok(()), "a stream may end without [DONE] after its finish reason");
    let lines = lines(&out);
    let end = lines.last().unwrap();
    assert_eq!(end["eval_count"], 2);
    assert_eq!(end.get("prompt_eval_count"), None);
    assert_eq!(end["done_reason"], "stop");
}

#[test]
fn tool_calls_arrive_whole_before_the_end() {
    let piece = |index: u64, id: Option<&str>, name: Option<&str>, arguments: &str| {
        let mut function = json!({"arguments": arguments});
        if let Some(name) = name {
            function["name"] = json!(name);
        }
        chunk(json!({"tool_calls": [{"index": index, "id": id, "function": function}]}), None)
    };
    let stream = sse(&[
        piece(0, Some("a1"), Some("f"), ""),
        piece(0, None, None, "{\"x\":"),
        piece(1, None, Some("g"), "{\n}"),
        piece(0, None, None, " 1}"),
        chunk(json!({}), Some("tool_calls")),
    ]) + "data: [DONE]\n\n";
    let lines = lines(&respond(PAIR, &stream_terms(), &stream));
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["done"], false);
    let expected = json!([
        {"id": "a1", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
        {"id": "call_r1_1", "function": {"index": 1, "name": "g", "arguments": {}}},
    ]);
    assert_eq!(lines[0]["message"]["tool_calls"], expected);
    assert_eq!(lines[1]["done_reason"], "stop");
}

#[test]
fn call_that_the_limit_cut_is_left_out() {
    let piece = |index: u64, arguments: &str| {
        let function = json!({"name": "f", "arguments": arguments});
        chunk(json!({"tool_calls": [{"index": index, "function": function}]}), None)
    };
    let stream = |finish| sse(&[piece(0, "{}"), piece(1, "{\"x"), chunk(json!({}), Some(finish))]);
    let lines = lines(&respond(PAIR, &stream_terms(), &stream("length")));
    assert_eq!(lines[0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(lines[1]["done_reason"], "length");
    let (_, result) = try_respond(PAIR, &stream_terms(), &stream("tool_calls"));
    assert_eq!(result, Err(BadResponse::BadArguments));
}

#[test]
fn calls_that_share_an_index_stay_apart_by_their_ids() {
    let piece = |id: &str| {
        chunk(
            json!({"tool_calls": [{"index": 0, "id": id,
            "function": {"name": "f", "arguments": "{}"}}]}),
            None,
        )
    };
    let stream = sse(&[piece("a"), piece("b"), chunk(json!({}), Some("tool_calls"))]);
    let lines = lines(&respond(PAIR, &stream_terms(), &stream));
    assert_eq!(lines[0]["message"]["tool_calls"].as_array().unwrap().len(), 2);
}

#[test]
fn logprobs_pass_as_a_flat_list() {
    let token = json!({"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []});
    let mut one = chunk(json!({"content": "x"}), None);
    one["choices"][0]["logprobs"] = json!({"content": [token]});
    let stream = sse(&[one, chunk(json!({}), Some("stop"))]);
    let lines = lines(&respond(PAIR, &stream_terms(), &stream));
    assert_eq!(lines[0]["logprobs"], json!([token]));
    assert_eq!(lines[1].get("logprobs"), None);
}

#[test]
fn errors_in_a_stream_are_its_last_line() {
    for error in [json!({"message": "out of memory", "code": 500}), json!("out of memory")] {
        let stream = sse(&[chunk(json!({"content": "a"}), None), json!({"error": error})])
            + "data: [DONE]\n\n";
        let lines = lines(&respond(PAIR, &stream_terms(), &stream));
        assert_eq!(lines.len(), 2, "nothing follows an error");
        assert_eq!(lines[1], json!({"error": "out of memory"}));
    }
}

#[test]
fn cut_streams_never_end_in_done() {
    let stream = sse(&[chunk(json!({"content": "a"}), None)]);
    let (out, result) = try_respond(PAIR, &stream_terms(), &stream);
    assert_eq!(result, Err(BadResponse::EndedEarly));
    assert!(!out.contains("\"done\":true"), "{out}");
}

#[test]
fn cut_appends_an_error_line_once() {
    use penstock_api::ErrorCode;
    let mut converter =
        crate::ResponseConverter::new(OllamaChat, Chat, stream_terms(), super::context());
    assert_eq!(converter.content_type(), "application/x-ndjson");
    let mut out = Vec::new();
    converter.cut(ErrorCode::UpstreamClosed, "closed", &mut out);
    converter.cut(ErrorCode::UpstreamClosed, "closed", &mut out);
    assert_eq!(String::from_utf8(out).unwrap(), "{\"error\":\"closed\"}\n");
}

#[test]
fn whole_response_becomes_one_object() {
    let body = json!({
        "id": "c",
        "choices": [{
            "index": 0,
            "message": {
                "role": "assistant", "content": null, "reasoning": "hm",
                "tool_calls": [{"id": "a", "type": "function",
                    "function": {"name": "f", "arguments": "{\"x\":[1,2]}"}}],
            },
            "finish_reason": "tool_calls",
        }],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1},
    });
    let whole = respond_whole(PAIR, &body);
    assert_eq!(
        whole["message"],
        json!({
            "role": "assistant", "content": "", "thinking": "hm",
            "tool_calls": [{"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": [1, 2]}}}],
        })
    );
    assert_eq!(whole["done"], true);
    assert_eq!(whole["done_reason"], "stop");
    assert_eq!(whole["eval_count"], 1);
}

#[test]
fn bad_responses_are_errors() {
    let (_, result) = try_respond(PAIR, &stream_terms(), "data: {\n\n");
    assert_eq!(result, Err(BadResponse::Malformed { expected: "chat completion" }));
    for body in ["", "{}", "[]", "{\"choices\":[]}"] {
        let (_, result) = try_respond(PAIR, &ReplyTerms::default(), body);
        assert!(result.is_err(), "{body}");
    }
    let call = json!({"choices": [{"message": {"tool_calls": [
        {"id": "a", "function": {"name": "f", "arguments": "[1]"}}]}, "finish_reason": "stop"}]});
    let (_, result) = try_respond(PAIR, &ReplyTerms::default(), &call.to_string());
    assert_eq!(result, Err(BadResponse::BadArguments));
}
