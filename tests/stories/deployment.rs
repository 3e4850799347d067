//! An operator runs several Ollamas: requests go where their model is in memory, no backend gets
//! more than it runs at a time, and penstock's view of the backends follows their reports.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use penstock_mock::{EngineModel, Fault, Flavour, Gate, MockEngine, MockSpec};
use serde_json::{Value, json};

use crate::support::client::{self, Client, Response, chat, streaming_chat};
use crate::support::command::{file, run};
use crate::support::engines::{backend, backends, last_body, shares, start};
use crate::support::fleet::{CHAT, metric};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const SOON: Duration = Duration::from_secs(10);

/// An Ollama with both models on disk and room for one of them.
fn ollama(name: &str) -> MockEngine {
    let models = ["m", "n"].map(EngineModel::new);
    start(MockSpec { flavour: Flavour::Ollama, memory: Some(1), ..MockSpec::new(name, models) })
}

/// The same, with responses that take 20 ms.
fn unhurried_ollama(name: &str) -> MockEngine {
    let models = ["m", "n"].map(EngineModel::new);
    let mut spec = MockSpec::new(name, models);
    spec.pace.first_token = Duration::from_millis(20);
    start(MockSpec { flavour: Flavour::Ollama, memory: Some(1), ..spec })
}

fn start_before(engines: &[&MockEngine], routing: &str, rest: &str, sections: &str) -> Penstock {
    let items = backends(engines, &format!("engine: ollama, {rest}"));
    Penstock::start(&format!("routing: {{ {routing} }}\n{sections}\n{items}"))
}

/// A row of `models` in `/fleet`.
fn model(penstock: &Penstock, backend: &str, id: &str) -> Value {
    let row = penstock.backend(backend);
    let models = row["models"].as_array().cloned().unwrap_or_default();
    models.into_iter().find(|model| model["id"] == id).unwrap_or_default()
}

fn residency(penstock: &Penstock, backend: &str, id: &str) -> String {
    model(penstock, backend, id)["residency"].as_str().unwrap_or("unknown").to_owned()
}

fn loads(engines: &[&MockEngine]) -> usize {
    engines.iter().map(|engine| engine.counters().loads).sum()
}

#[test]
fn requests_go_where_their_model_is_in_memory() {
    let (a, b) = (ollama("a"), ollama("b"));
    let penstock = start_before(&[&a, &b], "strategy: deployment", "vram: 6GiB", "");
    assert_eq!(penstock.chat("m").status, 200);
    let [home, other] = if a.counters().requests == 1 { ["a", "b"] } else { ["b", "a"] };
    eventually("its memory is read again", SOON, || {
        penstock.backend(home)["models_in_memory"] == 1
    });
    assert_eq!(residency(&penstock, home, "m"), "resident");
    assert_eq!(residency(&penstock, other, "m"), "loadable");
    assert_eq!(model(&penstock, home, "m")["vram_bytes"], 5_000_000_000_u64);
    assert_eq!(penstock.chat("n").status, 200, "the other one has nothing in memory");
    for _ in 0..5 {
        assert_eq!((penstock.chat("m").status, penstock.chat("n").status), (200, 200));
    }
    assert_eq!(shares(&[&a, &b]), [6, 6]);
    assert_eq!(loads(&[&a, &b]), 2, "each model was loaded once");
    let is_resident = format!("penstock_model_resident{{backend=\"{home}\",model=\"m\"}}");
    assert!((metric(&penstock, &is_resident) - 1.0).abs() < 0.1);
    let vram = format!("penstock_model_vram_bytes{{backend=\"{home}\",model=\"m\"}}");
    assert!((metric(&penstock, &vram) - 5e9).abs() < 1.0);
}

/// Chats of two models, each with its own number of requests at a time, as `threads` clients send
/// them.
fn mix(penstock: &Penstock, threads: usize, each: usize) {
    thread::scope(|scope| {
        for number in 0..threads {
            scope.spawn(move || {
                let mut client = Client::connect(penstock.data);
                for turn in 0..each {
                    let model = if (turn * 7 + number) % 3 == 0 { "n" } else { "m" };
                    let body = chat(model, "x").to_string();
                    client.send("POST", CHAT, &[], body.as_bytes());
                    assert_eq!(client.read_response().unwrap().status, 200);
                }
            });
        }
    });
}

#[test]
fn model_swaps_are_fewer_than_in_turn() {
    let count = |routing: &str| {
        let engines = ["a", "b", "c", "d"].map(unhurried_ollama);
        let engines = engines.each_ref();
        let penstock = start_before(&engines, routing, "num_parallel: 4", "");
        mix(&penstock, 4, 100);
        loads(&engines)
    };
    let (deployment, in_turn) = (count("strategy: deployment"), count("strategy: round_robin"));
    println!("models loaded in 400 requests: deployment {deployment}, round_robin {in_turn}");
    // The first requests come at once: both models may start on one backend.
    assert!(deployment <= 20, "{deployment} loads of two models on four backends");
    assert!(in_turn > 2 * deployment, "{in_turn} against {deployment}");
}

/// Sends a command of the admin API.
fn steer(penstock: &Penstock, path: &str) {
    assert_eq!(client::request(penstock.admin, "POST", path, &[], b"").status, 200);
}

#[test]
fn models_loading_on_one_backend_spread_over_both() {
    let (a, b) = (unhurried_ollama("a"), unhurried_ollama("b"));
    let penstock = start_before(&[&a, &b], "strategy: deployment", "num_parallel: 8", "");
    steer(&penstock, "/backends/b/drain");
    let gate = Gate::new();
    a.script(vec![Fault::Gate(gate.clone()); 2]);
    let (sender, responses) = mpsc::channel();
    for (number, id) in ["m", "n"].into_iter().enumerate() {
        spawn_chat(&penstock, id, &sender);
        block_on(gate.reached_by(number + 1));
    }
    steer(&penstock, "/backends/b/resume");
    mix(&penstock, 4, 50);
    gate.open();
    for _ in 0..2 {
        assert_eq!(responses.recv_timeout(SOON).unwrap().status, 200);
    }
    mix(&penstock, 4, 10);
    assert_eq!(loads(&[&a, &b]), 3, "both on a, and then m on b");
}

#[test]
fn model_that_waits_for_memory_makes_the_one_in_it_loadable() {
    let (a, b) = (unhurried_ollama("a"), unhurried_ollama("b"));
    let often = "discovery: { loaded_interval: 50ms }";
    let penstock = start_before(&[&a, &b], "strategy: deployment", "num_parallel: 4", often);
    steer(&penstock, "/backends/b/drain");
    assert_eq!(penstock.chat("m").status, 200);
    let gate = Gate::new();
    a.script([Fault::Gate(gate.clone())]);
    let (sender, responses) = mpsc::channel();
    spawn_chat(&penstock, "n", &sender);
    block_on(gate.reached_by(1));
    // Ollama lists m until its requests have ended, and loads n only then.
    let page = json!({"models": [{"model": "m", "size_vram": 7}]});
    a.set_page("/api/ps", Some(&page.to_string()));
    eventually("a query shows m alone", SOON, || model(&penstock, "a", "m")["vram_bytes"] == 7);
    steer(&penstock, "/backends/b/resume");
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(shares(&[&a, &b]), [2, 1], "n is about to evict m on a");
    gate.open();
    assert_eq!(responses.recv_timeout(SOON).unwrap().status, 200);
}

#[test]
fn model_evicted_past_penstock_is_loaded_elsewhere() {
    let (a, b) = (unhurried_ollama("a"), unhurried_ollama("b"));
    let often = "discovery: { loaded_interval: 50ms }";
    let penstock = start_before(&[&a, &b], "strategy: deployment", "num_parallel: 4", often);
    assert_eq!(penstock.chat("m").status, 200);
    let (home, other) = if a.counters().requests == 1 { (&a, &b) } else { (&b, &a) };
    let name = home.spec().name.as_str();
    eventually("a query shows m", SOON, || model(&penstock, name, "m")["vram_bytes"].is_number());
    let gate = Gate::new();
    home.script([Fault::Gate(gate.clone())]);
    let (sender, responses) = mpsc::channel();
    spawn_chat(&penstock, "m", &sender);
    block_on(gate.reached_by(1));
    assert_eq!(client::post(home.addr(), CHAT, &chat("n", "x")).status, 200, "sent directly");
    eventually("a query shows n alone", SOON, || residency(&penstock, name, "m") == "loadable");
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(shares(&[home, other]), [3, 1], "although m is in flight at its home");
    gate.open();
    assert_eq!(responses.recv_timeout(SOON).unwrap().status, 200);
}

#[test]
fn responses_show_what_is_in_memory_where_queries_fail() {
    let (a, b) = (ollama("a"), ollama("b"));
    for engine in [&a, &b] {
        engine.set_page("/api/ps", Some("nonsense"));
    }
    let penstock = start_before(&[&a, &b], "strategy: deployment", "num_parallel: 4", "");
    for _ in 0..6 {
        assert_eq!((penstock.chat("m").status, penstock.chat("n").status), (200, 200));
    }
    // Both may come to one backend first.
    assert!(loads(&[&a, &b]) <= 3, "each model stays where its responses come from");
}

#[test]
fn equals_share_requests_evenly() {
    let engines = ["a", "b", "c"].map(|name| start(MockSpec::new(name, [EngineModel::new("m")])));
    let items = backends(&engines.each_ref(), "engine: other, models: [m]");
    let penstock = Penstock::start(&format!("routing: {{ strategy: deployment }}\n{items}"));
    let mut client = Client::connect(penstock.data);
    for _ in 0..1000 {
        client.send("POST", CHAT, &[], chat("m", "x").to_string().as_bytes());
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    let shares = shares(&engines.each_ref());
    assert!(shares.iter().all(|share| (300..=366).contains(share)), "{shares:?}");
}

/// Sends a chat from a new thread; the response arrives through the channel.
fn spawn_chat(penstock: &Penstock, model: &str, responses: &mpsc::Sender<Response>) {
    let (address, responses) = (penstock.data, responses.clone());
    let body = chat(model, "x").to_string();
    thread::spawn(move || {
        let mut client = Client::connect(address);
        client.send("POST", CHAT, &[], body.as_bytes());
        // The receiver is gone when the test has already failed.
        drop(responses.send(client.read_response().unwrap()));
    });
}

fn gated(engines: &[&MockEngine]) -> Gate {
    let gate = Gate::new();
    engines.iter().for_each(|engine| engine.always(Some(Fault::Gate(gate.clone()))));
    gate
}

#[test]
fn limits_per_model_hold_under_parallel_requests() {
    let engines = ["a", "b", "c"].map(ollama);
    let engines = engines.each_ref();
    let gate = gated(&engines);
    let penstock = start_before(&engines, "strategy: deployment", "num_parallel: 2", "");
    let (sender, responses) = mpsc::channel();
    for _ in 0..200 {
        spawn_chat(&penstock, "m", &sender);
    }
    for _ in 0..194 {
        let response = responses.recv_timeout(SOON).unwrap();
        assert_eq!((response.status, response.error_code().as_str()), (503, "all_backends_busy"));
        assert!(response.header("retry-after").is_some());
    }
    block_on(gate.reached_by(6));
    assert_eq!(shares(&engines), [2, 2, 2], "every slot is used, none twice");
    assert_eq!(model(&penstock, "a", "m")["in_flight"], 2);
    let in_flight = "penstock_model_in_flight{backend=\"a\",model=\"m\"}";
    assert!((metric(&penstock, in_flight) - 2.0).abs() < 0.1);
    spawn_chat(&penstock, "n", &sender);
    block_on(gate.reached_by(7));
    gate.open();
    for _ in 0..7 {
        assert_eq!(responses.recv_timeout(SOON).unwrap().status, 200);
    }
    eventually("the counts vanish", SOON, || {
        let left = ["a", "b", "c"].map(|name| model(&penstock, name, "m")["in_flight"].clone());
        left.iter().all(Value::is_null)
            && !penstock.admin("/metrics").text().contains("penstock_model_in_flight{")
    });
}

#[test]
fn saturated_backends_are_exceeded_only_where_requests_spill() {
    let (a, b) = (ollama("a"), ollama("b"));
    let gate = gated(&[&a, &b]);
    let routing = "strategy: deployment, spill: true";
    let penstock = start_before(&[&a, &b], routing, "max_in_flight: 3", "");
    let (sender, responses) = mpsc::channel();
    for count in 1..=6 {
        spawn_chat(&penstock, "m", &sender);
        block_on(gate.reached_by(count));
    }
    assert_eq!(shares(&[&a, &b]), [3, 3], "the least used first");
    assert_eq!(penstock.chat("m").status, 503, "the limits of backends hold");
    gate.open();
    for _ in 0..6 {
        assert_eq!(responses.recv_timeout(SOON).unwrap().status, 200);
    }
}

#[test]
fn disconnect_frees_the_slot() {
    let a = ollama("a");
    let penstock = start_before(&[&a], "strategy: deployment", "", "");
    for body in [chat("m", "x"), streaming_chat("m", "x")] {
        let gate = gated(&[&a]);
        let mut client = Client::connect(penstock.data);
        client.send("POST", CHAT, &[], body.to_string().as_bytes());
        block_on(gate.reached_by(1));
        assert_eq!(penstock.chat("m").status, 503, "Ollama runs one request of a model");
        drop(client);
        let limit = Duration::from_secs(1);
        eventually("the slot is free within a second", limit, || {
            model(&penstock, "a", "m")["in_flight"].is_null()
        });
        a.always(None);
        assert_eq!(penstock.chat("m").status, 200);
    }
}

#[test]
fn names_with_and_without_latest_are_one_model() {
    let spec = |name: &str, flavour, id: &str| {
        start(MockSpec { flavour, ..MockSpec::new(name, [EngineModel::new(id)]) })
    };
    let ollama = spec("ollama", Flavour::Ollama, "qwen:latest");
    let vllm = spec("vllm", Flavour::Vllm, "qwen");
    let items =
        backend(&ollama, "engine: ollama, num_parallel: 9") + &backend(&vllm, "engine: vllm");
    let penstock =
        Penstock::start(&format!("routing: {{ strategy: round_robin }}\nbackends:\n{items}"));
    assert_eq!(penstock.get("/v1/models").json()["data"].as_array().unwrap().len(), 1);
    for name in ["qwen", "qwen:latest", "QWEN", "Qwen:Latest"] {
        let responses = [penstock.chat(name), penstock.chat(name)];
        assert!(responses.iter().all(|response| response.status == 200), "{name}");
    }
    assert_eq!(shares(&[&ollama, &vllm]), [4, 4], "each by its own spelling");
}

#[test]
fn unloaded_model_is_seen_at_once() {
    let a = ollama("a");
    let penstock = start_before(&[&a], "strategy: deployment", "num_parallel: 4", "");
    assert_eq!(penstock.chat("m").status, 200);
    eventually("it is loaded", SOON, || residency(&penstock, "a", "m") == "resident");
    let unload = json!({"model": "M:latest", "keep_alive": 0});
    assert_eq!(penstock.post("/api/generate", &unload).status, 200);
    assert_eq!(last_body(&a), unload.to_string().as_bytes(), "Ollama takes the client's spelling");
    eventually("long before the interval", SOON, || {
        residency(&penstock, "a", "m") == "loadable"
            && penstock.backend("a")["models_in_memory"] == 0
    });
}

#[test]
fn forwarded_404_refreshes_the_list() {
    let a = ollama("a");
    let tags = json!({"models": [{"model": "m"}, {"model": "ghost"}]}).to_string();
    a.set_page("/api/tags", Some(&tags));
    let penstock = start_before(&[&a], "strategy: deployment", "num_parallel: 4", "");
    assert!(!model(&penstock, "a", "ghost").is_null());
    a.set_page("/api/tags", None);
    assert_eq!(penstock.chat("ghost").status, 404, "the engine's own response");
    eventually("the list is read again, long before its interval", SOON, || {
        model(&penstock, "a", "ghost").is_null() && !model(&penstock, "a", "n").is_null()
    });
    assert_eq!(penstock.chat("ghost").error_code(), "model_not_found");
    let tags = || {
        let probes = a.probes();
        probes.iter().filter(|probe| probe.path() == "/api/tags").count()
    };
    let before = tags();
    let (sender, responses) = mpsc::channel();
    a.always(Some(Fault::status(404)));
    for _ in 0..40 {
        spawn_chat(&penstock, "m", &sender);
    }
    for _ in 0..40 {
        responses.recv_timeout(SOON).unwrap();
    }
    assert!(tags() - before <= 3, "clients cause at most a query per second: {}", tags() - before);
}

#[test]
fn failing_query_changes_nothing_else() {
    let a = ollama("a");
    let often = "discovery: { interval: 100ms, loaded_interval: 100ms, error_interval: 50ms }";
    let penstock = start_before(&[&a], "strategy: deployment", "num_parallel: 4", often);
    assert_eq!(penstock.chat("m").status, 200);
    let queries = |path: &str| a.probes().iter().filter(|probe| probe.path() == path).count();
    for broken in ["/api/ps", "/api/tags", "/api/show"] {
        a.set_page(broken, Some("nonsense"));
        let other = if broken == "/api/ps" { "/api/tags" } else { "/api/ps" };
        let before = [queries(other), queries(broken)];
        eventually("both are queried", SOON, || {
            let more = queries(other) > before[0] + 3;
            more && (broken == "/api/show" || queries(broken) > before[1] + 3)
        });
        assert_eq!(penstock.backend("a")["health"], "healthy", "{broken}");
        assert!(!model(&penstock, "a", "n").is_null(), "{broken} is no reason to drop a model");
        assert_eq!(penstock.chat("m").status, 200, "{broken}");
        a.set_page(broken, None);
    }
    assert_eq!(residency(&penstock, "a", "m"), "resident");
}

#[test]
fn dead_backend_is_retested_by_checks_alone() {
    let (a, b) = (ollama("a"), ollama("b"));
    let rest = "num_parallel: 99, health: { interval: 100ms, unhealthy_interval: 200ms, fall: 2 }";
    let penstock = start_before(&[&a, &b], "strategy: deployment", rest, "");
    block_on(a.kill()).unwrap();
    eventually("it is unhealthy", SOON, || penstock.backend("a")["health"] == "unhealthy");
    let attempts = || penstock.admin("/metrics").text().contains("attempts_total{backend=\"a\"");
    for _ in 0..30 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert!(!attempts(), "no request tries it");
    assert_eq!(residency(&penstock, "a", "m"), "unknown", "its memory is gone");
    block_on(a.resume()).unwrap();
    eventually("a check finds it again", SOON, || penstock.backend("a")["health"] == "healthy");
    eventually("its memory is read", SOON, || residency(&penstock, "a", "n") == "loadable");
}

#[test]
fn sleeping_and_unloaded_models_differ() {
    let spec = |name: &str, flavour| {
        start(MockSpec { flavour, ..MockSpec::new(name, ["m", "n"].map(EngineModel::new)) })
    };
    let (cpp, vllm) = (spec("cpp", Flavour::LlamaCpp), spec("vllm", Flavour::Vllm));
    let studio = spec("studio", Flavour::Plain);
    let list = json!({"data": [
        {"id": "m", "status": {"value": "loaded"}}, {"id": "n", "status": {"value": "unloaded"}},
        {"id": "o", "status": {"value": "sleeping"}},
    ]});
    cpp.set_page("/v1/models", Some(&list.to_string()));
    vllm.set_page("/is_sleeping", Some("{\"is_sleeping\": true}"));
    let list =
        json!({"data": [{"id": "m", "state": "loaded"}, {"id": "n", "state": "not-loaded"}]});
    studio.set_page("/api/v0/models", Some(&list.to_string()));
    let items = backend(&cpp, "engine: llamacpp")
        + &backend(&vllm, "engine: vllm")
        + &backend(&studio, "engine: lmstudio");
    let penstock = Penstock::start(&format!(
        "routing: {{ strategy: deployment }}\ndiscovery: {{ interval: 200ms, loaded_interval: 100ms }}\nbackends:\n{items}"
    ));
    let expect = |backend: &str, id: &str, expected: &str| {
        eventually(&format!("{id} is {expected} on {backend}"), SOON, || {
            residency(&penstock, backend, id) == expected
        });
    };
    for (backend, id, expected) in [
        ("cpp", "m", "resident"),
        ("cpp", "n", "loadable"),
        ("cpp", "o", "sleeping"),
        ("vllm", "m", "sleeping"),
        ("studio", "m", "resident"),
        ("studio", "n", "loadable"),
    ] {
        expect(backend, id, expected);
    }
    vllm.set_page("/is_sleeping", Some("{\"is_sleeping\": false}"));
    expect("vllm", "m", "resident");
    cpp.set_page("/v1/models", None);
    cpp.set_page("/props", Some("{\"is_sleeping\": true, \"total_slots\": 3}"));
    expect("cpp", "m", "sleeping");
    eventually("its slots bound the model", SOON, || model(&penstock, "cpp", "m")["slots"] == 3);
}

#[test]
fn decisions_are_explained_and_replayed() {
    let (a, b) = (ollama("a"), ollama("b"));
    let penstock = start_before(&[&a, &b], "strategy: deployment", "num_parallel: 4", "");
    penstock.admin("/decisions?capture=true");
    mix(&penstock, 4, 256);
    let question = json!({"path": CHAT, "body": chat("m", "x").to_string()});
    let explained = client::post(penstock.admin, "/explain", &question).json();
    let candidates = explained["decision"]["candidates"].as_array().unwrap();
    assert!(candidates.iter().all(|one| one["residency"].is_string() && one["slots"] == 4));
    let captured = penstock.admin("/decisions?capture=true").text();
    let captured = file("captured.json", captured);
    let replayed = run(["explain", "--decision", captured.to_str().unwrap()]);
    assert!(replayed.stdout.contains("1024 decisions, 1024 identical"), "{}", replayed.stdout);
}

/// Clients of OpenAI and Anthropic get the context that the operator configured for a model, and a
/// backend that has it in memory with less is the second choice.
#[test]
fn configured_context_is_requested_and_preferred() {
    let (a, b) = (ollama("a"), ollama("b"));
    for (engine, length) in [(&a, 4096), (&b, 32_768)] {
        let page = json!({"models": [{"name": "m", "model": "m", "size_vram": 5_000_000_000_u64,
            "expires_at": "2318-01-01T00:00:00Z", "context_length": length}]});
        engine.set_page("/api/ps", Some(&page.to_string()));
    }
    let models = "models: { m: { num_ctx: 16384 } }\ndiscovery: { loaded_interval: 100ms }";
    let penstock = start_before(&[&a, &b], "strategy: deployment", "num_parallel: 4", models);
    eventually("both were probed", SOON, || {
        residency(&penstock, "a", "m") == "loadable" && residency(&penstock, "b", "m") == "resident"
    });
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body) in [
        (CHAT, json!({"model": "m", "messages": messages})),
        ("/v1/messages", json!({"model": "m", "messages": messages, "max_tokens": 9})),
        ("/v1/responses", json!({"model": "m", "input": "hello"})),
    ] {
        let response = client::post(penstock.data, path, &body);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let sent = b.received().pop().unwrap();
        let body: Value = serde_json::from_slice(&sent.body.clone().unwrap()).unwrap();
        assert_eq!((sent.path(), &body["options"]["num_ctx"]), ("/api/chat", &json!(16_384)));
    }
    assert_eq!(shares(&[&a, &b]), [0, 3]);
}
