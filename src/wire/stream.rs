//! Streams that wrap another one: a read with an upper bound, without a copy in between, and the
//! writes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// Forwards `poll_write`, `poll_write_vectored`, `is_write_vectored` and `poll_flush` to `$stream`,
/// an expression of `self`. Without the vectored ones a response would be copied into one piece.
macro_rules! forward_writes {
    ($self:ident $($mutable:ident)? => $stream:expr) => {
        fn poll_write(
            $($mutable)? $self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut $stream).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            $($mutable)? $self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            parts: &[std::io::IoSlice<'_>],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut $stream).poll_write_vectored(cx, parts)
        }

        fn is_write_vectored(&$self) -> bool {
            $stream.is_write_vectored()
        }

        fn poll_flush(
            $($mutable)? $self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut $stream).poll_flush(cx)
        }
    };
}
pub(crate) use forward_writes;

/// Reads up to `limit` bytes to the end of `into`; zero bytes mean that the other side closed.
pub(crate) fn poll_read_into<S: AsyncRead + ?Sized>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
    limit: usize,
) -> Poll<io::Result<usize>> {
    poll_read_buf(stream, cx, &mut into.limit(limit))
}
