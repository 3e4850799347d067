//! The content of an event's delta, and the members in which events report something.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use penstock_api::EventForm;

use crate::blank::{is_blank_string, is_visible};
use crate::cursor::{Cursor, Members, Parsed, Syntax};
use crate::member_name::members_called;
use crate::ollama::{is_filled, is_filled_so_far};
use crate::tool_call::MemberOutput;

pub(super) static DELTA: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"delta\""));

/// The members in which chats, completions and messages report why their generation ended.
static REASONS: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [Finder::new(b"\"finish_reason\""), Finder::new(b"\"stop_reason\"")]);

/// The members of deltas that are strings.
static TEXTS: LazyLock<[Finder<'static>; 7]> = LazyLock::new(|| {
    [
        "\"content\"",
        "\"reasoning_content\"",
        "\"reasoning\"",
        "\"refusal\"",
        "\"text\"",
        "\"partial_json\"",
        "\"thinking\"",
    ]
    .map(Finder::new)
});

/// The members of deltas that are lists or objects.
static LISTS: LazyLock<[(Finder<'static>, MemberOutput); 4]> = LazyLock::new(|| {
    [
        (Finder::new("\"audio\""), MemberOutput::Text),
        (Finder::new("\"images\""), MemberOutput::Text),
        (Finder::new("\"tool_calls\""), MemberOutput::Calls),
        (Finder::new("\"function_call\""), MemberOutput::Calls),
    ]
});

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

/// The tokens of a delta, in a part of an event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeltaPart {
    pub(super) has_token: bool,
    /// True if some of it is more than white space.
    pub(super) is_visible: bool,
    /// True if the delta goes on behind this part.
    pub(super) is_cut: bool,
}

impl DeltaPart {
    /// Reads the deltas that begin in a part of an event, as far as they came.
    pub(super) fn read(data: &[u8]) -> Self {
        let mut part = Self::default();
        for mut cursor in members_called(&DELTA, data) {
            part.is_cut |= match cursor.peek() {
                b'{' => {
                    let members = Members::with_likely(&LIKELY_IN_DELTA, carried_by);
                    let walk: Parsed = cursor.members(members, |cursor, carried, kind| {
                        part.read_value(cursor, carried, kind);
                        Ok(())
                    });
                    walk.is_err()
                }
                kind => kind == 0,
            };
        }
        part
    }

    /// Reads a part in the middle of an event. The members of a delta are known by their names.
    pub(super) fn read_more(data: &[u8]) -> Self {
        let mut part = Self::default();
        for text in &*TEXTS {
            for mut cursor in members_called(text, data) {
                // Logarithms of probabilities have a list of this name.
                if cursor.peek() == b'"' {
                    part.read_value(&mut cursor, MemberOutput::Text, b'"');
                }
            }
        }
        for (name, carried) in &*LISTS {
            for mut cursor in members_called(name, data) {
                let kind = cursor.peek();
                part.read_value(&mut cursor, *carried, kind);
            }
        }
        part
    }

    fn read_value(&mut self, cursor: &mut Cursor<'_>, carried: MemberOutput, kind: u8) {
        let start = cursor.at;
        let is_blank = is_blank_string(cursor);
        let has_token = is_filled_so_far(cursor, kind)
            && carried.is_output(cursor.bytes.get(start..cursor.at).unwrap_or_default());
        self.has_token |= has_token;
        self.is_visible |= has_token && !is_blank;
    }
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
            _ = cursor.members(members, |cursor, carried: MemberOutput, kind| {
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
const LIKELY_IN_DELTA: [(&[u8], MemberOutput); 4] = [
    (b"content\":", MemberOutput::Text),
    (b"type\":", MemberOutput::Nothing),
    (b"text\":", MemberOutput::Text),
    (b"role\":", MemberOutput::Nothing),
];

fn carried_by(name: &[u8]) -> MemberOutput {
    match name {
        b"content" | b"reasoning_content" | b"reasoning" | b"refusal" | b"audio" | b"images"
        | b"text" | b"partial_json" | b"thinking" => MemberOutput::Text,
        _ => MemberOutput::by(name, MemberOutput::Nothing),
    }
}
