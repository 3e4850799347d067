//! Writes the responses of `/v1/chat/completions`: whole, and as chunks.

use penstock_api::ReasoningField;

use super::openai::{self, Head};
use super::{Moment, ResponseWriter};
use crate::error::Done;
use crate::event::{CallStart, Event, Totals};
use crate::gathered::{Gathered, call_id};
use crate::json::ObjectWriter;

const ID: &str = "chatcmpl-";

/// A piece of a tool call.
struct CallPiece<'a> {
    /// The index of the call.
    place: usize,
    /// The member of `function` that it belongs to.
    member: &'static str,
    piece: &'a str,
}

/// The chunks of a stream.
#[derive(Debug, Default)]
pub(crate) struct ChatChunks {
    /// The start of every chunk; empty before the first.
    head: Head,
    /// True for each call of which any arguments have been written.
    have_arguments: Vec<bool>,
}

impl ResponseWriter for ChatChunks {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        match *event {
            Event::Text { text, logprobs } => self.choice(moment, out, |choice| {
                choice.object("delta").text("content", text);
                if let Some(list) = logprobs {
                    choice.object("logprobs").raw("content", list);
                }
            }),
            Event::Thinking(_) if moment.reply.context.reasoning == ReasoningField::None => {}
            Event::Thinking(text) => self.choice(moment, out, |choice| {
                write_thinking(text, moment, &mut choice.object("delta"));
            }),
            Event::Call { place, id, name } => {
                self.start_call(&CallStart { place, id, name }, moment, out);
            }
            Event::CallName { place, piece } => {
                self.function(&CallPiece { place, member: "name", piece }, moment, out)
            }
            Event::Arguments { place, piece } => {
                if let Some(has) = self.have_arguments.get_mut(place) {
                    *has |= !piece.trim_ascii().is_empty();
                }
                self.function(&CallPiece { place, member: "arguments", piece }, moment, out);
            }
            Event::Refusal(_)
            | Event::Signature(_)
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
        for (place, has) in std::mem::take(&mut self.have_arguments).into_iter().enumerate() {
            if !has {
                // Clients parse the arguments, and an empty text is no JSON.
                let call = CallPiece { place, member: "arguments", piece: "{}" };
                self.function(&call, moment, out);
            }
        }
        self.head.chunk(out, |chunk| {
            let mut choices = chunk.list("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            choice.object("delta");
            choice.text("finish_reason", openai::finish_reason(totals));
        });
        openai::end_stream(&self.head, totals, moment, out);
        Ok(())
    }
}

impl ChatChunks {
    /// Writes the first chunk, which names the author, unless it is written already.
    fn start(&mut self, moment: Moment<'_>, out: &mut Vec<u8>) {
        if !self.head.is_empty() {
            return;
        }
        self.head = Head::new(ID, "chat.completion.chunk", moment.reply);
        self.head.chunk(out, |chunk| {
            let mut choices = chunk.list("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            {
                let mut delta = choice.object("delta");
                delta.text("role", "assistant");
                // OpenAI's first chunk has the role and an empty text: clients build the message
                // from it.
                delta.text("content", "");
            }
            choice.raw("finish_reason", "null");
        });
    }

    /// Writes the chunk that starts a tool call.
    fn start_call(&mut self, start: &CallStart<'_>, moment: Moment<'_>, out: &mut Vec<u8>) {
        let CallStart { place, id, name } = *start;
        debug_assert_eq!(place, self.have_arguments.len(), "calls are numbered in order");
        self.have_arguments.push(false);
        self.choice(moment, out, |choice| {
            let mut delta = choice.object("delta");
            let mut list = delta.list("tool_calls");
            let mut call = list.object();
            call.number("index", place as u64);
            call.text("id", &call_id(id, place, &moment.reply.context.request_id));
            call.text("type", "function");
            let mut function = call.object("function");
            function.text("name", name);
            // Clients append the pieces of the arguments to it.
            function.text("arguments", "");
        });
    }

    /// Writes a chunk with a piece of a tool call.
    fn function(&mut self, call: &CallPiece<'_>, moment: Moment<'_>, out: &mut Vec<u8>) {
        let CallPiece { place, member, piece } = *call;
        self.choice(moment, out, |choice| {
            let mut delta = choice.object("delta");
            let mut list = delta.list("tool_calls");
            let mut call = list.object();
            call.number("index", place as u64);
            call.object("function").text(member, piece);
        });
    }

    /// Writes a chunk with one choice.
    fn choice(
        &mut self,
        moment: Moment<'_>,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut ObjectWriter<'_>),
    ) {
        self.start(moment, out);
        self.head.chunk(out, |chunk| {
            let mut choices = chunk.list("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            fill(&mut choice);
            choice.raw("finish_reason", "null");
        });
    }
}

/// Writes thinking under the names that clients read: llama.cpp's and vLLM's, Ollama's and
/// OpenRouter's, or both.
fn write_thinking(text: &str, moment: Moment<'_>, delta: &mut ObjectWriter<'_>) {
    let field = moment.reply.context.reasoning;
    if matches!(field, ReasoningField::Both | ReasoningField::ReasoningContent) {
        delta.text("reasoning_content", text);
    }
    if matches!(field, ReasoningField::Both | ReasoningField::Reasoning) {
        delta.text("reasoning", text);
    }
}

/// Writes a complete response.
pub(crate) fn write_whole(
    gathered: &Gathered,
    totals: &Totals,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) -> Done {
    let head = Head::new(ID, "chat.completion", moment.reply);
    head.object(out, |body| {
        {
            let mut choices = body.list("choices");
            let mut choice = choices.object();
            choice.number("index", 0);
            write_message(gathered, moment, &mut choice.object("message"));
            if let Some(list) = gathered.logprobs() {
                choice.object("logprobs").list("content").raw(list);
            }
            choice.text("finish_reason", openai::finish_reason(totals));
        }
        openai::write_usage(totals, body);
    });
    Ok(())
}

fn write_message(gathered: &Gathered, moment: Moment<'_>, message: &mut ObjectWriter<'_>) {
    message.text("role", "assistant");
    // OpenAI's form of a message that only calls tools.
    if gathered.text.is_empty() && !gathered.calls.is_empty() {
        message.raw("content", "null");
    } else {
        message.text("content", &gathered.text);
    }
    if !gathered.thinking.is_empty() {
        write_thinking(&gathered.thinking, moment, message);
    }
    if gathered.calls.is_empty() {
        return;
    }
    let mut list = message.list("tool_calls");
    for (place, call) in gathered.calls.iter().enumerate() {
        let mut object = list.object();
        object.text("id", &call_id(&call.id, place, &moment.reply.context.request_id));
        object.text("type", "function");
        let mut function = object.object("function");
        function.text("name", &call.name);
        function.text("arguments", call.text());
    }
}
