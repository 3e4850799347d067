//! The common parts of the responses of OpenAI's chat and completions.

use super::Moment;
use crate::event::{FinishReason, Totals};
use crate::json::ObjectWriter;
use crate::reply::ReplyFacts;

/// The start of every chunk of a stream.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// The members of the object, without its opening brace and with a trailing comma.
    members: Vec<u8>,
}

impl Head {
    /// Creates the head of chunks, or of a complete response.
    pub(super) fn new(id: &str, kind: &str, reply: &ReplyFacts) -> Self {
        let mut members = Vec::with_capacity(192);
        {
            let mut object = ObjectWriter::inside(&mut members);
            object.text_pieces("id", &[id, &reply.context.request_id]);
            object.text("object", kind);
            object.number("created", reply.context.arrived_at.as_secs());
            object.text("model", &reply.context.model);
            if let Some(fingerprint) = reply.backend.row().dialect.row().fingerprint {
                object.text("system_fingerprint", fingerprint);
            }
        }
        Self { members }
    }

    /// Returns whether it has not been created yet.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Appends an object that starts with it.
    pub(super) fn object(&self, out: &mut Vec<u8>, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
        out.push(b'{');
        out.extend_from_slice(&self.members);
        fill(&mut ObjectWriter::after_members(out));
        out.push(b'}');
    }

    /// Appends a chunk.
    pub(super) fn chunk(&self, out: &mut Vec<u8>, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
        out.extend_from_slice(b"data: ");
        self.object(out, fill);
        out.extend_from_slice(b"\n\n");
    }
}

/// Returns the name of the finish reason; a response with tool calls has its own.
pub(super) fn finish_reason(totals: &Totals) -> &'static str {
    match totals.finish {
        Some(FinishReason::Length) => "length",
        Some(FinishReason::ContentFilter) => "content_filter",
        Some(FinishReason::ToolCalls) => "tool_calls",
        // Some dialects end a response with tool calls like any other (Ollama: `stop`).
        None | Some(FinishReason::Stop) if totals.calls > 0 => "tool_calls",
        None | Some(FinishReason::Stop) => "stop",
    }
}

/// Appends `usage`.
pub(super) fn write_usage(totals: &Totals, body: &mut ObjectWriter<'_>) {
    let (prompt, output) = (totals.usage.prompt.unwrap_or(0), totals.output_tokens());
    let mut usage = body.object("usage");
    usage.number("prompt_tokens", prompt);
    usage.number("completion_tokens", output);
    usage.number("total_tokens", prompt.saturating_add(output));
    if let Some(cached) = totals.usage.cached {
        usage.object("prompt_tokens_details").number("cached_tokens", cached);
    }
    if let Some(thinking) = totals.usage.thinking {
        usage.object("completion_tokens_details").number("reasoning_tokens", thinking);
    }
}

/// Appends the usage chunk, if the client wants it, and the end of the stream.
pub(super) fn end_stream(head: &Head, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) {
    if moment.reply.terms.include_usage {
        head.chunk(out, |chunk| {
            chunk.list("choices");
            write_usage(totals, chunk);
        });
    }
    out.extend_from_slice(b"data: [DONE]\n\n");
}
