//! Writes the responses of OpenAI's `/v1/responses`: whole, and as numbered events.

mod item;

use item::{Item, ItemKind};

use super::{Failure, Moment, ResponseWriter};
use crate::error::{BadResponse, Done};
use crate::event::{CallStart, Event, FinishReason, Totals};
use crate::gathered::{Gathered, check_size};
use crate::json::ObjectWriter;

/// The events of a stream.
#[derive(Debug, Default)]
pub(crate) struct ResponseEvents {
    /// The sequence number of the next event.
    sequence: u64,
    /// The open item.
    open: Option<Item>,
    /// The items that are complete, as the inside of a JSON list.
    output: Vec<u8>,
    /// The number of complete items.
    items: u64,
    /// The reason why the generation has ended, once it is known.
    finish: Option<FinishReason>,
}

impl ResponseWriter for ResponseEvents {
    fn write(&mut self, event: &Event<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        self.start(moment, out);
        match *event {
            Event::Text { text, logprobs } => {
                let item = self.open_item(ItemKind::Text, moment, out)?;
                item.add_logprobs(logprobs);
                self.delta(text, logprobs, moment, out)
            }
            Event::Refusal(text) => {
                self.open_item(ItemKind::Refusal, moment, out)?;
                self.delta(text, None, moment, out)
            }
            Event::Thinking(text) => {
                self.open_item(ItemKind::Thinking, moment, out)?;
                self.delta(text, None, moment, out)
            }
            Event::Call { place, id, name } => {
                let kind = ItemKind::call(&CallStart { place, id, name }, moment.reply);
                self.open_item(kind, moment, out).map(|_item| ())
            }
            Event::Arguments { place, piece } => {
                match &self.open {
                    Some(item) if item.place() == Some(place) => {}
                    _ => return Err(BadResponse::MixedCalls),
                }
                self.delta(piece, None, moment, out)
            }
            Event::Finish(reason) => {
                self.finish = Some(reason);
                Ok(())
            }
            Event::CallName { .. }
            | Event::Signature(_)
            | Event::StopText(_)
            | Event::Usage(_)
            | Event::Timings(_)
            | Event::Error(_)
            | Event::Done => Ok(()),
        }
    }

    fn end(&mut self, totals: &Totals, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        self.start(moment, out);
        let status = status(totals.finish);
        self.close_item(true, moment, out)?;
        let kind =
            if status == "incomplete" { "response.incomplete" } else { "response.completed" };
        let output = std::mem::take(&mut self.output);
        self.event(kind, out, |event| {
            write_response(status, &output, Some(totals), moment, event.object("response"));
        });
        Ok(())
    }

    fn held(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |item| item.text.len() + item.logprobs.len());
        self.output.len() + open
    }

    fn fail(&mut self, error: Failure<'_>, moment: Moment<'_>, out: &mut Vec<u8>) -> bool {
        let output = std::mem::take(&mut self.output);
        self.event("response.failed", out, |event| {
            let mut response = event.object("response");
            write_head("failed", moment, &mut response);
            {
                let mut object = response.object("error");
                object.text("code", error.code);
                object.text("message", error.message);
            }
            response.raw("incomplete_details", "null");
            response.list("output").inside(&output);
            response.raw("usage", "null");
        });
        true
    }
}

impl ResponseEvents {
    fn start(&mut self, moment: Moment<'_>, out: &mut Vec<u8>) {
        if self.sequence > 0 {
            return;
        }
        // OpenAI sends both, and clients build the response from the first.
        for kind in ["response.created", "response.in_progress"] {
            self.event(kind, out, |event| {
                write_response("in_progress", b"", None, moment, event.object("response"));
            });
        }
    }

    /// Appends an event with its sequence number.
    fn event(&mut self, kind: &str, out: &mut Vec<u8>, fill: impl FnOnce(&mut ObjectWriter<'_>)) {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\ndata: ");
        {
            let mut event = ObjectWriter::new(out);
            event.text("type", kind);
            event.number("sequence_number", self.sequence);
            fill(&mut event);
        }
        out.extend_from_slice(b"\n\n");
        self.sequence += 1;
    }

    /// Returns the open item of this kind; opens a new one if needed.
    fn open_item(
        &mut self,
        kind: ItemKind,
        moment: Moment<'_>,
        out: &mut Vec<u8>,
    ) -> Result<&mut Item, BadResponse> {
        if self.open.as_ref().is_none_or(|open| !open.continues(&kind)) {
            self.close_item(false, moment, out)?;
            let item = Item::new(kind, self.items, &moment.reply.context.request_id);
            self.event("response.output_item.added", out, |event| {
                event.number("output_index", item.index());
                item.write("in_progress", event.object("item"));
            });
            if let Some((kind, _)) = item.part() {
                self.event("response.content_part.added", out, |event| {
                    item.write_place(event);
                    item::write_part(kind, "", "", event.object("part"));
                });
            }
            self.open = Some(item);
        }
        // The fallback is never taken: the item was opened above.
        Ok(self.open.get_or_insert_with(Item::default))
    }

    /// Appends a piece to the open item.
    fn delta(
        &mut self,
        piece: &str,
        logprobs: Option<&str>,
        moment: Moment<'_>,
        out: &mut Vec<u8>,
    ) -> Done {
        let Some(mut item) = self.open.take() else { return Ok(()) };
        item.text.push_str(piece);
        let size = self.output.len() + item.text.len();
        // The last event has the whole output once more, so that it has to be held.
        check_size("the output", size, moment.reply.context.limits.whole)?;
        // The input of a free-form tool is part of the arguments, and known only when they are
        // complete.
        if let Some(kind) = item.delta_kind() {
            self.event(kind, out, |event| {
                item.write_place(event);
                event.text("delta", piece);
                if matches!(item.kind, ItemKind::Text) {
                    event.raw("logprobs", logprobs.unwrap_or("[]"));
                }
            });
        }
        self.open = Some(item);
        Ok(())
    }

    /// Ends the open item.
    fn close_item(&mut self, is_last: bool, moment: Moment<'_>, out: &mut Vec<u8>) -> Done {
        let Some(item) = self.open.take() else { return Ok(()) };
        let status = item.status(status(self.finish), is_last);
        let (kind, member, text) = item.done();
        if let Some(kind) = item.last_delta_kind() {
            self.event(kind, out, |event| {
                item.write_place(event);
                event.text("delta", &text);
            });
        }
        self.event(kind, out, |event| {
            item.write_place(event);
            event.text(member, &text);
            item.write_done_extra(event);
        });
        if let Some((kind, _)) = item.part() {
            self.event("response.content_part.done", out, |event| {
                item.write_place(event);
                item::write_part(kind, &item.text, &item.logprobs, event.object("part"));
            });
        }
        self.event("response.output_item.done", out, |event| {
            event.number("output_index", item.index());
            item.write(status, event.object("item"));
        });
        if self.items > 0 {
            self.output.push(b',');
        }
        item.write(status, ObjectWriter::new(&mut self.output));
        self.items += 1;
        check_size("the output", self.output.len(), moment.reply.context.limits.whole)
    }
}

/// Writes a complete response.
pub(crate) fn write_whole(
    gathered: &Gathered,
    totals: &Totals,
    moment: Moment<'_>,
    out: &mut Vec<u8>,
) -> Done {
    let mut items: Vec<(ItemKind, &str)> = Vec::new();
    if !gathered.thinking.is_empty() {
        items.push((ItemKind::Thinking, &gathered.thinking));
    }
    if !gathered.text.is_empty() {
        items.push((ItemKind::Text, &gathered.text));
    }
    if !gathered.refusal.is_empty() {
        items.push((ItemKind::Refusal, &gathered.refusal));
    }
    for (place, call) in gathered.calls.iter().enumerate() {
        let kind =
            ItemKind::call(&CallStart { place, id: &call.id, name: &call.name }, moment.reply);
        items.push((kind, &call.arguments));
    }
    let (status, count) = (status(totals.finish), items.len());
    let mut output = Vec::new();
    for ((kind, text), index) in items.into_iter().zip(0..) {
        let mut item = Item::new(kind, index, &moment.reply.context.request_id);
        item.text.push_str(text);
        if matches!(item.kind, ItemKind::Text) {
            item.logprobs.push_str(gathered.logprobs().unwrap_or_default());
        }
        if index > 0 {
            output.push(b',');
        }
        item.write(item.status(status, index + 1 == count as u64), ObjectWriter::new(&mut output));
    }
    write_response(status, &output, Some(totals), moment, ObjectWriter::new(out));
    Ok(())
}

fn status(finish: Option<FinishReason>) -> &'static str {
    match finish {
        Some(FinishReason::Length | FinishReason::ContentFilter) => "incomplete",
        None | Some(FinishReason::Stop | FinishReason::ToolCalls) => "completed",
    }
}

/// Writes the response object; `output` is the inside of the list of its items.
fn write_response(
    status: &str,
    output: &[u8],
    totals: Option<&Totals>,
    moment: Moment<'_>,
    mut response: ObjectWriter<'_>,
) {
    write_head(status, moment, &mut response);
    response.raw("error", "null");
    match totals.and_then(|totals| totals.finish) {
        Some(FinishReason::Length) => {
            response.object("incomplete_details").text("reason", "max_output_tokens");
        }
        Some(FinishReason::ContentFilter) => {
            response.object("incomplete_details").text("reason", "content_filter");
        }
        None | Some(FinishReason::Stop | FinishReason::ToolCalls) => {
            response.raw("incomplete_details", "null");
        }
    }
    response.list("output").inside(output);
    match totals {
        None => response.raw("usage", "null"),
        Some(totals) => write_usage(totals, response.object("usage")),
    }
}

fn write_head(status: &str, moment: Moment<'_>, response: &mut ObjectWriter<'_>) {
    let context = &moment.reply.context;
    response.text_pieces("id", &["resp_", &context.request_id]);
    response.text("object", "response");
    response.number("created_at", context.arrived_at.as_secs());
    response.text("status", status);
    response.text("model", &context.model);
    response.members(&moment.reply.terms.echo);
}

fn write_usage(totals: &Totals, mut usage: ObjectWriter<'_>) {
    let (input, output) = (totals.usage.prompt.unwrap_or(0), totals.output_tokens());
    usage.number("input_tokens", input);
    let cached = totals.usage.cached.unwrap_or(0);
    usage.object("input_tokens_details").number("cached_tokens", cached);
    usage.number("output_tokens", output);
    let thinking = totals.usage.thinking.unwrap_or(0);
    usage.object("output_tokens_details").number("reasoning_tokens", thinking);
    usage.number("total_tokens", input.saturating_add(output));
}
