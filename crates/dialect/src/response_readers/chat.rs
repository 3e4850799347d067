//! Reads the responses of `/v1/chat/completions`: whole, and as chunks.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::content::{Arguments, MessageContent};
use super::wire::{Count, is_end, read_chunk};
use super::{EventSink, ResponseReader, report_halves};
use crate::error::{BadResponse, Done};
use crate::error_body;
use crate::event::{CallStart, Event, FinishReason, is_failure};
use crate::gathered::check_size;
use crate::json::{Text, is_string, text_of};
use crate::json_end::JsonEnd;
use crate::piece::{Channel, Halves, Piece};
use crate::reply::{MAX_CALLS, MAX_NAME};

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ChatChoice<'a> {
    index: Option<Count>,
    #[serde(alias = "message")]
    delta: Option<ChatDelta<'a>>,
    finish_reason: Option<Text<'a>>,
    /// The text or the token that ended the generation, in vLLM.
    stop_reason: Option<&'a RawValue>,
    /// The same, in SGLang.
    matched_stop: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    logprobs: Option<ChatLogprobs<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ChatLogprobs<'a> {
    content: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ChatDelta<'a> {
    content: Option<MessageContent<'a>>,
    reasoning_content: Option<MessageContent<'a>>,
    reasoning: Option<MessageContent<'a>>,
    refusal: Option<Piece<'a>>,
    tool_calls: Option<Vec<CallDelta<'a>>>,
    /// The only call of a message, before there were `tool_calls`.
    function_call: Option<FunctionDelta<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct CallDelta<'a> {
    index: Option<Count>,
    id: Option<Text<'a>>,
    function: Option<FunctionDelta<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct FunctionDelta<'a> {
    name: Option<Text<'a>>,
    arguments: Option<Arguments<'a>>,
}

/// A call so far.
#[derive(Debug)]
struct StreamedCall {
    /// The backend's index, which some engines give to all calls.
    index: u64,
    id: String,
    name: String,
    end: JsonEnd,
}

/// Reads chunks and whole responses.
#[derive(Debug, Default)]
pub(crate) struct ChatReader {
    /// The calls so far, by index.
    calls: Vec<StreamedCall>,
    halves: Halves,
}

impl ResponseReader for ChatReader {
    fn read(&mut self, data: &[u8], sink: &mut EventSink<'_>) -> Done {
        if is_end(data) {
            // Before the last event: no text may follow it.
            self.end(sink)?;
            return sink(Event::Done);
        }
        let data = text_of(data);
        let read = |choice, sink: &mut EventSink<'_>| self.read_choice(choice, sink);
        read_chunk(&data, "chat completion", sink, |choice: &ChatChoice<'_>| choice.index, read)
    }

    fn end(&mut self, sink: &mut EventSink<'_>) -> Done {
        report_halves(&mut self.halves, sink)
    }
}

impl ChatReader {
    fn read_choice(&mut self, choice: ChatChoice<'_>, sink: &mut EventSink<'_>) -> Done {
        let mut logprobs = choice.logprobs.and_then(|logprobs| logprobs.content).map(RawValue::get);
        logprobs = logprobs.filter(|list| *list != "[]");
        if let Some(delta) = choice.delta {
            // Some engines fill one of the two, and leave the other empty.
            let thinking = delta.reasoning_content.filter(|content| !content.is_empty());
            let thinking = thinking.or(delta.reasoning).unwrap_or_default();
            self.read_thinking(&thinking, sink)?;
            self.read_content(&delta.content.unwrap_or_default(), &mut logprobs, sink)?;
            if let Some(list) = logprobs {
                sink(Event::Text { text: "", logprobs: Some(list) })?;
            }
            self.send_refusal(&delta.refusal.unwrap_or_default(), sink)?;
            let mut calls = delta.tool_calls.unwrap_or_default();
            if calls.is_empty()
                && let Some(function) = delta.function_call
                && (function.name.is_some() || !self.calls.is_empty())
            {
                calls.push(CallDelta { function: Some(function), ..CallDelta::default() });
            }
            for (position, call) in calls.iter().enumerate() {
                self.read_call(call, position, sink)?;
            }
        }
        if choice.finish_reason.as_deref() == Some("stop")
            && let Some(raw) = choice.stop_reason.or(choice.matched_stop)
            && is_string(raw)
            && let Ok(text) = serde_json::from_str::<Text<'_>>(raw.get())
        {
            sink(Event::StopText(&text))?;
        }
        report_finish(choice.finish_reason, choice.error, sink)
    }

    /// Reads a content. The probabilities go with the first text.
    fn read_content(
        &mut self,
        content: &MessageContent<'_>,
        logprobs: &mut Option<&str>,
        sink: &mut EventSink<'_>,
    ) -> Done {
        let chunks = match content {
            MessageContent::Text(text) => {
                return self.send_text(text, logprobs.take(), sink);
            }
            MessageContent::Chunks(chunks) => chunks,
        };
        for chunk in chunks {
            if let Some(thinking) = &chunk.thinking {
                self.read_thinking(thinking, sink)?;
            }
            if let Some(text) = &chunk.text {
                self.send_text(text, logprobs.take(), sink)?;
            }
            if let Some(text) = &chunk.refusal {
                self.send_refusal(text, sink)?;
            }
        }
        Ok(())
    }

    fn read_thinking(&mut self, content: &MessageContent<'_>, sink: &mut EventSink<'_>) -> Done {
        match content {
            MessageContent::Text(piece) => {
                let text = self.halves.join(Channel::Thinking, piece);
                if text.is_empty() { Ok(()) } else { sink(Event::Thinking(&text)) }
            }
            MessageContent::Chunks(chunks) => chunks.iter().try_for_each(|chunk| {
                if let Some(text) = &chunk.text {
                    let text = self.halves.join(Channel::Thinking, text);
                    sink(Event::Thinking(&text))?;
                }
                match &chunk.thinking {
                    Some(thinking) => self.read_thinking(thinking, sink),
                    None => Ok(()),
                }
            }),
        }
    }

    fn send_refusal(&mut self, piece: &Piece<'_>, sink: &mut EventSink<'_>) -> Done {
        let text = self.halves.join(Channel::Refusal, piece);
        if text.is_empty() { Ok(()) } else { sink(Event::Refusal(&text)) }
    }

    fn send_text(
        &mut self,
        piece: &Piece<'_>,
        logprobs: Option<&str>,
        sink: &mut EventSink<'_>,
    ) -> Done {
        let text = self.halves.join(Channel::Text, piece);
        if text.is_empty() && logprobs.is_none() {
            return Ok(());
        }
        sink(Event::Text { text: &text, logprobs })
    }

    fn read_call(
        &mut self,
        delta: &CallDelta<'_>,
        position: usize,
        sink: &mut EventSink<'_>,
    ) -> Done {
        let id = delta.id.as_deref().unwrap_or_default();
        let index = delta.index.map_or(position as u64, |Count(index)| index);
        let function = delta.function.as_ref();
        let name = function.and_then(|function| function.name.as_deref()).unwrap_or_default();
        let arguments = function.and_then(|function| function.arguments.as_ref());
        let arguments = arguments.map(|Arguments(piece)| piece).filter(|piece| !piece.is_empty());
        let place = match self.place_of(index, id, name) {
            Some(place) => {
                self.add_name(&CallStart { place, id, name }, arguments.is_some(), sink)?;
                place
            }
            None if self.calls.len() >= MAX_CALLS => {
                return Err(BadResponse::TooLarge { held: "the tool calls", limit: MAX_CALLS });
            }
            None => {
                let place = self.calls.len();
                sink(Event::Call { place, id, name })?;
                let (id, name, end) = (id.to_owned(), name.to_owned(), JsonEnd::default());
                self.calls.push(StreamedCall { index, id, name, end });
                place
            }
        };
        let Some(piece) = arguments else { return Ok(()) };
        let piece = self.halves.join(Channel::Arguments(place), piece);
        if piece.is_empty() {
            return Ok(());
        }
        if let Some(call) = self.calls.get_mut(place) {
            call.end.feed(&piece);
        }
        sink(Event::Arguments { place, piece: &piece })
    }

    /// Returns the index of the call that a delta belongs to; `None` for a new call.
    fn place_of(&self, index: u64, id: &str, name: &str) -> Option<usize> {
        // Some engines give every call the index 0: another id with a name is another call.
        let is_same = |call: &StreamedCall| {
            call.index == index && (id.is_empty() || name.is_empty() || call.id == id)
        };
        let place = self.calls.iter().rposition(is_same)?;
        // If they give no id either, a name after complete arguments is another call.
        let is_next = id.is_empty()
            && !name.is_empty()
            && self.calls.get(place).is_some_and(|call| call.end.is_whole());
        (!is_next).then_some(place)
    }

    /// Adds to the name of a call that has started: its next piece, or the same name again.
    fn add_name(
        &mut self,
        start: &CallStart<'_>,
        has_arguments: bool,
        sink: &mut EventSink<'_>,
    ) -> Done {
        let CallStart { place, id, name } = *start;
        let Some(call) = self.calls.get_mut(place) else { return Ok(()) };
        // Engines that repeat the name also repeat the id, or send it with every piece of the
        // arguments.
        let is_repeated = *call.name == *name && (!id.is_empty() || has_arguments);
        if name.is_empty() || is_repeated || call.end.has_started() {
            return Ok(());
        }
        check_size("the name of a tool", call.name.len() + name.len(), MAX_NAME)?;
        call.name.push_str(name);
        sink(Event::CallName { place, piece: name })
    }
}

/// Reports why a choice has ended: by an `error`, where its `finish_reason` says so.
///
/// # Errors
/// [`BadResponse::GenerationFailed`] if the reason reports a failure that has no text.
pub(super) fn report_finish(
    reason: Option<Text<'_>>,
    error: Option<&RawValue>,
    sink: &mut EventSink<'_>,
) -> Done {
    match (reason, error) {
        (None, _) => Ok(()),
        (Some(reason), Some(error)) if is_failure(&reason) => {
            sink(Event::Error(&error_body::message_of(error)))
        }
        (Some(reason), _) => sink(Event::Finish(finish_reason(&reason)?)),
    }
}

/// Returns the meaning of OpenAI's `finish_reason`.
///
/// # Errors
/// [`BadResponse::GenerationFailed`] if it reports a failure.
fn finish_reason(name: &str) -> Result<FinishReason, BadResponse> {
    Ok(match name {
        "length" => FinishReason::Length,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        "content_filter" => FinishReason::ContentFilter,
        _ if is_failure(name) => return Err(BadResponse::GenerationFailed),
        _ => FinishReason::Stop,
    })
}
