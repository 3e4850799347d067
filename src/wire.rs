//! HTTP on the wire, as both sides of the proxy need it: chunked transfer coding, bounded reads,
//! work on large bodies, and the field names that clients and backends share. Knows neither clients
//! nor backends.

pub(crate) mod body_budget;
pub mod chunked;
pub(crate) mod content_decoder;
mod stream;

pub(crate) use stream::{forward_writes, poll_read_into};

use http::header::HeaderName;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// `x-forwarded-for`: client addresses, one added by each proxy on the way.
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The bytes that an HTTP/2 client sends before its first frame (RFC 9113 §3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The number of bytes above which work leaves the event loop: a conversion takes some 10 ms for a
/// MiB.
const MAX_BYTES_IN_LOOP: usize = 256 * 1024;

/// Does work on `bytes` bytes of a body. During long work, another thread serves the other requests
/// of this one.
pub(crate) fn beside_the_loop<R>(bytes: usize, work: impl FnOnce() -> R) -> R {
    // `block_in_place` panics on a runtime of one thread.
    let can_move = || {
        Handle::try_current().is_ok_and(|own| own.runtime_flavor() == RuntimeFlavor::MultiThread)
    };
    if bytes > MAX_BYTES_IN_LOOP && can_move() { block_in_place(work) } else { work() }
}
