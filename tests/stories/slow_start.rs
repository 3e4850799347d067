//! Slow start and drain: engines fail, recover and are drained for maintenance. Errors stop, load
//! evens out, no backend is overrun (thundering herd), nothing leaks. (R.A4, R.A16, R.F4)

use std::sync::Mutex;
use std::time::{Duration, Instant};

use penstock_mock::{EngineModel, Fault, MockEngine, MockSpec, Pace};
use serde_json::json;

use crate::support::client::{self, Client, chat, streaming_chat};
use crate::support::engines::{backend, shares, start};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, begin, read_until};
use crate::support::pace::pause_between_requests;
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

/// Sends sequential requests on each of `clients` connections for the time `takes`; returns the
/// failures with their times.
fn drive(penstock: &Penstock, clients: usize, takes: Duration) -> Vec<(Duration, u16)> {
    let failures = Mutex::new(Vec::new());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                while started.elapsed() < takes {
                    let status = penstock.chat("m").status;
                    if status != 200 {
                        failures.lock().unwrap().push((started.elapsed(), status));
                    }
                    pause_between_requests(Duration::from_millis(10));
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

#[test]
fn outage_stops_errors_and_load_evens_out() {
    // Default health and slow start.
    let setup = Setup { strategy: "round_robin", health: "", ..Setup::default() };
    let fleet = Fleet::start(3, setup);
    for engine in &fleet.engines {
        block_on(engine.kill()).unwrap();
    }
    assert!(!drive(&fleet.penstock, 2, Duration::from_secs(3)).is_empty());
    for engine in &fleet.engines {
        block_on(engine.resume()).unwrap();
    }
    let failures = drive(&fleet.penstock, 2, Duration::from_secs(10));
    let late: Vec<_> = failures.iter().filter(|(at, _)| *at > Duration::from_secs(5)).collect();
    assert!(late.is_empty(), "errors more than 5 s after the end of the outage: {late:?}");
    fleet.engines.iter().for_each(MockEngine::clear);
    assert_eq!(drive(&fleet.penstock, 2, Duration::from_secs(2)), []);
    let engines: Vec<&MockEngine> = fleet.engines.iter().collect();
    let shares = shares(&engines);
    let fair = shares.iter().sum::<usize>() / 3;
    assert!(shares.iter().all(|share| share * 2 >= fair), "{shares:?} of {fair} each");
}

#[test]
fn cooldown_of_one_backend_is_invisible_to_clients() {
    let fleet = Fleet::start(3, Setup { strategy: "round_robin", ..Setup::default() });
    fleet.a().always(Some(Fault::status_with_retry(429, "30")));
    let responses = (0..60).map(|_| fleet.chat().status).collect::<Vec<u16>>();
    assert!(responses.iter().all(|status| *status == 200), "{responses:?}");
    assert_eq!(fleet.requests(), 61, "a single retry");
    let left = fleet.fact("a", "cooldown_remaining_s").as_f64().unwrap();
    assert!((20.0..=33.0).contains(&left), "the requested time plus up to a tenth: {left}");
}

#[test]
fn slow_start_limits_a_recovered_backend() {
    let health = "interval: 100ms, unhealthy_interval: 100ms, rise: 1, fall: 1, slow_start: 60s";
    let fleet = Fleet::start(2, Setup { strategy: "round_robin", health, ..Setup::default() });
    fleet.a().set_health(500);
    fleet.wait_fact("a", "health", &json!("unhealthy"));
    fleet.a().set_health(200);
    fleet.wait_fact("a", "health", &json!("healthy"));
    let share = fleet.metric("penstock_backend_slow_start_share{backend=\"a\"}");
    assert!((0.05..0.5).contains(&share), "{share}");
    for _ in 0..200 {
        assert_eq!(fleet.chat().status, 200);
    }
    let (a, b) = (fleet.a().counters().requests, fleet.b().counters().requests);
    assert!(a < 60 && b > 140, "{a} of 200 requests went to the recovered backend");
    assert!(fleet.metric("penstock_backend_slow_start_share{backend=\"b\"}") > 0.99);
}

#[test]
fn configured_drain_shows_its_estimate() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(50), tokens: 60 };
    let engine =
        |name: &str| start(MockSpec { pace, ..MockSpec::new(name, [EngineModel::new("m")]) });
    let (a, b) = (engine("a"), engine("b"));
    let yaml = |drain: bool| {
        let a = backend(&a, &format!("models: [m], priority: 1, drain: {drain}"));
        let b = backend(&b, "models: [m], priority: 9");
        format!("routing: {{ strategy: priority_only }}\nbackends:\n{a}{b}")
    };
    let penstock = Penstock::start(&yaml(false));
    // One whole stream gives the drain estimate a duration.
    assert_eq!(penstock.post(CHAT, &streaming_chat("m", "hello")).status, 200);
    let mut stream = begin(penstock.data, CHAT, &streaming_chat("m", "hello"));
    read_until(&mut stream, "data: ");
    assert!(penstock.backend("a").get("empty_in_s").is_none(), "the backend does not drain yet");
    penstock.rewrite(&yaml(true));
    let report = penstock.reload().json();
    assert_eq!(report["changed"][0]["setting"], "backends[a].drain", "{report}");
    assert_eq!(penstock.backend("a")["health"], "draining");
    let events = a.counters().events;
    block_on(a.wait_for(move |counters| counters.events >= events + 10)).unwrap();
    let left = penstock.backend("a")["empty_in_s"].as_f64().unwrap();
    assert!((0.3..20.0).contains(&left), "about two seconds are left, not {left}");
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(b.counters().requests, 1, "new requests go elsewhere");
    read_until(&mut stream, "data: [DONE]");
    let is_empty = || penstock.backend("a")["empty_in_s"] == json!(0.0);
    eventually("the backend is drained", Duration::from_secs(15), is_empty);
    let resumed = client::request(penstock.admin, "POST", "/backends/a/resume", &[], b"");
    assert_eq!(resumed.status, 200);
    penstock.reload();
    assert_eq!(
        penstock.backend("a")["health"],
        "healthy",
        "a reload of an unchanged file keeps the resume"
    );
}

#[test]
fn nothing_leaks_after_disconnects() {
    let fleet = Fleet::start(2, Setup { strategy: "round_robin", ..Setup::default() });
    let figure = |name: &str| fleet.metric(&format!("penstock_process_{name}"));
    for _ in 0..50 {
        assert_eq!(fleet.chat().status, 200);
    }
    let (files, memory) = (figure("open_files"), figure("resident_bytes"));
    let large = "x".repeat(64 * 1024);
    for round in 0..5 {
        let mut clients: Vec<Client> =
            (0..60).map(|_| begin(fleet.penstock.data, CHAT, &chat("m", &large))).collect();
        for client in clients.iter_mut().take(40) {
            assert_eq!(client.read_response().unwrap().status, 200, "round {round}");
        }
        // The others disconnect without their responses.
        drop(clients);
        let fault = if round % 2 == 0 { Fault::ResetAfterRequest } else { Fault::Garbage };
        fleet.a().script([fault]);
        eventually("the fault is used up", SOON, || {
            let status = fleet.stream().status;
            assert!(matches!(status, 200 | 502), "{status}");
            fleet.a().faults_left() == 0
        });
        assert_eq!(fleet.penstock.reload().status, 200);
    }
    fleet.wait_idle();
    block_on(fleet.a().close_connections());
    eventually("descriptors are closed", SOON + SOON, || figure("open_files") < files + 60.0);
    let grown = figure("resident_bytes") - memory;
    assert!(grown < 128.0 * 1024.0 * 1024.0, "{grown} bytes more than at the start");
    assert!(figure("open_files") < files + 600.0);
}
