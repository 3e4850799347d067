//! Reads lines that are too long to be held: in windows that overlap, so that whatever a line
//! reports is whole in one of them, wherever chunks end. The members of an event are known by their
//! place in the first window only; what else decides is a name with a value, and in generated text
//! each quote of it would have a backslash.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use penstock_api::slices::{after, split_at};
use penstock_api::{EventForm, StreamFraming};

use super::delta::{
    DELTA, has_string_at, has_token_in_start, has_visible_string_at, has_visible_token_in_start,
    reason_of,
};
use super::{CONTENT, DATA, DELTA_EVENT, EventScanner, TEXT};
use crate::json_line::JsonLine;
use crate::member_name::members_called;
use crate::{BYTE_ORDER_MARK, find_counts, find_usage};

static TYPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"type\""));
static STOP: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"stop\""));
static DONE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"done\""));

/// The end of a window that the next one begins with: longer than a `usage`.
const OVERLAP: usize = 4 << 10;

/// The types that end a stream. Each ends with its quote.
const ENDS: [&[u8]; 4] =
    [b"response.completed\"", b"response.incomplete\"", b"response.failed\"", b"message_stop\""];

/// The windows of a line so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LongLine {
    /// True if it has the data of an event, and is no comment.
    is_data: bool,
    has_token: bool,
    /// True if some of it is more than white space.
    is_visible: bool,
    /// True if it has a delta that is a text.
    has_delta: bool,
    /// True if its type is that of a delta.
    is_delta: bool,
    /// True if a line of JSON is the last one.
    is_last: bool,
}

impl EventScanner {
    /// Keeps a part of a line whose end has not arrived yet.
    pub(super) fn keep(&mut self, piece: &[u8]) {
        let mut rest = piece;
        self.at_boundary &= rest.is_empty();
        loop {
            let room = self.longest.saturating_sub(self.partial.len());
            if rest.len() <= room {
                self.partial.extend_from_slice(rest);
                return;
            }
            let (next, later) = split_at(rest, room);
            let mut window = std::mem::take(&mut self.partial);
            window.extend_from_slice(next);
            self.read_window(&window);
            window.drain(..window.len().saturating_sub(OVERLAP));
            self.partial = window;
            rest = later;
            if self.form == EventForm::Any {
                // Nothing is read in the middle of a picture.
                rest = after(rest, rest.len().saturating_sub(OVERLAP));
            }
        }
    }

    /// Ends a long line; `rest` follows the windows that have been read.
    pub(super) fn end_long_line(&mut self, rest: &[u8]) {
        if self.form == EventForm::Any {
            let tail = after(rest, rest.len().saturating_sub(OVERLAP));
            self.add_usage(find_usage(tail).or_else(|| find_counts(tail)));
        } else {
            self.read_window(rest);
        }
        let line = self.long.take().unwrap_or_default();
        match self.framing {
            StreamFraming::Events => self.done |= line.is_data && self.event_ends,
            StreamFraming::Lines => {
                self.done |= line.is_last;
                self.at_boundary = true;
            }
        }
    }

    fn read_window(&mut self, window: &[u8]) {
        let (mut line, window) = match self.long {
            Some(line) => (line, window),
            None => self.read_start(window),
        };
        if line.is_data && self.form != EventForm::Any {
            match self.framing {
                StreamFraming::Events => self.read_window_of_event(&mut line, window),
                StreamFraming::Lines => {
                    self.add_usage(find_counts(window));
                    // The last one in the line is not part of a call.
                    let states = members_called(&DONE, window);
                    line.is_last =
                        states.map(|mut state| state.peek() == b't').last().unwrap_or(line.is_last);
                }
            }
        }
        self.long = Some(line);
    }

    /// Reads the first window. Returns the line and the data in the window.
    fn read_start<'a>(&mut self, window: &'a [u8]) -> (LongLine, &'a [u8]) {
        let window = window.strip_prefix(BYTE_ORDER_MARK).unwrap_or(window);
        let mut line = LongLine { is_data: true, ..LongLine::default() };
        match (self.framing, window.strip_prefix(DATA)) {
            (StreamFraming::Events, Some(data)) => {
                self.passed.note(data);
                _ = self.read_rest(data);
                if self.form == EventForm::ChatDelta {
                    self.passed.read_unknown(data, true);
                }
                if self.form == EventForm::Any {
                    self.note_long_token(&mut line, !self.event_ends, true);
                    // The type of an event may follow its picture, and a kind of stream that is not
                    // known has no ending.
                    self.has_reason |= !self.passed.is_media;
                }
                (line, data)
            }
            (StreamFraming::Events, None) => (LongLine::default(), window),
            (StreamFraming::Lines, _) => {
                let read = JsonLine::read_start(window);
                let counts_all = self.form == EventForm::Any && !read.is_error;
                if !read.is_load {
                    self.passed.note(window);
                }
                self.passed.limit |= read.is_limit;
                self.done |= read.is_done;
                self.error |= read.is_error;
                self.has_reason |= self.form == EventForm::Any;
                self.note_long_token(
                    &mut line,
                    read.has_token || counts_all,
                    read.is_visible || counts_all,
                );
                (line, window)
            }
        }
    }

    fn read_window_of_event(&mut self, line: &mut LongLine, window: &[u8]) {
        let (has_token, is_visible) = match self.form {
            EventForm::ChatDelta | EventForm::BlockDelta => {
                (has_token_in_start(window), has_visible_token_in_start(window))
            }
            EventForm::CompletionText => (has_string_at(&TEXT, window), true),
            EventForm::Content => (has_string_at(&CONTENT, window), true),
            EventForm::TypedDelta => {
                line.has_delta |= has_string_at(&DELTA, window);
                line.is_delta |= DELTA_EVENT.find(window).is_some();
                (line.has_delta && line.is_delta, has_visible_string_at(&DELTA, window))
            }
            EventForm::JsonLine | EventForm::Any => (true, true),
        };
        self.note_long_token(line, has_token, is_visible);
        if let Some(name) = reason_of(self.form) {
            self.read_reason(name, window);
        }
        match self.form {
            EventForm::TypedDelta | EventForm::BlockDelta => {
                for mut kind in members_called(&TYPE, window) {
                    let is_text = kind.peek() == b'"';
                    let value = after(kind.bytes, kind.at + 1);
                    if let Some(end) = ENDS.iter().find(|end| is_text && value.starts_with(end)) {
                        self.read_type(end.strip_suffix(b"\"").unwrap_or(end));
                    }
                }
                self.passed.read_more(window);
            }
            EventForm::Content => {
                self.done |= members_called(&STOP, window).any(|mut stop| stop.peek() == b't');
            }
            EventForm::ChatDelta
            | EventForm::CompletionText
            | EventForm::JsonLine
            | EventForm::Any => {}
        }
        self.add_usage(find_usage(window).or_else(|| find_counts(window)));
    }

    /// Notes the token of a long line, once.
    fn note_long_token(&mut self, line: &mut LongLine, has_token: bool, is_visible: bool) {
        line.is_visible |= is_visible;
        if has_token {
            self.tokens += u32::from(!line.has_token);
            self.passed.note_read_token(line.is_visible);
        }
        line.has_token |= has_token;
    }
}
