//! Converts one response, complete or as a stream: bytes of the backend's dialect in, bytes of the
//! client's dialect out. Chunks may end anywhere.

use std::time::Duration;

use penstock_api::{ErrorCode, ErrorReport, Operation, StreamFraming, error_body, error_event};

use super::codecs::{reader_of, writer_of};
use super::error::{BadResponse, Done};
use super::error_body::{is_report, read_error};
use super::event::{Event, Totals};
use super::framing::{EventSplitter, Framing, SplitEvent};
use super::reply::{ReplyContext, ReplyFacts, ReplyTerms};
use super::response_readers::ResponseReader;
use super::response_writers::{Failure, Moment, ResponseWriter};
use super::{embeddings, engine_error};

/// Converts one response. Every call appends the bytes for the client to `out`.
#[derive(Debug)]
pub struct ResponseConverter {
    client: Operation,
    splitter: EventSplitter,
    reader: Option<Box<dyn ResponseReader>>,
    conversion: WritingSide,
}

/// The writing side of the conversion.
#[derive(Debug)]
struct WritingSide {
    client: Operation,
    writer: Option<Box<dyn ResponseWriter>>,
    reply: ReplyFacts,
    totals: Totals,
    /// True if the client has received the end of the response, or an error.
    has_ended: bool,
}

impl ResponseConverter {
    /// Creates a converter from the responses of `backend` to those of `client`.
    pub fn new(
        client: Operation,
        backend: Operation,
        reply: ReplyTerms,
        context: ReplyContext,
    ) -> Self {
        let (is_stream, limits) = (reply.stream, context.limits);
        let (reader, framing) = reader_of(backend).unzip();
        let is_read_whole = reply.is_complete || !is_stream;
        let framing = framing.filter(|_| !is_read_whole).unwrap_or(Framing::Whole);
        let limit = if is_read_whole { limits.whole } else { limits.event };
        let conversion = WritingSide {
            client,
            writer: writer_of(client, is_stream),
            reply: ReplyFacts { terms: reply, context, backend },
            totals: Totals::default(),
            has_ended: false,
        };
        Self { client, splitter: EventSplitter::new(framing, limit), reader, conversion }
    }

    /// Returns the `content-type` for the client.
    pub fn content_type(&self) -> &'static str {
        let framing = self.client.row().dialect.row().framing;
        match (self.conversion.reply.terms.stream, framing) {
            (true, framing) => framing.content_type(),
            // As Ollama itself sends it.
            (false, StreamFraming::Lines) => "application/json; charset=utf-8",
            (false, StreamFraming::Events) => "application/json",
        }
    }

    /// Converts the next bytes, which arrived `elapsed` after the request.
    ///
    /// # Errors
    /// If the response is not what the backend's API describes, or too large. Bytes appended before
    /// stay valid; the caller ends them with [`cut`](Self::cut).
    pub fn feed(&mut self, payload: &[u8], elapsed: Duration, out: &mut Vec<u8>) -> Done {
        let Self { splitter, reader, conversion, .. } = self;
        splitter
            .feed(payload, &mut |split| conversion.read(reader.as_deref_mut(), split, elapsed, out))
    }

    /// Returns the number of bytes that wait for the end of an event or of a complete response.
    pub fn unread(&self) -> usize {
        self.splitter.held()
    }

    /// Returns the number of all held bytes, including those that the end of a stream writes again.
    pub fn held(&self) -> usize {
        let writer = self.conversion.writer.as_ref();
        self.unread() + writer.map_or(0, |writer| writer.held())
    }

    /// Converts the end of the response: the backend has sent everything.
    ///
    /// # Errors
    /// If the response ended before its last event, or as for [`feed`](Self::feed).
    pub fn finish(&mut self, elapsed: Duration, out: &mut Vec<u8>) -> Done {
        let Self { splitter, reader, conversion, .. } = self;
        splitter
            .finish(&mut |split| conversion.read(reader.as_deref_mut(), split, elapsed, out))?;
        if conversion.has_ended {
            return Ok(());
        }
        if let Some(reader) = reader {
            reader.end(&mut |event| conversion.take(&event, elapsed, out))?;
        }
        let Totals { finish, pieces, calls, .. } = conversion.totals;
        let terms = &conversion.reply.terms;
        let is_whole = terms.is_complete || !terms.stream;
        // A stream without a finish reason was cut; a complete response may lack it.
        if finish.is_some() || (is_whole && (pieces > 0 || calls > 0)) {
            return conversion.take(&Event::Done, elapsed, out);
        }
        Err(BadResponse::EndedEarly)
    }

    /// Ends the response visibly as failed, unless the client has already received its end.
    pub fn cut(&mut self, code: ErrorCode, message: &str, out: &mut Vec<u8>) {
        let Self { client, conversion, .. } = self;
        if conversion.has_ended {
            return;
        }
        if conversion.fail(Failure { code: code.row().name, message }, Duration::ZERO, out) {
            return;
        }
        let dialect = client.row().dialect;
        if conversion.reply.terms.stream {
            let framing = dialect.row().framing;
            out.extend_from_slice(&error_event(*client, framing, code, message));
        } else {
            let report = ErrorReport { code, message, param: None, request_id: None };
            out.extend_from_slice(&error_body(dialect, &report));
        }
    }
}

impl WritingSide {
    fn read(
        &mut self,
        reader: Option<&mut (dyn ResponseReader + 'static)>,
        SplitEvent { data, is_error }: SplitEvent<'_>,
        elapsed: Duration,
        out: &mut Vec<u8>,
    ) -> Done {
        // Null is no event: some engines keep a connection open with it.
        if self.has_ended || data.trim_ascii() == b"null" {
            return Ok(());
        }
        if embeddings::is_embedding(self.client) {
            embeddings::convert_response(self.client, &self.reply, data, elapsed, out)?;
            self.has_ended = true;
            return Ok(());
        }
        if is_error || is_report(data) {
            return self.take(&Event::Error(&read_error(data, 500).message), elapsed, out);
        }
        let Some(reader) = reader else {
            return Err(BadResponse::Malformed { expected: "response that can be converted" });
        };
        reader.read(data, &mut |event| self.take(&event, elapsed, out))
    }

    /// Ends the response as failed. Returns whether its writer has reported that to the client.
    fn fail(&mut self, failure: Failure<'_>, elapsed: Duration, out: &mut Vec<u8>) -> bool {
        self.has_ended = true;
        let moment = Moment { reply: &self.reply, elapsed };
        self.writer.as_mut().is_some_and(|writer| writer.fail(failure, moment, out))
    }

    fn take(&mut self, event: &Event<'_>, elapsed: Duration, out: &mut Vec<u8>) -> Done {
        // A chat template may have further texts that end the generation.
        let is_foreign = |text: &str| self.reply.terms.stop.iter().all(|own| own != text);
        if self.has_ended || matches!(*event, Event::StopText(text) if is_foreign(text)) {
            return Ok(());
        }
        self.totals.record(event, elapsed);
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let moment = Moment { reply: &self.reply, elapsed };
        let event = match *event {
            // Of the APIs that responses are converted to, only this one has it apart from text.
            Event::Refusal(text) if self.client != Operation::Responses => {
                &Event::Text { text, logprobs: None }
            }
            _ => event,
        };
        match event {
            Event::Error(message) => {
                let failure = Failure { code: "server_error", message };
                if self.fail(failure, elapsed, out) {
                    return Ok(());
                }
                if self.reply.terms.stream {
                    engine_error::write_event(self.client, message, out);
                } else {
                    engine_error::write_body(self.client, message, out);
                }
                Ok(())
            }
            Event::Done => {
                writer.end(&self.totals, moment, out)?;
                self.has_ended = true;
                Ok(())
            }
            Event::Text { .. }
            | Event::Refusal(_)
            | Event::Thinking(_)
            | Event::Signature(_)
            | Event::Call { .. }
            | Event::CallName { .. }
            | Event::Arguments { .. }
            | Event::Finish(_)
            | Event::StopText(_)
            | Event::Usage(_)
            | Event::Timings(_) => writer.write(event, moment, out),
        }
    }
}
