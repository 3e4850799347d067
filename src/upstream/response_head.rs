//! The head of a backend's response: parsed, checked, and turned into the head for the client.
//!
//! The head is parsed once and its header values are never copied: the client's `HeaderValue`s are
//! slices of the buffer that it was read into. That takes a detour. `httparse` returns names and
//! values that borrow the read buffer, but the head can be split off that buffer (`split_to`, which
//! needs it mutable) only after the borrow has ended. So [`FieldSpan`] stores the position of each
//! name and value as offsets from the start of the buffer. They are computed from addresses: plain
//! integer arithmetic on pointers into one slice, nothing is dereferenced.
//!
//! Invariants: the offsets are taken before the buffer is changed and used only on the bytes split
//! off its front, which begin at the same address; every name and value ends before the head does.
//! It would break if the parser returned text that is not part of its input (unfolded or decoded
//! values), or if the buffer were advanced between parsing and splitting. Then a span lies outside
//! the head: the debug assertion fires, and a release build refuses the response.

mod fields;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::header::{self, HeaderName, HeaderValue};
use pingora::http::ResponseHeader;
use smallvec::SmallVec;

use self::fields::HeadFacts;
pub use self::fields::{BodyEnd, InvalidResponse};
use penstock_api::StreamFraming;
use penstock_api::content_coding::{CodingError, ContentCoding};
use penstock_api::units::ByteSpan;

/// The most bytes of a response's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;
/// The most interim (1xx) responses; more than any engine has a reason to send.
const MAX_INTERIM_RESPONSES: u32 = 1024;

/// The head of a response, ready to be relayed.
#[derive(Debug)]
pub struct ResponseHead {
    /// The head for the client: no hop-by-hop fields, at most one `Content-Length`.
    pub header: Box<ResponseHeader>,
    pub status: u16,
    /// The end of the body.
    pub framing: BodyEnd,
    /// True if the connection may carry another request.
    pub keeps_alive: bool,
    /// The time for which the backend keeps the connection idle, by its `Keep-Alive` field.
    pub keep_alive: Option<Duration>,
    /// The framing of a body that is a stream of events.
    pub stream: Option<StreamFraming>,
    /// True if the body is JSON.
    pub is_json: bool,
    /// True if the body is text of another type.
    pub is_text: bool,
    /// True if the body has a content coding.
    pub is_encoded: bool,
}

impl ResponseHead {
    /// The content coding of the body, if it has one.
    pub(super) fn coding(&self) -> Option<&'static str> {
        if !self.is_encoded {
            return None;
        }
        let fields = self.header.headers.get_all(header::CONTENT_ENCODING);
        match ContentCoding::of(fields.iter().map(HeaderValue::as_bytes)) {
            Ok(coding) => coding.map(ContentCoding::name),
            Err(CodingError::Several) => Some("several codings"),
            Err(CodingError::Unknown(_)) => Some("an unknown coding"),
        }
    }
}

/// Reads heads off the front of a buffer, skipping interim ones.
#[derive(Debug, Default)]
pub struct ResponseHeadReader {
    interim: u32,
    /// True if a 101 is the response, because the client requested a switch.
    accepts_switch: bool,
}

impl ResponseHeadReader {
    /// A reader for the response; `accepts_switch` if the request may switch protocols.
    pub(super) fn new(accepts_switch: bool) -> Self {
        Self { interim: 0, accepts_switch }
    }

    /// Takes the head off the front of `read`; `None` until it is complete.
    ///
    /// # Errors
    /// When the bytes cannot become a response.
    pub fn parse(&mut self, read: &mut BytesMut) -> Result<Option<ResponseHead>, InvalidResponse> {
        loop {
            // Not initialised: that would take longer than parsing a usual head.
            let mut slots = [const { MaybeUninit::uninit() }; MAX_HEADERS];
            let mut parsed = httparse::Response::new(&mut []);
            let parser = httparse::ParserConfig::default();
            let length =
                match parser.parse_response_with_uninit_headers(&mut parsed, read, &mut slots) {
                    Ok(httparse::Status::Complete(length)) => length,
                    Ok(httparse::Status::Partial) if read.len() > MAX_HEAD_BYTES => {
                        return Err(InvalidResponse::HeadTooLarge);
                    }
                    Ok(httparse::Status::Partial) => return Ok(None),
                    Err(httparse::Error::TooManyHeaders) => {
                        return Err(InvalidResponse::HeadTooLarge);
                    }
                    Err(_) => return Err(InvalidResponse::NotHttp),
                };
            let (Some(status), Some(minor)) = (parsed.code, parsed.version) else {
                debug_assert!(false, "a complete head has a status and a version");
                return Err(InvalidResponse::NotHttp);
            };
            match status {
                101 if !self.accepts_switch => return Err(InvalidResponse::Switching),
                100 | 102..=199 => {
                    self.interim += 1;
                    if self.interim > MAX_INTERIM_RESPONSES {
                        return Err(InvalidResponse::Interim);
                    }
                    read.advance(length);
                }
                _ => {
                    let spans = FieldSpan::of_all(parsed.headers, read);
                    let head = read.split_to(length).freeze();
                    return to_head(&spans, &head, StatusLine { status, minor }).map(Some);
                }
            }
        }
    }
}

/// Reads a head that arrives `piece` bytes at a time, and returns its length in bytes, interim
/// responses included: for tests and fuzz targets.
///
/// # Errors
/// Those of [`ResponseHeadReader::parse`].
pub fn read_in_pieces(
    bytes: &[u8],
    piece: usize,
) -> Result<Option<(ResponseHead, usize)>, InvalidResponse> {
    let (mut reader, mut read, mut fed) = (ResponseHeadReader::default(), BytesMut::new(), 0);
    for part in bytes.chunks(piece.max(1)) {
        read.extend_from_slice(part);
        fed += part.len();
        if let Some(head) = reader.parse(&mut read)? {
            return Ok(Some((head, fed - read.len())));
        }
    }
    Ok(None)
}

/// The first line of a response.
#[derive(Debug, Clone, Copy)]
struct StatusLine {
    status: u16,
    /// The minor version: 0 of HTTP/1.0, 1 of HTTP/1.1.
    minor: u8,
}

/// The position of a header field in its head, as offsets: see the module's comment.
#[derive(Debug, Clone, Copy)]
struct FieldSpan {
    name: ByteSpan,
    value: ByteSpan,
}

impl FieldSpan {
    fn of_all(headers: &[httparse::Header<'_>], buffer: &[u8]) -> SmallVec<[Self; 32]> {
        let spans = headers.iter().map(|header| Self {
            name: span_of(header.name.as_bytes(), buffer),
            value: span_of(header.value, buffer),
        });
        spans.collect()
    }
}

/// The position of `part` in `buffer`; outside of every head if it is not a part of it.
fn span_of(part: &[u8], buffer: &[u8]) -> ByteSpan {
    const OUTSIDE: u32 = u32::MAX;
    if part.is_empty() {
        // The parser may return an empty constant, which has no position.
        return ByteSpan::default();
    }
    let offset = (part.as_ptr() as usize).checked_sub(buffer.as_ptr() as usize);
    let start = offset.and_then(|offset| u32::try_from(offset).ok()).unwrap_or(OUTSIDE);
    let length = u32::try_from(part.len()).unwrap_or(OUTSIDE);
    ByteSpan { start, end: start.saturating_add(length) }
}

/// The range of `head` that `span` covers.
fn range_in(head: &[u8], span: ByteSpan) -> Result<Range<usize>, InvalidResponse> {
    let range = span.range();
    let is_inside = range.end <= head.len();
    debug_assert!(is_inside, "a field lies outside of the head it was parsed from");
    is_inside.then_some(range).ok_or(InvalidResponse::NotHttp)
}

fn to_head(
    spans: &[FieldSpan],
    head: &Bytes,
    line: StatusLine,
) -> Result<ResponseHead, InvalidResponse> {
    let mut header = ResponseHeader::build_no_case(line.status, Some(spans.len() + 4))
        .map_err(|_status_out_of_range| InvalidResponse::NotHttp)?;
    let mut facts = HeadFacts { keeps_alive: line.minor == 1, ..HeadFacts::default() };
    for span in spans {
        let name = head.get(range_in(head, span.name)?).ok_or(InvalidResponse::NotHttp)?;
        let name = HeaderName::from_bytes(name).map_err(|_bad_name| InvalidResponse::NotHttp)?;
        let value = head.slice(range_in(head, span.value)?);
        let value =
            HeaderValue::from_maybe_shared(value).map_err(|_bad_value| InvalidResponse::NotHttp)?;
        if facts.read_field(&name, &value)? {
            header
                .append_header(name, value)
                .map_err(|_cannot_append| InvalidResponse::HeadTooLarge)?;
        }
    }
    // After all fields: `Connection` may follow the fields that it names.
    for name in &facts.nominated {
        header.remove_header(name);
    }
    if facts.is_chunked && line.minor == 0 {
        // HTTP/1.0 has no chunks: other readers would take them for the body.
        return Err(InvalidResponse::Framing);
    }
    let framing = facts.framing(line.status)?;
    if let BodyEnd::Length(length) = framing {
        header
            .insert_header(header::CONTENT_LENGTH, HeaderValue::from(length))
            .map_err(|_cannot_insert| InvalidResponse::Framing)?;
    }
    Ok(ResponseHead {
        status: line.status,
        framing,
        keeps_alive: facts.keeps_alive && framing != BodyEnd::UntilClose,
        keep_alive: facts.keep_alive,
        stream: facts.stream,
        is_json: facts.is_json,
        is_text: facts.is_text,
        is_encoded: facts.is_encoded,
        header: Box::new(header),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<ResponseHead>, InvalidResponse> {
        ResponseHeadReader::default().parse(&mut BytesMut::from(text))
    }

    #[test]
    fn keep_alive_field_gives_the_idle_timeout() {
        let keep_alive = |value: &str| {
            let text =
                format!("HTTP/1.1 200 OK\r\nKeep-Alive: {value}\r\ncontent-length: 0\r\n\r\n");
            let head = parse(&text).unwrap().unwrap();
            assert!(!head.header.headers.contains_key("keep-alive"), "it is hop-by-hop");
            head.keep_alive
        };
        assert_eq!(keep_alive("timeout=5, max=100"), Some(Duration::from_secs(5)));
        assert_eq!(keep_alive("max=7 , Timeout = 1"), Some(Duration::from_secs(1)));
        for without in ["max=100", "timeout", "timeout=soon", "timeout=-1"] {
            assert_eq!(keep_alive(without), None, "{without}");
        }
    }

    #[test]
    fn contradictory_framing_is_refused() {
        let head = |text| parse(text).unwrap().unwrap().framing;
        assert_eq!(head("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"), BodyEnd::Length(5));
        assert_eq!(head("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"), BodyEnd::Chunked);
        assert_eq!(head("HTTP/1.1 200 OK\r\n\r\n"), BodyEnd::UntilClose);
        assert_eq!(head("HTTP/1.1 204 No Content\r\n\r\n"), BodyEnd::Empty);
        for bad in [
            "content-length: 5\r\ntransfer-encoding: chunked",
            "content-length: 5\r\ncontent-length: 6",
            "content-length: +5",
            "content-length: 5, 5",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{bad}\r\n\r\n");
            assert_eq!(parse(&text).unwrap_err(), InvalidResponse::Framing, "{bad}");
        }
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(parse(old).unwrap_err(), InvalidResponse::Framing);
    }

    #[test]
    fn responses_that_are_not_http_are_refused() {
        assert_eq!(parse("garbage\r\n\r\n").unwrap_err(), InvalidResponse::NotHttp);
        assert_eq!(parse("<html>hello</html>").unwrap_err(), InvalidResponse::NotHttp);
        assert_eq!(
            parse("HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap_err(),
            InvalidResponse::Switching
        );
        assert!(parse("HTTP/1.1 200 OK\r\ncontent-le").unwrap().is_none());
        let endless = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1025);
        assert_eq!(parse(&endless).unwrap_err(), InvalidResponse::Interim);
    }

    #[test]
    fn interim_responses_are_skipped_and_hop_by_hop_fields_dropped() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nconnection: close, x-private\r\n\
                    x-private: 1\r\nkeep-alive: 5\r\nx-kept: 2\r\ncontent-type: text/event-stream; \
                    charset=utf-8\r\n\r\n";
        let head = parse(text).unwrap().unwrap();
        assert!(!head.keeps_alive);
        assert_eq!(head.stream, Some(StreamFraming::Events));
        assert!(head.header.headers.get("x-private").is_none());
        assert!(head.header.headers.get("keep-alive").is_none());
        assert_eq!(head.header.headers["x-kept"], "2");
    }

    #[test]
    fn a_head_leaves_the_bytes_after_it_in_the_buffer() {
        let mut read =
            BytesMut::from("HTTP/1.1 200 OK\r\nx-a: 1\r\nx-b:  two \r\nx-c:  \r\n\r\nbody");
        let head = ResponseHeadReader::default().parse(&mut read).unwrap().unwrap();
        assert_eq!(head.header.headers["x-a"], "1");
        assert_eq!(head.header.headers["x-b"], "two");
        assert_eq!(head.header.headers["x-c"], "");
        assert_eq!(&read[..], b"body");
    }
}
