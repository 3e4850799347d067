//! The credentials that callers of both ports send.

use http::{HeaderMap, header};

/// Returns the token of `Authorization: Bearer TOKEN`; the scheme is case-insensitive (RFC 9110
/// §11.1).
pub fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    token_of(headers.get(header::AUTHORIZATION)?.as_bytes())
}

/// Returns the token in the value of an `Authorization` header.
pub fn token_of(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    // More than one space may follow the scheme (RFC 9110 §11.4).
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
