//! Requests wait for a backend with room: their order, the ends of a wait, and nothing that stays
//! afterwards.

use std::sync::mpsc;
use std::thread;

use penstock_mock::{Fault, Gate, MockEngine};
use serde_json::{Value, json};

use crate::support::client::{Client, Response, chat, request, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Leave, SOON, Setup, yaml};
use crate::support::{block_on, eventually};

pub const QUEUE: &str = "queue: { size: 100, timeout: 20s }";
pub const JSON: (&str, &str) = ("content-type", "application/json");

/// One engine that runs one request at a time, and its first request in flight until the gate
/// opens.
pub fn busy(sections: &str) -> (Fleet, Gate, Client) {
    let setup = Setup { sections, backend: "max_in_flight: 1", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let (gate, first) = occupy(&fleet, fleet.a(), "m");
    (fleet, gate, first)
}

/// Sends a request that an engine holds until the gate opens.
pub fn occupy(fleet: &Fleet, engine: &MockEngine, model: &str) -> (Gate, Client) {
    let gate = Gate::new();
    engine.script([Fault::Gate(gate.clone())]);
    let first = fleet.begin(&chat(model, "first"));
    block_on(gate.reached_by(1));
    (gate, first)
}

/// Sends a request, and returns once it waits.
pub fn line_up(fleet: &Fleet, text: &str, headers: &[(&str, &str)]) -> Client {
    let page = fleet.penstock.admin("/metrics").text();
    let before = waiting(&page);
    let mut client = Client::connect(fleet.penstock.data);
    let headers = [headers, &[JSON]].concat();
    client.send("POST", CHAT, &headers, chat("m", text).to_string().as_bytes());
    fleet.wait_metric("penstock_queue_requests{model=\"m\"", before + 1.0);
    client
}

fn waiting(page: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with("penstock_queue_requests{model=\"m\""));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Returns the messages of the requests that an engine received, after the first.
pub fn served(engine: &MockEngine) -> Vec<String> {
    let received = engine.received();
    let text = |body: &[u8]| {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["messages"][0]["content"].as_str().unwrap().to_owned()
    };
    received.iter().skip(1).map(|request| text(request.body.as_ref().unwrap())).collect()
}

pub fn ended(fleet: &Fleet, reason: &str) -> f64 {
    fleet.metric(&format!("penstock_queue_ended_total{{model=\"m\",reason=\"{reason}\"}}"))
}

pub fn ok(client: &mut Client) {
    let response = client.read_response().unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
}

pub fn nothing_is_left(fleet: &Fleet) {
    fleet.wait_idle();
    fleet.wait_metric("penstock_queue_requests", 0.0);
}

#[test]
fn waiting_requests_are_all_served_within_the_limit() {
    let setup =
        Setup { sections: "queue: { size: 300 }", backend: "max_in_flight: 2", ..Setup::default() };
    let fleet = Fleet::start(2, setup);
    let (sender, responses) = mpsc::channel::<Response>();
    for n in 0..200 {
        let (address, sender) = (fleet.penstock.data, sender.clone());
        thread::spawn(move || {
            let body = if n % 2 == 0 { chat("m", "x") } else { streaming_chat("m", "x") };
            let mut client = Client::connect(address);
            client.send("POST", CHAT, &[JSON], body.to_string().as_bytes());
            drop(sender.send(client.read_response().unwrap()));
        });
    }
    for _ in 0..200 {
        let response = responses.recv_timeout(SOON).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        let open = fleet.engines.iter().map(|engine| engine.counters().open_requests).max();
        assert!(open <= Some(2), "{open:?} at a time");
    }
    assert_eq!(fleet.requests(), 200);
    nothing_is_left(&fleet);
    assert!(ended(&fleet, "served") > 0.0);
    let waits = fleet.metric("penstock_queue_wait_seconds_count{model=\"m\"}");
    assert!((waits - ended(&fleet, "served")).abs() < 0.1);
}

#[test]
fn full_queue_and_long_waits_end_in_every_dialect() {
    let (fleet, gate, mut first) = busy("queue: { size: 1, timeout: 3s }");
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "m", "max_tokens": 8, "messages": messages}).to_string();
    let data = fleet.penstock.data;
    for (path, code) in
        [(CHAT, "/error/code"), ("/v1/messages", "/error/type"), ("/api/chat", "/error")]
    {
        let mut client = Client::connect(data);
        client.send("POST", path, &[JSON], body.as_bytes());
        fleet.wait_metric("penstock_queue_requests{model=\"m\"", 1.0);
        let full = request(data, "POST", path, &[JSON], body.as_bytes());
        assert_eq!(full.status, 503, "{}", full.text());
        let late = client.read_response().unwrap();
        assert_eq!(late.status, 504, "{}", late.text());
        for response in [&full, &late] {
            let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=120).contains(&wait));
            assert!(
                response.json().pointer(code).is_some_and(Value::is_string),
                "{}",
                response.text()
            );
        }
        if path == CHAT {
            assert_eq!(
                (full.error_code().as_str(), late.error_code().as_str()),
                ("queue_full", "queue_timeout")
            );
            assert!(late.text().contains("limit of requests in flight"), "{}", late.text());
        }
    }
    assert_eq!(fleet.requests(), 1, "none of them reached the backend");
    assert_eq!([ended(&fleet, "full"), ended(&fleet, "timed_out")], [3.0, 3.0]);
    gate.open();
    ok(&mut first);
    nothing_is_left(&fleet);
}

#[test]
fn sheddable_request_is_refused_once_its_objective_is_missed() {
    let (fleet, gate, mut first) = busy(QUEUE);
    let headers = [("x-priority", "-1"), ("x-slo-ttft-ms", "300")];
    let mut kept = line_up(&fleet, "kept", &headers[1..]);
    // It may be refused before a page shows that it waits.
    let mut batch = Client::connect(fleet.penstock.data);
    let headers = [headers.as_slice(), &[JSON]].concat();
    batch.send("POST", CHAT, &headers, chat("m", "batch").to_string().as_bytes());
    let response = batch.read_response().unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (429, "objective_missed"));
    assert!(response.header("retry-after").is_some());
    gate.open();
    ok(&mut first);
    ok(&mut kept);
    assert_eq!(ended(&fleet, "late").round(), 1.0);
    nothing_is_left(&fleet);
}

#[test]
fn disconnect_removes_queued_request() {
    for leave in Leave::BOTH {
        let (fleet, gate, mut first) = busy(QUEUE);
        let mut kept = line_up(&fleet, "kept", &[]);
        let leaving: Vec<Client> =
            (0..5).map(|n| line_up(&fleet, &format!("left {n}"), &[])).collect();
        let left: Vec<_> = leaving.into_iter().map(|client| leave.now(client)).collect();
        let mut last = line_up_after(&fleet, 1.0);
        fleet.wait_metric("penstock_queue_requests{model=\"m\"", 2.0);
        assert_eq!(ended(&fleet, "client_left").round(), 5.0, "{leave:?}");
        gate.open();
        [&mut first, &mut kept, &mut last].into_iter().for_each(ok);
        assert_eq!(served(fleet.a()), ["kept", "last"]);
        drop(left);
        nothing_is_left(&fleet);
    }
}

/// Sends a request once `others` requests wait.
fn line_up_after(fleet: &Fleet, others: f64) -> Client {
    fleet.wait_metric("penstock_queue_requests{model=\"m\"", others);
    line_up(fleet, "last", &[])
}

#[test]
fn reload_lets_waiting_requests_through() {
    let (fleet, gate, mut first) = busy(QUEUE);
    let mut waiting = line_up(&fleet, "waiting", &[]);
    let write = |sections: &str, backend: &str| {
        let setup = Setup { sections, backend, ..Setup::default() };
        fleet.penstock.rewrite(&yaml(&fleet.engines, &["m"], setup));
        assert_eq!(fleet.penstock.reload().status, 200);
    };
    write(QUEUE, "max_in_flight: 2");
    ok(&mut waiting);
    write(QUEUE, "max_in_flight: 1");
    let mut refused: Vec<Client> = (0..3).map(|n| line_up(&fleet, &format!("{n}"), &[])).collect();
    write("", "max_in_flight: 1");
    for client in &mut refused {
        let response = client.read_response().unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (503, "all_backends_busy"));
    }
    assert_eq!(ended(&fleet, "refused").round(), 3.0);
    gate.open();
    ok(&mut first);
    nothing_is_left(&fleet);
}

#[test]
fn resumed_backend_serves_queued_requests() {
    let setup = Setup { sections: QUEUE, backend: "max_in_flight: 1", ..Setup::default() };
    let fleet = Fleet::start(2, setup);
    let admin = |path: &str| request(fleet.penstock.admin, "POST", path, &[], b"").status;
    assert_eq!(admin("/backends/b/drain"), 200);
    let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
    let mut waiting = line_up(&fleet, "waiting", &[]);
    assert_eq!(admin("/backends/b/resume"), 200);
    ok(&mut waiting);
    assert_eq!(fleet.b().counters().requests, 1);
    gate.open();
    ok(&mut first);
    nothing_is_left(&fleet);
}

#[test]
fn end_of_cooldown_dispatches_queued_requests() {
    let routing = "cooldown: { default: 2s, min: 1s, max: 3s }, max_retries: 0";
    let fleet = Fleet::start(1, Setup { sections: QUEUE, routing, ..Setup::default() });
    let busy = Fault::Status {
        status: 503,
        retry_after: None,
        body: "{}".to_owned(),
        headers: Vec::new(),
    };
    fleet.a().script([busy]);
    let mut refused = fleet.begin(&chat("m", "refused"));
    fleet.wait_metric("penstock_queue_requests{model=\"m\"", 1.0);
    let mut waiting = line_up(&fleet, "waiting", &[]);
    assert_eq!(fleet.a().counters().requests, 1, "it gets none before its cooldown ends");
    [&mut refused, &mut waiting].into_iter().for_each(ok);
    let mut served = served(fleet.a());
    served.sort_unstable();
    assert_eq!(served, ["refused", "waiting"]);
    nothing_is_left(&fleet);
}

#[test]
fn waiting_requests_survive_a_shutdown() {
    let (mut fleet, gate, mut first) = busy(QUEUE);
    let mut waiting: Vec<Client> = (0..3).map(|n| line_up(&fleet, &format!("{n}"), &[])).collect();
    fleet.penstock.signal("TERM");
    let log = || fleet.penstock.log().contains("shutting down: draining");
    eventually("the drain starts", SOON, log);
    gate.open();
    ok(&mut first);
    waiting.iter_mut().for_each(ok);
    assert_eq!(fleet.penstock.wait_end(SOON).code(), Some(0));
}

#[test]
fn deployment_waits_for_a_slot() {
    let sections = QUEUE;
    let backend = "engine: other, num_parallel: 1";
    let fleet =
        Fleet::start(1, Setup { strategy: "deployment", sections, backend, ..Setup::default() });
    let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
    let mut waiting = line_up(&fleet, "waiting", &[]);
    assert_eq!(fleet.a().counters().requests, 1);
    gate.open();
    ok(&mut first);
    ok(&mut waiting);
    nothing_is_left(&fleet);
}

#[test]
fn other_models_are_not_held_up() {
    let setup = Setup { sections: QUEUE, backend: "max_in_flight: 1", ..Setup::default() };
    let fleet = Fleet::of(&["m", "m2"], setup);
    let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
    let mut waiting = line_up(&fleet, "waiting", &[]);
    assert_eq!(fleet.penstock.chat("m2").status, 200);
    gate.open();
    ok(&mut first);
    ok(&mut waiting);
    nothing_is_left(&fleet);
}

#[test]
fn calls_of_an_ensemble_wait() {
    let (fleet, gate, mut first) = busy(&format!("{QUEUE}\nensembles: {{ enabled: true }}"));
    let mut ensemble = fleet.begin(&chat("moe-m", "together"));
    fleet.wait_metric("penstock_queue_requests{model=\"m\"", 3.0);
    assert_eq!(fleet.requests(), 1);
    gate.open();
    ok(&mut first);
    ok(&mut ensemble);
    assert_eq!(fleet.requests(), 1 + 7, "three drafts, three critiques, one response");
    nothing_is_left(&fleet);
    // A client that leaves takes its calls along.
    let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
    let ensemble = fleet.begin(&chat("moe-m", "alone"));
    fleet.wait_metric("penstock_queue_requests{model=\"m\"", 3.0);
    drop(ensemble);
    fleet.wait_metric("penstock_queue_requests{model=\"m\"", 0.0);
    gate.open();
    ok(&mut first);
    nothing_is_left(&fleet);
}

#[test]
fn without_a_queue_none_waits() {
    let (fleet, gate, mut first) = busy("");
    let response = fleet.chat();
    assert_eq!((response.status, response.error_code().as_str()), (503, "all_backends_busy"));
    gate.open();
    ok(&mut first);
    assert!(!fleet.penstock.admin("/metrics").text().contains("penstock_queue_requests{"));
}

#[test]
fn queued_requests_get_503_when_no_backend_is_healthy() {
    let setup = Setup { sections: QUEUE, backend: "max_in_flight: 1", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let (gate, mut first) = occupy(&fleet, fleet.a(), "m");
    let mut waiting: Vec<Client> = (0..5).map(|n| line_up(&fleet, &format!("{n}"), &[])).collect();
    let admin = |path: &str| request(fleet.penstock.admin, "POST", path, &[], b"").status;
    assert_eq!(admin("/backends/a/drain"), 200);
    for client in &mut waiting {
        let response = client.read_response().unwrap();
        let error = (response.status, response.error_code());
        assert_eq!(error, (503, "no_healthy_backend".to_owned()), "{}", response.text());
        assert!(response.header("retry-after").is_some());
    }
    let response = fleet.chat();
    let error = (response.status, response.error_code());
    assert_eq!(error, (503, "no_healthy_backend".to_owned()), "{}", response.text());
    assert_eq!(ended(&fleet, "refused"), 5.0, "the last one does not wait");
    gate.open();
    ok(&mut first);
    nothing_is_left(&fleet);
}
