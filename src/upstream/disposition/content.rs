//! The kind of content that a body begins with, whatever type its head declares.

use penstock_api::{ResultFormat, StreamFraming};

use super::{MAX_HELD, SeenResponse};
use crate::upstream::response_head::BodyEnd;

/// The number of bytes by which text is distinguished from other content.
const TEXT_SAMPLE: usize = 512;

/// The beginnings of a web server's page, in lower case.
const PAGE_STARTS: [&[u8]; 5] = [b"<!doctype", b"<html", b"<head", b"<body", b"<?xml"];

impl SeenResponse<'_> {
    /// Returns whether the head declares more than is read before the disposition is decided.
    pub(super) const fn is_large(&self) -> bool {
        matches!(self.framing, BodyEnd::Length(length) if length > MAX_HELD as u64)
    }
}

/// Returns whether content that is no JSON cannot be a result of `format`.
pub(super) fn is_foreign(format: ResultFormat, seen: &SeenResponse<'_>, start: &[u8]) -> bool {
    // Some engines declare no type, or a wrong one, for their streams.
    if StreamFraming::of_content(start) == Some(StreamFraming::Events) {
        return false;
    }
    match format {
        // vLLM sends embeddings as numbers of four bytes on request.
        ResultFormat::Json => is_text(start),
        ResultFormat::Text => is_page(start),
        // The first bytes of a sound may be letters.
        ResultFormat::Audio => is_page(start) || (seen.is_json || seen.is_text) && is_text(start),
    }
}

/// Returns whether the beginning of a body is text.
fn is_text(start: &[u8]) -> bool {
    let start = start.get(..TEXT_SAMPLE).unwrap_or(start);
    let is_valid =
        std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
    is_valid && !start.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace())
}

fn is_page(start: &[u8]) -> bool {
    let is_start = |page: &&[u8]| {
        start.get(..page.len()).is_some_and(|found| found.eq_ignore_ascii_case(page))
    };
    PAGE_STARTS.iter().any(is_start)
}
