//! Detects completions that report a failed generation in the reason of their end.

use super::TokenEstimate;
use super::cursor::{Cursor, Members, Parsed};

/// The values of `finish_reason` that report a failed generation: OpenRouter, vLLM and SGLang have
/// such reasons besides those of OpenAI. Each ends with its quote.
pub(super) const FAILED_REASONS: [&[u8]; 2] = [b"error\"", b"abort\""];

/// Returns whether a choice of a whole completion reports that its generation failed.
pub fn has_failed_choice(body: &[u8]) -> bool {
    let body = body.strip_prefix(super::BYTE_ORDER_MARK).unwrap_or(body);
    let mut cursor = Cursor::new(body, TokenEstimate::Chars);
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

#[cfg(test)]
mod tests {
    use super::*;

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
