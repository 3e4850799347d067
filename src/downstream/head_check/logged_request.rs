//! The method and path of a refused head, for the access log: no byte that could be a secret.

use memchr::{memchr, memmem};
use penstock_api::slices::split_at;

/// The most bytes of a request line that are read.
const MAX_SHOWN: usize = 1024;
const MAX_METHOD: usize = 16;

/// The method and path of a refused head, as far as untrusted bytes show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedRequest {
    /// The method; empty if the head does not start with one.
    pub method: String,
    /// The path without query and host, of bounded length; empty if there is none.
    pub path: String,
}

impl LoggedRequest {
    /// Reads the first line of `head`, complete or not. A line that does not look like an HTTP
    /// request yields nothing: it could be anything, even a key.
    pub fn of(head: &[u8]) -> Self {
        let (start, _rest) = split_at(head, head.len().min(MAX_SHOWN));
        let end = start.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let (line, _rest) = split_at(start, end.unwrap_or(start.len()));
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Self::default();
        };
        let is_method =
            (1..=MAX_METHOD).contains(&method.len()) && method.iter().all(u8::is_ascii_uppercase);
        if !is_method {
            return Self::default();
        }
        Self { method: to_text(method), path: to_text(path_of(target)) }
    }
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The path of a target in origin or absolute form.
fn path_of(target: &[u8]) -> &[u8] {
    let scheme = memmem::find(target, b"://").filter(|_| target.first() != Some(&b'/'));
    let rest = scheme.and_then(|at| target.get(at + 3..));
    let target = match rest {
        Some(rest) => split_at(rest, memchr(b'/', rest).unwrap_or(rest.len())).1,
        None => target,
    };
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
    let (path, _query) = split_at(target, end);
    if path.first() == Some(&b'/') { path } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_request_shows_method_and_path_but_no_secret() {
        let shown = |head: &[u8]| {
            let LoggedRequest { method, path } = LoggedRequest::of(head);
            format!("{method} {path}")
        };
        assert_eq!(
            shown(b"POST /v1/chat/completions?key=sk-1 HTTP/3.0\r\n"),
            "POST /v1/chat/completions"
        );
        assert_eq!(shown(b"GET http://user:sk-1@host:1/v1/models#a HTTP/1.1"), "GET /v1/models");
        assert_eq!(shown(b"GET /a\x1b[31m\xff HTTP/1.1\r\n"), "GET /a\u{1b}[31m\u{fffd}");
        assert_eq!(shown(b"GET /half"), "GET /half", "the rest never came");
        assert_eq!(shown(b"GET /a?u=http://b/sk-1"), "GET /a");
        assert_eq!(shown(b"GET sk-1 HTTP/1.1"), "GET ", "no path");
        assert_eq!(shown(b"GET http://sk-1"), "GET ");
        for nothing in
            [&b"GET"[..], b"sk-1 /path HTTP/1.1", b"\x16\x03\x01 /path", b"", b"x-api-key: sk-1"]
        {
            assert_eq!(shown(nothing), " ", "{nothing:?}");
        }
        let long = LoggedRequest::of(&[&b"GET /"[..], &[b'x'; 1 << 20]].concat());
        assert!(long.path.len() <= MAX_SHOWN, "{}", long.path.len());
    }
}
