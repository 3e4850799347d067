//! Reads the responses of `/api/chat` and `/api/generate`: JSON lines, or one object of the same
//! form.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::content::Arguments;
use super::wire::Count;
use super::{EventSink, ResponseReader, report_halves};
use crate::error::{BadResponse, Done};
use crate::error_body;
use crate::event::{Event, FinishReason, Timings, TokenUsage};
use crate::json::{Text, text_of};
use crate::piece::{Channel, Halves, Piece};
use crate::reply::MAX_CALLS;

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct OllamaLine<'a> {
    message: Option<LineMessage<'a>>,
    response: Option<Piece<'a>>,
    thinking: Option<Piece<'a>>,
    logprobs: Option<&'a RawValue>,
    done: bool,
    done_reason: Option<Text<'a>>,
    load_duration: Option<Count>,
    prompt_eval_count: Option<Count>,
    prompt_eval_duration: Option<Count>,
    eval_count: Option<Count>,
    eval_duration: Option<Count>,
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct LineMessage<'a> {
    content: Option<Piece<'a>>,
    thinking: Option<Piece<'a>>,
    tool_calls: Option<Vec<LineCall<'a>>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct LineCall<'a> {
    id: Option<Text<'a>>,
    function: LineFunction<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct LineFunction<'a> {
    name: Text<'a>,
    arguments: Option<Arguments<'a>>,
}

/// Reads lines and whole responses.
#[derive(Debug, Default)]
pub(crate) struct OllamaReader {
    calls: usize,
    halves: Halves,
}

impl ResponseReader for OllamaReader {
    fn read(&mut self, data: &[u8], sink: &mut EventSink<'_>) -> Done {
        let data = text_of(data);
        let line: OllamaLine<'_> = serde_json::from_str(&data)
            .map_err(|_error| BadResponse::Malformed { expected: "line of Ollama's API" })?;
        if let Some(error) = line.error {
            return sink(Event::Error(&error_body::message_of(error)));
        }
        let (mut thinking, mut text) = (line.thinking, line.response);
        let mut calls = None;
        if let Some(message) = line.message {
            // `/api/chat` nests what `/api/generate` has at the top.
            (thinking, text, calls) = (message.thinking, message.content, message.tool_calls);
        }
        let thinking = thinking.unwrap_or_default();
        let thinking = self.halves.join(Channel::Thinking, &thinking);
        if !thinking.is_empty() {
            sink(Event::Thinking(&thinking))?;
        }
        let text = text.unwrap_or_default();
        let text = self.halves.join(Channel::Text, &text);
        let logprobs = line.logprobs.map(RawValue::get).filter(|list| *list != "[]");
        if !text.is_empty() || logprobs.is_some() {
            sink(Event::Text { text: &text, logprobs })?;
        }
        for call in calls.into_iter().flatten() {
            self.read_call(&call, sink)?;
        }
        if !line.done {
            return Ok(());
        }
        // Before the finish reason: no text may follow it.
        self.end(sink)?;
        let reason = match line.done_reason.as_deref() {
            Some("length") => FinishReason::Length,
            _ => FinishReason::Stop,
        };
        sink(Event::Finish(reason))?;
        let count = |count: Option<Count>| count.map(|Count(count)| count);
        let duration = |time: Option<Count>| count(time).map(Duration::from_nanos);
        sink(Event::Usage(TokenUsage {
            prompt: count(line.prompt_eval_count),
            output: count(line.eval_count),
            ..TokenUsage::default()
        }))?;
        sink(Event::Timings(Timings {
            load: duration(line.load_duration),
            prompt: duration(line.prompt_eval_duration),
            output: duration(line.eval_duration),
        }))?;
        sink(Event::Done)
    }

    fn end(&mut self, sink: &mut EventSink<'_>) -> Done {
        report_halves(&mut self.halves, sink)
    }
}

impl OllamaReader {
    fn read_call(&mut self, call: &LineCall<'_>, sink: &mut EventSink<'_>) -> Done {
        // A client must hold all of them: a broken engine could name calls without end.
        if self.calls >= MAX_CALLS {
            return Err(BadResponse::TooLarge { held: "the tool calls", limit: MAX_CALLS });
        }
        let (place, id) = (self.calls, call.id.as_deref().unwrap_or_default());
        self.calls += 1;
        sink(Event::Call { place, id, name: &call.function.name })?;
        let arguments = call.function.arguments.as_ref().map(|Arguments(piece)| piece.text());
        // Clients parse the arguments, and an empty text is no JSON.
        let piece = arguments.as_deref().filter(|piece| !piece.trim().is_empty()).unwrap_or("{}");
        sink(Event::Arguments { place, piece })
    }
}
