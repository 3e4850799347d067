//! HTTP/2 attacks: floods of resets, headers and empty frames close the connection or change
//! nothing, memory stays bounded, and other clients are served meanwhile. Heads that HTTP/1.1 would
//! read differently never reach a backend.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use h2::Reason;
use penstock_mock::Pace;

use crate::support::certificates::{Authority, Secured, secure};
use crate::support::client::{self, chat};
use crate::support::fleet::{CHAT, Fleet, Setup};
use crate::support::http2::{End, Http2, head, send_all};
use crate::support::pace::{best_of, pause_between_requests};
use crate::support::penstock::scratch;
use crate::support::{block_on, free_address};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const ALLOWED_GROWTH: f64 = 64.0 * 1024.0 * 1024.0;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn start(setup: Setup<'_>) -> (Fleet, SocketAddr) {
    let address = free_address();
    let listener = format!("{{ address: \"{address}\", http2: true }}");
    let fleet = Fleet::start(1, Setup { listeners: &[listener], ..setup });
    (fleet, address)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `:method POST, :scheme http, :path /v1/chat/completions, :authority x` in HPACK, uncompressed.
fn post_block() -> Vec<u8> {
    let path = CHAT.as_bytes();
    let length = u8::try_from(path.len()).unwrap();
    [&[0x83, 0x86, 0x04, length][..], path, &[0x01, 0x01, b'x']].concat()
}

/// A connection on which anything may be written.
struct Raw(TcpStream);

impl Raw {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(3))).unwrap();
        let mut raw = Self(stream);
        raw.write(PREFACE);
        raw.write(&frame(SETTINGS, 0, 0, &[]));
        raw
    }

    /// Reads until it is clear what becomes of a stream. One that just hangs is not refused.
    fn read_verdict(&mut self, stream: u32) -> Verdict {
        let mut frames = Vec::new();
        let mut part = [0; 16 * 1024];
        loop {
            while let Some((kind, of, length)) = first_frame(&frames) {
                match kind {
                    HEADERS if of == stream => return Verdict::Served,
                    RST_STREAM if of == stream => return Verdict::Refused,
                    GOAWAY => return Verdict::Refused,
                    _ => frames.drain(..length),
                };
            }
            match self.0.read(&mut part) {
                Ok(0) => return Verdict::Refused,
                Ok(count) => frames.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Verdict::Hangs;
                }
                Err(_reset) => return Verdict::Refused,
            }
        }
    }

    /// Returns whether the other side still accepts bytes.
    fn write(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }
}

/// The end of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It got a response.
    Served,
    /// It was reset, or the connection closed.
    Refused,
    /// Neither within the client's patience.
    Hangs,
}

/// Kind, stream and whole length of the frame at the front, once all of it has arrived.
fn first_frame(bytes: &[u8]) -> Option<(u8, u32, usize)> {
    let head = bytes.first_chunk::<9>()?;
    let length = 9 + usize::try_from(u32::from_be_bytes([0, head[0], head[1], head[2]])).unwrap();
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    (bytes.len() >= length).then_some((head[3], stream, length))
}

fn resident(fleet: &Fleet) -> f64 {
    fleet.metric("penstock_process_resident_bytes")
}

/// The attacker shares the machine with penstock.
const PAUSE: Duration = Duration::from_millis(2);
/// The limit, in the long run, of the 99th percentile of the time that good requests take during an
/// attack.
const PATIENCE: Duration = Duration::from_millis(500);
/// The time after which a connection that should have ended counts as open. The default timeouts of
/// a head and of a body, 30 s and 60 s, are longer.
const ENDLESS: Duration = Duration::from_secs(25);
/// The streams after which a connection must have ended: `limits.http2.resets` and what is under
/// way.
const MOST_STREAMS: u32 = 1000;

/// Runs `attack` in a loop while another client sends good requests; checks
/// penstock's memory, and in the long run their latency.
fn during(fleet: &Fleet, what: &str, attack: impl Fn() + Sync) {
    assert_eq!(fleet.chat().status, 200);
    let before = resident(fleet);
    best_of(3, PATIENCE, || slowest_during(fleet, what, &attack));
    let growth = resident(fleet) - before;
    assert!(growth < ALLOWED_GROWTH, "memory grew by {growth} bytes during {what}");
    fleet.wait_idle();
}

/// The 99th percentile of the times that good requests take during an attack.
fn slowest_during(fleet: &Fleet, what: &str, attack: &(impl Fn() + Sync)) -> Duration {
    let (is_over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut took = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                attack();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut took = Vec::new();
        while took.len() < 100 || rounds.load(Ordering::Relaxed) == 0 {
            let (response, time) = client::timed(|| fleet.chat());
            if response.status != 200 || attacker.is_finished() {
                is_over.store(true, Ordering::Relaxed);
                panic!("during {what}: {} {}", response.status, response.text());
            }
            took.push(time);
            pause_between_requests(PAUSE);
        }
        is_over.store(true, Ordering::Relaxed);
        took
    });
    took.sort();
    let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100 - 1]);
    println!("during {what}: p50 {p50:?}, p99 {p99:?} of {} requests", took.len());
    p99
}

#[test]
fn rapid_reset_gets_enhance_your_calm() {
    let (fleet, address) = start(Setup::default());
    during(&fleet, "rapid resets", || {
        for _ in 0..5 {
            let mut raw = Raw::connect(address);
            let block = post_block();
            let mut stream = 1;
            let mut is_open = true;
            let started = Instant::now();
            while is_open && stream < 200_000 && started.elapsed() < Duration::from_secs(8) {
                let mut burst = Vec::new();
                for _ in 0..50 {
                    burst.extend(frame(HEADERS, END_HEADERS, stream, &block));
                    burst.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
                    stream += 2;
                }
                is_open = raw.write(&burst);
                pause_between_requests(PAUSE);
            }
            assert!(!is_open, "{stream} streams were reset without an end");
        }
    });
    assert!(fleet.metric("penstock_connections_closed_total{reason=\"http2\"}") >= 1.0);
}

/// The frames of one stream of a flood.
type Flood<'a> = &'a (dyn Fn(u32) -> Vec<u8> + Sync);

/// MadeYouReset: frames that oblige the server to reset a stream cost it a request each, and the
/// client nothing (CVE-2025-8671).
#[test]
fn streams_reset_by_the_server_count_as_resets() {
    let (fleet, address) = start(Setup::default());
    let head = |stream| frame(HEADERS, END_HEADERS, stream, &post_block());
    let body = chat("m", "hello").to_string();
    let whole = |stream| [head(stream), frame(DATA, END_STREAM, stream, body.as_bytes())].concat();
    let zero = |stream| [head(stream), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat();
    let overflow = |stream| {
        [head(stream), frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes())].concat()
    };
    let priority = |stream| [head(stream), frame(PRIORITY, 0, stream, &[0; 4])].concat();
    let late_data = |stream| [whole(stream), frame(DATA, END_STREAM, stream, b"more")].concat();
    let floods: [(&str, Flood<'_>); 4] = [
        ("WINDOW_UPDATE of zero", &zero),
        ("overflowing WINDOW_UPDATE", &overflow),
        ("short PRIORITY", &priority),
        ("DATA after END_STREAM", &late_data),
    ];
    for (what, flood) in floods {
        during(&fleet, what, || {
            let mut raw = Raw::connect(address);
            let mut stream = 1;
            while raw.write(&flood(stream)) {
                assert!(stream < 2 * MOST_STREAMS, "{what}: {stream} streams without an end");
                stream += 2;
                pause_between_requests(PAUSE);
            }
        });
    }
    assert!(fleet.metric("penstock_connections_closed_total{reason=\"http2\"}") >= 4.0);
}

#[test]
fn cancelled_requests_count_as_resets() {
    let pace = Pace { first_token: Duration::from_secs(30), per_token: Duration::ZERO, tokens: 1 };
    let sections = "limits: { http2: { resets: 5 } }";
    let (fleet, address) = start(Setup { pace, sections, ..Setup::default() });
    let client = Http2::connect(address);
    let body = chat("m", "hello").to_string();
    for number in 1..=6 {
        let mut pending = client.begin("POST", CHAT, &[]);
        block_on(send_all(&mut pending.body, body.as_bytes(), true)).unwrap();
        fleet.wait_fact("a", "in_flight", &serde_json::json!(1));
        pending.body.send_reset(Reason::CANCEL);
        block_on(fleet.a().wait_for(move |counters| counters.cancelled == number)).unwrap();
        fleet.wait_fact("a", "in_flight", &serde_json::json!(0));
    }
    // The seventh exceeds the limit.
    let (_response, end) = client.send(head("GET", "/health", &[]), true).read();
    assert!(matches!(end, End::Reset(_)), "{end:?}");
    let reason = client.wait_end().and_then(|error| error.reason());
    assert_eq!(reason, Some(Reason::ENHANCE_YOUR_CALM));
    fleet.wait_metric("penstock_connections_closed_total{reason=\"http2\"}", 1.0);
}

#[test]
fn frame_floods_are_bounded() {
    let (fleet, address) = start(Setup::default());
    let block = post_block();
    let opened = frame(HEADERS, END_HEADERS, 1, &block);
    let floods = [
        ("empty DATA", opened.clone(), frame(DATA, 0, 1, &[])),
        ("CONTINUATION", frame(HEADERS, 0, 1, &block), frame(CONTINUATION, 0, 1, b"\0\x01a\x01b")),
        ("empty CONTINUATION", frame(HEADERS, 0, 1, &block), frame(CONTINUATION, 0, 1, &[])),
        ("SETTINGS", Vec::new(), frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        ("PING", Vec::new(), frame(PING, 0, 0, &[0; 8])),
    ];
    for (name, first, flood) in floods {
        during(&fleet, name, || {
            let mut raw = Raw::connect(address);
            let burst = flood.repeat(1000);
            let mut is_open = raw.write(&first);
            let started = Instant::now();
            // The attacker reads nothing: penstock must stop reading what it cannot respond to.
            while is_open && started.elapsed() < Duration::from_secs(3) {
                is_open = raw.write(&burst);
                pause_between_requests(PAUSE);
            }
            let stops_without_reads = matches!(name, "SETTINGS" | "PING");
            assert!(!is_open || stops_without_reads, "{name}: never stopped");
        });
    }
}

#[test]
fn header_bomb_is_bounded() {
    let (fleet, address) = start(Setup::default());
    // One field of 4000 bytes enters the HPACK table; each further byte refers to it.
    let mut block = post_block();
    block.extend([0x40, 0x01, b'a', 0x7f, 0xa1, 0x1e]);
    block.extend([b'b'; 4000]);
    block.extend([0xbe; 12_000]);
    assert!(block.len() < 16 * 1024 + 1000);
    let (first, second) = block.split_at(16_000);
    during(&fleet, "header bombs", || {
        let mut raw = Raw::connect(address);
        for stream in (1..400).step_by(2) {
            let bomb = [
                frame(HEADERS, END_STREAM, stream, first),
                frame(CONTINUATION, END_HEADERS, stream, second),
            ];
            if !raw.write(&bomb.concat()) {
                return;
            }
            pause_between_requests(PAUSE);
        }
    });
    assert_eq!(fleet.a().received().iter().filter(|got| got.header("a").is_some()).count(), 0);
}

#[test]
fn unfinished_frames_time_out() {
    let sections = "limits: { header_timeout: 1s, body_read_timeout: 2s }";
    let (fleet, address) = start(Setup { sections, ..Setup::default() });
    let patient = Http2::connect(address);
    assert_eq!(patient.get("/health").status, 200);
    let block = post_block();
    let head = frame(HEADERS, END_HEADERS, 1, &block);
    let data = frame(DATA, 0, 1, &[b' '; 100]);
    let unfinished: [(&str, Vec<u8>, &[u8]); 6] = [
        ("half of a frame's head", head[..4].to_vec(), b""),
        ("half of a HEADERS frame", head[..15].to_vec(), b""),
        ("HEADERS without an end", frame(HEADERS, 0, 1, &block), b""),
        ("HEADERS byte by byte", head[..9].to_vec(), b"\x83"),
        ("half of a PING", frame(PING, 0, 0, &[0; 8])[..12].to_vec(), b""),
        ("half of a DATA frame", [&head[..], &data[..20]].concat(), b" "),
    ];
    std::thread::scope(|scope| {
        for (what, start, rest) in &unfinished {
            scope.spawn(move || {
                let started = Instant::now();
                let mut raw = Raw::connect(address);
                raw.write(start);
                raw.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                let mut scrap = [0; 1024];
                loop {
                    assert!(started.elapsed() < ENDLESS, "{what} is not cut off");
                    match raw.0.read(&mut scrap) {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                            raw.write(rest);
                        }
                        Err(_reset) => break,
                    }
                }
                let took = started.elapsed();
                assert!(took >= Duration::from_secs(1), "{what} had only {took:?}");
            });
        }
    });
    fleet.wait_metric("penstock_connections_closed_total{reason=\"too_slow\"}", 6.0);
    assert_eq!(patient.get("/health").status, 200, "an idle connection stays open");
    assert_eq!(fleet.requests(), 0);
}

#[test]
fn heads_ambiguous_in_http1_are_refused() {
    let (fleet, address) = start(Setup::default());
    assert_eq!(fleet.chat().status, 200);
    let literal = |name: &[u8], value: &[u8]| {
        let length = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap();
        [&[0, length(name)][..], name, &[length(value)], value].concat()
    };
    for (name, value) in [
        (&b"transfer-encoding"[..], &b"chunked"[..]),
        (b"connection", b"close"),
        (b"keep-alive", b"5"),
        (b"upgrade", b"h2c"),
        (b"proxy-connection", b"close"),
        (b"te", b"gzip"),
        (b"Upper", b"1"),
        (b"x", b"a\r\nhost: evil"),
        (b"x", b"a\nb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"1"),
        (b"x y", b"1"),
        (b"x:y", b"1"),
        (b"", b"1"),
        (b":path", b"/v1/models"),
        (b":unknown", b"1"),
        (b"host", b"evil"),
        (b"content-length", b"5, 5"),
        (b"content-length", b"+5"),
    ] {
        let block = [post_block(), literal(name, value)].concat();
        let mut raw = Raw::connect(address);
        raw.write(&frame(HEADERS, END_HEADERS, 1, &block));
        raw.write(&frame(DATA, END_STREAM, 1, b"hello"));
        let name = String::from_utf8_lossy(name).into_owned();
        assert_eq!(raw.read_verdict(1), Verdict::Refused, "{name}");
    }
    for path in ["/v1/chat completions", "/v1/\r\nx: y", "http://evil/v1/models", "", "v1/models"] {
        let length = u8::try_from(path.len()).unwrap();
        let block = [&[0x83, 0x86, 0x04, length][..], path.as_bytes(), &[0x01, 0x01, b'x']];
        let mut raw = Raw::connect(address);
        raw.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block.concat()));
        assert_eq!(raw.read_verdict(1), Verdict::Refused, "{path:?}");
    }
    assert_eq!(fleet.requests(), 1, "none of it reached an engine");
}

#[test]
fn wrong_content_length_resets_the_stream() {
    let (fleet, address) = start(Setup::default());
    let client = Http2::connect(address);
    let body = chat("m", "hello").to_string();
    for wrong in [body.len() - 1, body.len() + 1] {
        let wrong = wrong.to_string();
        let mut pending = client.begin("POST", CHAT, &[("content-length", &wrong)]);
        let _sent = block_on(send_all(&mut pending.body, body.as_bytes(), true));
        let (response, end) = pending.read();
        assert_eq!(end, End::Reset(Some(Reason::PROTOCOL_ERROR)), "{wrong}: {}", response.status);
    }
    assert_eq!(client.get("/health").status, 200, "the connection stays open");
    assert_eq!(fleet.requests(), 0);
}

/// Reads until nothing comes; returns whether the connection is still open.
fn is_open(stream: &mut Secured) -> bool {
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return false,
            Ok(_frames) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn revoked_client_ca_closes_connections() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let file = scratch("clients.pem");
    std::fs::copy(&clients.file, &file).unwrap();
    let (address, issued) = (free_address(), servers.issue("localhost"));
    let tls = format!("{}, client_ca: {}", issued.yaml(), file.display());
    let listener = format!("{{ address: \"{address}\", tls: {{ {tls} }} }}");
    let fleet = Fleet::start(1, Setup { listeners: &[listener], ..Setup::default() });
    let client = servers.client(&["h2"], Some(&clients.issue("a client")));
    let mut stream = secure(address, &client).unwrap();
    stream.sock.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    // `:method GET, :scheme http, :path /, :authority x`, and no PING is ever acknowledged.
    let block = [0x82, 0x86, 0x84, 0x01, 0x01, b'x'];
    let request = |number| frame(HEADERS, END_STREAM | END_HEADERS, number, &block);
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), &request(1)].concat()).unwrap();
    fleet.wait_metric("penstock_requests_total{", 1.0);
    std::fs::copy(&servers.file, &file).unwrap();
    assert_eq!(fleet.penstock.reload().status, 200);
    let started = Instant::now();
    for number in (3..).step_by(2) {
        if stream.write_all(&request(number)).is_err() || !is_open(&mut stream) {
            break;
        }
        assert!(started.elapsed() < ENDLESS, "request {number} is still accepted");
    }
    fleet.wait_metric("penstock_connections_closed_total{reason=\"ca_revoked\"}", 1.0);
    fleet.wait_metric("penstock_requests_total{", 1.0);
}
