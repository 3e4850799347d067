//! The HTTP client of commands: sends one request to a running penstock and reads the whole
//! response.

use std::time::Duration;

use http::HeaderMap;
use ureq::{Agent, Error, Timeout};

use crate::http_client::{ClientTimeouts, new_client};

const TIMEOUTS: ClientTimeouts =
    ClientTimeouts { connect: Duration::from_secs(2), io: Duration::from_secs(60) };
// Far more than any page of penstock: beyond this the other side is something else.
const MAX_RESPONSE: u64 = 64 << 20;

/// A client for one origin.
#[derive(Debug)]
pub(super) struct HttpClient {
    agent: Agent,
    /// Scheme, host and port, and the base path, if any.
    base: String,
    token: Option<String>,
    /// A field sent with every POST.
    header: Option<(&'static str, &'static str)>,
}

#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: u16,
    headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("cannot connect to {base}: {source}")]
    Connect { base: String, source: Error },
    #[error("no complete response from {base}: {source}")]
    Incomplete { base: String, source: Error },
    #[error("the response of {base} is not HTTP: {source}")]
    NotHttp { base: String, source: Error },
}

impl HttpClient {
    /// Creates a client for `base` that sends `token` as bearer token.
    pub(super) fn new(base: &str, token: Option<&str>) -> Self {
        let agent = new_client(base.starts_with("https:"), TIMEOUTS);
        Self { agent, base: base.to_owned(), token: token.map(str::to_owned), header: None }
    }

    /// Returns the same client with a field in every POST.
    pub(super) fn with_header(self, name: &'static str, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    pub(super) fn get(&self, path: &str) -> Result<HttpResponse, ClientError> {
        let request = self.agent.get(format!("{}{path}", self.base));
        let sent = match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")).call(),
            None => request.call(),
        };
        self.read(sent)
    }

    /// Sends `body` as JSON.
    pub(super) fn post(&self, path: &str, body: &[u8]) -> Result<HttpResponse, ClientError> {
        let request = self.agent.post(format!("{}{path}", self.base));
        let mut request = request.header("content-type", "application/json");
        if let Some((name, value)) = self.header {
            request = request.header(name, value);
        }
        let sent = match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")).send(body),
            None => request.send(body),
        };
        self.read(sent)
    }

    fn read(
        &self,
        sent: Result<http::Response<ureq::Body>, Error>,
    ) -> Result<HttpResponse, ClientError> {
        let (head, mut body) = sent.map_err(|source| self.to_error(source))?.into_parts();
        let body = body.with_config().limit(MAX_RESPONSE).read_to_vec();
        let body = body.map_err(|source| self.to_error(source))?;
        Ok(HttpResponse { status: head.status.as_u16(), headers: head.headers, body })
    }

    fn to_error(&self, source: Error) -> ClientError {
        use std::io::ErrorKind::{
            ConnectionRefused, HostUnreachable, InvalidData, NetworkUnreachable,
        };
        let base = self.base.clone();
        match &source {
            Error::ConnectionFailed
            | Error::HostNotFound
            | Error::Timeout(Timeout::Connect | Timeout::Resolve)
            | Error::Rustls(_) => ClientError::Connect { base, source },
            // The HTTP library reports a failed TLS handshake as invalid data.
            Error::Io(error)
                if matches!(
                    error.kind(),
                    ConnectionRefused | HostUnreachable | InvalidData | NetworkUnreachable
                ) =>
            {
                ClientError::Connect { base, source }
            }
            Error::Protocol(_) | Error::Http(_) => ClientError::NotHttp { base, source },
            _ => ClientError::Incomplete { base, source },
        }
    }
}

impl HttpResponse {
    /// Returns the value of a header, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Serves one connection with `response`. Returns the client's result and the request that it
    /// sent.
    fn exchange(response: &str) -> (Result<HttpResponse, ClientError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 1024];
                while !request.ends_with(b"{}") {
                    let count = stream.read(&mut buffer).unwrap();
                    request.extend_from_slice(&buffer[..count]);
                }
                stream.write_all(response.as_bytes()).unwrap();
                String::from_utf8(request).unwrap()
            });
            let result = HttpClient::new(&base, Some("t")).post("/x", b"{}");
            (result, server.join().unwrap())
        })
    }

    #[test]
    fn responses_are_read_in_every_framing() {
        for (response, status, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi", 200, "hi"),
            (
                "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1;x\r\n!\r\n0\r\n\r\n",
                404,
                "hi!",
            ),
            ("HTTP/1.1 302 Found\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n", 302, ""),
            ("HTTP/1.0 200 OK\r\n\r\nto the end", 200, "to the end"),
        ] {
            let (result, request) = exchange(response);
            let read = result.unwrap();
            assert_eq!(
                (read.status, read.body.as_slice()),
                (status, body.as_bytes()),
                "{response}"
            );
            assert!(request.starts_with("POST /x HTTP/1.1\r\n"), "{request}");
            assert!(
                request.to_ascii_lowercase().contains("authorization: bearer t\r\n"),
                "{request}"
            );
        }
    }

    #[test]
    fn truncated_responses_are_errors() {
        for response in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
            "garbage\r\n\r\n",
        ] {
            assert!(exchange(response).0.is_err(), "{response}");
        }
    }
}
