//! Reads a request's body once and finds the facts a decision needs, without an allocation and
//! without a tree. It validates whatever it walks over: a body that no backend could read is
//! refused here. Sits above `api`; the proxy and `explain` call [`scan`].

mod bytes;
mod cursor;
mod decode;
mod json;
mod marks;
mod multipart;
mod outline;
mod part;
mod pieces;
mod profile;
mod prompt;
mod scalar;
mod sink;
mod sse;
mod text;
mod unescape;
mod usage;

pub use cursor::Syntax;
pub use multipart::MultipartSyntax;
pub use outline::Outline;
pub use profile::{PromptPlaces, RequestProfile, RequestRequirements, TokenEstimate};
pub use sink::OutlineSink;
pub use sse::{EventScanner, Progress};
pub use usage::{Usage, find_usage};

use crate::api::{BodyFormat, ErrorCode, Operation};
use crate::units::{Timestamp, TokenCount};

/// Characters (or bytes) a token stands for.
const TEXT_PER_TOKEN: u64 = 4;

/// What a scan is told besides the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanOptions {
    /// How the prompt's length is estimated.
    pub estimate: TokenEstimate,
    /// When the request arrived.
    pub arrived_at: Timestamp,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self { estimate: TokenEstimate::Chars, arrived_at: Timestamp::default() }
    }
}

/// Why a body is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// JSON that is not JSON, or not an object.
    #[error("the body is not valid JSON: expected {expected} at byte {offset}")]
    Malformed {
        /// Where, in bytes from the start of the body.
        offset: usize,
        /// What should be there.
        expected: Syntax,
    },
    /// JSON that stops too early.
    #[error("the body is not valid JSON: it ends where {expected} should follow")]
    Truncated {
        /// What should follow.
        expected: Syntax,
    },
    /// Bytes that are not UTF-8.
    #[error("the body is not valid UTF-8 at byte {offset}")]
    InvalidUtf8 {
        /// Where, in bytes from the start of the body.
        offset: usize,
    },
    /// A form that is not `multipart/form-data`.
    #[error("the body is not valid multipart/form-data: expected {expected} at byte {offset}")]
    MalformedForm {
        /// Where, in bytes from the start of the body.
        offset: usize,
        /// What should be there.
        expected: MultipartSyntax,
    },
    /// A field that is read has the wrong type.
    #[error("'{field}' must be {expected}")]
    WrongType {
        /// The field.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// No `model`.
    #[error("the request names no model: set 'model'")]
    MissingModel,
    /// A `model` without a name in it.
    #[error("the request names no model: 'model' is empty")]
    EmptyModel,
}

impl ScanError {
    fn at(offset: usize, expected: Syntax, body: &[u8]) -> Self {
        if offset < body.len() {
            Self::Malformed { offset, expected }
        } else {
            Self::Truncated { expected }
        }
    }

    /// The code the client is shown.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed { .. }
            | Self::Truncated { .. }
            | Self::InvalidUtf8 { .. }
            | Self::MalformedForm { .. } => ErrorCode::InvalidJson,
            Self::WrongType { .. } => ErrorCode::InvalidType,
            Self::MissingModel | Self::EmptyModel => ErrorCode::MissingModel,
        }
    }

    /// The field the client got wrong, where there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::WrongType { field, .. } => Some(field),
            Self::MissingModel | Self::EmptyModel => Some("model"),
            Self::Malformed { .. }
            | Self::Truncated { .. }
            | Self::InvalidUtf8 { .. }
            | Self::MalformedForm { .. } => None,
        }
    }
}

/// Scans the body of a request; `content_type` is that header's value.
///
/// # Errors
/// [`ScanError`] when the body is malformed, names no model, or gives a field that is read a
/// wrong type.
pub fn scan(
    operation: Operation,
    content_type: Option<&str>,
    body: &[u8],
    options: ScanOptions,
) -> Result<RequestProfile, ScanError> {
    match operation.row().body {
        BodyFormat::Json => json::scan(operation, body, options),
        BodyFormat::Multipart => multipart::scan(operation, content_type, body, options),
    }
}

/// Whether a model's name holds nothing but white space.
fn is_blank(raw: &[u8], escaped: bool) -> bool {
    let starts_visibly = raw.first().is_some_and(u8::is_ascii_graphic);
    (escaped || !starts_visibly) && unescape::Unescape::new(raw).all(char::is_whitespace)
}

fn to_tokens(text: u64) -> TokenCount {
    TokenCount(u32::try_from(text / TEXT_PER_TOKEN).unwrap_or(u32::MAX))
}

/// An offset in a body; bodies that do not fit are refused long before.
fn to_offset(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
