//! Readers of responses: one per operation that backends serve. Each turns the data of an event, or
//! a complete response, into [`Event`](super::event::Event)s.

pub(super) mod chat;
pub(super) mod completions;
mod content;
pub(super) mod messages;
pub(super) mod ollama;
mod wire;

pub(super) use wire::{Count, OpenAiUsage};

use super::error::Done;
use super::event::Event;
use super::piece::{Channel, Halves, REPLACEMENT};

/// Takes the events of a response.
pub(super) type EventSink<'s> = dyn FnMut(Event<'_>) -> Done + 's;

/// Reads one response.
pub(super) trait ResponseReader: Send + std::fmt::Debug {
    /// Reads the data of one event, or a complete response.
    fn read(&mut self, data: &[u8], sink: &mut EventSink<'_>) -> Done;

    /// Reports data that waited for a further piece: no such piece will come.
    fn end(&mut self, sink: &mut EventSink<'_>) -> Done;
}

/// Reports the halves of surrogate pairs that have no partner.
fn report_halves(halves: &mut Halves, sink: &mut EventSink<'_>) -> Done {
    for channel in halves.take() {
        sink(match channel {
            Channel::Text => Event::Text { text: REPLACEMENT, logprobs: None },
            Channel::Refusal => Event::Refusal(REPLACEMENT),
            Channel::Thinking => Event::Thinking(REPLACEMENT),
            Channel::Arguments(place) => Event::Arguments { place, piece: REPLACEMENT },
        })?;
    }
    Ok(())
}
