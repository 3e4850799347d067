//! Names of header fields, and which of them never travel past one connection.

use http::header::{self, HeaderName};

/// `x-request-id`.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `x-api-key`, Anthropic's way to send a key.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Hop-by-hop fields (RFC 9110 §7.6.1): they concern one connection and are never forwarded.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == header::CONNECTION
        || *name == header::TRANSFER_ENCODING
        || *name == header::TE
        || *name == header::TRAILER
        || *name == header::UPGRADE
        || matches!(
            name.as_str(),
            "keep-alive" | "proxy-connection" | "proxy-authenticate" | "http2-settings"
        )
}
