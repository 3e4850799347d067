//! The rule for which failures are safe to retry.
//!
//! An inference request is not idempotent: running it twice costs GPU time twice, and a hosted
//! engine bills it twice. A retry is therefore safe only when no engine can have started on the
//! request: it was never written whole, the backend cannot have read all of it, or the backend
//! refused it or failed before any work. A backend that read the whole request and closed without a
//! response may have started. Its engine is most often dead, and an engine gives up the work of a
//! closed connection: such a request goes once to another backend, unless it has effects besides
//! its response (`routing.retry_unanswered`). A timeout is never retried: the engine is probably
//! still computing, and the client has already waited.
//!
//! [`request_is_unread`] must err on one side only: a wrong `true` runs a request twice, a wrong
//! `false` merely reports a 502 that a retry could have avoided. The kernel's report (TCP_INFO) is
//! certain in two cases:
//!
//! - Bytes of the request were never sent, because the backend's receive window was full. They
//!   never left this machine, however the connection ended.
//! - The backend closed with a FIN, and the end of the request is not acknowledged. A FIN carries
//!   an acknowledgement of everything that arrived before it, so the end of the request arrived
//!   after the backend had closed.
//!
//! A reset proves nothing: it discards the acknowledgement it carries, and a backend may
//! acknowledge up to half a second after it has read. An acknowledged request is no proof of having
//! been read either, but it may have been. Both are ambiguous.

use penstock_core::routing::RetrySafety;

use super::connection::Connection;
use super::failure::{AttemptFailure, ConnectError, ConnectionEnd, ExchangeError, HoldReason};
use super::http2::stream::Http2BackendStream;
use super::shortage::Shortage;

/// The rule for each failure.
pub(crate) fn safety_of(failure: &AttemptFailure) -> RetrySafety {
    match failure {
        // Descriptors and memory are short for every backend; ports only for one address.
        AttemptFailure::NotSent(ConnectError::OutOf(Shortage::Descriptors | Shortage::Memory)) => {
            RetrySafety::Unsafe
        }
        AttemptFailure::NotSent(_) | AttemptFailure::NoResponse { is_unread: true, .. } => {
            RetrySafety::Safe
        }
        AttemptFailure::NoResponse { is_unread: false, .. } => RetrySafety::IfLostAllowed,
        AttemptFailure::Held(refusal, _) => match refusal {
            HoldReason::RateLimited
            | HoldReason::TooLarge
            | HoldReason::Overloaded
            | HoldReason::KeyRejected
            | HoldReason::KeyInvalid
            | HoldReason::Forbidden
            | HoldReason::ModelMissing
            | HoldReason::OperationMissing
            | HoldReason::CapabilityMissing
            | HoldReason::ContextTooShort(_)
            | HoldReason::NoWork
            | HoldReason::NoResult
            | HoldReason::ServerError => RetrySafety::Safe,
            // The request is at fault: every other backend would refuse it, too.
            HoldReason::Client => RetrySafety::Unsafe,
        },
        AttemptFailure::TimedOut(_)
        | AttemptFailure::BadResponse(_)
        | AttemptFailure::ClientGone => RetrySafety::Unsafe,
    }
}

/// Returns whether the backend cannot have read the whole request that `error` ended. Over HTTP/2
/// the backend reports it (`REFUSED_STREAM`, `GOAWAY`), otherwise the kernel knows what was sent
/// and acknowledged.
pub(crate) fn request_is_unread(connection: &Connection, error: ExchangeError) -> bool {
    let ExchangeError::Ended(end) = error else {
        return matches!(error, ExchangeError::ClosedWhileSending);
    };
    if let Some(stream) = connection.stream.as_any().downcast_ref::<Http2BackendStream>() {
        return stream.was_refused();
    }
    connection.has_unsent_bytes()
        || (end == ConnectionEnd::Closed && connection.has_unacknowledged_bytes())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use socket2::SockRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::http1::Exchange;
    use super::super::interrupt::{ClientWatch, Interrupts};
    use super::super::pool::ConnectionPool;
    use super::*;
    use crate::upstream::deadline::Deadline;
    use penstock_api::ErrorCode;
    use penstock_clock::now;
    use penstock_config::{Config, Environment, LimitsConfig};
    use penstock_core::fleet::Fleet;

    struct Patient;

    impl ClientWatch for Patient {
        fn poll_gone(&self, _: &mut Context<'_>) -> Poll<()> {
            Poll::Pending
        }

        fn poll_flush(&self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    const LIMIT: Duration = Duration::from_secs(5);

    /// A connection and the backend's side of it.
    async fn connected() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
        let yaml = format!("backends: [{{ url: 'http://{address}', engine: vllm }}]");
        let config = Config::parse(&yaml, "x", Path::new("."), &Environment::default()).unwrap();
        let backend = Fleet::new(&config).topology().backends[0].clone();
        backend.state.addresses.publish(vec![address]);
        let pool = ConnectionPool::new(&LimitsConfig::default());
        let connection = pool.connect(&backend, LIMIT).await.unwrap();
        (connection, listener.accept().await.unwrap().0)
    }

    fn exchange(connection: Connection) -> Exchange<'static> {
        let deadline = Deadline::new(now(), LIMIT, ErrorCode::ResponseTimeout, None);
        Exchange::new(connection, Interrupts::new(&Patient, deadline))
    }

    /// Sends a request of `length` bytes and returns whether its end proves that it was not read.
    async fn is_unread(exchange: &mut Exchange<'_>, length: usize) -> (ExchangeError, bool) {
        let error =
            exchange.request([&vec![b'x'; length], &[], &[], &[], &[], &[]]).await.unwrap_err();
        (error, request_is_unread(&exchange.connection, error))
    }

    fn reset(stream: TcpStream) {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Reads a request of ten bytes and responds to it, so that the connection can be reused.
    async fn respond(exchange: &mut Exchange<'_>, backend: &mut TcpStream) {
        let responding = async {
            backend.read_exact(&mut [0; 10]).await.unwrap();
            backend.write_all(b"HTTP/1.1 204 No\r\n\r\n").await.unwrap();
        };
        let request: [&[u8]; 6] = [b"0123456789", &[], &[], &[], &[], &[]];
        let (response, ()) = tokio::join!(exchange.request(request), responding);
        assert_eq!(response.unwrap().status, 204);
    }

    const CLOSED: ExchangeError = ExchangeError::Ended(ConnectionEnd::Closed);
    const RESET: ExchangeError = ExchangeError::Ended(ConnectionEnd::Reset);

    #[tokio::test]
    async fn request_written_after_the_backend_closed_is_unread() {
        for is_reused in [false, true] {
            let (connection, mut backend) = connected().await;
            let mut exchange = exchange(connection);
            if is_reused {
                respond(&mut exchange, &mut backend).await;
            }
            drop(backend);
            exchange.connection.is_reused = is_reused;
            let expected = if is_reused { ExchangeError::ClosedWhileSending } else { CLOSED };
            assert_eq!(is_unread(&mut exchange, 300).await, (expected, true));
            // The same when the close crosses the request.
            exchange.connection.is_reused = false;
            assert!(is_unread(&mut exchange, 300).await.1);
        }
    }

    #[tokio::test]
    async fn request_that_was_read_is_never_unread() {
        for is_reused in [false, true] {
            for resets in [false, true] {
                let (connection, mut backend) = connected().await;
                let mut exchange = exchange(connection);
                if is_reused {
                    respond(&mut exchange, &mut backend).await;
                }
                let reading = async move {
                    backend.read_exact(&mut [0; 300]).await.unwrap();
                    if resets { reset(backend) } else { drop(backend) }
                };
                let (ended, ()) = tokio::join!(is_unread(&mut exchange, 300), reading);
                let expected = if resets { RESET } else { CLOSED };
                assert_eq!(ended, (expected, false), "reused: {is_reused}");
            }
        }
    }

    #[tokio::test]
    async fn request_that_never_left_the_send_buffer_is_unread() {
        let (connection, mut backend) = connected().await;
        let mut exchange = exchange(connection);
        let stopping = async move {
            // The backend's receive window is full from the start, and the rest stays on this side.
            backend.read_exact(&mut [0; 10]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            reset(backend);
        };
        let (ended, ()) = tokio::join!(is_unread(&mut exchange, 600 << 10), stopping);
        assert_eq!(ended, (RESET, true), "written whole, not sent whole");
    }

    #[tokio::test]
    async fn idle_connection_that_the_backend_closed_is_not_reused() {
        let (connection, mut backend) = connected().await;
        let pool = ConnectionPool::new(&LimitsConfig::default());
        let config = "backends: [{ url: 'http://127.0.0.1:1', engine: vllm }]";
        let config = Config::parse(config, "x", Path::new("."), &Environment::default()).unwrap();
        let state = &Fleet::new(&config).topology().backends[0].state.clone();
        // The same epoch as that of the connection.
        state.addresses.publish(vec![([127, 0, 0, 1], 1).into()]);
        let mut exchange = self::exchange(connection);
        respond(&mut exchange, &mut backend).await;
        pool.keep(state, exchange.connection, Some(Duration::from_secs(1)));
        let in_time = now().after(Duration::from_millis(700));
        let reused = pool.take_idle(state, in_time, Duration::ZERO).unwrap();
        assert!(reused.is_reused);
        pool.keep(state, reused, Some(Duration::from_secs(1)));
        let late = now().after(Duration::from_millis(900));
        assert!(
            pool.take_idle(state, late, Duration::ZERO).is_none(),
            "the backend may close it any moment"
        );
        let (connection, backend) = connected().await;
        pool.keep(state, connection, None);
        drop(backend);
        // The runtime has had no turn to be notified: only the kernel knows.
        let mut exchange = self::exchange(pool.take_idle(state, now(), Duration::ZERO).unwrap());
        let ended = is_unread(&mut exchange, 300).await;
        assert_eq!(ended, (ExchangeError::ClosedWhileSending, true), "the FIN has arrived");
    }

    #[test]
    fn only_requests_no_engine_can_have_started_are_safe_to_retry() {
        let of = |failure: AttemptFailure| safety_of(&failure);
        assert_eq!(of(AttemptFailure::NotSent(ConnectError::Refused)), RetrySafety::Safe);
        let out_of = |shortage| of(AttemptFailure::NotSent(ConnectError::OutOf(shortage)));
        assert_eq!(out_of(Shortage::Descriptors), RetrySafety::Unsafe);
        assert_eq!(out_of(Shortage::Ports), RetrySafety::Safe, "towards one address");
        for end in [ConnectionEnd::Closed, ConnectionEnd::Reset] {
            assert_eq!(of(AttemptFailure::NoResponse { end, is_unread: true }), RetrySafety::Safe);
            let unanswered = AttemptFailure::NoResponse { end, is_unread: false };
            assert_eq!(of(unanswered), RetrySafety::IfLostAllowed);
        }
        let timeout = AttemptFailure::TimedOut(ErrorCode::FirstTokenTimeout);
        assert_eq!(of(timeout), RetrySafety::Unsafe);
        assert_eq!(of(AttemptFailure::ClientGone), RetrySafety::Unsafe);
    }
}
