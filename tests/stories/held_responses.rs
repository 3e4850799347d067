//! Responses that cannot be relayed as they arrive are held: those that are converted whole, drafts
//! of ensembles, refusals. All of them share one budget. Beyond it a client gets an error that says
//! when to try again, no backend is blamed, and the memory is free again afterwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::client::{Response, chat};
use crate::support::fleet::{SOON, find_metric, metric};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

/// An engine with long responses, whose last byte waits until it may come.
struct LongWinded {
    address: SocketAddr,
    may_end: Arc<watch::Sender<bool>>,
    /// Responses that have come but for their last byte.
    waiting: Arc<AtomicUsize>,
}

impl LongWinded {
    fn start(status: u16, length: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (may_end, waiting) =
            (Arc::new(watch::Sender::new(false)), Arc::new(AtomicUsize::new(0)));
        let state = (Arc::clone(&may_end), Arc::clone(&waiting));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = state.clone();
                thread::spawn(move || _ = serve(stream, (status, length), &state.0, &state.1));
            }
        });
        Self { address, may_end, waiting }
    }

    fn item(&self, rest: &str) -> String {
        format!("  - {{ name: long, url: \"http://{}\", {rest} }}\n", self.address)
    }
}

fn serve(
    mut stream: TcpStream,
    (status, length): (u16, usize),
    may_end: &watch::Sender<bool>,
    waiting: &AtomicUsize,
) -> std::io::Result<()> {
    loop {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let size = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; size.map_or(0, |size| size.parse().unwrap())];
        stream.read_exact(&mut body)?;
        if head.starts_with("get") {
            let models = json!({"object": "list", "data": [{"id": "m"}]}).to_string();
            let length = models.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{models}")?;
            continue;
        }
        let is_stream = String::from_utf8_lossy(&body).contains("\"stream\":true");
        let (kind, bytes) = if is_stream { events(length) } else { whole(length) };
        let size = bytes.len();
        write!(stream, "HTTP/1.1 {status} Status\r\n{kind}\r\ncontent-length: {size}\r\n\r\n")?;
        let (most, last) = bytes.as_bytes().split_at(size - 1);
        stream.write_all(most)?;
        waiting.fetch_add(1, Ordering::SeqCst);
        let mut watched = may_end.subscribe();
        block_on(watched.wait_for(|may_end| *may_end)).unwrap();
        stream.write_all(last)?;
    }
}

/// A response whose text has that length.
fn whole(length: usize) -> (&'static str, String) {
    let message = json!({"role": "assistant", "content": "x".repeat(length)});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2});
    let response = json!({
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [choice], "usage": usage
    });
    ("content-type: application/json", response.to_string())
}

/// The same as a stream.
fn events(length: usize) -> (&'static str, String) {
    const PIECE: usize = 16 * 1024;
    let event = |delta: Value, finish: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"id": "x", "model": "m", "choices": [choice]}))
    };
    let piece = event(json!({"content": "x".repeat(PIECE)}), None);
    let end = event(json!({}), Some("stop")) + "data: [DONE]\n\n";
    ("content-type: text/event-stream", piece.repeat(length / PIECE) + &end)
}

const HELD: &str = "penstock_held_response_bytes";
const MIB: f64 = 1_048_576.0;

fn is_refused(response: &Response) -> bool {
    if response.status != 503 {
        assert_eq!(response.status, 200, "{}", response.text());
        return false;
    }
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(response.text().contains("limits.buffered_responses"), "{}", response.text());
    true
}

#[test]
fn converted_responses_share_a_budget() {
    let engine = LongWinded::start(200, 1 << 20);
    let item = engine.item("engine: openai, models: [{ id: m, operations: [chat] }]");
    let limits = "limits: { buffered_responses: 8MiB }";
    let penstock = Penstock::start(&format!("{limits}\nbackends:\n{item}"));
    let body = json!({"model": "m", "max_tokens": 5, "messages": chat("m", "hi")["messages"]});
    let responses = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..12).map(|_| scope.spawn(|| penstock.post("/v1/messages", &body))).collect();
        let refused = || clients.iter().filter(|client| client.is_finished()).count();
        eventually("those without room are refused at once", SOON, || refused() >= 4);
        let held = || metric(&penstock, HELD);
        eventually("the others are held", SOON, || held() > 6.0 * MIB && held() <= 8.0 * MIB);
        engine.may_end.send_replace(true);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let refused: Vec<&Response> = responses.iter().filter(|one| is_refused(one)).collect();
    assert!((4..12).contains(&refused.len()), "{} of 12 refused", refused.len());
    let error = &refused[0].json()["error"];
    assert_eq!(error["type"], "overloaded_error", "in the client's dialect");
    eventually("all is free again", SOON, || metric(&penstock, HELD) == 0.0);
    for _ in 0..3 {
        assert_eq!(penstock.post("/v1/messages", &body).status, 200, "no backend is to blame");
    }
    assert_eq!(metric(&penstock, "penstock_max_held_response_bytes"), 8.0 * MIB);
}

#[test]
fn streams_that_repeat_their_output_count() {
    let engine = LongWinded::start(200, 1 << 20);
    let item = engine.item("engine: openai, models: [{ id: m, operations: [chat] }]");
    let limits = "limits: { buffered_responses: 8MiB }";
    let penstock = Penstock::start(&format!("{limits}\nbackends:\n{item}"));
    let body = json!({"model": "m", "stream": true, "input": "hi"});
    let responses = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..12).map(|_| scope.spawn(|| penstock.post("/v1/responses", &body))).collect();
        let ended = || clients.iter().filter(|client| client.is_finished()).count();
        eventually("those without room end at once", SOON, || ended() >= 4);
        assert!(metric(&penstock, HELD) <= 8.0 * MIB);
        engine.may_end.send_replace(true);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let is_cut = |response: &&Response| response.text().contains("response.failed");
    let cut: Vec<&Response> = responses.iter().filter(is_cut).collect();
    assert!((4..12).contains(&cut.len()), "{} of 12 were cut", cut.len());
    for response in cut {
        let text = response.text();
        assert!(response.is_whole && text.contains("limits.buffered_responses"), "{text:.300}");
        assert!(text.contains("response_memory_full"), "{text:.300}");
    }
    eventually("all is free again", SOON, || metric(&penstock, HELD) == 0.0);
    let whole = penstock.post("/v1/responses", &body);
    assert!(whole.text().contains("response.completed"), "no backend is to blame");
    let faults = "penstock_attempts_total{backend=\"long\",outcome=\"fault\"";
    assert_eq!(find_metric(&penstock, faults), None);
}

#[test]
fn drafts_of_ensembles_count() {
    let engine = LongWinded::start(200, 1 << 20);
    engine.may_end.send_replace(true);
    let item = engine.item("engine: openai, models: [{ id: m, operations: [chat] }]");
    for (limit, status) in [("512KiB", 503), ("64MiB", 200)] {
        let sections =
            format!("limits: {{ buffered_responses: {limit} }}\nensembles: {{ enabled: true }}");
        let penstock = Penstock::start(&format!("{sections}\nbackends:\n{item}"));
        let response = penstock.post("/v1/chat/completions", &chat("moe-m", "hi"));
        assert_eq!(response.status, status, "{limit}: {}", response.text());
        if status == 503 {
            assert_eq!(response.error_code(), "response_memory_full");
            assert!(is_refused(&response));
        }
        assert_eq!(metric(&penstock, HELD), 0.0);
    }
}

#[test]
fn refusals_count() {
    let engine = LongWinded::start(429, 40_000);
    engine.may_end.send_replace(true);
    let item = engine.item("engine: openai, models: [m]");
    for (limit, is_whole) in [("1KiB", false), ("1MiB", true)] {
        let limits = format!("limits: {{ buffered_responses: {limit} }}");
        let penstock = Penstock::start(&format!("{limits}\nbackends:\n{item}"));
        let response = penstock.chat("m");
        assert_eq!(response.status, 429, "{}", response.text());
        assert_eq!(
            response.body.len() > 40_000,
            is_whole,
            "{limit}: {} bytes",
            response.body.len()
        );
        eventually("it is given back", SOON, || find_metric(&penstock, HELD) == Some(0.0));
    }
    assert!(engine.waiting.load(Ordering::SeqCst) >= 2);
}
