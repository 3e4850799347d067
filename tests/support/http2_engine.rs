//! An engine that speaks only HTTP/2, with scripted failures.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::block_on;

/// The engine's treatment of one request.
#[derive(Debug, Clone, Copy)]
pub enum Reply {
    /// With a reset instead of a response.
    Reset(Reason),
    /// The connection is cut instead of a response.
    CutConnection,
    /// The stream is reset after its first event, once [`Http2Engine::cut_stream`] says so.
    CutStream,
    /// Not at all.
    Hang,
    /// With these parts of a response.
    Respond { status: u16, content_type: &'static str, body: &'static str, end: End },
}

/// The frame that ends a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Head,
    Data,
    EmptyData,
    Trailers,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Received {
    pub uri: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct Shared {
    script: Mutex<VecDeque<Reply>>,
    received: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    resets: AtomicUsize,
    may_cut: Notify,
}

pub struct Http2Engine {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Http2Engine {
    pub fn start(tls: Option<Arc<ServerConfig>>) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let listener = block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let engine = Self { address, shared: Arc::clone(&shared) };
        super::RUNTIME.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(accept(stream, tls.clone(), Arc::clone(&shared)));
            }
        });
        engine
    }

    /// Sets the replies to the next requests for work.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.script.lock().unwrap().extend(replies);
    }

    pub fn last(&self) -> Received {
        self.shared.received.lock().unwrap().last().unwrap().clone()
    }

    /// Requests for work.
    pub fn requests(&self) -> usize {
        self.shared.received.lock().unwrap().len()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Resets the stream that waits for it.
    pub fn cut_stream(&self) {
        self.shared.may_cut.notify_one();
    }

    /// Streams that were given up while they hung.
    pub fn resets(&self) -> usize {
        self.shared.resets.load(Ordering::SeqCst)
    }
}

async fn accept(stream: TcpStream, tls: Option<Arc<ServerConfig>>, shared: Arc<Shared>) {
    shared.connections.fetch_add(1, Ordering::SeqCst);
    match tls {
        None => serve(stream, shared).await,
        Some(config) => {
            let accepted = tokio_rustls::TlsAcceptor::from(config).accept(stream).await;
            if let Ok(stream) = accepted {
                serve(stream, shared).await;
            }
        }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let cut = Arc::new(Notify::new());
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = cut.notified() => return,
        };
        let Some(Ok((request, response))) = accepted else { return };
        tokio::spawn(exchange(request, response, Arc::clone(&shared), Arc::clone(&cut)));
    }
}

async fn exchange(
    request: Request<RecvStream>,
    mut response: SendResponse<Bytes>,
    shared: Arc<Shared>,
    cut: Arc<Notify>,
) {
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(Ok(data)) = stream.data().await {
        body.extend_from_slice(&data);
        stream.flow_control().release_capacity(data.len()).unwrap();
    }
    let ok = |kind| Response::builder().status(200).header("content-type", kind).body(()).unwrap();
    if head.method == "GET" {
        let mut send = response.send_response(ok("application/json"), false).unwrap();
        send.send_data("{\"data\": []}".into(), true).unwrap();
        return;
    }
    let is_stream = String::from_utf8_lossy(&body).contains("\"stream\":true");
    let length = body.len();
    let uri = head.uri.to_string();
    shared.received.lock().unwrap().push(Received { uri, headers: head.headers, body });
    let reply = shared.script.lock().unwrap().pop_front();
    match reply {
        Some(Reply::Reset(reason)) => response.send_reset(reason),
        Some(Reply::CutConnection) => cut.notify_one(),
        Some(Reply::Hang) => {
            let _why = std::future::poll_fn(|cx| response.poll_reset(cx)).await;
            shared.resets.fetch_add(1, Ordering::SeqCst);
        }
        Some(Reply::Respond { status, content_type, body, end }) => {
            let head = Response::builder().status(status).header("content-type", content_type);
            let is_over = end == End::Head;
            let mut send = response.send_response(head.body(()).unwrap(), is_over).unwrap();
            if !is_over {
                send.send_data(body.into(), end == End::Data).unwrap();
            }
            match end {
                End::Head | End::Data => {}
                End::EmptyData => send.send_data(Bytes::new(), true).unwrap(),
                End::Trailers => send.send_trailers(HeaderMap::new()).unwrap(),
            }
        }
        None | Some(Reply::CutStream) if is_stream => {
            let mut send = response.send_response(ok("text/event-stream"), false).unwrap();
            let event = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
            send.send_data(event.into(), false).unwrap();
            if reply.is_some() {
                // A reset overtakes earlier data: wait until that has arrived.
                shared.may_cut.notified().await;
                return send.send_reset(Reason::INTERNAL_ERROR);
            }
            send.send_data(event.into(), false).unwrap();
            send.send_data("data: [DONE]\n\n".into(), true).unwrap();
        }
        None | Some(Reply::CutStream) => {
            let mut send = response.send_response(ok("application/json"), false).unwrap();
            send.send_data(format!("{{\"length\": {length}}}").into(), true).unwrap();
        }
    }
}
