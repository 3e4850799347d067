//! Writes the responses of Anthropic's `/v1/messages`: whole, and as events.

use super::{Moment, ResponseWriter};
use crate::error::{BadResponse, Done};
use crate::event::{Event, FinishReason, Totals};
use crate::gathered::{Gathered, call_id};
use crate::json::ObjectWriter;

/// The content block that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
    /// The call with this index.
    Call(usize),
}

/// The events of a stream.
#[derive(Debug, Default)]
pub(crate) struct MessageEvents {
    has_started: bool,
    open: Option<Open>,
    /// The index of the next content block.
    next_index: u64,
}

impl ResponseWriter for MessageEvents {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        self.start(moment, out);
        match *event {
            Event::Text { text: "", .. } => {}
            Event::Text { text, .. } => {
                self.open_text(out);
                self.delta("text_delta", "text", text, out);
            }
            Event::Thinking(text) => {
                self.open_thinking(out);
                self.delta("thinking_delta", "thinking", text, out);
            }
            Event::Signature(text) => {
                self.open_thinking(out);
                self.delta("signature_delta", "signature", text, out);
            }
            Event::Call { place, id, name } => self.open_block(Open::Call(place), out, |block| {
                block.text("type", "tool_use");
                block.text("id", &call_id(id, place, &moment.reply.context.request_id));
                block.text("name", name);
                block.object("input");
            }),
            Event::Arguments { place, piece } => {
                if self.open != Some(Open::Call(place)) {
                    // Blocks follow each other: a delta for a closed one has no place in this API.
                    return Err(BadResponse::MixedCalls);
                }
                self.delta("input_json_delta", "partial_json", piece, out);
            }
            Event::Refusal(_)
            | Event::CallName { .. }
            | Event::Finish(_)
            | Event::StopText(_)
            | Event::Usage(_)
            | Event::Timings(_)
            | Event::Error(_)
            | Event::Done => {}
        }
        Ok(())
    }

    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        self.start(moment, out);
        if self.next_index == 0 {
            // Clients take the first block without checking that there is one.
            self.open_text(out);
        }
        self.close_block(out);
        named_event("message_delta", out, |event| {
            {
                let mut delta = event.object("delta");
                write_stop(totals, &mut delta);
            }
            write_usage(totals, event);
        });
        named_event("message_stop", out, |_event| {});
        Ok(())
    }
}

impl MessageEvents {
    fn start(&mut self, moment: Moment<'_>, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        named_event("message_start", out, |event| {
            let mut message = event.object("message");
            write_head(moment, &mut message);
            message.list("content");
            message.raw("stop_reason", "null");
            message.raw("stop_sequence", "null");
            // The counts follow at the end of the message.
            write_usage(&Totals::default(), &mut message);
        });
    }

    fn open_text(&mut self, out: &mut Vec<u8>) {
        self.open_block(Open::Text, out, |block| {
            block.text("type", "text");
            block.text("text", "");
        });
    }

    fn open_thinking(&mut self, out: &mut Vec<u8>) {
        self.open_block(Open::Thinking, out, |block| {
            block.text("type", "thinking");
            block.text("thinking", "");
            block.text("signature", "");
        });
    }

    /// Opens a content block, unless it is the open one, and closes the one before.
    fn open_block(
        &mut self,
        block: Open,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut ObjectWriter<'_>),
    ) {
        if self.open == Some(block) {
            return;
        }
        self.close_block(out);
        self.open = Some(block);
        let index = self.next_index;
        self.next_index += 1;
        named_event("content_block_start", out, |event| {
            event.number("index", index);
            fill(&mut event.object("content_block"));
        });
    }

    fn close_block(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            let index = self.index();
            named_event("content_block_stop", out, |event| event.number("index", index));
        }
    }

    /// Returns the index of the open block.
    fn index(&self) -> u64 {
        self.next_index.saturating_sub(1)
    }

    fn delta(&self, kind: &str, member: &str, text: &str, out: &mut Vec<u8>) {
        named_event("content_block_delta", out, |event| {
            event.number("index", self.index());
            let mut delta = event.object("delta");
            delta.text("type", kind);
            delta.text(member, text);
        });
    }
}

/// Appends an event.
fn named_event(name: &str, out: &mut Vec<u8>, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    {
        let mut event = ObjectWriter::new(out);
        event.text("type", name);
        fill(&mut event);
    }
    out.extend_from_slice(b"\n\n");
}

/// Writes a complete message.
pub(crate) fn write_whole(
    gathered: &Gathered,
    totals: &Totals,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) -> Done {
    let calls = gathered.whole_calls(totals)?;
    let mut message = ObjectWriter::new(out);
    write_head(moment, &mut message);
    {
        let mut content = message.list("content");
        if !gathered.thinking.is_empty() {
            let mut block = content.object();
            block.text("type", "thinking");
            block.text("thinking", &gathered.thinking);
            block.text("signature", &gathered.signature);
        }
        // Clients read the first block without a check: there must be one.
        if !gathered.text.is_empty() || (calls.is_empty() && gathered.thinking.is_empty()) {
            let mut block = content.object();
            block.text("type", "text");
            block.text("text", &gathered.text);
        }
        for (place, call, arguments) in calls {
            let mut block = content.object();
            block.text("type", "tool_use");
            block.text("id", &call_id(&call.id, place, &moment.reply.context.request_id));
            block.text("name", &call.name);
            block.raw("input", &arguments);
        }
    }
    write_stop(totals, &mut message);
    write_usage(totals, &mut message);
    Ok(())
}

fn write_head(moment: Moment<'_>, message: &mut ObjectWriter<'_>) {
    let context = &moment.reply.context;
    message.text_pieces("id", &["msg_", &context.request_id]);
    message.text("type", "message");
    message.text("role", "assistant");
    message.text("model", &context.model);
}

fn write_stop(totals: &Totals, object: &mut ObjectWriter<'_>) {
    let reason = match totals.finish {
        Some(FinishReason::Length) => "max_tokens",
        Some(FinishReason::ContentFilter) => "refusal",
        Some(FinishReason::ToolCalls) => "tool_use",
        // Some engines finish with `stop` although they call tools.
        None | Some(FinishReason::Stop) if totals.calls > 0 => "tool_use",
        None | Some(FinishReason::Stop) if totals.stop_text.is_some() => "stop_sequence",
        None | Some(FinishReason::Stop) => "end_turn",
    };
    object.text("stop_reason", reason);
    match totals.stop_text.as_ref().filter(|_| reason == "stop_sequence") {
        Some(text) => object.text("stop_sequence", text),
        None => object.raw("stop_sequence", "null"),
    }
}

/// Writes the usage. Anthropic counts cached prompt tokens separately.
fn write_usage(totals: &Totals, object: &mut ObjectWriter<'_>) {
    let cached = totals.usage.cached.unwrap_or(0);
    let mut usage = object.object("usage");
    // The prompt tokens of the other APIs include the cached ones.
    usage.number("input_tokens", totals.usage.prompt.unwrap_or(0).saturating_sub(cached));
    usage.number("cache_creation_input_tokens", 0);
    usage.number("cache_read_input_tokens", cached);
    usage.number("output_tokens", totals.output_tokens());
}
