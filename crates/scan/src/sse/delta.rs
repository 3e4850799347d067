//! The content of an event's delta, and the members in which events report something.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use penstock_api::EventForm;

use crate::blank::{is_blank_string, is_visible};
use crate::cursor::{Cursor, Members, Syntax};
use crate::ollama::{is_filled, is_filled_so_far};

pub(super) static DELTA: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"delta\""));

/// The members in which chats, completions and messages report why their generation ended.
static REASONS: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new(b"\"finish_reason\""), Finder::new(b"\"stop_reason\"")]);

/// The member in which events of this form report why their generation ended.
pub(super) fn reason_of(form: EventForm) -> Option<&'static Finder<'static>> {
    match form {
        EventForm::ChatDelta | EventForm::CompletionText => REASONS.first(),
        EventForm::BlockDelta => REASONS.last(),
        EventForm::Content | EventForm::TypedDelta | EventForm::JsonLine | EventForm::Any => None,
    }
}

/// The occurrences of `key` in `data` with a colon after them; each cursor is after the colon.
pub(crate) fn members_called<'a>(
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
        cursor.peek() == b'"' && cursor.bytes.get(cursor.at + 1).is_some_and(|byte| *byte != b'"')
    })
}

/// Returns whether a member is a string with more than white space.
pub(super) fn has_visible_string_at(key: &Finder<'_>, data: &[u8]) -> bool {
    members_called(key, data).any(|mut cursor| cursor.peek() == b'"' && !is_blank_string(&cursor))
}

pub(super) fn has_token_in_delta(data: &[u8]) -> bool {
    has_in_delta(data, is_filled)
}

/// Returns whether a delta has a token that is more than white space.
pub(super) fn has_visible_token_in_delta(data: &[u8]) -> bool {
    has_in_delta(data, is_visible)
}

/// Returns whether a delta has a token, as far as it came if it is cut off.
pub(super) fn has_token_in_start(data: &[u8]) -> bool {
    has_in_delta(data, |cursor, kind| Ok(is_filled_so_far(cursor, kind)))
}

/// Returns whether such a delta has a token that is more than white space.
pub(super) fn has_visible_token_in_start(data: &[u8]) -> bool {
    has_in_delta(data, |cursor, kind| {
        let is_blank = is_blank_string(cursor);
        Ok(is_filled_so_far(cursor, kind) && !is_blank)
    })
}

#[inline(always)]
fn has_in_delta(
    data: &[u8],
    is_token: impl Fn(&mut Cursor<'_>, u8) -> Result<bool, Syntax>,
) -> bool {
    members_called(&DELTA, data).any(|mut cursor| {
        let mut has_token = false;
        if cursor.peek() == b'{' {
            // If the walk fails, the delta is malformed: the members before the error count.
            let members = Members::with_likely(&LIKELY_IN_DELTA, carries_tokens);
            _ = cursor.members(members, |cursor, carries_tokens, kind| {
                has_token |= is_token(cursor, kind)? && carries_tokens;
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
