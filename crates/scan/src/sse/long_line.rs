//! Reads lines longer than `MAX_LINE` in overlapping windows. A name and its value of up to
//! `OVERLAP` bytes are whole in one window. Top-level members are read in the first window; later
//! windows are searched for names: generated text has a backslash before each of its quotes. So a
//! response that has failed by its `status` is found in the first window only: its items have such
//! a member, too.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use memchr::{memchr, memrchr};
use penstock_api::slices::{after, split_at};
use penstock_api::{EventForm, StreamFraming};

use super::delta::{DELTA, DeltaPart, has_string_at, has_visible_string_at, reason_of};
use super::passed::has_choices;
use super::{CONTENT, DATA, DELTA_EVENT, EventScanner, StreamEnding, TEXT};
use crate::blank::{after_blank, is_cut_off};
use crate::failed_choice::is_withheld;
use crate::json_line::JsonLine;
use crate::member_name::members_called;
use crate::{BYTE_ORDER_MARK, Usage, find_counts, find_usage};

static TYPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"type\""));
static STOP: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"stop\""));
static DONE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"done\""));

/// The end of a window that the next one begins with: longer than a `usage`.
const OVERLAP: usize = 4 << 10;

/// The types that end a stream.
const ENDS: [&[u8]; 4] =
    [b"response.completed", b"response.incomplete", b"response.failed", b"message_stop"];
/// The starts of the types of events that may have an item.
const ITEMS: [&[u8]; 2] = [b"response.output_item", b"content_block_start"];

/// The windows of a line so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LongLine {
    /// True if it has the data of an event, and is no comment.
    is_data: bool,
    has_token: bool,
    /// True if some of it is more than white space.
    is_visible: bool,
    /// True if its text is white space so far, and goes on in the next window.
    is_blank_so_far: bool,
    /// True if a window has ended within a delta that is an object.
    is_in_delta: bool,
    /// True if it has a delta that is a text.
    has_delta: bool,
    /// True if its type is that of a delta.
    is_delta: bool,
    /// True if a member `text` is visible.
    has_text: bool,
    /// True if its type is that of a response which is incomplete.
    is_incomplete: bool,
    /// True if it may report that its output is withheld.
    is_withheld: bool,
    /// True if it starts a message, whose output has not started.
    is_start: bool,
    /// True if a chat has something filled beside its choices.
    is_beside: bool,
    has_choices: bool,
    has_usage: bool,
    /// True if a line of JSON is the last one.
    is_last: bool,
    /// The reports that count once the line has ended.
    ending: StreamEnding,
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
        self.ending.join(line.ending);
        if line.has_text {
            self.passed.note_text();
        }
        self.passed.withheld |= line.is_incomplete && line.is_withheld;
        self.passed.items |= line.is_beside && !line.has_choices && !line.has_usage;
        match self.framing {
            StreamFraming::Events => self.ending.done |= line.is_data && self.event_ends,
            StreamFraming::Lines => {
                self.ending.done |= line.is_last;
                self.at_boundary = true;
            }
        }
    }

    fn read_window(&mut self, window: &[u8]) {
        // A line that is cut off reports nothing.
        let before = std::mem::take(&mut self.ending);
        let (mut line, window) = match self.long {
            Some(line) => (line, window),
            None => self.read_start(window),
        };
        if line.is_data && self.form != EventForm::Any {
            match self.framing {
                StreamFraming::Events => self.read_window_of_event(&mut line, window),
                StreamFraming::Lines => {
                    self.continue_blank(&mut line, window);
                    self.add_usage(find_counts(window));
                    // The last one in the line is not part of a call.
                    let states = members_called(&DONE, window);
                    line.is_last =
                        states.map(|mut state| state.peek() == b't').last().unwrap_or(line.is_last);
                }
            }
        }
        line.ending.join(std::mem::replace(&mut self.ending, before));
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
                    line.is_beside = self.passed.read_choices(data);
                }
                if self.form == EventForm::Any {
                    self.note_long_token(&mut line, !self.event_ends, true);
                    // The type of an event may follow its picture, and a kind of stream that is not
                    // known has no ending.
                    self.ending.has_reason |= !self.passed.is_media;
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
                self.ending.done |= read.is_done;
                self.ending.error |= read.is_error;
                self.ending.has_reason |= self.form == EventForm::Any;
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
        self.read_tokens(line, window);
        self.continue_blank(line, window);
        if let Some(name) = reason_of(self.form) {
            self.read_reason(name, window);
        }
        match self.form {
            EventForm::TypedDelta | EventForm::BlockDelta => self.read_types(line, window),
            EventForm::Content => {
                self.ending.done |=
                    members_called(&STOP, window).any(|mut stop| stop.peek() == b't');
            }
            EventForm::ChatDelta => line.has_choices |= has_choices(window),
            EventForm::CompletionText | EventForm::JsonLine | EventForm::Any => {}
        }
        let usage = find_usage(window);
        line.has_usage |= usage.is_some();
        let usage = usage.or_else(|| find_counts(window));
        self.add_usage(if line.is_start { usage.and_then(Usage::without_output) } else { usage });
    }

    fn read_tokens(&mut self, line: &mut LongLine, window: &[u8]) {
        let (has_token, is_visible) = match self.form {
            EventForm::ChatDelta | EventForm::BlockDelta => self.read_delta(line, window),
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
    }

    /// Reads the deltas in a window. Returns whether it has a token, and a visible one.
    fn read_delta(&mut self, line: &mut LongLine, window: &[u8]) -> (bool, bool) {
        let mut part = DeltaPart::read(window);
        let is_first = self.long.is_none();
        if !is_first && !line.is_visible && !part.is_visible {
            let more = DeltaPart::read_more(window);
            if line.is_in_delta {
                part.has_token |= more.has_token;
                part.is_visible |= more.is_visible;
            } else if self.form == EventForm::ChatDelta {
                // A choice may have its output elsewhere than in a delta.
                self.passed.items |= more.is_visible;
            }
        }
        line.is_in_delta |= part.is_cut;
        (part.has_token, part.is_visible)
    }

    /// Reads the types in a window: of the event, and of what is in it.
    fn read_types(&mut self, line: &mut LongLine, window: &[u8]) {
        for mut kind in members_called(&TYPE, window) {
            if kind.peek() != b'"' {
                continue;
            }
            let value = after(kind.bytes, kind.at + 1);
            let (name, _) = split_at(value, memchr(b'"', value).unwrap_or(0));
            let is_end = ENDS.contains(&name);
            if is_end {
                self.read_type(name);
            }
            if is_end || ITEMS.iter().any(|start| name.starts_with(start)) {
                self.passed.read(name, window);
            }
            line.is_incomplete |= name == b"response.incomplete";
            line.is_start |= name == b"message_start";
        }
        line.has_text |= has_visible_string_at(&TEXT, window);
        line.is_withheld |= is_withheld(window);
    }

    /// Reads on in a text that was white space up to the end of the last window, and notes whether
    /// one ends so with this window.
    fn continue_blank(&mut self, line: &mut LongLine, window: &[u8]) {
        if line.is_blank_so_far {
            let rest = after_blank(after(window, continuation_of(window)));
            line.is_blank_so_far = is_cut_off(rest);
            let is_visible = !line.is_blank_so_far && !rest.starts_with(b"\"");
            self.note_long_token(line, false, is_visible);
        }
        let may_be_blank = (line.has_token || line.has_delta) && !line.is_visible;
        line.is_blank_so_far |= may_be_blank && ends_in_blank(window);
    }

    /// Notes the token of a long line, once, and its first visible text.
    fn note_long_token(&mut self, line: &mut LongLine, has_token: bool, is_visible: bool) {
        line.is_visible |= is_visible;
        self.tokens += u32::from(has_token && !line.has_token);
        line.has_token |= has_token;
        if has_token || (is_visible && line.has_token) {
            self.passed.note_read_token(line.is_visible);
        }
    }
}

/// Returns the place where a text of white space goes on in a window: behind the overlap, or at the
/// escape that the last window has cut.
fn continuation_of(window: &[u8]) -> usize {
    let (overlap, _) = split_at(window, OVERLAP);
    memrchr(b'\\', overlap).filter(|at| at + 6 > OVERLAP).unwrap_or(OVERLAP)
}

/// Returns whether a window ends in a string that is white space so far.
fn ends_in_blank(window: &[u8]) -> bool {
    memrchr(b'"', window).is_some_and(|at| is_cut_off(after_blank(after(window, at + 1))))
}
