//! A response gathered from its events, for complete responses, and for tool calls in dialects that
//! send them in one piece. Bounded.

use std::borrow::Cow;

use super::error::{BadResponse, Done};
use super::event::{Event, FinishReason, Totals};
use super::json::is_object;
use super::reply::ResponseLimits;

/// A tool call whose arguments are complete at the end.
#[derive(Debug, Default)]
pub(super) struct GatheredCall {
    /// The id from the backend; may be empty.
    pub(super) id: String,
    /// The name of the tool.
    pub(super) name: String,
    /// The arguments as they came.
    pub(super) arguments: String,
}

impl GatheredCall {
    /// Returns the arguments as they came; empty ones become an empty object.
    pub(super) fn text(&self) -> &str {
        if self.arguments.trim_ascii().is_empty() { "{}" } else { &self.arguments }
    }
}

/// The parts of a response.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The text.
    pub(super) text: String,
    /// The text in which the model refuses to respond.
    pub(super) refusal: String,
    /// The model's thinking.
    pub(super) thinking: String,
    /// Anthropic's proof of the thinking.
    pub(super) signature: String,
    /// The tool calls.
    pub(super) calls: Vec<GatheredCall>,
    /// The token probabilities: the inside of a JSON list.
    logprobs: String,
    arguments_size: usize,
}

impl Gathered {
    /// Returns the number of bytes held.
    pub(super) fn size(&self) -> usize {
        let texts = [&self.text, &self.refusal, &self.thinking, &self.signature, &self.logprobs];
        texts.map(String::len).iter().sum::<usize>() + self.arguments_size
    }

    /// Adds an event.
    pub(super) fn add(&mut self, event: &Event<'_>, limits: &ResponseLimits) -> Done {
        match *event {
            Event::Text { text, logprobs } => {
                self.text.push_str(text);
                add_inside(&mut self.logprobs, logprobs);
                let size = self.text.len() + self.logprobs.len();
                check_size("the text", size, limits.whole)
            }
            Event::Refusal(text) => {
                self.refusal.push_str(text);
                check_size("the text", self.refusal.len(), limits.whole)
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

    /// Returns the calls with their indexes, and their arguments as a JSON object on one line. A
    /// call that the token limit cut is left out: no client could run it.
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

    /// Returns the token probabilities, as the inside of a JSON list.
    pub(super) fn logprobs(&self) -> Option<&str> {
        (!self.logprobs.is_empty()).then_some(&self.logprobs)
    }
}

/// Returns arguments as a JSON object on one line; empty ones become an empty object.
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

/// Returns the id of a tool call: the backend's, else one derived from the request's.
pub(super) fn call_id<'i>(id: &'i str, place: usize, request_id: &str) -> Cow<'i, str> {
    if id.is_empty() { format!("call_{request_id}_{place}").into() } else { id.into() }
}

/// Refuses sizes above their limit, in bytes.
pub(super) fn check_size(held: &'static str, size: usize, limit: usize) -> Done {
    if size > limit { Err(BadResponse::TooLarge { held, limit }) } else { Ok(()) }
}
