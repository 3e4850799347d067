//! Refuses connections over `limits.connections`: with a 503 as long as that is cheap, else by closing
//! them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use pingora::protocols::Stream;

use super::accepted::AcceptedConnection;
use super::counted::Counted;
use super::http2;
use super::listener::Port;
use super::prefixed_stream::PrefixedStream;
use super::response_writer::{REFUSAL_TIMEOUT, RawResponse};
use crate::api::ErrorCode;
use crate::config::TrustedProxy;

/// Connections that get a 503 at one time; further ones are closed silently.
const REFUSED_AT_ONCE: usize = 1024;
/// TLS handshakes at one time for the sake of a 503: they cost more than the response.
const HANDSHAKES_AT_ONCE: usize = 16;

/// Called with the reason of every refusal, and the client's address where it is known.
pub(crate) type OnRefused = Box<dyn Fn(ErrorCode, Option<IpAddr>) + Send + Sync>;

/// Responds to connections over the limit.
pub(crate) struct ConnectionLimit {
    too_many_connections: RawResponse,
    handshakes: Arc<AtomicUsize>,
    on_refused: OnRefused,
}

impl ConnectionLimit {
    pub(crate) fn new(on_refused: OnRefused) -> Self {
        let message = "Too many connections (limits.connections)";
        let too_many_connections = RawResponse::new(ErrorCode::TooManyConnections, message);
        Self { too_many_connections, handshakes: Arc::default(), on_refused }
    }

    /// Refuses a connection, `excess` of which are open at once.
    pub(crate) async fn refuse(
        &self,
        mut stream: Stream,
        port: &Port,
        trusted: &[TrustedProxy],
        excess: usize,
    ) {
        (self.on_refused)(ErrorCode::TooManyConnections, port.peer(&stream).address());
        if excess > REFUSED_AT_ONCE {
            return;
        }
        if !port.is_encrypted() {
            return self.too_many_connections.send(&mut stream).await;
        }
        let handshake = Counted::new(&self.handshakes);
        if handshake.count() > HANDSHAKES_AT_ONCE {
            return;
        }
        let Ok(accepted) = port.accept(stream, trusted, REFUSAL_TIMEOUT).await else { return };
        let AcceptedConnection { mut stream, ahead, is_http2, .. } = accepted;
        if !is_http2 {
            return self.too_many_connections.send(&mut stream).await;
        }
        let response = self.too_many_connections.to_response();
        let refused = http2::refuse(PrefixedStream { ahead, stream }, response);
        if tokio::time::timeout(REFUSAL_TIMEOUT, refused).await.is_err() {
            tracing::debug!("refused client did not close in time");
        }
    }
}
