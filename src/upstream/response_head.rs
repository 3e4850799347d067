//! The head of a backend's answer: parsed, judged, and turned into the head the client gets.

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderName, HeaderValue};
use pingora::http::ResponseHeader;

/// The most bytes of an answer's head.
const HEAD_LIMIT: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;
/// More 1xx answers than any engine has a reason to send.
const INFORMATIONAL_LIMIT: u32 = 1024;

/// How the body of an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Empty,
    Length(u64),
    Chunked,
    UntilClose,
}

/// The head of an answer, ready to be relayed.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    pub(crate) header: Box<ResponseHeader>,
    pub(crate) status: u16,
    pub(crate) framing: Framing,
    pub(crate) keeps_alive: bool,
    pub(crate) is_event_stream: bool,
}

/// Why an answer cannot be relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadAnswer {
    #[error("the answer does not begin with an HTTP/1 head")]
    NotHttp,
    #[error("the answer's head is larger than 64 KiB or has more than 128 headers")]
    HeadTooLarge,
    #[error("the answer switches protocols, which nobody asked for")]
    Switching,
    #[error("the answer is framed in contradicting ways")]
    Framing,
    #[error("the answer sends interim responses without an end")]
    Informational,
    #[error("the answer's chunks are malformed")]
    Chunks,
}

/// Reads heads off the front of a buffer, skipping interim ones.
#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    informational: u32,
}

impl HeadReader {
    /// The head at the front of `read`, taken off it; `None` until it is complete.
    pub(crate) fn parse(&mut self, read: &mut BytesMut) -> Result<Option<AnswerHead>, BadAnswer> {
        loop {
            let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut parsed = httparse::Response::new(&mut slots);
            let length = match parsed.parse(read) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) if read.len() > HEAD_LIMIT => {
                    return Err(BadAnswer::HeadTooLarge);
                }
                Ok(httparse::Status::Partial) => return Ok(None),
                Err(httparse::Error::TooManyHeaders) => return Err(BadAnswer::HeadTooLarge),
                Err(_) => return Err(BadAnswer::NotHttp),
            };
            let status = parsed.code.unwrap_or_default();
            let minor = parsed.version.unwrap_or(1);
            match status {
                101 => return Err(BadAnswer::Switching),
                100..=199 => {
                    self.informational += 1;
                    if self.informational > INFORMATIONAL_LIMIT {
                        return Err(BadAnswer::Informational);
                    }
                    bytes::Buf::advance(read, length);
                }
                _ => {
                    let base = read.as_ptr() as usize;
                    let fields = Fields::of(parsed.headers, base);
                    let bytes = read.split_to(length).freeze();
                    return fields.judge(&bytes, status, minor).map(Some);
                }
            }
        }
    }
}

/// Header fields as offsets, so that they outlive the parser's borrow of the buffer.
struct Fields(smallvec::SmallVec<[[u32; 4]; 32]>);

impl Fields {
    fn of(headers: &[httparse::Header<'_>], base: usize) -> Self {
        let offset = |part: &[u8]| {
            let from = (part.as_ptr() as usize).saturating_sub(base);
            let to = from + part.len();
            (u32::try_from(from).unwrap_or(0), u32::try_from(to).unwrap_or(0))
        };
        let field = |header: &httparse::Header<'_>| {
            let (name, name_end) = offset(header.name.as_bytes());
            let (value, value_end) = offset(header.value);
            [name, name_end, value, value_end]
        };
        Self(headers.iter().map(field).collect())
    }

    fn judge(&self, bytes: &Bytes, status: u16, minor: u8) -> Result<AnswerHead, BadAnswer> {
        let mut header = ResponseHeader::build_no_case(status, Some(self.0.len() + 4))
            .map_err(|_status_out_of_range| BadAnswer::NotHttp)?;
        let mut facts = Facts { keeps_alive: minor == 1, ..Facts::default() };
        for [name, name_end, value, value_end] in &self.0 {
            let name = bytes.get(*name as usize..*name_end as usize).unwrap_or_default();
            let value = bytes.slice(*value as usize..*value_end as usize);
            let name = HeaderName::from_bytes(name).map_err(|_bad_name| BadAnswer::NotHttp)?;
            let value =
                HeaderValue::from_maybe_shared(value).map_err(|_bad_value| BadAnswer::NotHttp)?;
            if facts.note(&name, &value)? {
                header
                    .append_header(name, value)
                    .map_err(|_cannot_append| BadAnswer::HeadTooLarge)?;
            }
        }
        for name in &facts.nominated {
            header.remove_header(name);
        }
        if facts.is_chunked && minor == 0 {
            // HTTP/1.0 knows no chunks: other readers take them for the body.
            return Err(BadAnswer::Framing);
        }
        let framing = facts.framing(status)?;
        match framing {
            Framing::Length(length) => {
                let mut digits = itoa::Buffer::new();
                let value = HeaderValue::from_str(digits.format(length));
                if let Ok(value) = value {
                    header
                        .insert_header(header::CONTENT_LENGTH, value)
                        .map_err(|_cannot_insert| BadAnswer::Framing)?;
                }
            }
            Framing::Empty | Framing::Chunked | Framing::UntilClose => {}
        }
        Ok(AnswerHead {
            status,
            framing,
            keeps_alive: facts.keeps_alive && framing != Framing::UntilClose,
            is_event_stream: facts.is_event_stream,
            header: Box::new(header),
        })
    }
}

#[derive(Default)]
struct Facts {
    keeps_alive: bool,
    length: Option<u64>,
    is_chunked: bool,
    is_event_stream: bool,
    nominated: smallvec::SmallVec<[HeaderName; 2]>,
}

impl Facts {
    /// Takes in one field; returns whether it goes on to the client.
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<bool, BadAnswer> {
        if *name == header::CONTENT_LENGTH {
            let digits = value.as_bytes();
            let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
            let length = value.to_str().ok().filter(|_| is_number).and_then(|v| v.parse().ok());
            let length = length.ok_or(BadAnswer::Framing)?;
            if self.length.is_some_and(|other| other != length) {
                return Err(BadAnswer::Framing);
            }
            self.length = Some(length);
            return Ok(false);
        }
        if *name == header::TRANSFER_ENCODING {
            if self.is_chunked || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                return Err(BadAnswer::Framing);
            }
            self.is_chunked = true;
            return Ok(false);
        }
        if *name == header::CONNECTION {
            for token in value.to_str().unwrap_or_default().split(',').map(str::trim) {
                if token.eq_ignore_ascii_case("close") {
                    self.keeps_alive = false;
                } else if token.eq_ignore_ascii_case("keep-alive") {
                    self.keeps_alive = true;
                } else if let Ok(name) = HeaderName::from_bytes(token.as_bytes()) {
                    self.nominated.push(name);
                }
            }
            return Ok(false);
        }
        if *name == header::CONTENT_TYPE {
            let kind = value.as_bytes().get(..17).unwrap_or_default();
            self.is_event_stream = kind.eq_ignore_ascii_case(b"text/event-stream");
        }
        Ok(!crate::upstream::headers::is_hop_by_hop(name))
    }

    fn framing(&self, status: u16) -> Result<Framing, BadAnswer> {
        match (self.is_chunked, self.length) {
            // Two framings: whoever reads the other one sees a different answer.
            (true, Some(_)) => Err(BadAnswer::Framing),
            _ if matches!(status, 204 | 304) => Ok(Framing::Empty),
            (true, None) => Ok(Framing::Chunked),
            (false, Some(length)) => Ok(Framing::Length(length)),
            (false, None) => Ok(Framing::UntilClose),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<AnswerHead>, BadAnswer> {
        HeadReader::default().parse(&mut BytesMut::from(text))
    }

    #[test]
    fn framing_is_read_as_every_parser_reads_it() {
        let head = |text| parse(text).unwrap().unwrap().framing;
        assert_eq!(head("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"), Framing::Length(5));
        assert_eq!(head("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"), Framing::Chunked);
        assert_eq!(head("HTTP/1.1 200 OK\r\n\r\n"), Framing::UntilClose);
        assert_eq!(head("HTTP/1.1 204 No Content\r\n\r\n"), Framing::Empty);
        for bad in [
            "content-length: 5\r\ntransfer-encoding: chunked",
            "content-length: 5\r\ncontent-length: 6",
            "content-length: +5",
            "content-length: 5, 5",
            "transfer-encoding: gzip, chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{bad}\r\n\r\n");
            assert_eq!(parse(&text).unwrap_err(), BadAnswer::Framing, "{bad}");
        }
        let old = "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(parse(old).unwrap_err(), BadAnswer::Framing);
    }

    #[test]
    fn what_is_not_http_is_refused() {
        assert_eq!(parse("garbage\r\n\r\n").unwrap_err(), BadAnswer::NotHttp);
        assert_eq!(parse("<html>hello</html>").unwrap_err(), BadAnswer::NotHttp);
        assert_eq!(
            parse("HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap_err(),
            BadAnswer::Switching
        );
        assert!(parse("HTTP/1.1 200 OK\r\ncontent-le").unwrap().is_none());
        let endless = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1025);
        assert_eq!(parse(&endless).unwrap_err(), BadAnswer::Informational);
    }

    #[test]
    fn interim_answers_are_skipped_and_hop_by_hop_fields_dropped() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nconnection: close, x-private\r\n\
                    x-private: 1\r\nkeep-alive: 5\r\nx-kept: 2\r\ncontent-type: text/event-stream; \
                    charset=utf-8\r\n\r\n";
        let head = parse(text).unwrap().unwrap();
        assert!(!head.keeps_alive);
        assert!(head.is_event_stream);
        assert!(head.header.headers.get("x-private").is_none());
        assert!(head.header.headers.get("keep-alive").is_none());
        assert_eq!(head.header.headers["x-kept"], "2");
    }
}
