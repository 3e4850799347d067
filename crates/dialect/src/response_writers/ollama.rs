//! Writes the responses of `/api/chat` and `/api/generate`: whole, and as JSON lines.

use std::time::{Duration, UNIX_EPOCH};

use super::{Moment, ResponseWriter};
use crate::error::Done;
use crate::event::{Event, FinishReason, Totals};
use crate::gathered::{Gathered, GatheredCall, call_id};
use crate::json::{ListWriter, ObjectWriter};

/// The output in a line.
#[derive(Default)]
struct LineContent<'c> {
    text: &'c str,
    thinking: &'c str,
    logprobs: Option<&'c str>,
    calls: &'c [WholeCall<'c>],
}

/// A tool call with its index and its arguments as an object.
type WholeCall<'c> = (usize, &'c GatheredCall, String);

impl<'c> LineContent<'c> {
    fn of_event(event: &Event<'c>) -> Option<Self> {
        match *event {
            Event::Text { text, logprobs } => Some(Self { text, logprobs, ..Self::default() }),
            Event::Thinking(thinking) => Some(Self { thinking, ..Self::default() }),
            Event::Refusal(_)
            | Event::Signature(_)
            | Event::Call { .. }
            | Event::CallName { .. }
            | Event::Arguments { .. }
            | Event::Finish(_)
            | Event::StopText(_)
            | Event::Usage(_)
            | Event::Timings(_)
            | Event::Error(_)
            | Event::Done => None,
        }
    }
}

/// The lines of `/api/chat`. Tool calls are gathered: Ollama's clients expect them in one piece.
#[derive(Debug, Default)]
pub(crate) struct ChatLines {
    calls: Gathered,
}

impl ResponseWriter for ChatLines {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        if matches!(event, Event::Call { .. } | Event::CallName { .. } | Event::Arguments { .. }) {
            return self.calls.add(event, &moment.reply.context.limits);
        }
        let Some(content) = LineContent::of_event(event) else { return Ok(()) };
        chat_line(&content, None, moment, out);
        Ok(())
    }

    fn held(&self) -> usize {
        self.calls.size()
    }

    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        let calls = self.calls.whole_calls(totals)?;
        if !calls.is_empty() {
            let content = LineContent { calls: &calls, ..LineContent::default() };
            chat_line(&content, None, moment, out);
        }
        chat_line(&LineContent::default(), Some(totals), moment, out);
        Ok(())
    }
}

/// The lines of `/api/generate`.
#[derive(Debug, Default)]
pub(crate) struct GenerateLines;

impl ResponseWriter for GenerateLines {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        let Some(content) = LineContent::of_event(event) else { return Ok(()) };
        generate_object(&content, None, moment, out);
        out.push(b'\n');
        Ok(())
    }

    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        generate_object(&LineContent::default(), Some(totals), moment, out);
        out.push(b'\n');
        Ok(())
    }
}

/// Writes a complete response of `/api/chat`.
pub(crate) fn write_chat(
    gathered: &Gathered,
    totals: &Totals,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) -> Done {
    let calls = gathered.whole_calls(totals)?;
    chat_object(&content_of(gathered, &calls), Some(totals), moment, out);
    Ok(())
}

/// Writes a complete response of `/api/generate`.
pub(crate) fn write_generate(
    gathered: &Gathered,
    totals: &Totals,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) -> Done {
    generate_object(&content_of(gathered, &[]), Some(totals), moment, out);
    Ok(())
}

fn content_of<'c>(gathered: &'c Gathered, calls: &'c [WholeCall<'c>]) -> LineContent<'c> {
    LineContent {
        text: &gathered.text,
        thinking: &gathered.thinking,
        logprobs: gathered.logprobs(),
        calls,
    }
}

fn chat_line(
    content: &LineContent<'_>,
    totals: Option<&Totals>,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) {
    chat_object(content, totals, moment, out);
    out.push(b'\n');
}

fn chat_object(
    content: &LineContent<'_>,
    totals: Option<&Totals>,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) {
    let mut object = start(moment, out);
    {
        let mut message = object.object("message");
        message.text("role", "assistant");
        message.text("content", content.text);
        if !content.thinking.is_empty() {
            message.text("thinking", content.thinking);
        }
        if !content.calls.is_empty() {
            write_calls(content.calls, moment, message.list("tool_calls"));
        }
    }
    finish(object, content, totals, moment);
}

fn generate_object(
    content: &LineContent<'_>,
    totals: Option<&Totals>,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) {
    let mut object = start(moment, out);
    object.text("response", content.text);
    if !content.thinking.is_empty() {
        object.text("thinking", content.thinking);
    }
    finish(object, content, totals, moment);
}

fn start<'o>(moment: Moment<'_>, out: &'o mut Vec<u8>) -> ObjectWriter<'o> {
    let mut object = ObjectWriter::new(out);
    let context = &moment.reply.context;
    object.text("model", &context.model);
    let now = UNIX_EPOCH.checked_add(context.arrived_at + moment.elapsed).unwrap_or(UNIX_EPOCH);
    object.display("created_at", &humantime::format_rfc3339_nanos(now));
    object
}

fn write_calls(calls: &[WholeCall<'_>], moment: Moment<'_>, mut list: ListWriter<'_>) {
    for (place, call, arguments) in calls {
        let mut object = list.object();
        object.text("id", &call_id(&call.id, *place, &moment.reply.context.request_id));
        let mut function = object.object("function");
        function.number("index", *place as u64);
        function.text("name", &call.name);
        function.raw("arguments", arguments);
    }
}

fn finish(
    mut object: ObjectWriter<'_>,
    content: &LineContent<'_>,
    totals: Option<&Totals>,
    moment: Moment<'_>,
) {
    if let Some(list) = content.logprobs.filter(|list| !list.is_empty()) {
        let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(list);
        object.list("logprobs").raw(list);
    }
    object.flag("done", totals.is_some());
    let Some(totals) = totals else { return };
    object.text("done_reason", done_reason(totals));
    let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    object.number("total_duration", nanoseconds(moment.elapsed));
    object.number("load_duration", totals.timings.load.map_or(0, nanoseconds));
    if let Some(count) = totals.usage.prompt {
        object.number("prompt_eval_count", count);
    }
    // Of an engine that reports no timings, the time before the first piece counts as the prompt's,
    // and the rest as the output's.
    let first = totals.first_piece.unwrap_or(moment.elapsed);
    object.number("prompt_eval_duration", nanoseconds(totals.timings.prompt.unwrap_or(first)));
    object.number("eval_count", totals.output_tokens());
    let output = totals.timings.output.unwrap_or(moment.elapsed.saturating_sub(first));
    object.number("eval_duration", nanoseconds(output));
}

fn done_reason(totals: &Totals) -> &'static str {
    match totals.finish {
        Some(FinishReason::Length) => "length",
        // Ollama says `stop` after tool calls, too, and has no content filter.
        None | Some(FinishReason::Stop | FinishReason::ToolCalls | FinishReason::ContentFilter) => {
            "stop"
        }
    }
}
