//! `queue.keep_alive`: the client of a stream that waits for long gets a head and bytes that it
//! ignores, then either its stream or an error that it can see.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_mock::{Fault, Gate, Pace};
use serde_json::{Value, json};

use super::queue::{JSON, busy, ended, line_up, nothing_is_left, occupy, ok};
use crate::support::client::{Client, chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Leave, SOON, Setup, begin, read_until};
use crate::support::http2::{End, Http2, head, send_all};
use crate::support::penstock::scratch;
use crate::support::{block_on, eventually, free_address};

const KEEP_ALIVE: &str = "queue: { size: 100, timeout: 20s, keep_alive: 100ms }";
const KEPT_ALIVE: &str = "penstock_queue_kept_alive_total{model=\"m\"";

/// The signs by which a client of an API sees that its stream waits, that it is whole, and that it
/// failed.
#[derive(Clone, Copy)]
struct Api {
    path: &'static str,
    content_type: &'static str,
    waiting: &'static str,
    end: &'static str,
    error: &'static str,
    /// The JSON pointer to the error's text.
    message: &'static str,
}

const EVENTS: &str = "text/event-stream";
const CHAT_API: Api = Api {
    path: CHAT,
    content_type: EVENTS,
    waiting: ": waiting\n",
    end: "data: [DONE]",
    error: "data: {\"error\"",
    message: "/error/message",
};
const MESSAGES: Api = Api {
    path: "/v1/messages",
    waiting: "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    end: "message_stop",
    error: "event: error\ndata: {",
    ..CHAT_API
};
const RESPONSES: Api = Api {
    path: "/v1/responses",
    end: "response.completed",
    error: "event: response.failed\ndata: {",
    message: "/response/error/message",
    ..CHAT_API
};
const OLLAMA: Api = Api {
    path: "/api/chat",
    content_type: "application/x-ndjson",
    waiting: " ",
    end: "\"done\":true",
    error: "{\"error\"",
    message: "/error",
};
const APIS: [Api; 4] = [CHAT_API, MESSAGES, RESPONSES, OLLAMA];

impl Api {
    fn body(self) -> Value {
        let messages = json!([{"role": "user", "content": "hello"}]);
        let field = if self.path == RESPONSES.path { "input" } else { "messages" };
        json!({"model": "m", "stream": true, "max_tokens": 20, field: messages})
    }

    /// Sends a request, and reads until its client has got that it waits twice.
    fn begin_waiting(self, fleet: &Fleet) -> Client {
        let mut client = begin(fleet.penstock.data, self.path, &self.body());
        let (status, headers) = client.read_head().unwrap();
        let header = |name: &str| {
            let found = headers.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.as_str()).unwrap_or_default().to_owned()
        };
        assert_eq!(status, 200);
        assert_eq!(header("content-type"), self.content_type);
        assert_eq!(header("cache-control"), "no-cache");
        assert_eq!(header("x-accel-buffering"), "no");
        assert_eq!(header("x-request-id").len(), 32);
        let chunk = format!("{:X}\r\n{}\r\n", self.waiting.len(), self.waiting);
        read_until(&mut client, &chunk.repeat(2));
        client
    }

    /// Reads until the body ends.
    fn rest(client: &mut Client) -> String {
        let raw = read_until(client, "0\r\n\r\n");
        assert!(!raw.contains("HTTP/1.1"), "a second head: {raw}");
        // Without the lengths of chunks.
        let lines: Vec<&str> = raw.split("\r\n").skip(1).step_by(2).collect();
        lines.concat()
    }

    /// The error of a stream that never began.
    fn refusal(self, text: &str) -> String {
        match self.path == RESPONSES.path {
            true => {
                Self { error: "event: error\ndata: {", message: "/message", ..self }.failure(text)
            }
            false => self.failure(text),
        }
    }

    /// The error that a stream ends with.
    fn failure(self, text: &str) -> String {
        assert!(!text.contains(self.end), "it ends as if it were whole: {text}");
        let at = text.rfind(self.error).unwrap_or_else(|| panic!("no error: {text:?}"));
        let json = &text[at..][text[at..].find('{').unwrap()..];
        let error: Value = serde_json::from_str(json.trim_end()).unwrap();
        error.pointer(self.message).and_then(Value::as_str).unwrap().to_owned()
    }
}

/// A fleet with a second listener for cleartext HTTP/2.
fn with_http2(sections: &str) -> (Fleet, SocketAddr) {
    let address = free_address();
    let listener = format!("{{ address: \"{address}\", http2: true }}");
    let backend = "max_in_flight: 1";
    let setup = Setup { sections, backend, listeners: &[listener], ..Setup::default() };
    (Fleet::start(1, setup), address)
}

#[test]
fn stream_that_waits_is_kept_alive_and_served() {
    for api in APIS {
        let (fleet, gate, mut first) = busy(KEEP_ALIVE);
        let mut client = api.begin_waiting(&fleet);
        assert_eq!(fleet.requests(), 1);
        gate.open();
        let text = Api::rest(&mut client);
        assert!(text.contains(api.end), "{}: {text}", api.path);
        assert!(text.contains("water") && !text.contains(api.error), "{}: {text}", api.path);
        let last = text.rfind(api.waiting.trim_end()).filter(|_| api.content_type == EVENTS);
        assert!(last < text.find("water"), "{}: {text}", api.path);
        ok(&mut first);
        // The connection goes on.
        client.send("POST", CHAT, &[JSON], chat("m", "next").to_string().as_bytes());
        ok(&mut client);
        assert_eq!(fleet.metric(KEPT_ALIVE).round(), 1.0);
        nothing_is_left(&fleet);
    }
}

#[test]
fn converted_and_filtered_streams_are_kept_alive() {
    for (sections, backend) in [
        (KEEP_ALIVE.to_owned(), "max_in_flight: 1, engine: anthropic, api_key: x"),
        (format!("{KEEP_ALIVE}\nledger: {{ request_usage: true }}"), "max_in_flight: 1"),
    ] {
        let setup = Setup { sections: &sections, backend, ..Default::default() };
        let fleet = Fleet::start(1, setup);
        let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
        let mut client = CHAT_API.begin_waiting(&fleet);
        gate.open();
        let text = Api::rest(&mut client);
        assert!(text.contains("water") && text.contains(CHAT_API.end), "{text}");
        assert!(!text.contains("prompt_tokens"), "usage that the client did not request: {text}");
        ok(&mut first);
        nothing_is_left(&fleet);
    }
}

#[test]
fn whole_response_to_a_converted_stream_is_kept_alive() {
    let backend = "max_in_flight: 1, engine: anthropic, api_key: x";
    let fleet = Fleet::start(1, Setup { sections: KEEP_ALIVE, backend, ..Default::default() });
    let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
    let message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
        "content": [{"type": "text", "text": "all at once"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 3},
    });
    fleet.a().script([Fault::Status {
        status: 200,
        retry_after: None,
        body: message.to_string(),
        headers: Vec::new(),
    }]);
    let mut client = CHAT_API.begin_waiting(&fleet);
    gate.open();
    let text = Api::rest(&mut client);
    assert!(text.contains("all at once") && text.contains(CHAT_API.end), "{text}");
    ok(&mut first);
    nothing_is_left(&fleet);
}

#[test]
fn long_wait_ends_in_an_error_event() {
    for api in APIS {
        let sections = "queue: { size: 100, timeout: 1s, keep_alive: 100ms }";
        let (fleet, gate, mut first) = busy(sections);
        let mut client = api.begin_waiting(&fleet);
        let message = api.refusal(&Api::rest(&mut client));
        assert!(message.contains("waited for 1.0 s"), "{message}");
        assert_eq!(ended(&fleet, "timed_out").round(), 1.0);
        assert!(client.read_raw().unwrap().is_empty(), "the connection ends with it");
        gate.open();
        ok(&mut first);
        nothing_is_left(&fleet);
    }
}

#[test]
fn errors_of_the_engine_become_events() {
    let refused = |status: u16, message: &str| Fault::Status {
        status,
        retry_after: None,
        body: json!({"error": {"message": message, "code": "its_code", "type": "its_type"}})
            .to_string(),
        headers: Vec::new(),
    };
    let whole = |body: &str| Fault::Status {
        status: 200,
        retry_after: None,
        body: body.to_owned(),
        headers: Vec::new(),
    };
    for api in APIS {
        for (fault, expected) in [
            (refused(400, "the prompt is odd"), "the prompt is odd"),
            (refused(500, "it broke"), "it broke"),
            (refused(429, "too many"), "too many"),
            (Fault::CloseAfterRequest, "without a response"),
            (whole(r#"{"id":"x"}"#), "no stream"),
            (whole("{}"), "not that of an engine"),
        ] {
            let sections = "queue: { size: 100, timeout: 2s, keep_alive: 100ms }";
            let (fleet, gate, mut first) = busy(sections);
            fleet.a().script([fault.clone(), fault.clone(), fault.clone(), fault.clone()]);
            let mut client = api.begin_waiting(&fleet);
            gate.open();
            let text = Api::rest(&mut client);
            let message = api.refusal(&text);
            let is_converted = api.path == OLLAMA.path && expected == "no stream";
            let expected = if is_converted { "before its last event" } else { expected };
            assert!(message.contains(expected), "{} {expected}: {text}", api.path);
            if api.path == CHAT && expected == "the prompt is odd" {
                assert!(text.contains("its_code"), "the engine's own code: {text}");
            }
            ok(&mut first);
            nothing_is_left(&fleet);
        }
    }
}

#[test]
fn stream_cut_after_keep_alive_ends_with_error() {
    for api in APIS {
        let (fleet, gate, mut first) = busy(KEEP_ALIVE);
        let how = penstock_mock::Cut::Reset;
        fleet.a().script([Fault::CutStream { after_events: 2, how }]);
        let mut client = api.begin_waiting(&fleet);
        gate.open();
        let message = api.failure(&Api::rest(&mut client));
        assert!(message.contains("closed the connection"), "{message}");
        ok(&mut first);
        nothing_is_left(&fleet);
    }
}

#[test]
fn http2_stream_is_kept_alive() {
    for (timeout, is_served) in [("20s", true), ("1s", false)] {
        let sections = format!("queue: {{ size: 100, timeout: {timeout}, keep_alive: 100ms }}");
        let (fleet, address) = with_http2(&sections);
        let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
        let connection = Http2::connect(address);
        let mut started = connection.begin_response(CHAT, &streaming_chat("m", "hello"));
        assert_eq!(started.response.status, 200);
        assert_eq!(started.response.header("content-type"), Some(EVENTS));
        while !started.response.text().contains(&CHAT_API.waiting.repeat(2)) {
            assert!(started.read_some().unwrap().is_some());
        }
        if is_served {
            gate.open();
        }
        let (response, end) = started.read();
        assert_eq!(end, End::Whole);
        match is_served {
            true => assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text()),
            false => drop(CHAT_API.failure(&response.text())),
        }
        gate.open();
        ok(&mut first);
        nothing_is_left(&fleet);
    }
}

#[test]
fn disconnect_of_kept_alive_client_removes_queued_request() {
    for leave in Leave::BOTH {
        let (fleet, gate, mut first) = busy(KEEP_ALIVE);
        let client = CHAT_API.begin_waiting(&fleet);
        let left = leave.now(client);
        fleet.wait_metric("penstock_queue_requests{model=\"m\"", 0.0);
        assert_eq!(ended(&fleet, "client_left").round(), 1.0);
        gate.open();
        ok(&mut first);
        assert_eq!(fleet.requests(), 1);
        drop(left);
        nothing_is_left(&fleet);
    }
}

#[test]
fn client_without_window_delays_no_other_client() {
    let (fleet, address) = with_http2(KEEP_ALIVE);
    let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
    // It gives its streams no window.
    let (request, connection) = block_on(async {
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let builder = &mut h2::client::Builder::new();
        let handshake = builder.initial_window_size(0).handshake::<_, bytes::Bytes>(tcp);
        let (mut requests, connection) = handshake.await.unwrap();
        let connection = tokio::spawn(connection);
        let head = head("POST", CHAT, &[JSON]);
        let (response, mut body) = requests.send_request(head, false).unwrap();
        let text = streaming_chat("m", "unread").to_string();
        send_all(&mut body, text.as_bytes(), true).await.unwrap();
        ((response.await.unwrap(), requests, body), connection)
    });
    assert_eq!(request.0.status(), 200);
    let mut other = line_up(&fleet, "other", &[]);
    gate.open();
    ok(&mut first);
    ok(&mut other);
    eventually("it is given up", SOON, || ended(&fleet, "client_left") > 0.5);
    assert_eq!(fleet.requests(), 2);
    connection.abort();
    drop(request);
    nothing_is_left(&fleet);
}

#[test]
fn whole_responses_and_short_waits_get_no_early_head() {
    let sections = "queue: { size: 100, timeout: 600ms, keep_alive: 100ms }";
    let (fleet, gate, mut first) = busy(sections);
    let mut client = fleet.begin(&chat("m", "whole"));
    assert_eq!(client.read_response().unwrap().status, 504);
    gate.open();
    ok(&mut first);
    // Off, and not due yet.
    for sections in [
        "queue: { size: 100, timeout: 600ms }",
        "queue: { size: 100, timeout: 600ms, keep_alive: 15s }",
    ] {
        let (fleet, gate, mut first) = busy(sections);
        let mut client = fleet.begin(&streaming_chat("m", "stream"));
        let response = client.read_response().unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (504, "queue_timeout"));
        gate.open();
        ok(&mut first);
        assert!(fleet.metric(KEPT_ALIVE) < 0.5);
    }
}

#[test]
fn kept_alive_streams_are_logged_as_errors() {
    let log = scratch("access.log");
    let sections = format!(
        r#"
queue: {{ size: 100, timeout: 1s, keep_alive: 100ms }}
access_log: {{ path: "{}" }}
"#,
        log.display()
    );
    let setup = Setup {
        sections: &sections,
        backend: "max_in_flight: 1",
        pace: Pace::at_once(8),
        ..Default::default()
    };
    let fleet = Fleet::start(1, setup);
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut first = fleet.begin(&chat("m", "first"));
    block_on(gate.reached_by(1));
    let mut late = CHAT_API.begin_waiting(&fleet);
    CHAT_API.failure(&Api::rest(&mut late));
    let mut served = CHAT_API.begin_waiting(&fleet);
    gate.open();
    Api::rest(&mut served);
    ok(&mut first);
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("three lines", SOON, || lines().lines().count() == 3);
    let of = |code: Value| {
        let lines = lines();
        let mut all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.find(|line| line["error"] == code && line["stream"] == true)
            .unwrap_or_else(|| panic!("no line with {code}: {lines}"))
    };
    let late = of(json!("queue_timeout"));
    assert_eq!((&late["status"], &late["outcome"]), (&json!(200), &json!("busy")), "{late}");
    assert!(late["queue_ms"].as_f64().unwrap() >= Duration::from_secs(1).as_millis() as f64);
    assert_eq!(late["ttft_ms"], Value::Null, "{late}");
    let served = of(Value::Null);
    assert_eq!((&served["status"], &served["outcome"]), (&json!(200), &json!("ok")), "{served}");
    assert!(served["ttft_ms"].as_f64() > served["queue_ms"].as_f64(), "{served}");
    let name = "penstock_requests_total{model=\"m\",backend=\"none\",operation=\"chat\"";
    let failed = format!("{name},status=\"200\",outcome=\"busy\"");
    assert_eq!(fleet.metric(&failed).round(), 1.0);
}
