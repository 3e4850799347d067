//! API keys, each for some models: clients without one are refused, backends get their own
//! credentials, and no key appears in logs, metrics or responses.

use penstock_mock::{EngineModel, Fault, MockEngine, MockSpec};
use serde_json::json;

use crate::support::block_on;
use crate::support::client::{Client, Response, chat, request};
use crate::support::engines::{backend, engine, start};
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::Penstock;

const CHAT: &str = "/v1/chat/completions";
const KEYS: &str = "auth: { keys: [{ name: all, key: sk-all-0123456789 }, \
                    { name: some, key: sk-some-0123456789, models: [\"llama*\", \"q?\"] }] }";

fn bearer(key: &str) -> (&'static str, String) {
    ("authorization", format!("Bearer {key}"))
}

fn send_to(penstock: &Penstock, path: &str, model: &str, headers: &[(&str, String)]) -> Response {
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut body = chat(model, "hello");
    body["max_tokens"] = json!(3);
    request(penstock.data, "POST", path, &headers, body.to_string().as_bytes())
}

#[test]
fn unknown_keys_get_401() {
    let engine = engine("one", &["m"]);
    let penstock =
        Penstock::start(&format!("{KEYS}\nbackends:\n{}", backend(&engine, "models: [m]")));
    let good = "sk-all-0123456789";
    for headers in [
        vec![bearer(good)],
        vec![("authorization", format!("bearer  {good} "))],
        vec![("x-api-key", good.to_owned())],
    ] {
        assert_eq!(send_to(&penstock, CHAT, "m", &headers).status, 200, "{headers:?}");
    }
    for headers in [
        vec![],
        vec![bearer("")],
        vec![bearer("sk-all-012345678")],
        vec![bearer("sk-all-01234567890")],
        vec![bearer("SK-ALL-0123456789")],
        vec![("authorization", format!("Basic {good}"))],
        vec![("authorization", good.to_owned())],
        vec![("x-api-key", "nothing".to_owned())],
        vec![("cookie", format!("key={good}"))],
    ] {
        let response = send_to(&penstock, CHAT, "m", &headers);
        assert_eq!((response.status, response.error_code().as_str()), (401, "invalid_api_key"));
        assert_eq!(response.json()["error"]["type"], "authentication_error");
        assert_eq!(response.header("www-authenticate"), Some("Bearer"));
        assert!(!response.text().contains("sk-all"), "{}", response.text());
        let response = send_to(&penstock, "/v1/messages", "m", &headers);
        let kind = &response.json()["error"]["type"];
        assert_eq!((response.status, kind), (401, &json!("authentication_error")));
        assert_eq!(response.json()["type"], "error");
    }
    assert_eq!(penstock.get("/v1/models").status, 401);
    assert_eq!(penstock.get("/health").status, 200, "needs no key");
    assert_eq!(engine.counters().requests, 3);
}

#[test]
fn keys_are_limited_to_their_models() {
    let engine = engine("one", &["llama3:8b", "q4", "m"]);
    let routing = "routing: { aliases: { llama-best: m } }";
    let items = backend(&engine, "models: [\"llama3:8b\", q4, m]");
    let penstock = Penstock::start(&format!("{KEYS}\n{routing}\nbackends:\n{items}"));
    let key = [bearer("sk-some-0123456789")];
    for model in ["llama3:8b", "q4", "llama-best"] {
        assert_eq!(send_to(&penstock, CHAT, model, &key).status, 200, "{model}");
    }
    let response = send_to(&penstock, CHAT, "m", &key);
    assert_eq!((response.status, response.error_code().as_str()), (403, "model_not_allowed"));
    assert!(response.json()["error"]["message"].as_str().unwrap().contains("'m'"));
    let response = send_to(&penstock, "/v1/messages", "m", &key);
    assert_eq!(
        (response.status, &response.json()["error"]["type"]),
        (403, &json!("permission_error"))
    );
    let headers = [("authorization", "Bearer sk-some-0123456789")];
    let list = request(penstock.data, "GET", "/v1/models", &headers, b"").json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["llama-best", "llama3:8b", "q4"], "only the models of the key");
    let hidden = request(penstock.data, "GET", "/v1/models/m", &headers, b"");
    assert_eq!(hidden.status, 404);
    assert_eq!(engine.counters().requests, 3);
    let with = |fields: serde_json::Value, key: &str| {
        let mut body = chat("q4", "hello");
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let headers = [("authorization", &*format!("Bearer {key}"))];
        request(penstock.data, "POST", CHAT, &headers, body.to_string().as_bytes())
    };
    for further in [
        json!({"models": ["q4", "m"]}),
        json!({"fallbacks": [{"model": "m"}]}),
        json!({"context_window_fallbacks": [{"q4": ["m"]}]}),
    ] {
        let response = with(further.clone(), "sk-some-0123456789");
        assert_eq!((response.status, &*response.error_code()), (403, "model_not_allowed"));
        assert!(response.text().contains("'m'"), "{further}: {}", response.text());
        assert_eq!(with(further.clone(), "sk-all-0123456789").status, 200, "{further}");
    }
    assert_eq!(with(json!({"models": ["llama3"]}), "sk-some-0123456789").status, 200);
    assert_eq!(engine.counters().requests, 7);
}

fn locked(name: &str, key: &str) -> MockEngine {
    let spec = MockSpec::new(name, [EngineModel::new(name)]);
    start(MockSpec { api_key: Some(key.to_owned()), ..spec })
}

/// The credentials an engine was sent with its last request.
fn credentials(engine: &MockEngine) -> [Option<String>; 2] {
    let last = engine.received().pop().unwrap();
    let count =
        |name: &str| last.headers.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name)).count();
    assert!(count("authorization") <= 1 && count("x-api-key") <= 1, "{:?}", last.headers);
    ["authorization", "x-api-key"].map(|name| last.header(name).map(str::to_owned))
}

#[test]
fn backends_get_their_own_credentials() {
    let (own, bare, passed) =
        (locked("own", "up-1"), engine("bare", &["bare"]), engine("passed", &["passed"]));
    let items = backend(&own, "api_key: up-1, models: [own]")
        + &backend(&bare, "models: [bare]")
        + &backend(&passed, "authorization: pass, models: [passed]");
    let penstock = Penstock::start(&format!("{KEYS}\nbackends:\n{items}"));
    let mine = "sk-all-0123456789";
    let both = [bearer(mine), ("x-api-key", mine.to_owned())];
    assert_eq!(
        send_to(&penstock, CHAT, "own", &both).status,
        200,
        "the backend's key replaces the client's"
    );
    assert_eq!(credentials(&own)[0].as_deref(), Some("Bearer up-1"));
    assert_ne!(credentials(&own)[1].as_deref(), Some(mine));
    assert_eq!(send_to(&penstock, "/v1/messages", "own", &both[1..]).status, 200);
    assert_eq!(credentials(&own)[1].as_deref(), Some("up-1"), "as Anthropic's dialect sends it");
    assert_eq!(send_to(&penstock, CHAT, "bare", &both).status, 200);
    assert_eq!(credentials(&bare), [None, None], "a client's key is not forwarded");
    assert_eq!(send_to(&penstock, CHAT, "passed", &both).status, 200);
    assert_eq!(credentials(&passed), [Some(format!("Bearer {mine}")), Some(mine.to_owned())]);
    let checked = own.probes();
    assert!(checked.iter().all(|probe| probe.header("authorization") == Some("Bearer up-1")));
}

#[test]
fn client_credentials_pass_without_auth_keys() {
    let (open, strict) = (locked("open", "client-1"), engine("strict", &["strict"]));
    let items = backend(&open, "health: { path: /health }, models: [open]")
        + &backend(&strict, "authorization: strip, models: [strict]");
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    assert_eq!(send_to(&penstock, CHAT, "open", &[bearer("client-1")]).status, 200);
    let refused = send_to(&penstock, CHAT, "open", &[bearer("client-2")]);
    let direct = request(
        open.addr(),
        "POST",
        CHAT,
        &[("authorization", "Bearer client-2")],
        chat("open", "hello").to_string().as_bytes(),
    );
    assert_eq!((refused.status, refused.text()), (401, direct.text()), "the engine's own response");
    assert_eq!(send_to(&penstock, CHAT, "strict", &[bearer("client-1")]).status, 200);
    assert_eq!(credentials(&strict), [None, None]);
}

#[test]
fn keys_and_prompts_are_never_shown() {
    let engine = locked("one", "upstream-secret-77");
    let more = "log: { level: trace }\nrouting: { expose_decision: true }";
    let items = backend(&engine, "api_key: upstream-secret-77, models: [one]");
    let penstock = Penstock::start(&format!("{KEYS}\n{more}\nbackends:\n{items}"));
    let secrets = [
        "sk-all-0123456789",
        "sk-some-0123456789",
        "upstream-secret-77",
        "sk-wrong-1",
        "prompt-words-55",
    ];
    let body = chat("one", "prompt-words-55").to_string();
    engine.script([Fault::Pass, Fault::status(500), Fault::CloseAfterRequest, Fault::Garbage]);
    let mut responses = Vec::new();
    for key in ["sk-all-0123456789"; 4].into_iter().chain(["sk-wrong-1", "sk-some-0123456789"]) {
        let headers = [("authorization", format!("Bearer {key}"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let response = request(penstock.data, "POST", CHAT, &headers, body.as_bytes());
        let head: String =
            response.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        responses.push(head);
        if response.status != 200 {
            responses.push(response.text());
        }
    }
    let broken = request(
        penstock.data,
        "POST",
        CHAT,
        &[("x-api-key", secrets[0])],
        b"{\"model\":\"one\",\"messages\":[{\"content\":\"prompt-words-55\"}",
    );
    responses.push(broken.text());
    block_on(engine.kill()).unwrap();
    let headers = [("x-api-key", secrets[0])];
    let lost = request(penstock.data, "POST", CHAT, &headers, body.as_bytes());
    assert!(!lost.text().contains(&engine.addr().to_string()), "{}", lost.text());
    responses.push(lost.text());
    for path in ["/metrics", "/config", "/fleet", "/decisions", "/health/ready", "/"] {
        let page = penstock.admin(path);
        assert_eq!(page.status, 200, "{path}");
        responses.push(page.text());
    }
    let command = std::fs::read(format!("/proc/{}/cmdline", penstock.pid())).unwrap_or_default();
    responses.push(String::from_utf8_lossy(&command).into_owned());
    responses.push(penstock.log());
    for text in responses {
        for secret in secrets {
            assert!(!text.contains(secret), "{secret} is shown in:\n{text}");
        }
    }
}

#[test]
fn log_lines_cannot_be_forged() {
    let engine = engine("one", &["m"]);
    let yaml = format!("log: {{ level: debug }}\nbackends:\n{}", backend(&engine, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    let evil = "x\r\nFORGED line\u{1b}[31m";
    assert_eq!(penstock.chat(evil).status, 404);
    for path in ["/x%0d%0aFORGED", "/x\u{1b}[31mFORGED"] {
        let response = request(penstock.data, "GET", path, &[("x-request-id", "a\tFORGED")], b"");
        assert!(matches!(response.status, 400 | 404), "{path}");
    }
    let (log, metrics) = (penstock.log(), penstock.admin("/metrics").text());
    for text in [&log, &metrics] {
        assert!(text.lines().all(|line| !line.starts_with("FORGED")), "{text}");
        assert!(text.lines().all(|line| line.len() < 4096));
    }
    assert!(!metrics.contains('\u{1b}'));
    let raw_escape = log.replace("\u{1b}[0m", "").contains("\u{1b}[31mFORGED");
    assert!(!raw_escape, "{log}");
}

#[test]
fn keys_are_taken_from_every_usual_field_and_withheld() {
    let one = OpenEngine::start("one");
    let engine = engine("two", &["m"]);
    let routing = "routing: { passthrough: { \"/ws\": one } }\n";
    let items = one.item("models: [n]") + &backend(&engine, "models: [m]");
    let penstock = Penstock::start(&format!("{KEYS}\n{routing}backends:\n{items}"));
    let key = "sk-all-0123456789";
    for name in ["api-key", "x-goog-api-key"] {
        assert_eq!(send_to(&penstock, CHAT, "m", &[(name, key.to_owned())]).status, 200, "{name}");
        let sent = engine.received().pop().unwrap();
        assert_eq!(sent.header(name), None, "the engine gets no {name}");
        let wrong = send_to(&penstock, CHAT, "m", &[(name, "sk-other".to_owned())]);
        assert_eq!(wrong.status, 401, "{name}");
        let twice = [(name, key.to_owned()), (name, "sk-other".to_owned())];
        assert_eq!(send_to(&penstock, CHAT, "m", &twice).status, 400, "{name}");
    }
    let open = |protocols: &str| {
        let mut client = Client::connect(penstock.data);
        let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                      Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
        let head = format!(
            "GET /ws HTTP/1.1\r\nhost: t\r\n{fields}\r\nSec-WebSocket-Protocol: {protocols}\r\n\r\n"
        );
        client.send_bytes(head.as_bytes());
        client.read_status()
    };
    assert_eq!(open("realtime, openai-insecure-api-key.sk-wrong"), 401);
    assert_eq!(
        open(&format!("realtime, openai-insecure-api-key.{key}, openai-beta.realtime-v1")),
        101
    );
    let protocols = one.take_protocols();
    assert_eq!(protocols, ["realtime, openai-beta.realtime-v1"], "without the key");
    assert!(!penstock.log().contains(key));
}
