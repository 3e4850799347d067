//! A wrong path or method gets a clear error, and web pages may call where the operator
//! allows them; neither disturbs the connection or reaches a backend.

use penstock_mock::{Fault, MockEngine};
use serde_json::json;

use crate::support::client::{Client, chat, request};
use crate::support::engines::{backend, engine};
use crate::support::penstock::Penstock;

const CHAT: &str = "/v1/chat/completions";

fn start(environment: &[(&str, &str)]) -> (MockEngine, Penstock) {
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    let penstock = Penstock::start_with(&yaml, environment);
    (engine, penstock)
}

#[test]
fn unknown_paths_are_404() {
    let (engine, penstock) = start(&[]);
    let paths = [
        "/v1",
        "/v1/",
        "/v2/chat/completions",
        "/v1/chat",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/V1/chat/completions",
        "/v1/../v1/chat/completions",
        "/v1/./chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions;x=1",
        "/v1\\chat\\completions",
        "/admin",
        "/metrics",
        "/fleet",
        "/config",
        "/decisions",
        "/explain",
        "/health/live",
        "/health/ready",
        "/v1/completions%00",
        "/v1/chat/completions%20",
    ];
    for path in paths {
        for method in ["GET", "POST"] {
            let response = request(penstock.data, method, path, &[], b"");
            let is_refused = response.status == 404 && response.error_code() == "unknown_path"
                || response.status == 400;
            assert!(is_refused, "{method} {path}: {} {}", response.status, response.text());
            assert_eq!(response.json()["error"]["type"], "invalid_request_error");
        }
    }
    let response = request(penstock.data, "POST", "/v1/messages/batches", &[], b"{}");
    assert_eq!(
        (response.status, &response.json()["type"]),
        (404, &json!("error")),
        "Anthropic's shape"
    );
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn unknown_paths_say_what_to_do() {
    let (_engine, penstock) = start(&[]);
    for (path, hint) in [
        ("/v1/v1/messages", "did you mean /v1/messages? Leave /v1 out of the client's base URL"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/chat/completions/", "did you mean /v1/chat/completions?"),
        ("/v1/api/tags", "did you mean /api/tags? Leave /v1 out"),
        ("/api/v1/chat/completions", "did you mean /v1/chat/completions? Leave /api out"),
        ("/metrics", "a page of the admin port (`admin.listen`)"),
        ("/dashboard", "a page of the admin port"),
    ] {
        let response = request(penstock.data, "POST", path, &[], b"");
        assert_eq!(response.status, 404, "{path}");
        assert!(response.text().contains(hint), "{path}: {}", response.text());
    }
    let other = request(penstock.data, "GET", "/favicon.ico", &[], b"");
    assert_eq!(other.json()["error"]["message"], "Unknown path: /favicon.ico");
}

#[test]
fn root_page_describes_penstock() {
    let engine = engine("gpu-a", &["m"]);
    let keys = "auth: { keys: [{ name: team, key: secret-key-of-team }] }";
    let yaml = format!("{keys}\nbackends:\n{}", backend(&engine, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    let json = [("accept", "application/json")];
    let response = request(penstock.data, "GET", "/", &json, b"");
    assert_eq!(response.status, 200, "{}", response.text());
    let page = response.json();
    assert_eq!((&page["name"], &page["models"]), (&json!("penstock"), &json!("/v1/models")));
    assert!(page["documentation"].is_string() && page["description"].is_string(), "{page}");
    assert!(!response.text().contains("gpu-a"), "nothing about the fleet");
    let mut client = Client::connect(penstock.data);
    client.send("HEAD", "/", &json, b"");
    let (status, headers) = client.read_head().unwrap();
    let length = ("content-length".to_owned(), response.body.len().to_string());
    assert!(status == 200 && headers.contains(&length), "{status} {headers:?}");
    let response = request(penstock.data, "POST", "/", &[], b"{}");
    assert_eq!((response.status, response.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(penstock.get("/v1/models").status, 401, "the rest still needs a key");
}

#[test]
fn wrong_methods_are_405_with_allow() {
    let (engine, penstock) = start(&[]);
    for (path, allow, methods) in [
        (CHAT, "POST", ["GET", "PUT", "DELETE", "PATCH"]),
        ("/v1/audio/transcriptions", "POST", ["GET", "PUT", "HEAD", "OPTIONS"]),
        ("/v1/models", "GET, HEAD", ["POST", "PUT", "DELETE", "OPTIONS"]),
        ("/v1/models/m", "GET, HEAD", ["POST", "PUT", "DELETE", "FOO"]),
        ("/health", "GET, HEAD", ["POST", "PUT", "DELETE", "PATCH"]),
    ] {
        for method in methods {
            let mut client = Client::connect(penstock.data);
            client.send(method, path, &[("connection", "close")], b"");
            let (status, headers) = client.read_head().unwrap();
            let field = |name: &str| {
                headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
            };
            assert_eq!(status, 405, "{method} {path}");
            assert_eq!(field("allow").as_deref(), Some(allow), "{method} {path}");
            assert_eq!(field("x-should-retry").as_deref(), Some("false"));
        }
    }
    for cors in ["off", "*"] {
        let (_engine, penstock) = start(&[("PENSTOCK_SERVER_CORS", cors)]);
        for (method, path) in [("GET", CHAT), ("PUT", "/v1/models")] {
            let response = request(penstock.data, method, path, &[], b"");
            let allow = response.header("allow").unwrap();
            let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
            assert_eq!(message, format!("{path} takes {allow}"), "text and field agree");
            assert_eq!(allow.contains("OPTIONS"), cors == "*", "{allow}");
        }
    }
    let response = request(penstock.data, "GET", CHAT, &[], b"");
    assert_eq!(response.error_code(), "method_not_allowed");
    let response = request(penstock.data, "GET", "/v1/messages", &[], b"");
    assert_eq!((response.status, &response.json()["type"]), (405, &json!("error")));
    assert_eq!(engine.counters().requests, 0);
}

#[test]
fn head_is_get_without_a_body() {
    let (_engine, penstock) = start(&[]);
    let mut client = Client::connect(penstock.data);
    for path in ["/v1/models", "/v1/models/m", "/health"] {
        client.send("GET", path, &[], b"");
        let got = client.read_response().unwrap();
        client.send("HEAD", path, &[], b"");
        let (status, headers) = client.read_head().unwrap();
        assert_eq!(status, 200, "{path}");
        let length = headers.iter().find(|(name, _)| name == "content-length").unwrap();
        assert_eq!(length.1, got.body.len().to_string(), "{path}: the length GET would have");
    }
    // A body after a HEAD would have been taken for the next response.
    client.send("GET", "/health", &[], b"");
    assert_eq!(client.read_response().unwrap().json()["status"], "healthy");
}

#[test]
fn one_connection_serves_many_requests() {
    let (engine, penstock) = start(&[]);
    let mut client = Client::connect(penstock.data);
    let body = chat("m", "hello").to_string();
    for round in 0..5 {
        client.send("POST", CHAT, &[], body.as_bytes());
        assert_eq!(client.read_response().unwrap().status, 200, "round {round}");
        client.send("GET", "/nowhere", &[], b"");
        assert_eq!(client.read_response().unwrap().status, 404, "round {round}");
        client.send("POST", CHAT, &[], chat("ghost", "x").to_string().as_bytes());
        assert_eq!(client.read_response().unwrap().status, 404, "round {round}");
        client.send("GET", "/v1/models", &[], b"");
        assert_eq!(client.read_response().unwrap().status, 200, "round {round}");
    }
    assert_eq!(engine.counters().requests, 5);
    assert_eq!(engine.received()[4].connection, engine.received()[1].connection, "reused upstream");
}

#[test]
fn cors_allows_only_configured_origins() {
    let (engine, penstock) = start(&[("PENSTOCK_SERVER_CORS", "https://chat.example.com")]);
    let good = [
        ("origin", "https://chat.example.com"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, content-type"),
    ];
    let response = request(penstock.data, "OPTIONS", CHAT, &good, b"");
    assert_eq!(response.status, 204, "{}", response.text());
    assert_eq!(response.header("access-control-allow-origin"), Some(good[0].1));
    assert!(response.header("access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(response.header("access-control-allow-headers"), Some(good[2].1));
    assert!(response.header("access-control-max-age").is_some());
    let foreign = [("origin", "https://evil.example"), good[1]];
    let response = request(penstock.data, "OPTIONS", CHAT, &foreign, b"");
    assert_eq!(response.header("access-control-allow-origin"), None);
    let body = chat("m", "hello").to_string();
    for (path, method, status) in
        [(CHAT, "POST", 200), ("/v1/models", "GET", 200), ("/nowhere", "GET", 404)]
    {
        let body = if method == "POST" { body.as_bytes() } else { b"" };
        let response = request(penstock.data, method, path, &good[..1], body);
        assert_eq!(response.status, status);
        assert_eq!(response.header("access-control-allow-origin"), Some(good[0].1), "{path}");
        assert_eq!(response.header("vary").map(str::to_lowercase).as_deref(), Some("origin"));
        let exposed = response.header("access-control-expose-headers").unwrap();
        let names: Vec<&str> = exposed.split(", ").collect();
        for name in [
            "x-request-id",
            "request-id",
            "x-upstream-request-id",
            "retry-after",
            "openai-processing-ms",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-requests",
            "anthropic-ratelimit-input-tokens-remaining",
        ] {
            assert!(names.contains(&name), "{path}: {name} is not in {exposed}");
        }
        let response = request(penstock.data, method, path, &foreign[..1], body);
        assert_eq!(response.header("access-control-allow-origin"), None, "{path}");
    }
    assert_eq!(engine.counters().requests, 2, "no preflight got through");
}

#[test]
fn without_cors_there_are_no_cors_headers() {
    let (_engine, penstock) = start(&[]);
    let page = [("origin", "https://chat.example.com"), ("access-control-request-method", "POST")];
    let response = request(penstock.data, "OPTIONS", CHAT, &page, b"");
    assert_eq!(response.status, 405);
    let response = request(penstock.data, "GET", "/v1/models", &page, b"");
    assert!(response.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
}

#[test]
fn request_id_is_kept_or_generated() {
    let (engine, penstock) = start(&[]);
    let body = chat("m", "hello").to_string();
    let send =
        |headers: &[(&str, &str)]| request(penstock.data, "POST", CHAT, headers, body.as_bytes());
    let response = send(&[("x-request-id", "mine-1")]);
    assert_eq!(response.header("x-request-id"), Some("mine-1"));
    assert_eq!(engine.received().pop().unwrap().header("x-request-id"), Some("mine-1"));
    let (one, two) = (send(&[]), send(&[]));
    let made = one.header("x-request-id").unwrap();
    assert!(made.len() >= 16, "{made}");
    assert_ne!(Some(made), two.header("x-request-id"));
    let long = "x".repeat(1000);
    let response = send(&[("x-request-id", &long)]);
    assert_ne!(response.header("x-request-id"), Some(long.as_str()), "bounded");
}

/// An engine's response with these fields.
fn with_fields(status: u16, fields: &[(&str, &str)]) -> Fault {
    let headers = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Fault::Status {
        status,
        retry_after: None,
        body: r#"{"id":"x"}"#.to_owned(),
        headers: headers.collect(),
    }
}

#[test]
fn upstream_request_id_has_its_own_name() {
    let (engine, penstock) = start(&[]);
    // Relayed at once, held back, and refused.
    for status in [200, 400, 500, 429] {
        engine.script([with_fields(status, &[("X-Request-Id", "req_mock_1")])]);
        let body = chat("m", "hello").to_string();
        let response =
            request(penstock.data, "POST", CHAT, &[("x-request-id", "mine")], body.as_bytes());
        assert_eq!(response.status, status);
        assert_eq!(response.header("x-request-id"), Some("mine"));
        assert_eq!(response.header("x-upstream-request-id"), Some("req_mock_1"), "{status}");
    }
    let (engine, penstock) = start(&[]);
    engine.script([with_fields(200, &[("x-request-id", "mine")])]);
    let body = chat("m", "hello").to_string();
    let response =
        request(penstock.data, "POST", CHAT, &[("x-request-id", "mine")], body.as_bytes());
    assert_eq!(response.header("x-upstream-request-id"), None, "the engine returns ours");
}

#[test]
fn anthropic_clients_get_their_request_id() {
    let (engine, penstock) = start(&[]);
    let body = json!({"model": "ghost", "max_tokens": 1, "messages": []}).to_string();
    let own = [("x-request-id", "mine")];
    let response = request(penstock.data, "POST", "/v1/messages", &own, body.as_bytes());
    assert_eq!(response.status, 404);
    assert_eq!(response.header("request-id"), Some("mine"));
    assert_eq!(response.json()["request_id"], "mine");
    let response =
        request(penstock.data, "POST", CHAT, &own, chat("ghost", "x").to_string().as_bytes());
    assert_eq!(response.header("request-id"), None, "OpenAI's has another name");
    let body = body.replace("ghost", "m");
    engine.script([with_fields(200, &[("request-id", "req_011")]), with_fields(200, &[])]);
    let response = request(penstock.data, "POST", "/v1/messages", &own, body.as_bytes());
    assert_eq!(response.header("request-id"), Some("req_011"), "the backend's is kept");
    let response = request(penstock.data, "POST", "/v1/messages", &own, body.as_bytes());
    assert_eq!(response.header("request-id"), Some("mine"), "an engine sends none");
}

#[test]
fn no_request_field_selects_another_backend() {
    let (configured, penstock) = start(&[]);
    let other = engine("other", &["m"]);
    let (url, address) = (other.url(), other.addr());
    let mut body = chat("m", "hello");
    for key in ["api_base", "base_url", "url", "backend", "upstream"] {
        body[key] = json!(url);
    }
    let host = address.to_string();
    let headers = [
        ("x-upstream", host.as_str()),
        ("x-forwarded-host", &host),
        ("x-original-url", &url),
        ("forwarded", &url),
        ("x-penstock-backend", "other"),
    ];
    let body = body.to_string();
    let response = request(penstock.data, "POST", CHAT, &headers, body.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    for target in [format!("{url}{CHAT}"), format!("//{host}{CHAT}"), format!("{CHAT}@{host}")] {
        let mut client = Client::connect(penstock.data);
        let length = body.len();
        client.send_bytes(
            format!(
                "POST {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        );
        let status = client.read_response().unwrap().status;
        assert!(matches!(status, 200 | 400 | 404), "{target}: {status}");
    }
    let last = configured.received().pop().unwrap();
    assert_eq!(last.header("host"), Some(configured.addr().to_string().as_str()));
    assert_eq!(other.connections_accepted(), 0);
}
