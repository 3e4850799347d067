//! The content of a response decides its outcome: an error, or nothing at all, with a good status
//! is a failure of its backend, and a refusal that no client can have caused sends the request
//! elsewhere. An outcome that a client can provoke at will says nothing about a backend.

use std::thread;

use serde_json::{Value, json};

use crate::support::client::{Response, chat, request, streaming_chat};
use crate::support::eventually;
use crate::support::fleet::{CHAT, SOON, begin, find_metric, read_until};
use crate::support::http2_engine::{self, Http2Engine, Reply};
use crate::support::penstock::Penstock;
use crate::support::raw_engine::{RawEngine, Respond, chunked, until_close, whole};

pub(crate) const JSON: &str = "application/json";
pub(crate) const EVENTS: &str = "text/event-stream";
const MESSAGES: &str = "/v1/messages";

pub(crate) const HELLO: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
pub(crate) const HELLO_EVENTS: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"hello\"},\"finish_reason\":null}]}\n\ndata: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
const ERROR: &str = r#"{"error":{"message":"it broke","type":"server_error"}}"#;

fn good(_: &str, body: &str) -> Vec<u8> {
    match body.contains("\"stream\":true") {
        true => chunked(EVENTS, HELLO_EVENTS),
        false => whole(200, JSON, HELLO),
    }
}

/// A backend that does what `respond` says, and, of lower priority, one that works.
pub(crate) fn beside_a_good_one(respond: Respond, rest: &str) -> (RawEngine, Penstock) {
    let (bad, works) = (RawEngine::start("bad", respond), RawEngine::start("good", good));
    let model = "engine: vllm, models: [{ id: m, operations: [chat] }]";
    let items = bad.item(&format!("{model}, priority: 1, {rest}"))
        + &works.item(&format!("{model}, priority: 9, {rest}"));
    let penstock =
        Penstock::start(&format!("routing: {{ strategy: priority_only }}\nbackends:\n{items}"));
    (bad, penstock)
}

pub(crate) fn alone(respond: Respond, rest: &str) -> (RawEngine, Penstock) {
    let engine = RawEngine::start("only", respond);
    let items = engine.item(rest);
    (engine, Penstock::start(&format!("backends:\n{items}")))
}

pub(crate) const CHATS: &str = "engine: vllm, models: [{ id: m, operations: [chat] }]";

fn messages(stream: bool) -> Value {
    json!({"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

/// Sends eight requests with different prompts, all of which the good backend has to serve; returns
/// the requests of the bad one meanwhile.
pub(crate) fn served_elsewhere(bad: &RawEngine, penstock: &Penstock, stream: bool) -> usize {
    for number in 0..8 {
        let text = format!("prompt {number}");
        let body = if stream { streaming_chat("m", &text) } else { chat("m", &text) };
        let response = penstock.post(CHAT, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.text().contains("hello"), "{}", response.text());
    }
    bad.take_requests().len()
}

#[test]
fn failures_with_a_good_status_go_elsewhere() {
    let streams: [Respond; 13] = [
        |_, _| {
            chunked(EVENTS, &format!("data: {}\n\n", ERROR.replace("broke", &"z".repeat(40_000))))
        },
        |_, _| chunked(EVENTS, "data: {}\n\ndata: {}\n\ndata: [DONE]\n\n"),
        |_, _| chunked(EVENTS, "data: {\"detail\":\"no worker\"}\n\ndata: [DONE]\n\n"),
        |_, _| chunked(EVENTS, "data: {\"code\":500,\"message\":\"it broke\"}\n\n"),
        |_, _| chunked(EVENTS, ": OPENROUTER PROCESSING\n\ndata: [DONE]\n\n"),
        |_, _| whole(202, JSON, r#"{"status":"error","message":"no worker"}"#),
        |_, _| chunked(EVENTS, &format!("data: {ERROR}\n\ndata: [DONE]\n\n")),
        |_, _| chunked(EVENTS, &format!("event: error\ndata: {ERROR}\n\n")),
        |_, _| chunked(EVENTS, ""),
        |_, _| whole(200, EVENTS, ""),
        |_, _| until_close(EVENTS, "data: [DONE]\n\n"),
        |_, _| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        |_, _| whole(200, JSON, ERROR),
    ];
    let wholes: [Respond; 8] = [
        |_, _| whole(200, JSON, r#"{"id":"1","message":"it broke"}"#),
        |_, _| whole(200, JSON, r#"{"status":"error","message":"no gpu"}"#),
        |_, _| whole(200, JSON, r#"[{"error":{"code":500,"message":"x"}}]"#),
        |_, _| whole(200, JSON, &HELLO[..HELLO.len() / 2]),
        |_, _| whole(200, JSON, ERROR),
        |_, _| chunked(JSON, ERROR),
        |_, _| whole(200, JSON, ""),
        |_, _| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
    ];
    let streams = streams.into_iter().map(|respond| (respond, true));
    for (respond, stream) in streams.chain(wholes.into_iter().map(|respond| (respond, false))) {
        let (bad, penstock) = beside_a_good_one(respond, "");
        let met = served_elsewhere(&bad, &penstock, stream);
        assert!((1..8).contains(&met), "it is avoided after a few: {met} of 8");
        let faults = "penstock_attempts_total{backend=\"bad\",outcome=\"fault\"";
        assert!(find_metric(&penstock, faults).unwrap() >= 1.0);
    }
}

const ROLE: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
const STOP: &str = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

fn empty(_: &str, body: &str) -> Vec<u8> {
    match body.contains("\"stream\":true") {
        true => chunked(EVENTS, &format!("{ROLE}\n\n{STOP}\n\ndata: [DONE]\n\n")),
        false => whole(200, JSON, &HELLO.replace("\"hello\"", "null")),
    }
}

/// Tokens that are counted, and a call of nothing.
fn pretence(_: &str, body: &str) -> Vec<u8> {
    const CALL: &str = r#"{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"","arguments":""}}]}"#;
    let counts = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12}}"#;
    match body.contains("\"stream\":true") {
        true => {
            let call = STOP.replace("{}", CALL);
            chunked(EVENTS, &format!("{call}\n\n{counts}\n\ndata: [DONE]\n\n"))
        }
        false => whole(
            200,
            JSON,
            &HELLO.replace("\"hello\"", &format!("null,{}", &CALL[1..CALL.len() - 1])),
        ),
    }
}

/// A coding that was not requested.
fn encoded(_: &str, _: &str) -> Vec<u8> {
    let response = String::from_utf8(chunked(EVENTS, "not readable")).unwrap();
    response.replacen("\r\n", "\r\ncontent-encoding: gzip\r\n", 1).into_bytes()
}

#[test]
fn engine_without_output_draws_no_traffic() {
    let engines: [Respond; 3] = [empty, pretence, encoded];
    for (respond, stream) in engines.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let (bad, works) = (RawEngine::start("bad", respond), RawEngine::start("good", good));
        let items = bad.item(CHATS) + &works.item(CHATS);
        let penstock = Penstock::start(&format!("backends:\n{items}"));
        for number in 0..40 {
            let text = format!("prompt {number}");
            let body = if stream { streaming_chat("m", &text) } else { chat("m", &text) };
            assert_eq!(penstock.post(CHAT, &body).status, 200);
        }
        let met = bad.take_requests().len();
        assert!((1..10).contains(&met), "stream {stream}: {met} of 40");
        let empty = "penstock_attempts_total{backend=\"bad\",outcome=\"empty\"";
        assert_eq!(find_metric(&penstock, empty), Some(met as f64));
    }
}

#[test]
fn response_without_output_is_good_where_none_was_requested() {
    let (_, penstock) = alone(empty, CHATS);
    for stream in [true, false] {
        let mut body = chat("m", "hi");
        (body["stream"], body["max_tokens"]) = (json!(stream), json!(1));
        assert_eq!(penstock.post(CHAT, &body).status, 200);
    }
    let good = "penstock_attempts_total{backend=\"only\",outcome=\"ok\"";
    assert_eq!(find_metric(&penstock, good), Some(2.0));
}

#[test]
fn converted_response_that_reports_a_failure_ends_as_one() {
    let failed: Respond = |_, body| match body.contains("\"stream\":true") {
        true => chunked(EVENTS, &HELLO_EVENTS.replace("\"stop\"", "\"error\"")),
        false => whole(200, JSON, &HELLO.replace("\"stop\"", "\"abort\"")),
    };
    let (_, penstock) = alone(failed, CHATS);
    let response = penstock.post(MESSAGES, &messages(false));
    assert_eq!((response.status, &response.json()["type"]), (502, &json!("error")));
    let text = penstock.post(MESSAGES, &messages(true)).text();
    assert!(text.contains("hello") && text.contains("event: error"), "{text}");
    assert!(!text.contains("message_stop"), "{text}");
    let faults = "penstock_attempts_total{backend=\"only\",outcome=\"fault\"";
    eventually("both are faults", SOON, || find_metric(&penstock, faults) >= Some(2.0));
}

#[test]
fn converted_result_with_an_error_is_no_success() {
    const EMPTY: &str = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":""},"finish_reason":"stop"}],"error":{"message":"it broke","code":500}}"#;
    let cases: [(Respond, u16, &str); 4] = [
        (
            |_, _| {
                let error = r#""error","error":{"code":502,"message":"it broke"}"#;
                let body = HELLO.replace("\"stop\"", error).replace("\"hello\"", "\"\"");
                whole(200, JSON, &body)
            },
            502,
            "fault",
        ),
        (|_, _| whole(200, JSON, EMPTY), 502, "fault"),
        (|_, _| chunked(JSON, &format!("\n\n{EMPTY}")), 502, "fault"),
        (|_, _| whole(200, JSON, &EMPTY.replace("500", "429")), 429, "busy"),
    ];
    for (respond, status, outcome) in cases {
        let (bad, penstock) = beside_a_good_one(respond, "");
        let response = penstock.post(MESSAGES, &messages(false));
        assert!(response.text().contains("hello"), "{}", response.text());
        assert_eq!(bad.take_requests().len(), 1);
        let counted = format!("penstock_attempts_total{{backend=\"bad\",outcome=\"{outcome}\"");
        assert_eq!(find_metric(&penstock, &counted), Some(1.0), "{outcome}");
        for stream in [false, true] {
            let (_, penstock) = alone(respond, CHATS);
            let response = penstock.post(MESSAGES, &messages(stream));
            assert_eq!(response.status, status, "{}", response.text());
            assert_eq!(response.json()["error"]["message"], "it broke");
        }
    }
}

#[test]
fn converted_stream_that_fails_before_its_first_token_goes_elsewhere() {
    const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
    const BUSY: &str = r#"{"error":{"message":"slow down","type":"rate_limit_error","code":"rate_limit_exceeded"}}"#;
    let cases: [(Respond, u16, &str, &str, &str); 2] = [
        (
            |_, _| chunked(EVENTS, &format!(": wait\n\n{ROLE}data: {BUSY}\n\n")),
            429,
            "rate_limit_error",
            "slow down",
            "busy",
        ),
        (
            |_, _| chunked(EVENTS, &format!("{ROLE}data: {ERROR}\n\n")),
            502,
            "api_error",
            "it broke",
            "fault",
        ),
    ];
    for (respond, status, kind, message, outcome) in cases {
        let (bad, penstock) = beside_a_good_one(respond, "");
        let text = penstock.post(MESSAGES, &messages(true)).text();
        assert!(text.contains("hello") && text.contains("message_stop"), "{text}");
        assert_eq!(bad.take_requests().len(), 1);
        let counted = format!("penstock_attempts_total{{backend=\"bad\",outcome=\"{outcome}\"");
        assert_eq!(find_metric(&penstock, &counted), Some(1.0), "{outcome}");
        let (_, penstock) = alone(respond, CHATS);
        let response = penstock.post(MESSAGES, &messages(true));
        assert_eq!(response.status, status, "{}", response.text());
        assert_eq!(response.json()["error"], json!({"type": kind, "message": message}));
    }
}

#[test]
fn streams_are_known_by_their_first_bytes() {
    let plain: Respond = |_, _| chunked("text/plain", HELLO_EVENTS);
    let json: Respond = |_, _| chunked(JSON, HELLO_EVENTS);
    let lines: Respond = |_, _| chunked("application/x-ndjson", HELLO_EVENTS);
    for respond in [plain, json, lines] {
        let (_, penstock) = alone(respond, CHATS);
        assert_eq!(penstock.post(CHAT, &streaming_chat("m", "hi")).text(), HELLO_EVENTS);
        let response = penstock.post(MESSAGES, &messages(true));
        let text = response.text();
        assert_eq!(response.header("content-type"), Some(EVENTS));
        assert!(text.contains("hello") && text.contains("message_stop"), "{text}");
        let good = "penstock_attempts_total{backend=\"only\",outcome=\"ok\"";
        assert_eq!(find_metric(&penstock, good), Some(2.0));
    }
}

#[test]
fn event_that_cannot_be_converted_is_a_fault_however_it_arrives() {
    let broken: Respond = |_, body| {
        let event = match body.contains("list") {
            true => r#"data: {"choices":[{"delta":{"content":7}}]}"#,
            false => "data: {broken",
        };
        chunked(EVENTS, &format!("{event}\n\n{HELLO_EVENTS}"))
    };
    let (_, penstock) = alone(broken, CHATS);
    for text in ["list", "garbage"] {
        let mut body = messages(true);
        body["messages"][0]["content"] = json!(text);
        let text = penstock.post(MESSAGES, &body).text();
        assert!(text.contains("event: error") && !text.contains("message_stop"), "{text}");
    }
    let faults = "penstock_attempts_total{backend=\"only\",outcome=\"fault\"";
    eventually("both are faults", SOON, || find_metric(&penstock, faults) == Some(2.0));
}

#[test]
fn errors_within_a_stream_keep_their_text_in_every_dialect() {
    const START: &str =
        "data: {\"choices\":[{\"delta\":{\"content\":\"hello\"},\"finish_reason\":null}]}\n\n";
    let failed: [Respond; 4] = [
        |_, _| {
            let error = r#"{"object":"error","message":"it broke","type":"InternalServerError"}"#;
            chunked(EVENTS, &format!("{START}data: {error}\n\ndata: [DONE]\n\n"))
        },
        |_, _| {
            let error = r#"{"message":"it broke"}"#;
            chunked(EVENTS, &format!("{START}event: error\ndata: {error}\n\ndata: [DONE]\n\n"))
        },
        |_, _| {
            let error = r#"{"type":"error","message":"it broke"}"#;
            chunked(EVENTS, &format!("{START}data: {error}\n\ndata: [DONE]\n\n"))
        },
        |_, _| {
            let error = r#"{"choices":[{"delta":{"content":""},"finish_reason":"error","error":{"message":"it broke"}}]}"#;
            chunked(EVENTS, &format!("{START}data: {error}\n\ndata: [DONE]\n\n"))
        },
    ];
    for respond in failed {
        let (_, penstock) = alone(respond, CHATS);
        let anthropic = penstock.post(MESSAGES, &messages(true)).text();
        assert!(anthropic.contains("event: error"), "{anthropic}");
        assert!(!anthropic.contains("message_stop"), "{anthropic}");
        let ollama = penstock.post("/api/chat", &streaming_chat("m", "hi")).text();
        assert!(ollama.contains("{\"error\":\"it broke\"}"), "{ollama}");
        for text in [anthropic, ollama] {
            assert!(text.contains("hello") && text.contains("it broke"), "{text}");
        }
    }
}

#[test]
fn whole_response_to_a_converted_stream_becomes_one() {
    let (_, penstock) = alone(|_, _| whole(200, JSON, HELLO), CHATS);
    let response = penstock.post(MESSAGES, &messages(true));
    let text = response.text();
    assert_eq!((response.status, response.header("content-type")), (200, Some(EVENTS)));
    assert!(text.contains("\"hello\"") && text.contains("event: message_stop"), "{text}");
    let mut body = chat("m", "hi");
    body["stream"] = json!(true);
    let response = penstock.post("/api/chat", &body);
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    assert!(response.text().contains("\"done\":true"), "{}", response.text());
}

#[test]
fn refusals_that_no_client_caused_go_elsewhere() {
    const NO_CREDIT: &str = r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#;
    const LOW: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."}}"#;
    const BAD_KEY: &str = r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]"#;
    let refusals: [(Respond, &str, usize); 8] = [
        (|_, _| whole(400, JSON, LOW), "api_key: sk-own", 1),
        (|_, _| whole(400, JSON, BAD_KEY), "api_key: sk-own", 1),
        (|_, _| whole(401, JSON, ERROR), "api_key: sk-own", 1),
        (|_, _| whole(402, JSON, ERROR), "api_key: sk-own", 1),
        (|_, _| whole(429, JSON, NO_CREDIT), "api_key: sk-own", 1),
        (|_, _| whole(403, JSON, ERROR), "api_key: sk-own", 7),
        (
            |_, _| whole(404, JSON, r#"{"error":{"message":"The model `m` does not exist."}}"#),
            "",
            1,
        ),
        (|_, _| whole(529, JSON, ERROR), "", 2),
    ];
    for (respond, rest, most) in refusals {
        let (bad, penstock) = beside_a_good_one(respond, rest);
        let met = served_elsewhere(&bad, &penstock, false);
        assert!((1..=most).contains(&met), "{met} of at most {most}");
    }
    let rejections: [(Respond, u16); 2] =
        [(|_, _| whole(401, JSON, ERROR), 401), (|_, _| whole(429, JSON, NO_CREDIT), 402)];
    for (respond, status) in rejections {
        let (_, penstock) = beside_a_good_one(respond, "api_key: sk-own");
        assert_eq!(penstock.chat("m").status, 200);
        let fact = penstock.backend("bad");
        assert_eq!(fact["cooldown_status"], status);
        assert!(fact["cooldown_remaining_s"].as_f64().unwrap() > 50.0);
    }
    // With the client's key, its account is the client's matter.
    let passes = "authorization: pass";
    let (bad, penstock) = beside_a_good_one(|_, _| whole(429, JSON, NO_CREDIT), passes);
    for _ in 0..3 {
        let refused = penstock.chat("m");
        assert_eq!((refused.status, refused.text().as_str()), (429, NO_CREDIT));
    }
    assert_eq!(bad.take_requests().len(), 3);
}

#[test]
fn request_larger_than_a_limit_costs_others_nothing() {
    const TOO_LARGE: &str = r#"{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 30000, Requested 45000.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#;
    let limited: Respond = |path, body| match body.contains("large prompt") {
        true => whole(429, JSON, TOO_LARGE),
        false => good(path, body),
    };
    let (bad, penstock) = beside_a_good_one(limited, "");
    let large = chat("m", "a large prompt");
    for requests in 1..3 {
        assert_eq!(penstock.post(CHAT, &large).status, 200, "the other account may have more room");
        assert_eq!(penstock.chat("m").status, 200);
        assert_eq!(bad.take_requests().len(), 2, "{requests}: not paused for the others");
    }
    let (only, penstock) = alone(limited, CHATS);
    for _ in 0..3 {
        let refused = penstock.post(CHAT, &large);
        assert_eq!((refused.status, refused.text().as_str()), (429, TOO_LARGE));
        assert_eq!(refused.header("x-should-retry"), Some("false"));
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(only.take_requests().len(), 6);
    let client = "penstock_attempts_total{backend=\"only\",outcome=\"client\"";
    assert_eq!(find_metric(&penstock, client), Some(3.0));
}

#[test]
fn busy_errors_start_a_cooldown_whatever_their_status() {
    let errors: [Respond; 3] = [
        |_, _| whole(200, JSON, r#"{"error":{"message":"slow down","code":429}}"#),
        |_, _| {
            whole(
                500,
                JSON,
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            )
        },
        |_, _| whole(200, JSON, r#"{"error":"server busy, please try again"}"#),
    ];
    for respond in errors {
        let (_, penstock) = beside_a_good_one(respond, "");
        assert_eq!(penstock.chat("m").status, 200);
        let cooldown = penstock.backend("bad")["cooldown_status"].as_u64();
        assert!(matches!(cooldown, Some(429 | 500 | 503)), "{cooldown:?}");
    }
    // A prompt that has the words does not make a backend look busy.
    let (_, penstock) =
        alone(|_, _| whole(500, JSON, r#"{"error":"bad token: overloaded"}"#), CHATS);
    assert_eq!(penstock.post(CHAT, &chat("m", "I am OVERLOADED")).status, 500);
    assert_eq!(penstock.backend("only")["cooldown_status"], Value::Null);
}

#[test]
fn converted_failures_have_the_status_they_mean() {
    const TOO_LONG: &str = r#"{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
    let cases: [(Respond, u16, &str); 6] = [
        (|_, _| whole(200, JSON, TOO_LONG), 400, "too long"),
        (|_, _| chunked(EVENTS, &format!("data: {TOO_LONG}\n\n")), 400, "too long"),
        (|_, _| whole(200, JSON, ERROR), 502, "it broke"),
        (|_, _| chunked(JSON, r#"{"error":{"message":"slow down","code":429}}"#), 429, "slow down"),
        (|_, _| chunked(EVENTS, &format!("data: {ERROR}\n\n")), 502, "it broke"),
        (|_, _| whole(200, EVENTS, ""), 502, "empty"),
    ];
    for (respond, status, text) in cases {
        for stream in [true, false] {
            let (_, penstock) = alone(respond, CHATS);
            let response = penstock.post(MESSAGES, &messages(stream));
            if stream || response.status != 200 {
                assert_eq!(response.status, status, "{}", response.text());
                assert!(response.text().contains(text), "{}", response.text());
                assert_eq!(response.json()["type"], "error");
            }
        }
    }
}

#[test]
fn failures_that_were_committed_count_all_the_same() {
    let broken: [Respond; 3] = [
        // More comments than arrive at once with the end.
        |_, _| {
            let comments = ": hello\n\n".repeat(100_000);
            chunked(EVENTS, &format!("{comments}data: [DONE]\n\n"))
        },
        |_, _| {
            let event = HELLO_EVENTS.split_inclusive("\n\n").next().unwrap();
            chunked(EVENTS, &format!("{event}data: {ERROR}\n\n"))
        },
        |_, _| chunked(EVENTS, HELLO_EVENTS.split_inclusive("\n\n").next().unwrap()),
    ];
    for respond in broken {
        let (_, penstock) = alone(respond, CHATS);
        let response = penstock.post(CHAT, &streaming_chat("m", "hi"));
        assert!(response.text().contains("hello"), "{}", response.text());
        let faults = "penstock_attempts_total{backend=\"only\",outcome=\"fault\"";
        eventually("it counts as a fault", SOON, || find_metric(&penstock, faults) == Some(1.0));
        let good = "penstock_attempts_total{backend=\"only\",outcome=\"ok\"";
        assert_eq!(find_metric(&penstock, good).unwrap_or(0.0), 0.0);
    }
}

#[test]
fn complete_stream_is_ok_after_early_disconnect() {
    // The last chunk never comes.
    let (_, penstock) = alone(
        |_, _| {
            let whole = chunked(EVENTS, HELLO_EVENTS);
            whole[..whole.len() - 5].to_vec()
        },
        CHATS,
    );
    let mut client = begin(penstock.data, CHAT, &streaming_chat("m", "hi"));
    read_until(&mut client, "[DONE]");
    drop(client);
    let of = |outcome: &str| {
        let start = format!("penstock_attempts_total{{backend=\"only\",outcome=\"{outcome}\"");
        find_metric(&penstock, &start).unwrap_or(0.0)
    };
    eventually("the attempt ends", SOON, || of("ok") + of("cancel") + of("fault") > 0.0);
    assert_eq!((of("ok"), of("cancel"), of("fault")), (1.0, 0.0, 0.0));
}

#[test]
fn client_errors_do_not_count_against_the_backend() {
    let provoked: [(Respond, u16); 5] = [
        (
            |_, _| {
                whole(403, JSON, r#"{"error":{"message":"Your input was flagged by moderation"}}"#)
            },
            403,
        ),
        (|_, _| whole(404, JSON, r#"{"error":{"message":"No such File object: file-1"}}"#), 404),
        (
            |_, _| {
                whole(
                    404,
                    JSON,
                    r#"{"error":{"message":"The model `file-1` does not exist.","code":"model_not_found"}}"#,
                )
            },
            404,
        ),
        (|_, _| whole(400, JSON, r#"{"error":{"message":"x","type":"rate_limit_error"}}"#), 400),
        (|_, _| whole(422, JSON, ERROR), 422),
    ];
    for (respond, status) in provoked {
        let (bad, penstock) = beside_a_good_one(respond, "api_key: sk-own");
        // Six refusals in a row would be compared with what the other backend serves.
        for number in 0..5 {
            let mut body = chat("m", &format!("prompt {number}"));
            body["file_id"] = json!("file-1");
            assert_eq!(penstock.post(CHAT, &body).status, status);
        }
        assert_eq!(bad.take_requests().len(), 5, "{status}: it is not avoided");
        assert_eq!(penstock.backend("bad").get("lacks"), None);
    }
}

fn chats_only(path: &str, body: &str) -> Vec<u8> {
    match path {
        CHAT => good(path, body),
        _ => whole(404, JSON, r#"{"detail":"Not Found"}"#),
    }
}

/// As LM Studio.
fn chats_only_with_200(path: &str, body: &str) -> Vec<u8> {
    match path {
        CHAT => good(path, body),
        _ => {
            let error = format!("Unexpected endpoint or method. (POST {path})");
            whole(200, JSON, &json!({ "error": error }).to_string())
        }
    }
}

#[test]
fn operation_that_a_backend_lacks_is_converted() {
    let engines = ["openai", "auto", "vllm", "other", "lmstudio"];
    let kinds: [Respond; 2] = [chats_only, chats_only_with_200];
    for (engine, respond) in engines.iter().flat_map(|one| kinds.map(|kind| (one, kind))) {
        let (only, penstock) = alone(respond, &format!("engine: {engine}, models: [m]"));
        let message = |response: Response| {
            assert_eq!(response.status, 200, "{engine}: {}", response.text());
            assert!(response.text().contains("hello"), "{engine}: {}", response.text());
        };
        message(penstock.post(MESSAGES, &messages(false)));
        assert_eq!(only.take_requests(), [MESSAGES, CHAT], "{engine}");
        message(penstock.post(MESSAGES, &messages(true)));
        assert_eq!(only.take_requests(), [CHAT], "{engine}: it is remembered");
        message(penstock.post("/v1/responses", &json!({"model": "m", "input": "hi"})));
        assert_eq!(only.take_requests(), ["/v1/responses", CHAT], "{engine}");
        assert_eq!(penstock.backend("only")["lacks"], json!(["responses", "messages"]));
        let response = penstock.post("/v1/embeddings", &json!({"model": "m", "input": "hi"}));
        assert_eq!(response.status, 404, "{engine}: {}", response.text());
    }
}

#[test]
fn operation_that_a_backend_lacks_goes_to_one_that_has_it() {
    let lacks = RawEngine::start("lacks", |path, body| match path {
        "/v1/rerank" => whole(501, JSON, r#"{"error":"not implemented"}"#),
        _ => good(path, body),
    });
    let has = RawEngine::start("has", |_, _| whole(200, JSON, r#"{"results":[{"index":0}]}"#));
    let items = lacks.item("engine: vllm, models: [m], priority: 1")
        + &has.item("engine: vllm, models: [m], priority: 9");
    let penstock =
        Penstock::start(&format!("routing: {{ strategy: priority_only }}\nbackends:\n{items}"));
    let body = json!({"model": "m", "query": "q", "documents": ["a"]});
    for requests in [1, 0, 0] {
        let response = penstock.post("/v1/rerank", &body);
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(lacks.take_requests().len(), requests);
    }
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(lacks.take_requests(), [CHAT], "it serves its chats as before");
}

#[test]
fn operations_can_be_declared_for_all_models_of_a_backend() {
    let (only, penstock) = alone(chats_only, "engine: openai, operations: [chat], models: [m, n]");
    for model in ["m", "n"] {
        let body = json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        assert_eq!(penstock.post(MESSAGES, &body).status, 200);
        assert_eq!(only.take_requests(), [CHAT]);
    }
}

#[test]
fn every_framing_is_converted() {
    let framings: [Respond; 3] = [
        |_, _| whole(200, EVENTS, HELLO_EVENTS),
        |_, _| chunked(EVENTS, HELLO_EVENTS),
        |_, _| until_close(EVENTS, HELLO_EVENTS),
    ];
    for respond in framings {
        let (_, penstock) = alone(respond, CHATS);
        let response = penstock.post(MESSAGES, &messages(true));
        let text = response.text();
        assert!(text.contains("hello") && text.contains("message_stop"), "{text}");
        assert!(!text.contains("event: error"), "{text}");
    }
}

fn over_http2() -> (Http2Engine, Penstock) {
    let engine = Http2Engine::start(None);
    let config = format!(
        "timeouts: {{ first_token: 4s, response: 4s }}\nbackends:\n  - {{ name: only, \
         url: \"http://{}\", http2: true, {CHATS} }}\n",
        engine.address
    );
    let penstock = Penstock::start(&config);
    (engine, penstock)
}

#[test]
fn every_framing_of_http2_is_relayed_and_converted() {
    let (engine, penstock) = over_http2();
    for end in [http2_engine::End::Data, http2_engine::End::EmptyData, http2_engine::End::Trailers]
    {
        for (content_type, body, is_stream) in [(EVENTS, HELLO_EVENTS, true), (JSON, HELLO, false)]
        {
            for (path, request, last) in
                [(CHAT, chat("m", "hi"), "[DONE]"), (MESSAGES, messages(is_stream), "message_stop")]
            {
                let mut request = request;
                request["stream"] = json!(is_stream);
                engine.script([Reply::Respond { status: 200, content_type, body, end }]);
                let response = penstock.post(path, &request);
                let text = response.text();
                assert!(response.status == 200 && response.is_whole, "{end:?} {path}: {text}");
                assert!(text.contains("hello") && !text.contains("error"), "{path}: {text}");
                assert_eq!(text.contains(last), is_stream, "{end:?} {path}: {text}");
            }
        }
    }
    let faults = "penstock_attempts_total{backend=\"only\",outcome=\"fault\"";
    assert_eq!(find_metric(&penstock, faults), None);
}

#[test]
fn http2_responses_without_a_body_are_failures() {
    for (path, body) in [(CHAT, streaming_chat("m", "hi")), (MESSAGES, messages(true))] {
        for (status, content_type, end) in [
            (204, EVENTS, http2_engine::End::Head),
            (200, EVENTS, http2_engine::End::Head),
            (200, EVENTS, http2_engine::End::EmptyData),
            (200, EVENTS, http2_engine::End::Trailers),
            (200, JSON, http2_engine::End::Head),
        ] {
            let (engine, penstock) = over_http2();
            engine.script([Reply::Respond { status, content_type, body: "", end }; 3]);
            let response = penstock.post(path, &body);
            let text = response.text();
            assert!(response.status >= 500, "{path} {status} {end:?}: {} {text}", response.status);
            assert!(text.contains("error"), "{text}");
            let faults = "penstock_attempts_total{backend=\"only\",outcome=\"fault\"";
            assert!(find_metric(&penstock, faults).unwrap() >= 1.0);
        }
    }
}

#[test]
fn errors_with_endless_bodies_are_relayed() {
    let endless: [Respond; 3] = [
        |_, _| {
            b"HTTP/1.1 500 X\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
                .to_vec()
        },
        |_, _| b"HTTP/1.1 502 X\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
        |_, _| b"HTTP/1.1 503 X\r\ncontent-length: 99\r\n\r\n{\"error\":".to_vec(),
    ];
    thread::scope(|scope| {
        for (respond, status) in endless.into_iter().zip([500, 502, 503]) {
            for (path, body) in [(CHAT, chat("m", "hi")), (MESSAGES, messages(true))] {
                scope.spawn(move || {
                    let (_only, penstock) = alone(respond, CHATS);
                    let mut client = begin(penstock.data, path, &body);
                    // Its end is visible: an error of the client's dialect, or a body that breaks
                    // off.
                    let response = client.read_response();
                    let is_whole = response.as_ref().is_ok_and(|response| response.is_whole);
                    let is_right = response.is_ok_and(|response| response.status == status);
                    assert!(is_right || path == CHAT, "{path}");
                    // They have two seconds, and two more for what was promised. The response
                    // timeout is ten minutes, and the client waits for 20 s.
                    assert!(
                        is_whole || client.is_closed(),
                        "{path}: it neither ends nor breaks off"
                    );
                });
            }
        }
    });
    let (_bad, penstock) = beside_a_good_one(endless[2], "");
    assert_eq!(penstock.post(CHAT, &chat("m", "hi")).status, 200, "another backend has room");
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=XX");

fn audio_form(number: u32) -> Vec<u8> {
    let model = "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n";
    let file = "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
    format!("{model}--XX\r\n{file}RIFF{number}\r\n--XX--\r\n").into_bytes()
}

#[test]
fn sounds_and_pictures_are_judged_like_chats() {
    let works: Respond = |path, _| match path.contains("speech") {
        true => whole(200, "audio/mpeg", "hello"),
        false => whole(200, "text/plain", "hello"),
    };
    let bad: [Respond; 4] = [
        |_, _| whole(200, JSON, ERROR),
        |_, _| whole(200, "text/html", "<!DOCTYPE html>"),
        |_, _| whole(200, JSON, ""),
        |_, _| b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
    ];
    for respond in bad {
        let (bad, works) = (RawEngine::start("bad", respond), RawEngine::start("good", works));
        let models = "engine: vllm, models: [{ id: m, operations: [transcriptions, speech] }]";
        let items = bad.item(&format!("{models}, priority: 1"))
            + &works.item(&format!("{models}, priority: 9"));
        let penstock =
            Penstock::start(&format!("routing: {{ strategy: priority_only }}\nbackends:\n{items}"));
        for number in 0..6 {
            let path = "/v1/audio/transcriptions";
            let text = request(penstock.data, "POST", path, &[FORM], &audio_form(number));
            let speech = json!({"model": "m", "voice": "x", "input": format!("say {number}")});
            let speech = penstock.post("/v1/audio/speech", &speech);
            for response in [text, speech] {
                assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            }
        }
        let met = bad.take_requests().len();
        assert!((1..12).contains(&met), "it is avoided after a few: {met} of 12");
    }
}
