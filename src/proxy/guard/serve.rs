//! From an accepted connection to the HTTP it speaks.

use std::sync::Arc;

use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;

use super::port::{Port, Rejoined, Unwelcome, Welcomed};
use super::{ConnectionLimits, GuardStream, Guarded};
use crate::proxy::closings::ClosedFor;
use crate::proxy::http2;

impl<A: HttpServerApp + Send + Sync + 'static> Guarded<A> {
    /// Hands a connection to Pingora, its stream wrapped.
    pub(super) async fn serve_http1(
        &self,
        welcomed: Welcomed,
        limits: ConnectionLimits,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let guarded = GuardStream::new(welcomed, limits);
        self.inner.process_new(Box::new(guarded), shutdown).await
    }

    /// Serves a connection on which something comes before HTTP/1.1, or instead of it.
    pub(super) async fn serve_welcomed(
        &self,
        stream: Stream,
        (port, limits): (&Port, ConnectionLimits),
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let generation = self.proxy.generation();
        let trusted = &generation.config.server.trusted_proxies;
        let welcomed = match port.welcome(stream, trusted, limits.head_time).await {
            Ok(welcomed) => welcomed,
            Err(reason) => {
                self.note_unwelcome(reason);
                return None;
            }
        };
        drop(generation);
        if !welcomed.is_http2 {
            return self.serve_http1(welcomed, limits, shutdown).await;
        }
        let Welcomed { stream, ahead, origin, .. } = welcomed;
        let connection = http2::Connection { proxy: Arc::clone(&self.proxy), origin };
        connection.serve(&self.inner, Rejoined { ahead, stream }, shutdown).await;
        None
    }

    fn note_unwelcome(&self, reason: Unwelcome) {
        let reason = match reason {
            Unwelcome::Silent => return,
            Unwelcome::TooSlow => ClosedFor::TooSlow,
            Unwelcome::ProxyHeader => ClosedFor::ProxyHeader,
            Unwelcome::Tls => ClosedFor::Tls,
        };
        self.proxy.closings.note(reason);
    }
}
