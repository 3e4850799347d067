//! The content of an event's delta, and the members in which events report something.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::cursor::{Cursor, Members};
use crate::ollama::is_filled;

pub(super) static DELTA: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"delta\""));

/// The occurrences of `key` in `data` with a colon after them; each cursor is after the colon.
pub(super) fn members_called<'a>(
    key: &Finder<'_>,
    data: &'a [u8],
) -> impl Iterator<Item = Cursor<'a>> {
    key.find_iter(data).filter_map(|at| {
        let mut cursor = Cursor::of_response(data);
        cursor.at = at + key.needle().len();
        if cursor.peek() != b':' {
            return None;
        }
        cursor.at += 1;
        Some(cursor)
    })
}

pub(super) fn has_string_at(key: &Finder<'_>, data: &[u8]) -> bool {
    members_called(key, data).any(|mut cursor| {
        // The string is not empty if no quote follows the opening one.
        cursor.peek() == b'"' && cursor.bytes.get(cursor.at + 1) != Some(&b'"')
    })
}

pub(super) fn has_token_in_delta(data: &[u8]) -> bool {
    members_called(&DELTA, data).any(|mut cursor| {
        let mut has_token = false;
        if cursor.peek() == b'{' {
            // If the walk fails, the delta is malformed: the members before the error count.
            let members = Members::with_likely(&LIKELY_IN_DELTA, carries_tokens);
            _ = cursor.members(members, |cursor, carries_tokens, kind| {
                has_token |= is_filled(cursor, kind)? && carries_tokens;
                Ok(())
            });
        }
        has_token
    })
}

/// The frequent members of a delta; the value is true if they carry tokens.
const LIKELY_IN_DELTA: [(&[u8], bool); 4] =
    [(b"content\":", true), (b"type\":", false), (b"text\":", true), (b"role\":", false)];

fn carries_tokens(name: &[u8]) -> bool {
    matches!(
        name,
        b"content"
            | b"reasoning_content"
            | b"reasoning"
            | b"refusal"
            | b"tool_calls"
            | b"function_call"
            | b"audio"
            | b"images"
            | b"text"
            | b"partial_json"
            | b"thinking"
    )
}
