//! Which failures are safe to retry.
//!
//! An inference request is not idempotent: running it twice costs GPU time twice, and a hosted engine
//! bills it twice. A retry is therefore safe only when no engine can have started on the request: it
//! was never written whole, the backend cannot have read all of it, or the backend refused it
//! outright with 429 or 503. A backend that read the whole request and closed without a response may
//! have started; that case is the operator's choice (`routing.retry_unanswered`). A timeout is never
//! retried: the engine is probably still computing, and the client has already waited.
//!
//! [`request_is_unread`] must err on one side only: a wrong `true` runs a request twice, a wrong
//! `false` merely reports a 502 that a retry could have avoided.

use pingora::protocols::l4::ext::get_tcp_info;

use super::failure::Failure;
use super::http2::stream::Http2Stream;
use super::pool::Connection;

/// Whether the same request may be sent to another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetrySafety {
    /// No engine can have started on it.
    Safe,
    /// An engine may have started on it: only where the operator allows it.
    IfUnansweredAllowed,
    /// Never.
    Unsafe,
}

impl RetrySafety {
    /// The rule for each failure.
    pub(crate) fn of(failure: &Failure) -> Self {
        match failure {
            Failure::NotSent(_)
            | Failure::Refused(_)
            | Failure::ServerError(_)
            | Failure::NoResponse { is_unread: true } => Self::Safe,
            Failure::NoResponse { is_unread: false } => Self::IfUnansweredAllowed,
            Failure::TimedOut(_) | Failure::BadResponse(_) | Failure::ClientGone => Self::Unsafe,
        }
    }
}

/// Whether the backend cannot have read the whole request of `sent` bytes: over HTTP/2 it says so
/// (`REFUSED_STREAM`, `GOAWAY`), over plain HTTP/1.1 the kernel knows how many bytes were
/// acknowledged.
pub(crate) fn request_is_unread(connection: &Connection, sent: usize) -> bool {
    if let Some(stream) = connection.stream.as_any().downcast_ref::<Http2Stream>() {
        return stream.was_refused();
    }
    // The kernel counts from the start of the connection, and counts records under TLS: only on a
    // fresh plain connection are its bytes those of this request.
    !connection.is_tls
        && !connection.is_reused
        && get_tcp_info(connection.stream.id())
            .is_ok_and(|info| info.tcpi_bytes_acked < sent as u64)
}

#[cfg(test)]
mod tests {
    use super::super::failure::ConnectError;
    use super::*;
    use crate::api::ErrorCode;

    #[test]
    fn only_requests_no_engine_can_have_started_are_safe_to_retry() {
        let of = |failure: Failure| RetrySafety::of(&failure);
        assert_eq!(of(Failure::NotSent(ConnectError::Refused)), RetrySafety::Safe);
        assert_eq!(of(Failure::NoResponse { is_unread: true }), RetrySafety::Safe);
        let unanswered = Failure::NoResponse { is_unread: false };
        assert_eq!(of(unanswered), RetrySafety::IfUnansweredAllowed);
        let timeout = Failure::TimedOut(ErrorCode::FirstTokenTimeout);
        assert_eq!(of(timeout), RetrySafety::Unsafe);
        assert_eq!(of(Failure::ClientGone), RetrySafety::Unsafe);
    }
}
