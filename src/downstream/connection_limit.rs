//! Refuses connections over `limits.connections`: with a 503 as long as that is cheap, else by
//! closing them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use penstock_api::ErrorCode;
use penstock_config::TrustedProxy;
use pingora::protocols::Stream;

use super::counted::Counted;
use super::http2;
use super::listener::{AcceptedConnection, Port};
use super::prefixed_stream::PrefixedStream;
use super::response_writer::{REFUSAL_TIMEOUT, RawResponse};

/// The most connections that get a 503 at one time; further ones are closed without a response.
const MAX_REFUSED_AT_ONCE: usize = 1024;
/// The most TLS handshakes at one time that only serve to send a 503: they cost more than the
/// response.
const MAX_HANDSHAKES_AT_ONCE: usize = 16;

/// The number of connections over a limit, and which limit it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Excess {
    /// `limits.connections`.
    OfConnections(usize),
    /// The limit of open files, which leaves room for fewer connections.
    OfOpenFiles(usize),
}

impl Excess {
    /// Returns the error that a refused client gets.
    pub(super) fn code(self) -> ErrorCode {
        match self {
            Self::OfConnections(_) => ErrorCode::TooManyConnections,
            Self::OfOpenFiles(_) => ErrorCode::OutOfResources,
        }
    }
}

/// Responds to connections over the limit.
pub(crate) struct ConnectionLimit {
    too_many_connections: RawResponse,
    too_few_files: RawResponse,
    handshakes: Arc<AtomicUsize>,
}

impl ConnectionLimit {
    pub(crate) fn new() -> Self {
        let message = "Too many connections (limits.connections)";
        let too_many_connections = RawResponse::new(ErrorCode::TooManyConnections, message);
        let message = "Too many connections for the limit of open files (LimitNOFILE, ulimit -n)";
        let too_few_files = RawResponse::new(ErrorCode::OutOfResources, message);
        Self { too_many_connections, too_few_files, handshakes: Arc::default() }
    }

    pub(crate) async fn refuse(
        &self,
        mut stream: Stream,
        port: &Port,
        trusted: &[TrustedProxy],
        excess: Excess,
    ) {
        let (excess, refusal) = match excess {
            Excess::OfConnections(excess) => (excess, &self.too_many_connections),
            Excess::OfOpenFiles(excess) => (excess, &self.too_few_files),
        };
        if excess > MAX_REFUSED_AT_ONCE {
            return;
        }
        if !port.is_encrypted() {
            return refusal.send(&mut stream).await;
        }
        let handshake = Counted::new(&self.handshakes);
        if handshake.count() > MAX_HANDSHAKES_AT_ONCE {
            return;
        }
        let Ok(accepted) = port.accept(stream, trusted, REFUSAL_TIMEOUT).await else { return };
        let AcceptedConnection { mut stream, ahead, is_http2, .. } = accepted;
        if !is_http2 {
            return refusal.send(&mut stream).await;
        }
        let response = refusal.to_response();
        let refused = http2::refuse(PrefixedStream { ahead, stream }, response);
        if tokio::time::timeout(REFUSAL_TIMEOUT, refused).await.is_err() {
            tracing::debug!("refused client did not close in time");
        }
    }
}
