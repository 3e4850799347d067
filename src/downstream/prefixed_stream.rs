//! A stream that starts with bytes that were read from it before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use penstock_api::slices::split_at;
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::forward_writes;

/// Reads `ahead` first, then from `stream`. Writes go to `stream`.
pub(crate) struct PrefixedStream {
    pub(crate) ahead: BytesMut,
    pub(crate) stream: Stream,
}

impl AsyncRead for PrefixedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        copy_ahead(&mut self.ahead, out);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PrefixedStream {
    forward_writes!(self mut => self.stream);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Moves as much of `ahead` to `out` as fits.
pub(crate) fn copy_ahead(ahead: &mut BytesMut, out: &mut ReadBuf<'_>) {
    let count = ahead.len().min(out.remaining());
    let (first, _rest) = split_at(ahead, count);
    out.put_slice(first);
    ahead.advance(count);
}
