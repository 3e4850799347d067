//! Which header fields go where: the head a backend gets, and what every answer carries.

use std::io::Write;

use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

use super::trace::{TRACEPARENT, TRACESTATE};
use crate::api::TraceContext;
use crate::config::{AuthorizationPolicy, BackendConfig};

/// `x-request-id`.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `x-api-key`, Anthropic's way to send a key.
pub(super) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Fields that speak of one connection only (RFC 9110 §7.6.1) and never travel on.
pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    *name == header::CONNECTION
        || *name == header::TRANSFER_ENCODING
        || *name == header::TE
        || *name == header::TRAILER
        || *name == header::UPGRADE
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "proxy-authenticate")
}

/// Fields of a request that penstock writes itself or keeps back.
fn is_replaced(name: &HeaderName) -> bool {
    *name == header::HOST
        || *name == header::CONTENT_LENGTH
        || *name == header::EXPECT
        // Answers are watched for tokens and usage, so they must come uncompressed.
        || *name == header::ACCEPT_ENCODING
        || *name == header::PROXY_AUTHORIZATION
        || *name == REQUEST_ID
}

/// Writes the head a backend gets: the client's fields without those of its own connection, one
/// Content-Length, and credentials by the backend's policy.
pub(super) fn write_request_head(
    out: &mut Vec<u8>,
    target: &str,
    client: &HeaderMap,
    backend: &BackendConfig,
    own: OwnFields<'_>,
) {
    let base_path = backend.url.base_path.as_str();
    for part in ["POST ", base_path, target, " HTTP/1.1\r\nhost: ", own.authority] {
        out.extend_from_slice(part.as_bytes());
    }
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"\r\ncontent-length: ");
    out.extend_from_slice(digits.format(own.body_length).as_bytes());
    out.extend_from_slice(b"\r\nx-request-id: ");
    out.extend_from_slice(own.request_id.as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some((trace, span)) = own.trace {
        // Writing to memory does not fail.
        write!(out, "traceparent: {}\r\n", trace.traceparent(span)).unwrap_or_default();
    }
    // The client's state belongs to the client's trace.
    let is_followed = own.trace.is_none_or(|(trace, _)| trace.caller.is_some());
    let nominated = client.get(header::CONNECTION).and_then(|value| value.to_str().ok());
    let is_nominated = |name: &HeaderName| {
        nominated.is_some_and(|tokens| {
            tokens.split(',').any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
        })
    };
    let passes_key = backend.authorization == AuthorizationPolicy::Pass;
    for (name, value) in client {
        let is_key = *name == header::AUTHORIZATION || *name == API_KEY;
        let is_traced =
            (*name == TRACEPARENT && own.trace.is_some()) || (*name == TRACESTATE && !is_followed);
        let is_kept_back = is_hop_by_hop(name) || is_replaced(name) || is_traced;
        if is_kept_back || is_nominated(name) || (is_key && !passes_key) {
            continue;
        }
        write_field(out, name.as_str(), value.as_bytes());
    }
    if let (AuthorizationPolicy::Replace, Some(key)) = (backend.authorization, &backend.api_key) {
        if own.key_in_anthropic_style {
            write_field(out, "x-api-key", key.reveal().as_bytes());
        }
        out.extend_from_slice(b"authorization: Bearer ");
        out.extend_from_slice(key.reveal().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// What penstock itself puts into a request's head.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnFields<'a> {
    pub(super) authority: &'a str,
    pub(super) body_length: usize,
    pub(super) request_id: &'a HeaderValue,
    /// The trace that is handed on, and the attempt's own span in it.
    pub(super) trace: Option<(TraceContext, u64)>,
    pub(super) key_in_anthropic_style: bool,
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
