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
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { ahead, stream } = self.get_mut();
        poll_read_after(ahead, stream, cx, out)
    }
}

impl AsyncWrite for PrefixedStream {
    forward_writes!(self mut => self.stream);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Reads as much of `ahead` as fits, or from `stream` if it is empty.
pub(super) fn poll_read_after(
    ahead: &mut BytesMut,
    stream: &mut Stream,
    cx: &mut Context<'_>,
    out: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if ahead.is_empty() {
        return Pin::new(stream).poll_read(cx, out);
    }
    let count = ahead.len().min(out.remaining());
    let (first, _rest) = split_at(ahead, count);
    out.put_slice(first);
    ahead.advance(count);
    Poll::Ready(Ok(()))
}
