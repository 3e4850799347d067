//! The strict check of an HTTP/1.1 request head, on its raw bytes, before any parser sees it. Reads
//! them once, keeps nothing and allocates nothing.
//!
//! **Why.** Request smuggling exploits heads that two parsers read differently: the first one sees
//! one request, the second sees two. Parsers before penstock (another proxy) and after it
//! (Pingora's, each engine's) are beyond its control. So this check does not parse better than they
//! do: it refuses every head that is not written in the one way that all of them read alike.
//! Lenient input gains nothing, since clients that send it do not exist outside attacks.
//!
//! **What a head that passes has**, and what breaks without it:
//! * every line ends with CR LF, no bare LF or CR, no folded lines: else parsers disagree on where
//!   fields are;
//! * names are tokens directly followed by a colon: `Transfer-Encoding :` is a field to some
//!   parsers;
//! * at most one framing: one `Content-Length` of digits only, or one `Transfer-Encoding: chunked`,
//!   which HTTP/1.0 does not have: else they disagree on where the body ends;
//! * one `Host`, equal to the authority of an absolute target: else they disagree on the host;
//! * no control characters in target or values: they end lines for some and split logs for others.
//!
//! The check holds for whole heads ([`check`]); [`check_partial`] only refuses early what [`check`]
//! would refuse in the end, so that a client gets its 400 without sending the rest. A property test
//! compares [`check`] with a reading by the letter of RFC 9112 and with `httparse`, which Pingora
//! uses.

mod logged_request;

pub use logged_request::LoggedRequest;

use memchr::{memchr, memchr_iter, memrchr};
use penstock_api::ErrorCode;
use penstock_api::slices::split_at;

/// The longest request target.
pub const MAX_TARGET: usize = 16 * 1024;
/// The most bytes of a request line besides its target: method, blanks and version.
const MAX_LINE_SLACK: usize = 256;

/// The reason why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Not `METHOD TARGET HTTP/1.x`; also HTTP/0.9 and bytes that are not HTTP at all.
    #[error("The request line is malformed")]
    RequestLine,
    /// HTTP, but not 1.0 or 1.1.
    #[error("The HTTP version is neither 1.1 nor 1.0")]
    Version,
    /// A byte that no target may have, or a form that only forward proxies serve.
    #[error("The request target is malformed")]
    Target,
    #[error("The request target is longer than 16 KiB")]
    TargetTooLong,
    /// No empty line at the end, or one before it.
    #[error("The request head does not end where it should")]
    End,
    /// The method CONNECT, which requests a tunnel.
    #[error("CONNECT is not served here")]
    Connect,
    /// A line that does not end with CR LF.
    #[error("A line of the head ends with a bare LF")]
    BareLf,
    /// A field continued on the next line, or one that starts with a blank.
    #[error("A header field is folded over several lines")]
    Folded,
    /// No colon, an empty name, or a byte that a token cannot have.
    #[error("The name of a header field is malformed")]
    Name,
    /// A control character (NUL, CR) in a value.
    #[error("The value of a header field has control characters")]
    Value,
    /// Missing in HTTP/1.1, repeated, or no valid host.
    #[error("There must be exactly one Host field, with a host name")]
    Host,
    /// An absolute target with another host than `Host`.
    #[error("The request target and the Host field differ")]
    HostMismatch,
    /// Repeated, a list, or not only digits.
    #[error("Content-Length must be there at most once, as one number")]
    Length,
    /// Repeated, or another coding than chunked.
    #[error("Transfer-Encoding must be there at most once, as chunked")]
    Coding,
    /// `Transfer-Encoding` in HTTP/1.0, which does not know it.
    #[error("HTTP/1.0 has no Transfer-Encoding")]
    CodingInHttp10,
    /// Both `Content-Length` and `Transfer-Encoding`: a parser that prefers the other one sees
    /// another request.
    #[error("Content-Length and Transfer-Encoding contradict each other")]
    TwoFramings,
    #[error("There are too many header fields (limits.max_headers)")]
    TooManyFields,
    /// More bytes than `limits.max_head_size`.
    #[error("The request head is too large (limits.max_head_size)")]
    TooLarge,
    /// Started and not finished within `limits.header_timeout`.
    #[error("The request head did not arrive in time (limits.header_timeout)")]
    TimedOut,
}

impl HeadError {
    /// The error for the client.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::TargetTooLong => ErrorCode::UriTooLong,
            Self::TooManyFields | Self::TooLarge => ErrorCode::HeadTooLarge,
            Self::TimedOut => ErrorCode::HeaderTimeout,
            Self::RequestLine
            | Self::Version
            | Self::Target
            | Self::End
            | Self::Connect
            | Self::BareLf
            | Self::Folded
            | Self::Name
            | Self::Value
            | Self::Host
            | Self::HostMismatch
            | Self::Length
            | Self::Coding
            | Self::CodingInHttp10
            | Self::TwoFramings => ErrorCode::InvalidRequest,
        }
    }
}

/// Checks a whole head, including its empty line.
///
/// # Errors
/// The first [`HeadError`] in it.
pub fn check(head: &[u8], most_fields: usize) -> Result<(), HeadError> {
    let mut lines = HeadLines(head);
    let line = HttpRequestLine::read(lines.next().ok_or(HeadError::RequestLine)??)?;
    let mut fields = 0;
    let mut routing = RoutingFields::default();
    while let Some(field) = lines.next() {
        let field = field?;
        if field.is_empty() {
            return if lines.0.is_empty() { routing.check(&line) } else { Err(HeadError::End) };
        }
        fields += 1;
        if fields > most_fields {
            return Err(HeadError::TooManyFields);
        }
        routing.note(field)?;
    }
    Err(HeadError::End)
}

/// Checks the start of a head whose end has not arrived. Its first `searched` bytes were checked
/// before.
///
/// # Errors
/// A [`HeadError`] that no further bytes can correct.
pub fn check_partial(part: &[u8], searched: usize) -> Result<(), HeadError> {
    // A TLS handshake on a plain port may never have a line end: its first byte is refused.
    if part.first().is_some_and(|byte| !is_in(*byte, TOKEN)) {
        return Err(HeadError::RequestLine);
    }
    let (old, new) = split_at(part, searched);
    let mut ends = memchr_iter(b'\n', new).map(|at| searched + at).peekable();
    let first = ends.peek().copied();
    for end in ends {
        if end == 0 || part.get(end - 1) != Some(&b'\r') {
            return Err(HeadError::BareLf);
        }
    }
    if memchr(b'\n', old).is_some() {
        // The request line was checked when it arrived.
        return Ok(());
    }
    match first {
        Some(end) => HttpRequestLine::read(split_at(part, end - 1).0).map(|_line| ()),
        None if part.len() > MAX_TARGET + MAX_LINE_SLACK => Err(HeadError::TargetTooLong),
        None => Ok(()),
    }
}

/// The target of a refused head, empty if there is none: its path decides the dialect of the error.
pub fn requested_target(head: &[u8]) -> &[u8] {
    let target = head.splitn(3, |byte| *byte == b' ').nth(1).unwrap_or(&[]);
    split_at(target, memchr(b'\r', target).unwrap_or(target.len())).0
}

/// Lines without their CR LF.
struct HeadLines<'a>(&'a [u8]);

impl<'a> Iterator for HeadLines<'a> {
    type Item = Result<&'a [u8], HeadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = memchr(b'\n', self.0)?;
        let (line, rest) = self.0.split_at_checked(end + 1)?;
        self.0 = rest;
        Some(line.strip_suffix(b"\r\n").ok_or(HeadError::BareLf))
    }
}

struct HttpRequestLine<'a> {
    /// The host and port of a target in absolute form.
    authority: Option<&'a [u8]>,
    is_http10: bool,
}

impl<'a> HttpRequestLine<'a> {
    fn read(line: &'a [u8]) -> Result<Self, HeadError> {
        // The first and the last blank: one within the target stays in it and is refused below.
        let first = memchr(b' ', line).ok_or(HeadError::RequestLine)?;
        let last =
            memrchr(b' ', line).filter(|last| *last > first).ok_or(HeadError::RequestLine)?;
        let (before, version) = split_around(line, last);
        let (method, target) = split_around(before, first);
        if !is_token(method) {
            return Err(HeadError::RequestLine);
        }
        let is_http10 = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            [b'H', b'T', b'T', b'P', b'/', ..] => return Err(HeadError::Version),
            _ => return Err(HeadError::RequestLine),
        };
        if target.len() > MAX_TARGET {
            return Err(HeadError::TargetTooLong);
        }
        if target.is_empty() || !target.iter().all(|byte| is_in(*byte, TARGET)) {
            return Err(HeadError::Target);
        }
        if method == b"CONNECT" {
            return Err(HeadError::Connect);
        }
        Ok(Self { authority: authority(target)?, is_http10 })
    }
}

fn authority(target: &[u8]) -> Result<Option<&[u8]>, HeadError> {
    if target.first() == Some(&b'/') || target == b"*" {
        return Ok(None);
    }
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    let rest = scheme.and_then(|scheme| target.get(scheme.len()..)).ok_or(HeadError::Target)?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, _path) = split_at(rest, end);
    if authority.is_empty() || !is_host(authority) {
        return Err(HeadError::Target);
    }
    Ok(Some(authority))
}

/// The fields that determine the end of a request and its host.
#[derive(Default)]
struct RoutingFields<'a> {
    host: Option<&'a [u8]>,
    has_length: bool,
    has_coding: bool,
}

impl<'a> RoutingFields<'a> {
    fn note(&mut self, field: &'a [u8]) -> Result<(), HeadError> {
        if matches!(field.first(), Some(b' ' | b'\t')) {
            return Err(HeadError::Folded);
        }
        let colon = memchr(b':', field).ok_or(HeadError::Name)?;
        let (name, value) = split_around(field, colon);
        if !is_token(name) {
            return Err(HeadError::Name);
        }
        // Without a branch per byte, so that the compiler vectorises it.
        if !value.iter().fold(true, |all, byte| all & is_printable(*byte)) {
            return Err(HeadError::Value);
        }
        // By length first: most fields match none of the three.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.note_host(trim(value)),
            14 if name.eq_ignore_ascii_case(b"content-length") => self.note_length(trim(value)),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.note_coding(trim(value)),
            _ => Ok(()),
        }
    }

    fn note_host(&mut self, value: &'a [u8]) -> Result<(), HeadError> {
        let is_first = self.host.replace(value).is_none();
        if is_first && is_host(value) { Ok(()) } else { Err(HeadError::Host) }
    }

    fn note_length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        let is_first = !std::mem::replace(&mut self.has_length, true);
        // `parse` alone would accept a sign.
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value).ok().filter(|_| is_number && is_first);
        number.and_then(|digits| digits.parse::<u64>().ok()).map(|_| ()).ok_or(HeadError::Length)
    }

    fn note_coding(&mut self, value: &[u8]) -> Result<(), HeadError> {
        let is_first = !std::mem::replace(&mut self.has_coding, true);
        let is_chunked = value.eq_ignore_ascii_case(b"chunked");
        if is_first && is_chunked { Ok(()) } else { Err(HeadError::Coding) }
    }

    fn check(&self, line: &HttpRequestLine<'_>) -> Result<(), HeadError> {
        if self.has_coding && line.is_http10 {
            return Err(HeadError::CodingInHttp10);
        }
        if self.has_coding && self.has_length {
            return Err(HeadError::TwoFramings);
        }
        match (self.host, line.authority) {
            (None, _) if !line.is_http10 => Err(HeadError::Host),
            (Some(host), Some(authority)) if host != authority => Err(HeadError::HostMismatch),
            _ => Ok(()),
        }
    }
}

/// Splits off the byte at `at`; returns the bytes before and after it.
fn split_around(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    let (before, rest) = split_at(bytes, at);
    (before, rest.get(1..).unwrap_or(&[]))
}

/// Removes blanks and tabs at both ends, the only whitespace of RFC 9110 §5.6.3.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Returns whether a byte is a tab or no control character.
fn is_printable(byte: u8) -> bool {
    (byte >= b' ') & (byte != 0x7f) | (byte == b'\t')
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| is_in(*byte, TOKEN))
}

fn is_host(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| is_in(*byte, HOST))
}

const TOKEN: u8 = 1;
const TARGET: u8 = 2;
const HOST: u8 = 4;

/// The classes of each byte (RFC 9110 §5.6.2, RFC 3986 §2 and §3.2.2). A host has no comma: a proxy
/// before penstock may have joined two `Host` fields into a list.
const CLASSES: [u8; 256] = {
    let table = mark([0; 256], LETTERS, TOKEN | TARGET | HOST);
    let table = mark(table, b"!#$%&'*+-.^_`|~", TOKEN);
    let table = mark(table, b"-._~:/?[]@!$&'()*+,;=%", TARGET);
    mark(table, b"-._~:[]!$&'()*+;=%", HOST)
};
const LETTERS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[expect(clippy::indexing_slicing, reason = "runs at compile time, where a panic is an error")]
const fn mark(mut table: [u8; 256], bytes: &[u8], class: u8) -> [u8; 256] {
    let mut at = 0;
    while at < bytes.len() {
        table[bytes[at] as usize] |= class;
        at += 1;
    }
    table
}

fn is_in(byte: u8, class: u8) -> bool {
    CLASSES.get(usize::from(byte)).is_some_and(|classes| classes & class != 0)
}

#[cfg(test)]
mod tests;
