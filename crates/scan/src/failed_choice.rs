//! Detects results that report a failed generation in the reason of their end, or in their status.

use memchr::memmem;
use penstock_api::slices::split_at;

use super::cursor::{Cursor, Members, Parsed};

/// The values of `finish_reason` that report a failed generation: OpenRouter, vLLM and SGLang have
/// such reasons besides those of OpenAI. Each ends with its quote.
pub(super) const FAILED_REASONS: [&[u8]; 2] = [b"error\"", b"abort\""];
/// The reasons of a generation whose output is withheld, or comes in the next turn. Each ends with
/// its quote.
// The prompt is why, and not the backend.
pub(super) const WITHHELD_REASONS: [&[u8]; 3] =
    [b"content_filter\"", b"refusal\"", b"pause_turn\""];

/// Returns whether a choice of a whole completion reports that its generation failed.
pub fn has_failed_choice(body: &[u8]) -> bool {
    let body = body.strip_prefix(super::BYTE_ORDER_MARK).unwrap_or(body);
    let mut cursor = Cursor::of_response(body);
    if cursor.peek() != b'{' {
        return false;
    }
    let mut has_failed = false;
    let choices = Members::named(|name: &[u8]| name == b"choices");
    let read: Parsed = cursor.members(choices, |cursor, is_choices, kind| {
        if !is_choices || kind != b'[' {
            return cursor.skip(kind);
        }
        cursor.elements(|cursor, kind| {
            if kind != b'{' {
                return cursor.skip(kind);
            }
            let reasons = Members::named(|name: &[u8]| name == b"finish_reason");
            cursor.members(reasons, |cursor, is_reason, kind| {
                if is_reason && kind == b'"' {
                    let value = cursor.bytes.get(cursor.at + 1..).unwrap_or_default();
                    has_failed |= FAILED_REASONS.iter().any(|reason| value.starts_with(reason));
                }
                cursor.skip(kind)
            })
        })
    });
    read.is_ok() && has_failed
}

/// Returns whether a result without output says that its output is withheld.
pub(super) fn is_withheld(body: &[u8]) -> bool {
    WITHHELD_REASONS.iter().any(|reason| {
        memmem::find_iter(body, reason).any(|at| {
            let (before, after) = split_at(body, at);
            let rest = after.get(reason.len()..).unwrap_or_default();
            before.ends_with(b"\"") && !rest.trim_ascii_start().starts_with(b":")
        })
    })
}

/// Returns whether a response of OpenAI's Responses reports by its status that its generation
/// failed. `start`: its beginning, of which the members before a cut count.
pub fn has_failed_status(start: &[u8]) -> bool {
    let start = start.strip_prefix(super::BYTE_ORDER_MARK).unwrap_or(start);
    let mut cursor = Cursor::of_response(start);
    let mut has_failed = false;
    if cursor.peek() == b'{' {
        _ = read_status(&mut cursor, &mut has_failed);
    }
    has_failed
}

/// Reads the object of a response, whose status may be that of a failure.
pub(super) fn read_status(cursor: &mut Cursor<'_>, has_failed: &mut bool) -> Parsed {
    cursor.members(Members::named(|name: &[u8]| name == b"status"), |cursor, is_status, kind| {
        if !is_status || kind != b'"' {
            return cursor.skip(kind);
        }
        let status = cursor.string()?;
        *has_failed |= cursor.raw(status) == b"failed";
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_a_response_is_its_own_status() {
        for (body, expected) in [
            (r#"{"id":"r","status":"failed","output":[{"type":"message"}]}"#, true),
            (r#"{"id":"r","status":"failed","output":[{"ty"#, true),
            (r#"{"id":"r","status":"completed","output":[]}"#, false),
            (r#"{"id":"r","output":[{"type":"mcp_call","status":"failed"}]}"#, false),
            (r#"{"status":"fail"#, false),
        ] {
            assert_eq!(has_failed_status(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn failure_of_a_choice_is_its_own_reason() {
        for (body, expected) in [
            (r#"{"choices":[{"message":{},"finish_reason":"error"}]}"#, true),
            (r#"{"choices":[{"finish_reason":"stop"},{"finish_reason": "abort"}]}"#, true),
            (
                r#"{"choices":[{"finish_reason":"stop"}],"metadata":{"finish_reason":"error"}}"#,
                false,
            ),
            (r#"{"choices":[{"message":{"finish_reason":"error"},"finish_reason":null}]}"#, false),
            (r#"{"finish_reason":"error"}"#, false),
            (r#"{"choices":[{"finish_reason":"error"}]"#, false),
        ] {
            assert_eq!(has_failed_choice(body.as_bytes()), expected, "{body}");
        }
    }
}
