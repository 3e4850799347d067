//! The access log: one JSON line per request, written to a file that can be rotated or to standard
//! output. Clients cannot forge lines, and lines contain no secrets.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use penstock_mock::{Cut, Fault, MockEngine};
use serde_json::{Value, json};

use crate::support::client::{Client, chat, request, streaming_chat};
use crate::support::engines::{backend, engine};
use crate::support::fleet::{CHAT, Leave, begin, read_until};
use crate::support::penstock::{Penstock, binary, scratch};
use crate::support::{eventually, free_address};

const SOON: Duration = Duration::from_secs(10);

/// A configuration section for an access log, and its path.
fn log_to(more: &str) -> (String, PathBuf) {
    let path = scratch("access.log");
    (format!("access_log: {{ path: \"{}\", {more} }}\n", path.display()), path)
}

/// Starts an engine and a penstock that logs its requests. Returns both, and the path of the log.
fn start(more: &str) -> (MockEngine, Penstock, PathBuf) {
    let one = engine("one", &["m"]);
    let (section, path) = log_to(more);
    let penstock =
        Penstock::start(&format!("{section}backends:\n{}", backend(&one, "models: [m]")));
    (one, penstock, path)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

fn wait_for(path: &Path, count: usize) -> Vec<Value> {
    eventually(&format!("{count} lines"), SOON, || lines(path).len() >= count);
    lines(path)
}

#[test]
fn every_request_is_logged() {
    let one = engine("one", &["m"]);
    let (section, path) = log_to("");
    let penstock = Penstock::start(&format!(
        "{section}auth: {{ keys: [{{ name: team-a, key: sk-a }}] }}\n\
         routing: {{ aliases: {{ gpt-4o: m }} }}\nbackends:\n{}",
        backend(&one, "models: [m]")
    ));
    let headers = [("authorization", "Bearer sk-a"), ("x-request-id", "my-request")];
    let body = chat("gpt-4o", "hello").to_string();
    let response =
        request(penstock.data, "POST", &format!("{CHAT}?key=1"), &headers, body.as_bytes());
    assert_eq!(response.status, 200);
    let line = wait_for(&path, 1).remove(0);
    for (key, expected) in [
        ("id", json!("my-request")),
        ("key", json!("team-a")),
        ("method", json!("POST")),
        ("path", json!(CHAT)),
        ("operation", json!("chat")),
        ("model_requested", json!("gpt-4o")),
        ("model", json!("m")),
        ("backend", json!("one")),
        ("status", json!(200)),
        ("error", Value::Null),
        ("outcome", json!("ok")),
        ("stream", json!(false)),
        ("attempts", json!(1)),
        ("bytes_in", json!(body.len())),
        ("bytes_out", json!(response.body.len())),
    ] {
        assert_eq!(line[key], expected, "{key} in {line}");
    }
    assert_eq!(line["client"], "127.0.0.1", "{line}");
    assert!(line["time"].as_str().unwrap().ends_with('Z'), "{line}");
    assert!(line["duration_ms"].as_f64().unwrap() > 0.0, "{line}");
    assert_eq!(line["trace"].as_str().unwrap().len(), 32, "{line}");
    let unknown = chat("x", "").to_string();
    let refused = [
        ("POST", CHAT, &headers[..0], body.as_str(), "invalid_api_key"),
        ("GET", "/nothing", &headers, "", "unknown_path"),
        ("PUT", CHAT, &headers, "", "method_not_allowed"),
        ("POST", CHAT, &headers, &unknown, "model_not_found"),
    ];
    for (index, (method, target, headers, body, code)) in refused.into_iter().enumerate() {
        let status = request(penstock.data, method, target, headers, body.as_bytes()).status;
        let line = wait_for(&path, index + 2).remove(index + 1);
        assert_eq!((&line["status"], &line["error"]), (&json!(status), &json!(code)), "{line}");
        assert_eq!((&line["outcome"], &line["backend"]), (&json!("client"), &Value::Null));
    }
    let last = lines(&path).pop().unwrap();
    assert_eq!(
        (&last["model_requested"], &last["model"]),
        (&json!("x"), &Value::Null),
        "unknown model"
    );
    eventually("lines are counted", SOON, || {
        let page = penstock.admin("/metrics").text();
        page.contains("penstock_access_log_lines_total{result=\"written\"} 5")
    });
}

#[test]
fn token_counts_are_reported_or_marked_estimated() {
    let (_one, penstock, path) = start("");
    let mut with_usage = streaming_chat("m", "hello");
    with_usage["stream_options"] = json!({"include_usage": true});
    assert_eq!(penstock.post(CHAT, &with_usage).status, 200);
    wait_for(&path, 1);
    assert_eq!(penstock.post(CHAT, &streaming_chat("m", "hello")).status, 200);
    let lines = wait_for(&path, 2);
    for (line, is_estimated) in lines.iter().zip([false, true]) {
        assert_eq!(line["tokens_estimated"], is_estimated, "{line}");
        assert_eq!(line["tokens_out"], 8, "{line}");
        assert!(line["tokens_in"].as_u64().unwrap() > 0, "{line}");
        assert!(line["ttft_ms"].as_f64().unwrap() <= line["duration_ms"].as_f64().unwrap());
        assert_eq!(line["stream"], true);
    }
}

#[test]
fn output_of_a_message_that_breaks_off_is_estimated() {
    let (one, penstock, path) = start("");
    // The start, the block, a ping and two pieces of text: the start reports the prompt's tokens.
    one.script([Fault::CutStream { after_events: 5, how: Cut::Fin }]);
    let mut messages = streaming_chat("m", "hello");
    messages["max_tokens"] = json!(100);
    assert_eq!(penstock.post("/v1/messages", &messages).status, 200);
    wait_for(&path, 1);
    assert_eq!(penstock.post("/v1/messages", &messages).status, 200);
    let lines = wait_for(&path, 2);
    let counts = |line: &Value| json!([line["tokens_out"], line["tokens_estimated"]]);
    assert_eq!(counts(&lines[0]), json!([2, true]), "{}", lines[0]);
    assert_eq!(counts(&lines[1]), json!([8, false]), "{}", lines[1]);
    assert_eq!(lines[0]["tokens_in"], lines[1]["tokens_in"], "the engine's count");
}

#[test]
fn client_disconnects_are_logged_as_cancel() {
    let (one, penstock, path) = start("");
    one.script([Fault::HangMidStream { after_events: 3 }, Fault::CloseAfterRequest]);
    let mut client = begin(penstock.data, CHAT, &streaming_chat("m", "hello"));
    read_until(&mut client, "data:");
    drop(Leave::Reset.now(client));
    let line = wait_for(&path, 1).remove(0);
    assert_eq!((&line["outcome"], &line["status"]), (&json!("cancel"), &json!(200)), "{line}");
    assert_eq!(penstock.chat("m").status, 502);
    let line = wait_for(&path, 2).remove(1);
    assert_eq!((&line["outcome"], &line["error"]), (&json!("fault"), &json!("upstream_closed")));
}

#[test]
fn lines_cannot_be_forged() {
    let (_one, penstock, path) = start("");
    let evil = "x\"}\r\n{\"forged\":true}\u{1b}[31m\u{2028}\u{7f}";
    for (index, model) in [evil, &evil.repeat(3000)].into_iter().enumerate() {
        assert_eq!(penstock.chat(model).status, 404);
        wait_for(&path, index + 1);
    }
    let mut client = Client::connect(penstock.data);
    for path in ["/%0d%0a%7b%22forged%22:true%7d", &format!("/{}", "%1b".repeat(4000))] {
        client.send("GET", path, &[("x-request-id", "a\"b\\c")], b"");
        assert_eq!(client.read_response().unwrap().status, 404);
    }
    let lines = wait_for(&path, 4);
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line.get("forged").is_none()));
    assert_eq!(lines[0]["model_requested"], evil, "the requested model is logged, escaped");
    assert_eq!(lines[2]["id"], "a\"b\\c");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    assert!(text.lines().all(|line| line.len() < 4096), "lines are bounded");
}

#[test]
fn refused_heads_are_logged() {
    let one = engine("one", &["m"]);
    let (section, path) = log_to("");
    let sections = "limits: { connections: 2 }\n";
    // The second connection is for the one that checked readiness, which may still be open.
    let penstock =
        Penstock::start(&format!("{section}{sections}backends:\n{}", backend(&one, "models: [m]")));
    let good = "POST /v1/messages?key=sk-1 HTTP/1.1\r\nhost: a\r\n";
    for (head, method, expected_path, code) in [
        (format!("{good}host: b\r\n\r\n"), json!("POST"), json!("/v1/messages"), "invalid_request"),
        (format!("{good}x: \0\r\n\r\n"), json!("POST"), json!("/v1/messages"), "invalid_request"),
        (
            "GET /\u{1b}[31m HTTP/1.1\r\n".to_owned(),
            json!("GET"),
            json!("/\u{1b}[31m"),
            "invalid_request",
        ),
        ("sk-1 sk-2 sk-3\r\n".to_owned(), Value::Null, Value::Null, "invalid_request"),
        (
            format!("GET /{} HTTP/1.1\r\n", "a".repeat(17 << 10)),
            json!("GET"),
            Value::Null,
            "uri_too_long",
        ),
    ] {
        let before = lines(&path).len();
        eventually("no connection is open", SOON, || {
            penstock.admin("/metrics").text().contains("penstock_connections 0")
        });
        let mut client = Client::connect(penstock.data);
        client.send_bytes(head.as_bytes());
        assert!(client.read_response().unwrap().status >= 400);
        // The line is written once no more bytes of the client are awaited.
        drop(client);
        let line = wait_for(&path, before + 1).remove(before);
        assert_eq!((&line["client"], &line["method"]), (&json!("127.0.0.1"), &method), "{line}");
        assert_eq!(line["error"], code, "{line}");
        match &expected_path {
            Value::Null if code == "uri_too_long" => {
                assert!(line["path"].as_str().unwrap().starts_with("/aaaa"), "{line}");
            }
            _ => assert_eq!(line["path"], expected_path, "{line}"),
        }
    }
    let _held = [Client::connect(penstock.data), Client::connect(penstock.data)];
    eventually("both connections are counted", SOON, || {
        penstock.admin("/metrics").text().contains("penstock_connections 2")
    });
    let before = lines(&path).len();
    assert_eq!(penstock.chat("m").status, 503);
    let line = wait_for(&path, before + 1).remove(before);
    assert_eq!(
        (&line["client"], &line["error"]),
        (&json!("127.0.0.1"), &json!("too_many_connections"))
    );
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("sk-"), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    assert!(text.lines().all(|line| line.len() < 4096), "lines are bounded");
}

#[test]
fn lines_contain_no_secrets() {
    let one = engine("one", &["m"]);
    let (section, path) = log_to("");
    let penstock = Penstock::start(&format!(
        "{section}auth: {{ keys: [{{ name: a, key: sk-secret-1 }}] }}\nbackends:\n{}",
        backend(&one, "api_key: sk-upstream-2, models: [m]")
    ));
    let body = chat("m", "prompt-words-3").to_string();
    for (key, target) in [("sk-secret-1", "?key=sk-query-4"), ("sk-wrong-5", "")] {
        let headers =
            [("authorization", format!("Bearer {key}")), ("cookie", "sk-cookie-6".to_owned())];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        request(penstock.data, "POST", &format!("{CHAT}{target}"), &headers, body.as_bytes());
    }
    wait_for(&path, 2);
    let text = std::fs::read_to_string(&path).unwrap();
    for secret in ["sk-", "prompt-words"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

#[test]
fn rotated_file_is_reopened() {
    let (one, penstock, path) = start("");
    penstock.chat("m");
    wait_for(&path, 1);
    let moved = path.with_extension("1");
    std::fs::rename(&path, &moved).unwrap();
    penstock.chat("m");
    wait_for(&moved, 2);
    penstock.signal("USR1");
    eventually("the file is there again", SOON, || path.exists());
    penstock.chat("m");
    wait_for(&path, 1);
    assert_eq!(lines(&moved).len(), 2, "nothing more goes into the old one");
    let silent = Penstock::start(&format!("backends:\n{}", backend(&one, "models: [m]")));
    silent.signal("USR1");
    assert_eq!(silent.chat("m").status, 200, "without a log the signal does nothing");
    assert_eq!(silent.admin("/health/live").status, 200);
}

#[test]
fn shutdown_flushes_all_lines() {
    let (_one, mut penstock, path) = start("");
    let mut client = Client::connect(penstock.data);
    let body = chat("m", "hello").to_string();
    for _ in 0..200 {
        client.send("POST", CHAT, &[], body.as_bytes());
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    drop(client);
    penstock.signal("TERM");
    assert!(penstock.wait_end(Duration::from_secs(15)).success());
    assert_eq!(lines(&path).len(), 200);
}

#[test]
fn lines_go_to_standard_output() {
    let one = engine("one", &["m"]);
    let (data, admin) = (free_address(), free_address());
    let config = scratch("penstock.yaml");
    let yaml = format!(
        "server: {{ listen: \"{data}\" }}\nadmin: {{ listen: \"{admin}\" }}\n\
         access_log: {{ path: stdout }}\nbackends:\n{}",
        backend(&one, "models: [m]")
    );
    std::fs::write(&config, yaml).unwrap();
    let mut child = binary()
        .args(["serve", "--config"])
        .arg(&config)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("penstock is ready", Duration::from_secs(15), || {
        crate::support::client::is_ok(admin, "/health/ready")
    });
    crate::support::client::post(data, CHAT, &chat("m", "hello"));
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["status"], 200, "{line}");
    assert_eq!(rest, "", "nothing else is written there");
}

#[test]
fn sampling_keeps_failed_requests() {
    let (_one, penstock, path) = start("sample: 0");
    for _ in 0..20 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(penstock.chat("unknown").status, 404);
    let lines = wait_for(&path, 1);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["error"], "model_not_found");
}

#[test]
fn failed_writes_name_the_file() {
    let one = engine("one", &["m"]);
    let backends = backend(&one, "models: [m]");
    let yaml = format!("access_log: {{ path: /dev/full }}\nbackends:\n{backends}");
    let penstock = Penstock::start(&yaml);
    assert_eq!(penstock.chat("m").status, 200);
    let failure = "the access log: delivery failed, batch dropped";
    eventually("the failure is logged", SOON, || penstock.log().contains(failure));
    let log = penstock.log();
    let line = log.lines().find(|line| line.contains(failure)).unwrap();
    assert!(line.contains("/dev/full"), "{line}");
}

#[test]
fn unwritable_file_fails_the_start() {
    let config = scratch("penstock.yaml");
    let (data, admin) = (free_address(), free_address());
    let yaml = format!(
        "server: {{ listen: \"{data}\" }}\nadmin: {{ listen: \"{admin}\" }}\n\
         access_log: {{ path: missing/access.log }}\nbackends: [http://127.0.0.1:9]\n"
    );
    std::fs::write(&config, &yaml).unwrap();
    let ran = crate::support::command::run(["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("penstock.yaml:3:21: 'access_log.path'"), "{}", ran.stderr);
    let folder = config.parent().unwrap().display().to_string();
    std::fs::write(&config, yaml.replace("missing/access.log", &folder)).unwrap();
    let ran = crate::support::command::run(["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("is a folder: name a file in it"), "{}", ran.stderr);
    // A folder that is there, and takes no file.
    std::fs::write(&config, yaml.replace("missing/", "/proc/")).unwrap();
    let ran = crate::support::command::run(["serve", "--config", config.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot open the access log"), "{}", ran.stderr);
}
