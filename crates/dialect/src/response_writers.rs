//! Writers of responses: one per operation that clients call. Each prints
//! [`Event`](super::event::Event)s as a stream, or gathers them and prints them at the end.

pub(super) mod chat;
pub(super) mod completions;
pub(super) mod in_order;
pub(super) mod messages;
pub(super) mod ollama;
mod openai;
pub(super) mod responses;

use std::time::Duration;

use super::error::Done;
use super::event::{Event, Totals};
use super::gathered::Gathered;
use super::reply::ReplyFacts;

/// The time at which an event is written, and the client it is written for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment<'r> {
    /// The facts about the request and the client.
    pub(super) reply: &'r ReplyFacts,
    /// The time since the request arrived.
    pub(super) elapsed: Duration,
}

/// Writes one response.
pub(super) trait ResponseWriter: Send + std::fmt::Debug {
    /// Writes an event of the response's content.
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done;

    /// Writes the end of the response.
    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done;

    /// Returns the number of bytes of the response held for later events.
    fn held(&self) -> usize {
        0
    }

    /// Writes that the response failed. Returns whether it did; for most dialects the failure event
    /// has a form that needs no writer.
    fn fail(&mut self, _error: Failure<'_>, _moment: Moment<'_>, _out: &mut Vec<u8>) -> bool {
        false
    }
}

/// The reason why a response failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failure<'f> {
    /// The code of the failure, for programs.
    pub(super) code: &'f str,
    /// The text for people.
    pub(super) message: &'f str,
}

/// Writes a complete response.
pub(super) type WriteWhole = fn(&Gathered, &Totals, Moment<'_>, &mut Vec<u8>) -> Done;

/// Gathers a response and writes it at its end.
pub(super) struct WholeWriter {
    gathered: Gathered,
    write: WriteWhole,
}

impl WholeWriter {
    pub(super) fn new(write: WriteWhole) -> Self {
        Self { gathered: Gathered::default(), write }
    }
}

impl std::fmt::Debug for WholeWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("WholeWriter").field("gathered", &self.gathered).finish()
    }
}

impl ResponseWriter for WholeWriter {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, _out: &mut Vec<u8>) -> Done {
        self.gathered.add(event, &moment.reply.context.limits)
    }

    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        (self.write)(&self.gathered, totals, moment, out)
    }
}
