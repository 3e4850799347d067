//! An operator upgrades a running penstock: the new process takes over the listening sockets, no
//! connection is refused and no stream is cut. A new process that cannot start changes nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_mock::{EngineModel, MockSpec, Pace};
use serde_json::json;

use crate::support::client::{self, Response, streaming_chat};
use crate::support::command::run_with;
use crate::support::engines::{backend, engine, start};
use crate::support::fleet::{CHAT, begin};
use crate::support::load::Load;
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::{Penstock, Successor, binary, scratch};
use crate::support::{block_on, eventually};

/// Long enough for two processes to start, drain and end.
const TIMEOUT: Duration = Duration::from_secs(20);

fn upgrade(penstock: &Penstock) -> Response {
    client::request(penstock.admin, "POST", "/upgrade", &[], b"")
}

#[test]
fn upgrade_under_load_loses_no_request() {
    let fast = engine("fast", &["m"]);
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(60), tokens: 50 };
    let spec = MockSpec { pace, ..MockSpec::new("slow", [EngineModel::new("stream")]) };
    let slow = start(spec);
    let yaml = format!("backends:\n{}{}", backend(&fast, ""), backend(&slow, ""));
    let mut penstock = Penstock::start(&yaml);
    let mut stream = begin(penstock.data, CHAT, &streaming_chat("stream", "hello"));
    block_on(slow.wait_for(|counters| counters.events >= 2)).unwrap();
    let mut seen = None;
    let (sent, failed) = Load::during(&penstock, |load| {
        load.wait_for(50);
        let response = upgrade(&penstock);
        assert_eq!(response.status, 200, "{}", response.text());
        // The old process runs until its stream ends; the load continues after that.
        let successor = Successor::of(&response);
        // At a stop, systemd waits only for a main process that is its own child.
        assert_ne!(successor.parent(), penstock.pid(), "the old process is not its parent");
        seen = Some((successor, stream.read_response().unwrap()));
        load.wait_for(50);
    });
    let (successor, response) = seen.unwrap();
    assert_eq!(failed, 0, "of {sent} requests during an upgrade");
    assert!(sent > 100, "{sent}");
    assert!(
        response.is_whole && response.text().ends_with("data: [DONE]\n\n"),
        "{}",
        response.text()
    );
    assert_eq!((slow.counters().responded, slow.counters().cancelled), (1, 0));
    assert_eq!(penstock.wait_end(TIMEOUT).code(), Some(0), "the old process exits after its drain");
    assert!(successor.is_alive(), "the new process runs");
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(penstock.admin("/health/ready").status, 200);

    // The new process can be upgraded too.
    let response = upgrade(&penstock);
    assert_eq!(response.status, 200, "{}", response.text());
    let third = Successor::of(&response);
    eventually("the second process exits", TIMEOUT, || !successor.is_alive());
    assert!(third.is_alive());
    assert_eq!(penstock.chat("m").status, 200);
    third.signal("TERM");
    let is_refused = || TcpStream::connect(penstock.data).is_err();
    eventually("the last process closes the sockets", TIMEOUT, is_refused);
}

/// Sends a request over a Unix socket; returns its status line.
fn request_over(path: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn unix_socket_survives_upgrade() {
    let one = engine("one", &["m"]);
    let path = scratch("api.sock");
    let listener = format!("{{ address: \"unix:{}\" }}", path.display());
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let mut penstock = Penstock::start_listening(&[listener], "", &yaml);
    eventually("the socket accepts connections", TIMEOUT, || request_over(&path).is_ok());
    let is_over = AtomicBool::new(false);
    let (successor, sent_requests) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut sent_requests = 0;
                    while !is_over.load(Ordering::Acquire) {
                        let response = request_over(&path);
                        assert_eq!(response.unwrap(), "HTTP/1.1 200 OK", "request {sent_requests}");
                        sent_requests += 1;
                    }
                    sent_requests
                })
            })
            .collect();
        let successor = Successor::of(&upgrade(&penstock));
        let ended = penstock.wait_end(TIMEOUT);
        is_over.store(true, Ordering::Release);
        assert_eq!(ended.code(), Some(0));
        let sent_requests = clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>();
        (successor, sent_requests)
    });
    println!("{sent_requests} requests over a Unix socket during an upgrade");
    assert!(sent_requests > 10 && successor.is_alive());
    assert_eq!(
        request_over(&path).unwrap(),
        "HTTP/1.1 200 OK",
        "the old process did not remove it"
    );
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn manual_drains_survive_upgrade_and_reload() {
    let (one, two, three) = (engine("one", &["m"]), engine("two", &["m"]), engine("three", &["m"]));
    let rows = |two_drains: &str| {
        format!(
            "backends:\n{}{}{}",
            backend(&one, "models: [m]"),
            backend(&two, &format!("models: [m]{two_drains}")),
            backend(&three, "models: [m], drain: true")
        )
    };
    let penstock = Penstock::start(&rows(""));
    let post = |path: &str| client::request(penstock.admin, "POST", path, &[], b"");
    assert_eq!(post("/backends/one/drain").status, 200);
    assert_eq!(post("/backends/three/resume").status, 200);
    let drained = |name: &str| penstock.backend(name)["health"] == "draining";
    let all = || ["one", "two", "three"].map(drained);
    assert_eq!(penstock.reload().status, 200);
    assert_eq!(all(), [true, false, false], "after a reload");
    let response = upgrade(&penstock);
    assert_eq!(response.status, 200, "{}", response.text());
    let first = Successor::of(&response);
    // The old process still accepts connections to its admin port for a moment.
    eventually("the old process is gone", TIMEOUT, || !penstock.is_running());
    assert_eq!(all(), [true, false, false], "after an upgrade");
    for _ in 0..10 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(one.counters().responded, 0, "a drained backend receives no request");

    // A file that changes `drain` counts, in the new process too.
    penstock.rewrite(&rows(", drain: true"));
    let second = Successor::of(&upgrade(&penstock));
    eventually("the second process is gone", TIMEOUT, || !first.is_alive());
    assert_eq!(all(), [true, true, false], "after an upgrade with another file");
    assert!(second.is_alive());
}

#[test]
fn learned_predictions_survive_upgrade() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(5), tokens: 20 };
    let one = start(MockSpec { pace, ..MockSpec::new("one", [EngineModel::new("m")]) });
    let yaml = format!("backends:\n{}routing: {{ predict: true }}\n", backend(&one, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    for _ in 0..15 {
        let response = client::post(penstock.data, CHAT, &streaming_chat("m", "hello"));
        assert_eq!(response.status, 200);
    }
    let prediction = || penstock.backend("one")["models"][0]["prediction"].clone();
    eventually("all are learned", TIMEOUT, || prediction()["first_tokens"] == json!(15.0));
    let before = prediction();
    let _successor = Successor::of(&upgrade(&penstock));
    // The old process still accepts connections to its admin port for a moment.
    eventually("the old process is gone", TIMEOUT, || !penstock.is_running());
    let after = prediction();
    let learned = ["first_tokens", "steps", "base_ms", "front_end_ms", "coverage", "error"];
    for key in learned {
        assert_eq!(after[key], before[key], "{key}: {before} {after}");
    }
    assert!(before["steps"].as_f64().unwrap() > 10.0, "{before}");
    assert!(penstock.log().contains("predictions continue"), "{}", penstock.log());
}

#[test]
fn use_of_limits_survives_upgrade() {
    let one = engine("one", &["m"]);
    let yaml = format!(
        "backends:\n{}auth: {{ keys: [{{ name: k, key: sk-key-of-the-test, limits: {{ requests_per_minute: 1 }} }}] }}\n",
        backend(&one, "models: [m]")
    );
    let penstock = Penstock::start(&yaml);
    let status = || {
        let headers =
            [("authorization", "Bearer sk-key-of-the-test"), ("content-type", "application/json")];
        let body = client::chat("m", "hello").to_string();
        client::request(penstock.data, "POST", CHAT, &headers, body.as_bytes()).status
    };
    assert_eq!([status(), status()], [200, 429]);
    let _successor = Successor::of(&upgrade(&penstock));
    eventually("the old process is gone", TIMEOUT, || !penstock.is_running());
    assert_eq!(status(), 429);
}

#[test]
fn upgrade_follows_a_link_to_the_new_version() {
    let one = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let (link, new) = (scratch("current"), scratch("new-version"));
    let by_link = format!("ln -s \"$0\" {0} && exec {0} \"$@\"", link.display());
    let penstock = Penstock::start_by_shell(&by_link, &yaml);
    std::fs::copy(binary().get_program(), &new).unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&new, &link).unwrap();
    let response = upgrade(&penstock);
    assert_eq!(response.status, 200, "{}", response.text());
    let _successor = Successor::of(&response);
    let pid = response.json()["pid"].as_u64().unwrap();
    let runs = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(runs, new);
}

#[test]
fn failed_upgrade_keeps_the_old_process() {
    let one = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    penstock.rewrite(&format!("{yaml}routing: {{ strateggy: random }}\n"));
    let response = upgrade(&penstock);
    assert_eq!((response.status, response.error_code()), (500, "upgrade_failed".to_owned()));
    let message = response.text();
    assert!(
        message.contains("did you mean 'strategy'?") && message.contains(".yaml:"),
        "{message}"
    );
    assert!(penstock.log().contains("continues to serve"), "{}", penstock.log());
    for _ in 0..20 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(penstock.admin("/health/ready").status, 200);
    penstock.rewrite(&yaml);
    let response = upgrade(&penstock);
    assert_eq!(response.status, 200, "{}", response.text());
    let _successor = Successor::of(&response);
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn take_over_flag_needs_a_running_process() {
    let ran = run_with(["serve", "--take-over"], b"", &[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("POST /upgrade"), "{}", ran.stderr);
}

#[test]
fn homes_of_sessions_survive_upgrade() {
    let engines = ["a", "b", "c"].map(|name| engine(name, &["m"]));
    let items: String = engines.iter().map(|one| backend(one, "models: [m]")).collect();
    let routing = "routing: { strategy: weighted, preset: least-loaded, expose_decision: true }\n";
    let penstock = Penstock::start(&format!("{routing}backends:\n{items}"));
    let home = |session: &str| {
        let headers = [("content-type", "application/json"), ("x-session-id", session)];
        let body = client::chat("m", "hello").to_string();
        let response = client::request(penstock.data, "POST", CHAT, &headers, body.as_bytes());
        response.header("x-penstock-backend").unwrap().to_owned()
    };
    let sessions: Vec<String> = (0..12).map(|number| format!("session {number}")).collect();
    let before: Vec<String> = sessions.iter().map(|session| home(session)).collect();
    let _successor = Successor::of(&upgrade(&penstock));
    eventually("the old process is gone", TIMEOUT, || !penstock.is_running());
    // Equals take turns: without homes they would be elsewhere.
    home("another one");
    let after: Vec<String> = sessions.iter().map(|session| home(session)).collect();
    assert_eq!(after, before);
}

#[test]
fn stored_responses_survive_upgrade() {
    let keys = "auth: { keys: [{ name: a, key: k1 }, { name: b, key: k2 }] }\n";
    let engine = OpenEngine::start("a");
    let slow = start(MockSpec {
        pace: Pace {
            first_token: Duration::ZERO,
            per_token: Duration::from_millis(60),
            tokens: 30,
        },
        ..MockSpec::new("slow", [EngineModel::new("slow")])
    });
    let items = engine.item("models: [m]") + &backend(&slow, "models: [slow]");
    let penstock = Penstock::start(&format!("{keys}backends:\n{items}"));
    let send = |key: &str, method: &str, path: &str, body: &str| {
        let key = format!("Bearer {key}");
        let fields = [("content-type", "application/json"), ("authorization", key.as_str())];
        client::request(penstock.data, method, path, &fields, body.as_bytes())
    };
    let body = r#"{"model":"m","input":"x","conversation":"conv_1"}"#;
    let made = send("k1", "POST", "/v1/responses", body).json();
    let id = made["id"].as_str().unwrap();
    // A response that is made while the old process ends.
    let mut late = client::Client::connect(penstock.data);
    let fields = [("content-type", "application/json"), ("authorization", "Bearer k1")];
    late.send("POST", "/v1/responses", &fields, br#"{"model":"slow","input":"x"}"#);
    block_on(slow.wait_for(|counters| counters.open_requests == 1)).unwrap();
    let upgraded = upgrade(&penstock);
    assert_eq!(upgraded.status, 200, "{}", upgraded.text());
    let path = format!("/v1/responses/{id}");
    let next = format!(r#"{{"model":"m","input":"x","previous_response_id":"{id}"}}"#);
    assert_eq!(send("k1", "GET", &path, "").status, 200);
    assert_eq!(send("k1", "POST", "/v1/responses", &next).status, 200);
    for (method, path, body) in
        [("GET", &*path, ""), ("POST", "/v1/responses", &*next), ("POST", "/v1/responses", body)]
    {
        assert_eq!(send("k2", method, path, body).status, 404, "they are still another key's");
    }
    let late = late.read_response().unwrap().json();
    let late = late["id"].as_str().unwrap().to_owned();
    let next = format!(r#"{{"model":"slow","input":"x","previous_response_id":"{late}"}}"#);
    let is_known = || send("k1", "POST", "/v1/responses", &next).status == 200;
    eventually("a response of the old process is known to the new one", TIMEOUT, is_known);
    assert_eq!(send("k2", "POST", "/v1/responses", &next).status, 404);
    Successor::of(&upgraded).signal("TERM");
}
