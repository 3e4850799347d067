//! A small blocking HTTP client for what commands ask of a penstock: one request per connection,
//! answers of bounded size, no TLS.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_ANSWER: u64 = 64 << 20;
const MAX_HEADERS: usize = 64;

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    /// Host and port, as in a Host header.
    pub(super) authority: &'a str,
    pub(super) path: &'a str,
    /// Sent as `Authorization: Bearer`.
    pub(super) token: Option<&'a str>,
    /// POSTed as JSON; without one it is a GET.
    pub(super) body: Option<&'a [u8]>,
}

/// A whole answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("no connection to {authority}: {source}")]
    Connect { authority: String, source: io::Error },
    #[error("{authority} did not answer: {source}")]
    Lost { authority: String, source: io::Error },
    #[error("what {authority} answered is not HTTP")]
    NotHttp { authority: String },
}

impl Call<'_> {
    /// Sends the request and reads the whole answer.
    pub(super) fn send(&self) -> Result<Answer, ClientError> {
        let authority = || self.authority.to_owned();
        let mut stream = connect(self.authority)
            .map_err(|source| ClientError::Connect { authority: authority(), source })?;
        let bytes = self
            .exchange(&mut stream)
            .map_err(|source| ClientError::Lost { authority: authority(), source })?;
        Answer::parse(&bytes).ok_or_else(|| ClientError::NotHttp { authority: authority() })
    }

    fn exchange(&self, stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_write_timeout(Some(READ_TIMEOUT))?;
        stream.write_all(&self.to_bytes())?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        Ok(answer)
    }

    fn to_bytes(self) -> Vec<u8> {
        let method = if self.body.is_some() { "POST" } else { "GET" };
        let (path, authority) = (self.path, self.authority);
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n");
        if let Some(token) = self.token {
            head.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        if let Some(body) = self.body {
            let length = body.len();
            head.push_str("content-type: application/json\r\n");
            head.push_str(&format!("content-length: {length}\r\n"));
        }
        head.push_str("\r\n");
        [head.as_bytes(), self.body.unwrap_or_default()].concat()
    }
}

impl Answer {
    /// A header's value, by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Reads an answer that ended with its connection; none when it is not whole.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(length) = head.parse(bytes).ok()? else { return None };
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers: Vec<(String, String)> = head
            .headers
            .iter()
            .map(|field| (field.name.to_ascii_lowercase(), text(field.value)))
            .collect();
        let mut answer = Self { status: head.code?, headers, body: Vec::new() };
        let rest = bytes.get(length..)?;
        let is_chunked = answer.header("transfer-encoding").is_some();
        answer.body = match answer.header("content-length") {
            _ if is_chunked => join_chunks(rest)?,
            Some(length) => rest.get(..length.parse().ok()?)?.to_owned(),
            None => rest.to_owned(),
        };
        Some(answer)
    }
}

fn connect(authority: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in authority.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn join_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let httparse::Status::Complete((start, size)) = httparse::parse_chunk_size(rest).ok()?
        else {
            return None;
        };
        if size == 0 {
            return Some(body);
        }
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        body.extend_from_slice(rest.get(start..end)?);
        rest = rest.get(end..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Answer> {
        Answer::parse(text.as_bytes())
    }

    #[test]
    fn answers_are_read_in_every_framing() {
        let plain = parse("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi").unwrap();
        assert_eq!((plain.status, plain.body.as_slice()), (200, &b"hi"[..]));
        assert_eq!(plain.header("x-a"), Some("b"));
        let chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n\
                       2\r\nhi\r\n1;x\r\n!\r\n0\r\n\r\n";
        assert_eq!(parse(chunked).unwrap().body, b"hi!");
        assert_eq!(parse("HTTP/1.0 200 OK\r\n\r\nto the end").unwrap().body, b"to the end");
    }

    #[test]
    fn answers_that_are_cut_are_none() {
        for text in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhi",
            "garbage\r\n\r\n",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_call_is_a_get_unless_it_has_a_body() {
        let call = Call { authority: "a:1", path: "/x", token: None, body: None };
        let text = |call: Call<'_>| String::from_utf8(call.to_bytes()).unwrap();
        assert_eq!(text(call), "GET /x HTTP/1.1\r\nhost: a:1\r\nconnection: close\r\n\r\n");
        let post = text(Call { token: Some("t"), body: Some(b"{}"), ..call });
        assert!(post.starts_with("POST /x HTTP/1.1\r\n"));
        assert!(post.contains("authorization: Bearer t\r\n"));
        assert!(post.ends_with("content-length: 2\r\n\r\n{}"));
    }
}
