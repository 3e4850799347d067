//! Detects whole responses with a success status that are no result of an engine.

use memchr::memchr;
use penstock_api::slices::split_at;

use super::cursor::{Cursor, Members, Parsed};
use super::ollama::is_filled;

/// Returns whether a whole response is an object or a list without content.
pub fn is_void(body: &[u8]) -> bool {
    let body = body.trim_ascii();
    let inner = body.get(1..body.len().saturating_sub(1)).unwrap_or_default();
    inner.trim_ascii().is_empty()
}

#[derive(Clone, Copy)]
enum RefusalMember {
    /// Filled only by what reports a failure.
    Report,
    /// True after a success.
    Switch,
    Message,
    Code,
    Status,
    /// MiniMax's state of a response.
    BaseState,
    Content,
    /// Stands beside a message in an error, and says nothing of a result.
    Label,
    Other,
}

impl RefusalMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"detail" | b"errors" | b"fault" => Self::Report,
            b"success" | b"ok" => Self::Switch,
            b"message" | b"Message" | b"msg" | b"error_msg" | b"err_msg" | b"errmsg"
            | b"error_message" | b"errorMessage" | b"status_msg" => Self::Message,
            b"code" | b"error_code" | b"errcode" => Self::Code,
            b"status" | b"status_code" | b"statusCode" => Self::Status,
            b"base_resp" => Self::BaseState,
            b"choices" | b"content" | b"output" | b"output_text" | b"outputs" | b"response"
            | b"result" | b"results" | b"data" | b"embedding" | b"embeddings" | b"text"
            | b"generated_text" | b"completion" | b"candidates" | b"predictions" | b"delta"
            | b"tokens" | b"images" | b"audio" => Self::Content,
            b"id" | b"type" | b"title" | b"name" | b"reason" | b"details" | b"hint" | b"param"
            | b"timestamp" | b"path" | b"instance" | b"request_id" | b"requestId" | b"trace_id"
            | b"documentation_url" => Self::Label,
            _ => Self::Other,
        }
    }
}

/// The signs of a refusal, and those against one.
#[derive(Default)]
struct Signs {
    is_refusal: bool,
    has_message: bool,
    /// True if a code, a state or a switch is that of a success, or of work that goes on.
    is_good: bool,
    has_content: bool,
    /// True if it has a member of which nothing is known: it may be the result.
    has_other: bool,
}

impl Signs {
    fn read(&mut self, cursor: &mut Cursor<'_>, member: RefusalMember, kind: u8) -> Parsed {
        match member {
            RefusalMember::Report => self.is_refusal |= is_filled(cursor, kind)?,
            RefusalMember::Message => {
                let is_filled = is_filled(cursor, kind)?;
                self.has_message |= is_filled && kind == b'"';
                // An engine's message, and no text.
                self.has_content |= is_filled && kind != b'"';
            }
            RefusalMember::Content => self.has_content |= is_filled(cursor, kind)?,
            RefusalMember::Switch => {
                self.is_refusal |= kind == b'f';
                self.is_good |= kind == b't';
                cursor.skip(kind)?;
            }
            RefusalMember::Code | RefusalMember::Status if kind.is_ascii_digit() => {
                match cursor.number()? {
                    Some(400..=599) => self.is_refusal = true,
                    Some(0 | 100..=299) => self.is_good = true,
                    _ => {}
                }
            }
            RefusalMember::Code | RefusalMember::Status if kind == b'"' => {
                let name = cursor.string()?;
                match (member, cursor.raw(name)) {
                    (_, b"error" | b"fail" | b"failed" | b"failure") => self.is_refusal = true,
                    (RefusalMember::Status, _)
                    | (_, b"0" | b"200" | b"ok" | b"OK" | b"success" | b"Success") => {
                        self.is_good = true;
                    }
                    _ => {}
                }
            }
            RefusalMember::BaseState if kind == b'{' => {
                let members = Members::named(|name: &[u8]| name == b"status_code");
                cursor.members(members, |cursor, is_code, kind| {
                    if !is_code || !kind.is_ascii_digit() {
                        return cursor.skip(kind);
                    }
                    self.is_refusal |= cursor.number()? != Some(0);
                    Ok(())
                })?;
            }
            RefusalMember::Other => {
                self.has_other |= kind != b'n';
                cursor.skip(kind)?;
            }
            RefusalMember::Code
            | RefusalMember::Status
            | RefusalMember::BaseState
            | RefusalMember::Label => cursor.skip(kind)?,
        }
        Ok(())
    }
}

/// Returns whether JSON is the refusal of something before an engine, such as a web framework or a
/// gateway: an object that reports a failure in a form of theirs, or has nothing but a message, and
/// no content.
pub(crate) fn is_foreign_refusal(body: &[u8]) -> bool {
    let mut cursor = Cursor::of_response(body);
    if cursor.peek() != b'{' {
        return false;
    }
    let mut signs = Signs::default();
    let read: Parsed = cursor.members(Members::named(RefusalMember::of), |cursor, member, kind| {
        signs.read(cursor, member, kind)
    });
    let Signs { is_refusal, has_message, is_good, has_content, has_other } = signs;
    read.is_ok() && !has_content && (is_refusal || (has_message && !is_good && !has_other))
}

/// Returns whether a whole response is the refusal of something before an engine, by its first
/// member and the others.
pub fn lacks_result(body: &[u8]) -> bool {
    // Most responses begin with their id.
    may_report_failure(body) && is_foreign_refusal(body)
}

/// Returns whether the beginning of a whole response may belong to an error: its first member is
/// not one that only responses with content begin with.
pub fn may_report_failure(start: &[u8]) -> bool {
    let rest = start.trim_ascii_start();
    let Some(rest) = rest.strip_prefix(b"{") else { return false };
    let Some(rest) = rest.trim_ascii_start().strip_prefix(b"\"") else {
        return rest.trim_ascii_start().is_empty();
    };
    let Some(end) = memchr(b'"', rest) else { return true };
    let (name, _) = split_at(rest, end);
    match RefusalMember::of(name) {
        RefusalMember::Content => name == b"result",
        RefusalMember::Other | RefusalMember::Label => {
            matches!(
                name,
                b"error"
                    | b"type"
                    | b"object"
                    | b"title"
                    | b"timestamp"
                    | b"request_id"
                    | b"trace_id"
            )
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_of_a_response_with_content_is_no_error() {
        for (start, expected) in [
            ("{", true),
            ("{ \n", true),
            ("{\"er", true),
            ("{\"error\":{", true),
            (" {\"type\":\"err", true),
            ("{\"id\":\"c", false),
            ("{\"msg\":\"x", true),
            ("{\"choices\":[", false),
            ("[{\"error\":1", false),
            ("error", false),
        ] {
            assert_eq!(may_report_failure(start.as_bytes()), expected, "{start}");
        }
    }

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
            (r#"{"message":"boom"}"#, true),
            (r#"{"msg":"boom","code":50000}"#, true),
            (r#"{"errors":["boom"]}"#, true),
            (r#"{"fault":{"faultstring":"boom"}}"#, true),
            (r#"{"ok":false,"description":"boom"}"#, true),
            (r#"{"code":"InternalError","message":"boom","request_id":"1"}"#, true),
            (r#"{"request_id":"1","code":"InternalError","message":"boom"}"#, true),
            (r#"{"error_code":336,"error_msg":"boom"}"#, true),
            (r#"{"base_resp":{"status_code":1008,"status_msg":"boom"},"choices":null}"#, true),
            (r#"{"base_resp":{"status_code":0,"status_msg":""}}"#, false),
            (r#"{"result":null,"success":false,"errors":[{"message":"boom"}]}"#, true),
            (r#"{"title":"Bad","status":500}"#, true),
            (r#"{"status":"loading","message":"please wait"}"#, false),
            (r#"{"message":""}"#, false),
            (r#"{"message":"ok","result":"hi"}"#, false),
            (r#"{"message":"boom","documentation_url":"x"}"#, true),
            (r#"{"message":"Success","scores":[0.5]}"#, false),
            (r#"{"task_id":"x","message":"queued"}"#, false),
            (r#"{"status":"ok"}"#, false),
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
