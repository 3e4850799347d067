//! The engine reads the same as penstock: a field that penstock decides by, written in another
//! spelling or in a second place, is refused on every path that ends at an engine, whatever the key
//! may use.

use penstock_api::{BodyFormat, OPERATIONS};
use penstock_mock::{EngineModel, Flavour, MockEngine, MockSpec};
use serde_json::json;

use crate::support::client::{Response, request};
use crate::support::engines::{backend, serving_all, start};
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::Penstock;

const KEYS: &str = "auth: { keys: [\
    { name: limited, key: k1, models: [mine], manage_models: true }, \
    { name: open, key: k2, manage_models: true }] }\n";
const LIMITED: (&str, &str) = ("authorization", "Bearer k1");
const OPEN: (&str, &str) = ("authorization", "Bearer k2");
const JSON: (&str, &str) = ("content-type", "application/json");
const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=B");

/// Members in front of which a body is as it should be.
const PLAIN: &str = r#""messages":[{"role":"user","content":"x"}],"input":"x","prompt":"x","query":"x","documents":["x"],
    "tokens":[1],"content":"x","text_1":"x","text_2":"x","input_prefix":"x","input_suffix":"x","stream":false}"#;
/// Members that an engine may read as one that decides.
const TWINS: [&str; 12] = [
    r#""Model":"secret""#,
    r#""MODEL":"secret""#,
    r#""mod\u0045l":"secret""#,
    r#""Stream":true"#,
    r#""ſtream":true"#,
    r#""Max_Tokens":9999"#,
    "\"max_to\u{212a}ens\":9999",
    r#""N":9"#,
    r#""Options":{"num_predict":9999}"#,
    r#""PREVIOUS_RESPONSE_ID":"resp_1""#,
    r#""Conversation":"conv_1""#,
    r#""model":null"#,
];
const QUERIES: [&str; 6] = [
    "?model=secret",
    "?Model=secret",
    "?mod%65l=secret",
    "?a=1;model=secret",
    "?model[]=secret",
    "?+model=secret",
];

fn form(more: &str) -> String {
    let field = |name: &str, value: &str| {
        format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let more = more.split_once('=').map_or(String::new(), |(name, value)| field(name, value));
    format!("{}{}{more}--B--\r\n", field("model", "mine"), field("prompt", "x"))
}

fn is_refused(response: &Response, about: &str) {
    assert_eq!(response.status, 400, "{about}: {}", response.text());
}

#[test]
fn operations_refuse_twins() {
    let engine = OpenEngine::start("one");
    let models = [serving_all("mine"), serving_all("secret")].join(", ");
    let items = engine.item(&format!("engine: other, models: [{models}]"));
    let penstock = Penstock::start(&format!("{KEYS}backends:\n{items}"));
    for row in OPERATIONS {
        for path in row.paths {
            let (kind, twins): (_, Vec<String>) = match row.body {
                BodyFormat::Json => {
                    let body = |twin: &&str| format!("{{\"model\":\"mine\",{twin},{PLAIN}");
                    (JSON, TWINS.iter().map(body).collect())
                }
                BodyFormat::Multipart => {
                    let names = ["model=secret", "Model=secret", "mod%65l=secret", "Stream=true"];
                    (FORM, names.iter().map(|twin| form(twin)).collect())
                }
            };
            let plain = match row.body {
                BodyFormat::Json => format!("{{\"model\":\"mine\",{PLAIN}"),
                BodyFormat::Multipart => form(""),
            };
            for key in [LIMITED, OPEN] {
                for body in &twins {
                    let response =
                        request(penstock.data, "POST", path, &[key, kind], body.as_bytes());
                    is_refused(&response, &format!("{path} {body}"));
                }
                for query in QUERIES {
                    let target = format!("{path}{query}");
                    let response =
                        request(penstock.data, "POST", &target, &[key, kind], plain.as_bytes());
                    is_refused(&response, &target);
                }
                assert!(engine.take_requests().is_empty(), "{path}: nothing reaches the engine");
                _ = request(penstock.data, "POST", path, &[key, kind], plain.as_bytes());
                assert_eq!(engine.take_requests().len(), 1, "{path}: the plain body does");
            }
        }
    }
}

#[test]
fn paths_by_model_refuse_twins() {
    let engine = OpenEngine::start("one");
    let items = engine.item("engine: other, models: [mine, secret]");
    let routing = "routing: { passthrough: { \"/x/*\": by-model } }\n";
    let penstock = Penstock::start(&format!("{KEYS}{routing}backends:\n{items}"));
    let send = |key, method: &str, target: &str, kind, body: &str| {
        request(penstock.data, method, target, &[key, kind], body.as_bytes())
    };
    const URLENCODED: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
    for key in [LIMITED, OPEN] {
        for (method, target, kind, body) in [
            ("GET", "/x/a?model=mine&model=secret", JSON, ""),
            ("GET", "/x/a?mod%65l=secret&model=mine", JSON, ""),
            ("GET", "/x/a?model=mine&mod%65l=secret", JSON, ""),
            ("GET", "/x/a?MODEL=secret&model=mine", JSON, ""),
            ("GET", "/x/a?model=mine;model=secret", JSON, ""),
            ("POST", "/x/a?model=secret", JSON, r#"{"model":"mine"}"#),
            ("POST", "/x/a?model=mine", JSON, r#"{"model":"secret"}"#),
            ("POST", "/x/a?model=mine", JSON, "\u{feff}{\"model\":\"secret\"}"),
            ("POST", "/x/a?model=mine", JSON, r#"{"model":"secret"} x"#),
            ("POST", "/x/a?model=mine", JSON, r#"{"Model":"secret"}"#),
            ("POST", "/x/a", JSON, r#"{"model":"mine","MODEL":"secret"}"#),
            ("POST", "/x/a?model=mine", FORM, &form("Model=secret")),
            ("POST", "/x/a?model=secret", FORM, &form("")),
            ("POST", "/x/a", FORM, &form("model=secret")),
            ("POST", "/x/a?model=mine", URLENCODED, "a=1&mod%65l=secret"),
        ] {
            let response = send(key, method, target, kind, body);
            is_refused(&response, &format!("{method} {target} {body}"));
        }
        for (target, kind, body) in [
            ("/x/a?model=mine", JSON, ""),
            ("/x/a?limit=2&model=mine", URLENCODED, "a=1"),
            ("/x/a", JSON, r#"{"model":"mine","Temperature":1}"#),
            ("/x/a", FORM, &form("")),
        ] {
            let response = send(key, "POST", target, kind, body);
            assert_eq!(response.status, 200, "{target} {body}: {}", response.text());
        }
        assert_eq!(engine.take_requests().len(), 4);
    }
    for target in ["/x/models/secret:generateContent?model=mine", "/x/deployments/secret/chat"] {
        is_refused(&send(LIMITED, "POST", target, JSON, r#"{"model":"mine"}"#), target);
    }
    let by_path = send(LIMITED, "POST", "/x/models/secret:generateContent", JSON, "{}");
    assert_eq!((by_path.status, by_path.error_code().as_str()), (403, "model_not_allowed"));
    assert_eq!(send(LIMITED, "POST", "/x/models/mine:countTokens", JSON, "{}").status, 200);
    let opaque = ("content-type", "application/octet-stream");
    let unread = send(LIMITED, "POST", "/x/a?model=mine", opaque, "[{\"model\":\"secret\"}]");
    assert_eq!((unread.status, unread.error_code().as_str()), (403, "model_not_allowed"));
    assert_eq!(send(OPEN, "POST", "/x/a?model=mine", opaque, "[1]").status, 200);
}

fn ollama(models: &[&str]) -> MockEngine {
    let models = models.iter().map(|id| EngineModel::new(id));
    start(MockSpec { flavour: Flavour::Ollama, ..MockSpec::new("o", models) })
}

#[test]
fn ollama_commands_refuse_twins() {
    let engine = ollama(&["mine", "secret"]);
    let penstock =
        Penstock::start(&format!("{KEYS}backends:\n{}", backend(&engine, "engine: ollama")));
    let sent = || {
        let received = engine.received();
        received.iter().filter(|one| matches!(&*one.method, "POST" | "DELETE")).count()
    };
    let before = sent();
    for key in [LIMITED, OPEN] {
        for (method, path, body) in [
            ("POST", "/api/show", r#"{"model":"mine","Model":"secret"}"#),
            ("POST", "/api/show", r#"{"model":"mine","name":"secret"}"#),
            ("POST", "/api/pull", r#"{"model":"mine","MODEL":"secret"}"#),
            ("POST", "/api/push", r#"{"name":"mine","Name":"secret"}"#),
            ("POST", "/api/push", r#"{"name":"secret","model":"mine"}"#),
            ("POST", "/api/create", r#"{"model":"mine","From":"secret"}"#),
            ("POST", "/api/create", r#"{"model":"mine","from":"secret","from":null}"#),
            ("POST", "/api/copy", r#"{"source":"mine","destination":"mine","Source":"secret"}"#),
            (
                "POST",
                "/api/copy",
                r#"{"source":"mine","destination":"mine","DE\u017fTINATION":"secret"}"#,
            ),
            ("DELETE", "/api/delete", r#"{"model":"mine","mod\u0045l":"secret"}"#),
            ("DELETE", "/api/delete", r#"{"model":"mine","name":"secret"}"#),
            ("DELETE", "/api/delete?model=secret", r#"{"model":"mine"}"#),
        ] {
            let response = request(penstock.data, method, path, &[key], body.as_bytes());
            is_refused(&response, &format!("{method} {path} {body}"));
        }
    }
    let old = r#"{"model":"mine","modelfile":"FROM secret"}"#;
    let response = request(penstock.data, "POST", "/api/create", &[LIMITED], old.as_bytes());
    assert_eq!(response.status, 403, "older engines read the model from it: {}", response.text());
    assert_eq!(sent(), before, "nothing reached the engine");
}

#[test]
fn names_are_judged_in_the_spelling_of_the_engine() {
    let engine = ollama(&["mine", "Secret", "two", "Two"]);
    let keys = "auth: { keys: [{ name: a, key: k1, models: [mine, \"s*\", \"T*\"], manage_models: true }] }\n";
    let penstock =
        Penstock::start(&format!("{keys}backends:\n{}", backend(&engine, "engine: ollama")));
    let status = |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "x"}], "stream": false});
        let body = body.to_string();
        request(penstock.data, "POST", "/api/chat", &[LIMITED], body.as_bytes()).status
    };
    for model in ["mine", "MINE", "Mine:latest"] {
        assert_eq!(status(model), 200, "{model} is the model of the list");
    }
    for model in ["secret", "SECRET", "Secret"] {
        assert_eq!(status(model), 403, "{model} is Secret, which the list lacks");
    }
    assert_eq!((status("Two"), status("two")), (200, 403), "each is itself");
    assert_eq!(status("TWO"), 404, "two models fit");
    let body = r#"{"model":"secret"}"#;
    let deleted = request(penstock.data, "DELETE", "/api/delete", &[LIMITED], body.as_bytes());
    assert_eq!(deleted.status, 403, "{}", deleted.text());
}

#[test]
fn twins_have_the_error_of_their_dialect() {
    let engine = ollama(&["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&engine, "engine: ollama")));
    let send = |path: &str| {
        let body = r#"{"model":"m","Model":"x","max_tokens":5,"messages":[]}"#;
        request(penstock.data, "POST", path, &[], body.as_bytes()).json()
    };
    let error = &send("/v1/chat/completions")["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("ambiguous_field"), &json!("model")));
    assert_eq!(send("/v1/messages")["error"]["type"], "invalid_request_error");
    assert!(send("/api/chat")["error"].as_str().unwrap().contains("'model'"));
}
