//! The use that each fuzz target makes of its bytes, and what must hold whatever they are. Shared
//! by the targets and by the story that replays their corpora.

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

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use penstock::discovery::{EnginePage, PageReader, read_props, read_slots};
use penstock::downstream::head_check;
use penstock::downstream::http2::frame_deadline::{FrameProgress, FrameWatcher};
use penstock::downstream::proxy_protocol::{self, Header};
use penstock::upstream::request_writer::sample_head;
use penstock::upstream::response_head::{BodyEnd, read_in_pieces};
use penstock::upstream::splice::{splice, wire_name};
use penstock::wire::chunked::{ChunkDecoder, ChunkError};
use penstock_api::Engine;
use penstock_api::{EventForm, OPERATIONS, Operation, StreamFraming};
use penstock_config::{BackendConfig, Config, Environment};
use penstock_core::prefix::{Chain, prompt_chain};
use penstock_dialect::{ReplyContext, RequestTerms, ResponseConverter};
use penstock_scan::{
    EventScanner, RequestProfile, ScanError, ScanOptions, Syntax, find_usage, scan,
};
use penstock_scoring::PrefixParams;
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
    if operation.row().body != penstock_api::BodyFormat::Json {
        return;
    }
    let scanned = scan(operation, None, body, ScanOptions::default());
    let is_json = !matches!(
        scanned,
        Err(ScanError::Malformed { .. }
            | ScanError::TrailingComma { .. }
            | ScanError::Truncated { .. }
            | ScanError::InvalidUtf8 { .. })
    );
    let Some(verdict) = serde_verdict(without_mark(body)) else { return };
    let is_too_deep = matches!(scanned, Err(ScanError::Malformed { expected: Syntax::Depth, .. }));
    assert!(is_too_deep || is_json == verdict.is_some(), "{scanned:?}");
    let (Ok(profile), Some(value)) = (scanned, verdict) else { return };
    assert_eq!(profile.model_name(body), value["model"].as_str().unwrap_or(""));
    let streams = match &value["stream"] {
        Value::Null => operation.row().streams_by_default,
        given => *given == true,
    };
    assert_eq!(profile.streaming, streams);
    // Another name in its place changes nothing else.
    let wire = wire_name(&profile, body, OTHER_NAME);
    let spliced = splice(body, &profile, &wire).concat();
    let mut wanted = value;
    wanted["model"] = Value::from(OTHER_NAME);
    assert_eq!(
        serde_json::from_slice::<Value>(without_mark(&spliced)).expect("still JSON"),
        wanted
    );
    // And the prompt is the same, cut into the same blocks.
    let renamed = scan(operation, None, &spliced, ScanOptions::default()).expect("still JSON");
    assert_eq!(blocks(&renamed, &spliced), blocks(&profile, body));
}

/// Without the byte order mark, which `serde_json` does not skip.
fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body)
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
    assert_eq!(profile.model_name(body).trim().is_empty(), !profile.names_model());
    let wire = wire_name(&profile, body, "whisper-2");
    let spliced = splice(body, &profile, &wire).concat();
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
    let framing = match operation.row().events {
        EventForm::JsonLine => StreamFraming::Lines,
        _ => StreamFraming::Events,
    };
    let mut whole = EventScanner::new(operation, framing);
    let at_once = whole.feed(stream);
    let mut parts = EventScanner::new(operation, framing);
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

/// Checks that an accepted head means the same to a lenient parser, and that the forwarded head is
/// strict again.
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
    // Host, length, request id and coding are added.
    assert_eq!(head_check::check(&out, 104), Ok(()), "{}", out.escape_ascii());
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

/// A backend's response: its head is the same however its bytes arrive, and what goes on to the
/// client has one framing and no hop-by-hop fields.
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
        BodyEnd::Length(length) => assert_eq!(lengths, [length.to_string().as_str()]),
        BodyEnd::Empty | BodyEnd::Chunked | BodyEnd::UntilClose => assert!(lengths.is_empty()),
    }
    assert!(!(head.keeps_alive && head.framing == BodyEnd::UntilClose));
}

/// A chunked body: the same payload and the same verdict however its bytes arrive, and those of a
/// simple decoder that has the whole body before it.
pub fn chunk_decoder(bytes: &[u8]) {
    let Some((size, body)) = bytes.split_first() else { return };
    let piece = usize::from(*size) + 1;
    let at_once = decode_chunks(body, body.len());
    assert_eq!(decode_chunks(body, piece), at_once, "{}", body.escape_ascii());
    let simple = simple_chunks(body).map(|(payload, rest)| (payload, body.len() - rest.len()));
    let ChunkedBody { payload, consumed, end } = at_once;
    let decoded = (end == Ok(true)).then_some((payload, consumed));
    assert_eq!(decoded, simple, "{}", body.escape_ascii());
    // Whatever is sent in chunks arrives.
    let mut sent = Vec::new();
    for chunk in body.chunks(piece) {
        sent.extend_from_slice(format!("{:x};n=\"{piece}\"\r\n", chunk.len()).as_bytes());
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b"0\r\nA: b\r\n\r\n");
    let arrived = decode_chunks(&sent, piece);
    assert_eq!(arrived.payload, body);
    assert_eq!((arrived.consumed, arrived.end), (sent.len(), Ok(true)));
}

/// The result of decoding a body.
#[derive(Debug, PartialEq, Eq)]
struct ChunkedBody {
    payload: Vec<u8>,
    consumed: usize,
    /// Returns whether the body is complete, or what is wrong with it.
    end: Result<bool, ChunkError>,
}

fn decode_chunks(body: &[u8], piece: usize) -> ChunkedBody {
    let mut decoder = ChunkDecoder::default();
    let mut decoded = ChunkedBody { payload: Vec::new(), consumed: 0, end: Ok(false) };
    for part in body.chunks(piece.max(1)) {
        let mut part = part.to_vec();
        while !part.is_empty() {
            match decoder.decode(&mut part) {
                Ok(step) => {
                    assert!(step.payload <= step.consumed && step.consumed <= part.len());
                    decoded.payload.extend_from_slice(&part[..step.payload]);
                    decoded.consumed += step.consumed;
                    decoded.end = Ok(step.is_done);
                    part.drain(..step.consumed);
                }
                Err(error) => decoded.end = Err(error),
            }
            match decoded.end {
                Ok(false) => {}
                Ok(true) => return decoded,
                // How much of the broken line was consumed depends on the pieces; the connection
                // closes.
                Err(_) => return ChunkedBody { consumed: 0, ..decoded },
            }
        }
    }
    decoded
}

/// The payload of a complete, well-formed chunked body, and what follows it.
fn simple_chunks(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut payload = Vec::new();
    loop {
        let (line, data) = simple_line(rest)?;
        let mut parts = line.splitn(2, |byte| *byte == b';');
        let digits = std::str::from_utf8(parts.next()?).ok()?.trim_end_matches([' ', '\t']);
        let is_number = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_number || digits.len() > 15 || parts.next().is_some_and(|text| text.len() > 1024) {
            return None;
        }
        let size = usize::from_str_radix(digits, 16).ok()?;
        rest = data;
        if size == 0 {
            break;
        }
        payload.extend_from_slice(data.get(..size)?);
        rest = data.get(size..)?.strip_prefix(b"\r\n")?;
    }
    let mut trailers = 0;
    loop {
        let (line, after) = simple_line(rest)?;
        rest = after;
        if line.is_empty() {
            return (trailers <= 8192).then_some((payload, rest));
        }
        let colon = line.iter().position(|byte| *byte == b':').filter(|at| *at > 0)?;
        let is_token =
            |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        if !line[..colon].iter().all(is_token) {
            return None;
        }
        trailers += line.len() - 1;
    }
}

/// A line without control characters, and what follows its CR LF.
fn simple_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| byte.is_ascii_control() && *byte != b'\t')?;
    Some((&text[..end], text[end..].strip_prefix(b"\r\n")?))
}

/// The first bytes of a connection: once they are a PROXY header or can be none, later bytes change
/// nothing; and the address is the one that stands there.
pub fn proxy_header(bytes: &[u8]) {
    let whole = proxy_protocol::parse(bytes);
    let verdicts = (0..=bytes.len()).map(|end| (end, proxy_protocol::parse(&bytes[..end])));
    for (end, verdict) in verdicts {
        match verdict {
            Ok(Header::Partial) => {
                assert!(end < 16 + 4096, "a header has a limit");
                assert!(!matches!(whole, Ok(Header::Complete { length, .. }) if length <= end));
            }
            Ok(Header::Complete { length, .. }) => {
                assert!(length <= end);
                assert_eq!(verdict, whole, "{end} of {}", bytes.escape_ascii());
            }
            Err(_) => assert_eq!(verdict, whole, "{end} of {}", bytes.escape_ascii()),
        }
    }
    let Ok(Header::Complete { length, client }) = whole else { return };
    let header = &bytes[..length];
    if let Some(line) = header.strip_prefix(b"PROXY ") {
        assert!(length <= 107 && line.ends_with(b"\r\n"));
        let line = std::str::from_utf8(&line[..line.len() - 2]).expect("text");
        let fields: Vec<&str> = line.split(' ').collect();
        assert_eq!(client.is_none(), fields[0] == "UNKNOWN");
        let Some(client) = client else { return };
        assert_eq!(fields.len(), 5);
        assert_eq!(fields[1].parse(), Ok(client));
        for port in &fields[3..] {
            assert!(port.bytes().all(|byte| byte.is_ascii_digit()), "port {port}");
        }
        return;
    }
    let declared = usize::from(header[14]) << 8 | usize::from(header[15]);
    assert_eq!(length, 16 + declared);
    let expected = match (header[12], header[13]) {
        (0x21, 0x11) => Some(IpAddr::from(*header[16..].first_chunk::<4>().expect("IPv4"))),
        (0x21, 0x21) => Some(IpAddr::from(*header[16..].first_chunk::<16>().expect("IPv6"))),
        (command, _) => {
            assert!(matches!(command, 0x20 | 0x21), "command {command:#x}");
            None
        }
    };
    assert_eq!(client, expected);
}

/// A page of an engine: what lies between its lines changes nothing, its lines add up to it, and
/// its numbers are finite.
pub fn metrics_page(page: &[u8]) {
    let reader = PageReader::default();
    let whole = reader.read(page);
    let lines: Vec<&[u8]> = page.split(|byte| *byte == b'\n').map(without_cr).collect();
    let mut spaced = lines.join(&b"\r\n\n# a {comment} 1\n\xff\n"[..]);
    spaced.extend_from_slice(b"\r\n");
    assert_eq!(reader.read(&spaced), whole);
    for read in [whole.clone(), read_slots(page)].into_iter().flatten() {
        let loads = [read.waiting, read.running, read.kv_utilization];
        assert!(loads.iter().flatten().all(|load| load.is_finite()), "{read:?}");
        assert!(read.work.is_none_or(f64::is_finite), "{read:?}");
        assert!(read.details.started_at.is_none_or(f64::is_finite), "{read:?}");
        assert!(read.details.blocks != Some(0) && read.details.block_size != Some(0), "{read:?}");
    }
    assert_ne!(read_props(page), Some(0));
    // Which line of several ranks counts shows only on the whole page.
    if page.windows(7).any(|label| label == b"tp_rank") {
        return;
    }
    let whole = whole.unwrap_or_default();
    let mut read = Vec::new();
    for line in lines {
        if let Some(page) = reader.read(&[line, b"\r\n"].concat()) {
            read.push((family_name(line), page));
        }
    }
    let load = |of: fn(&EnginePage) -> Option<f32>| {
        let loads = read.iter().filter_map(|(name, line)| Some((*name, f64::from(of(line)?))));
        loads.collect::<Vec<_>>()
    };
    assert_adds_up(whole.waiting, &load(|line| line.waiting), Tally::Sum);
    assert_adds_up(whole.running, &load(|line| line.running), Tally::Sum);
    assert_adds_up(whole.kv_utilization, &load(|line| line.kv_utilization), Tally::Mean);
}

fn without_cr(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tally {
    Sum,
    Mean,
}

fn family_name(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii_start();
    let end = line.iter().position(|byte| matches!(byte, b'{' | b' ' | b'\t'));
    &line[..end.unwrap_or(line.len())]
}

/// A page has the load of one of the families that its lines belong to.
fn assert_adds_up(whole: Option<f32>, lines: &[(&[u8], f64)], tally: Tally) {
    let Some(whole) = whole.map(f64::from) else { return assert_eq!(lines, []) };
    // Beyond that, numbers are cut off.
    if lines.iter().any(|(_, value)| value.abs() > 1e30) {
        return;
    }
    let is_family = |name: &[u8]| {
        let values = || lines.iter().filter(|line| line.0 == name).map(|line| line.1);
        let parts = if tally == Tally::Mean { values().map(|_| 1.0).sum() } else { 1.0 };
        let total = values().sum::<f64>() / parts;
        (total - whole).abs() <= 1e-30 + 1e-5 * values().map(f64::abs).sum::<f64>()
    };
    assert!(lines.iter().any(|(name, _)| is_family(name)), "{whole} of {lines:?}");
}

/// The first byte says where a connection's bytes are cut in pieces. After each piece, the
/// unfinished part is the same as when all bytes so far are read from the start.
pub fn frame_watcher(bytes: &[u8]) {
    let Some((size, connection)) = bytes.split_first() else { return };
    for piece in [usize::from(*size) + 1, 1, connection.len().max(1)] {
        let mut watcher = FrameWatcher::default();
        for start in (0..connection.len()).step_by(piece) {
            let end = connection.len().min(start + piece);
            let expected = match unfinished(&connection[..end]) {
                None => FrameProgress::Finished,
                Some(Unfinished { since, body_known_at }) => {
                    let has_started = since.is_some_and(|since| since >= start);
                    let is_known = body_known_at.is_some_and(|known| known > start);
                    if has_started || is_known {
                        FrameProgress::Started { is_body: body_known_at.is_some() }
                    } else {
                        FrameProgress::Continued
                    }
                }
            };
            let progress = watcher.watch(&connection[start..end]);
            assert_eq!(progress, expected, "{start}..{end} of {}", connection.escape_ascii());
        }
    }
}

/// The unfinished part of a connection's bytes.
struct Unfinished {
    /// Its start; `None` for the preface.
    since: Option<usize>,
    /// The number of bytes that show that it is a frame of a body.
    body_known_at: Option<usize>,
}

fn unfinished(bytes: &[u8]) -> Option<Unfinished> {
    let mut at = 24;
    let mut header_block = None;
    loop {
        let Some(frame) = bytes.get(at..) else {
            return Some(Unfinished { since: None, body_known_at: None });
        };
        if frame.is_empty() && header_block.is_none() {
            return None;
        }
        let since = header_block.unwrap_or(at);
        let is_body = header_block.is_none() && frame.get(3) == Some(&0);
        let unfinished =
            Unfinished { since: Some(since), body_known_at: is_body.then_some(at + 4) };
        let [high, middle, low, kind, flags, _, _, _, _, payload @ ..] = frame else {
            return Some(unfinished);
        };
        if matches!(kind, 1 | 9) {
            header_block = (flags & 4 == 0).then_some(since);
        }
        let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        if payload.len() < length {
            return Some(unfinished);
        }
        at += 9 + length;
    }
}

/// Clients and backends whose dialects are converted, for the first byte to pick from.
fn conversion(byte: u8) -> (Operation, Operation) {
    let pairs: Vec<_> = OPERATIONS
        .iter()
        .flat_map(|row| row.converts_to.iter().map(|target| (row.operation, *target)))
        .collect();
    pairs[usize::from(byte) % pairs.len()]
}

/// A request that every client of [`conversion`] may send, but those of responses.
const ANY_REQUEST: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1,"prompt":"x","input":"x","stream":true}"#;
/// A request for a response, with a tool that takes any text.
const RESPONSES_REQUEST: &[u8] =
    br#"{"model":"m","input":"x","stream":true,"tools":[{"type":"custom","name":"p"}]}"#;

const TERMS: RequestTerms<'_> =
    RequestTerms { model: "other \"m\"", engine: Engine::LlamaCpp, num_ctx: None };

/// The first byte picks the conversion, the rest is the request's body.
pub fn convert_request(bytes: &[u8]) {
    let Some((first, body)) = bytes.split_first() else { return };
    let (from, to) = conversion(*first);
    let Ok(converted) = penstock_dialect::convert_request(from, to, body, &TERMS) else { return };
    if let Some(value) = parsed(&converted.body) {
        assert_eq!(value["model"], TERMS.model);
    }
    // What it became is what the backend reads: the same again gives the same.
    let again = penstock_dialect::convert_request(from, to, body, &TERMS).unwrap();
    assert_eq!(again, converted);
}

/// Returns the JSON, which must be complete; none if it has a number beyond `f64`, which JSON
/// allows and `serde_json` cannot hold.
fn parsed(json: &[u8]) -> Option<Value> {
    match serde_json::from_slice(json) {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.to_string().starts_with("number out of range"), "{error}");
            None
        }
    }
}

/// The first byte picks the conversion, the second the length of the chunks, the rest is the
/// backend's stream. The client's events do not depend on the chunks, and each is complete.
pub fn convert_stream(bytes: &[u8]) {
    let [first, size, stream @ ..] = bytes else { return };
    let (client, backend) = conversion(*first);
    let Ok(request) = penstock_dialect::convert_request(client, backend, ANY_REQUEST, &TERMS)
    else {
        return;
    };
    let run = |size: usize| {
        let reply = request.reply.clone();
        let mut converter =
            ResponseConverter::new(client, request.operation, reply, ReplyContext::default());
        let mut out = Vec::new();
        for chunk in stream.chunks(size) {
            if let Err(error) = converter.feed(chunk, Duration::ZERO, &mut out) {
                return (out, Some(error));
            }
        }
        let error = converter.finish(Duration::ZERO, &mut out).err();
        (out, error)
    };
    let (whole, error) = run(stream.len().max(1));
    let (pieces, other) = run(usize::from(*size) + 1);
    assert_eq!(error.is_some(), other.is_some(), "{error:?} {other:?}");
    if error.is_none() {
        assert_eq!(whole.escape_ascii().to_string(), pieces.escape_ascii().to_string());
    }
    let text = String::from_utf8(whole).unwrap();
    let is_lines = client.row().dialect == penstock_api::Dialect::Ollama;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let data = if is_lines { Some(line) } else { line.strip_prefix("data: ") };
        if let Some(data) = data.filter(|data| *data != "[DONE]") {
            parsed(data.as_bytes());
        }
    }
    if error.is_none() && matches!(client, Operation::OllamaChat | Operation::OllamaGenerate) {
        let ends = |line: &&str| line.contains("\"done\":true") || line.starts_with("{\"error\"");
        assert_eq!(text.lines().filter(ends).count(), 1, "one end: {text}");
    }
}
