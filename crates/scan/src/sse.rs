//! Observes a stream of server-sent events or JSON lines: the events that carry tokens, the
//! completion or failure of the stream, and the usage it reports. The scanner reads lines in place
//! and copies only those that a chunk boundary splits; the relay forwards the bytes regardless.

mod chat_output;
mod delta;
mod event_member;
mod long_line;
mod passed;

use std::sync::LazyLock;

use memchr::memchr2;
use memchr::memmem::Finder;
use penstock_api::slices::split_at;
use penstock_api::{EventForm, Operation, StreamFraming};

use super::cursor::{Cursor, Members, Parsed};
use super::failed_choice::{FAILED_REASONS, WITHHELD_REASONS, read_status};
use super::json_line::JsonLine;
use super::member_name::members_called;
use super::{Usage, find_counts, find_usage};
use delta::{DELTA, has_string_at, has_token_in_delta, reason_of};
use event_member::EventMember;
use long_line::LongLine;
pub(super) use passed::is_event;
use passed::{LIMITS, PassedEvents};

static DELTA_EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b".delta\""));
static CONTENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"content\""));
static TEXT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"text\""));

/// The longest line that is read whole. A longer line is read in windows of this length.
const MAX_LINE: usize = 16 << 10;

/// The result of feeding a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Events of this chunk that carry a token.
    pub tokens: u32,
    /// True if the stream has reported completion so far.
    pub done: bool,
    /// True if the stream has reported an error so far.
    pub error: bool,
}

/// Splits a stream of server-sent events into lines and counts their tokens. A chunk may end
/// anywhere, even inside a character: the totals do not depend on the chunks.
#[derive(Debug)]
pub struct EventScanner {
    form: EventForm,
    framing: StreamFraming,
    /// The start of a line whose end has not arrived yet.
    partial: Vec<u8>,
    /// The longest line that is read whole.
    longest: usize,
    /// Some if the start of the line is gone: it was read as a window.
    long: Option<LongLine>,
    after_carriage_return: bool,
    at_boundary: bool,
    /// True if the name of the current event ends the stream.
    event_ends: bool,
    tokens: u32,
    /// The kinds of events that have passed.
    passed: PassedEvents,
    ending: StreamEnding,
    usage: Option<Usage>,
}

/// The reports of a stream about its end.
#[derive(Debug, Clone, Copy, Default)]
struct StreamEnding {
    done: bool,
    /// True if an event has reported why the generation ended.
    has_reason: bool,
    error: bool,
}

impl StreamEnding {
    /// Joins these reports and others.
    fn join(&mut self, others: Self) {
        self.done |= others.done;
        self.has_reason |= others.has_reason;
        self.error |= others.error;
    }
}

impl EventScanner {
    /// A scanner for the response stream of `operation`.
    pub fn new(operation: Operation, framing: StreamFraming) -> Self {
        Self {
            form: operation.row().events,
            framing,
            partial: Vec::new(),
            longest: MAX_LINE,
            long: None,
            after_carriage_return: false,
            at_boundary: true,
            event_ends: false,
            tokens: 0,
            passed: PassedEvents::new(operation),
            ending: StreamEnding::default(),
            usage: None,
        }
    }

    /// A scanner for the beginning of a stream that its caller holds: each line is read whole.
    pub(super) fn of_held(operation: Operation, framing: StreamFraming) -> Self {
        Self { longest: usize::MAX, ..Self::new(operation, framing) }
    }

    /// Returns whether the stream has ended as its dialect requires. Not every engine sends
    /// `[DONE]`, and some streams have no last event.
    pub fn has_finished(&self) -> bool {
        let lacks_ending = self.form != EventForm::Any || self.passed.lacks_ending();
        self.ending.done || self.ending.has_reason || !lacks_ending
    }

    /// Returns whether the stream has had no event so far, or none but those of a load and the
    /// refusals of something before an engine.
    pub fn is_void(&self) -> bool {
        !self.passed.any
    }

    /// Returns whether the stream starts with the refusal of something before an engine.
    pub(crate) fn has_foreign(&self) -> bool {
        self.passed.foreign
    }

    /// Returns whether the stream has had no output so far, by its events and by its usage.
    pub fn is_empty(&self) -> bool {
        self.form != EventForm::Any && self.passed.show_no_output(self.usage.unwrap_or_default())
    }

    /// Returns whether the last bytes had a token, or the stream has had other output, or the end
    /// of its generation.
    pub(crate) fn has_output(&self) -> bool {
        self.tokens > 0 || self.passed.items || self.has_finished()
    }

    /// Scans the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) -> Progress {
        self.tokens = 0;
        let mut rest = chunk;
        // A CRLF may be split between two chunks.
        if self.after_carriage_return && !chunk.is_empty() {
            self.after_carriage_return = false;
            rest = chunk.strip_prefix(b"\n").unwrap_or(chunk);
        }
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, behind) = split_at(rest, end);
            self.finish_line(line);
            rest = match behind {
                [b'\r', b'\n', more @ ..] => more,
                [b'\r'] => {
                    self.after_carriage_return = true;
                    &[]
                }
                [_, more @ ..] => more,
                [] => &[],
            };
        }
        self.keep(rest);
        Progress { tokens: self.tokens, done: self.ending.done, error: self.ending.error }
    }

    /// Returns the token counts that the stream has reported so far.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Returns whether nothing follows: the last event of the stream has passed, whole. A stream of
    /// llama.cpp's own API has one for each of its prompts.
    pub fn is_over(&self) -> bool {
        self.ending.done && self.at_boundary && self.form != EventForm::Content
    }

    /// Returns the framing of the stream.
    pub fn framing(&self) -> StreamFraming {
        self.framing
    }

    /// Returns whether no event is incomplete, so that penstock may insert another event here.
    pub fn at_boundary(&self) -> bool {
        self.at_boundary
    }

    fn finish_line(&mut self, line: &[u8]) {
        if self.partial.is_empty() && line.len() <= self.longest {
            self.read_line(line);
            return;
        }
        self.keep(line);
        let mut rest = std::mem::take(&mut self.partial);
        if self.long.is_some() {
            self.end_long_line(&rest);
        } else {
            self.read_line(&rest);
        }
        // The allocation serves the next line that is split.
        rest.clear();
        self.partial = rest;
    }

    fn read_line(&mut self, line: &[u8]) {
        // A stream may start with a byte order mark.
        let line = line.strip_prefix(super::BYTE_ORDER_MARK).unwrap_or(line);
        if self.framing == StreamFraming::Lines {
            self.at_boundary = true;
            return self.read_json_line(line);
        }
        self.at_boundary = line.is_empty();
        if let Some(data) = line.strip_prefix(DATA) {
            self.read_data(data.strip_prefix(b" ").unwrap_or(data));
        } else if let Some(name) = line.strip_prefix(b"event:") {
            self.read_type(name.trim_ascii());
        } else if line.is_empty() {
            // An empty line ends the event, and with it the effect of its name.
            self.ending.done |= std::mem::take(&mut self.event_ends);
            self.passed.end_event();
        }
    }

    fn read_data(&mut self, data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.ending.done = true;
            return;
        }
        self.passed.note(data);
        let has_token = match self.form {
            EventForm::ChatDelta | EventForm::BlockDelta => has_token_in_delta(data),
            EventForm::CompletionText => has_string_at(&TEXT, data),
            EventForm::Content => has_string_at(&CONTENT, data),
            EventForm::TypedDelta => {
                has_string_at(&DELTA, data) && DELTA_EVENT.find(data).is_some()
            }
            EventForm::JsonLine | EventForm::Any => true,
        };
        if has_token {
            self.tokens += 1;
            self.passed.note_token(self.form, data);
        }
        if let Some(name) = reason_of(self.form) {
            self.read_reason(name, data);
        }
        if !has_token
            || matches!(self.form, EventForm::Any | EventForm::JsonLine | EventForm::Content)
        {
            // Few events have no token, so the cost of parsing them whole is small.
            _ = self.read_rest(data);
        }
        let usage = find_usage(data);
        // The counts in llama.cpp's own format take five more searches. Only the last event has
        // them, and no token.
        self.add_usage(if has_token { usage } else { usage.or_else(|| find_counts(data)) });
        if self.form == EventForm::ChatDelta && !self.passed.tokens {
            self.passed.read_unknown(data, !has_token && usage.is_none());
        }
        self.ending.done |= self.event_ends;
    }

    /// Finds why the generation ended.
    fn read_reason(&mut self, name: &Finder<'_>, data: &[u8]) {
        for mut cursor in members_called(name, data) {
            if cursor.peek() == b'"' {
                let value = cursor.bytes.get(cursor.at + 1..).unwrap_or_default();
                self.ending.has_reason |= value.first().is_some_and(|byte| *byte != b'"');
                self.passed.limit |= LIMITS.iter().any(|reason| value.starts_with(reason));
                self.passed.withheld |=
                    WITHHELD_REASONS.iter().any(|reason| value.starts_with(reason));
                self.ending.error |= FAILED_REASONS.iter().any(|reason| value.starts_with(reason));
            }
        }
    }

    fn read_json_line(&mut self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        let read = JsonLine::read(line);
        let counts_all = self.form == EventForm::Any && !read.is_error;
        self.tokens += u32::from(read.has_token || counts_all);
        self.passed.tokens |= read.is_visible || counts_all;
        if !read.is_load {
            self.passed.note(line);
        }
        self.passed.limit |= read.is_limit;
        self.ending.done |= read.is_done;
        self.ending.error |= read.is_error;
        self.add_usage(read.usage);
    }

    fn add_usage(&mut self, found: Option<Usage>) {
        if let Some(usage) = found {
            self.usage = Some(self.usage.map_or(usage, |earlier| usage.or(earlier)));
        }
    }

    /// Finds errors and the end of the stream among the members of an event.
    fn read_rest(&mut self, data: &[u8]) -> Parsed {
        let mut cursor = Cursor::of_response(data);
        if cursor.peek() != b'{' {
            return Ok(());
        }
        cursor.members(Members::named(EventMember::of), |cursor, member, kind| match member {
            EventMember::Error => {
                self.ending.error |= kind != b'n';
                cursor.skip(kind)
            }
            EventMember::Kind if kind == b'"' => {
                let name = cursor.string()?;
                self.read_type(cursor.raw(name));
                self.passed.read(cursor.raw(name), data);
                Ok(())
            }
            // Some engines complete a response that has failed.
            EventMember::Response if kind == b'{' && self.form == EventForm::TypedDelta => {
                read_status(cursor, &mut self.ending.error)
            }
            EventMember::Stop if self.form == EventForm::Content => {
                self.ending.done |= kind == b't';
                cursor.skip(kind)
            }
            _ => cursor.skip(kind),
        })
    }

    fn read_type(&mut self, name: &[u8]) {
        match name {
            b"response.completed" | b"response.incomplete" | b"message_stop" => {
                self.event_ends = true
            }
            b"response.failed" => {
                self.event_ends = true;
                self.ending.error = true;
            }
            b"error" => self.ending.error = true,
            _ if self.form == EventForm::Any => self.passed.note_media(name),
            _ => {}
        }
    }
}

const DATA: &[u8] = b"data:";

#[cfg(test)]
mod tests;
