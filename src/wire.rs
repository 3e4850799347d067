//! HTTP/1.1 on the wire, as both sides of the proxy need it: chunked transfer coding, bounded reads,
//! and the field names that clients and backends share. Knows neither clients nor backends.

pub mod chunked;
mod read;

pub(crate) use read::poll_read_into;

use http::header::HeaderName;

/// `x-forwarded-for`: client addresses, one added by each proxy on the way.
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
