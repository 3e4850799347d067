//! Detects failures that a response reports despite a success status: in its first event, or as a
//! whole.

use std::ops::Range;
use std::sync::LazyLock;

use memchr::memchr2;
use memchr::memmem::{self, Finder};
use penstock_api::slices::split_at;
use penstock_api::{Operation, StreamFraming};

use super::TokenEstimate;
use super::cursor::{Cursor, Members, Parsed};
use super::failed_choice::{FAILED_REASONS, has_failed_choice};
use super::ollama::is_filled;
use super::sse::{EventScanner, is_event};

/// The beginning of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstEvent {
    /// The first event is missing or incomplete.
    Incomplete,
    /// The stream ends without an event.
    Missing,
    /// The first event is an error, whose object is at this range.
    Failed(Range<usize>),
    /// The stream has nothing but refusals of something before an engine; the first is at this
    /// range.
    Foreign(Range<usize>),
    /// The first event is another one; or a comment came, and nothing after it yet.
    Good,
}

impl FirstEvent {
    /// Reads the beginning of a stream. If `is_whole` is true, the stream has ended.
    pub fn read(
        operation: Operation,
        framing: StreamFraming,
        payload: &[u8],
        is_whole: bool,
    ) -> Self {
        let mut scanner = EventScanner::new(operation, framing);
        let mut foreign = None;
        let (mut at, mut has_comment) = (0, false);
        let mut rest = payload.strip_prefix(b"\xef\xbb\xbf").unwrap_or(payload);
        at += payload.len() - rest.len();
        loop {
            let end = memchr2(b'\n', b'\r', rest);
            let (line, behind) = split_at(rest, end.unwrap_or(rest.len()));
            let data = data_of(line, framing);
            match (data, end) {
                (Some(_), None) if !is_whole => {
                    return if has_comment { Self::Good } else { Self::Incomplete };
                }
                _ => scanner.feed(line),
            };
            // Ends the line, which lacks its break if the stream ends with it.
            let read = scanner.feed(b"\n");
            if let Some(data) = data {
                let end = at + line.len();
                let place = end.saturating_sub(data.len())..end;
                match foreign {
                    _ if read.error => return Self::Failed(place),
                    _ if !scanner.is_void() => return Self::Good,
                    None if scanner.has_foreign() => foreign = Some(place),
                    // Only `[DONE]`, or a load instead of a generation.
                    None => return Self::Missing,
                    Some(place) if read.done => return Self::Foreign(place),
                    Some(_) => {}
                }
            }
            has_comment |= framing == StreamFraming::Events && line.starts_with(b":");
            if behind.is_empty() {
                return match (is_whole, foreign) {
                    (true, Some(place)) => Self::Foreign(place),
                    (true, None) => Self::Missing,
                    // Engines send comments to keep the connection open while they work.
                    (false, _) if has_comment => Self::Good,
                    (false, _) => Self::Incomplete,
                };
            }
            at += line.len() + 1;
            rest = behind.get(1..).unwrap_or_default();
        }
    }
}

static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"error\""));

/// Returns the data of a line, if it has any.
fn data_of(line: &[u8], framing: StreamFraming) -> Option<&[u8]> {
    let data = match framing {
        StreamFraming::Events => line.strip_prefix(b"data:")?,
        StreamFraming::Lines => line,
    };
    Some(data.trim_ascii_start()).filter(|data| is_event(data))
}

#[derive(Clone, Copy)]
enum BodyMember {
    Error,
    Kind,
    Content,
    Other,
}

impl BodyMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"error" => Self::Error,
            b"type" | b"object" => Self::Kind,
            b"choices" | b"content" | b"output" | b"message" | b"response" | b"data"
            | b"results" | b"embedding" | b"embeddings" => Self::Content,
            _ => Self::Other,
        }
    }
}

/// The members of a whole response that report a failure, and those against one.
#[derive(Default)]
struct Report {
    has_error: bool,
    /// True if the object is of the type `error`.
    is_error: bool,
    has_content: bool,
}

impl Report {
    /// Reads a whole response; returns `None` if it is no object, or has no word of an error.
    fn of(body: &[u8]) -> Option<Self> {
        // Nearly every response lacks the word, and the search for it costs next to nothing.
        ERROR.find(body)?;
        let mut cursor = Cursor::of_response(body);
        if cursor.peek() != b'{' {
            return None;
        }
        let mut report = Self::default();
        let read: Parsed = cursor
            .members(Members::named(BodyMember::of), |cursor, member, kind| {
                report.read(cursor, member, kind)
            });
        read.is_ok().then_some(report)
    }

    fn read(&mut self, cursor: &mut Cursor<'_>, member: BodyMember, kind: u8) -> Parsed {
        match member {
            BodyMember::Error => self.has_error |= is_filled(cursor, kind)? || kind == b't',
            BodyMember::Kind if kind == b'"' => {
                let name = cursor.string()?;
                self.is_error |= cursor.raw(name) == b"error";
            }
            BodyMember::Content => {
                // Older errors of vLLM have their text in `message`.
                self.has_content |= is_filled(cursor, kind)? && kind != b'"';
            }
            BodyMember::Kind | BodyMember::Other => cursor.skip(kind)?,
        }
        Ok(())
    }
}

/// Returns whether a whole response is an error: an `error` without any content, or an object of
/// that type.
pub fn reports_failure(body: &[u8]) -> bool {
    Report::of(body)
        .is_some_and(|report| report.is_error || (report.has_error && !report.has_content))
}

/// Returns whether a whole response reports a failure beside its result, or in a choice of it. A
/// conversion can pass on only one of the two.
pub fn reports_failed_result(body: &[u8]) -> bool {
    let body = body.strip_prefix(super::BYTE_ORDER_MARK).unwrap_or(body);
    let is_named = || FAILED_REASONS.iter().any(|reason| memmem::find(body, reason).is_some());
    Report::of(body).is_some_and(|report| report.is_error || report.has_error)
        || is_named() && has_failed_choice(body)
}

/// Returns whether a member of the body's object is `false`.
pub fn is_switched_off(body: &[u8], member: &[u8]) -> bool {
    let mut is_off = false;
    let mut cursor = Cursor::new(body, TokenEstimate::Chars);
    if cursor.peek() != b'{' {
        return false;
    }
    let read: Parsed =
        cursor.members(Members::named(|name: &[u8]| name == member), |cursor, found, kind| {
            if found {
                is_off = kind == b'f';
            }
            cursor.skip(kind)
        });
    read.is_ok() && is_off
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(operation: Operation, payload: &str, is_whole: bool) -> FirstEvent {
        let framing = operation.row().dialect.row().framing;
        FirstEvent::read(operation, framing, payload.as_bytes(), is_whole)
    }

    #[test]
    fn first_event_of_a_stream_says_whether_it_failed() {
        let error = r#"{"error":{"message":"x"}}"#;
        for (operation, payload, expected) in [
            (Operation::Chat, "", FirstEvent::Incomplete),
            (Operation::Chat, "data: {\"err", FirstEvent::Incomplete),
            (Operation::Chat, "event: error\n", FirstEvent::Incomplete),
            (Operation::Chat, ": ping\n", FirstEvent::Good),
            (Operation::Chat, ": ping\n\ndata: {\"err", FirstEvent::Good),
            (Operation::Chat, ": ping\n\ndata: [DONE]\n\n", FirstEvent::Missing),
            (Operation::Chat, "data: null\n\ndata: [DONE]\n\n", FirstEvent::Missing),
            (Operation::Chat, "data: {\"choices\":[]}\n\n", FirstEvent::Good),
            (Operation::Chat, "data: {\"error\":null,\"choices\":[]}\n\n", FirstEvent::Good),
            (Operation::Chat, "data: [DONE]\n\n", FirstEvent::Missing),
            (Operation::Chat, "\u{feff}data: {\"choices\":[]}\n\n", FirstEvent::Good),
            (Operation::OllamaChat, "\u{feff}{\"done\":true}\n", FirstEvent::Good),
            (Operation::OllamaChat, "{\"done\":true}\n", FirstEvent::Good),
            (
                Operation::OllamaChat,
                "{\"done\":true,\"done_reason\":\"load\"}\n",
                FirstEvent::Missing,
            ),
            (Operation::OllamaChat, "{\"error\":\"x\"}\n", FirstEvent::Failed(0..13)),
        ] {
            assert_eq!(first(operation, payload, false), expected, "{payload}");
        }
        for (operation, payload) in [
            (Operation::Chat, format!("data: {error}\n\ndata: [DONE]\n\n")),
            (Operation::Chat, format!(": ping\n\ndata: {error}\n\n")),
            (Operation::Chat, format!("\n\ndata:{error}\r\n")),
            (Operation::Messages, "event: error\ndata: {\"type\":\"error\"}\n\n".to_owned()),
            (Operation::Responses, "data: {\"type\":\"response.failed\"}\n\n".to_owned()),
            (Operation::Chat, "data: {\"object\":\"error\",\"message\":\"x\"}\n\n".to_owned()),
        ] {
            let FirstEvent::Failed(place) = first(operation, &payload, false) else {
                panic!("{payload} is an error")
            };
            assert!(payload[place].trim_ascii_end().ends_with('}'), "{payload}");
        }
    }

    #[test]
    fn stream_of_nothing_but_foreign_refusals_has_no_result() {
        let refusal = "data: {\"detail\":\"boom\"}\n\n";
        let foreign = FirstEvent::Foreign(6..23);
        let chunk = "data: {\"choices\":[]}\n\n";
        for (payload, is_whole, expected) in [
            (refusal.to_owned(), false, FirstEvent::Incomplete),
            (refusal.to_owned(), true, foreign.clone()),
            (format!("{refusal}data: [DONE]\n\n"), false, foreign.clone()),
            (format!("{refusal}{refusal}data: [DONE]\n\n"), false, foreign),
            (format!("{refusal}{chunk}"), false, FirstEvent::Good),
            (format!("{refusal}data: {{\"cho"), false, FirstEvent::Incomplete),
            (format!("{refusal}data: {{\"error\":\"x\"}}\n"), false, FirstEvent::Failed(31..44)),
            ("data: {\"metadata\":1}\n\n".to_owned(), false, FirstEvent::Good),
            ("data: {\"usage\":{\"prompt_tokens\":1}}\n\n".to_owned(), false, FirstEvent::Good),
        ] {
            assert_eq!(first(Operation::Chat, &payload, is_whole), expected, "{payload}");
        }
        let line = "{\"message\":\"boom\"}\n";
        assert_eq!(first(Operation::OllamaChat, line, true), FirstEvent::Foreign(0..18));
    }

    #[test]
    fn stream_that_ends_has_no_incomplete_event() {
        assert_eq!(first(Operation::Chat, "", true), FirstEvent::Missing);
        assert_eq!(first(Operation::Chat, "\n\n", true), FirstEvent::Missing);
        assert_eq!(first(Operation::Chat, ": ping\n\n", true), FirstEvent::Missing);
        assert_eq!(first(Operation::Chat, "data: {}", true), FirstEvent::Good);
        assert_eq!(
            first(Operation::OllamaChat, "{\"error\":\"x\"}", true),
            FirstEvent::Failed(0..13)
        );
    }

    #[test]
    fn whole_responses_without_content_report_failures() {
        for (body, expected) in [
            (r#"{"error":{"message":"overloaded"}}"#, true),
            (r#"{"error":"model runner has stopped"}"#, true),
            (r#"{"type":"error","error":{"type":"overloaded_error"}}"#, true),
            (r#"{"object":"error","message":"x","code":400}"#, true),
            (
                r#"{"id":"resp_1","error":{"code":"server_error"},"status":"failed","output":[]}"#,
                true,
            ),
            (r#"{"id":"resp_1","error":null,"status":"completed","output":[{}]}"#, false),
            (r#"{"choices":[{"message":{"content":"\"error\" is a word"}}]}"#, false),
            (r#"{"choices":[{"error":{"message":"x"}}],"error":{"message":"x"}}"#, false),
            (r#"{"error":""}"#, false),
            (r#"{"error":{}"#, false),
            (r#"["error"]"#, false),
            ("\"error\"", false),
        ] {
            assert_eq!(reports_failure(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn failed_results_are_those_with_an_error_beside_or_inside_them() {
        for (body, expected) in [
            (r#"{"choices":[{"message":{"content":""}}],"error":{"message":"x"}}"#, true),
            (r#"{"message":{"content":"hi"},"done":true,"error":"x"}"#, true),
            (r#"{"type":"message","content":[{}],"error":{"message":"x"}}"#, true),
            (r#"{"choices":[{"finish_reason":"error","error":{"code":502}}]}"#, true),
            (r#"{"choices":[{"finish_reason":"abort"}]}"#, true),
            ("\u{feff}{\"choices\":[{\"finish_reason\":\"abort\"}]}", true),
            (r#"{"choices":[{"message":{"content":"hi"}}],"error":null}"#, false),
            (r#"{"choices":[{"message":{"content":"hi"}}],"error":""}"#, false),
            (r#"{"choices":[{"message":{"error":"x"},"finish_reason":"stop"}]}"#, false),
            (r#"{"choices":[{"message":{"content":"\"error\""}}]}"#, false),
        ] {
            assert_eq!(reports_failed_result(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn member_is_switched_off_at_the_top_only() {
        for (body, expected) in [
            (r#"{"store":false}"#, true),
            (r#"{"store":true}"#, false),
            (r#"{"store":false,"store":true}"#, false),
            (r#"{"input":{"store":false}}"#, false),
            ("{}", false),
            ("[]", false),
        ] {
            assert_eq!(is_switched_off(body.as_bytes(), b"store"), expected, "{body}");
        }
    }
}
