//! A user manages the models of several Ollamas through penstock with an ordinary Ollama client:
//! pulls, creates, copies and deletes them everywhere at once.

use std::time::Duration;

use penstock_mock::{EngineModel, Fault, Flavour, MockEngine, MockSpec, Pace};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::support::client::{Client, Response, request};
use crate::support::engines::{backends, start};
use crate::support::fleet::{find_metric, metric};
use crate::support::pace::pause_between_drips;
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const SOON: Duration = Duration::from_secs(10);
const MANAGED: &str = "ollama: { manage_models: true }\n";

pub(crate) fn ollama(name: &str, models: &[&str]) -> MockEngine {
    let models = models.iter().map(|id| EngineModel::new(id));
    start(MockSpec { flavour: Flavour::Ollama, ..MockSpec::new(name, models) })
}

fn slow(name: &str) -> MockEngine {
    let pace = Pace { per_token: Duration::from_millis(50), ..Pace::at_once(4) };
    start(MockSpec {
        flavour: Flavour::Ollama,
        pace,
        ..MockSpec::new(name, [EngineModel::new("m")])
    })
}

pub(crate) fn two() -> ([MockEngine; 2], Penstock) {
    let engines = [ollama("a", &["m"]), ollama("b", &["m", "n"])];
    let items = backends(&[&engines[0], &engines[1]], "engine: ollama");
    let penstock = Penstock::start(&format!("{MANAGED}{items}"));
    (engines, penstock)
}

pub(crate) fn send(penstock: &Penstock, method: &str, path: &str, body: &Value) -> Response {
    request(penstock.data, method, path, &[], body.to_string().as_bytes())
}

fn lines(response: &Response) -> Vec<Value> {
    response.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn names(page: &Value) -> Vec<String> {
    let models = page["models"].as_array().unwrap();
    models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn tags(penstock: &Penstock) -> Vec<String> {
    names(&penstock.get("/api/tags").json())
}

/// The requests for work that an engine got, as method and path.
pub(crate) fn got(engine: &MockEngine) -> Vec<String> {
    let received = engine.received();
    received.iter().map(|one| format!("{} {}", one.method, one.path())).collect()
}

fn has(engine: &MockEngine, model: &str) -> bool {
    names(&request(engine.addr(), "GET", "/api/tags", &[], b"").json()).contains(&model.to_owned())
}

#[test]
fn management_needs_a_right() {
    let engine = ollama("a", &["m"]);
    let auth =
        "auth: { keys: [{ name: user, key: k-1 }, { name: boss, key: k-2, manage_models: true }] }";
    let penstock = Penstock::start(&format!("{auth}\n{}", backends(&[&engine], "engine: ollama")));
    let call = |key: &str, method, path, body: &Value| {
        let key = format!("Bearer {key}");
        request(
            penstock.data,
            method,
            path,
            &[("authorization", &key)],
            body.to_string().as_bytes(),
        )
    };
    let digest = format!("/api/blobs/sha256:{}", "0".repeat(64));
    for (method, path) in [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", digest.as_str()),
    ] {
        let refused = call("k-1", method, path, &json!({"model": "m"}));
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
        let text = refused.json()["error"].as_str().unwrap().to_owned();
        assert!(text.contains("manage_models"), "{path}: {text}");
    }
    assert!(engine.received().is_empty(), "{:?}", got(&engine));
    assert_eq!(call("k-2", "POST", "/api/pull", &json!({"model": "x"})).status, 200);
    assert!(has(&engine, "x"));
    let plain = start(MockSpec::new("plain", [EngineModel::new("m")]));
    let penstock = Penstock::start(&format!("{MANAGED}{}", backends(&[&plain], "models: [m]")));
    let refused = send(&penstock, "POST", "/api/pull", &json!({"model": "m"}));
    assert_eq!(refused.status, 501, "no Ollama: {}", refused.text());
    assert!(refused.json()["error"].as_str().unwrap().contains("Ollama"));
}

#[test]
fn pull_reports_the_progress_of_every_backend() {
    let (engines, penstock) = two();
    let response = send(&penstock, "POST", "/api/pull", &json!({"model": "new"}));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    let lines = lines(&response);
    let (last, progress) = lines.split_last().unwrap();
    assert_eq!(*last, json!({"status": "success"}), "once, and last");
    for name in ["a", "b"] {
        let of: Vec<_> = progress.iter().filter(|line| line["backend"] == name).collect();
        let completed: Vec<_> = of.iter().filter_map(|line| line["completed"].as_u64()).collect();
        assert_eq!(completed, [0, 50, 100], "{name}, in its order");
        assert_eq!(of[0]["status"], "pulling manifest");
    }
    assert!(progress.iter().all(|line| line["status"] != "success" && line.get("error").is_none()));
    assert_eq!(tags(&penstock), ["m", "n", "new"], "the next request knows the model");
    assert!(engines.iter().all(|engine| got(engine) == ["POST /api/pull"]), "once each");
    assert_eq!(penstock.chat("new").status, 200);
}

#[test]
fn pull_without_stream_is_one_object() {
    let (engines, penstock) = two();
    let body = json!({"model": "new", "stream": false});
    let response = send(&penstock, "POST", "/api/pull", &body);
    assert_eq!((response.status, response.json()), (200, json!({"status": "success"})));
    assert!(engines.iter().all(|engine| has(engine, "new")));
    engines[1].script([Fault::status(500)]);
    let body = json!({"model": "newer", "stream": false});
    let response = send(&penstock, "POST", "/api/pull", &body);
    let text = response.json()["error"].as_str().unwrap().to_owned();
    assert_eq!(response.status, 502, "{text}");
    assert!(text.contains("backend 'b': scripted") && text.contains("done on a"), "{text}");
}

#[test]
fn partial_failure_is_the_last_line() {
    let (engines, penstock) = two();
    engines[0].script([Fault::status(500)]);
    let response = send(&penstock, "POST", "/api/pull", &json!({"model": "new"}));
    assert_eq!(response.status, 200);
    let all = lines(&response);
    let (last, progress) = all.split_last().unwrap();
    assert_eq!(last["error"], "backend 'a': scripted (done on b)");
    assert!(progress.iter().all(|line| line.get("error").is_none()), "b is not broken off");
    assert!(has(&engines[1], "new") && !has(&engines[0], "new"));
    let faults = "penstock_requests_total{model=\"unknown\",backend=\"none\",operation=\"passthrough\",status=\"200\",outcome=\"fault\"";
    let counted = || find_metric(&penstock, faults) == Some(1.0);
    eventually("the stream is counted as a fault", SOON, counted);
}

#[test]
fn failure_everywhere_has_a_status() {
    let (engines, penstock) = two();
    let response = send(&penstock, "POST", "/api/pull", &json!({"model": "missing"}));
    let text = "pull model manifest: file does not exist";
    assert_eq!((response.status, response.json()), (502, json!({ "error": text })));
    let response = send(&penstock, "DELETE", "/api/delete", &json!({"model": "none"}));
    let expected = (404, json!({"error": "model 'none' not found"}));
    assert_eq!((response.status, response.json()), expected);
    for engine in &engines {
        engine.script([Fault::CloseAfterRequest]);
    }
    let response = send(&penstock, "POST", "/api/pull", &json!({"model": "new"}));
    assert_eq!(response.status, 502, "{}", response.text());
}

#[test]
fn disconnect_cancels_pull_on_every_backend() {
    let engines = [slow("a"), slow("b")];
    let items = backends(&[&engines[0], &engines[1]], "engine: ollama");
    let penstock = Penstock::start(&format!("{MANAGED}{items}"));
    let mut client = Client::connect(penstock.data);
    client.send("POST", "/api/pull", &[], br#"{"model": "new"}"#);
    assert_eq!(client.read_head().unwrap().0, 200);
    drop(client);
    for engine in &engines {
        block_on(engine.wait_for(|counters| counters.cancelled == 1)).unwrap();
        assert!(!has(engine, "new"));
    }
}

#[test]
fn one_backend_can_be_named() {
    let (engines, penstock) = two();
    let response = send(&penstock, "POST", "/api/pull?backend=b", &json!({"model": "new"}));
    assert_eq!(lines(&response).last().unwrap(), &json!({"status": "success"}));
    let field = [("x-penstock-backend", "b")];
    let body = br#"{"model": "newer"}"#;
    assert_eq!(request(penstock.data, "POST", "/api/pull", &field, body).status, 200);
    assert!(has(&engines[1], "new") && has(&engines[1], "newer"));
    assert!(got(&engines[0]).is_empty(), "{:?}", got(&engines[0]));
    let refused = send(&penstock, "POST", "/api/pull?backend=http://x", &json!({"model": "y"}));
    assert_eq!(refused.status, 400, "a name, never an address: {}", refused.text());
}

#[test]
fn copy_and_delete_reach_only_holders_of_the_model() {
    let (engines, penstock) = two();
    let body = json!({"source": "n", "destination": "n2"});
    let response = send(&penstock, "POST", "/api/copy", &body);
    assert_eq!((response.status, response.text().as_str()), (200, ""), "as Ollama responds");
    assert!(has(&engines[1], "n2") && !has(&engines[0], "n2"));
    assert_eq!(tags(&penstock), ["m", "n", "n2"]);
    assert_eq!(send(&penstock, "DELETE", "/api/delete", &json!({"name": "n"})).status, 200);
    assert_eq!(send(&penstock, "DELETE", "/api/delete", &json!({"model": "m"})).status, 200);
    assert_eq!(tags(&penstock), ["n2"], "gone from the list at once");
}

#[test]
fn push_goes_to_one_holder() {
    let (engines, penstock) = two();
    engines[1].script([Fault::status(500)]);
    let response = send(&penstock, "POST", "/api/push", &json!({"model": "n"}));
    assert_eq!(response.status, 500, "{}", response.text());
    assert_eq!(got(&engines[1]).len(), 1, "never retried");
    let response = send(&penstock, "POST", "/api/push", &json!({"model": "n"}));
    assert_eq!(lines(&response).last().unwrap(), &json!({"status": "success"}));
    assert!(got(&engines[0]).is_empty());
    assert_eq!(send(&penstock, "POST", "/api/push", &json!({"model": "none"})).status, 404);
}

fn digest_path(bytes: &[u8]) -> String {
    let digits: String =
        digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("/api/blobs/sha256:{digits}")
}

fn head(penstock: &Penstock, path: &str) -> u16 {
    let mut client = Client::connect(penstock.data);
    client.send("HEAD", path, &[], b"");
    let (status, _) = client.read_head().unwrap();
    client.send("GET", "/api/version", &[], b"");
    assert_eq!(client.read_response().unwrap().status, 200, "the connection goes on");
    status
}

#[test]
fn blobs_are_uploaded_to_all_backends() {
    let (engines, penstock) = two();
    // Larger than the limit of other bodies: it is never held.
    let file: Vec<u8> = (0..40_u32 << 20).map(|index| (index % 251) as u8).collect();
    let path = digest_path(&file);
    assert_eq!(head(&penstock, &path), 404);
    let response = request(penstock.data, "POST", &path, &[], &file);
    assert_eq!(response.status, 201, "{}", response.text());
    assert_eq!(head(&penstock, &path), 200);
    assert!(penstock.resident() < 150 << 20, "{} bytes resident", penstock.resident());
    let mut client = Client::connect(penstock.data);
    let chunked = "transfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n";
    let path = digest_path(b"hello world");
    client.send_bytes(format!("POST {path} HTTP/1.1\r\nhost: x\r\n{chunked}").as_bytes());
    assert_eq!(client.read_response().unwrap().status, 201);
    client.send("GET", "/api/version", &[], b"");
    assert_eq!(client.read_response().unwrap().status, 200, "the connection goes on");
    let digest = path.rsplit('/').next().unwrap();
    let body = json!({"model": "made", "files": {"x.gguf": digest}});
    let response = send(&penstock, "POST", "/api/create", &body);
    assert_eq!(lines(&response).last().unwrap(), &json!({"status": "success"}));
    assert!(engines.iter().all(|engine| has(engine, "made")));
}

#[test]
fn broken_uploads_are_kept_nowhere() {
    let (engines, penstock) = two();
    let path = digest_path(b"one");
    // The backends have the first part before the client sends the wrong rest.
    let mut client = Client::connect(penstock.data);
    let fields = "host: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\non\r\n";
    client.send_bytes(format!("POST {path} HTTP/1.1\r\n{fields}").as_bytes());
    for engine in &engines {
        block_on(engine.wait_for(|counters| counters.open_requests == 1)).unwrap();
    }
    client.send_bytes(b"1\r\nx\r\n0\r\n\r\n");
    assert_eq!(client.read_response().unwrap().status, 400);
    for engine in &engines {
        block_on(engine.wait_for(|counters| counters.incomplete == 1)).unwrap();
        assert_eq!(engine.counters().complete, 0);
    }
    assert_eq!(head(&penstock, &path), 404);
    let response = request(penstock.data, "POST", "/api/blobs/sha256:12", &[], b"x");
    assert_eq!(response.status, 400, "{}", response.text());
    engines[1].script([Fault::EarlyStatus(507)]);
    let response = request(penstock.data, "POST", &path, &[], b"one");
    assert_eq!(response.status, 502, "{}", response.text());
    assert!(response.text().contains("done on a"), "{}", response.text());
    // Last: whether a backend saw a part of it is chance.
    let path = digest_path(b"two");
    let response = request(penstock.data, "POST", &path, &[], b"six");
    assert_eq!(response.status, 400, "{}", response.text());
    assert!(response.json()["error"].as_str().unwrap().contains("digest"));
    assert_eq!(head(&penstock, &path), 404);
}

#[test]
fn large_files_are_refused() {
    let engine = ollama("a", &["m"]);
    let limits = "ollama: { manage_models: true, max_blob_size: 1KiB }\n";
    let items = backends(&[&engine], "engine: ollama");
    let penstock = Penstock::start(&format!("{limits}{items}"));
    let fits = vec![b'x'; 1024];
    assert_eq!(request(penstock.data, "POST", &digest_path(&fits), &[], &fits).status, 201);
    let large = vec![b'x'; 1025];
    let refused = request(penstock.data, "POST", &digest_path(&large), &[], &large);
    assert_eq!(refused.status, 413, "{}", refused.text());
    assert!(refused.json()["error"].as_str().unwrap().contains("max_blob_size"));
    let mut client = Client::connect(penstock.data);
    let head_of = format!("POST {} HTTP/1.1\r\nhost: x\r\n", digest_path(&large));
    let chunk = format!("401\r\n{}\r\n0\r\n\r\n", "x".repeat(1025));
    let sent = format!("{head_of}transfer-encoding: chunked\r\n\r\n{chunk}");
    client.send_bytes(sent.as_bytes());
    assert_eq!(client.read_head().unwrap().0, 413, "counted where no length is announced");
    assert_eq!(head(&penstock, &digest_path(&large)), 404, "no backend keeps it");
}

#[test]
fn commands_are_bounded() {
    let engine = slow("a");
    let limits = "ollama: { manage_models: true, commands: 1 }\n";
    let items = backends(&[&engine], "engine: ollama");
    let penstock = Penstock::start(&format!("{limits}{items}"));
    let mut client = Client::connect(penstock.data);
    client.send("POST", "/api/pull", &[], br#"{"model": "new"}"#);
    assert_eq!(client.read_head().unwrap().0, 200);
    let refused = send(&penstock, "POST", "/api/pull", &json!({"model": "newer"}));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.json()["error"].as_str().unwrap().contains("ollama.commands"));
    drop(client);
    eventually("the place is free", SOON, || {
        send(&penstock, "DELETE", "/api/delete", &json!({"model": "none"})).status == 404
    });
    assert!(!has(&engine, "newer"));
    eventually("none is counted", SOON, || metric(&penstock, "penstock_commands") == 0.0);
}

#[test]
fn llamacpp_router_loads_and_unloads_models() {
    let router = start(MockSpec {
        flavour: Flavour::LlamaCpp,
        ..MockSpec::new("router", ["m", "n"].map(EngineModel::new))
    });
    let list = json!({"data": [
        {"id": "m", "status": {"value": "loaded"}}, {"id": "n", "status": {"value": "unloaded"}},
    ]});
    router.set_page("/v1/models", Some(&list.to_string()));
    for path in ["/models/load", "/models/unload"] {
        router.set_page(path, Some(r#"{"success": true}"#));
    }
    let items = backends(&[&router], "engine: llamacpp");
    let discovery = "discovery: { loaded_interval: 100ms }\n";
    let penstock = Penstock::start(&format!("{discovery}{items}"));
    let posted = || -> Vec<String> {
        let all = router.received();
        let of = |one: &penstock_mock::Received| {
            let body: Value = serde_json::from_slice(one.body.as_ref()?).ok()?;
            let path = one.path().to_owned();
            path.starts_with("/models/").then(|| format!("{path} {}", body["model"]))
        };
        all.iter().filter_map(of).collect()
    };
    eventually("its status is read", SOON, || names(&penstock.get("/api/ps").json()) == ["m"]);
    for (body, reason, expected) in [
        (json!({"model": "n"}), "load", "/models/load \"n\""),
        (json!({"model": "m", "messages": [], "keep_alive": 0}), "unload", "/models/unload \"m\""),
    ] {
        let response = send(&penstock, "POST", "/api/chat", &body);
        assert_eq!(response.json()["done_reason"], reason, "{}", response.text());
        assert_eq!(posted().last().map(String::as_str), Some(expected));
    }
    router.set_page("/models/unload", None);
    let body = json!({"model": "m", "keep_alive": 0});
    let refused = send(&penstock, "POST", "/api/generate", &body);
    assert_eq!(refused.status, 502, "{}", refused.text());
    assert!(refused.json()["error"].as_str().unwrap().contains("router"), "{}", refused.text());
}

#[test]
fn routes_take_their_methods_only() {
    let (_engines, penstock) = two();
    for (method, path, allow) in [
        ("POST", "/api/tags", "GET, HEAD"),
        ("POST", "/api/version", "GET, HEAD"),
        ("GET", "/api/show", "POST"),
        ("POST", "/api/delete", "DELETE"),
        ("GET", "/api/pull", "POST"),
        ("GET", "/api/blobs/sha256:1", "HEAD, POST"),
    ] {
        let response = request(penstock.data, method, path, &[], b"");
        assert_eq!((response.status, response.header("allow")), (405, Some(allow)), "{path}");
        assert!(response.json()["error"].is_string(), "{path}: {}", response.text());
    }
}

#[test]
fn slow_uploads_give_their_place_back() {
    let engine = ollama("a", &["m"]);
    let setup = "ollama: { manage_models: true, commands: 1 }\nlimits: { min_body_rate: 1KiB/s }\n";
    let penstock = Penstock::start(&format!("{setup}{}", backends(&[&engine], "engine: ollama")));
    let path = digest_path(b"x");
    let mut slow = Client::connect(penstock.data);
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000000\r\n\r\nxx");
    slow.send_bytes(head.as_bytes());
    eventually("it has the place", SOON, || metric(&penstock, "penstock_commands") == 1.0);
    let mut drip = slow.stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        while std::io::Write::write_all(&mut drip, b"x").is_ok() {
            pause_between_drips(Duration::from_millis(500));
        }
    });
    let response = slow.read_response().unwrap();
    assert_eq!(response.status, 408, "{}", response.text());
    eventually("the place is free", SOON, || {
        send(&penstock, "POST", "/api/pull", &json!({"model": "m"})).status == 200
    });
    drop(slow);
    dripping.join().unwrap();
}
