//! The admin API: fleet, decisions, dry runs, drain and resume. Web pages from other sites and junk
//! from clients cannot abuse it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::client::{Client, Response, chat, request};
use crate::support::command::{file, run};
use crate::support::engines::{backend, backends, engine, shares};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const CHAT: &str = "/v1/chat/completions";

fn post(penstock: &Penstock, path: &str, body: &[u8]) -> Response {
    request(penstock.admin, "POST", path, &[], body)
}

/// Sends a GET with a custom Host header.
fn get_as(penstock: &Penstock, host: &str, extra: &str) -> u16 {
    let mut client = Client::connect(penstock.admin);
    client.send_bytes(format!("GET /fleet HTTP/1.1\r\nhost: {host}\r\n{extra}\r\n").as_bytes());
    client.read_response().unwrap().status
}

fn one() -> (penstock_mock::MockEngine, Penstock) {
    let engine = engine("one", &["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, "models: [m]")));
    (engine, penstock)
}

#[test]
fn web_pages_are_refused() {
    let (_engine, penstock) = one();
    let port = penstock.admin.port();
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "[::1]".to_owned()] {
        assert_eq!(get_as(&penstock, &host, ""), 200, "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:9090"] {
        assert_eq!(get_as(&penstock, host, ""), 403, "{host}");
    }
    for extra in
        ["origin: http://localhost:9090\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"]
    {
        assert_eq!(get_as(&penstock, "127.0.0.1", extra), 403, "{extra}");
    }
    let headers = [("host", "127.0.0.1"), ("origin", "http://evil.example")];
    let response = request(penstock.admin, "POST", "/backends/one/drain", &headers[1..], b"");
    assert_eq!(response.status, 403);
    assert_eq!(penstock.backend("one")["health"], "healthy", "nothing happened");
}

#[test]
fn configured_token_is_required() {
    let token = file("token", "t0ken\n");
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    let environment = [("PENSTOCK_ADMIN_TOKEN_FILE", token.to_str().unwrap())];
    let penstock = Penstock::start_with(&yaml, &environment);
    for path in ["/fleet", "/metrics", "/config", "/decisions"] {
        assert_eq!(penstock.admin(path).status, 401, "{path}");
        let good = [("authorization", "Bearer t0ken")];
        assert_eq!(request(penstock.admin, "GET", path, &good, b"").status, 200, "{path}");
        let wrong = [("authorization", "Bearer t0ke")];
        assert_eq!(request(penstock.admin, "GET", path, &wrong, b"").status, 401, "{path}");
    }
    assert_eq!(post(&penstock, "/backends/one/drain", b"").status, 401);
    assert_eq!(penstock.admin("/health/live").status, 200, "probes keep no secrets");
    assert_eq!(get_as(&penstock, "penstock.example", "authorization: Bearer t0ken\r\n"), 200);
}

#[test]
fn public_listen_address_needs_a_token() {
    let config = |token: &str| {
        let yaml = format!(
            "admin: {{ listen: \"0.0.0.0:0\", {token} }}\nbackends: [http://127.0.0.1:9]\n"
        );
        file("penstock.yaml", yaml)
    };
    let check =
        |path: &std::path::Path, command: &str| run([command, "--config", path.to_str().unwrap()]);
    for command in ["check", "serve"] {
        let ran = check(&config(""), command);
        assert_eq!(ran.code, Some(2), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("'admin.listen' is 0.0.0.0:0"), "{}", ran.stderr);
        assert!(ran.stderr.contains("'admin.token_file' is required"), "{}", ran.stderr);
    }
    let token = file("token", "t0ken\n");
    let path = config(&format!("token_file: \"{}\"", token.display()));
    assert_eq!(check(&path, "check").code, Some(0));
}

#[test]
fn backends_are_drained_and_resumed() {
    let (a, b) = (engine("a", &["m"]), engine("b", &["m"]));
    let items = backends(&[&a, &b], "models: [m]");
    let penstock = Penstock::start(&format!("routing: {{ strategy: round_robin }}\n{items}"));
    let response = post(&penstock, "/backends/a/drain", b"");
    assert_eq!((response.status, &response.json()["draining"]), (200, &json!(true)));
    assert_eq!(penstock.backend("a")["health"], "draining");
    for _ in 0..4 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(shares(&[&a, &b]), [0, 4]);
    post(&penstock, "/backends/b/drain", b"");
    assert_eq!(penstock.chat("m").error_code(), "no_healthy_backend");
    assert_eq!(post(&penstock, "/backends/a/resume", b"").json()["health"], "healthy");
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(shares(&[&a, &b]), [1, 4]);
    let unknown = post(&penstock, "/backends/c/drain", b"");
    assert_eq!((unknown.status, unknown.error_code().as_str()), (404, "unknown_backend"));
    let get = penstock.admin("/backends/a/drain");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")), "links change nothing");
}

#[test]
fn decisions_are_listed_newest_first() {
    let (_engine, penstock) = one();
    for id in ["first", "second", "third"] {
        let body = chat("m", "hello").to_string();
        request(penstock.data, "POST", CHAT, &[("x-request-id", id)], body.as_bytes());
    }
    assert_eq!(penstock.chat("unknown").status, 404);
    let listed = penstock.admin("/decisions?n=2").json();
    assert_eq!(listed["total"], 3, "only decisions that were acted on");
    let ids: Vec<&str> = listed["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["third", "second"]);
    let one = &listed["decisions"][0];
    assert_eq!(
        (&one["backend"], &one["model"], &one["operation"]),
        (&json!("one"), &json!("m"), &json!("chat"))
    );
    assert_eq!(one["requirements"]["estimated_tokens"], 1);
    assert_eq!(penstock.admin("/decisions?n=x").status, 400);
}

#[test]
fn dry_runs_have_no_side_effects() {
    let (a, b) = (engine("a", &["m"]), engine("b", &["m"]));
    let items = backends(&[&a, &b], "models: [m]");
    let penstock = Penstock::start(&format!("routing: {{ strategy: round_robin }}\n{items}"));
    let question = json!({"path": CHAT, "body": chat("m", "hello").to_string()}).to_string();
    let explain = || {
        let response = post(&penstock, "/explain", question.as_bytes());
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()["decision"]["backend"].as_str().unwrap().to_owned()
    };
    for _ in 0..3 {
        assert_eq!(explain(), "a");
    }
    penstock.chat("m");
    assert_eq!(shares(&[&a, &b]), [1, 0], "the request went to the predicted backend");
    assert_eq!(explain(), "b");
    assert_eq!(penstock.admin("/decisions").json()["total"], 1, "dry runs are no decisions");
    let question = json!({"path": CHAT, "body": chat("unknown", "x").to_string()}).to_string();
    let refused = post(&penstock, "/explain", question.as_bytes()).json();
    assert_eq!(refused["error"]["code"], "model_not_found");
    assert_eq!(post(&penstock, "/explain", b"{").status, 400);
    assert!(!penstock.admin("/metrics").text().contains("model=\"unknown\""));
}

#[test]
fn every_endpoint_responds() {
    let (_engine, penstock) = one();
    let index = penstock.admin("/").text();
    for path in
        ["/metrics", "/health/live", "/health/ready", "/fleet", "/decisions", "/explain", "/config"]
    {
        assert!(index.contains(path), "{path} is in the index");
        let response = penstock.admin(path);
        assert_eq!(response.status, if path == "/explain" { 405 } else { 200 }, "{path}");
        assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
    }
    let fleet = penstock.backend("one");
    for key in ["name", "url", "engine", "priority", "health", "in_flight", "latency_ms", "models"]
    {
        assert!(!fleet[key].is_null(), "{key} in {fleet}");
    }
    let config = penstock.admin("/config").text();
    assert!(config.contains("strategy: auto") && config.contains("backends:"), "{config}");
    for path in ["/v1/models", CHAT, "/nothing", "/metrics/"] {
        assert_eq!(penstock.admin(path).status, 404, "{path} is not here");
    }
    let mut client = Client::connect(penstock.admin);
    client.send("HEAD", "/metrics", &[], b"");
    assert_eq!(client.read_head().unwrap().0, 200);
}

/// The value of a sample whose name and labels contain all of `parts`.
fn sample(metrics: &str, parts: &[&str]) -> f64 {
    let matching = metrics
        .lines()
        .filter(|line| !line.starts_with('#') && parts.iter().all(|part| line.contains(part)));
    matching.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn metrics_count_requests_and_errors() {
    let (engine, penstock) = one();
    for _ in 0..3 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    let stream = crate::support::client::streaming_chat("m", "hello");
    assert_eq!(penstock.post(CHAT, &stream).status, 200);
    penstock.chat("unknown");
    block_on(engine.wait_for(|counters| counters.responded == 4)).unwrap();
    let counted = ["penstock_requests_total{", "model=\"m\"", "backend=\"one\"", "status=\"200\""];
    let refused = ["penstock_requests_total{", "status=\"404\""];
    eventually("requests are counted", Duration::from_secs(5), || {
        let metrics = penstock.admin("/metrics").text();
        (sample(&metrics, &counted) - 4.0).abs() < 0.5 && sample(&metrics, &refused) > 0.5
    });
    let metrics = penstock.admin("/metrics").text();
    assert!(sample(&metrics, &["penstock_ttft_seconds_count{", "backend=\"one\""]) > 0.5);
    for name in ["gen_ai_server_request_duration_seconds", "gen_ai_client_token_usage"] {
        let counted = [&format!("{name}_count{{"), "gen_ai_operation_name=\"chat\""];
        assert!(sample(&metrics, &counted) > 0.5, "{name}");
    }
    assert!(metrics.contains("le=\"7200\""), "buckets reach two hours");
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(series.starts_with(|first: char| first.is_ascii_alphabetic()), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

fn series(metrics: &str) -> BTreeSet<String> {
    let named = metrics.lines().filter(|line| !line.starts_with('#'));
    named.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

#[test]
fn junk_names_collapse_into_one_series() {
    let (engine, penstock) = one();
    penstock.chat("m");
    // A request is counted after its response, which the client may receive first.
    let counted = ["penstock_requests_total{", "status=\"200\""];
    eventually("the first one is counted", Duration::from_secs(5), || {
        sample(&penstock.admin("/metrics").text(), &counted) > 0.5
    });
    let before = series(&penstock.admin("/metrics").text());
    let mut client = Client::connect(penstock.data);
    for junk in 0..500 {
        let model = format!("junk-{junk}-\"\\\n{{}}");
        client.send("POST", CHAT, &[], chat(&model, "x").to_string().as_bytes());
        assert_eq!(client.read_response().unwrap().status, 404);
        client.send("GET", &format!("/junk/{junk}"), &[], b"");
        assert_eq!(client.read_response().unwrap().status, 404);
        client.send(&format!("JUNK{junk}"), CHAT, &[], b"");
        assert_eq!(client.read_response().unwrap().status, 405);
    }
    let metrics = penstock.admin("/metrics").text();
    assert!(!metrics.to_lowercase().contains("junk"), "no name of a client's choice is a label");
    let after = series(&metrics);
    let new: Vec<&String> = after.difference(&before).collect();
    assert!(new.len() <= 60, "{} new series: {new:#?}", new.len());
    assert_eq!(engine.counters().requests, 1);
}

#[test]
fn admin_port_survives_garbage() {
    let (_engine, penstock) = one();
    for garbage in [
        &b"\0\x01\x02\xff\xfe"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999\r\n\r\n",
        b"GET /backends/%00%ff/drain HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        let mut client = Client::connect(penstock.admin);
        client.send_bytes(garbage);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        drop(client.read_raw());
    }
    let long = format!("/{}", "x".repeat(20_000));
    let mut client = Client::connect(penstock.admin);
    client.send_bytes(format!("GET {long} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes());
    drop(client.read_raw());
    let value: Value = penstock.admin("/health/live").json();
    assert_eq!(value["status"], "alive");
    assert!(!penstock.log().contains("panicked"), "{}", penstock.log());
}

#[test]
fn log_lines_cannot_be_forged() {
    let (_engine, penstock) = one();
    let mut forger = Client::connect(penstock.admin);
    forger.send_bytes(b"GET /\x1b[31m\nFORGED line HTTP/1.1\r\nx\nFORGED: y\r\n\r\n");
    drop(forger.read_raw());
    let log = penstock.log();
    assert!(log.lines().all(|line| !line.starts_with("FORGED")), "{log}");
    assert!(!log.contains("\u{1b}[31m"), "{log}");
}
