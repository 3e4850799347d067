//! HTTP on the wire, as both sides of the proxy need it: chunked transfer coding, bounded reads,
//! and the field names that clients and backends share. Knows neither clients nor backends.

pub(crate) mod body_budget;
pub mod chunked;
pub(crate) mod content_coding;
pub(crate) mod content_decoder;
mod read;

pub(crate) use read::poll_read_into;

use http::header::HeaderName;

/// `x-forwarded-for`: client addresses, one added by each proxy on the way.
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The bytes that an HTTP/2 client sends before its first frame (RFC 9113 §3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Splits bytes at a position measured on the same bytes. A position past the end is a bug in the
/// caller: it fails in tests, and otherwise returns all bytes and an empty rest.
pub(crate) fn split_at(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    debug_assert!(at <= bytes.len(), "split at {at} of {} bytes", bytes.len());
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

/// The bytes from `at` on. The position must be measured on the same bytes: see [`split_at`].
#[inline(always)]
pub(crate) fn after(bytes: &[u8], at: usize) -> &[u8] {
    debug_assert!(at <= bytes.len(), "from {at} of {} bytes", bytes.len());
    bytes.get(at..).unwrap_or(&[])
}

/// The bytes before `at`. The position must be measured on the same bytes: see [`split_at`].
#[inline(always)]
pub(crate) fn before(bytes: &[u8], at: usize) -> &[u8] {
    debug_assert!(at <= bytes.len(), "up to {at} of {} bytes", bytes.len());
    bytes.get(..at).unwrap_or(&[])
}

/// The bytes from `start` to `end`. The positions must be measured on the same bytes: see
/// [`split_at`].
#[inline(always)]
pub(crate) fn between(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    debug_assert!(start <= end && end <= bytes.len(), "{start}..{end} of {} bytes", bytes.len());
    bytes.get(start..end).unwrap_or(&[])
}
