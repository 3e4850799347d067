//! What each fuzz target does with its bytes, and what must hold whatever they are. Shared by the
//! targets and by the story that replays their corpora.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub,
    reason = "a target fails by panicking, and each binary uses one"
)]

use std::path::Path;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use penstock::api::{OPERATIONS, Operation};
use penstock::config::{BackendConfig, Config, Environment};
use penstock::downstream::head_check;
use penstock::prefix::{Chain, prompt_chain};
use penstock::scan::{
    EventScanner, RequestProfile, ScanError, ScanOptions, Syntax, find_usage, scan,
};
use penstock::scoring::PrefixParams;
use penstock::upstream::request_writer::sample_head;
use penstock::upstream::response_head::{Framing, read_in_pieces};
use penstock::upstream::splice::{splice, wire_name};
use serde_json::Value;

/// A new name that needs escapes.
const OTHER_NAME: &str = "other \"model\"\\\u{1}\u{e9}";

fn operation(byte: u8) -> Operation {
    OPERATIONS[usize::from(byte) % OPERATIONS.len()].operation
}

/// `serde_json`'s verdict; none where it is stricter than JSON is (range of numbers, depth).
fn serde_verdict(body: &[u8]) -> Option<Option<Value>> {
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => Some(Some(value).filter(Value::is_object)),
        Err(error) => {
            let text = error.to_string();
            let is_stricter = text.starts_with("number out of") || text.starts_with("recursion");
            (!is_stricter).then_some(None)
        }
    }
}

/// The first byte picks the operation, the rest is the body.
pub fn scan_json(bytes: &[u8]) {
    let Some((first, body)) = bytes.split_first() else { return };
    let operation = operation(*first);
    if operation.row().body != penstock::api::BodyFormat::Json {
        return;
    }
    let scanned = scan(operation, None, body, ScanOptions::default());
    let is_json = !matches!(
        scanned,
        Err(ScanError::Malformed { .. }
            | ScanError::Truncated { .. }
            | ScanError::InvalidUtf8 { .. })
    );
    let Some(verdict) = serde_verdict(body) else { return };
    let is_too_deep = matches!(scanned, Err(ScanError::Malformed { expected: Syntax::Depth, .. }));
    assert!(is_too_deep || is_json == verdict.is_some(), "{scanned:?}");
    let (Ok(profile), Some(value)) = (scanned, verdict) else { return };
    assert_eq!(profile.model_name(body), value["model"].as_str().expect("a name"));
    assert_eq!(profile.streaming, value["stream"] == true);
    // Another name in its place changes nothing else.
    let wire = wire_name(operation.row().body, OTHER_NAME);
    let spliced = splice(body, &profile, &wire).concat();
    let mut wanted = value;
    wanted["model"] = Value::from(OTHER_NAME);
    assert_eq!(serde_json::from_slice::<Value>(&spliced).expect("still JSON"), wanted);
    // And the prompt is the same, cut into the same blocks.
    let renamed = scan(operation, None, &spliced, ScanOptions::default()).expect("still JSON");
    assert_eq!(blocks(&renamed, &spliced), blocks(&profile, body));
}

fn blocks(profile: &RequestProfile, body: &[u8]) -> Chain {
    let mut chain = Chain::default();
    let params = PrefixParams { block_tokens: 1, ..PrefixParams::default() };
    prompt_chain(profile, body, "m", params, &mut chain);
    chain
}

/// A form with the boundary `b`.
pub fn scan_form(body: &[u8]) {
    let operation = Operation::Transcriptions;
    let kind = Some("multipart/form-data; boundary=b");
    let Ok(profile) = scan(operation, kind, body, ScanOptions::default()) else { return };
    assert!(!profile.model_name(body).trim().is_empty());
    let spliced = splice(body, &profile, "whisper-2").concat();
    let again = scan(operation, kind, &spliced, ScanOptions::default()).expect("still a form");
    assert_eq!(again.model_name(&spliced), "whisper-2");
    assert_eq!((again.streaming, again.needs), (profile.streaming, profile.needs));
}

/// A file; what loads is shown, and what is shown loads and shows the same.
pub fn load_config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // A secret's file may be anything, and reading that is not what is tested here.
    if text.contains("_file") {
        return;
    }
    let load =
        |text: &str| Config::parse(text, "file", Path::new("/nowhere"), &Environment::default());
    match load(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(config) => {
            let shown = config.to_masked_yaml();
            if !shown.contains("***") {
                let again = load(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
                assert_eq!(again.to_masked_yaml(), shown);
            }
        }
    }
}

/// The first byte picks the operation, the second where the stream is cut in pieces.
pub fn watch_stream(bytes: &[u8]) {
    let [first, size, stream @ ..] = bytes else { return };
    let operation = operation(*first);
    let mut whole = EventScanner::new(operation);
    let at_once = whole.feed(stream);
    let mut parts = EventScanner::new(operation);
    let mut tokens = 0;
    let mut last = parts.feed(b"");
    for part in stream.chunks(usize::from(*size) + 1) {
        last = parts.feed(part);
        tokens += last.tokens;
    }
    assert_eq!((tokens, last.done, last.error), (at_once.tokens, at_once.done, at_once.error));
    assert_eq!((parts.usage(), parts.at_boundary()), (whole.usage(), whole.at_boundary()));
    let _whatever = find_usage(stream);
}

/// What passes is what a lenient parser reads the same way, and what goes on from it is strict again.
pub fn read_head(bytes: &[u8]) {
    let started = head_check::check_partial(bytes, bytes.len() / 2);
    if head_check::check(bytes, 100).is_err() {
        return;
    }
    assert_eq!(started, Ok(()));
    let mut slots = [httparse::EMPTY_HEADER; 100];
    let mut parsed = httparse::Request::new(&mut slots);
    assert_eq!(parsed.parse(bytes), Ok(httparse::Status::Complete(bytes.len())));
    let mut fields = HeaderMap::new();
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).expect("a name");
        fields.append(name, HeaderValue::from_bytes(field.value).expect("a value"));
    }
    let out = sample_head(&fields, &BackendConfig::default());
    assert_eq!(head_check::check(&out, 103), Ok(()), "{}", out.escape_ascii());
    let text = String::from_utf8_lossy(&out).to_ascii_lowercase();
    assert_eq!(text.matches("\r\ncontent-length: 7\r\n").count(), 1);
    for gone in ["transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"] {
        assert!(!text.contains(&format!("\r\n{gone}:")), "{gone}");
    }
    let names = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    for (name, _) in names {
        assert!(!name.contains('_'), "{name}");
    }
}

/// A backend's response: its head is the same however its bytes arrive, and what goes on to the client
/// has one framing and no hop-by-hop fields.
pub fn response_head(bytes: &[u8]) {
    let Some((size, response)) = bytes.split_first() else { return };
    // A head over the limit passes or not by how much of it is there when it is parsed.
    if response.len() > 32 << 10 {
        return;
    }
    let at_once = read_in_pieces(response, response.len());
    let in_pieces = read_in_pieces(response, usize::from(*size) + 1);
    let (head, length) = match (at_once, in_pieces) {
        (Ok(Some((head, length))), Ok(Some((other, other_length)))) => {
            assert_eq!((head.status, head.framing), (other.status, other.framing));
            assert_eq!((head.keeps_alive, length), (other.keeps_alive, other_length));
            assert_eq!(head.header.headers, other.header.headers);
            (head, length)
        }
        (at_once, in_pieces) => {
            let at_once = at_once.map(|found| found.is_some());
            let in_pieces = in_pieces.map(|found| found.is_some());
            return assert_eq!(at_once, in_pieces, "{}", response.escape_ascii());
        }
    };
    assert!(length <= response.len());
    assert!(head.status >= 200, "interim responses are skipped");
    let fields = &head.header.headers;
    for gone in ["transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer"] {
        assert!(!fields.contains_key(gone), "{gone}");
    }
    let lengths: Vec<_> = fields.get_all("content-length").iter().collect();
    match head.framing {
        Framing::Length(length) => assert_eq!(lengths, [length.to_string().as_str()]),
        Framing::Empty | Framing::Chunked | Framing::UntilClose => assert!(lengths.is_empty()),
    }
    assert!(!(head.keeps_alive && head.framing == Framing::UntilClose));
}
