//! Failing backends: an engine that fails fast must not draw the traffic, from one client address
//! as from many, in every strategy; and no client's own bad prompts cost another client a request.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_mock::{Fault, Gate};
use serde_json::json;

use crate::support::client::{Client, Response, chat};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup};
use crate::support::pace::{pause_between_requests, pause_until};
use crate::support::{block_on, eventually};

/// Requests per second.
const RATE: u32 = 60;
/// The response time of engines that work.
const RESPONSE_TIME: Duration = Duration::from_millis(100);

const STRATEGIES: [&str; 5] = ["smart", "round_robin", "priority_only", "random", "weighted"];

fn faults() -> [Fault; 5] {
    [
        Fault::status(500),
        Fault::CloseOnAccept,
        Fault::ResetOnAccept,
        Fault::CloseAfterRequest,
        Fault::Garbage,
    ]
}

/// Three engines with the default health checks. The first, which strategies with priorities
/// prefer, fails every request with `fault` and, where it can, passes its checks.
fn with_failing_engine(strategy: &str, fault: &Fault) -> Fleet {
    let fleet = Fleet::start(3, Setup { strategy, health: "", ..Setup::default() });
    for works in [fleet.b(), fleet.c()] {
        works.always(Some(Fault::SlowHead(RESPONSE_TIME)));
    }
    fleet.a().always(Some(fault.clone()));
    fleet
}

/// A request of the client with the address 127.0.0.`host`.
fn send(fleet: &Fleet, host: u8, prompt: &str) -> Option<Response> {
    let mut client = Client::connect_from(host, fleet.penstock.data);
    let json = [("content-type", "application/json")];
    client.send("POST", CHAT, &json, chat("m", prompt).to_string().as_bytes());
    client.read_response().ok()
}

/// A request that failed: when it was sent, and when its response had come.
#[derive(Debug, Clone, Copy)]
struct Failure {
    sent: Duration,
    ended: Duration,
}

/// Sends requests in an open loop of [`RATE`], each with a different prompt; returns those that
/// failed.
fn open_loop(fleet: &Fleet, clients: u32) -> Vec<Failure> {
    let failures = parking_lot::Mutex::new(Vec::new());
    let started = Instant::now();
    let every = Duration::from_secs(1) / RATE;
    std::thread::scope(|scope| {
        for number in 0..RATE * 5 / 2 {
            let failures = &failures;
            pause_until(started, every * number);
            scope.spawn(move || {
                let sent = started.elapsed();
                let host = 1 + u8::try_from(number % clients).unwrap();
                let response = send(fleet, host, &format!("prompt {number}"));
                if response.is_none_or(|response| response.status != 200) {
                    failures.lock().push(Failure { sent, ended: started.elapsed() });
                }
            });
        }
    });
    let mut failures = failures.into_inner();
    failures.sort_by_key(|failure| failure.ended);
    failures
}

/// Once three requests have failed, at most two single probes fail among those sent after that. The
/// number of requests in flight until then depends on the machine.
fn assert_few_failures(strategy: &str, fault: &Fault, clients: u32) {
    let fleet = with_failing_engine(strategy, fault);
    let failures = open_loop(&fleet, clients);
    let Some(third) = failures.get(2) else { return };
    let probes = failures.iter().filter(|failure| failure.sent > third.ended).count();
    assert!(probes <= 2, "{strategy}, {fault:?}, {clients} clients: {failures:.2?}");
}

/// All strategies with all faults, several at a time: they mostly wait.
fn for_each_combination(clients: u32) {
    let faults = faults();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(strategy) = STRATEGIES.get(number / faults.len()) else { break };
                    assert_few_failures(strategy, &faults[number % faults.len()], clients);
                }
            });
        }
    });
}

#[test]
fn fast_failing_engine_draws_no_traffic_of_one_client() {
    for_each_combination(1);
}

#[test]
fn fast_failing_engine_draws_no_traffic_of_many_clients() {
    for_each_combination(20);
}

#[test]
fn engine_that_refuses_everything_draws_no_traffic() {
    for (clients, most) in [(1, 24), (20, 45)] {
        let one = |strategy| {
            let fleet = with_failing_engine(strategy, &Fault::status(400));
            let failures = open_loop(&fleet, clients).len();
            assert!(failures <= most, "{strategy}, {clients} clients: {failures} refused");
            let is_open = fleet.fact("a", "breaker") == json!("open");
            assert!(clients == 20 || !is_open, "{strategy}: those of one client steer no other");
        };
        std::thread::scope(|scope| {
            for strategy in STRATEGIES {
                scope.spawn(move || one(strategy));
            }
        });
    }
}

/// Returns the number of failed requests of `clients` while another client sent `poison`, each
/// prompt for ever, to engines that respond 500 to it.
fn failures_beside_poison(fleet: &Fleet, poison: &[String]) -> usize {
    let is_over = AtomicBool::new(false);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for prompt in poison.iter().cycle() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                assert_eq!(send(fleet, 99, prompt).unwrap().status, 500);
            }
        });
        for number in 0..300_u32 {
            pause_between_requests(Duration::from_millis(5));
            let response = send(fleet, [1, 2, 3][number as usize % 3], &format!("fine {number}"));
            if response.is_none_or(|response| response.status != 200) {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    failed.into_inner()
}

#[test]
fn poison_prompts_of_one_client_cost_others_nothing() {
    for count in [1, 20] {
        let fleet = Fleet::start(3, Setup { strategy: "smart", health: "", ..Setup::default() });
        for engine in &fleet.engines {
            engine.fail_on("poison", Fault::status(500));
        }
        let poison: Vec<String> = (0..count).map(|number| format!("poison {number}")).collect();
        assert_eq!(failures_beside_poison(&fleet, &poison), 0, "{count} poison prompts");
        for backend in ["a", "b", "c"] {
            assert_eq!(openings(&fleet, backend), 0.0);
        }
    }
}

fn requests_of_each(fleet: &Fleet) -> Vec<usize> {
    fleet.engines.iter().map(|engine| engine.counters().requests).collect()
}

#[test]
fn poison_prompts_of_a_gateway_leave_the_load_spread() {
    let setup = Setup { strategy: "round_robin", health: PATIENT, ..Setup::default() };
    let fleet = Fleet::start(4, setup);
    for engine in &fleet.engines {
        engine.fail_on("poison", Fault::status(500));
    }
    for round in 0..5 {
        let before = requests_of_each(&fleet);
        for number in round * 60..(round + 1) * 60 {
            let (prompt, status) =
                if number * 7 % 10 < 3 { ("poison", 500) } else { ("fine", 200) };
            let response = send(&fleet, 1, &format!("{prompt} {number}")).unwrap();
            assert_eq!(response.status, status, "{prompt} {number}");
        }
        let after = requests_of_each(&fleet);
        let got: Vec<usize> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(got.iter().all(|count| *count <= 27), "{got:?} of 60 in round {round}");
    }
}

/// No check and no pause ends within a story; `a` comes first.
const PATIENT: &str = "interval: 60s, unhealthy_interval: 60s, fast_interval: 60s, \
     breaker: { open: 60s, max_open: 60s }";

/// The status of a client's request, and whether `a` got it.
fn sent_to_a(fleet: &Fleet, host: u8, prompt: &str) -> (u16, bool) {
    let before = fleet.a().counters().requests;
    let status = send(fleet, host, prompt).unwrap().status;
    (status, fleet.a().counters().requests > before)
}

#[test]
fn faults_steer_the_client_that_met_them() {
    let fleet = Fleet::start(2, Setup { health: PATIENT, ..Setup::default() });
    fleet.a().fail_on("bad", Fault::status(500));
    for _ in 0..2 {
        assert_eq!(sent_to_a(&fleet, 1, "bad"), (500, true));
        assert_eq!(sent_to_a(&fleet, 1, "good"), (200, true), "what works there counts");
    }
    for _ in 0..3 {
        assert_eq!(sent_to_a(&fleet, 1, "bad"), (500, true));
    }
    assert_eq!(sent_to_a(&fleet, 1, "good"), (200, false), "after three in a row");
    assert_eq!(sent_to_a(&fleet, 2, "good"), (200, true), "those of another client do not");
    assert_eq!(fleet.fact("a", "clients_avoiding"), json!(1));
}

#[test]
fn refusals_steer_a_client_that_others_serve() {
    let fleet = Fleet::start(2, Setup { health: PATIENT, ..Setup::default() });
    fleet.a().fail_on("bad", Fault::status(400));
    for _ in 0..6 {
        assert_eq!(sent_to_a(&fleet, 1, "bad"), (400, true));
    }
    assert_eq!(sent_to_a(&fleet, 1, "bad"), (200, false), "after six in a row");
    assert_eq!(sent_to_a(&fleet, 2, "good"), (200, true), "those of another client do not");
    for _ in 0..12 {
        assert_eq!(sent_to_a(&fleet, 2, "bad"), (400, true), "it was served there just now");
    }
    let facts = ["clients_avoiding", "breaker"].map(|name| fleet.fact("a", name));
    assert_eq!(facts, [json!(1), json!("closed")]);
}

#[test]
fn requests_that_are_refused_everywhere_open_nothing() {
    let fleet = Fleet::start(2, Setup { health: PATIENT, ..Setup::default() });
    for engine in &fleet.engines {
        engine.fail_on("bad", Fault::status(422));
    }
    for number in 0..120 {
        assert_eq!(sent_to_a(&fleet, 1 + number % 10, "bad").0, 422);
    }
    assert_eq!(sent_to_a(&fleet, 1, "good"), (200, true), "also for a client that sent them");
    assert_eq!(sent_to_a(&fleet, 99, "good"), (200, true));
    assert_eq!(openings(&fleet, "b"), 0.0);
}

#[test]
fn prompts_that_fail_everywhere_open_nothing() {
    let fleet = Fleet::start(2, Setup { health: PATIENT, ..Setup::default() });
    for engine in &fleet.engines {
        engine.fail_on("bad", Fault::status(500));
    }
    for number in 0..30 {
        assert_eq!(sent_to_a(&fleet, 1 + number % 4, "bad").0, 500);
    }
    assert_eq!(sent_to_a(&fleet, 1, "good"), (200, true), "also for the client that sent them");
    assert_eq!(sent_to_a(&fleet, 9, "good"), (200, true));
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
}

#[test]
fn traffic_alone_never_opens_the_last_backend() {
    let fleet = Fleet::start(1, Setup { health: PATIENT, ..Setup::default() });
    fleet.a().fail_on("bad", Fault::status(500));
    for number in 0..40 {
        assert_eq!(sent_to_a(&fleet, 1 + number % 5, "bad"), (500, true));
    }
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
    assert_eq!(sent_to_a(&fleet, 9, "good"), (200, true));
}

#[test]
fn faults_of_two_clients_steer_everyone() {
    let fleet = Fleet::start(2, Setup { health: PATIENT, ..Setup::default() });
    fleet.a().script(vec![Fault::status(500); 3]);
    for host in [1, 2, 1] {
        assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
        assert_eq!(sent_to_a(&fleet, host, "hello"), (500, true));
    }
    fleet.wait_fact("a", "breaker", &json!("open"));
    assert_eq!(fleet.fact("a", "models")[0]["breaker"], json!("open"));
    assert_eq!(sent_to_a(&fleet, 3, "hello"), (200, false), "all others prefer another backend");
    block_on(fleet.b().kill()).unwrap();
    assert_eq!(sent_to_a(&fleet, 3, "hello"), (200, true), "while there is one");
}

#[test]
fn faults_of_one_model_say_nothing_about_another() {
    let fleet = Fleet::of(&["m, m2, m3", "m2, m3"], Setup { health: PATIENT, ..Setup::default() });
    let chat_of = |host: u8, model: &str| {
        let before = fleet.a().counters().requests;
        let mut client = Client::connect_from(host, fleet.penstock.data);
        let json = [("content-type", "application/json")];
        client.send("POST", CHAT, &json, chat(model, "hello").to_string().as_bytes());
        let status = client.read_response().unwrap().status;
        (status, fleet.a().counters().requests > before)
    };
    let fail = |model: &str| {
        fleet.a().fail_on(&format!("\"model\":\"{model}\""), Fault::status(500));
        for host in [1, 2, 3] {
            assert_eq!(chat_of(host, model), (500, true), "{model}");
        }
        assert_eq!(chat_of(4, model), (200, false), "{model}");
    };
    fail("m2");
    assert_eq!(chat_of(5, "m3"), (200, true), "one faulty model");
    assert_eq!(chat_of(5, "m"), (200, true));
    fail("m3");
    assert_eq!(fleet.fact("a", "is_suspect"), json!(true), "two faulty models");
    assert_eq!(chat_of(5, "m"), (200, true), "no other backend has it");
}

#[test]
fn faults_of_one_client_are_probed_by_one_request() {
    let health = "interval: 60s, unhealthy_interval: 60s, fast_interval: 60s, \
         breaker: { open: 100ms, max_open: 100ms }";
    let fleet = Fleet::start(2, Setup { health, ..Setup::default() });
    fleet.a().script(vec![Fault::status(500); 3]);
    for prompt in ["one", "two", "three"] {
        assert_eq!(sent_to_a(&fleet, 1, prompt), (500, true));
    }
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    std::thread::scope(|scope| {
        let probe = scope.spawn(|| {
            eventually("the pause is over", SOON, || sent_to_a(&fleet, 1, "hello").1);
        });
        block_on(gate.reached_by(1));
        for _ in 0..5 {
            assert_eq!(sent_to_a(&fleet, 1, "hello"), (200, false), "the probe has not ended");
        }
        assert_eq!(sent_to_a(&fleet, 2, "hello"), (200, true), "others do not wait for it");
        gate.open();
        probe.join().unwrap();
    });
    assert_eq!(sent_to_a(&fleet, 1, "hello"), (200, true), "it is used again");
}

/// Returns the number of times that the circuit breaker of a backend opened, for whatever reason.
fn openings(fleet: &Fleet, backend: &str) -> f64 {
    let opened = |reason| {
        fleet.metric(&format!(
            "penstock_breaker_transitions_total{{backend=\"{backend}\",to=\"open\",reason=\"{reason}\"}}"
        ))
    };
    ["unreachable", "faults", "refusals", "health_check", "probe"].into_iter().map(opened).sum()
}

#[test]
fn breaker_transitions_are_logged_and_counted() {
    let health = "slow_start: 0s, breaker: { open: 100ms, max_open: 100ms }";
    let fleet = Fleet::start(2, Setup { health, ..Setup::default() });
    fleet.a().script(vec![Fault::status(500); 3]);
    for host in 1..=3 {
        assert_eq!(send(&fleet, host, "hello").unwrap().status, 500);
    }
    assert_eq!(openings(&fleet, "a"), 1.0);
    let log = fleet.penstock.log();
    let opened = log.lines().find(|line| line.contains("circuit breaker opened")).unwrap();
    assert!(
        opened.contains("WARN") && opened.contains("faults") && opened.contains("model=m"),
        "{opened}"
    );
    eventually("a probe closes it", Duration::from_secs(5), || {
        send(&fleet, 4, "hello");
        fleet.fact("a", "breaker") == json!("closed")
    });
    let closed = "penstock_breaker_transitions_total{backend=\"a\",to=\"closed\"";
    assert_eq!(fleet.metric(closed), 1.0);
    assert!(fleet.penstock.log().contains("circuit breaker closed"));
}

fn rate_limited(model: &str, engines: &[penstock_mock::MockEngine]) {
    for engine in engines {
        let text = format!("\"model\":\"{model}\"");
        engine.fail_on(&text, Fault::status_with_retry(429, "5"));
    }
}

#[test]
fn cooldown_is_per_model() {
    let fleet = Fleet::of(&["m, m2"; 2], Setup::default());
    rate_limited("m", &fleet.engines);
    assert_eq!(fleet.penstock.chat("m").status, 429);
    for _ in 0..100 {
        assert_eq!(fleet.penstock.chat("m2").status, 200);
    }
    let model = fleet.fact("a", "models")[0].clone();
    assert_eq!((&model["id"], &model["cooldown_status"]), (&json!("m"), &json!(429)));
    assert_eq!(fleet.fact("a", "cooldown_status"), json!(null), "the backend itself is in none");
}

#[test]
fn refusals_of_two_models_pause_the_backend() {
    let fleet = Fleet::of(&["m, m2, m3"; 2], Setup::default());
    rate_limited("m", &fleet.engines[..1]);
    rate_limited("m2", &fleet.engines[..1]);
    for (model, requests_of_a) in [("m", 1), ("m3", 2), ("m2", 3), ("m3", 3)] {
        assert_eq!(fleet.penstock.chat(model).status, 200, "{model}");
        assert_eq!(fleet.a().counters().requests, requests_of_a, "{model}");
    }
    assert_eq!(fleet.fact("a", "cooldown_status"), json!(429));
}

fn chat_with_key(fleet: &Fleet, key: &str) -> Response {
    let mut client = Client::connect(fleet.penstock.data);
    let bearer = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
    client.send("POST", CHAT, &headers, chat("m", key).to_string().as_bytes());
    client.read_response().unwrap()
}

#[test]
fn cooldown_is_per_credential_where_it_is_passed() {
    for (backend, others) in [("authorization: pass", 200), ("authorization: strip", 429)] {
        let fleet = Fleet::start(2, Setup { backend, ..Setup::default() });
        for engine in &fleet.engines {
            engine.fail_on("limited-key", Fault::status_with_retry(429, "5"));
        }
        assert_eq!(chat_with_key(&fleet, "limited-key").status, 429);
        // One request probes; the cooldown is that of everybody else whom it covers.
        for engine in &fleet.engines {
            engine.script([Fault::SlowHead(Duration::from_secs(1))]);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| chat_with_key(&fleet, "limited-key"));
            eventually("it probes", SOON, || fleet.requests() == 3);
            assert_eq!(chat_with_key(&fleet, "limited-key").error_code(), "backends_cooling_down");
            assert_eq!(chat_with_key(&fleet, "another-key").status, others, "{backend}");
        });
    }
}

#[test]
fn rate_limit_is_retried_on_one_other_backend() {
    let fleet = Fleet::start(4, Setup { routing: "max_retries: 3", ..Setup::default() });
    rate_limited("m", &fleet.engines);
    assert_eq!(fleet.chat().status, 429);
    assert_eq!(fleet.requests(), 2);
    let fleet = Fleet::start(4, Setup { routing: "max_retries: 3", ..Setup::default() });
    for engine in &fleet.engines {
        engine.fail_on("hello", Fault::status_with_retry(503, "5"));
    }
    assert_eq!(fleet.chat().status, 503);
    assert_eq!(fleet.requests(), 4, "a 503 is no limit of the client");
}

#[test]
fn slow_period_is_forgotten() {
    let strategy = "smart, weights: { priority: 0, load: 90, latency: 10 }";
    let fleet = Fleet::start(4, Setup { strategy, ..Setup::default() });
    let shares = |requests: usize| {
        let before: Vec<usize> =
            fleet.engines.iter().map(|engine| engine.counters().requests).collect();
        let sent = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for host in 1..=8 {
                let (fleet, sent) = (&fleet, &sent);
                scope.spawn(move || {
                    while sent.fetch_add(1, Ordering::Relaxed) < requests {
                        assert_eq!(send(fleet, host, "hello").unwrap().status, 200);
                    }
                });
            }
        });
        let after = fleet.engines.iter().map(|engine| engine.counters().requests);
        after.zip(before).map(|(after, before)| after - before).collect::<Vec<usize>>()
    };
    for engine in &fleet.engines {
        engine.always(Some(Fault::SlowHead(Duration::from_millis(20))));
    }
    fleet.a().always(Some(Fault::SlowHead(Duration::from_millis(1500))));
    shares(200);
    fleet.a().always(Some(Fault::SlowHead(Duration::from_millis(20))));
    let recovered = Instant::now();
    eventually("the slow backend is used again", Duration::from_secs(5), || shares(20)[0] > 0);
    println!("used again after {:?}", recovered.elapsed());
    eventually("shares are within 20 % of even", Duration::from_secs(20), || {
        let shares = shares(400);
        println!("{:?} after {:.1?}", shares, recovered.elapsed());
        shares.iter().all(|share| (80..=120).contains(share))
    });
}
