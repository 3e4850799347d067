//! Extracts what a routing decision needs from a request body in one pass: [`scan`]. The pass
//! validates everything it reads, so a body that no backend could parse is rejected here.
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod blank;
mod bytes;
mod content;
mod cursor;
mod decode;
mod definitions;
mod density;
mod failed_choice;
mod file;
mod further_models;
mod ids;
mod json;
mod json_line;
mod limits;
mod marker;
mod marks;
mod member_name;
mod missing_result;
mod multipart;
mod ollama;
mod outline;
mod part;
mod pieces;
mod profile;
mod prompt;
mod prompt_field;
mod prompt_limit;
mod prompt_list;
mod reported_failure;
mod response_id;
mod scalar;
mod script;
mod skip;
mod sse;
mod stream_options;
mod text;
mod tool_call;
mod truncation;
mod twin;
mod unescape;
mod usage;
mod usage_bounds;
mod weight;
mod whole_result;

pub use blank::may_be_blank;
pub use cursor::Syntax;
pub use failed_choice::{has_failed_choice, has_failed_status};
pub use further_models::find_further_model;
pub use ids::StoredIds;
pub use missing_result::{is_void, lacks_result, may_report_failure};
pub use multipart::MultipartSyntax;
pub use outline::Outline;
pub use pieces::OutlineSink;
pub use profile::{
    ModelForm, PromptPlaces, RequestProfile, RequestRequirements, ResidencyChange, TokenEstimate,
    UsageEdit,
};
pub use prompt_limit::PromptLimit;
pub use reported_failure::{FirstEvent, is_switched_off, reports_failed_result, reports_failure};
pub use response_id::ResponseIdFinder;
pub use sse::{EventScanner, Progress};
pub use twin::{check_twins, deciding_in_query};
pub use usage::{CutCounts, Usage, find_counts, find_usage};
pub use usage_bounds::{Passed, UsageBounds};
pub use whole_result::WholeResult;

use penstock_api::units::{ByteSpan, Timestamp, TokenCount};
use penstock_api::{BodyFormat, ErrorCode, Operation};

/// The estimated length of a token, in the unit of the estimate.
pub const TEXT_PER_TOKEN: u64 = 4;

/// U+FEFF in UTF-8.
pub const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The input of a scan besides the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanOptions {
    /// The method that estimates the prompt's length.
    pub estimate: TokenEstimate,
    /// The time at which the request arrived.
    pub arrived_at: Timestamp,
}

/// The reason why a body is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The body is not JSON, or not a JSON object.
    #[error("the body is not valid JSON: expected {expected} at byte {offset}")]
    Malformed {
        /// The offset of the error in the body, in bytes.
        offset: usize,
        /// The syntax expected at that offset.
        expected: Syntax,
    },
    /// The JSON has a trailing comma.
    #[error(
        "the body is not valid JSON: a comma before byte {offset} has nothing behind it (trailing comma)"
    )]
    TrailingComma {
        /// The offset of the closing brace or bracket, in bytes.
        offset: usize,
    },
    /// The JSON is incomplete.
    #[error("the body is not valid JSON: it ends where {expected} should follow")]
    Truncated {
        /// The syntax expected at the end of the body.
        expected: Syntax,
    },
    /// The body is not UTF-8.
    #[error("the body is not valid UTF-8 at byte {offset}")]
    InvalidUtf8 {
        /// The offset of the error in the body, in bytes.
        offset: usize,
    },
    /// The `content-type` names another kind of body.
    #[error("the operation takes a body of {expected}: check the content-type")]
    MediaType {
        /// The media type the operation takes.
        expected: &'static str,
    },
    /// The form is not valid `multipart/form-data`.
    #[error("the body is not valid multipart/form-data: expected {expected} at byte {offset}")]
    MalformedForm {
        /// The offset of the error in the body, in bytes.
        offset: usize,
        /// The syntax expected at that offset.
        expected: MultipartSyntax,
    },
    /// A field that the scan reads has the wrong type.
    #[error("'{field}' must be {expected}")]
    WrongType {
        /// The name of the field.
        field: &'static str,
        /// The type it must have.
        expected: &'static str,
    },
    /// A field that penstock decides by occurs in a second spelling, which engines may read
    /// instead.
    #[error(
        "the body has '{field}' in another spelling or a second time, which engines read differently"
    )]
    Twin {
        /// The name of the field.
        field: &'static str,
    },
    /// The body has no `model`.
    #[error("the request names no model: set 'model'")]
    MissingModel,
    /// `model` is empty or blank.
    #[error("the request names no model: 'model' is empty")]
    EmptyModel,
}

impl ScanError {
    fn at(offset: usize, expected: Syntax, body: &[u8]) -> Self {
        let (before, rest) = body.split_at(offset.min(body.len()));
        let follows_comma = || before.trim_ascii_end().ends_with(b",");
        match rest.first() {
            None => Self::Truncated { expected },
            Some(b'}' | b']') if follows_comma() => Self::TrailingComma { offset },
            Some(_) => Self::Malformed { offset, expected },
        }
    }

    /// The error code sent to the client.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed { .. }
            | Self::TrailingComma { .. }
            | Self::Truncated { .. }
            | Self::InvalidUtf8 { .. }
            | Self::MalformedForm { .. } => ErrorCode::InvalidJson,
            Self::MediaType { .. } => ErrorCode::UnsupportedEncoding,
            Self::WrongType { .. } => ErrorCode::InvalidType,
            Self::Twin { .. } => ErrorCode::AmbiguousField,
            Self::MissingModel | Self::EmptyModel => ErrorCode::MissingModel,
        }
    }

    /// Returns the field that caused the error, if it was a single one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::WrongType { field, .. } | Self::Twin { field } => Some(field),
            Self::MissingModel | Self::EmptyModel => Some("model"),
            Self::Malformed { .. }
            | Self::TrailingComma { .. }
            | Self::Truncated { .. }
            | Self::InvalidUtf8 { .. }
            | Self::MediaType { .. }
            | Self::MalformedForm { .. } => None,
        }
    }
}

/// Scans the body of a request. `content_type` is the value of that header.
///
/// # Errors
/// [`ScanError`] if the body is malformed, its model is empty, or a field that the scan reads has
/// the wrong type. A body without a model is fine here: see [`RequestProfile::names_model`].
pub fn scan(
    operation: Operation,
    content_type: Option<&str>,
    body: &[u8],
    options: ScanOptions,
) -> Result<RequestProfile, ScanError> {
    match operation.row().body {
        // Many clients send JSON with a wrong or missing content-type; only a form cannot be meant
        // as JSON.
        BodyFormat::Json if is_form(content_type) => {
            Err(ScanError::MediaType { expected: "application/json" })
        }
        BodyFormat::Json => json::scan(operation, body, options),
        BodyFormat::Multipart if !is_form(content_type) => {
            Err(ScanError::MediaType { expected: "multipart/form-data" })
        }
        BodyFormat::Multipart => multipart::scan(operation, content_type, body, options),
    }
}

/// Scans a body that may be a form or JSON, whatever the operation takes.
///
/// # Errors
/// The same as those of [`scan`].
pub fn scan_any(
    operation: Operation,
    content_type: Option<&str>,
    body: &[u8],
    options: ScanOptions,
) -> Result<RequestProfile, ScanError> {
    if is_form(content_type) {
        return multipart::scan(operation, content_type, body, options);
    }
    json::scan(operation, body, options)
}

/// Returns whether a `content-type` names a form with parts.
fn is_form(content_type: Option<&str>) -> bool {
    let kind = content_type.and_then(|text| text.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("multipart/form-data"))
}

/// Returns whether a model's name consists of white space only.
fn is_blank(raw: &[u8], escaped: bool) -> bool {
    let starts_visibly = raw.first().is_some_and(u8::is_ascii_graphic);
    // Nearly every name starts with a visible character, which decides without decoding it.
    (escaped || !starts_visibly) && unescape::Unescape::new(raw).all(char::is_whitespace)
}

fn to_tokens(text: u64) -> TokenCount {
    TokenCount(u32::try_from(text / TEXT_PER_TOKEN).unwrap_or(u32::MAX))
}

/// Converts an offset in a body. Larger bodies are rejected before the scan.
fn to_offset(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

fn to_span(start: usize, end: usize) -> ByteSpan {
    ByteSpan { start: to_offset(start), end: to_offset(end) }
}

#[cfg(test)]
mod tests;
