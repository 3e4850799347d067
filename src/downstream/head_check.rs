//! What a request head must look like before Pingora sees it: framed and written in the one way
//! every parser reads alike. Looks at the raw bytes once, keeps nothing and allocates nothing.

mod asked;

pub use asked::Asked;

use memchr::{memchr, memchr_iter, memrchr};

use crate::api::ErrorCode;

/// The longest request target.
pub const MAX_TARGET: usize = 16 * 1024;
/// A request line without its target: a method of any sane length, blanks and version.
const LINE_SLACK: usize = 256;

/// Why a head is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Not `METHOD TARGET HTTP/1.x`; also HTTP/0.9 and bytes that are not HTTP at all.
    #[error("The request line is malformed")]
    RequestLine,
    /// HTTP, but not 1.0 or 1.1.
    #[error("The HTTP version is neither 1.1 nor 1.0")]
    Version,
    /// A byte that belongs into no target, or a form that only forward proxies serve.
    #[error("The request target is malformed")]
    Target,
    /// Beyond [`MAX_TARGET`].
    #[error("The request target is longer than 16 KiB")]
    TargetTooLong,
    /// No empty line at the end, or one before it.
    #[error("The request head does not end where it should")]
    Ending,
    /// A tunnel.
    #[error("CONNECT is not served here")]
    Connect,
    /// A line that does not end with CR LF.
    #[error("A line of the head ends with a bare LF")]
    BareLf,
    /// A field continued on the next line, or one that begins with a blank.
    #[error("A header field is folded over several lines")]
    Folded,
    /// No colon, an empty name, or a blank or other foreign byte in it.
    #[error("The name of a header field is malformed")]
    Name,
    /// A control character (NUL, CR) in a value.
    #[error("The value of a header field has control characters")]
    Value,
    /// Missing in HTTP/1.1, twice, or not a host.
    #[error("There must be exactly one Host field, with a host name")]
    Host,
    /// The target names another host than `Host` does.
    #[error("The request target and the Host field differ")]
    HostMismatch,
    /// Twice, a list, a sign, or anything else but digits.
    #[error("Content-Length must be there at most once, as one number")]
    Length,
    /// Twice, or another coding than chunked.
    #[error("Transfer-Encoding must be there at most once, as chunked")]
    Coding,
    /// `Transfer-Encoding` in HTTP/1.0, which does not know it.
    #[error("HTTP/1.0 has no Transfer-Encoding")]
    OldCoding,
    /// Two framings: whoever reads the other one sees a different request.
    #[error("Content-Length and Transfer-Encoding contradict each other")]
    TwoFramings,
    /// More than `limits.max_headers`.
    #[error("There are too many header fields (limits.max_headers)")]
    TooManyFields,
    /// More bytes than `limits.max_head_size`.
    #[error("The request head is too large (limits.max_head_size)")]
    TooLarge,
    /// Begun and not ended within `limits.header_timeout`.
    #[error("The request head did not arrive in time (limits.header_timeout)")]
    Late,
}

impl Flaw {
    /// The error the client gets.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::TargetTooLong => ErrorCode::UriTooLong,
            Self::TooManyFields | Self::TooLarge => ErrorCode::HeadTooLarge,
            Self::Late => ErrorCode::HeaderTimeout,
            Self::RequestLine
            | Self::Version
            | Self::Target
            | Self::Ending
            | Self::Connect
            | Self::BareLf
            | Self::Folded
            | Self::Name
            | Self::Value
            | Self::Host
            | Self::HostMismatch
            | Self::Length
            | Self::Coding
            | Self::OldCoding
            | Self::TwoFramings => ErrorCode::InvalidRequest,
        }
    }
}

/// Judges a whole head, up to and with its empty line.
///
/// # Errors
/// The first [`Flaw`] in it.
pub fn check(head: &[u8], most_fields: usize) -> Result<(), Flaw> {
    let mut lines = Lines(head);
    let line = RequestLine::read(lines.next().ok_or(Flaw::RequestLine)??)?;
    let mut fields = 0;
    let mut seen = Seen::default();
    while let Some(field) = lines.next() {
        let field = field?;
        if field.is_empty() {
            return if lines.0.is_empty() { seen.judge(&line) } else { Err(Flaw::Ending) };
        }
        fields += 1;
        if fields > most_fields {
            return Err(Flaw::TooManyFields);
        }
        seen.note(field)?;
    }
    Err(Flaw::Ending)
}

/// Judges the beginning of a head whose end has not come yet, of which `searched` bytes were judged
/// before. What can only be a refusal in the end should not wait for the end.
///
/// # Errors
/// A [`Flaw`] that nothing behind it can cure.
pub fn check_begun(part: &[u8], searched: usize) -> Result<(), Flaw> {
    if part.first().is_some_and(|byte| !is_in(*byte, TOKEN)) {
        return Err(Flaw::RequestLine);
    }
    let new = part.get(searched..).unwrap_or_default();
    let mut ends = memchr_iter(b'\n', new).map(|at| searched + at).peekable();
    let first = ends.peek().copied();
    for end in ends {
        if end == 0 || part.get(end - 1) != Some(&b'\r') {
            return Err(Flaw::BareLf);
        }
    }
    let has_line_before = || part.get(..searched).is_some_and(|old| memchr(b'\n', old).is_some());
    match first {
        Some(end) if !has_line_before() => {
            RequestLine::read(part.get(..end - 1).unwrap_or_default()).map(|_line| ())
        }
        None if part.len() > MAX_TARGET + LINE_SLACK && !has_line_before() => {
            Err(Flaw::TargetTooLong)
        }
        Some(_) | None => Ok(()),
    }
}

/// The path a head asks for, as far as it can be told: refusals speak the client's dialect.
pub fn asked_path(head: &[u8]) -> &[u8] {
    let target = head.splitn(3, |byte| *byte == b' ').nth(1).unwrap_or_default();
    let end = memchr(b'\r', target).unwrap_or(target.len());
    target.get(..end).unwrap_or_default()
}

/// Lines without their CR LF.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = Result<&'a [u8], Flaw>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = memchr(b'\n', self.0)?;
        let (line, rest) = self.0.split_at_checked(end + 1)?;
        self.0 = rest;
        Some(line.strip_suffix(b"\r\n").ok_or(Flaw::BareLf))
    }
}

struct RequestLine<'a> {
    /// Host and port of a target in absolute form.
    authority: Option<&'a [u8]>,
    is_old: bool,
}

impl<'a> RequestLine<'a> {
    fn read(line: &'a [u8]) -> Result<Self, Flaw> {
        let first = memchr(b' ', line).ok_or(Flaw::RequestLine)?;
        let last = memrchr(b' ', line).filter(|last| *last > first).ok_or(Flaw::RequestLine)?;
        let method = line.get(..first).unwrap_or_default();
        let target = line.get(first + 1..last).unwrap_or_default();
        let version = line.get(last + 1..).unwrap_or_default();
        if !is_token(method) {
            return Err(Flaw::RequestLine);
        }
        let is_old = match version {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            [b'H', b'T', b'T', b'P', b'/', ..] => return Err(Flaw::Version),
            _ => return Err(Flaw::RequestLine),
        };
        if target.len() > MAX_TARGET {
            return Err(Flaw::TargetTooLong);
        }
        if target.is_empty() || !target.iter().all(|byte| is_in(*byte, TARGET)) {
            return Err(Flaw::Target);
        }
        if method == b"CONNECT" {
            return Err(Flaw::Connect);
        }
        Ok(Self { authority: authority(target)?, is_old })
    }
}

fn authority(target: &[u8]) -> Result<Option<&[u8]>, Flaw> {
    if target.first() == Some(&b'/') || target == b"*" {
        return Ok(None);
    }
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    let rest = scheme.and_then(|scheme| target.get(scheme.len()..)).ok_or(Flaw::Target)?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let authority = rest.get(..end).unwrap_or_default();
    if authority.is_empty() || !is_host(authority) {
        return Err(Flaw::Target);
    }
    Ok(Some(authority))
}

/// The fields that decide where a request ends and whom it is for.
#[derive(Default)]
struct Seen<'a> {
    host: Option<&'a [u8]>,
    has_length: bool,
    has_coding: bool,
}

impl<'a> Seen<'a> {
    fn note(&mut self, field: &'a [u8]) -> Result<(), Flaw> {
        if matches!(field.first(), Some(b' ' | b'\t')) {
            return Err(Flaw::Folded);
        }
        let colon = memchr(b':', field).ok_or(Flaw::Name)?;
        let (name, rest) = field.split_at_checked(colon).unwrap_or_default();
        let value = rest.get(1..).unwrap_or_default();
        if !is_token(name) {
            return Err(Flaw::Name);
        }
        // Without a branch per byte, so that it is done in wide steps.
        let is_clean = |byte: u8| (byte >= b' ') & (byte != 0x7f) | (byte == b'\t');
        if !value.iter().fold(true, |all, byte| all & is_clean(*byte)) {
            return Err(Flaw::Value);
        }
        // Told apart by their lengths first: most fields are none of the three.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.note_host(trim(value)),
            14 if name.eq_ignore_ascii_case(b"content-length") => self.note_length(trim(value)),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.note_coding(trim(value)),
            _ => Ok(()),
        }
    }

    fn note_host(&mut self, value: &'a [u8]) -> Result<(), Flaw> {
        let is_first = self.host.replace(value).is_none();
        if is_first && is_host(value) { Ok(()) } else { Err(Flaw::Host) }
    }

    fn note_length(&mut self, value: &[u8]) -> Result<(), Flaw> {
        let is_first = !std::mem::replace(&mut self.has_length, true);
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value).ok().filter(|_| is_number && is_first);
        number.and_then(|digits| digits.parse::<u64>().ok()).map(|_| ()).ok_or(Flaw::Length)
    }

    fn note_coding(&mut self, value: &[u8]) -> Result<(), Flaw> {
        let is_first = !std::mem::replace(&mut self.has_coding, true);
        let is_chunked = value.eq_ignore_ascii_case(b"chunked");
        if is_first && is_chunked { Ok(()) } else { Err(Flaw::Coding) }
    }

    fn judge(&self, line: &RequestLine<'_>) -> Result<(), Flaw> {
        if self.has_coding && line.is_old {
            return Err(Flaw::OldCoding);
        }
        if self.has_coding && self.has_length {
            return Err(Flaw::TwoFramings);
        }
        match (self.host, line.authority) {
            (None, _) if !line.is_old => Err(Flaw::Host),
            (Some(host), Some(authority)) if host != authority => Err(Flaw::HostMismatch),
            _ => Ok(()),
        }
    }
}

fn trim(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value.iter().position(|byte| !is_blank(byte)).unwrap_or(value.len());
    let to = value.iter().rposition(|byte| !is_blank(byte)).map_or(from, |last| last + 1);
    value.get(from..to).unwrap_or_default()
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

/// What each byte may be part of (RFC 9110 §5.6.2, RFC 3986 §2 and §3.2.2). A comma is none of a
/// host's: a list of hosts is what a client that sent two looks like behind another proxy.
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
