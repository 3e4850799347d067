//! Model discovery: an operator lists addresses only; penstock discovers each engine's models,
//! their context length and capabilities, and follows changes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use penstock_api::Capabilities;
use penstock_mock::{EngineModel, Fault, Flavour, Gate, MockEngine, MockSpec};
use serde_json::{Value, json};

use crate::support::client::{self, chat};
use crate::support::command::run;
use crate::support::engines::{backend, backends, engine, model, shares, start};
use crate::support::fleet::{begin, metric};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const SOON: Duration = Duration::from_secs(10);
const CHAT: &str = "/v1/chat/completions";

fn flavoured(
    name: &str,
    flavour: Flavour,
    models: impl IntoIterator<Item = EngineModel>,
) -> MockEngine {
    start(MockSpec { flavour, ..MockSpec::new(name, models) })
}

#[test]
fn lm_studio_is_detected_by_its_own_list() {
    let studio = flavoured("studio", Flavour::Plain, [model("m", 100, Capabilities::ALL)]);
    let list = json!({"object": "list", "data": [{"id": "m", "state": "not-loaded"}]});
    studio.set_page("/api/v0/models", Some(&list.to_string()));
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&studio, "engine: auto")));
    assert_eq!(penstock.backend("studio")["engine"], "lmstudio");
    let response = penstock.post("/tokenize", &json!({"model": "m", "prompt": "x"}));
    assert_eq!(response.error_code(), "capability_mismatch", "it has no such operation");
}

#[test]
fn context_of_lm_studio_is_the_one_that_a_model_is_loaded_with() {
    let studio = flavoured("studio", Flavour::Plain, [model("m", 1_000_000, Capabilities::ALL)]);
    let set_state = |state: &str| {
        let entry = json!({"id": "m", "state": state, "max_context_length": 4000,
            "loaded_context_length": 100});
        studio.set_page("/api/v0/models", Some(&json!({"data": [entry]}).to_string()));
    };
    set_state("loaded");
    let penstock = Penstock::start(&format!(
        "discovery: {{ loaded_interval: 50ms }}\nbackends:\n{}",
        backend(&studio, "engine: lmstudio")
    ));
    let long = chat("m", &"x".repeat(2000));
    assert_eq!(penstock.post(CHAT, &long).error_code(), "context_length_exceeded");
    set_state("not-loaded");
    eventually("the model is no longer loaded with 100 tokens", SOON, || {
        penstock.backend("studio")["models"][0]["context_length"] == 4000
    });
    assert_eq!(penstock.post(CHAT, &long).status, 200);
}

#[test]
fn prompt_goes_where_the_base_model_of_an_adapter_has_the_context() {
    let flavoured =
        |name| flavoured(name, Flavour::Vllm, [model("sql", 1_000_000, Capabilities::ALL)]);
    let (short, long) = (flavoured("short"), flavoured("long"));
    for (engine, length) in [(&short, 100), (&long, 4000)] {
        let list = json!({"data": [
            {"id": "base", "owned_by": "vllm", "max_model_len": length},
            {"id": "sql", "owned_by": "vllm", "parent": "base", "max_model_len": null},
        ]});
        engine.set_page("/v1/models", Some(&list.to_string()));
    }
    let penstock = Penstock::start(&backends(&[&short, &long], ""));
    for _ in 0..3 {
        assert_eq!(penstock.post(CHAT, &chat("sql", &"x".repeat(2000))).status, 200);
    }
    assert_eq!(shares(&[&short, &long]), [0, 3]);
}

#[test]
fn anthropic_is_probed_with_its_own_headers() {
    let hosted = flavoured("hosted", Flavour::Plain, [model("m", 100, Capabilities::ALL)]);
    let rest = "engine: anthropic, api_key: sk-1, models: [m]";
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&hosted, rest)));
    assert_eq!(penstock.chat("m").status, 200, "chat is converted to messages");
    assert_eq!(hosted.received().pop().unwrap().path(), "/v1/messages");
    let probe = hosted.probes().pop().unwrap();
    assert_eq!(probe.header("x-api-key"), Some("sk-1"));
    assert_eq!(probe.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(probe.header("authorization"), None);
}

#[test]
fn models_of_each_engine_are_discovered() {
    let vision = Capabilities::VISION;
    let engines = [
        flavoured("vllm", Flavour::Vllm, [model("org/vllm-8B", 8192, vision)]),
        flavoured("llamacpp", Flavour::LlamaCpp, [model("cpp", 4096, vision)]),
        flavoured(
            "ollama",
            Flavour::Ollama,
            [
                model("ollama:7b", 2048, Capabilities::TOOLS),
                model("plain:1b", 1024, Capabilities::NONE),
            ],
        ),
        flavoured("plain", Flavour::Plain, [model("gpt", 100, Capabilities::ALL)]),
    ];
    for is_named in [false, true] {
        let items: String = engines
            .iter()
            .map(|one| {
                let name = if one.spec().name == "plain" { "openai" } else { &one.spec().name };
                backend(one, &format!("engine: {}", if is_named { name } else { "auto" }))
            })
            .collect();
        let penstock = Penstock::start(&format!("backends:\n{items}"));
        for name in ["vllm", "llamacpp", "ollama"] {
            assert_eq!(penstock.backend(name)["engine"], name, "detected: {}", !is_named);
        }
        let undetected = if is_named { "openai" } else { "auto" };
        assert_eq!(penstock.backend("plain")["engine"], undetected);
        let facts = |backend: &str| {
            let models = penstock.backend(backend)["models"].as_array().unwrap().clone();
            let fact = |model: &Value| {
                (
                    model["id"].as_str().unwrap().to_owned(),
                    model["context_length"].as_u64(),
                    model["capabilities"].clone(),
                )
            };
            models.iter().map(fact).collect::<Vec<_>>()
        };
        let unknown = Value::Null;
        assert_eq!(facts("vllm"), [("org/vllm-8B".to_owned(), Some(8192), unknown.clone())]);
        let all = json!(["vision", "tools", "json_mode"]);
        assert_eq!(facts("llamacpp"), [("cpp".to_owned(), Some(4096), all)]);
        let tools = ("ollama:7b".to_owned(), Some(2048), json!(["tools", "json_mode"]));
        let none = ("plain:1b".to_owned(), Some(1024), json!(["json_mode"]));
        assert_eq!(facts("ollama"), [tools, none]);
        assert_eq!(facts("plain"), [("gpt".to_owned(), None, unknown)]);
        for name in ["org/vllm-8B", "cpp", "ollama:7b", "plain:1b", "gpt"] {
            assert_eq!(penstock.chat(name).status, 200, "request for {name}");
        }
        assert_eq!(penstock.get("/v1/models").json()["data"].as_array().unwrap().len(), 5);
        assert_eq!(
            penstock.chat("unknown").error_code(),
            "model_not_found",
            "all models are known"
        );
    }
}

#[test]
fn discovered_facts_decide_routing() {
    let (blind, sees) = (
        flavoured("blind", Flavour::Ollama, [model("m", 100, Capabilities::NONE)]),
        flavoured("sees", Flavour::Ollama, [model("m", 1000, Capabilities::VISION)]),
    );
    let penstock = Penstock::start(&format!(
        "backends:\n{}{}",
        backend(&blind, "priority: 1"),
        backend(&sees, "priority: 99")
    ));
    let parts = json!([{"type": "image_url", "image_url": {"url": "data:,"}}]);
    let image = json!({"model": "m", "messages": [{"role": "user", "content": parts}]});
    assert_eq!(penstock.post(CHAT, &image).status, 200);
    assert_eq!(penstock.post(CHAT, &chat("m", &"x".repeat(404))).status, 200);
    assert_eq!(shares(&[&blind, &sees]), [0, 2]);
    let response = penstock.post(CHAT, &chat("m", &"x".repeat(4004)));
    assert_eq!(response.error_code(), "context_length_exceeded");
    let mut tools = chat("m", "x");
    tools["tools"] = json!([]);
    assert_eq!(penstock.post(CHAT, &tools).error_code(), "capability_mismatch");
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(shares(&[&blind, &sees]), [1, 2]);
}

#[test]
fn declared_facts_win() {
    let engine = flavoured(
        "one",
        Flavour::Ollama,
        [model("real", 4096, Capabilities::VISION), model("other", 4096, Capabilities::VISION)],
    );
    let models = "models: [{ id: m, upstream_id: real, context_length: 50 }, { id: other, capabilities: [] }]";
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, models)));
    let fleet = penstock.backend("one");
    assert_eq!(fleet["models"][0]["context_length"], 50, "declared");
    assert_eq!(fleet["models"][0]["capabilities"], json!(["vision", "json_mode"]), "discovered");
    assert_eq!(fleet["models"][1]["capabilities"], json!([]), "declared to have none");
    assert_eq!(penstock.chat("real").status, 404, "a declared list is the whole list");
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn unknown_model_waits_for_discovery() {
    let (declared, silent) = (engine("declared", &["m"]), engine("silent", &["late"]));
    silent.always_probes(Some(Fault::HangBeforeHead));
    let yaml = format!(
        "health: {{ timeout: 2s, unhealthy_interval: 100ms, rise: 1 }}\nbackends:\n{}{}",
        backend(&declared, "models: [m]"),
        backend(&silent, "")
    );
    let penstock = Penstock::start(&yaml);
    assert_eq!(penstock.chat("m").status, 200, "known models are served");
    for name in ["late", "unknown"] {
        let response = penstock.chat(name);
        assert_eq!((response.status, response.error_code().as_str()), (503, "discovery_pending"));
        assert_eq!(response.header("retry-after"), Some("1"));
        assert_eq!(penstock.get(&format!("/v1/models/{name}")).status, 503);
    }
    silent.always_probes(None);
    eventually("the models of the silent engine are discovered", SOON, || {
        penstock.chat("late").status == 200
    });
    assert_eq!(penstock.chat("unknown").error_code(), "model_not_found");
}

#[test]
fn discovery_gives_up_on_a_backend_that_never_reports() {
    let (up, down) = (engine("up", &["m"]), engine("down", &["late"]));
    let address = down.addr();
    block_on(down.kill()).unwrap();
    let yaml = format!(
        "discovery: {{ give_up: 700ms }}\nhealth: {{ interval: 50ms, unhealthy_interval: 50ms }}\n\
         backends:\n{}  - {{ name: down, url: \"http://{address}\" }}\n",
        backend(&up, "")
    );
    let penstock = Penstock::start(&yaml);
    eventually("the wait ends", SOON, || penstock.chat("typo").status == 404);
    let response = penstock.chat("typo");
    assert_eq!(response.error_code(), "model_not_found");
    assert_eq!(response.header("x-should-retry"), Some("false"));
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("backends that have never reported their models: down"), "{message}");
    assert!(!message.contains(&address.port().to_string()), "no address: {message}");
    let one = penstock.get("/v1/models/typo");
    assert_eq!((one.status, one.json()["error"]["message"].as_str()), (404, Some(&*message)));
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn models_of_an_unhealthy_backend_stay_known() {
    let engine = engine("one", &["m"]);
    let yaml =
        format!("health: {{ interval: 50ms, fall: 1 }}\nbackends:\n{}", backend(&engine, ""));
    let penstock = Penstock::start(&yaml);
    assert_eq!(penstock.chat("m").status, 200);
    engine.set_health(500);
    eventually("the backend is unhealthy", SOON, || {
        penstock.backend("one")["health"] == "unhealthy"
    });
    let response = penstock.chat("m");
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (503, "no_healthy_backend"),
        "no 404"
    );
    assert_eq!(penstock.get("/v1/models/m").status, 200);
    assert_eq!(penstock.chat("unknown").status, 404);
}

/// A server that always passes its health checks and lists the models it is given.
struct Lists {
    address: SocketAddr,
    /// The ids it lists; none means a 500.
    ids: Arc<Mutex<Option<Vec<&'static str>>>>,
    queries: Arc<AtomicUsize>,
}

impl Lists {
    fn start(first: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ids = Arc::new(Mutex::new(Some(first.to_vec())));
        let queries = Arc::new(AtomicUsize::new(0));
        let (listed, count) = (Arc::clone(&ids), Arc::clone(&queries));
        // The thread ends with the process and keeps its port until then.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (listed, count) = (Arc::clone(&listed), Arc::clone(&count));
                thread::spawn(move || {
                    let listed = |target: &str| {
                        if !target.contains("/v1/models") {
                            return Some(list_of(&[]));
                        }
                        count.fetch_add(1, Ordering::SeqCst);
                        Some(list_of(listed.lock().unwrap().as_ref()?))
                    };
                    // A connection closed without a request is no failure.
                    drop(respond_once(stream, listed));
                });
            }
        });
        Self { address, ids, queries }
    }

    fn set(&self, ids: Option<&[&'static str]>) {
        *self.ids.lock().unwrap() = ids.map(<[_]>::to_vec);
    }
}

fn list_of(ids: &[&str]) -> Value {
    let data: Vec<Value> = ids.iter().map(|id| json!({"id": id, "object": "model"})).collect();
    json!({"object": "list", "data": data})
}

/// Reads one whole request and responds with a page, or with a 500.
fn respond_once(
    stream: TcpStream,
    page: impl FnOnce(&str) -> Option<Value>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut target, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut target)?;
    while reader.read_line(&mut line)? > 2 {
        if let Some(digits) = line.to_lowercase().strip_prefix("content-length:") {
            length = digits.trim().parse().unwrap();
        }
        line.clear();
    }
    reader.read_exact(&mut vec![0; length])?;
    let page = page(&target);
    let status = if page.is_some() { "200 OK" } else { "500 Oops" };
    let body = page.unwrap_or_default().to_string();
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    reader.get_mut().write_all(&[head, body].concat().into_bytes())
}

#[test]
fn model_lists_are_refreshed_and_survive_failures() {
    let lists = Lists::start(&["a"]);
    let yaml = format!(
        "discovery: {{ interval: 50ms }}\nhealth: {{ interval: 50ms, path: /health }}\n\
         backends: [{{ name: one, url: \"http://{}\", engine: openai }}]",
        lists.address
    );
    let penstock = Penstock::start(&yaml);
    let ids = || {
        let list = penstock.get("/v1/models").json();
        let ids = list["data"].as_array().unwrap().iter();
        ids.map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(), ["a"]);
    lists.set(Some(&["a", "b"]));
    eventually("the new model is known", SOON, || ids() == ["a", "b"]);
    lists.set(None);
    let before = lists.queries.load(Ordering::SeqCst);
    eventually("discovery fails three times", SOON, || {
        lists.queries.load(Ordering::SeqCst) > before + 3
    });
    assert_eq!(ids(), ["a", "b"], "a failing discovery keeps the last list");
    assert_eq!(penstock.backend("one")["health"], "healthy");
    assert!(penstock.log().contains("discovery failed"), "{}", penstock.log());
    lists.set(Some(&["b"]));
    eventually("a removed model is forgotten", SOON, || ids() == ["b"]);
}

/// An Ollama with the models `m0` to `m9`, which shows details while `shows` is true.
fn slow_ollama(shows: &Arc<(Mutex<bool>, Condvar)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let shows = Arc::clone(shows);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let shows = Arc::clone(&shows);
            thread::spawn(move || {
                let page = |target: &str| {
                    let path = target.split(' ').nth(1)?;
                    if path == "/api/show" {
                        let (shown, changed) = &*shows;
                        let is_shown = shown.lock().unwrap();
                        drop(changed.wait_while(is_shown, |is_shown| !*is_shown).unwrap());
                        return Some(json!({"model_info": {"llama.context_length": 100}}));
                    }
                    let tag = |number| {
                        let name = format!("m{number}");
                        json!({"name": name, "model": name, "digest": name})
                    };
                    let models: Vec<Value> = (0..10).map(tag).collect();
                    Some(match path {
                        "/api/tags" => json!({"models": models}),
                        "/api/ps" => json!({"models": []}),
                        "/api/version" => json!({"version": "0.13.0"}),
                        _ => {
                            json!({"message": {"role": "assistant", "content": "x"}, "done": true})
                        }
                    })
                };
                // A connection closed without a request is no failure.
                drop(respond_once(stream, page));
            });
        }
    });
    address
}

#[test]
fn models_of_an_ollama_serve_before_it_has_shown_their_details() {
    let shows = Arc::default();
    let address = slow_ollama(&shows);
    let yaml = format!(
        "discovery: {{ timeout: 1s, interval: 100ms }}\n\
         backends: [{{ name: one, url: \"http://{address}\", engine: ollama }}]"
    );
    let penstock = Penstock::start(&yaml);
    let is_shown = |model: &Value| model["context_length"] == 100;
    let models = || penstock.backend("one")["models"].as_array().unwrap().clone();
    assert_eq!((models().len(), models().iter().filter(|one| is_shown(one)).count()), (10, 0));
    let request = json!({"model": "m9", "stream": false, "messages": []});
    assert_eq!(penstock.post("/api/chat", &request).status, 200);
    let (shown, changed) = &*shows;
    *shown.lock().unwrap() = true;
    changed.notify_all();
    eventually("all details are known", SOON, || models().iter().all(is_shown));
    assert_eq!(models().len(), 10);
}

#[test]
fn every_page_of_a_list_is_read_and_other_names_of_a_model_serve() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let page = |target: &str| {
                Some(match target.split(' ').nth(1)? {
                    "/v1/models" => json!({"data": [{"id": "a"}], "has_more": true}),
                    "/v1/models?limit=1000&after_id=a" => json!({"data": [
                        {"id": "b-2411", "max_context_length": 100, "aliases": ["b-latest", "a"]},
                    ], "has_more": false}),
                    _ => json!({"object": "chat.completion", "choices": [
                        {"index": 0, "message": {"role": "assistant", "content": "x"}},
                    ]}),
                })
            };
            // A connection closed without a request is no failure.
            drop(respond_once(stream, page));
        }
    });
    let yaml = format!("backends: [{{ name: one, url: \"http://{address}\", engine: openai }}]");
    let penstock = Penstock::start(&yaml);
    for name in ["a", "b-2411", "b-latest"] {
        assert_eq!(penstock.chat(name).status, 200, "{name}");
        assert_eq!(penstock.get(&format!("/v1/models/{name}")).status, 200, "{name}");
    }
    let long = penstock.post(CHAT, &chat("b-latest", &"x".repeat(2000)));
    assert_eq!(long.error_code(), "context_length_exceeded");
    assert_eq!(penstock.post(CHAT, &chat("a", &"x".repeat(2000))).status, 200, "a is a model");
}

#[test]
fn requests_succeed_while_model_lists_change() {
    let (lists, steady) = (Lists::start(&["m", "x"]), engine("steady", &["m"]));
    let yaml = format!(
        "discovery: {{ interval: 10ms }}\nhealth: {{ interval: 10ms, path: /health }}\nbackends:\n\
         \x20 - {{ name: moving, url: \"http://{}\", engine: openai }}\n{}",
        lists.address,
        backend(&steady, "models: [m]")
    );
    let penstock = Penstock::start(&yaml);
    thread::scope(|scope| {
        let chats: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..60).map(|_| penstock.chat("m").status).collect::<Vec<_>>()))
            .collect();
        let mut round = 0;
        while !chats.iter().all(thread::ScopedJoinHandle::is_finished) {
            let before = lists.queries.load(Ordering::SeqCst);
            lists.set(Some(if round % 2 == 0 { &["x"] } else { &["x", "m"] }));
            eventually("the list is queried again", SOON, || {
                lists.queries.load(Ordering::SeqCst) > before
            });
            round += 1;
        }
        assert!(round > 2, "the lists changed {round} times meanwhile");
        for chats in chats {
            assert!(chats.join().unwrap().iter().all(|status| *status == 200));
        }
    });
    assert_eq!(penstock.chat("unknown").status, 404);
}

#[test]
fn rejected_key_is_logged_once_by_name() {
    let spec = MockSpec::new("locked", [EngineModel::new("m")]);
    let locked = start(MockSpec { api_key: Some("right-key-1".to_owned()), ..spec });
    let yaml = format!(
        "health: {{ interval: 50ms }}\nbackends:\n{}",
        backend(&locked, "api_key: wrong-key-2, models: [m]")
    );
    let penstock = Penstock::start(&yaml);
    let checks = || locked.probes().len();
    eventually("the backend is checked again", SOON, || checks() >= 4);
    assert_eq!(penstock.backend("locked")["health"], "healthy", "the server is there");
    let log = penstock.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("api_key")).collect();
    assert_eq!(lines.len(), 1, "one line: {log}");
    assert!(lines[0].contains("'locked'") && lines[0].contains("401"), "{}", lines[0]);
    assert!(!log.contains("right-key-1") && !log.contains("wrong-key-2"), "{log}");
}

#[test]
fn readiness_waits_for_every_first_check() {
    let (good, hangs) = (engine("good", &["m"]), engine("hangs", &["n"]));
    hangs.always_probes(Some(Fault::HangBeforeHead));
    let yaml = format!(
        "health: {{ timeout: 1500ms }}\nbackends:\n{}{}",
        backend(&good, "models: [m]"),
        backend(&hangs, "models: [n]")
    );
    let penstock = Penstock::start_unready(&yaml);
    eventually("the admin port responds", SOON, || client::is_ok(penstock.admin, "/health/live"));
    let early = penstock.admin("/health/ready");
    if early.status != 200 {
        assert_eq!((early.status, &early.json()["status"]), (503, &json!("starting")));
    }
    assert_eq!(penstock.admin("/health/live").status, 200);
    penstock.wait_ready();
    let ready = penstock.admin("/health/ready").json();
    assert_eq!(ready["backends"], json!({"total": 2, "healthy": 1}), "each was checked once");
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn model_ids_of_backends_are_bounded() {
    let huge = |end: &str| format!("{}{end}", "x".repeat(900_000));
    let ids = ["good", &huge("1"), &huge("2"), "cr\rlf\n", "esc\u{1b}[2J\u{7}", "good", "good"];
    let one = engine("one", &ids);
    let yaml = format!(
        "discovery: {{ interval: 100ms }}\nhealth: {{ interval: 100ms }}\n{}",
        backends(&[&one], "")
    );
    let penstock = Penstock::start(&yaml);
    for id in ["good", &huge("1"), "cr\rlf\n"] {
        penstock.chat(id);
    }
    let lists = || one.probes().iter().filter(|one| one.path() == "/v1/models").count();
    eventually("the list is queried several times", SOON, || lists() >= 4);

    let models = penstock.backend("one")["models"].clone();
    assert_eq!(models.as_array().unwrap().len(), 1, "ids listed three times count once: {models}");
    let listed = penstock.get("/v1/models");
    assert!(listed.body.len() < 1000, "{} bytes of /v1/models", listed.body.len());
    let page = penstock.admin("/metrics").text();
    assert!(page.len() < 256 << 10, "{} bytes of metrics", page.len());
    for (reason, count) in [("too_long", 2), ("unprintable", 2), ("duplicate", 2)] {
        let line = format!(
            "penstock_backend_models_dropped{{backend=\"one\",reason=\"{reason}\"}} {count}\n"
        );
        assert!(page.contains(&line), "{line} in {page}");
    }
    let log = penstock.log();
    let warnings = log.lines().filter(|line| line.contains("model ids that are not used")).count();
    assert_eq!(warnings, 1, "{log}");
    assert!(log.lines().all(|line| line.len() < 2000), "a long log line");
    assert!(!log.contains(['\r', '\u{7}']), "raw control characters in the log");

    let doctor = run([
        "doctor".as_ref(),
        "--watch".as_ref(),
        "0s".as_ref(),
        "--config".as_ref(),
        penstock.config.as_os_str(),
    ]);
    assert!(doctor.stdout.contains("2 too_long, 2 unprintable, 2 duplicate"), "{}", doctor.stdout);
    assert!(doctor.stdout.lines().all(|line| line.len() < 2000), "a long line of doctor");
}

/// A model about which discovery has nothing to find out.
const DECLARED: &str = "{ id: m, context_length: 4096, capabilities: [] }";

/// The idle connections to a backend after `count` requests at one time, whose responses have been
/// read.
fn idle_after_a_burst(flavour: Flavour, engine_name: &str, count: usize) -> f64 {
    let engine = flavoured("one", flavour, [EngineModel::new("m")]);
    let yaml = format!(
        "limits: {{ idle_timeout: 60s }}\nbackends:\n{}",
        backend(&engine, &format!("engine: {engine_name}, models: [{DECLARED}]"))
    );
    let penstock = Penstock::start(&yaml);
    let gate = Gate::new();
    engine.script(vec![Fault::Gate(gate.clone()); count]);
    let mut clients: Vec<_> =
        (0..count).map(|_| begin(penstock.data, CHAT, &chat("m", "hello"))).collect();
    block_on(gate.reached_by(count));
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    let idle = || metric(&penstock, "penstock_backend_idle_connections{backend=\"one\"");
    let open = || f64::from(u32::try_from(engine.counters().open_connections).unwrap());
    // One more may be open: that of the telemetry.
    let is_settled = || (0.0..=1.0).contains(&(open() - idle()));
    eventually("the other connections are closed", SOON, is_settled);
    idle()
}

/// llama.cpp gives each connection one of its few threads, also while it is idle.
#[test]
fn idle_connections_to_llamacpp_leave_its_slots_free() {
    let kept = idle_after_a_burst(Flavour::LlamaCpp, "llamacpp", 12);
    assert!((1.0..=4.0).contains(&kept), "{kept} kept of 12, for 4 slots");
    let kept = idle_after_a_burst(Flavour::LlamaCpp, "auto", 12);
    assert!((1.0..=4.0).contains(&kept), "{kept} kept of 12, for 4 slots of a detected llama.cpp");
    let kept = idle_after_a_burst(Flavour::Vllm, "vllm", 12);
    assert!(kept > 4.0, "{kept} kept of 12, for an engine without slots");
}
