//! Engines fail and recover, and users do not notice: checks and requests detect failures, and
//! recovered backends are used.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use penstock_mock::{EngineModel, Fault, Gate, MockEngine, MockSpec};
use serde_json::json;

use crate::circuit_breaker::KEYS;
use crate::support::client::{Client, chat, get, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, engine, read_until, yaml};
use crate::support::load::EndsWith;
use crate::support::pace::pause_between_readings;
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const CHECKS: &str =
    "interval: 50ms, unhealthy_interval: 50ms, jitter: 0, timeout: 1s, slow_start: 0s";

fn two_engines() -> Vec<MockEngine> {
    ["a", "b"].map(|name| engine(name, Setup::default().pace)).into()
}

fn start_unready(engines: &[MockEngine], setup: Setup<'_>) -> Penstock {
    let penstock = Penstock::start_unready(&yaml(engines, &["m", "m2"], setup));
    let listens = || [penstock.data, penstock.admin].map(std::net::TcpStream::connect);
    eventually("penstock listens", Duration::from_secs(15), || listens().iter().all(Result::is_ok));
    penstock
}

#[test]
fn backend_is_unused_before_its_first_check() {
    let engines = two_engines();
    let gate = Gate::new();
    engines[0].always_probes(Some(Fault::Gate(gate.clone())));
    let penstock = start_unready(&engines, Setup { health: "timeout: 20s", ..Setup::default() });
    block_on(gate.reached_by(1));
    eventually("b is healthy", SOON, || penstock.backend("b")["health"] == "healthy");
    assert_eq!(penstock.backend("a")["health"], "unknown");
    assert_eq!(get(penstock.admin, "/health/ready").status, 503);
    let response = penstock.chat("m");
    assert_eq!((response.status, response.error_code().as_str()), (503, "no_healthy_backend"));
    assert!(response.header("retry-after").is_some());
    assert_eq!(penstock.chat("m2").status, 200, "the others do not wait");
    gate.open();
    penstock.wait_ready();
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn readiness_waits_for_first_checks_with_a_limit() {
    let engines = two_engines();
    engines[0].always_probes(Some(Fault::HangBeforeHead));
    let health = "timeout: 700ms, unhealthy_interval: 60s";
    let penstock = start_unready(&engines, Setup { health, ..Setup::default() });
    eventually("b is healthy", SOON, || penstock.backend("b")["health"] == "healthy");
    if penstock.backend("a")["health"] == "unknown" {
        let status = get(penstock.admin, "/health/ready").status;
        assert!(status == 503 || penstock.backend("a")["health"] != "unknown", "ready too early");
    }
    penstock.wait_ready();
    assert_eq!(penstock.backend("a")["health"], "unhealthy");
    assert_eq!(penstock.chat("m").error_code(), "no_healthy_backend");
}

#[test]
fn health_changes_after_rise_and_fall_checks() {
    let health = format!("{CHECKS}, rise: 4, fall: 5");
    let fleet = Fleet::start(2, Setup { health: &health, ..Setup::default() });
    let expected = [("unhealthy", 500, 5), ("healthy", 200, 4)];
    for (status, response, least) in expected {
        fleet.a().clear();
        fleet.a().set_health(response);
        fleet.wait_fact("a", "health", &json!(status));
        let checks = fleet.a().counters().probes;
        assert!(checks >= least, "{status} after {checks} checks");
        let a_is_used = status == "healthy";
        let before = fleet.a().counters().requests;
        assert_eq!(fleet.chat().status, 200);
        assert_eq!(fleet.a().counters().requests > before, a_is_used, "{status}");
    }
    let up = fleet.metric("penstock_backend_up{backend=\"a\"");
    assert!((up - 1.0).abs() < 0.1, "{up}");
}

/// Sends a request to `a` that gets no response, and waits until `a` is unhealthy.
fn wait_until_out(fleet: &Fleet) {
    let _waiting = fleet.begin(&streaming_chat("m", "hello"));
    let is_out = || fleet.fact("a", "health") == json!("unhealthy");
    eventually("a is unhealthy long before its next regular check", PATIENCE, is_out);
    assert_eq!(fleet.chat().status, 200, "the other engine serves");
}

#[test]
fn frozen_engine_is_out_before_its_next_check() {
    let fleet = Fleet::start(2, Setup { health: "interval: 100s", ..Setup::default() });
    assert_eq!(fleet.chat().status, 200);
    fleet.a().always_probes(Some(Fault::HangBeforeHead));
    fleet.a().always(Some(Fault::HangBeforeHead));
    wait_until_out(&fleet);
}

#[test]
fn unreachable_engine_is_out_before_its_next_check() {
    let mut fleet = Fleet::start(2, Setup { health: "interval: 100s", ..Setup::default() });
    let _hole = fleet.turn_into_black_hole(0);
    wait_until_out(&fleet);
}

/// Three failed checks take one timeout, and not three.
#[test]
fn hanging_checks_run_beside_each_other() {
    let health = "interval: 100s, timeout: 100s, fall: 3";
    let fleet = Fleet::start(2, Setup { health, ..Setup::default() });
    fleet.a().always_probes(Some(Fault::HangBeforeHead));
    fleet.a().always(Some(Fault::HangBeforeHead));
    let checks = fleet.a().counters().probes;
    let _waiting = fleet.begin(&streaming_chat("m", "hello"));
    eventually("three checks hang", PATIENCE, || fleet.a().counters().probes == checks + 3);
}

/// A check may take as long as `health.timeout`, however many run beside it.
#[test]
fn slow_engine_stays_healthy() {
    let health = "interval: 100ms, unhealthy_interval: 60s, fast_interval: 50ms, timeout: 5s";
    let fleet = Fleet::start(1, Setup { health, ..Setup::default() });
    let checks = fleet.a().counters().probes;
    fleet.a().always_probes(Some(Fault::SlowHead(Duration::from_millis(700))));
    eventually("several slow checks", SOON, || fleet.a().counters().probes > checks + 8);
    assert_eq!(fleet.fact("a", "health"), "healthy");
    assert_eq!(fleet.chat().status, 200);
}

#[test]
fn refused_list_of_models_shows_a_server() {
    for (status, expected) in [(401, 200), (404, 200), (429, 200), (500, 503), (503, 503)] {
        let engines = [engine("a", Setup::default().pace)];
        engines[0].set_health(status);
        engines[0].always_probes(Some(Fault::status(status)));
        let setup = Setup { health: CHECKS, backend: "engine: openai", ..Setup::default() };
        let penstock = Penstock::start(&yaml(&engines, &["m"], setup));
        assert_eq!(penstock.chat("m").status, expected, "{status}");
        assert_eq!(penstock.backend("a")["check_status"], json!(status));
    }
}

#[test]
fn progress_outweighs_checks_that_hang() {
    let health = "interval: 100ms, unhealthy_interval: 100ms, fast_interval: 50ms, timeout: 200ms";
    let fleet = Fleet::start(1, Setup { health, ..Setup::default() });
    fleet.a().always(Some(Fault::SlowHead(Duration::from_millis(20))));
    fleet.a().always_probes(Some(Fault::HangBeforeHead));
    let checks = fleet.a().counters().probes;
    eventually("several checks hang, and no request fails", PATIENCE, || {
        assert_eq!(fleet.chat().status, 200);
        fleet.a().counters().probes > checks + 8
    });
    assert_eq!(fleet.fact("a", "health"), "healthy");
    fleet.wait_fact("a", "health", &json!("unhealthy"));
}

/// An engine with one thread: nothing else gets a response while it generates one.
#[test]
fn work_in_flight_outweighs_checks_that_hang() {
    let health = "interval: 100ms, unhealthy_interval: 100ms, fast_interval: 50ms, timeout: 200ms";
    let fleet = Fleet::start(1, Setup { health, backend: "engine: vllm", ..Setup::default() });
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut long = fleet.begin(&chat("m", "a long one"));
    block_on(gate.reached_by(1));
    fleet.a().always_probes(Some(Fault::HangBeforeHead));
    let checks = fleet.a().counters().probes;
    eventually("a check hangs", PATIENCE, || fleet.a().counters().probes > checks);
    for _ in 0..10 {
        pause_between_readings(Duration::from_millis(100));
        assert_eq!(fleet.fact("a", "health"), "healthy");
    }
    let hanging = fleet.a().counters().probes - checks;
    assert_eq!(hanging, 1, "further ones would fill the backlog of the engine");
    gate.open();
    assert_eq!(long.read_response().unwrap().status, 200);
    fleet.wait_fact("a", "health", &json!("unhealthy"));
    assert_eq!(fleet.chat().status, 503, "nothing in flight is due later");
}

/// With a backend that can take its place, an engine whose pages hang is out at once: it may be
/// dead.
#[test]
fn work_in_flight_outweighs_no_hanging_check_beside_another_backend() {
    let health = "interval: 100ms, unhealthy_interval: 100ms, fast_interval: 50ms, timeout: 200ms";
    let setup = Setup { strategy: "round_robin", health, ..Setup::default() };
    let fleet = Fleet::start(2, setup);
    fleet.a().script([Fault::SlowHead(Duration::from_secs(3))]);
    fleet.b().script([Fault::SlowHead(Duration::from_secs(3))]);
    let mut long = [fleet.begin(&chat("m", "a long one")), fleet.begin(&chat("m", "another"))];
    eventually("both are there", SOON, || {
        fleet.a().counters().requests == 1 && fleet.b().counters().requests == 1
    });
    fleet.a().always_probes(Some(Fault::HangBeforeHead));
    fleet.wait_fact("a", "health", &json!("unhealthy"));
    assert!(long.iter_mut().all(|one| one.read_response().unwrap().status == 200));
}

#[test]
fn failing_health_page_drains_a_backend_that_serves() {
    let setup = Setup { health: CHECKS, backend: "engine: vllm", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    fleet.a().set_health(503);
    eventually("no request gets there", SOON, || fleet.chat().status == 503);
    assert_eq!(fleet.fact("a", "health"), "unhealthy");
}

const FROZEN: &str = "interval: 60s, fast_interval: 20ms, slow_start: 0s, frozen_after: 1s, \
     breaker: { open: 200ms, max_open: 3s }";

#[test]
fn engine_without_progress_is_avoided_until_it_makes_some() {
    let setup = Setup { health: FROZEN, strategy: "round_robin", ..Setup::default() };
    let fleet = Fleet::start(2, setup);
    fleet.a().always(Some(Fault::HangBeforeHead));
    let impatient = || {
        let mut client = fleet.begin(&streaming_chat("m", "hello"));
        client.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        client.read_response().is_ok_and(|response| response.is_whole)
    };
    eventually("it is found, although clients leave", Duration::from_secs(15), || {
        impatient();
        fleet.fact("a", "frozen_s") != json!(null)
    });
    let log = fleet.penstock.log();
    assert_eq!(log.matches("backend is frozen").count(), 1, "{log}");
    assert!(fleet.metric("penstock_backend_frozen{backend=\"a\"") > 0.9);
    assert_eq!(fleet.fact("a", "health"), "healthy", "its pages are quick");
    let before = fleet.a().counters().requests;
    let lost = (0..20).filter(|_| !impatient()).count();
    assert!(lost <= 4 && fleet.a().counters().requests - before == lost, "{lost}: probes only");
    fleet.a().always(None);
    eventually("a probe finds it alive", Duration::from_secs(15), || {
        impatient();
        fleet.fact("a", "frozen_s") == json!(null)
    });
    assert!(fleet.penstock.log().contains("backend makes progress again"));
}

/// Both prompts are long for the rate that is assumed, and nothing is known of the engine's own.
#[test]
fn long_prefill_is_no_freeze() {
    let fleet = Fleet::start(2, Setup { health: FROZEN, ..Setup::default() });
    fleet.a().always(Some(Fault::SlowHead(Duration::from_secs(3))));
    let prompt = "a long prompt ".repeat(60);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (fleet, prompt) = (&fleet, &prompt);
            let body = streaming_chat("m", &format!("{number} {prompt}"));
            scope.spawn(move || {
                assert_eq!(fleet.begin(&body).read_response().unwrap().status, 200);
            });
        }
        eventually("both have their responses", PATIENCE, || {
            assert_eq!(fleet.fact("a", "frozen_s"), json!(null));
            fleet.a().counters().responded == 2
        });
    });
}

/// Each new stream begins, so that the backend never falls silent, and its client leaves soon.
#[test]
fn engine_whose_streams_stall_is_avoided() {
    let fleet = Fleet::start(2, Setup { strategy: "round_robin", ..Setup::default() });
    let is_served = || {
        let mut client = fleet.begin(&streaming_chat("m", "hello"));
        client.stream.set_read_timeout(Some(Duration::from_millis(1200))).unwrap();
        client.read_response().is_ok_and(|response| response.is_whole)
    };
    assert!((0..4).all(|_| is_served()), "a stream of each is measured");
    fleet.a().always(Some(Fault::RoleOnlyThenHang));
    let lost = (0..12).filter(|_| !is_served()).count();
    assert!((3..6).contains(&lost), "{lost} of 12");
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"), "a cancel is none of its business");
    fleet.a().always(None);
    let before = fleet.a().counters().requests;
    eventually("it is used again", PATIENCE, || {
        is_served();
        fleet.a().counters().requests > before + 3
    });
}

#[test]
fn streams_that_carry_comments_alone_are_no_freeze() {
    let fleet = Fleet::start(1, Setup { health: FROZEN, ..Setup::default() });
    let every = Duration::from_millis(100);
    fleet.a().always(Some(Fault::PingsOnly { every, after_events: 0 }));
    let mut thinking = [1, 2].map(|_| fleet.begin(&streaming_chat("m", "hello")));
    let mut comments = 0;
    while comments < 30 {
        comments += read_until(&mut thinking[0], ": ping").matches(": ping").count();
        assert_eq!(fleet.fact("a", "frozen_s"), json!(null));
    }
}

#[test]
fn health_path_is_per_backend() {
    let engines = two_engines();
    let setup = Setup { health: CHECKS, backend: "engine: other", ..Setup::default() };
    let text = yaml(&engines, &["m", "m"], setup);
    let text = text.replacen("models: [m], ", "models: [m], health: { path: /health }, ", 1);
    let penstock = Penstock::start(&text);
    let paths = |engine: &MockEngine| {
        engine.probes().iter().map(|probe| probe.target.clone()).collect::<Vec<String>>()
    };
    eventually("several checks", SOON, || {
        paths(&engines[0]).len().min(paths(&engines[1]).len()) > 2
    });
    let [own, common] = [&engines[0], &engines[1]].map(paths);
    // One more probe discovers the models.
    let checks = own.iter().filter(|path| *path == "/health").count();
    assert!(checks > 1 && own.len() - checks <= 1, "{own:?}");
    assert!(common.iter().all(|path| path == "/v1/models"), "{common:?}");
    assert_eq!(penstock.backend("a")["health"], "healthy");
}

#[test]
fn rejected_key_is_logged_once() {
    let spec = MockSpec {
        api_key: Some("sk-of-the-engine".to_owned()),
        ..MockSpec::new("a", [EngineModel::new("m")])
    };
    let engines = [block_on(MockEngine::start_local(spec)).unwrap()];
    let setup = Setup { health: CHECKS, backend: "api_key: sk-wrong", ..Setup::default() };
    let penstock = Penstock::start(&yaml(&engines, &["m"], setup));
    assert_eq!(penstock.backend("a")["health"], "healthy", "the server is there");
    assert_eq!(penstock.backend("a")["check_status"], json!(401));
    eventually("several checks", SOON, || engines[0].counters().probes >= 5);
    let log = penstock.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("api_key")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains('a') && lines[0].contains("401"), "{}", lines[0]);
    assert!(!log.contains("sk-wrong"), "a key in the log: {log}");
}

/// Starts the first engine again, and waits until its breaker lets every client through.
fn resume_first(fleet: &Fleet) {
    let before = fleet.a().counters().requests;
    block_on(fleet.a().resume()).unwrap();
    let is_used = || fleet.a().counters().requests > before;
    eventually("the engine is used again", PATIENCE, is_used);
    let is_closed = || fleet.fact("a", "breaker") == json!("closed");
    eventually("its breaker closes", PATIENCE, is_closed);
}

/// Long enough for some hundred requests on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Clients with separate keys: what one of them met on a backend steers no other one.
#[derive(Default)]
struct Clients {
    is_over: AtomicBool,
    served: AtomicUsize,
}

impl Clients {
    /// Waits for `more` further responses.
    fn go_on(&self, more: usize) {
        let served = || self.served.load(Ordering::Relaxed);
        let until = served() + more;
        eventually("requests go on", PATIENCE, || served() >= until);
    }

    /// Sends requests of client `number` until all is over; returns those that failed.
    fn send_all(&self, address: SocketAddr, number: usize) -> Vec<String> {
        let make_body = if number == 0 { streaming_chat } else { chat };
        let body = make_body("m", "hello").to_string();
        let bearer = format!("Bearer key-{number}");
        let mut client = Client::connect(address);
        let mut failures = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            client.send("POST", CHAT, &[("authorization", &bearer)], body.as_bytes());
            let response = client.read_response().unwrap();
            let is_good = response.status == 200
                && response.is_whole
                && !response.text().contains("\"error\"");
            if !is_good {
                failures.push(format!("{} {}", response.status, response.text()));
                client = Client::connect(address);
            }
            self.served.fetch_add(1, Ordering::Relaxed);
        }
        failures
    }
}

#[test]
fn killed_engine_fails_over_and_is_used_after_restart() {
    let setup = Setup {
        strategy: "round_robin",
        health: "slow_start: 0s",
        sections: KEYS,
        ..Setup::default()
    };
    let fleet = Fleet::start(2, setup);
    let (clients, address) = (Clients::default(), fleet.penstock.data);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let clients = &clients;
                scope.spawn(move || clients.send_all(address, number))
            })
            .collect();
        let over = EndsWith(&clients.is_over);
        for _ in 0..2 {
            // The engine has read a request of every client when it is killed: these go to the
            // other one.
            let gate = Gate::new();
            fleet.a().script(vec![Fault::Gate(gate.clone()); 3]);
            let all = async { tokio::time::timeout(PATIENCE, gate.reached_by(3)).await };
            block_on(all).expect("all clients reach the engine");
            block_on(fleet.a().kill()).unwrap();
            clients.go_on(60);
            resume_first(&fleet);
        }
        clients.go_on(60);
        drop(over);
        for thread in threads {
            let failures = thread.join().unwrap();
            assert!(failures.is_empty(), "{failures:?}");
        }
    });
    fleet.wait_idle();
}

#[test]
fn recovered_backend_is_used_before_its_breaker_would_close() {
    let health = "interval: 100s, breaker: { open: 100s, max_open: 100s }";
    let fleet = Fleet::start(2, Setup { health, ..Setup::default() });
    block_on(fleet.a().kill()).unwrap();
    // Requests open the breaker, and the checks find it unhealthy.
    eventually("its failures are known", PATIENCE, || {
        assert_eq!(fleet.chat().status, 200);
        fleet.fact("a", "health") == json!("unhealthy")
            && fleet.fact("a", "breaker") != json!("closed")
    });
    block_on(fleet.a().resume()).unwrap();
    eventually("it is used again", PATIENCE, || {
        assert_eq!(fleet.chat().status, 200);
        fleet.a().counters().requests > 0
    });
}
