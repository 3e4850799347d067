//! HTTP on the wire, as both sides of the proxy need it: chunked transfer coding, bounded reads,
//! work on large bodies, and the field names that clients and backends share. Knows neither clients
//! nor backends.

pub(crate) mod body_budget;
pub mod chunked;
pub(crate) mod content_decoder;
mod forward_writes;
pub(crate) mod long_work;
mod read;

pub(crate) use forward_writes::forward_writes;
pub(crate) use read::poll_read_into;

use http::header::HeaderName;

/// `x-forwarded-for`: client addresses, one added by each proxy on the way.
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The bytes that an HTTP/2 client sends before its first frame (RFC 9113 §3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
