//! Graceful shutdown: penstock accepts no new requests, finishes the requests in flight, and exits
//! within `drain_timeout`.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use penstock_mock::{EngineModel, Fault, Gate, MockEngine, MockSpec, Pace};

use crate::support::client::{Client, streaming_chat};
use crate::support::engines::{backend, engine, start};
use crate::support::penstock::{Penstock, scratch};
use crate::support::{block_on, eventually};

const CHAT: &str = "/v1/chat/completions";

/// The time that anything may take here, a third of the timeouts that are not to be waited for.
const SOON: Duration = Duration::from_secs(20);

fn serve(engine: &MockEngine, drain_timeout: &str) -> Penstock {
    let yaml = format!("backends:\n{}", backend(engine, "models: [m]"));
    Penstock::start_with(&yaml, &[("PENSTOCK_SERVER_DRAIN_TIMEOUT", drain_timeout)])
}

fn refuses(penstock: &Penstock) -> bool {
    TcpStream::connect_timeout(&penstock.data, Duration::from_secs(1)).is_err()
}

#[test]
fn idle_process_exits_at_once() {
    let engine = engine("one", &["m"]);
    for signal in ["TERM", "INT"] {
        let mut penstock = serve(&engine, "60s");
        assert_eq!(penstock.chat("m").status, 200);
        let mut idle = Client::connect(penstock.data);
        idle.send("GET", "/health", &[], b"");
        assert_eq!(idle.read_response().unwrap().status, 200);
        penstock.signal(signal);
        let status = penstock.wait_end(SOON);
        assert_eq!(status.code(), Some(0), "{signal}");
    }
}

#[test]
fn unix_socket_is_removed_at_the_stop() {
    let engine = engine("one", &["m"]);
    let path = scratch("stop.sock");
    let listener = format!("{{ address: \"unix:{}\" }}", path.display());
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    let mut penstock = Penstock::start_listening(&[listener], "", &yaml);
    assert!(path.exists());
    penstock.signal("TERM");
    assert_eq!(penstock.wait_end(SOON).code(), Some(0));
    assert!(!path.exists(), "a socket without a listener");
}

#[test]
fn streams_finish_and_new_requests_are_refused() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(60), tokens: 25 };
    let spec = MockSpec::new("one", [EngineModel::new("m")]);
    let engine = start(MockSpec { pace, ..spec });
    let mut penstock = serve(&engine, "60s");
    let body = streaming_chat("m", "hello").to_string();
    let mut streams: Vec<Client> = (0..3).map(|_| Client::connect(penstock.data)).collect();
    for stream in &mut streams {
        stream.send("POST", CHAT, &[], body.as_bytes());
    }
    streams.iter_mut().for_each(Client::wait_for_bytes);
    penstock.signal("TERM");
    eventually("new connections are refused", SOON, || refuses(&penstock));
    assert_eq!(engine.open_requests(), 3, "while streams still run");
    // The head of each stream said that its connection goes on: the next request is not lost. It
    // is sent before the stream ends: a busy machine may be too late for the moment after it.
    for stream in &mut streams {
        stream.send("GET", "/v1/models", &[], b"");
    }
    for mut stream in streams {
        let response = stream.read_response().unwrap();
        let is_done = response.text().ends_with("data: [DONE]\n\n");
        assert!(response.is_whole && is_done, "{}", response.text());
        let next = stream.read_response().unwrap();
        assert_eq!((next.status, next.header("connection")), (200, Some("close")));
    }
    let status = penstock.wait_end(SOON);
    assert_eq!(status.code(), Some(0));
    assert_eq!(engine.counters().responded, 3);
    assert_eq!(engine.counters().cancelled, 0);
}

/// A penstock with a request in flight that never ends.
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

#[test]
fn drain_timeout_cuts_unfinished_requests() {
    let (_engine, mut penstock, mut client, _gate) = stuck("1s");
    let signalled = Instant::now();
    penstock.signal("TERM");
    let status = penstock.wait_end(SOON);
    let took = signalled.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took >= Duration::from_millis(900), "drain timeout of 1 s: {took:?}");
    assert!(client.read_response().is_err(), "the request is cut");
}

#[test]
fn second_signal_exits_at_once() {
    for (first, second) in [("INT", "INT"), ("TERM", "TERM"), ("TERM", "INT")] {
        let (_engine, mut penstock, _client, _gate) = stuck("60s");
        penstock.signal(first);
        let is_stopping = || penstock.log().contains("shutting down: draining");
        eventually("the drain starts", SOON, is_stopping);
        penstock.signal(second);
        penstock.wait_end(SOON);
    }
}

#[test]
fn readiness_fails_before_the_listeners_close() {
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    let mut penstock = Penstock::start_with(&yaml, &[("PENSTOCK_SERVER_SHUTDOWN_DELAY", "60s")]);
    let mut kept = Client::connect(penstock.data);
    let mut chat = || {
        kept.send("POST", CHAT, &[], streaming_chat("m", "x").to_string().as_bytes());
        kept.read_response().unwrap()
    };
    assert_ne!(chat().header("connection"), Some("close"));
    penstock.signal("TERM");
    let is_unready = || penstock.admin("/health/ready").status == 503;
    eventually("readiness fails", SOON, is_unready);
    assert_eq!(penstock.admin("/health/ready").json()["status"], "stopping");
    let response = chat();
    assert_eq!(response.status, 200, "still accepting requests");
    assert_eq!(response.header("connection"), Some("close"), "the client must reconnect");
    assert_eq!(penstock.chat("m").status, 200, "new connections, too");
    assert!(penstock.log().contains("still accepting requests"), "{}", penstock.log());
    penstock.signal("TERM");
    penstock.wait_end(SOON);

    let mut penstock = Penstock::start_with(&yaml, &[("PENSTOCK_SERVER_SHUTDOWN_DELAY", "1s")]);
    let signalled = Instant::now();
    penstock.signal("TERM");
    assert_eq!(penstock.wait_end(SOON).code(), Some(0));
    assert!(signalled.elapsed() >= Duration::from_millis(900), "{:?}", signalled.elapsed());
}

#[test]
fn admin_port_stays_open_during_the_drain() {
    let (_engine, mut penstock, _client, gate) = stuck("60s");
    penstock.signal("TERM");
    eventually("new connections are refused", SOON, || refuses(&penstock));
    assert_eq!(penstock.admin("/health/live").status, 200);
    assert_eq!(penstock.admin("/health/ready").status, 503);
    assert_eq!(penstock.backend("one")["in_flight"], 1, "the drain is observable");
    assert!(penstock.admin("/metrics").text().contains("penstock_in_flight 1"));
    gate.open();
    assert_eq!(penstock.wait_end(SOON).code(), Some(0));
}
