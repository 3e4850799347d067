//! Detects whole responses with a success status that are no result of an engine.

use super::TokenEstimate;
use super::cursor::{Cursor, Members, Parsed};
use super::ollama::is_filled;
use super::reported_failure::may_report_failure;

/// Returns whether a whole response is an object or a list without content.
pub fn is_void(body: &[u8]) -> bool {
    let body = body.trim_ascii();
    let inner = body.get(1..body.len().saturating_sub(1)).unwrap_or_default();
    inner.trim_ascii().is_empty()
}

#[derive(Clone, Copy)]
enum RefusalMember {
    Detail,
    Success,
    Message,
    Code,
    Status,
    Content,
    Other,
}

impl RefusalMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"detail" => Self::Detail,
            b"success" => Self::Success,
            b"message" => Self::Message,
            b"code" => Self::Code,
            b"status" => Self::Status,
            b"choices" | b"content" | b"output" | b"response" | b"data" | b"results"
            | b"embedding" | b"embeddings" => Self::Content,
            _ => Self::Other,
        }
    }
}

/// Returns whether a whole response is a refusal of something before an engine, such as a web
/// framework or a gateway: `detail`, `"success": false`, or a `message` with the `code` of an HTTP
/// error or the `status` of a failure, and no content.
pub fn lacks_result(body: &[u8]) -> bool {
    // Most responses begin with their id.
    if !may_report_failure(body) {
        return false;
    }
    let mut cursor = Cursor::new(body, TokenEstimate::Chars);
    if cursor.peek() != b'{' {
        return false;
    }
    let (mut is_refusal, mut has_message, mut has_code, mut has_content) =
        (false, false, false, false);
    let read: Parsed = cursor.members(Members::named(RefusalMember::of), |cursor, member, kind| {
        match member {
            RefusalMember::Detail => {
                is_refusal |= is_filled(cursor, kind)?;
                return Ok(());
            }
            RefusalMember::Success => is_refusal |= kind == b'f',
            RefusalMember::Message => {
                let is_text = kind == b'"';
                has_message |= is_text;
                has_content |= is_filled(cursor, kind)? && !is_text;
                return Ok(());
            }
            RefusalMember::Status if kind == b'"' => {
                let status = cursor.string()?;
                has_code |= matches!(cursor.raw(status), b"error" | b"failed" | b"failure");
                return Ok(());
            }
            RefusalMember::Code | RefusalMember::Status if kind.is_ascii_digit() => {
                has_code |= cursor.number()?.is_some_and(|code| (400..600).contains(&code));
                return Ok(());
            }
            RefusalMember::Content => {
                has_content |= is_filled(cursor, kind)?;
                return Ok(());
            }
            RefusalMember::Code | RefusalMember::Status | RefusalMember::Other => {}
        }
        cursor.skip(kind)
    });
    read.is_ok() && !has_content && (is_refusal || (has_message && has_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_framework_or_a_gateway_are_no_results() {
        for (body, expected) in [
            (r#"{"detail":"Not authenticated"}"#, true),
            (r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#, true),
            (r#"{"success":false,"reason":"no such route"}"#, true),
            (r#"{"message":"Internal error","code":500}"#, true),
            (r#"{"status":503,"message":"x"}"#, true),
            (r#"{"status":"error","message":"no gpu"}"#, true),
            (r#"{"status":"success","message":"loaded"}"#, false),
            (r#"{"id":"c","choices":[]}"#, false),
            (r#"{"success":true,"data":[]}"#, false),
            (r#"{"detail":"low","data":[{"b64_json":"x"}]}"#, false),
            (r#"{"object":"list","data":[]}"#, false),
            (r#"{"message":{"role":"assistant","content":"x"},"done":true}"#, false),
            (r#"{"code":200,"message":"ok"}"#, false),
            (r#"{"detail":"#, false),
        ] {
            assert_eq!(lacks_result(body.as_bytes()), expected, "{body}");
        }
        for (body, expected) in
            [("{}", true), (" [ ]\n", true), ("{\"a\":1}", false), ("[0]", false)]
        {
            assert_eq!(is_void(body.as_bytes()), expected, "{body}");
        }
    }
}
