//! Reads the responses of Anthropic's `/v1/messages`: whole, and as events.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::wire::Count;
use super::{EventSink, ResponseReader, report_halves};
use crate::error::{BadResponse, Done};
use crate::error_body;
use crate::event::{Event, FinishReason, TokenUsage};
use crate::json::{Text, text_of};
use crate::piece::{Channel, Halves, Piece};
use crate::reply::MAX_CALLS;

/// An event, or a complete message; the type distinguishes them.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct Data<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    index: Option<Count>,
    message: Option<MessageStart<'a>>,
    content_block: Option<ContentBlock<'a>>,
    delta: Option<MessagesDelta<'a>>,
    content: Option<Vec<ContentBlock<'a>>>,
    stop_reason: Option<Text<'a>>,
    stop_sequence: Option<Text<'a>>,
    usage: Option<AnthropicUsage>,
    error: Option<&'a RawValue>,
}

/// The message at the start of a stream.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct MessageStart<'a> {
    usage: Option<AnthropicUsage>,
    stop_reason: Option<Text<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ContentBlock<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    text: Option<Piece<'a>>,
    thinking: Option<Piece<'a>>,
    signature: Option<Text<'a>>,
    id: Option<Text<'a>>,
    name: Option<Text<'a>>,
    input: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct MessagesDelta<'a> {
    text: Option<Piece<'a>>,
    thinking: Option<Piece<'a>>,
    signature: Option<Text<'a>>,
    partial_json: Option<Piece<'a>>,
    stop_reason: Option<Text<'a>>,
    stop_sequence: Option<Text<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AnthropicUsage {
    input_tokens: Option<Count>,
    cache_read_input_tokens: Option<Count>,
    cache_creation_input_tokens: Option<Count>,
    output_tokens: Option<Count>,
}

impl From<AnthropicUsage> for TokenUsage {
    fn from(usage: AnthropicUsage) -> Self {
        let count = |count: Option<Count>| count.map_or(0, |Count(count)| count);
        let cached = count(usage.cache_read_input_tokens);
        let created = count(usage.cache_creation_input_tokens);
        // Anthropic counts cached tokens separately. Some engines send 0 while the count is
        // unknown.
        let prompt = count(usage.input_tokens) + cached + created;
        let output = count(usage.output_tokens);
        let known = |count: u64| (count > 0).then_some(count);
        Self { prompt: known(prompt), cached: known(cached), output: known(output), thinking: None }
    }
}

/// Reads events and whole messages.
#[derive(Debug, Default)]
pub(crate) struct MessagesReader {
    /// The index of the content block of each call.
    blocks: Vec<u64>,
    /// The index of the last block that is nothing for the client: a tool that the platform runs,
    /// or its result.
    ignored: Option<u64>,
    halves: Halves,
}

impl ResponseReader for MessagesReader {
    fn read(&mut self, data: &[u8], sink: &mut EventSink<'_>) -> Done {
        let data = text_of(data);
        let data: Data<'_> = serde_json::from_str(&data)
            .map_err(|_error| BadResponse::Malformed { expected: "event of Anthropic's API" })?;
        if let Some(error) = data.error {
            return sink(Event::Error(&error_body::message_of(error)));
        }
        let Count(index) = data.index.unwrap_or(Count(0));
        match (&*data.kind, data.content_block, data.delta) {
            ("content_block_start", Some(block), _) => self.start_block(&block, index, sink),
            ("content_block_delta", _, Some(delta)) => self.read_delta(&delta, index, sink),
            ("message_delta", _, Some(delta)) => {
                stop(delta.stop_reason.as_deref(), delta.stop_sequence.as_deref(), sink)?;
                data.usage.map_or(Ok(()), |usage| sink(Event::Usage(usage.into())))
            }
            ("message_start", ..) => {
                // The input tokens come here, the output tokens with `message_delta`.
                let Some(head) = data.message else { return Ok(()) };
                stop(head.stop_reason.as_deref(), None, sink)?;
                head.usage.map_or(Ok(()), |usage| sink(Event::Usage(usage.into())))
            }
            ("message_stop", ..) => {
                // Before the last event: no text may follow it.
                self.end(sink)?;
                sink(Event::Done)
            }
            ("message", ..) => {
                for (block, index) in data.content.into_iter().flatten().zip(0..) {
                    self.start_block(&block, index, sink)?;
                }
                stop(data.stop_reason.as_deref(), data.stop_sequence.as_deref(), sink)?;
                data.usage.map_or(Ok(()), |usage| sink(Event::Usage(usage.into())))
            }
            // Pings, the ends of blocks, and future events.
            _ => Ok(()),
        }
    }

    fn end(&mut self, sink: &mut EventSink<'_>) -> Done {
        report_halves(&mut self.halves, sink)
    }
}

impl MessagesReader {
    fn start_block(
        &mut self,
        block: &ContentBlock<'_>,
        index: u64,
        sink: &mut EventSink<'_>,
    ) -> Done {
        self.send_text(block.text.as_ref(), sink)?;
        self.send_thinking(block.thinking.as_ref(), block.signature.as_deref(), sink)?;
        if &*block.kind != "tool_use" {
            self.ignored = Some(index);
            return Ok(());
        }
        if self.blocks.len() >= MAX_CALLS {
            return Err(BadResponse::TooLarge { held: "the tool calls", limit: MAX_CALLS });
        }
        let place = self.blocks.len();
        self.blocks.push(index);
        let id = block.id.as_deref().unwrap_or_default();
        sink(Event::Call { place, id, name: block.name.as_deref().unwrap_or_default() })?;
        match block.input.map(RawValue::get) {
            // In a stream the arguments follow as pieces.
            None | Some("{}") => Ok(()),
            Some(piece) => sink(Event::Arguments { place, piece }),
        }
    }

    fn read_delta(
        &mut self,
        delta: &MessagesDelta<'_>,
        index: u64,
        sink: &mut EventSink<'_>,
    ) -> Done {
        self.send_text(delta.text.as_ref(), sink)?;
        self.send_thinking(delta.thinking.as_ref(), delta.signature.as_deref(), sink)?;
        let Some(piece) = delta.partial_json.as_ref().filter(|piece| !piece.is_empty()) else {
            return Ok(());
        };
        if self.ignored == Some(index) {
            return Ok(());
        }
        let Some(place) = self.blocks.iter().rposition(|block| *block == index) else {
            return Err(BadResponse::Malformed { expected: "event of Anthropic's API" });
        };
        let piece = self.halves.join(Channel::Arguments(place), piece);
        if piece.is_empty() { Ok(()) } else { sink(Event::Arguments { place, piece: &piece }) }
    }

    fn send_text(&mut self, piece: Option<&Piece<'_>>, sink: &mut EventSink<'_>) -> Done {
        let Some(piece) = piece else { return Ok(()) };
        let text = self.halves.join(Channel::Text, piece);
        if text.is_empty() { Ok(()) } else { sink(Event::Text { text: &text, logprobs: None }) }
    }

    fn send_thinking(
        &mut self,
        thinking: Option<&Piece<'_>>,
        signature: Option<&str>,
        sink: &mut EventSink<'_>,
    ) -> Done {
        if let Some(piece) = thinking {
            let text = self.halves.join(Channel::Thinking, piece);
            if !text.is_empty() {
                sink(Event::Thinking(&text))?;
            }
        }
        match signature {
            None | Some("") => Ok(()),
            Some(signature) => sink(Event::Signature(signature)),
        }
    }
}

fn stop(reason: Option<&str>, text: Option<&str>, sink: &mut EventSink<'_>) -> Done {
    if let Some(text) = text {
        sink(Event::StopText(text))?;
    }
    let reason = match reason {
        None => return Ok(()),
        Some("max_tokens" | "model_context_window_exceeded") => FinishReason::Length,
        Some("tool_use") => FinishReason::ToolCalls,
        Some("refusal") => FinishReason::ContentFilter,
        Some(_) => FinishReason::Stop,
    };
    sink(Event::Finish(reason))
}
