//! Reads one line of a stream of JSON lines, as Ollama's own API sends them.

use super::Usage;
use super::blank::is_blank_string;
use super::cursor::{Cursor, Members, Parsed};
use super::ollama::{is_filled, is_filled_so_far};
use super::tool_call::MemberOutput;

/// The content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct JsonLine {
    /// True if the line has more than is read.
    is_cut: bool,
    /// True if it carries tokens: text, thinking, or tool calls.
    pub(super) has_token: bool,
    /// True if some of them are more than white space.
    pub(super) is_visible: bool,
    pub(super) is_done: bool,
    /// True if the model was only loaded or unloaded.
    pub(super) is_load: bool,
    /// True if a limit has ended the generation.
    pub(super) is_limit: bool,
    pub(super) is_error: bool,
    pub(super) usage: Option<Usage>,
}

#[derive(Clone, Copy)]
enum LineMember {
    Message,
    /// `response` and `thinking` of `/api/generate`.
    Text,
    Done,
    Reason,
    Error,
    PromptCount,
    Count,
    Other,
}

const LIKELY: [(&[u8], LineMember); 4] = [
    (b"model\":", LineMember::Other),
    (b"created_at\":", LineMember::Other),
    (b"message\":", LineMember::Message),
    (b"done\":", LineMember::Done),
];

impl LineMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"message" => Self::Message,
            b"response" | b"thinking" => Self::Text,
            b"done" => Self::Done,
            b"done_reason" => Self::Reason,
            b"error" => Self::Error,
            b"prompt_eval_count" => Self::PromptCount,
            b"eval_count" => Self::Count,
            _ => Self::Other,
        }
    }
}

const LIKELY_IN_MESSAGE: [(&[u8], MemberOutput); 2] =
    [(b"role\":", MemberOutput::Nothing), (b"content\":", MemberOutput::Text)];

fn carried_by(name: &[u8]) -> MemberOutput {
    match name {
        b"content" | b"thinking" => MemberOutput::Text,
        _ => MemberOutput::by(name, MemberOutput::Nothing),
    }
}

impl JsonLine {
    /// Reads a line. A truncated or malformed line yields the fields before the error.
    pub(super) fn read(line: &[u8]) -> Self {
        Self::default().filled_by(line)
    }

    /// Reads the beginning of a line. Of a text or a call that is cut off, what came counts.
    pub(super) fn read_start(line: &[u8]) -> Self {
        Self { is_cut: true, ..Self::default() }.filled_by(line)
    }

    fn filled_by(mut self, line: &[u8]) -> Self {
        let read = &mut self;
        let mut cursor = Cursor::of_response(line);
        if cursor.peek() == b'{' {
            let members = Members::with_likely(&LIKELY, LineMember::of);
            _ = cursor.members(members, |cursor, member, kind| read.take(cursor, member, kind));
        }
        self
    }

    fn take(&mut self, cursor: &mut Cursor<'_>, member: LineMember, kind: u8) -> Parsed {
        match member {
            LineMember::Message if kind == b'{' => {
                let members = Members::with_likely(&LIKELY_IN_MESSAGE, carried_by);
                return cursor.members(members, |cursor, carried, kind| match carried {
                    MemberOutput::Nothing => cursor.skip(kind),
                    MemberOutput::Text | MemberOutput::Calls => {
                        self.read_output(carried, cursor, kind)
                    }
                });
            }
            LineMember::Text => return self.read_output(MemberOutput::Text, cursor, kind),
            LineMember::PromptCount | LineMember::Count if kind.is_ascii_digit() => {
                let count = cursor.number()?;
                let usage = self.usage.get_or_insert_default();
                match member {
                    LineMember::PromptCount => usage.prompt_tokens = count,
                    _ => usage.completion_tokens = count,
                }
                return Ok(());
            }
            LineMember::Reason if kind == b'"' => {
                let reason = cursor.string()?;
                let reason = cursor.raw(reason);
                self.is_load |= matches!(reason, b"load" | b"unload");
                self.is_limit |= reason == b"length";
                return Ok(());
            }
            LineMember::Done => self.is_done |= kind == b't',
            LineMember::Error => self.is_error |= kind != b'n',
            LineMember::Message | LineMember::PromptCount | LineMember::Count => {}
            LineMember::Reason | LineMember::Other => {}
        }
        cursor.skip(kind)
    }

    fn read_output(&mut self, carried: MemberOutput, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        let start = cursor.at;
        let is_blank = is_blank_string(cursor);
        let has_token = match self.is_cut {
            true => is_filled_so_far(cursor, kind),
            false => is_filled(cursor, kind)?,
        };
        let has_token =
            has_token && carried.is_output(cursor.bytes.get(start..cursor.at).unwrap_or_default());
        self.has_token |= has_token;
        self.is_visible |= has_token && !is_blank;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> (bool, bool, bool) {
        let JsonLine { has_token, is_done, is_error, .. } = JsonLine::read(line.as_bytes());
        (has_token, is_done, is_error)
    }

    #[test]
    fn lines_carry_tokens_an_end_or_an_error() {
        for (line, expected) in [
            (
                r#"{"model":"m","created_at":"t","message":{"role":"assistant","content":"Hi"},"done":false}"#,
                (true, false, false),
            ),
            (
                r#"{"message":{"role":"assistant","content":"","thinking":"so"}}"#,
                (true, false, false),
            ),
            (
                r#"{"message":{"content":"","tool_calls":[{"function":{"name":"f"}}]}}"#,
                (true, false, false),
            ),
            (
                r#"{"message":{"content":"","tool_calls":[{"function":{"name":"","arguments":{}}}]}}"#,
                (false, false, false),
            ),
            (r#"{"message":{"role":"assistant","content":""},"done":true}"#, (false, true, false)),
            (r#"{"model":"m","response":"a","done":false}"#, (true, false, false)),
            (r#"{"model":"m","response":"","thinking":"a"}"#, (true, false, false)),
            (r#"{"response":"","done":true,"context":[1,2"#, (false, true, false)),
            (r#"{"error":"model runner has stopped"}"#, (false, false, true)),
            (r#"{"status":"pulling","completed":1}"#, (false, false, false)),
            ("[1]", (false, false, false)),
        ] {
            assert_eq!(read(line), expected, "{line}");
        }
    }

    #[test]
    fn last_line_reports_the_counts() {
        let line = r#"{"done":true,"prompt_eval_count":26,"eval_count":298,"eval_duration":1}"#;
        let usage = JsonLine::read(line.as_bytes()).usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(26), Some(298)));
    }
}
