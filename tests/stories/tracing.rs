//! Distributed tracing: penstock continues the client's trace or starts one, records a span for
//! every attempt, and exports the spans to a collector.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_mock::{Fault, MockEngine};
use serde_json::{Value, json};

use crate::support::client::{chat, request, streaming_chat};
use crate::support::eventually;
use crate::support::fleet::{CHAT, Fleet, Setup};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const SOON: Duration = Duration::from_secs(10);

fn given() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

fn ask(fleet: &Fleet, headers: &[(&str, &str)]) -> u16 {
    let body = chat("m", "hello").to_string();
    request(fleet.penstock.data, "POST", CHAT, headers, body.as_bytes()).status
}

/// `traceparent` and `tracestate` of every request that an engine received.
fn seen(engine: &MockEngine) -> Vec<(String, Option<String>)> {
    let all = engine.received();
    let read = |name: &str, index: usize| all[index].header(name).map(str::to_owned);
    (0..all.len())
        .map(|index| (read("traceparent", index).unwrap_or_default(), read("tracestate", index)))
        .collect()
}

fn parts(traceparent: &str) -> Vec<String> {
    let parts: Vec<String> = traceparent.split('-').map(str::to_owned).collect();
    let lengths: Vec<usize> = parts.iter().map(String::len).collect();
    assert_eq!(lengths, [2, 32, 16, 2], "{traceparent}");
    parts
}

#[test]
fn trace_context_is_forwarded_with_a_span_per_attempt() {
    let fleet = Fleet::start(2, Setup::default());
    fleet.a().script([Fault::status(503)]);
    let state = ("tracestate", "vendor=value");
    assert_eq!(ask(&fleet, &[("traceparent", &given()), state]), 200);
    let (first, second) = (&seen(fleet.a())[0], &seen(fleet.b())[0]);
    let (one, other) = (parts(&first.0), parts(&second.0));
    for attempt in [&one, &other] {
        assert_eq!((attempt[1].as_str(), attempt[3].as_str()), (TRACE, "01"));
        assert_ne!(attempt[2], CALLER, "the engine's parent is the attempt, not the client");
    }
    assert_ne!(one[2], other[2], "each attempt has its own span");
    assert_eq!(first.1.as_deref(), Some("vendor=value"));
    assert_eq!(second.1.as_deref(), Some("vendor=value"));
}

#[test]
fn requests_without_a_trace_start_one() {
    let fleet = Fleet::start(1, Setup::default());
    let mut traces = Vec::new();
    let state = ("tracestate", "vendor=value");
    let valid = given();
    for headers in [
        vec![],
        vec![("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"), state],
        vec![("traceparent", "nonsense"), state],
        vec![("traceparent", valid.as_str()), ("traceparent", valid.as_str()), state],
    ] {
        assert_eq!(ask(&fleet, &headers), 200);
        let (parent, state) = seen(fleet.a()).pop().unwrap();
        assert_eq!(state, None, "the state of a trace that is not followed: {headers:?}");
        traces.push(parts(&parent)[1].clone());
    }
    assert!(!traces.contains(&TRACE.to_owned()), "{traces:?}");
    traces.dedup();
    assert_eq!(traces.len(), 4, "each begins its own");
    let quiet = Fleet::start(1, Setup { sections: "tracing: { sample: 0 }", ..Setup::default() });
    assert_eq!(ask(&quiet, &[]), 200);
    assert!(seen(quiet.a())[0].0.ends_with("-00"), "not to be recorded");
    assert_eq!(ask(&quiet, &[("traceparent", &given())]), 200);
    assert!(seen(quiet.a())[1].0.ends_with("-01"), "clients decide about their own traces");
}

#[test]
fn tracing_off_forwards_headers_unchanged() {
    let setup = Setup { sections: "tracing: { propagate: false }", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    ask(&fleet, &[]);
    ask(&fleet, &[("traceparent", "whatever it is"), ("tracestate", "a=b")]);
    let seen = seen(fleet.a());
    assert_eq!(seen[0], (String::new(), None));
    assert_eq!(seen[1], ("whatever it is".to_owned(), Some("a=b".to_owned())));
}

/// A mock collector: accepts every POST and keeps its body.
struct Collector {
    address: SocketAddr,
    posts: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let posts = Arc::<Mutex<Vec<(String, Value)>>>::default();
        let kept = Arc::clone(&posts);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut read = Vec::new();
                let mut chunk = [0; 4096];
                let (head, body) = loop {
                    let count = stream.read(&mut chunk).unwrap();
                    read.extend_from_slice(&chunk[..count]);
                    let text = String::from_utf8_lossy(&read).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.split("content-length: ").nth(1).unwrap();
                    let length: usize = length.lines().next().unwrap().parse().unwrap();
                    if body.len() >= length {
                        break (head.to_owned(), body.to_owned());
                    }
                };
                let line = head.lines().next().unwrap().to_owned();
                kept.lock().unwrap().push((line, serde_json::from_str(&body).unwrap()));
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
            }
        });
        Self { address, posts }
    }

    fn spans(&self) -> Vec<Value> {
        let posts = self.posts.lock().unwrap();
        let of = |post: &Value| {
            let scope = &post["resourceSpans"][0]["scopeSpans"][0];
            scope["spans"].as_array().unwrap().clone()
        };
        posts.iter().flat_map(|(_, post)| of(post)).collect()
    }
}

fn attribute(span: &Value, key: &str) -> Value {
    let mut all = span["attributes"].as_array().unwrap().iter();
    let found = all.find(|one| one["key"] == key).map(|one| one["value"].clone());
    found.unwrap_or_default()
}

#[test]
fn spans_reach_the_collector() {
    let collector = Collector::start();
    let sections = format!(
        "tracing: {{ otlp_endpoint: \"http://{}/otlp\", service_name: edge }}",
        collector.address
    );
    let fleet = Fleet::start(2, Setup { sections: &sections, ..Setup::default() });
    fleet.a().script([Fault::status(503)]);
    let mut body = streaming_chat("m", "secret words");
    body["stream_options"] = json!({"include_usage": true});
    let headers = [("traceparent", given()), ("authorization", "Bearer sk-secret".to_owned())];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let body = body.to_string();
    let response = request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes());
    assert_eq!(response.status, 200);
    eventually("three spans", SOON, || collector.spans().len() >= 3);
    let spans = collector.spans();
    assert_eq!(spans.len(), 3, "two attempts and the request: {spans:#?}");
    assert!(spans.iter().all(|span| span["traceId"] == TRACE), "{spans:#?}");
    let root = spans.iter().find(|span| span["kind"] == 2).unwrap();
    assert_eq!((&root["parentSpanId"], &root["name"]), (&json!(CALLER), &json!("chat m")));
    for (key, expected) in [
        ("gen_ai.operation.name", json!({"stringValue": "chat"})),
        ("gen_ai.request.model", json!({"stringValue": "m"})),
        ("gen_ai.response.model", json!({"stringValue": "m"})),
        ("gen_ai.usage.output_tokens", json!({"intValue": "8"})),
        ("http.response.status_code", json!({"intValue": "200"})),
        ("penstock.backend", json!({"stringValue": "b"})),
        ("penstock.attempts", json!({"intValue": "2"})),
        ("error.type", Value::Null),
    ] {
        assert_eq!(attribute(root, key), expected, "{key} in {root:#}");
    }
    assert_eq!(root["events"][0]["name"], "first token");
    let nanos = |span: &Value, key: &str| -> u128 { span[key].as_str().unwrap().parse().unwrap() };
    assert!(nanos(root, "startTimeUnixNano") < nanos(root, "endTimeUnixNano"));
    let attempts: Vec<&Value> = spans.iter().filter(|span| span["kind"] == 3).collect();
    for (attempt, engine) in attempts.iter().zip([fleet.a(), fleet.b()]) {
        assert_eq!(attempt["parentSpanId"], root["spanId"]);
        let sent = parts(&seen(engine)[0].0);
        assert_eq!(attempt["spanId"], sent[2].as_str(), "the engine continues this very span");
        let port = attribute(attempt, "server.port");
        assert_eq!(port["intValue"], engine.addr().port().to_string());
    }
    assert_eq!(attribute(attempts[0], "penstock.outcome")["stringValue"], "busy");
    assert_eq!(attempts[0]["status"]["code"], 2);
    assert_eq!(attempts[1]["status"], Value::Null);
    let posts = collector.posts.lock().unwrap();
    assert!(posts[0].0.starts_with("POST /otlp/v1/traces "), "{}", posts[0].0);
    let text = format!("{posts:?}");
    assert!(text.contains("edge"), "the service's name");
    assert!(!text.contains("secret"), "no prompt and no key");
    drop(posts);
    let quiet = [("traceparent", format!("00-{TRACE}-{CALLER}-00"))];
    let quiet = quiet.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(ask(&fleet, &quiet), 200);
    assert_eq!(ask(&fleet, &[]), 200);
    eventually("the next trace's spans", SOON, || collector.spans().len() >= 5);
    assert_eq!(collector.spans().len(), 5, "one that is not to be recorded is not sent");
    fleet.wait_metric("penstock_spans_total{result=\"sent\"}", 5.0);
}

#[test]
fn spans_are_dropped_and_counted_without_a_collector() {
    let address = crate::support::free_address();
    let sections = format!("tracing: {{ otlp_endpoint: \"http://{address}\" }}");
    let fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
    for _ in 0..3 {
        assert_eq!(fleet.chat().status, 200, "requests do not wait for collectors");
    }
    fleet.wait_metric("penstock_spans_total{result=\"failed\"}", 6.0);
    assert!(fleet.penstock.log().contains("span export: delivery failed"));
}
