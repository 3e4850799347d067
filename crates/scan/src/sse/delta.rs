//! The content of an event's delta, and the members in which events report something.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use penstock_api::EventForm;

use crate::blank::{is_blank_string, is_visible};
use crate::cursor::{Cursor, Members, Syntax};
use crate::member_name::members_called;
use crate::ollama::{is_filled, is_filled_so_far};
use crate::tool_call::Carried;

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
            let members = Members::with_likely(&LIKELY_IN_DELTA, carried_by);
            _ = cursor.members(members, |cursor, carried: Carried, kind| {
                let start = cursor.at;
                has_token |= is_token(cursor, kind)?
                    && carried.is_output(cursor.bytes.get(start..cursor.at).unwrap_or_default());
                Ok(())
            });
        }
        has_token
    })
}

/// The frequent members of a delta.
const LIKELY_IN_DELTA: [(&[u8], Carried); 4] = [
    (b"content\":", Carried::Text),
    (b"type\":", Carried::Nothing),
    (b"text\":", Carried::Text),
    (b"role\":", Carried::Nothing),
];

fn carried_by(name: &[u8]) -> Carried {
    match name {
        b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"audio" | b"images"
        | b"text" | b"partial_json" | b"thinking" => Carried::Text,
        _ => Carried::by(name, Carried::Nothing),
    }
}
