//! Readers of responses: one per operation that backends serve. Each turns the data of an event, or
//! a complete response, into [`Event`](super::event::Event)s.

mod chat;
mod completions;
mod content;
mod messages;
mod ollama;
mod wire;

pub(super) use wire::{Count, OpenAiUsage};

use penstock_api::Operation;

use super::error::BadResponse;
use super::event::Event;
use super::framing::Framing;
use super::piece::{Channel, Halves, REPLACEMENT};

/// Takes the events of a response.
pub(super) type Sink<'s> = dyn FnMut(Event<'_>) -> Result<(), BadResponse> + 's;

/// Reads one response.
pub(super) trait ResponseReader: Send + std::fmt::Debug {
    /// Reads the data of one event, or a complete response.
    fn read(&mut self, data: &[u8], sink: &mut Sink<'_>) -> Result<(), BadResponse>;

    /// Reports data that waited for a further piece: no such piece will come.
    fn end(&mut self, sink: &mut Sink<'_>) -> Result<(), BadResponse>;
}

/// Reports the halves of surrogate pairs that have no partner.
fn report_halves(halves: &mut Halves, sink: &mut Sink<'_>) -> Result<(), BadResponse> {
    for channel in halves.take() {
        sink(match channel {
            Channel::Text | Channel::Refusal => Event::Text { text: REPLACEMENT, logprobs: None },
            Channel::Thinking => Event::Thinking(REPLACEMENT),
            Channel::Arguments(place) => Event::Arguments { place, piece: REPLACEMENT },
        })?;
    }
    Ok(())
}

/// Returns the reader of `operation`'s responses and the framing of their stream; `None` if there
/// is none.
pub(super) fn reader_of(operation: Operation) -> Option<(Box<dyn ResponseReader>, Framing)> {
    let (reader, framing): (Box<dyn ResponseReader>, _) = match operation {
        Operation::Chat => (Box::<chat::ChatReader>::default(), Framing::Events),
        Operation::Completions => {
            (Box::<completions::CompletionsReader>::default(), Framing::Events)
        }
        Operation::Messages => (Box::<messages::MessagesReader>::default(), Framing::Events),
        Operation::OllamaChat | Operation::OllamaGenerate => {
            (Box::<ollama::OllamaReader>::default(), Framing::Lines)
        }
        _ => return None,
    };
    Some((reader, framing))
}
