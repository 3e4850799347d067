//! The head of a request, parsed strictly: requests that penstock forwards must never need
//! leniency.

use bytes::Bytes;
use penstock_api::is_token_byte;
use penstock_api::slices::between;

const MAX_HEAD: usize = 256 << 10;

/// The framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestFraming {
    /// A `Content-Length`, or none.
    Known(u64),
    Chunked,
}

/// The head of a request.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) raw: Bytes,
    pub(super) headers: Vec<(String, String)>,
    pub(super) length: RequestFraming,
    pub(super) keeps_alive: bool,
}

/// Returns the end of the head in `bytes`; `None` if it is incomplete.
pub(super) fn head_end(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut line_start = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte != b'\n' {
            continue;
        }
        let line = between(bytes, line_start, at);
        // Some parsers end a line there, too: what follows is a field to them alone.
        let Some(line) = line.strip_suffix(b"\r") else { return Err("a bare LF in the head") };
        if line.is_empty() {
            return Ok(Some(at + 1));
        }
        line_start = at + 1;
    }
    if bytes.len() > MAX_HEAD { Err("a head beyond 256 KiB") } else { Ok(None) }
}

impl RequestHead {
    pub(super) fn parse(raw: Bytes) -> Result<Self, &'static str> {
        let text = String::from_utf8_lossy(&raw).into_owned();
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or(&text);
        let [method, target, version] = first.split(' ').collect::<Vec<_>>()[..] else {
            return Err("not a request line");
        };
        if !is_token(method) || target.is_empty() {
            return Err("not a request line");
        }
        let is_modern = match version {
            "HTTP/1.1" => true,
            "HTTP/1.0" => false,
            _ => return Err("neither HTTP/1.1 nor HTTP/1.0"),
        };
        let headers = lines
            .filter(|line| !line.is_empty())
            .map(parse_header)
            .collect::<Result<Vec<_>, _>>()?;
        let head = Self {
            method: method.to_owned(),
            target: target.to_owned(),
            length: body_length(&headers, is_modern)?,
            keeps_alive: is_modern && !says(&headers, "connection", "close"),
            headers,
            raw,
        };
        // RFC 9112 §3.2: a server must refuse such a request.
        if is_modern && values(&head.headers, "host").count() != 1 {
            return Err("not exactly one Host");
        }
        Ok(head)
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        values(&self.headers, name).next()
    }

    pub(super) fn expects_continue(&self) -> bool {
        says(&self.headers, "expect", "100-continue")
    }

    /// Returns whether the request is for an information page rather than a model operation.
    pub(super) fn is_probe(&self) -> bool {
        is_probe_line(format!("{} {} ", self.method, self.target).as_bytes())
    }
}

/// Returns whether a request that starts with `bytes` is for an information page.
pub(super) fn is_probe_line(bytes: &[u8]) -> bool {
    [&b"GET "[..], b"HEAD ", b"POST /api/show "].iter().any(|start| bytes.starts_with(start))
}

pub(super) fn values<'a>(
    headers: &'a [(String, String)],
    name: &str,
) -> impl Iterator<Item = &'a str> {
    headers
        .iter()
        .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

fn says(headers: &[(String, String)], name: &str, word: &str) -> bool {
    values(headers, name)
        .flat_map(|value| value.split(','))
        .any(|one| one.trim().eq_ignore_ascii_case(word))
}

fn parse_header(line: &str) -> Result<(String, String), &'static str> {
    let (name, value) = line.split_once(':').ok_or("a header line without a colon")?;
    // A blank before the colon is no token either (RFC 9112 §5.1): it hides a field from some.
    if !is_token(name) {
        return Err("not a header name");
    }
    if value.contains(|c: char| c.is_ascii_control() && c != '\t') {
        return Err("a control character in a header value");
    }
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(is_token_byte)
}

fn body_length(
    headers: &[(String, String)],
    is_modern: bool,
) -> Result<RequestFraming, &'static str> {
    let lengths: Vec<&str> = values(headers, "content-length").collect();
    let codings: Vec<&str> = values(headers, "transfer-encoding").collect();
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(RequestFraming::Known(0)),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => length
            .parse()
            .map(RequestFraming::Known)
            .map_err(|_empty_or_huge| "not a Content-Length"),
        ([], [coding]) if is_modern && coding.eq_ignore_ascii_case("chunked") => {
            Ok(RequestFraming::Chunked)
        }
        ([_], []) => Err("not a Content-Length"),
        ([], [_]) => Err("a Transfer-Encoding other than chunked, or in HTTP/1.0"),
        // Two parsers may choose differently, which is how requests are smuggled (RFC 9112 §6.3).
        _ => Err("more than one framing header"),
    }
}

pub(super) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Scripted",
    }
}
