//! A user's Ollama client reads the lists and pages of several Ollamas through penstock, as if they
//! were one.

use std::time::Duration;

use penstock_mock::{EngineModel, Flavour, MockSpec};
use serde_json::{Value, json};

use crate::ollama_management::{got, names, ollama, send, tags, two};
use crate::support::client::{Client, request};
use crate::support::engines::{backend, backends, start};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const SOON: Duration = Duration::from_secs(10);

#[test]
fn root_page_reports_ollama_to_its_clients() {
    let (_engines, penstock) = two();
    let response = penstock.get("/");
    assert_eq!((response.status, response.text().as_str()), (200, "Ollama is running"));
    assert_eq!(response.header("content-type"), Some("text/plain; charset=utf-8"));
    let mut client = Client::connect(penstock.data);
    client.send("HEAD", "/", &[], b"");
    assert_eq!(client.read_head().unwrap().0, 200);
    for (accept, kind, text) in [
        ("text/html,*/*;q=0.8", "text/html; charset=utf-8", "<h1>penstock</h1>"),
        ("application/json", "application/json", "\"name\":\"penstock\""),
        ("*/*", "text/plain; charset=utf-8", "Ollama is running"),
    ] {
        let response = request(penstock.data, "GET", "/", &[("accept", accept)], b"");
        assert_eq!(response.header("content-type"), Some(kind), "{accept}");
        assert!(response.text().contains(text), "{accept}: {}", response.text());
    }
}

#[test]
fn version_is_the_lowest_of_the_fleet() {
    let (engines, penstock) = two();
    assert_eq!(penstock.get("/api/version").json(), json!({"version": "0.13.0"}));
    engines[1].set_page("/api/version", Some(r#"{"version": "0.12.3-rc1"}"#));
    let items = backends(&[&engines[0], &engines[1]], "engine: ollama");
    let penstock = Penstock::start(&items);
    assert_eq!(penstock.get("/api/version").json(), json!({"version": "0.12.3-rc1"}));
    let mut client = Client::connect(penstock.data);
    client.send("HEAD", "/api/version", &[], b"");
    assert_eq!(client.read_head().unwrap().0, 200);
    let plain = start(MockSpec::new("plain", [EngineModel::new("m")]));
    let penstock = Penstock::start(&backends(&[&plain], "models: [m]"));
    assert_eq!(penstock.get("/api/version").json(), json!({"version": "0.14.0"}));
}

#[test]
fn status_says_that_the_cloud_is_off() {
    let (engines, penstock) = two();
    let response = penstock.get("/api/status");
    let expected = json!({"cloud": {"disabled": true, "source": "config"}});
    assert_eq!((response.status, response.json()), (200, expected));
    assert!(engines.iter().all(|engine| engine.received().is_empty()), "no backend is queried");
}

#[test]
fn tags_list_the_models_of_all_engines() {
    let one = ollama("one", &["m", "only"]);
    let vllm = start(MockSpec {
        flavour: Flavour::Vllm,
        ..MockSpec::new("two", ["m", "org/big"].map(EngineModel::new))
    });
    let llama = start(MockSpec {
        flavour: Flavour::LlamaCpp,
        ..MockSpec::new("three", [EngineModel::new("gguf")])
    });
    let items = backends(&[&one, &vllm, &llama], "");
    let penstock = Penstock::start(&format!("routing: {{ aliases: {{ fast: only }} }}\n{items}"));
    let before = one.probes().len();
    let page = penstock.get("/api/tags").json();
    assert_eq!(names(&page), ["fast", "gguf", "m", "only", "org/big"], "each name once");
    let models = page["models"].as_array().unwrap();
    let digest_of = |index: usize| models[index]["digest"].as_str().unwrap();
    assert_eq!(digest_of(0), "5f".repeat(32), "the digest of Ollama, under an alias, too");
    assert_eq!(models[2]["details"]["quantization_level"], "Q4_K_M", "Ollama's item is whole");
    for model in models {
        assert_eq!(model["name"], model["model"], "{model}");
        let digest = model["digest"].as_str().unwrap();
        assert!(digest.len() == 64 && digest.bytes().all(|one| one.is_ascii_hexdigit()), "{model}");
        assert!(model["size"].is_u64() && model["details"]["families"].is_array(), "{model}");
        assert!(model["modified_at"].as_str().unwrap().ends_with('Z'), "{model}");
    }
    assert_eq!(models[1]["size"], 4_912_898_304_u64, "what llama.cpp reports");
    assert_eq!(models[1]["details"]["parameter_size"], "8.0B");
    assert_eq!(penstock.get("/api/tags").json(), page, "nothing changes from call to call");
    assert!(one.probes().len() <= before + 2, "a list is no query of the backends");
}

#[test]
fn dead_backend_fails_no_list() {
    let (engines, penstock) = two();
    block_on(engines[1].kill()).unwrap();
    for path in ["/api/tags", "/api/ps", "/api/ps_details", "/api/version"] {
        assert_eq!(penstock.get(path).status, 200, "{path}");
    }
    assert_eq!(tags(&penstock), ["m", "n"]);
}

#[test]
fn loaded_models_are_merged_by_name() {
    let engines = ["a", "b"].map(|name| {
        let models = ["m", "n"].map(EngineModel::new);
        start(MockSpec { flavour: Flavour::Ollama, memory: Some(2), ..MockSpec::new(name, models) })
    });
    for engine in &engines {
        request(engine.addr(), "POST", "/api/chat", &[], br#"{"model": "m", "messages": []}"#);
    }
    request(engines[1].addr(), "POST", "/api/chat", &[], br#"{"model": "n", "messages": []}"#);
    let items = backends(&[&engines[0], &engines[1]], "engine: ollama");
    let discovery = "discovery: { loaded_interval: 200ms }\n";
    let penstock = Penstock::start(&format!("{discovery}{items}"));
    eventually("both were read", SOON, || {
        penstock.get("/api/ps_details").json()["models"].as_array().unwrap().len() == 3
    });
    let page = penstock.get("/api/ps").json();
    assert_eq!(names(&page), ["m", "n"]);
    assert_eq!(page["models"][0]["size_vram"], 10_000_000_000_u64, "of both backends");
    assert_eq!(page["models"][1]["size_vram"], 5_000_000_000_u64);
    assert_eq!(page["models"][0]["expires_at"], "2318-01-01T00:00:00Z");
    let details = penstock.get("/api/ps_details").json();
    let rows: Vec<_> = details["models"].as_array().unwrap().iter().collect();
    let places: Vec<_> = rows.iter().map(|row| (&row["backend"], &row["original_name"])).collect();
    let expected = [("a", "m"), ("b", "m"), ("b", "n")].map(|(one, two)| (json!(one), json!(two)));
    assert_eq!(places, expected.iter().map(|(one, two)| (one, two)).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row["context_length"] == 4096), "{details}");
    assert!(!details.to_string().contains("127.0.0.1"), "addresses are not for clients");
}

#[test]
fn show_is_passed_on_or_made() {
    let one = ollama("one", &["m"]);
    let renamed = ollama("two", &["upstream"]);
    let llama = start(MockSpec {
        flavour: Flavour::LlamaCpp,
        ..MockSpec::new("three", [EngineModel::new("gguf")])
    });
    let yaml = format!(
        "routing: {{ aliases: {{ fast: m }} }}\nbackends:\n{}{}{}",
        backend(&one, ""),
        backend(&renamed, "models: [{ id: mine, upstream_id: upstream }], engine: ollama"),
        backend(&llama, "engine: llamacpp"),
    );
    let penstock = Penstock::start(&yaml);
    let body = json!({"model": "m"});
    let direct = request(one.addr(), "POST", "/api/show", &[], body.to_string().as_bytes());
    for field in ["model", "name"] {
        let shown = send(&penstock, "POST", "/api/show", &json!({field: "m"}));
        assert_eq!((shown.status, &shown.body), (200, &direct.body), "as it came");
        let mine = send(&penstock, "POST", "/api/show", &json!({field: "mine"}));
        assert_eq!(mine.json()["modelfile"], "FROM upstream", "{}", mine.text());
    }
    assert_eq!(send(&penstock, "POST", "/api/show", &json!({"model": "fast"})).body, direct.body);
    let made = send(&penstock, "POST", "/api/show", &json!({"model": "gguf"})).json();
    assert_eq!(made["model_info"]["unknown.context_length"], 32_768, "{made}");
    assert_eq!(made["model_info"]["general.parameter_count"], 8_030_261_312_u64);
    assert_eq!(made["parameters"], "num_ctx 32768");
    assert!(made["capabilities"].as_array().unwrap().contains(&json!("completion")), "{made}");
    for (body, status, text) in [
        (json!({"model": "none"}), 404, "none"),
        (json!({"model": ""}), 400, "model"),
        (json!([]), 400, "model"),
    ] {
        let refused = send(&penstock, "POST", "/api/show", &body);
        assert_eq!(refused.status, status, "{body}");
        assert!(refused.json()["error"].as_str().unwrap().contains(text), "{}", refused.text());
    }
}

#[test]
fn keys_see_only_their_models() {
    let engine = ollama("a", &["m", "secret"]);
    let loaded = ["m", "secret"].map(|name| json!({"name": name, "model": name}));
    engine.set_page("/api/ps", Some(&json!({ "models": loaded }).to_string()));
    let auth = "auth: { keys: [{ name: k, key: k-1, models: [m], manage_models: true }] }";
    let penstock = Penstock::start(&format!("{auth}\n{}", backends(&[&engine], "engine: ollama")));
    let call = |method, path, body: &Value| {
        let key = [("authorization", "Bearer k-1")];
        request(penstock.data, method, path, &key, body.to_string().as_bytes())
    };
    assert_eq!(names(&call("GET", "/api/tags", &json!({})).json()), ["m"]);
    eventually("what is in memory was read", SOON, || {
        let models = penstock.backend("a")["models"].as_array().cloned().unwrap_or_default();
        models.iter().filter(|model| model["residency"] == "resident").count() == 2
    });
    for path in ["/api/ps", "/api/ps_details"] {
        assert_eq!(names(&call("GET", path, &json!({})).json()), ["m"], "{path}");
    }
    for (method, path) in [("POST", "/api/show"), ("POST", "/api/pull"), ("DELETE", "/api/delete")]
    {
        let refused = call(method, path, &json!({"model": "secret"}));
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
    }
    let copied = call("POST", "/api/copy", &json!({"source": "m", "destination": "secret2"}));
    assert_eq!(copied.status, 403);
    assert_eq!(penstock.get("/api/tags").status, 401, "the lists need a key, too");
    assert!(engine.received().is_empty(), "{:?}", got(&engine));
}
