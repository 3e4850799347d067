//! Measures a response while it is forwarded to the client: tokens, time to first token, `usage`.

use std::sync::LazyLock;

use bytes::{Buf, BytesMut};
use memchr::memmem::{Finder, rfind};
use penstock_api::units::Timestamp;
use penstock_api::{Operation, ResultFormat, StreamFraming};
use penstock_dialect::JsonEnd;
use penstock_scan::{
    EventScanner, Passed, RequestProfile, ResponseIdFinder, Usage, UsageBounds, WholeResult,
    find_counts, find_usage, has_failed_choice, has_failed_status, may_be_blank,
};

/// The length of a response's end that is kept to find its `usage`.
const TAIL: usize = 4096;

/// The marks of a response that a limit has ended, by API. In generated text, each quote would have
/// a backslash.
static LENGTH_ENDS: LazyLock<[Finder<'static>; 6]> = LazyLock::new(|| {
    [
        "\"finish_reason\":\"length\"",
        "\"finish_reason\": \"length\"",
        "\"done_reason\":\"length\"",
        "\"stop_reason\":\"max_tokens\"",
        "\"stop_reason\": \"max_tokens\"",
        "\"reason\":\"max_output_tokens\"",
    ]
    .map(Finder::new)
});

/// The values of `finish_reason` that report a failed generation. Few responses have them anywhere.
static FAILED: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| ["\"error\"", "\"abort\""].map(Finder::new));

/// The status of a failed response, with its quotes.
static FAILED_STATUS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"failed\""));

/// The name of the member with the counts. In generated text, each quote would have a backslash.
const USAGE_NAME: &[u8] = b"\"usage\"";
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(USAGE_NAME));

/// The beginning of the last `usage` of a body, wherever it stands: some engines send it before the
/// text or the vectors, which may be long.
#[derive(Debug, Default)]
struct UsageMember(BytesMut);

impl UsageMember {
    /// Reads the next part of the body. `before` is the end of the parts before it.
    fn feed(&mut self, before: &[u8], payload: &[u8]) {
        if let Some(start) = last_usage(payload) {
            self.0 = BytesMut::from(start);
            return;
        }
        let split = (1..USAGE_NAME.len()).find(|at| {
            let (start, end) = USAGE_NAME.split_at(*at);
            before.ends_with(start) && payload.starts_with(end)
        });
        if let Some(at) = split {
            self.0 = BytesMut::from(USAGE_NAME.get(..at).unwrap_or_default());
        }
        if !self.0.is_empty() {
            let room = TAIL.saturating_sub(self.0.len());
            self.0.extend_from_slice(payload.get(..room).unwrap_or(payload));
        }
    }
}

/// Returns the bytes from the last name `usage` on, [`TAIL`] at most.
fn last_usage(payload: &[u8]) -> Option<&[u8]> {
    // Forwards first: that is vectorised, and most parts have none.
    USAGE.find(payload)?;
    let start = payload.get(rfind(payload, USAGE_NAME)?..)?;
    Some(start.get(..TAIL).unwrap_or(start))
}

/// The output that a request allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ExpectedOutput {
    /// None: the model is only loaded or unloaded.
    None,
    /// A single token at most, which may be one that is not shown.
    Little,
    #[default]
    Any,
}

impl ExpectedOutput {
    fn of(request: &RequestProfile) -> Self {
        match (request.residency_change, request.max_tokens) {
            (Some(_), _) => Self::None,
            (None, Some(limit)) if limit.0 <= 1 => Self::Little,
            (None, _) => Self::Any,
        }
    }
}

/// Watches the payload of one response, without keeping it.
#[derive(Debug)]
pub(crate) struct ResponseMonitor {
    events: Option<EventScanner>,
    /// The end of a body of JSON that ends with its connection.
    json: Option<JsonEnd>,
    operation: Operation,
    /// True if it is a success: it then has to have a result, and a stream an ending.
    is_success: bool,
    expected: ExpectedOutput,
    /// The result of a success that is no stream.
    result: WholeResult,
    /// True if `result` was read before the payload comes.
    is_result_known: bool,
    /// The first byte of the payload that is no white space; 0 before it.
    first_byte: u8,
    has_ended: bool,
    has_failed: bool,
    tail: BytesMut,
    /// The counts of a body whose end has none.
    early_usage: UsageMember,
    usage: Option<Usage>,
    /// The upper bounds of the token counts.
    bounds: UsageBounds,
    /// The length of the payload.
    bytes: u64,
    /// The search for the id under which the engine may keep the response.
    id: Option<ResponseIdFinder>,
    /// Some if the payload is searched for the mark of a response that a limit has ended; true once
    /// it is found.
    length_end: Option<bool>,
    pub(crate) first_token: Option<Timestamp>,
    /// The number of events that carried tokens.
    pub(crate) tokens: u32,
}

impl ResponseMonitor {
    /// `stream`: the framing if the response is a stream.
    pub(crate) fn new(
        operation: Operation,
        stream: Option<StreamFraming>,
        bounds: UsageBounds,
    ) -> Self {
        Self {
            bounds,
            bytes: 0,
            events: stream.map(|framing| EventScanner::new(operation, framing)),
            json: None,
            operation,
            is_success: false,
            expected: ExpectedOutput::default(),
            result: WholeResult::Filled,
            is_result_known: false,
            first_byte: 0,
            has_ended: stream.is_none(),
            has_failed: false,
            tail: BytesMut::new(),
            early_usage: UsageMember::default(),
            usage: None,
            id: (operation == Operation::Responses).then(ResponseIdFinder::default),
            length_end: None,
            first_token: None,
            tokens: 0,
        }
    }

    /// Reads the next part of the payload; returns the tokens in it.
    pub(crate) fn observe(&mut self, payload: &[u8], is_last: bool) -> u32 {
        self.bytes = self.bytes.saturating_add(payload.len() as u64);
        if let Some(id) = &mut self.id {
            id.feed(payload);
        }
        if let Some(found) = &mut self.length_end {
            // A mark split between two parts is missed: a later response teaches the length.
            *found |= LENGTH_ENDS.iter().any(|mark| mark.find(payload).is_some());
        }
        if self.events.is_some() {
            let tokens = self.feed(payload);
            return if is_last { tokens + self.end_line() } else { tokens };
        }
        if let Some(json) = &mut self.json {
            json.feed_bytes(payload);
            self.has_ended = json.is_whole();
        }
        if is_last && self.tail.is_empty() {
            // The common case, a body in one read: nothing is copied.
            let end = last_bytes(payload);
            self.usage = usage_in(end).or_else(|| find_usage(last_usage(payload)?));
            self.has_failed |= self.reports_failure(payload, end);
            if self.is_success && !self.is_result_known {
                self.result = WholeResult::read(self.operation, payload);
            }
            return 0;
        }
        if self.first_byte == 0 {
            // The status comes before the output.
            self.has_failed |= self.has_failed_status(payload);
            self.first_byte = payload.trim_ascii_start().first().copied().unwrap_or(0);
        }
        self.early_usage.feed(&self.tail, payload);
        let keep = last_bytes(payload);
        let surplus = (self.tail.len() + keep.len()).saturating_sub(TAIL);
        self.tail.advance(surplus.min(self.tail.len()));
        self.tail.extend_from_slice(keep);
        if is_last {
            self.usage = usage_in(&self.tail).or_else(|| find_usage(&self.early_usage.0));
            let is_kept = self.bytes == self.tail.len() as u64;
            self.has_failed |= is_kept && self.reports_failure(&self.tail, &self.tail);
            if !self.is_result_known {
                self.result = self.result_of_tail();
            }
        }
        0
    }

    /// Returns whether a whole response reports a failed generation. `end`: its last part.
    fn reports_failure(&self, body: &[u8], end: &[u8]) -> bool {
        match self.operation {
            Operation::Chat | Operation::Completions => {
                FAILED.iter().any(|mark| mark.find(end).is_some()) && has_failed_choice(body)
            }
            _ => self.has_failed_status(body),
        }
    }

    fn has_failed_status(&self, start: &[u8]) -> bool {
        self.operation == Operation::Responses
            && FAILED_STATUS.find(start).is_some()
            && has_failed_status(start)
    }

    /// Judges a result that came in parts: a short one, which the tail holds, by its content, and a
    /// longer one by its end.
    fn result_of_tail(&self) -> WholeResult {
        if self.is_success && self.bytes == self.tail.len() as u64 {
            return WholeResult::read(self.operation, &self.tail);
        }
        let is_sound = self.operation.row().result == ResultFormat::Audio;
        let is_cut =
            !is_sound && self.first_byte == b'{' && !self.tail.trim_ascii_end().ends_with(b"}");
        match self.is_success && is_cut {
            true => WholeResult::Missing,
            false => WholeResult::Filled,
        }
    }

    /// Reads the last line of a stream of lines that lacks its line end. Returns the tokens in it.
    pub(crate) fn end_line(&mut self) -> u32 {
        match &self.events {
            Some(events) if events.framing() == StreamFraming::Lines && !events.at_boundary() => {
                self.feed(b"\n")
            }
            _ => 0,
        }
    }

    fn feed(&mut self, payload: &[u8]) -> u32 {
        let Some(events) = &mut self.events else { return 0 };
        let progress = events.feed(payload);
        self.tokens = self.tokens.saturating_add(progress.tokens);
        self.has_ended |= progress.done;
        self.has_failed |= progress.error;
        progress.tokens
    }

    /// Expects a body of JSON that ends with its connection: any close looks like the end.
    pub(crate) fn expect_json(&mut self) {
        self.json = Some(JsonEnd::default());
        self.has_ended = false;
    }

    /// Expects a result of the operation, and an ending of its dialect from a stream. `known`: the
    /// result, if it was read before.
    pub(crate) fn expect_result(&mut self, known: Option<WholeResult>) {
        self.is_success = true;
        self.is_result_known = known.is_some();
        self.result = known.unwrap_or(self.result);
    }

    /// Expects the output that the request allows.
    pub(crate) fn expect_output(&mut self, request: &RequestProfile) {
        self.expected = ExpectedOutput::of(request);
    }

    /// Returns whether the response lacks its end, if it ends here.
    pub(crate) fn lacks_ending(&self) -> bool {
        self.is_success
            && !self.has_failed
            && self.events.as_ref().is_some_and(|events| !events.has_finished())
    }

    /// The id under which the engine may keep the response.
    pub(crate) fn response_id(&self) -> Option<&[u8]> {
        self.id.as_ref().and_then(ResponseIdFinder::id)
    }

    /// Searches the payload for the id under which the engine keeps the response.
    pub(crate) fn watch_id(&mut self) {
        self.id.get_or_insert_default();
    }

    /// Searches the payload for the mark of a response that a limit of tokens has ended.
    pub(crate) fn watch_length(&mut self) {
        self.length_end = Some(false);
    }

    /// Returns whether that mark was found.
    pub(crate) fn is_ended_by_length(&self) -> bool {
        self.length_end == Some(true)
    }

    /// The tokens that the engine counted, bounded by what the request allows: the engine's figures
    /// are not trusted beyond that.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let counted = self.events.as_ref().map_or(self.usage, EventScanner::usage);
        let passed = Passed { bytes: self.bytes, is_stream: self.events.is_some() };
        counted.map(|usage| self.bounds.apply(usage, passed))
    }

    /// Returns whether the response may end here: a stream has sent its last event.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns whether the response is a stream that has sent its last event.
    pub(crate) fn has_ended_stream(&self) -> bool {
        self.events.is_some() && self.has_ended
    }

    /// Returns whether nothing follows in a stream: its last event has passed, whole.
    pub(crate) fn is_over(&self) -> bool {
        self.events.as_ref().is_some_and(EventScanner::is_over)
    }

    /// Returns whether a response has reported an error, has no result, or is a stream that has not
    /// ended as its dialect requires so far.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed || self.lacks_ending() || self.lacks_result()
    }

    /// Returns whether the response has reported an error.
    pub(crate) fn has_reported_error(&self) -> bool {
        self.has_failed
    }

    fn lacks_result(&self) -> bool {
        self.is_success
            && self.expected != ExpectedOutput::None
            && match &self.events {
                Some(events) => events.is_void(),
                None => self.result == WholeResult::Missing,
            }
    }

    /// Returns whether a success has ended properly and without any output, although the request
    /// allows some.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_success
            && self.expected == ExpectedOutput::Any
            && !self.has_failed()
            && match &self.events {
                Some(events) => events.is_empty(),
                None => self.result == WholeResult::Empty && !self.has_hidden_output(),
            }
    }

    /// Returns whether the engine has counted output that a whole response does not show. A chat
    /// shows all of it but its reasoning.
    fn has_hidden_output(&self) -> bool {
        let usage = self.usage.unwrap_or_default();
        usage.reasoning_tokens.is_some_and(|count| count > 0)
            // One may be the end itself. Others are work, in a form that is not known.
            || may_be_blank(self.operation) && usage.completion_tokens.is_some_and(|count| count > 1)
    }

    /// Returns whether the client has received whole events, so that another one can follow.
    pub(crate) fn is_between_events(&self) -> bool {
        self.events.as_ref().is_some_and(EventScanner::at_boundary)
    }

    /// The framing, if the response is a stream.
    pub(crate) fn stream(&self) -> Option<StreamFraming> {
        self.events.as_ref().map(EventScanner::framing)
    }
}

fn usage_in(tail: &[u8]) -> Option<Usage> {
    find_usage(tail).or_else(|| find_counts(tail))
}

fn last_bytes(payload: &[u8]) -> &[u8] {
    let (_, tail) = payload.split_at(payload.len().saturating_sub(TAIL));
    tail
}

#[cfg(test)]
mod tests;
