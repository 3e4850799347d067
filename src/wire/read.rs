//! A read with an upper bound, without a copy in between.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// Reads up to `limit` bytes to the end of `into`; zero bytes mean that the other side closed.
pub(crate) fn poll_read_into<S: AsyncRead + ?Sized>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
    limit: usize,
) -> Poll<io::Result<usize>> {
    poll_read_buf(stream, cx, &mut into.limit(limit))
}
