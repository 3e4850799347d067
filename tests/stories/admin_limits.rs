//! Limits of the admin port: connections over `admin.connections` take the place of those that send
//! nothing, or are refused, and slow requests time out, while other clients of the port are served.

use std::time::Duration;

use crate::support::client::{Client, timed};
use crate::support::engines::{backend, engine};
use crate::support::eventually;
use crate::support::fleet::metric;
use crate::support::penstock::Penstock;

/// A request whose body does not arrive.
const UNFINISHED: &[u8] =
    b"POST /explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n";

#[test]
fn half_open_connections_make_room_for_probes() {
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    // The client waits for 20 s: less than a slow head may take.
    let environment =
        [("PENSTOCK_ADMIN_CONNECTIONS", "8"), ("PENSTOCK_ADMIN_HEADER_TIMEOUT", "100s")];
    let penstock = Penstock::start_with(&yaml, &environment);
    let half_open = || {
        let mut client = Client::connect(penstock.admin);
        // One that has been closed already is as good.
        let _sent = std::io::Write::write_all(&mut client.stream, b"GET /version HTTP/1.1\r\nx: ");
        client
    };
    let held: Vec<Client> = (0..100).map(|_| half_open()).collect();
    for path in ["/health/live", "/health/ready", "/metrics"] {
        let response = penstock.admin(path);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
    }
    drop(held);
}

#[test]
fn connections_over_the_limit_are_refused_at_once() {
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    // The client waits for 20 s: less than those that are served may take.
    let environment =
        [("PENSTOCK_ADMIN_CONNECTIONS", "8"), ("PENSTOCK_LIMITS_BODY_READ_TIMEOUT", "100s")];
    let penstock = Penstock::start_with(&yaml, &environment);
    let busy = || {
        let mut client = Client::connect(penstock.admin);
        client.send_bytes(UNFINISHED);
        client
    };
    let held: Vec<Client> = (0..8).map(|_| busy()).collect();
    // Some refused connections are closed without a response.
    let status = || {
        let mut client = Client::connect(penstock.admin);
        let head = b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let written = std::io::Write::write_all(&mut client.stream, head);
        written.and_then(|()| client.read_response()).map_or(0, |response| response.status)
    };
    eventually("it is full", Duration::from_secs(5), || status() == 503);
    for _ in 0..10 {
        let response = penstock.admin("/metrics");
        assert_eq!((response.status, &*response.error_code()), (503, "too_many_connections"));
        assert_eq!(response.header("connection"), Some("close"));
    }
    // More connections than get an error response: none waits long, and the data port is
    // unaffected.
    let mut crowd: Vec<Client> = (0..100).map(|_| Client::connect(penstock.admin)).collect();
    assert_eq!(penstock.chat("m").status, 200);
    for client in &mut crowd {
        let response = client.read_response();
        assert!(response.is_err() || response.is_ok_and(|response| response.status == 503));
    }
    drop((held, crowd));
    eventually("there is room again", Duration::from_secs(5), || status() == 200);
    let page = penstock.admin("/metrics").text();
    assert!(page.contains("penstock_max_admin_connections 8\n"), "{page}");
    let refused = page.lines().find_map(|line| {
        line.strip_prefix("penstock_admin_connections_refused_total ")?.parse::<f64>().ok()
    });
    assert!(refused.unwrap() >= 110.0, "{refused:?}");
}

/// The rounds of [`drip`] within a timeout of 1 s, and some more. The default of
/// `admin.header_timeout`, 10 s, leaves time for 100 rounds less what their requests take.
const MAX_ROUNDS: usize = 40;

/// Sends `drip` every 100 ms until the connection ends, while other clients are served. Returns the
/// status of the response, if any.
fn drip(penstock: &Penstock, client: &mut Client, drip: &[u8]) -> Option<u16> {
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    for _ in 0..MAX_ROUNDS {
        match client.read_head() {
            Ok((status, _)) => return Some(status),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_ended) => return None,
        }
        assert_eq!(penstock.admin("/metrics").status, 200);
        if std::io::Write::write_all(&mut client.stream, drip).is_err() {
            return None;
        }
    }
    panic!("the connection is open after {MAX_ROUNDS} rounds");
}

#[test]
fn slow_request_heads_time_out() {
    let engine = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&engine, "models: [m]"));
    let environment =
        [("PENSTOCK_ADMIN_HEADER_TIMEOUT", "1s"), ("PENSTOCK_LIMITS_BODY_READ_TIMEOUT", "1s")];
    let penstock = Penstock::start_with(&yaml, &environment);
    for (start, rest, statuses) in [
        // Bytes after the response reset the connection, possibly before the response is read.
        (
            &b"GET /version HTTP/1.1\r\nhost: localhost\r\nx-slow: "[..],
            &b"x"[..],
            &[Some(408), None][..],
        ),
        (UNFINISHED, b"x", &[Some(408), None]),
        (b"G", b"", &[Some(408)]),
        (UNFINISHED, b"", &[Some(408)]),
        (b"", b"", &[None]),
    ] {
        let (status, took) = timed(|| {
            let mut client = Client::connect(penstock.admin);
            client.send_bytes(start);
            drip(&penstock, &mut client, rest)
        });
        assert!(statuses.contains(&status), "{start:?}: {status:?}");
        assert!(took >= Duration::from_secs(1), "{start:?}: {took:?}");
    }
    let mut late = Client::connect(penstock.admin);
    late.send_bytes(b"G");
    let response = late.read_response().unwrap();
    assert_eq!((response.status, &*response.error_code()), (408, "header_timeout"));
    assert!(response.text().contains("(admin.header_timeout)"), "{}", response.text());
    let mut ignored_body = Client::connect(penstock.admin);
    ignored_body
        .send_bytes(b"GET /version HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n");
    assert_eq!(ignored_body.read_response().unwrap().status, 200);
    assert_eq!(drip(&penstock, &mut ignored_body, b""), None, "the body is not awaited for long");
    let mut steady = Client::connect(penstock.admin);
    for _ in 0..3 {
        steady.send("GET", "/version", &[], b"");
        assert_eq!(steady.read_response().unwrap().status, 200, "connections are kept");
    }
    assert!(metric(&penstock, "penstock_admin_slow_heads_total") >= 3.0);
    eventually("they are gone", Duration::from_secs(5), || {
        metric(&penstock, "penstock_admin_connections") < 3.0
    });
}
