//! The guarded connection as a Pingora stream. Reads continue after the head, which Pingora has
//! already.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType, raw_connect::ProxyDigest,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::GuardedStream;
use crate::wire::forward_writes;

impl AsyncRead for GuardedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.0.inner.lock().poll_rest(cx, out)
    }
}

impl AsyncWrite for GuardedStream {
    forward_writes!(self => self.0.inner.lock().stream);

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.inner.lock().stream).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for GuardedStream {
    async fn shutdown(&mut self) {
        let closed = std::future::poll_fn(|cx| Pin::new(&mut *self).poll_shutdown(cx)).await;
        if let Err(error) = closed {
            tracing::debug!(%error, "closing a client connection");
        }
    }
}

impl UniqueID for GuardedStream {
    fn id(&self) -> UniqueIDType {
        self.0.inner.lock().stream.id()
    }
}

impl Ssl for GuardedStream {
    fn get_ssl_digest(&self) -> Option<Arc<pingora::protocols::tls::SslDigest>> {
        self.0.inner.lock().stream.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<pingora::protocols::ALPN> {
        self.0.inner.lock().stream.selected_alpn_proto()
    }
}

impl GetTimingDigest for GuardedStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.0.inner.lock().stream.get_timing_digest()
    }
}

impl GetProxyDigest for GuardedStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.0.inner.lock().stream.get_proxy_digest()
    }
}

impl GetSocketDigest for GuardedStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.0.inner.lock().stream.get_socket_digest()
    }
}

#[async_trait]
impl Peek for GuardedStream {}
