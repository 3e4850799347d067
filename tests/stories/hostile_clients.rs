//! Clients that send slowly, read slowly or open many connections use bounded memory and time out,
//! and other clients are served meanwhile.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use penstock_mock::{Fault, Gate, Pace};
use serde_json::json;
use socket2::{Domain, SockRef, Socket, Type};

use crate::support::client::{Client, chat, streaming_chat, timed};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, reference};
use crate::support::pace::{best_of, pause_between_drips, pause_between_requests};
use crate::support::{block_on, eventually, is_long};

const SLOW: &str = "limits: { header_timeout: 2s }";
/// The time by which a slow client must be disconnected, with `limits.header_timeout` at 2s and a
/// body's rate at its default.
const GONE: Duration = Duration::from_secs(21);

/// Sends `start`, then `drip` every 200 ms until the connection ends. Returns the status of the
/// response, if any, and the time it took.
fn drip(fleet: &Fleet, start: &str, drip: &[u8]) -> (Option<u16>, Duration) {
    let started = Instant::now();
    let mut client = Client::connect(fleet.penstock.data);
    client.send_bytes(start.as_bytes());
    client.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    loop {
        match client.read_head() {
            Ok((status, _)) => return (Some(status), started.elapsed()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_ended) => return (None, started.elapsed()),
        }
        if client.stream.write_all(drip).is_err() || started.elapsed() > GONE * 2 {
            return (None, started.elapsed());
        }
    }
}

#[test]
fn slow_heads_and_bodies_time_out() {
    let fleet = Fleet::start(1, Setup { sections: SLOW, ..Setup::default() });
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\n");
    let sized = format!("{head}Content-Length: 1000000\r\n\r\n{{");
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    let attacks: [(&str, &[u8]); 6] = [
        ("G", b"E"),
        (&head, b"X: y\r\n"),
        (&head, b""),
        (&sized, b" "),
        (&sized, b""),
        (&chunked, b"1\r\n \r\n"),
    ];
    thread::scope(|scope| {
        for (start, rest) in attacks.iter().cycle().take(60) {
            let fleet = &fleet;
            scope.spawn(move || {
                let (status, took) = drip(fleet, start, rest);
                assert!(took < GONE, "{start:?} lasted {took:?}");
                assert!(matches!(status, Some(408) | None), "{start:?}: {status:?}");
            });
        }
    });
    let count = |code: &str| fleet.metric(&format!("penstock_errors_total{{code=\"{code}\""));
    assert!(count("header_timeout") > 29.0, "each slow head is counted");
    assert!(count("body_timeout") > 29.0, "each slow body is counted");
    assert_eq!(fleet.requests(), 0);
    assert_eq!(fleet.chat().status, 200);
}

#[test]
fn slow_steady_upload_is_served() {
    let sections = "limits: { header_timeout: 5s, min_body_rate: 100B/s }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let body = chat("m", &"x".repeat(2000)).to_string();
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut client = Client::connect(fleet.penstock.data);
    for part in head.as_bytes().chunks(8).chain(body.as_bytes().chunks(body.len() / 60)) {
        client.send_bytes(part);
        pause_between_drips(Duration::from_millis(100));
    }
    assert_eq!(client.read_response().unwrap().status, 200);
}

/// A client with a small receive window, so that the proxy and the kernel must buffer or hold back.
fn narrow(fleet: &Fleet) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    socket.connect(&fleet.penstock.data.into()).unwrap();
    Client::over(TcpStream::from(socket))
}

#[test]
fn stalled_readers_use_bounded_memory_and_lose_nothing() {
    const READERS: usize = 10;
    // About 12 MB for each reader: more than the kernel's socket buffers hold.
    let tokens = 60_000;
    let health = "interval: 60s, fast_interval: 20ms, frozen_after: 1s";
    let fleet = Fleet::start(1, Setup { health, pace: Pace::at_once(tokens), ..Setup::default() });
    let body = streaming_chat("m", "hello");
    assert_eq!(fleet.penstock.post(CHAT, &chat("m", "warm")).status, 200);
    let before = fleet.penstock.resident();
    let readers: Vec<Client> = (0..READERS)
        .map(|_| {
            let mut reader = narrow(&fleet);
            reader.send("POST", CHAT, &[], body.to_string().as_bytes());
            reader
        })
        .collect();
    // Backpressure: what no client reads is not read from the engine.
    let mut sent = (0, Instant::now());
    eventually("the engine is held back", Duration::from_secs(60), || {
        let events = fleet.a().counters().events;
        if events != sent.0 {
            sent = (events, Instant::now());
        }
        events > 0 && sent.1.elapsed() > Duration::from_secs(1)
    });
    let all = READERS * tokens as usize;
    assert!(sent.0 * 4 < all * 3, "{} of {all} events were read from the engine", sent.0);
    let grown = fleet.penstock.resident().saturating_sub(before);
    let each = grown / READERS;
    println!("a stalled reader holds {} KiB", each >> 10);
    assert!(each <= 512 << 10, "{each} bytes for each stalled reader");
    // Other clients are served meanwhile, and a reader that resumes gets every byte.
    assert_eq!(
        fleet.penstock.post(CHAT, &json!({"model": "m", "messages": [], "max_tokens": 3})).status,
        200
    );
    let whole = {
        let engine = crate::support::fleet::engine("a", Pace::at_once(tokens));
        crate::support::client::post(engine.addr(), CHAT, &body).text()
    };
    let mut readers = readers.into_iter();
    let response = readers.next().unwrap().read_response().unwrap();
    assert!(response.is_whole && response.text() == whole, "{} bytes", response.body.len());
    assert!(!fleet.penstock.log().contains("backend is frozen"), "its clients do not read");
    drop(readers);
    fleet.wait_idle();
}

#[test]
fn reader_that_never_reads_is_disconnected() {
    let sections = "limits: { client_write_timeout: 1s, client_send_buffer: 64KiB }";
    let pace = Pace::at_once(40_000);
    let fleet = Fleet::start(1, Setup { sections, pace, ..Setup::default() });
    let mut reader = narrow(&fleet);
    reader.send("POST", CHAT, &[], streaming_chat("m", "hello").to_string().as_bytes());
    block_on(fleet.a().wait_for(|counters| counters.cancelled == 1)).unwrap();
    fleet.wait_idle();
    drop(reader);
}

/// Raises this process's limit of open files as far as it may; penstock inherits it. Fails when
/// `count` connections do not fit, so that a test never runs with fewer than it says.
fn allow_connections(count: u64) {
    let (_soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let wanted = count * 5 / 4 + 400;
    assert!(hard >= wanted, "{count} connections need {wanted} open files, the limit is {hard}");
}

#[test]
fn idle_connections_use_little_memory() {
    let count = if is_long() { 10_000 } else { 2000 };
    allow_connections(count as u64);
    let fleet = Fleet::start(1, Setup::default());
    let body = chat("m", &"x".repeat(32 << 10)).to_string();
    let before = fleet.penstock.resident();
    let mut clients: Vec<Client> = Vec::with_capacity(count);
    for _ in 0..count {
        let mut client = Client::connect(fleet.penstock.data);
        client.send("POST", CHAT, &[], body.as_bytes());
        assert_eq!(client.read_response().unwrap().status, 200);
        clients.push(client);
    }
    let each = fleet.penstock.resident().saturating_sub(before) / count;
    println!("one of {count} idle connections holds {} KiB", each >> 10);
    assert!(each < 32 << 10, "{each} bytes for each idle connection");
    assert_eq!(clients.len(), count);
    fleet.wait_metric("penstock_connections", count as f64);
    let served = clients.iter_mut().filter_map(|client| {
        client.send("POST", CHAT, &[], chat("m", "again").to_string().as_bytes());
        client.read_response().ok().filter(|response| response.status == 200)
    });
    let served = served.count();
    assert!(served * 100 >= count * 99, "{served} of {count} were served later");
}

/// The limit, in the long run, of the 99th percentile of the time a good request takes during an
/// attack.
const MOST: Duration = Duration::from_millis(500);

/// The pause of an attacker: a debug build on a machine shared with other tests cannot read a
/// megabyte every other millisecond.
fn pause() -> Duration {
    Duration::from_millis(if is_long() { 2 } else { 20 })
}

/// Name of an attack, and one round of it on open connections.
type Attack<'a> = (&'static str, Box<dyn Fn(&mut Vec<Client>) + Sync + 'a>);

fn attacks(fleet: &Fleet) -> Vec<Attack<'_>> {
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: t\r\n");
    let address = fleet.penstock.data;
    let hold = move |held: &mut Vec<Client>, bytes: &[u8]| {
        let mut client = Client::connect(address);
        if client.stream.write_all(bytes).is_ok() && held.len() < 150 {
            held.push(client);
        }
    };
    let bomb = format!("{{\"model\":\"m\",\"messages\":{}", "[".repeat(100_000));
    let sized = |body: &str| format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let (slow_head, slow_body) = (head.clone(), format!("{head}Content-Length: 99999\r\n\r\n{{"));
    let (bomb, big) = (sized(&bomb), format!("{head}X: {}", "x".repeat(1 << 20)));
    let stalled = streaming_chat("m2", "hello").to_string();
    vec![
        ("slow heads", Box::new(move |held| hold(held, slow_head.as_bytes()))),
        ("slow bodies", Box::new(move |held| hold(held, slow_body.as_bytes()))),
        ("garbage", Box::new(move |held| hold(held, b"\x16\x03\x01garbage\r\n\r\n"))),
        ("large heads", Box::new(move |held| hold(held, big.as_bytes()))),
        ("bombs", Box::new(move |held| hold(held, bomb.as_bytes()))),
        ("churn", Box::new(move |_| drop(Client::connect(address)))),
        (
            "resets",
            Box::new(move |_| {
                let client = Client::connect(address);
                SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).unwrap();
            }),
        ),
        (
            "stalled readers",
            Box::new(move |held| {
                if held.len() < 20 {
                    let mut client = narrow(fleet);
                    client.send("POST", CHAT, &[], stalled.as_bytes());
                    held.push(client);
                }
            }),
        ),
    ]
}

#[test]
fn attacks_do_not_slow_down_other_clients() {
    let fleet = Fleet::of(&["m", "m2"], Setup::default());
    let whole = reference("a", CHAT, &chat("m", "hello")).text();
    for (what, attack) in attacks(&fleet) {
        best_of(3, MOST, || during(&fleet, &whole, what, &*attack));
    }
}

/// Sends good requests during an attack; returns the 99th percentile of their times.
fn during(
    fleet: &Fleet,
    whole: &str,
    what: &str,
    attack: &(dyn Fn(&mut Vec<Client>) + Sync),
) -> Duration {
    let is_over = AtomicBool::new(false);
    let took = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    attack(&mut held);
                    // The attacker shares the machine with penstock.
                    pause_between_requests(pause());
                }
            });
        }
        let mut good = Client::connect(fleet.penstock.data);
        let mut took: Vec<Duration> = (0..100)
            .map(|_| {
                let (response, took) = timed(|| {
                    good.send("POST", CHAT, &[], chat("m", "hello").to_string().as_bytes());
                    good.read_response()
                });
                let text = response.map(|response| response.text());
                if text.as_deref().ok() != Some(whole) {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("during {what}: {text:?}");
                }
                took
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        took.sort();
        took
    });
    println!("during {what}: p50 {:?}, p99 {:?}", took[49], took[98]);
    took[98]
}

#[test]
fn connections_over_the_limit_get_503_immediately() {
    let sections = "limits: { connections: 20 }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut waiting = fleet.begin(&chat("m", "hello"));
    block_on(gate.reached_by(1));
    let held: Vec<Client> = (0..19).map(|_| Client::connect(fleet.penstock.data)).collect();
    fleet.wait_metric("penstock_connections", 20.0);
    for _ in 0..10 {
        let response = fleet.chat();
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (503, "too_many_connections")
        );
        assert!(response.header("retry-after").is_some());
        assert_eq!(response.header("connection"), Some("close"));
        assert_eq!(fleet.penstock.admin("/health/live").status, 200, "the admin port responds");
    }
    assert!(fleet.metric("penstock_errors_total{code=\"too_many_connections\"") > 9.0);
    gate.open();
    assert_eq!(waiting.read_response().unwrap().status, 200, "open connections are served");
    for client in &held {
        client.stream.shutdown(Shutdown::Both).unwrap();
    }
    eventually("there is room again", SOON, || fleet.chat().status == 200);
}
