//! The output of a chat's events that stands elsewhere than in the known members of a delta:
//! gateways stream whole messages, texts, and reasoning in members that only they have.

use crate::blank::is_blank_string;
use crate::cursor::{Cursor, Members, Parsed};
use crate::ollama::is_filled_so_far;
use crate::tool_call::MemberOutput;
use crate::whole_result::carried_by;

/// The output in an event, as far as it came.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChatOutput {
    /// True if white space is output.
    may_be_blank: bool,
    /// True if a choice has a filled member that is no label.
    pub(super) is_in_choice: bool,
    /// True if such a member stands beside the choices.
    pub(super) is_beside: bool,
}

#[derive(Clone, Copy)]
enum EventPart {
    Choices,
    Label,
    Other,
}

#[derive(Clone, Copy)]
enum ChoicePart {
    Message,
    Label,
    Other,
}

impl ChatOutput {
    /// Reads the data of an event. The members before a cut or an error count.
    pub(super) fn read(data: &[u8], may_be_blank: bool) -> Self {
        let mut output = Self { may_be_blank, ..Self::default() };
        let mut cursor = Cursor::of_response(data);
        if cursor.peek() != b'{' {
            return Self { is_beside: true, ..output };
        }
        _ = cursor.members(Members::named(EventPart::of), |cursor, part, kind| match part {
            EventPart::Choices if kind == b'[' => {
                cursor.elements(|cursor, kind| output.read_choice(cursor, kind))
            }
            EventPart::Choices | EventPart::Label => cursor.skip(kind),
            EventPart::Other => {
                output.is_beside |= is_filled_so_far(cursor, kind);
                Ok(())
            }
        });
        output
    }

    fn read_choice(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        if kind != b'{' {
            return self.read_value(cursor, kind, MemberOutput::Text);
        }
        cursor.members(Members::named(ChoicePart::of), |cursor, part, kind| match part {
            ChoicePart::Message if kind == b'{' => cursor
                .members(Members::named(carried_by), |cursor, carried, kind| {
                    self.read_value(cursor, kind, carried)
                }),
            ChoicePart::Label => cursor.skip(kind),
            ChoicePart::Message | ChoicePart::Other => {
                self.read_value(cursor, kind, MemberOutput::Text)
            }
        })
    }

    fn read_value(&mut self, cursor: &mut Cursor<'_>, kind: u8, carried: MemberOutput) -> Parsed {
        let start = cursor.at;
        let is_blank = !self.may_be_blank && is_blank_string(cursor);
        let is_shown = is_filled_so_far(cursor, kind) && !is_blank;
        let value = cursor.bytes.get(start..cursor.at).unwrap_or_default();
        self.is_in_choice |= is_shown && carried.is_output(value);
        Ok(())
    }
}

impl EventPart {
    fn of(name: &[u8]) -> Self {
        match name {
            b"choices" => Self::Choices,
            b"id"
            | b"object"
            | b"type"
            | b"model"
            | b"created"
            | b"created_at"
            | b"provider"
            | b"system_fingerprint"
            | b"service_tier"
            | b"usage"
            | b"timings"
            | b"error" => Self::Label,
            _ => Self::Other,
        }
    }
}

impl ChoicePart {
    fn of(name: &[u8]) -> Self {
        match name {
            b"message" | b"delta" => Self::Message,
            b"id"
            | b"object"
            | b"type"
            | b"index"
            | b"role"
            | b"finish_reason"
            | b"native_finish_reason"
            | b"stop_reason"
            | b"stop_sequence"
            | b"matched_stop"
            | b"logprobs"
            | b"token_ids"
            | b"prompt_token_ids"
            | b"content_filter_result"
            | b"content_filter_results"
            | b"content_filter_offsets"
            | b"error" => Self::Label,
            _ => Self::Other,
        }
    }
}
