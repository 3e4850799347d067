//! Backends behind TLS: their certificates are verified, penstock sends a client certificate on
//! request, and backends can use HTTP/2 without any request being sent twice.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use penstock_mock::Fault;
use rustls::ServerConfig;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use crate::support::certificates::Authority;
use crate::support::client::{self, chat, streaming_chat};
use crate::support::command::file;
use crate::support::engines::engine;
use crate::support::fleet::{CHAT, SOON, begin, read_until};
use crate::support::http2_engine::{Http2Engine, Reply};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

/// The properties of a handshake that a TLS front saw.
#[derive(Debug, Clone, Default)]
struct Handshake {
    name: Option<String>,
    certificates: usize,
}

/// TLS in front of an engine that has none.
struct Front {
    address: SocketAddr,
    handshakes: Arc<Mutex<Vec<Handshake>>>,
}

impl Front {
    fn start(engine: SocketAddr, config: Arc<ServerConfig>) -> Self {
        let handshakes: Arc<Mutex<Vec<Handshake>>> = Arc::default();
        let listener = block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let sink = Arc::clone(&handshakes);
        crate::support::RUNTIME.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = tokio_rustls::TlsAcceptor::from(Arc::clone(&config));
                let sink = Arc::clone(&sink);
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let connection = stream.get_ref().1;
                    let certificates = connection.peer_certificates().map_or(0, <[_]>::len);
                    let name = connection.server_name().map(str::to_owned);
                    sink.lock().unwrap().push(Handshake { name, certificates });
                    let mut engine = TcpStream::connect(engine).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut stream, &mut engine).await);
                });
            }
        });
        Self { address, handshakes }
    }

    fn last(&self) -> Handshake {
        self.handshakes.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

/// Penstock before one backend, described by what follows its name.
fn serve(url: &str, rest: &str) -> Penstock {
    serve_unready(url, rest, true)
}

fn serve_unready(url: &str, rest: &str, is_ready: bool) -> Penstock {
    let yaml = format!(
        "health: {{ interval: 60s, fast_interval: 60s, unhealthy_interval: 60s, fall: 1 }}\n\
         backends:\n  - {{ name: a, url: \"{url}\", models: [m], {rest} }}\n"
    );
    if is_ready { Penstock::start(&yaml) } else { Penstock::start_unready(&yaml) }
}

fn wait_unhealthy(penstock: &Penstock) {
    eventually("the check has failed", SOON, || {
        client::is_ok(penstock.admin, "/health/live")
            && penstock.backend("a")["health"] == "unhealthy"
    });
}

#[test]
fn backend_certificate_is_verified() {
    let (authority, stranger) = (Authority::new("the authority"), Authority::new("a stranger"));
    let engine = engine("one", &["m"]);
    let config = authority.issue("engine.internal").server(&["http/1.1"], None);
    let front = Front::start(engine.addr(), config);
    let url = format!("https://{}", front.address);
    let ca = format!("ca: {}, server_name: engine.internal", authority.file.display());
    let penstock = serve(&url, &format!("tls: {{ {ca} }}"));
    assert_eq!(penstock.backend("a")["health"], "healthy", "checks speak TLS, too");
    for body in [chat("m", &"x".repeat(100_000)), streaming_chat("m", "hello")] {
        let response = penstock.post(CHAT, &body);
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(response.is_whole);
        assert_eq!(engine.received().pop().unwrap().body.unwrap(), body.to_string().as_bytes());
    }
    assert_eq!(front.last().name.as_deref(), Some("engine.internal"));
    let before = engine.counters().requests;
    for (rest, why) in [
        (
            format!("ca: {}, server_name: engine.internal", stranger.file.display()),
            "signed by another",
        ),
        (format!("ca: {}, server_name: other.internal", authority.file.display()), "another name"),
        (String::new(), "not trusted by this machine"),
    ] {
        let penstock = serve_unready(&url, &format!("tls: {{ {rest} }}"), false);
        wait_unhealthy(&penstock);
        assert!(penstock.chat("m").status >= 502, "{why}");
    }
    assert_eq!(engine.counters().requests, before);
    let penstock = serve(&url, "tls: { verify: false }");
    assert_eq!(penstock.chat("m").status, 200, "an operator may say so");
}

#[test]
fn reload_changes_trusted_ca() {
    let (authority, stranger) = (Authority::new("the authority"), Authority::new("a stranger"));
    let engine = engine("one", &["m"]);
    let files = authority.issue("localhost");
    let front = Front::start(engine.addr(), files.server(&["http/1.1"], None));
    let yaml = |trusted: &Authority| {
        format!(
            "health: {{ interval: 100ms, unhealthy_interval: 100ms, fall: 1, rise: 1 }}\n\
             limits: {{ idle_timeout: 1s }}\n\
             backends:\n  - {{ name: a, url: \"https://localhost:{}\", models: [m], \
             tls: {{ ca: {} }} }}\n",
            front.address.port(),
            trusted.file.display()
        )
    };
    let penstock = Penstock::start_unready(&yaml(&stranger));
    wait_unhealthy(&penstock);
    assert_eq!(penstock.chat("m").status, 503);
    let reload = |trusted| {
        penstock.rewrite(&yaml(trusted));
        let report = penstock.reload().json();
        assert_eq!(report["changed"][0]["setting"], "backends[a].tls.ca", "{report}");
        assert_eq!(report["restart_needed"], json!([]), "{report}");
    };
    reload(&authority);
    eventually("the new authority is trusted", SOON, || penstock.chat("m").status == 200);
    let trusted = engine.counters().requests;
    reload(&stranger);
    // Connections from before may be used once more before they have been idle too long.
    wait_unhealthy(&penstock);
    eventually("no backend is used any more", SOON, || penstock.chat("m").status == 503);
    reload(&authority);
    eventually("it is trusted again", SOON, || penstock.chat("m").status == 200);
    assert!(engine.counters().requests > trusted);
}

#[test]
fn client_certificate_is_sent_to_backends() {
    let (engines, clients) = (Authority::new("engines"), Authority::new("clients"));
    let engine = engine("one", &["m"]);
    let config = engines.issue("localhost").server(&["http/1.1"], Some(&clients));
    let front = Front::start(engine.addr(), config);
    let own = clients.issue("penstock");
    let url = format!("https://localhost:{}", front.address.port());
    let ca = engines.file.display();
    let penstock = serve(&url, &format!("tls: {{ ca: {ca}, {} }}", own.yaml()));
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(front.last().certificates, 1);
    let penstock = serve_unready(&url, &format!("tls: {{ ca: {ca} }}"), false);
    wait_unhealthy(&penstock);
    assert!(penstock.chat("m").status >= 502, "without one it is not let in");
}

#[test]
fn sni_and_host_name_the_service() {
    // As with OpenAI itself: the name is in the handshake and in Host, and the key is its own.
    let authority = Authority::new("the authority");
    let engine = engine("one", &["m"]);
    let config = authority.issue("localhost").server(&["h2", "http/1.1"], None);
    let front = Front::start(engine.addr(), config);
    let url = format!("https://localhost:{}/v1", front.address.port());
    let tls = format!("tls: {{ ca: {} }}", authority.file.display());
    let penstock = serve(&url, &format!("engine: openai, api_key: sk-service, {tls}"));
    let response = penstock.chat("m");
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(front.last().name.as_deref(), Some("localhost"));
    let received = engine.received().pop().unwrap();
    assert_eq!(received.target, CHAT);
    assert_eq!(received.header("host"), Some(&*format!("localhost:{}", front.address.port())));
    assert_eq!(received.header("authorization"), Some("Bearer sk-service"));
}

#[test]
fn public_service_needs_url_and_key() {
    let authority = Authority::new("an authority of this machine");
    let engine = engine("one", &["m"]);
    let config = authority.issue("localhost").server(&["h2", "http/1.1"], None);
    let front = Front::start(engine.addr(), config);
    let key = file("service.key", "sk-service\n");
    let port = front.address.port();
    let yaml = format!(
        "backends:\n  - {{ name: a, url: \"https://localhost:{port}\", api_key_file: \"{}\" }}\n",
        key.display()
    );
    let environment = [("SSL_CERT_FILE", authority.file.to_str().unwrap())];
    let penstock = Penstock::start_with(&yaml, &environment);
    let listed = || penstock.get("/v1/models").text().contains("\"m\"");
    eventually("its models are known", SOON, listed);
    let own = [("content-type", "application/json"), ("authorization", "Bearer sk-client")];
    for body in [chat("m", "hello"), streaming_chat("m", "hello")] {
        let body = body.to_string();
        let response = client::request(penstock.data, "POST", CHAT, &own, body.as_bytes());
        assert!(response.status == 200 && response.is_whole, "{}", response.text());
        let received = engine.received().pop().unwrap();
        assert_eq!(received.header("authorization"), Some("Bearer sk-service"));
    }
    assert_eq!(front.last().name.as_deref(), Some("localhost"));
}

#[test]
fn backends_can_use_http2() {
    let authority = Authority::new("the authority");
    let secured = authority.issue("localhost").server(&["h2"], None);
    for tls in [None, Some(secured)] {
        let rest = match &tls {
            None => "http2: true".to_owned(),
            Some(_) => format!("http2: true, tls: {{ ca: {} }}", authority.file.display()),
        };
        let is_tls = tls.is_some();
        let engine = Http2Engine::start(tls);
        let scheme = if is_tls { "https" } else { "http" };
        let url = format!("{scheme}://localhost:{}", engine.address.port());
        let penstock = serve(&url, &rest);
        for size in [0, 1000, 100_000, 3 << 20] {
            let body = chat("m", &"x".repeat(size));
            let response = penstock.post(CHAT, &body);
            assert_eq!(response.status, 200, "{}", response.text());
            assert_eq!(response.json(), json!({"length": body.to_string().len()}));
            let received = engine.last();
            assert_eq!(received.body, body.to_string().as_bytes());
            assert_eq!(received.uri, format!("{url}{CHAT}"));
            assert!(received.headers.get("host").is_none());
        }
        let response = penstock.post(CHAT, &streaming_chat("m", "hello"));
        assert_eq!(response.text().matches("data: ").count(), 3, "{}", response.text());
        assert!(response.is_whole && response.text().ends_with("[DONE]\n\n"));
        let clients: Vec<_> =
            (0..20).map(|_| begin(penstock.data, CHAT, &chat("m", "hello"))).collect();
        for mut client in clients {
            assert_eq!(client.read_response().unwrap().status, 200);
        }
        assert!(engine.connections() <= 6, "{} connections", engine.connections());
        engine.script([Reply::CutStream]);
        let mut client = begin(penstock.data, CHAT, &streaming_chat("m", "hello"));
        let mut text = read_until(&mut client, "data: ");
        engine.cut_stream();
        text += &read_until(&mut client, "\r\n0\r\n\r\n");
        assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    }
}

#[test]
fn http2_requests_are_sent_once() {
    let engine = Http2Engine::start(None);
    let url = format!("http://{}", engine.address);
    let yaml = format!(
        "routing: {{ strategy: priority_only, retry_unanswered: never }}\n\
         health: {{ interval: 60s, fast_interval: 60s, unhealthy_interval: 60s }}\n\
         backends:\n  - {{ name: a, url: \"{url}\", models: [m], http2: true, priority: 1 }}\n  \
         - {{ name: b, url: \"{url}\", models: [m], http2: true, priority: 2 }}\n"
    );
    let penstock = Penstock::start(&yaml);
    assert_eq!(penstock.chat("m").status, 200);
    for reason in [h2::Reason::PROTOCOL_ERROR, h2::Reason::INTERNAL_ERROR, h2::Reason::CANCEL] {
        let before = engine.requests();
        engine.script([Reply::Reset(reason)]);
        let response = penstock.chat("m");
        assert_eq!(
            (response.status, &*response.error_code()),
            (502, "upstream_closed"),
            "{reason:?}"
        );
        assert_eq!(engine.requests(), before + 1, "{reason:?}: it was sent again");
    }
    let before = engine.requests();
    engine.script([Reply::CutConnection]);
    assert_eq!(penstock.chat("m").status, 502);
    assert_eq!(engine.requests(), before + 1, "a cut connection: it was sent again");
    // Who comes before the end of the connection is seen may still be sent over it.
    eventually("the next one gets a new connection", SOON, || penstock.chat("m").status == 200);
}

#[test]
fn refused_http2_stream_fails_over() {
    let refusing = Http2Engine::start(None);
    let other = engine("other", &["m"]);
    let yaml = format!(
        "routing: {{ strategy: priority_only }}\n\
         health: {{ interval: 60s, fast_interval: 60s, unhealthy_interval: 60s, \
         breaker: {{ open: 1us, max_open: 1us }} }}\n\
         backends:\n  - {{ name: a, url: \"http://{}\", models: [m], http2: true, priority: 1 }}\n  \
         - {{ name: b, url: \"{}\", models: [m], priority: 2 }}\n",
        refusing.address,
        other.url()
    );
    let penstock = Penstock::start(&yaml);
    refusing.script([Reply::Reset(h2::Reason::REFUSED_STREAM)]);
    let response = penstock.chat("m");
    assert_eq!(response.status, 200, "it was not looked at there: {}", response.text());
    assert_eq!(other.counters().requests, 1);
    other.script([Fault::CloseAfterRequest]);
    assert_eq!(penstock.chat("m").status, 200, "and the next one goes there again");
}

#[test]
fn client_disconnect_resets_http2_stream() {
    let engine = Http2Engine::start(None);
    let penstock = serve(&format!("http://{}", engine.address), "http2: true");
    for body in [chat("m", "hello"), streaming_chat("m", "hello")] {
        let (before, started) = (engine.resets(), engine.requests() + 1);
        engine.script([Reply::Hang]);
        let client = begin(penstock.data, CHAT, &body);
        eventually("the request has started", SOON, || engine.requests() == started);
        drop(client);
        eventually("the stream is reset", SOON, || engine.resets() == before + 1);
    }
    assert_eq!(penstock.chat("m").status, 200);
    // One for the check, two for what is discovered, one for its metrics, and one for all requests.
    assert!(engine.connections() <= 5, "{} connections", engine.connections());
}
