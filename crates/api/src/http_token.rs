//! The tokens of HTTP: methods, names of fields and of cookies.

/// Returns whether a byte may be in a token (RFC 9110 §5.6.2).
#[inline]
pub fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
