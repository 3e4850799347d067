//! A client that speaks HTTP/2, over anything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::block_on;
use super::client::Response;

const PATIENCE: Duration = Duration::from_secs(20);

/// A connection.
pub struct Http2 {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

/// The end of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Whole,
    /// The stream was reset.
    Reset(Option<Reason>),
}

/// A request whose response is still to be read.
pub struct Pending {
    pub body: SendStream<Bytes>,
    response: ResponseFuture,
}

/// A response whose head has been read.
pub struct Started {
    pub response: Response,
    pub stream: RecvStream,
    /// Keeps the request's side open.
    pub body: SendStream<Bytes>,
}

impl Http2 {
    /// In plain text, by prior knowledge.
    pub fn connect(address: SocketAddr) -> Self {
        block_on(async { Self::over(TcpStream::connect(address).await.unwrap()).await })
    }

    /// Over TLS; `config` must offer `h2`.
    pub fn connect_tls(address: SocketAddr, name: &str, config: Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        block_on(async {
            let tcp = TcpStream::connect(address).await.unwrap();
            let tls = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await.unwrap();
            assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            Self::over(tls).await
        })
    }

    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 24)
            .handshake(stream)
            .await
            .unwrap();
        Self { requests, connection: tokio::spawn(connection) }
    }

    /// Sends a head, and leaves the body to the caller.
    pub fn begin(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Pending {
        self.send(head(method, path, headers), false)
    }

    pub fn send(&self, request: Request<()>, is_whole: bool) -> Pending {
        let requests = self.requests.clone();
        block_on(async {
            let mut requests = requests.ready().await.unwrap();
            let (response, body) = requests.send_request(request, is_whole).unwrap();
            Pending { body, response }
        })
    }

    pub fn get(&self, path: &str) -> Response {
        self.send(head("GET", path, &[]), true).read().0
    }

    pub fn post_bytes(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (Response, End) {
        let mut pending = self.begin("POST", path, headers);
        // An early response resets the upload; the response counts.
        drop(block_on(send_all(&mut pending.body, body, true)));
        pending.read()
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        let body = body.to_string();
        let length = body.len().to_string();
        let headers = [("content-type", "application/json"), ("content-length", &length)];
        let (response, end) = self.post_bytes(path, &headers, body.as_bytes());
        assert_eq!(end, End::Whole, "{response:?}");
        response
    }

    /// Sends a request with a body, and reads the head of its response.
    pub fn begin_response(&self, path: &str, body: &Value) -> Started {
        let mut pending = self.begin("POST", path, &[("content-type", "application/json")]);
        block_on(send_all(&mut pending.body, body.to_string().as_bytes(), true)).unwrap();
        pending.read_head().unwrap()
    }

    /// Waits for the end of the connection; the error it ended with, if any.
    pub fn wait_end(self) -> Option<h2::Error> {
        drop(self.requests);
        let ended = block_on(async { tokio::time::timeout(PATIENCE, self.connection).await });
        ended.expect("the connection ends").unwrap().err()
    }

    /// Returns whether the connection has ended.
    pub fn is_over(&self) -> bool {
        self.connection.is_finished()
    }

    /// Cuts the connection without a GOAWAY.
    pub fn cut(self) {
        self.connection.abort();
    }
}

/// A request's head.
pub fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let mut request = Request::builder().method(method).uri(format!("http://localhost{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

/// Sends bytes as the other side takes them.
pub async fn send_all(
    body: &mut SendStream<Bytes>,
    bytes: &[u8],
    is_last: bool,
) -> Result<(), h2::Error> {
    let mut rest = Bytes::copy_from_slice(bytes);
    while !rest.is_empty() {
        body.reserve_capacity(rest.len());
        let room = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
        let room = room.ok_or_else(|| h2::Error::from(Reason::CANCEL))??;
        let part = rest.split_to(room.min(rest.len()));
        body.send_data(part, false)?;
    }
    if is_last {
        body.send_data(Bytes::new(), true)?;
    }
    Ok(())
}

impl Pending {
    pub fn read_head(self) -> Result<Started, h2::Error> {
        let Self { body, response } = self;
        let response = block_on(async { tokio::time::timeout(PATIENCE, response).await });
        let (head, stream) = response.expect("a response")?.into_parts();
        let fields = head.headers.iter().map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        let response = Response {
            status: head.status.as_u16(),
            headers: fields.collect(),
            body: Vec::new(),
            is_whole: false,
        };
        Ok(Started { response, stream, body })
    }

    /// Reads the whole response.
    pub fn read(self) -> (Response, End) {
        match self.read_head() {
            Ok(started) => started.read(),
            Err(error) => {
                let nothing =
                    Response { status: 0, headers: Vec::new(), body: Vec::new(), is_whole: false };
                (nothing, End::Reset(error.reason()))
            }
        }
    }
}

impl Started {
    /// Reads more of the body; empty at its end.
    pub fn read_some(&mut self) -> Result<Option<Bytes>, h2::Error> {
        block_on(async {
            let data = tokio::time::timeout(PATIENCE, self.stream.data()).await;
            let data = data.expect("more of the response").transpose()?;
            if let Some(data) = &data {
                self.stream.flow_control().release_capacity(data.len())?;
                self.response.body.extend_from_slice(data);
            }
            Ok(data)
        })
    }

    pub fn read(mut self) -> (Response, End) {
        loop {
            match self.read_some() {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.response.is_whole = true;
                    return (self.response, End::Whole);
                }
                Err(error) => return (self.response, End::Reset(error.reason())),
            }
        }
    }

    /// Gives the stream up.
    pub fn reset(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }
}
