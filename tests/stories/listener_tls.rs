//! Listeners: TLS with reloaded certificates and client CAs, Unix sockets, and client addresses
//! that only trusted proxies may set.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use penstock_mock::Pace;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::json;

use crate::support::certificates::{Authority, Issued, Secured, secure};
use crate::support::client::{Client, chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup};
use crate::support::http2::{End, Http2};
use crate::support::penstock::scratch;
use crate::support::{eventually, free_address};

/// A fleet with a second listener; `rest` is its configuration after the address.
fn start(rest: &str, setup: Setup<'_>) -> (Fleet, SocketAddr) {
    let address = free_address();
    let listener = format!("{{ address: \"{address}\", {rest} }}");
    let fleet = Fleet::start(1, Setup { listeners: &[listener], ..setup });
    (fleet, address)
}

/// One request on a stream of any kind; the response as it came.
fn send_chat(stream: &mut (impl Read + Write), extra: &str) -> std::io::Result<String> {
    let body = chat("m", "hello").to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{extra}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    let mut response = Vec::new();
    let read = stream.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response).into_owned();
    if response.is_empty() { read.map(|_| response) } else { Ok(response) }
}

fn tls(issued: &Issued, rest: &str) -> String {
    format!("tls: {{ {}, {rest} }}", issued.yaml())
}

#[test]
fn tls_serves_http1_and_http2() {
    let authority = Authority::new("the authority");
    let issued = authority.issue("localhost");
    let (fleet, address) = start(&tls(&issued, ""), Setup::default());
    let mut stream = secure(address, &authority.client(&["http/1.1"], None)).unwrap();
    let response = send_chat(&mut stream, "").unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let client = Http2::connect_tls(address, "localhost", authority.client(&["h2"], None));
    let mut body = chat("m", "hello");
    body["metadata"] = json!({"padding": "x".repeat(1 << 20)});
    assert_eq!(client.post(CHAT, &body).status, 200);
    assert_eq!(fleet.a().received().pop().unwrap().body.unwrap(), body.to_string().as_bytes());
    let stranger = Authority::new("another CA");
    assert!(
        secure(address, &stranger.client(&[], None)).is_err(),
        "a client that trusts another CA refuses the certificate"
    );
    fleet.wait_metric("penstock_connections_closed_total{reason=\"tls\"}", 1.0);
    let mut plain = TcpStream::connect(address).unwrap();
    let refused = send_chat(&mut plain, "");
    assert!(refused.is_err() || !refused.unwrap().starts_with("HTTP/1.1 200"));
    let expiry = fleet.metric("penstock_tls_certificate_expiry_timestamp_seconds");
    assert!(expiry > 1.7e9, "{expiry}");
}

#[test]
fn certificates_reload_without_restart() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let issued = old.issue("localhost");
    let (fleet, address) = start(&tls(&issued, ""), Setup::default());
    let (trusts_old, trusts_new) = (old.client(&[], None), new.client(&[], None));
    let mut kept = secure(address, &trusts_old).unwrap();
    std::fs::write(&issued.cert, "not a certificate").unwrap();
    fleet.wait_metric("penstock_tls_certificate_failures_total", 1.0);
    assert!(secure(address, &trusts_old).is_ok(), "the old certificate stays in use");
    assert!(fleet.penstock.log().contains("TLS reload failed, keeping the old certificate"));
    new.issue_into("localhost", &issued);
    eventually("the new certificate is used", SOON, || secure(address, &trusts_new).is_ok());
    assert!(secure(address, &trusts_old).is_err());
    let response = send_chat(&mut kept, "").unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "open connections stay open: {response}");
}

#[test]
fn client_certificates_are_required_or_optional() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let issued = servers.issue("localhost");
    let own = clients.issue("a client");
    let foreign = servers.issue("a stranger");
    let ca = format!("client_ca: {}", clients.file.display());
    let reaches = |address, own: Option<&Issued>| {
        let response = secure(address, &servers.client(&["http/1.1"], own))
            .and_then(|mut stream| send_chat(&mut stream, ""));
        response.is_ok_and(|response| response.starts_with("HTTP/1.1 200"))
    };
    let (fleet, address) = start(&tls(&issued, &ca), Setup::default());
    assert!(reaches(address, Some(&own)));
    assert!(!reaches(address, None), "a client without a certificate is refused");
    assert!(!reaches(address, Some(&foreign)), "and so is one of another CA");
    assert_eq!(fleet.requests(), 1);
    let optional = format!("{ca}, client_certificates: optional");
    let (fleet, address) = start(&tls(&issued, &optional), Setup::default());
    assert!(reaches(address, Some(&own)) && reaches(address, None));
    assert!(!reaches(address, Some(&foreign)), "a certificate of another CA is refused");
    assert_eq!(fleet.requests(), 2);
}

/// Reads a response up to `end`.
fn read_to(stream: &mut Secured, end: &str) -> String {
    let mut response = String::new();
    while !response.contains(end) {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "it ended before {end:?}: {response}");
        response += &String::from_utf8_lossy(&bytes[..count]);
    }
    response
}

/// An idle connection that has served a request.
fn used(address: SocketAddr, config: &Arc<ClientConfig>) -> Secured {
    let mut stream = secure(address, config).unwrap();
    get_health(&mut stream);
    stream
}

fn get_health(stream: &mut Secured) {
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    assert!(read_to(stream, "\r\n\r\n").starts_with("HTTP/1.1 200"));
}

/// Returns whether the other side closes, with or without a TLS close_notify.
fn is_closed(stream: &mut Secured) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::UnexpectedEof,
    }
}

#[test]
fn revoked_client_ca_closes_connections_between_requests() {
    let servers = Authority::new("servers");
    let (old, new) = (Authority::new("old clients"), Authority::new("new clients"));
    let (of_old, of_new) = (old.issue("a client"), new.issue("a client"));
    let [old, new] = [old, new].map(|one| std::fs::read_to_string(one.file).unwrap());
    let file = scratch("clients.pem");
    std::fs::write(&file, &old).unwrap();
    let rest = format!("client_ca: {}, client_certificates: optional", file.display());
    let per_token = Duration::from_millis(50);
    let pace = Pace { first_token: Duration::ZERO, per_token, tokens: 40 };
    let setup = Setup { pace, ..Setup::default() };
    let (fleet, address) = start(&tls(&servers.issue("localhost"), &rest), setup);
    let http1 = |own| servers.client(&["http/1.1"], own);
    let mut idle = used(address, &http1(Some(&of_old)));
    let mut anonymous = used(address, &http1(None));
    let http2 = servers.client(&["h2"], Some(&of_old));
    let idle_http2 = Http2::connect_tls(address, "localhost", Arc::clone(&http2));
    assert_eq!(idle_http2.get("/health").status, 200);
    let busy_http2 = Http2::connect_tls(address, "localhost", http2);
    std::fs::write(&file, format!("{old}{new}")).unwrap();
    assert_eq!(fleet.penstock.reload().status, 200);
    get_health(&mut idle);
    assert_eq!(idle_http2.get("/health").status, 200, "an additional CA closes nothing");
    let mut of_new = used(address, &http1(Some(&of_new)));

    let streaming = streaming_chat("m", "hello");
    let mut busy = used(address, &http1(Some(&of_old)));
    let length = streaming.to_string().len();
    let head =
        format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    busy.write_all(format!("{head}{streaming}").as_bytes()).unwrap();
    assert!(read_to(&mut busy, "data:").starts_with("HTTP/1.1 200"));
    let stream = busy_http2.begin_response(CHAT, &streaming);
    std::fs::write(&file, &new).unwrap();
    assert_eq!(fleet.penstock.reload().status, 200);
    assert!(is_closed(&mut idle), "while it is idle");
    eventually("the idle HTTP/2 connection is closed", SOON, || idle_http2.is_over());
    get_health(&mut anonymous);
    assert!(read_to(&mut busy, "\r\n0\r\n\r\n").contains("data: [DONE]"));
    assert!(is_closed(&mut busy), "after its response");
    let (response, end) = stream.read();
    assert!(end == End::Whole && response.text().ends_with("data: [DONE]\n\n"), "{response:?}");
    eventually("the busy HTTP/2 connection is closed, too", SOON, || busy_http2.is_over());
    let again =
        secure(address, &http1(Some(&of_old))).and_then(|mut stream| send_chat(&mut stream, ""));
    assert!(
        !again.is_ok_and(|response| response.starts_with("HTTP/1.1 200")),
        "a new handshake is refused, too"
    );
    // Accepted while both CAs were trusted: which of them signed its certificate is not known.
    assert!(is_closed(&mut of_new));
    fleet.wait_metric("penstock_connections_closed_total{reason=\"ca_revoked\"}", 5.0);
}

#[test]
fn tls_sessions_are_resumed() {
    let authority = Authority::new("the authority");
    let (fleet, address) = start(&tls(&authority.issue("localhost"), ""), Setup::default());
    let config = authority.client(&["http/1.1"], None);
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let mut stream = secure(address, &config).unwrap();
        // Tickets arrive after the handshake, with the first bytes of a response.
        assert!(send_chat(&mut stream, "").unwrap().starts_with("HTTP/1.1 200"));
        kinds.push(stream.conn.handshake_kind().unwrap());
    }
    assert_eq!(kinds, [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]);
    drop(fleet);
}

#[test]
fn unfinished_handshake_times_out() {
    let authority = Authority::new("the authority");
    let setup = Setup { sections: "limits: { header_timeout: 1s }", ..Setup::default() };
    let (fleet, address) = start(&tls(&authority.issue("localhost"), ""), setup);
    // The client waits for 20 s, the default of the timeout is 30 s.
    for first in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let mut silent = Client::connect(address);
        silent.send_bytes(first);
        assert!(silent.read_raw().is_ok_and(|bytes| bytes.is_empty()), "it is closed");
    }
    fleet.wait_metric("penstock_connections_closed_total{reason=\"too_slow\"}", 2.0);
}

#[test]
fn connections_over_the_limit_get_503_over_tls() {
    let authority = Authority::new("the authority");
    let setup =
        Setup { sections: "limits: { connections: 4, header_timeout: 100s }", ..Setup::default() };
    let (fleet, address) = start(&tls(&authority.issue("localhost"), ""), setup);
    let held: Vec<Client> = (0..4).map(|_| Client::connect(fleet.penstock.data)).collect();
    fleet.wait_metric("penstock_connections", 4.0);
    let config = authority.client(&["http/1.1"], None);
    let send_once = || secure(address, &config).and_then(|mut stream| send_chat(&mut stream, ""));
    for _ in 0..20 {
        let response = send_once().unwrap();
        assert!(response.starts_with("HTTP/1.1 503"), "{response}");
        assert!(
            response.contains("too_many_connections") && response.contains("retry-after: 1\r\n")
        );
    }
    let client = Http2::connect_tls(address, "localhost", authority.client(&["h2"], None));
    let response = client.post(CHAT, &chat("m", "hello"));
    assert_eq!((response.status, &*response.error_code()), (503, "too_many_connections"));
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(
        client.wait_end().and_then(|error| error.reason()),
        None,
        "the connection ends without an error"
    );
    // Only some that never finish a handshake are waited for, and not until the timeout of one.
    let mut crowd: Vec<Client> = (0..100).map(|_| Client::connect(address)).collect();
    for client in &mut crowd {
        assert!(client.read_raw().is_ok_and(|bytes| bytes.is_empty()), "it is closed");
    }
    assert!(fleet.metric("penstock_errors_total{code=\"too_many_connections\"") > 120.0);
    assert_eq!(fleet.requests(), 0);
    drop(held);
    let is_served = || send_once().is_ok_and(|response| response.starts_with("HTTP/1.1 200"));
    eventually("there is room again", SOON, is_served);
}

#[test]
fn unix_socket_serves_requests() {
    let path = scratch("api.sock");
    let listener = format!("{{ address: \"unix:{}\", mode: \"0600\" }}", path.display());
    let fleet = Fleet::start(1, Setup { listeners: &[listener], ..Setup::default() });
    eventually("the socket is there", SOON, || UnixStream::connect(&path).is_ok());
    let mut stream = UnixStream::connect(&path).unwrap();
    let response = send_chat(&mut stream, "").unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    assert_eq!(fleet.chat().status, 200, "and so does the other listener");
}

/// A PROXY header of version 2 for an IPv4 client.
fn binary_header(client: [u8; 4]) -> Vec<u8> {
    let addresses = [&client[..], &[127, 0, 0, 1], &[0x12, 0x67, 0x1f, 0x90]].concat();
    [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &addresses].concat()
}

#[test]
fn proxy_header_needs_a_trusted_proxy() {
    let authority = Authority::new("the authority");
    let issued = authority.issue("localhost");
    let server = "trusted_proxies: [127.0.0.0/8], forwarded_for: append";
    let plain = Setup { server, ..Setup::default() };
    let (fleet, address) = start("proxy_protocol: true, http2: true", plain);
    let forwarded_for = |fleet: &Fleet| {
        let headers = fleet.a().received().pop().unwrap().headers;
        let field = headers.iter().find(|(name, _)| name == "x-forwarded-for");
        field.map(|(_, value)| value.to_string())
    };
    for header in [
        b"PROXY TCP4 198.51.100.7 127.0.0.1 4711 80\r\n".to_vec(),
        binary_header([198, 51, 100, 7]),
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&header).unwrap();
        let response = send_chat(&mut stream, "").unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert_eq!(forwarded_for(&fleet).as_deref(), Some("198.51.100.7"));
    }
    let mut bare = TcpStream::connect(address).unwrap();
    assert!(!send_chat(&mut bare, "").is_ok_and(|response| response.starts_with("HTTP/1.1 200")));
    fleet.wait_metric("penstock_connections_closed_total{reason=\"proxy_header\"}", 1.0);
    let secured = Setup { server, ..Setup::default() };
    let rest = format!("proxy_protocol: true, {}", tls(&issued, ""));
    let (fleet, address) = start(&rest, secured);
    let socket = TcpStream::connect(address).unwrap();
    (&socket).write_all(&binary_header([203, 0, 113, 9])).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let client = authority.client(&["http/1.1"], None);
    let connection = rustls::ClientConnection::new(client, name).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, socket);
    assert!(send_chat(&mut stream, "").unwrap().starts_with("HTTP/1.1 200"), "before TLS, too");
    assert_eq!(forwarded_for(&fleet).as_deref(), Some("203.0.113.9"));
    let foreign = Setup { server: "trusted_proxies: [10.0.0.0/8]", ..Setup::default() };
    let (fleet, address) = start("proxy_protocol: true", foreign);
    let mut stream = TcpStream::connect(address).unwrap();
    // Closed before anything is read: the write may fail, and so may the read.
    let written = stream.write_all(b"PROXY TCP4 198.51.100.7 127.0.0.1 4711 80\r\n");
    assert!(
        written.is_err() || !send_chat(&mut stream, "").is_ok_and(|response| !response.is_empty())
    );
    assert_eq!(fleet.requests(), 0);
}

#[test]
fn forwarded_for_follows_the_policy() {
    let claims = "x-forwarded-for: 198.51.100.7\r\nx-forwarded-proto: https\r\nx-real-ip: 1.1.1.1\r\nforwarded: for=1.1.1.1\r\n";
    for (server, expected) in [
        ("", json!([])),
        (
            "forwarded_for: append",
            json!([["x-forwarded-for", "127.0.0.1"], ["x-forwarded-proto", "http"]]),
        ),
        (
            "forwarded_for: append, trusted_proxies: [127.0.0.1]",
            json!([
                ["forwarded", "for=1.1.1.1"],
                ["x-forwarded-for", "198.51.100.7, 127.0.0.1"],
                ["x-forwarded-proto", "https"],
                ["x-real-ip", "1.1.1.1"]
            ]),
        ),
    ] {
        let fleet = Fleet::start(1, Setup { server, ..Setup::default() });
        let mut stream = TcpStream::connect(fleet.penstock.data).unwrap();
        let response = send_chat(&mut stream, claims).unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        let headers = fleet.a().received().pop().unwrap().headers;
        let mut forwarded: Vec<_> = headers
            .into_iter()
            .filter(|(name, _)| name.contains("forwarded") || name == "x-real-ip")
            .collect();
        forwarded.sort();
        assert_eq!(json!(forwarded), expected, "{server}");
    }
}
