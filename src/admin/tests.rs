//! The admin port, tested over connections.

use std::path::Path;
use std::sync::atomic::Ordering;

use penstock_config::{Config, Environment, Secret};
use penstock_core::routing::audit::ShadowHost;
use pingora::protocols::l4::stream::Stream;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::data_port::unknown_path::ADMIN_PATHS;
use crate::observe::ledger::Ledger;
use crate::observe::usage::LiveUsage;
use crate::proxy::ProxyParts;

const FLEET: &str = "limits: { max_body_size: 4KiB }\n\
    routing: { shadow: { strategy: random } }\n\
    backends:\n\
    - { name: eye, url: 'http://127.0.0.1:1', api_key: hush, models: [{ id: m }] }\n\
    - { name: ear, url: 'http://127.0.0.1:2' }\n";

#[test]
fn data_port_knows_every_path() {
    let mut own: Vec<&str> = ENDPOINTS.iter().flat_map(|row| row.paths).copied().collect();
    // Several methods of a path are several rows. The root is a path of both ports.
    own.dedup();
    own.retain(|path| *path != "/");
    assert_eq!(own, ADMIN_PATHS, "the hint for an unknown path names this port");
}

struct Port {
    address: std::net::SocketAddr,
    proxy: Arc<Proxy>,
    waiting: Arc<AtomicUsize>,
    stopping: Arc<AtomicBool>,
}

impl Port {
    async fn open(yaml: &str, token: Option<&str>) -> Self {
        let environment = Environment::default();
        let mut config = Config::parse(yaml, "test.yaml", Path::new("."), &environment).unwrap();
        config.admin.token = token.map(|token| Secret::new(token).unwrap());
        let generation =
            Arc::new(Generation::new(config).with_shadow(None, ShadowHost::IDLE).unwrap());
        let metrics = Arc::new(Metrics::new(&generation).unwrap());
        let ledger = Arc::new(Ledger::start(&generation, Arc::default()).unwrap());
        let proxy = Arc::new(Proxy::new(Arc::clone(&generation), ProxyParts::default()).unwrap());
        let usage = Arc::new(LiveUsage::new(ledger, generation, proxy.stopping()));
        let (waiting, stopping) = (Arc::default(), Arc::default());
        let admin = Admin {
            proxy: Arc::clone(&proxy),
            metrics,
            decisions: Arc::default(),
            access_log: None,
            spans: None,
            usage,
            waiting: Arc::clone(&waiting),
            scraping: Arc::default(),
            stopping: Arc::clone(&stopping),
            commands: crate::lifecycle::CommandSender::channel().0,
        };
        let app = Arc::new(admin.into_app());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (_running, shutdown) = watch::channel(false);
            while let Ok((stream, _)) = listener.accept().await {
                let (app, shutdown) = (Arc::clone(&app), shutdown.clone());
                tokio::spawn(async move {
                    app.process_new(Box::new(Stream::from(stream)), &shutdown).await
                });
            }
        });
        Self { address, proxy, waiting, stopping }
    }

    async fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        // A connection closed with unread bytes may end in a reset; only the bytes before it count.
        let _end = stream.read_to_end(&mut response).await;
        String::from_utf8(response).unwrap()
    }

    async fn ask(&self, line: &str, more: &str) -> (u16, String, String) {
        let host = self.address;
        let request = format!("{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}");
        let response = self.send(&format!("{request}\r\n")).await;
        split(&response)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.ask(&format!("GET {path}"), "").await;
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    async fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let host = self.address;
        let length = body.len();
        let response = self
            .send(&format!(
                "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            ))
            .await;
        let (status, _, body) = split(&response);
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }
}

fn split(response: &str) -> (u16, String, String) {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response, ""));
    let status = head.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0);
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test]
async fn endpoints_respond_and_reveal_no_secret() {
    let port = Port::open(FLEET, Some("t0ken")).await;
    for endpoint in ENDPOINTS {
        let path = endpoint.paths[0].replace("{name}", "eye");
        let line = format!("{} {path}", endpoint.verb.name());
        let more = "authorization: Bearer t0ken\r\ncontent-length: 0\r\n";
        let expected = match path.as_str() {
            "/explain" | "/api/stats" | "/quote" => 400,
            // There is no store of keys here.
            _ if path.starts_with("/revoked_tokens") || path.starts_with("/keys") => 404,
            // No control loop runs here.
            "/reload" | "/upgrade" => 503,
            _ => 200,
        };
        // An event stream has no end.
        if path != "/api/usage-stream" {
            let (status, head, body) = port.ask(&line, more).await;
            assert_eq!(status, expected, "{line}: {body}");
            assert!(head.contains(&format!("content-length: {}", body.len())), "{line}: {head}");
            assert!(!body.contains("hush") && !body.contains("t0ken"), "{line}: {body}");
            if expected == 503 {
                assert_eq!(retry_fields(&head), (Some("1"), Some("true")), "{line}: {head}");
            }
        }
        let (status, head, body) = port.ask(&line, "content-length: 0\r\n").await;
        if endpoint.access != Access::Token {
            assert_eq!(status, 200, "{line}: {body}");
        } else {
            assert_eq!(status, 401, "{line}: {body}");
            assert!(head.contains("www-authenticate: bearer"), "{head}");
        }
    }
}

/// Returns `retry-after` and `x-should-retry` of a head in lower case.
fn retry_fields(head: &str) -> (Option<&str>, Option<&str>) {
    let field = |name: &str| {
        head.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    };
    (field("retry-after"), field("x-should-retry"))
}

#[tokio::test]
async fn refused_usage_stream_has_a_return_time() {
    let port = Port::open(&format!("{FLEET}usage: {{ streams: 1 }}\n"), None).await;
    let mut first = TcpStream::connect(port.address).await.unwrap();
    let request = format!("GET /api/usage-stream HTTP/1.1\r\nhost: {}\r\n\r\n", port.address);
    first.write_all(request.as_bytes()).await.unwrap();
    first.read_u8().await.unwrap();
    let (status, head, body) = port.ask("GET /api/usage-stream", "").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains("usage_unavailable"), "{body}");
    assert_eq!(retry_fields(&head), (Some("1"), Some("true")), "{head}");
}

#[tokio::test]
async fn index_lists_every_endpoint() {
    let port = Port::open(FLEET, None).await;
    let (_, _, body) = port.ask("GET /", "").await;
    for endpoint in ENDPOINTS {
        assert!(body.contains(endpoint.paths[0]), "{body}");
    }
}

#[tokio::test]
async fn readiness_needs_first_checks_and_ends_at_shutdown() {
    let port = Port::open(FLEET, None).await;
    port.waiting.store(2, Ordering::Release);
    for path in ["/health/ready", "/readyz", "/ready"] {
        let (status, body) = port.get(path).await;
        assert_eq!((status, &body["status"]), (503, &"starting".into()), "{body}");
        assert_eq!(body["unchecked"], serde_json::json!(["eye", "ear"]));
    }
    port.waiting.store(0, Ordering::Release);
    let (status, body) = port.get("/health/ready").await;
    assert_eq!(
        (status, &body["status"]),
        (200, &"ready".into()),
        "an unhealthy fleet is still ready"
    );
    assert!(body["reasons"][0].as_str().unwrap().contains("no backend is healthy"), "{body}");
    port.stopping.store(true, Ordering::Release);
    let (status, body) = port.get("/health/ready").await;
    assert_eq!((status, &body["status"]), (503, &"stopping".into()));
    assert_eq!(port.get("/health/live").await.0, 200, "live during shutdown");
}

#[tokio::test]
async fn unknown_paths_and_methods_get_json_errors() {
    let port = Port::open(FLEET, None).await;
    let (status, body) = port.get("/v1/models").await;
    assert_eq!((status, &body["error"]["code"]), (404, &"unknown_path".into()));
    let (status, head, _) = port.ask("GET /explain", "").await;
    assert_eq!(status, 405);
    assert!(head.contains("allow: post"), "{head}");
    assert_eq!(retry_fields(&head), (None, Some("false")), "{head}");
    let (status, body) = port.post("/fleet", "").await;
    assert_eq!((status, &body["error"]["code"]), (405, &"method_not_allowed".into()));
    let (status, head, body) = port.ask("HEAD /version", "").await;
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.contains("content-length:") && !head.contains("content-length: 0"), "{head}");
}

#[tokio::test]
async fn web_pages_and_foreign_hosts_are_refused() {
    let port = Port::open(FLEET, None).await;
    let (status, _, body) = port.ask("GET /config", "origin: http://evil.example\r\n").await;
    assert_eq!(status, 403, "{body}");
    let (status, ..) = port.ask("POST /backends/eye/drain", "sec-fetch-site: cross-site\r\n").await;
    assert_eq!(status, 403);
    let rebound = "GET /config HTTP/1.1\r\nhost: evil.example:9090\r\nconnection: close\r\n\r\n";
    assert!(port.send(rebound).await.starts_with("HTTP/1.1 403"));
    let state = port.proxy.generation().fleet.topology().backends[0].state.clone();
    assert!(!state.is_draining());
    port.waiting.store(1, Ordering::Release);
    for (path, status) in [("live", "200"), ("ready", "503")] {
        let probe = format!(
            "GET /health/{path} HTTP/1.1\r\nhost: penstock.default.svc\r\nconnection: close\r\n\r\n"
        );
        let response = port.send(&probe).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
        assert!(
            !response.contains("eye"),
            "a name that anybody can make up learns nothing: {response}"
        );
    }
}

#[tokio::test]
async fn drain_and_resume_select_a_backend_by_name() {
    let port = Port::open(FLEET, None).await;
    let state = port.proxy.generation().fleet.topology().backends[1].state.clone();
    let (status, body) = port.post("/backends/ear/drain", "").await;
    assert_eq!((status, &body["draining"], &body["in_flight"]), (200, &true.into(), &0.into()));
    assert!(state.is_draining());
    assert_eq!(body["health"], "draining");
    let (status, body) = port.post("/backends/ear/resume", "").await;
    assert_eq!((status, &body["draining"]), (200, &false.into()));
    assert!(!state.is_draining());
    let (status, body) = port.post("/backends/nose/drain", "").await;
    assert_eq!((status, &body["error"]["code"]), (404, &"unknown_backend".into()));
}

#[tokio::test]
async fn explain_has_no_side_effects() {
    let port = Port::open(FLEET, None).await;
    let fleet = port.proxy.generation().fleet.topology();
    let model = fleet.model(fleet.model_id("m").unwrap()).unwrap();
    let chat = r#"{"model":"m","messages":[]}"#;
    let line = serde_json::json!({"path": "/v1/chat/completions", "body": chat}).to_string();
    for _ in 0..3 {
        let (status, body) = port.post("/explain", &line).await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["requirements"]["model"], "m", "{body}");
    }
    assert_eq!(model.turn.load(Ordering::Relaxed), 0);
    let (status, body) = port.post("/explain", "[]").await;
    assert_eq!((status, &body["error"]["code"]), (400, &"invalid_explain_request".into()));
    let (status, body) = port.post("/explain", &"x".repeat(5000)).await;
    assert_eq!((status, &body["error"]["code"]), (413, &"body_too_large".into()));
    let chunked = "POST /explain HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n";
    let response = port.send(&format!("{chunked}1388\r\n{}\r\n0\r\n\r\n", "x".repeat(5000))).await;
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
}

#[tokio::test]
async fn decisions_accept_a_limit() {
    let port = Port::open(FLEET, None).await;
    let (status, body) = port.get("/decisions?n=5").await;
    assert_eq!((status, &body["total"]), (200, &0.into()));
    assert_eq!(port.get("/decisions?n=x").await.0, 400);
}

#[tokio::test]
async fn port_survives_garbage() {
    let port = Port::open(FLEET, None).await;
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "\u{16}\u{3}\u{1}\r\n\r\n",
        "GET /\u{e4} HTTP/9.9\r\n\r\n",
    ] {
        port.send(garbage).await;
    }
    let (status, _, page) = port.ask("GET /metrics", "").await;
    assert_eq!(status, 200);
    assert!(page.contains("penstock_build_info"), "{page}");
}

#[tokio::test]
async fn connection_serves_several_requests() {
    let port = Port::open(FLEET, None).await;
    let mut stream = TcpStream::connect(port.address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"}\n") {
            assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0, "closed too early");
        }
        assert!(response.starts_with(b"HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn unread_body_is_not_parsed_as_a_request() {
    let port = Port::open(FLEET, None).await;
    let hidden = "GET /config HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for line in ["GET /version", "POST /version", "POST /nowhere", "GET /nowhere"] {
        let length = hidden.len();
        let head =
            format!("{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
        let last = "GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let responses = port.send(&format!("{head}{hidden}{last}")).await;
        assert!(!responses.contains("buffered_bodies"), "{line}: {responses}");
    }
}
