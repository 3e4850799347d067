//! Reads the responses of `/v1/chat/completions`: whole, and as chunks.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::wire::{Count, LlamaTimings, OpenAiUsage};
use super::{ResponseReader, Sink};
use crate::dialect::error::BadResponse;
use crate::dialect::error_body;
use crate::dialect::event::{Event, FinishReason};
use crate::dialect::json::Text;
use crate::dialect::limits::MAX_CALLS;

/// A chunk of a stream, or a whole response: their members differ only by `delta` and `message`.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(default, borrow)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<OpenAiUsage>,
    #[serde(default)]
    timings: Option<LlamaTimings>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: Option<Count>,
    #[serde(default, borrow, alias = "message")]
    delta: Option<Delta<'a>>,
    #[serde(default, borrow)]
    finish_reason: Option<Text<'a>>,
    #[serde(default, borrow)]
    logprobs: Option<ChatLogprobs<'a>>,
}

#[derive(Deserialize)]
struct ChatLogprobs<'a> {
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(default, borrow)]
    content: Option<Text<'a>>,
    #[serde(default, borrow)]
    reasoning_content: Option<Text<'a>>,
    #[serde(default, borrow)]
    reasoning: Option<Text<'a>>,
    #[serde(default, borrow)]
    refusal: Option<Text<'a>>,
    #[serde(default, borrow)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
}

#[derive(Deserialize)]
struct CallDelta<'a> {
    #[serde(default)]
    index: Option<Count>,
    #[serde(default, borrow)]
    id: Option<Text<'a>>,
    #[serde(default, borrow)]
    function: Option<FunctionDelta<'a>>,
}

#[derive(Deserialize)]
struct FunctionDelta<'a> {
    #[serde(default, borrow)]
    name: Option<Text<'a>>,
    #[serde(default, borrow)]
    arguments: Option<Text<'a>>,
}

/// Reads chunks and whole responses.
#[derive(Debug, Default)]
pub(super) struct ChatReader {
    /// The calls so far, by place: the backend's index and id.
    calls: Vec<(u64, String)>,
}

impl ResponseReader for ChatReader {
    fn read(&mut self, data: &[u8], sink: &mut Sink<'_>) -> Result<(), BadResponse> {
        if data.trim_ascii() == b"[DONE]" {
            return sink(Event::Done);
        }
        let chunk: Chunk<'_> = serde_json::from_slice(data)
            .map_err(|_error| BadResponse::Malformed { expected: "chat completion" })?;
        if let Some(error) = chunk.error {
            return sink(Event::Error(&error_body::message_of(error)));
        }
        // The other choices of `n` are not requested by any conversion.
        let is_first = |choice: &Choice<'_>| choice.index.is_none_or(|Count(index)| index == 0);
        for choice in chunk.choices.into_iter().flatten().filter(is_first) {
            self.read_choice(choice, sink)?;
        }
        if let Some(timings) = chunk.timings {
            sink(Event::Timings(timings.timings()))?;
            sink(Event::Usage(timings.usage()))?;
        }
        chunk.usage.map_or(Ok(()), |usage| sink(Event::Usage(usage.into())))
    }
}

impl ChatReader {
    fn read_choice(&mut self, choice: Choice<'_>, sink: &mut Sink<'_>) -> Result<(), BadResponse> {
        let logprobs = choice.logprobs.and_then(|logprobs| logprobs.content).map(RawValue::get);
        if let Some(delta) = choice.delta {
            let thinking = delta.reasoning_content.or(delta.reasoning).unwrap_or_default();
            if !thinking.is_empty() {
                sink(Event::Thinking(&thinking))?;
            }
            let text = delta.content.unwrap_or_default();
            if !text.is_empty() || logprobs.is_some_and(|list| list != "[]") {
                sink(Event::Text { text: &text, logprobs })?;
            }
            if let Some(text) = delta.refusal.filter(|text| !text.is_empty()) {
                sink(Event::Text { text: &text, logprobs: None })?;
            }
            for (position, call) in delta.tool_calls.into_iter().flatten().enumerate() {
                self.read_call(&call, position, sink)?;
            }
        }
        match choice.finish_reason.as_deref().map(finish_reason) {
            None => Ok(()),
            Some(reason) => sink(Event::Finish(reason)),
        }
    }

    fn read_call(
        &mut self,
        call: &CallDelta<'_>,
        position: usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), BadResponse> {
        let id = call.id.as_deref().unwrap_or_default();
        let index = call.index.map_or(position as u64, |Count(index)| index);
        let function = call.function.as_ref();
        let name = function.and_then(|function| function.name.as_deref()).unwrap_or_default();
        // Some engines give every call the index 0: another id with a name is another call.
        let is_same = |(own, own_id): &(u64, String)| {
            *own == index && (id.is_empty() || name.is_empty() || own_id == id)
        };
        let place = match self.calls.iter().rposition(is_same) {
            Some(place) => place,
            None if self.calls.len() >= MAX_CALLS => {
                return Err(BadResponse::TooLarge { held: "the tool calls", limit: MAX_CALLS });
            }
            None => {
                self.calls.push((index, id.to_owned()));
                sink(Event::Call { place: self.calls.len() - 1, id, name })?;
                self.calls.len() - 1
            }
        };
        match function.and_then(|function| function.arguments.as_deref()) {
            None | Some("") => Ok(()),
            Some(piece) => sink(Event::Arguments { place, piece }),
        }
    }
}

/// The meaning of OpenAI's `finish_reason`.
pub(super) fn finish_reason(name: &str) -> FinishReason {
    match name {
        "length" => FinishReason::Length,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        "content_filter" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    }
}
