//! What a refused head asks for: for the access log, which shows no byte that could be a secret.

use memchr::{memchr, memmem};

/// What is looked at of a request line.
const MAX_SHOWN: usize = 1024;
/// The longest method that is taken for one.
const MAX_METHOD: usize = 16;

/// What a refused head asks for, as far as that can be told from bytes nobody trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The method; empty where the head does not begin with one.
    pub method: String,
    /// The path, without a query or a host and bounded; empty where there is none.
    pub path: String,
}

impl Asked {
    /// Reads the first line of `head`, whole or not. What does not look like a request in HTTP gives
    /// nothing: it could be anything, a key among it.
    pub fn of(head: &[u8]) -> Self {
        let line = head.get(..head.len().min(MAX_SHOWN)).unwrap_or_default();
        let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len());
        let mut words = line.get(..end).unwrap_or_default().split(|byte| *byte == b' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Self::default();
        };
        let is_method =
            (1..=MAX_METHOD).contains(&method.len()) && method.iter().all(u8::is_ascii_uppercase);
        if !is_method {
            return Self::default();
        }
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { method: shown(method), path: shown(path_of(target)) }
    }
}

/// The path of a target in origin or absolute form.
fn path_of(target: &[u8]) -> &[u8] {
    let scheme = memmem::find(target, b"://").filter(|_| target.first() != Some(&b'/'));
    let rest = scheme.and_then(|at| target.get(at + 3..));
    let target = match rest {
        Some(rest) => memchr(b'/', rest).and_then(|at| rest.get(at..)).unwrap_or_default(),
        None => target,
    };
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(target.len());
    target.get(..end).filter(|path| path.first() == Some(&b'/')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refused_head_asks_for_is_told_as_far_as_it_is_safe() {
        let asked = |head: &[u8]| {
            let Asked { method, path } = Asked::of(head);
            format!("{method} {path}")
        };
        assert_eq!(
            asked(b"POST /v1/chat/completions?key=sk-1 HTTP/3.0\r\n"),
            "POST /v1/chat/completions"
        );
        assert_eq!(asked(b"GET http://user:sk-1@host:1/v1/models#a HTTP/1.1"), "GET /v1/models");
        assert_eq!(asked(b"GET /a\x1b[31m\xff HTTP/1.1\r\n"), "GET /a\u{1b}[31m\u{fffd}");
        assert_eq!(asked(b"GET /half"), "GET /half", "the rest never came");
        assert_eq!(asked(b"GET /a?u=http://b/sk-1"), "GET /a");
        assert_eq!(asked(b"GET sk-1 HTTP/1.1"), "GET ", "no path");
        assert_eq!(asked(b"GET http://sk-1"), "GET ");
        for nothing in
            [&b"GET"[..], b"sk-1 /path HTTP/1.1", b"\x16\x03\x01 /path", b"", b"x-api-key: sk-1"]
        {
            assert_eq!(asked(nothing), " ", "{nothing:?}");
        }
        let long = Asked::of(&[&b"GET /"[..], &[b'x'; 1 << 20]].concat());
        assert!(long.path.len() <= MAX_SHOWN, "{}", long.path.len());
    }
}
