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
        Self::read_until(false, operation, framing, payload, is_whole)
    }

    /// Reads the same up to the first event with output, or the one that ends the generation. Other
    /// events before it, such as the role of a chat, are passed over, and so are comments.
    pub fn read_to_output(
        operation: Operation,
        framing: StreamFraming,
        payload: &[u8],
        is_whole: bool,
    ) -> Self {
        Self::read_until(true, operation, framing, payload, is_whole)
    }

    fn read_until(
        needs_output: bool,
        operation: Operation,
        framing: StreamFraming,
        payload: &[u8],
        is_whole: bool,
    ) -> Self {
        let mut scanner = EventScanner::of_held(operation, framing);
        let mut foreign = None;
        let (mut at, mut has_comment) = (0, false);
        let counts_comments = framing == StreamFraming::Events && !needs_output;
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
                    _ if !scanner.is_void() => {
                        if !needs_output || scanner.has_output() {
                            return Self::Good;
                        }
                    }
                    None if scanner.has_foreign() => foreign = Some(place),
                    // Only `[DONE]`, or a load instead of a generation.
                    None => return Self::Missing,
                    Some(place) if read.done => return Self::Foreign(place),
                    Some(_) => {}
                }
            }
            has_comment |= counts_comments && line.starts_with(b":");
            if behind.is_empty() {
                return match (is_whole, foreign) {
                    (true, _) if !scanner.is_void() => Self::Good,
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
mod tests;
