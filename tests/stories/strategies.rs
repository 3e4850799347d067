//! An operator chooses how requests are spread over equal backends, and bounds how many each of
//! them is given at a time.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use penstock_mock::{EngineModel, Fault, Gate, MockEngine, MockSpec, Pace};
use serde_json::json;

use crate::support::client::{Client, Response, chat, streaming_chat};
use crate::support::engines::{self, backend, backends, engine, shares};
use crate::support::fleet::{CHAT, begin};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

fn three() -> [MockEngine; 3] {
    ["a", "b", "c"].map(|name| engine(name, &["m", "n"]))
}

fn start(engines: &[MockEngine; 3], routing: &str, rest: &str) -> Penstock {
    let items = backends(&engines.each_ref(), rest);
    Penstock::start(&format!("routing: {{ {routing} }}\n{items}"))
}

/// Sends chats one after the other on one connection.
fn chats(penstock: &Penstock, model: &str, count: usize) {
    let mut client = Client::connect(penstock.data);
    for _ in 0..count {
        client.send("POST", "/v1/chat/completions", &[], chat(model, "x").to_string().as_bytes());
        let response = client.read_response().unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
    }
}

#[test]
fn round_robin_rotates_per_model() {
    let engines = three();
    let penstock = start(&engines, "strategy: Round-Robin", "models: [m, n]");
    chats(&penstock, "m", 6);
    assert_eq!(shares(&engines.each_ref()), [2, 2, 2]);
    for _ in 0..3 {
        chats(&penstock, "m", 1);
        chats(&penstock, "n", 1);
    }
    assert_eq!(shares(&engines.each_ref()), [4, 4, 4], "models rotate on their own");
}

#[test]
fn weights_share_requests() {
    let engines = three();
    let [a, b, c] = &engines;
    let yaml = |strategy: &str| {
        format!(
            "routing: {{ strategy: {strategy} }}\nbackends:\n{}{}{}",
            backend(a, "weight: 3, models: [m]"),
            backend(b, "models: [m]"),
            backend(c, "weight: 0, models: [m]")
        )
    };
    let penstock = Penstock::start(&yaml("round_robin"));
    chats(&penstock, "m", 8);
    assert_eq!(shares(&engines.each_ref()), [6, 2, 0], "one round of four turns, twice");
    assert_eq!(penstock.backend("c")["health"], "draining", "weight 0 drains");
    let resume =
        |name: &str| crate::support::client::request(penstock.admin, "POST", name, &[], b"").status;
    assert_eq!(resume("/backends/c/resume"), 200);
    chats(&penstock, "m", 5);
    assert_eq!(shares(&engines.each_ref()), [9, 3, 1], "resumed it counts as 1");
    assert_eq!(resume("/backends/c/drain"), 200);
    penstock.rewrite(&yaml("random"));
    assert_eq!(penstock.reload().status, 200);
    chats(&penstock, "m", 400);
    let [on_a, on_b, on_c] = shares(&engines.each_ref())[..] else { panic!() };
    assert_eq!((on_a + on_b, on_c), (412, 1));
    // Within five standard deviations of 100.
    assert!((60..=146).contains(&on_b), "{on_b} of 400");
}

#[test]
fn load_counts_by_weight() {
    let pace = Pace { first_token: Duration::from_secs(2), ..Pace::at_once(3) };
    let engines = ["a", "b"].map(|name| {
        engines::start(MockSpec { pace, ..MockSpec::new(name, [EngineModel::new("m")]) })
    });
    for routing in [
        "strategy: smart, weights: { priority: 50, load: 50, latency: 0 }",
        "strategy: weighted, scorers: \"queue-depth:1\"",
    ] {
        let before = shares(&engines.each_ref());
        let penstock = Penstock::start(&format!(
            "routing: {{ {routing} }}\nhealth: {{ slow_start: 0s }}\nbackends:\n{}{}",
            backend(&engines[0], "weight: 3, models: [m]"),
            backend(&engines[1], "models: [m]")
        ));
        let body = streaming_chat("m", "hello");
        // Each is in flight before the next is decided.
        let _streams: Vec<Client> = (1..=12)
            .map(|count| {
                let stream = begin(penstock.data, CHAT, &body);
                let in_flight = || {
                    ["a", "b"]
                        .iter()
                        .map(|name| penstock.backend(name)["in_flight"].as_u64().unwrap())
                        .sum::<u64>()
                };
                eventually("it is in flight", Duration::from_secs(5), || in_flight() == count);
                stream
            })
            .collect();
        let received = || {
            let after = shares(&engines.each_ref());
            [after[0] - before[0], after[1] - before[1]]
        };
        eventually("all are received", Duration::from_secs(5), || {
            received().iter().sum::<usize>() == 12
        });
        assert_eq!(received(), [9, 3], "{routing}");
    }
}

#[test]
fn priority_only_picks_the_lowest_number() {
    let [a, b, c] = three();
    let yaml = format!(
        "routing: {{ strategy: smart }}\nbackends:\n{}{}{}",
        backend(&a, "models: [m]"),
        backend(&b, "priority: 7, models: [m]"),
        backend(&c, "priority: 7, models: [m]")
    );
    let environment = [("PENSTOCK_ROUTING_STRATEGY", "priority_only")];
    let penstock = Penstock::start_with(&yaml, &environment);
    chats(&penstock, "m", 6);
    assert_eq!(shares(&[&a, &b, &c]), [0, 3, 3], "the environment beats the file; ties rotate");
}

#[test]
fn random_reaches_every_backend() {
    let engines = three();
    let penstock = start(&engines, "strategy: random", "models: [m]");
    chats(&penstock, "m", 120);
    let shares = shares(&engines.each_ref());
    assert!(shares.iter().all(|share| (12..=80).contains(share)), "{shares:?}");
}

/// Sends a chat from a new thread; the response arrives through the channel.
fn spawn_chat(penstock: &Penstock, model: &str, responses: &mpsc::Sender<Response>) {
    let (address, body, responses) =
        (penstock.data, chat(model, "x").to_string(), responses.clone());
    thread::spawn(move || {
        let mut client = Client::connect(address);
        client.send("POST", "/v1/chat/completions", &[], body.as_bytes());
        // The receiver is gone when the test has already failed.
        let sent = responses.send(client.read_response().unwrap());
        drop(sent);
    });
}

#[test]
fn smart_prefers_the_fewest_in_flight() {
    let engines = three();
    let gate = Gate::new();
    for engine in &engines {
        engine.always(Some(Fault::Gate(gate.clone())));
    }
    let weights = "strategy: smart, weights: { priority: 50, load: 50, latency: 0 }";
    let penstock = start(&engines, weights, "models: [m]");
    let (sender, responses) = mpsc::channel();
    for count in 1..=6 {
        spawn_chat(&penstock, "m", &sender);
        block_on(gate.reached_by(count));
    }
    assert_eq!(shares(&engines.each_ref()), [2, 2, 2], "each went where least was in flight");
    assert_eq!(penstock.backend("b")["in_flight"], 2);
    gate.open();
    for _ in 0..6 {
        assert_eq!(responses.recv_timeout(Duration::from_secs(10)).unwrap().status, 200);
    }
    eventually("nothing is in flight", Duration::from_secs(5), || {
        ["a", "b", "c"].iter().all(|name| penstock.backend(name)["in_flight"] == 0)
    });
}

#[test]
fn unknown_strategy_falls_back_to_smart_with_a_warning() {
    let engines = three();
    let penstock = start(&engines, "strategy: fastest, expose_decision: true", "models: [m]");
    assert_eq!(penstock.chat("m").status, 200);
    let log = penstock.log();
    assert!(log.contains("UNKNOWN STRATEGY 'fastest'") && log.contains("'smart'"), "{log}");
    assert_eq!(penstock.admin("/decisions").json()["decisions"][0]["strategy"], "smart");
}

#[test]
fn strategy_that_is_not_named_has_its_reason_in_the_fleet_and_the_log() {
    let engines = three();
    let penstock = start(&engines, "preset: llm-d", "models: [m]");
    let strategies = |penstock: &Penstock| penstock.admin("/fleet").json()["strategies"].clone();
    let reason = "routing.preset is set";
    let expected =
        json!([{ "model": "m", "strategy": "weighted", "preset": "llm-d", "reason": reason }]);
    assert_eq!(strategies(&penstock), expected);
    eventually("the log has the reason", Duration::from_secs(10), || {
        let log = penstock.log();
        log.contains("strategy chosen") && log.contains(reason)
    });
    let penstock = start(&engines, "strategy: round_robin", "models: [m]");
    let expected =
        json!([{ "model": "m", "strategy": "round_robin", "preset": null, "reason": null }]);
    assert_eq!(strategies(&penstock), expected);
    assert!(!penstock.log().contains("strategy chosen"), "its name is in the configuration");
}

#[test]
fn max_in_flight_holds_under_parallel_requests() {
    let engines = three();
    let gate = Gate::new();
    for engine in &engines {
        engine.always(Some(Fault::Gate(gate.clone())));
    }
    let penstock = start(&engines, "strategy: random", "max_in_flight: 2, models: [m]");
    let (sender, responses) = mpsc::channel();
    for _ in 0..50 {
        spawn_chat(&penstock, "m", &sender);
    }
    for _ in 0..44 {
        let response = responses.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (503, "all_backends_busy"));
        assert!(response.header("retry-after").is_some());
    }
    block_on(gate.reached_by(6));
    assert_eq!(shares(&engines.each_ref()), [2, 2, 2], "every place was used, none twice");
    let busy = penstock.post(
        "/v1/messages",
        &json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}),
    );
    assert_eq!((busy.status, &busy.json()["error"]["type"]), (503, &json!("overloaded_error")));
    gate.open();
    for _ in 0..6 {
        assert_eq!(responses.recv_timeout(Duration::from_secs(10)).unwrap().status, 200);
    }
    eventually("places are free again", Duration::from_secs(5), || {
        penstock.chat("m").status == 200
    });
}

#[test]
fn saturated_model_falls_back_when_configured() {
    let (big, small) = (engine("big", &["m"]), engine("small", &["n"]));
    let gate = Gate::new();
    big.script([Fault::Gate(gate.clone())]);
    let yaml = format!(
        "routing: {{ fallback_on_saturation: true, fallbacks: {{ m: [n] }} }}\nbackends:\n{}{}",
        backend(&big, "max_in_flight: 1, models: [m]"),
        backend(&small, "models: [n]")
    );
    let penstock = Penstock::start(&yaml);
    let (sender, responses) = mpsc::channel();
    spawn_chat(&penstock, "m", &sender);
    block_on(gate.reached_by(1));
    let response = penstock.chat("m");
    assert_eq!((response.status, response.json()["model"].as_str()), (200, Some("n")));
    gate.open();
    let first = responses.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(first.json()["model"], "m");
}
