//! An operator stops penstock: it takes no new requests, finishes what is in flight, and ends within
//! the time it was given.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use penstock::mock::{EngineModel, EngineSpec, Fault, Gate, MockEngine, Pace};

use crate::support::client::{Client, streaming_chat};
use crate::support::engines::{backend, engine, start};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

crate::trials![
    an_idle_one_ends_at_once,
    streams_in_flight_are_finished_and_new_requests_refused,
    the_drain_timeout_ends_what_does_not_end,
    a_second_signal_ends_it_at_once,
    readiness_fails_before_the_listeners_close,
    the_admin_port_answers_until_the_end,
];

const CHAT: &str = "/v1/chat/completions";

fn serve(engine: &MockEngine, drain_timeout: &str) -> Penstock {
    let yaml = format!("backends:\n{}", backend(engine, "models: [m]"));
    Penstock::start_with(&yaml, &[("PENSTOCK_SERVER_DRAIN_TIMEOUT", drain_timeout)])
}

fn refuses(penstock: &Penstock) -> bool {
    TcpStream::connect_timeout(&penstock.data, Duration::from_secs(1)).is_err()
}

fn an_idle_one_ends_at_once() {
    let engine = engine("one", &["m"]);
    for signal in ["TERM", "INT"] {
        let mut penstock = serve(&engine, "30s");
        assert_eq!(penstock.chat("m").status, 200);
        let mut idle = Client::connect(penstock.data);
        idle.send("GET", "/health", &[], b"");
        assert_eq!(idle.read_response().unwrap().status, 200);
        let asked = Instant::now();
        penstock.signal(signal);
        let status = penstock.wait_end(Duration::from_secs(5));
        assert_eq!(status.code(), Some(0), "{signal}");
        assert!(asked.elapsed() < Duration::from_secs(2), "{signal}: {:?}", asked.elapsed());
    }
}

fn streams_in_flight_are_finished_and_new_requests_refused() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(60), tokens: 25 };
    let spec = EngineSpec::new("one", [EngineModel::new("m")]);
    let engine = start(EngineSpec { pace, ..spec });
    let mut penstock = serve(&engine, "30s");
    let body = streaming_chat("m", "hello").to_string();
    let mut streams: Vec<Client> = (0..3).map(|_| Client::connect(penstock.data)).collect();
    for stream in &mut streams {
        stream.send("POST", CHAT, &[], body.as_bytes());
    }
    block_on(engine.wait_for(|counters| counters.events >= 6)).unwrap();
    penstock.signal("TERM");
    eventually("new connections are refused", Duration::from_secs(5), || refuses(&penstock));
    assert_eq!(engine.open_requests(), 3, "while streams still run");
    for stream in &mut streams {
        let response = stream.read_response().unwrap();
        assert!(
            response.is_whole && response.text().ends_with("data: [DONE]\n\n"),
            "{}",
            response.text()
        );
    }
    let status = penstock.wait_end(Duration::from_secs(5));
    assert_eq!(status.code(), Some(0));
    assert_eq!(engine.counters().answered, 3);
    assert_eq!(engine.counters().cancelled, 0);
}

/// A penstock with a request in flight that does not end.
fn stuck(drain_timeout: &str) -> (MockEngine, Penstock, Client, Gate) {
    let engine = engine("one", &["m"]);
    let gate = Gate::new();
    engine.script([Fault::Gate(gate.clone())]);
    let penstock = serve(&engine, drain_timeout);
    let mut client = Client::connect(penstock.data);
    client.send("POST", CHAT, &[], streaming_chat("m", "x").to_string().as_bytes());
    block_on(gate.reached_by(1));
    (engine, penstock, client, gate)
}

fn the_drain_timeout_ends_what_does_not_end() {
    let (_engine, mut penstock, mut client, _gate) = stuck("1s");
    let asked = Instant::now();
    penstock.signal("TERM");
    let status = penstock.wait_end(Duration::from_secs(10));
    let took = asked.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took >= Duration::from_millis(900), "it was given a second: {took:?}");
    assert!(client.read_response().is_err(), "what did not end was cut, not answered");
}

fn a_second_signal_ends_it_at_once() {
    for (first, second) in [("INT", "INT"), ("TERM", "TERM"), ("TERM", "INT")] {
        let (_engine, mut penstock, _client, _gate) = stuck("60s");
        penstock.signal(first);
        let is_stopping = || penstock.log().contains("stopping: finishing");
        eventually("it is stopping", Duration::from_secs(5), is_stopping);
        penstock.signal(second);
        penstock.wait_end(Duration::from_secs(5));
    }
}

fn readiness_fails_before_the_listeners_close() {
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    let delay = [("PENSTOCK_SERVER_SHUTDOWN_DELAY", "2s")];
    let mut penstock = Penstock::start_with(&yaml, &delay);
    let mut kept = Client::connect(penstock.data);
    let mut ask = || {
        kept.send("POST", CHAT, &[], streaming_chat("m", "x").to_string().as_bytes());
        kept.read_response().unwrap()
    };
    assert_ne!(ask().header("connection"), Some("close"));
    penstock.signal("TERM");
    let asked = Instant::now();
    let is_unready = || penstock.admin("/health/ready").status == 503;
    eventually("readiness fails", Duration::from_secs(1), is_unready);
    assert_eq!(penstock.admin("/health/ready").json()["status"], "stopping");
    let response = ask();
    assert_eq!(response.status, 200, "requests are still taken");
    assert_eq!(response.header("connection"), Some("close"), "the next one goes elsewhere");
    assert_eq!(penstock.chat("m").status, 200, "new connections, too");
    assert!(asked.elapsed() < Duration::from_secs(2), "all this within the delay");
    let status = penstock.wait_end(Duration::from_secs(10));
    assert_eq!(status.code(), Some(0));
    assert!(asked.elapsed() >= Duration::from_millis(1900), "{:?}", asked.elapsed());

    let mut penstock = Penstock::start_with(&yaml, &[("PENSTOCK_SERVER_SHUTDOWN_DELAY", "60s")]);
    penstock.signal("TERM");
    let is_waiting = || penstock.log().contains("requests are still taken");
    eventually("it waits", Duration::from_secs(5), is_waiting);
    penstock.signal("TERM");
    penstock.wait_end(Duration::from_secs(5));
}

fn the_admin_port_answers_until_the_end() {
    let (_engine, mut penstock, _client, gate) = stuck("60s");
    penstock.signal("TERM");
    eventually("new connections are refused", Duration::from_secs(5), || refuses(&penstock));
    assert_eq!(penstock.admin("/health/live").status, 200);
    assert_eq!(penstock.admin("/health/ready").status, 503);
    assert_eq!(penstock.backend("one")["in_flight"], 1, "a drain can be watched");
    assert!(penstock.admin("/metrics").text().contains("penstock_in_flight 1"));
    gate.open();
    assert_eq!(penstock.wait_end(Duration::from_secs(10)).code(), Some(0));
}
