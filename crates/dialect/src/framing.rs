//! Splits the bytes of a response stream into events: server-sent events or JSON lines. Chunks may
//! end anywhere without any effect on the events.

use memchr::memchr2;
use penstock_api::slices::split_at;

use super::error::{BadResponse, Done};
use super::json::BYTE_ORDER_MARK;

/// The separation of events in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Server-sent events.
    Events,
    /// JSON lines.
    Lines,
    /// No stream: the response is one JSON text.
    Whole,
}

/// One event of a stream, or a complete response.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitEvent<'a> {
    pub(super) data: &'a [u8],
    /// True if the event is called `error`.
    pub(super) is_error: bool,
}

impl<'a> SplitEvent<'a> {
    fn of(data: &'a [u8]) -> Self {
        Self { data, is_error: false }
    }
}

/// Collects the events of one response.
#[derive(Debug)]
pub(super) struct EventSplitter {
    framing: Framing,
    /// The start of a line whose end has not arrived, or of the complete response.
    line: Vec<u8>,
    /// The data of the event whose lines have arrived so far.
    data: Vec<u8>,
    /// True if the event is called `error`.
    is_error: bool,
    after_carriage_return: bool,
    limit: usize,
}

impl EventSplitter {
    /// Creates a splitter of events of at most `limit` bytes.
    pub(super) fn new(framing: Framing, limit: usize) -> Self {
        let (line, data) = (Vec::new(), Vec::new());
        Self { framing, line, data, is_error: false, after_carriage_return: false, limit }
    }

    /// Returns the number of bytes that wait for the end of an event, or of the complete response.
    pub(super) fn held(&self) -> usize {
        self.line.len() + self.data.len()
    }

    /// Splits the next bytes, and calls `on_event` with the data of each event.
    pub(super) fn feed(
        &mut self,
        payload: &[u8],
        on_event: &mut impl FnMut(SplitEvent<'_>) -> Done,
    ) -> Done {
        if self.framing == Framing::Whole {
            return self.hold(payload);
        }
        let mut rest = payload;
        // CR LF may be split between two chunks, and is one line end (WHATWG HTML, 9.2.5).
        if self.after_carriage_return && !payload.is_empty() {
            self.after_carriage_return = false;
            rest = payload.strip_prefix(b"\n").unwrap_or(payload);
        }
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, behind) = split_at(rest, end);
            rest = match behind {
                [b'\r', b'\n', more @ ..] => more,
                [b'\r'] => {
                    self.after_carriage_return = true;
                    &[]
                }
                [_, more @ ..] => more,
                [] => &[],
            };
            // The usual case: the line lies within the chunk and is not copied.
            if self.line.is_empty() {
                self.end_line(line, on_event)?;
                continue;
            }
            self.hold(line)?;
            let mut whole = std::mem::take(&mut self.line);
            self.end_line(&whole, on_event)?;
            whole.clear();
            // The buffer stays allocated for the next line that is split.
            self.line = whole;
        }
        self.hold(rest)
    }

    /// Ends the stream: an event without its last line break still counts.
    pub(super) fn finish(&mut self, on_event: &mut impl FnMut(SplitEvent<'_>) -> Done) -> Done {
        let line = std::mem::take(&mut self.line);
        match self.framing {
            Framing::Whole => on_event(SplitEvent::of(&line)),
            Framing::Lines => self.end_line(&line, on_event),
            Framing::Events => {
                self.end_line(&line, on_event)?;
                self.end_line(b"", on_event)
            }
        }
    }

    fn hold(&mut self, piece: &[u8]) -> Done {
        self.check(self.line.len() + piece.len())?;
        self.line.extend_from_slice(piece);
        Ok(())
    }

    fn check(&self, length: usize) -> Done {
        let held = if self.framing == Framing::Whole { "the body" } else { "an event" };
        let error = BadResponse::TooLarge { held, limit: self.limit };
        if length > self.limit { Err(error) } else { Ok(()) }
    }

    fn end_line(&mut self, line: &[u8], on_event: &mut impl FnMut(SplitEvent<'_>) -> Done) -> Done {
        if self.framing == Framing::Lines {
            let is_blank = line.trim_ascii().is_empty();
            return if is_blank { Ok(()) } else { on_event(SplitEvent::of(line)) };
        }
        if line.is_empty() {
            let is_error = std::mem::take(&mut self.is_error);
            if self.data.trim_ascii().is_empty() {
                self.data.clear();
                return Ok(());
            }
            let mut data = std::mem::take(&mut self.data);
            let result = on_event(SplitEvent { data: &data, is_error });
            data.clear();
            self.data = data;
            return result;
        }
        // A stream may start with a byte order mark.
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        if let Some(name) = line.strip_prefix(b"event:") {
            self.is_error = name.trim_ascii() == b"error";
        }
        // Comments (pings), names, ids and retry times carry no data.
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(()) };
        let data = data.strip_prefix(b" ").unwrap_or(data);
        self.check(self.data.len() + data.len() + 1)?;
        if !self.data.is_empty() {
            // Between two lines of one JSON text any whitespace is equivalent, and a space ends no
            // line.
            self.data.push(b' ');
        }
        self.data.extend_from_slice(data);
        Ok(())
    }
}
