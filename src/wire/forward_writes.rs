//! The writes of a stream that wraps another one.

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
