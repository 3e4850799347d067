//! A response gathered from its events: for responses that are no stream, and for tool calls where a
//! dialect sends them whole. Bounded.

use std::borrow::Cow;

use super::error::BadResponse;
use super::event::{Event, FinishReason, Totals};
use super::json::is_object;
use super::limits::ResponseLimits;

/// A tool call whose arguments are complete at the end.
#[derive(Debug, Default)]
pub(super) struct GatheredCall {
    /// The id that the backend gave; may be empty.
    pub(super) id: String,
    /// The tool.
    pub(super) name: String,
    /// The arguments as they came.
    arguments: String,
}

impl GatheredCall {
    /// The arguments as they came.
    pub(super) fn text(&self) -> &str {
        if self.arguments.is_empty() { "{}" } else { &self.arguments }
    }
}

/// The parts of a response.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The text.
    pub(super) text: String,
    /// What the model thought.
    pub(super) thinking: String,
    /// Anthropic's proof of it.
    pub(super) signature: String,
    /// The tool calls.
    pub(super) calls: Vec<GatheredCall>,
    /// The inside of the JSON list of the tokens' probabilities.
    logprobs: String,
    arguments_size: usize,
}

impl Gathered {
    /// The bytes in it.
    pub(super) fn size(&self) -> usize {
        let texts = [&self.text, &self.thinking, &self.signature, &self.logprobs];
        texts.map(String::len).iter().sum::<usize>() + self.arguments_size
    }

    /// Takes in an event.
    pub(super) fn add(
        &mut self,
        event: &Event<'_>,
        limits: &ResponseLimits,
    ) -> Result<(), BadResponse> {
        match *event {
            Event::Text { text, logprobs } => {
                self.text.push_str(text);
                add_inside(&mut self.logprobs, logprobs);
                let size = self.text.len() + self.logprobs.len();
                check_size("the text", size, limits.whole)
            }
            Event::Thinking(text) => {
                self.thinking.push_str(text);
                check_size("the thinking", self.thinking.len(), limits.whole)
            }
            Event::Signature(text) => {
                self.signature.push_str(text);
                check_size("the signature", self.signature.len(), limits.whole)
            }
            Event::Call { id, name, .. } => {
                let (id, name) = (id.to_owned(), name.to_owned());
                self.arguments_size += id.len() + name.len();
                self.calls.push(GatheredCall { id, name, arguments: String::new() });
                check_size("a tool call", self.arguments_size, limits.arguments)
            }
            Event::CallName { place, piece } => {
                self.arguments_size += piece.len();
                check_size("a tool call", self.arguments_size, limits.arguments)?;
                if let Some(call) = self.calls.get_mut(place) {
                    call.name.push_str(piece);
                }
                Ok(())
            }
            Event::Arguments { place, piece } => {
                self.arguments_size += piece.len();
                check_size("the arguments of tool calls", self.arguments_size, limits.arguments)?;
                if let Some(call) = self.calls.get_mut(place) {
                    call.arguments.push_str(piece);
                }
                Ok(())
            }
            Event::Finish(_)
            | Event::StopText(_)
            | Event::Usage(_)
            | Event::Timings(_)
            | Event::Error(_)
            | Event::Done => Ok(()),
        }
    }

    /// The calls with their places and their arguments as a JSON object on one line. A call that the
    /// limit of tokens cut is left out: no client could run it.
    pub(super) fn whole_calls(
        &self,
        totals: &Totals,
    ) -> Result<Vec<(usize, &GatheredCall, String)>, BadResponse> {
        let is_cut = totals.finish == Some(FinishReason::Length);
        let mut whole = Vec::with_capacity(self.calls.len());
        for (place, call) in self.calls.iter().enumerate() {
            match object_of(&call.arguments) {
                Ok(arguments) => whole.push((place, call, arguments)),
                Err(_) if is_cut && place + 1 == self.calls.len() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(whole)
    }

    /// The probabilities of the tokens, as the inside of a JSON list.
    pub(super) fn logprobs(&self) -> Option<&str> {
        (!self.logprobs.is_empty()).then_some(&self.logprobs)
    }
}

/// Arguments as a JSON object on one line; empty ones are an empty object.
fn object_of(arguments: &str) -> Result<String, BadResponse> {
    let text = arguments.trim();
    if text.is_empty() {
        return Ok("{}".to_owned());
    }
    if !is_object(text) {
        return Err(BadResponse::BadArguments);
    }
    // Line breaks of JSON are outside its strings. They would end a line of a stream.
    Ok(text.replace(['\n', '\r'], " "))
}

/// Appends the items of a JSON list to the inside of another.
pub(super) fn add_inside(inside: &mut String, list: Option<&str>) {
    let items = list.and_then(|list| list.strip_prefix('[')?.strip_suffix(']'));
    let items = items.unwrap_or_default().trim();
    if !items.is_empty() {
        if !inside.is_empty() {
            inside.push(',');
        }
        inside.push_str(items);
    }
}

/// The id of a tool call: the backend's, else one made of the request's.
pub(super) fn call_id<'i>(id: &'i str, place: usize, request_id: &str) -> Cow<'i, str> {
    if id.is_empty() { format!("call_{request_id}_{place}").into() } else { id.into() }
}

/// Refuses what is larger than its limit, in bytes.
pub(super) fn check_size(held: &'static str, size: usize, limit: usize) -> Result<(), BadResponse> {
    if size > limit { Err(BadResponse::TooLarge { held, limit }) } else { Ok(()) }
}
