//! The way of an answer to the client: as it comes, unbuffered and unchanged, with tokens counted
//! on the way and every ending told honestly.

use bytes::{Bytes, BytesMut};
use pingora_proxy::Session;

use super::exchange::{Exchange, Stop};
use super::response_head::{BadAnswer, Framing};
use crate::api::{ErrorCode, Operation};
use crate::clock::now;
use crate::config::TimeoutsConfig;
use crate::scan::{EventScanner, Usage, find_usage};
use crate::units::Timestamp;
use crate::wire::chunked::ChunkDecoder;

/// How much of an answer's end is kept to find its `usage`.
const TAIL: usize = 4096;

/// How the relay of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayEnd {
    /// Whole.
    Complete,
    /// The client left.
    ClientGone,
    /// The backend broke off, fell silent, or sent what cannot be relayed.
    Cut(ErrorCode),
}

/// What was seen of an answer on its way.
#[derive(Debug)]
pub(crate) struct Watch {
    events: Option<EventScanner>,
    has_ended: bool,
    tail: BytesMut,
    usage: Option<Usage>,
    /// When the first token passed; for answers that are no streams, when their head did.
    pub(crate) first_token: Option<Timestamp>,
    /// Events that carried tokens.
    pub(crate) tokens: u32,
}

impl Watch {
    pub(crate) fn new(operation: Operation, is_event_stream: bool) -> Self {
        Self {
            events: is_event_stream.then(|| EventScanner::new(operation)),
            has_ended: !is_event_stream,
            tail: BytesMut::new(),
            usage: None,
            first_token: None,
            tokens: 0,
        }
    }

    /// Takes in a stretch of the answer; returns the tokens in it.
    fn note(&mut self, payload: &[u8], is_last: bool) -> u32 {
        if let Some(events) = &mut self.events {
            let progress = events.feed(payload);
            self.tokens = self.tokens.saturating_add(progress.tokens);
            self.has_ended |= progress.done;
            return progress.tokens;
        }
        if is_last && self.tail.is_empty() {
            let from = payload.len().saturating_sub(TAIL);
            self.usage = payload.get(from..).and_then(find_usage);
            return 0;
        }
        let keep = payload.get(payload.len().saturating_sub(TAIL)..).unwrap_or_default();
        let surplus = (self.tail.len() + keep.len()).saturating_sub(TAIL);
        let surplus = surplus.min(self.tail.len());
        bytes::Buf::advance(&mut self.tail, surplus);
        self.tail.extend_from_slice(keep);
        if is_last {
            self.usage = find_usage(&self.tail);
        }
        0
    }

    /// The tokens the engine says it counted.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.events.as_ref().map_or(self.usage, EventScanner::usage)
    }

    /// Whether the client stands between two events, so that another one can follow.
    pub(crate) fn is_between_events(&self) -> bool {
        self.events.as_ref().is_some_and(EventScanner::at_boundary)
    }

    /// Whether the answer is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.events.is_some()
    }
}

/// Payload, taken out of whatever frames it.
struct Payloads(State);

enum State {
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClose,
    Done,
}

impl Payloads {
    fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::Empty | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(ChunkDecoder::default()),
            Framing::UntilClose => State::UntilClose,
        })
    }

    fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    /// Takes all payload there is in `read`.
    fn take(&mut self, read: &mut BytesMut) -> Result<Bytes, BadAnswer> {
        match &mut self.0 {
            State::Done => Ok(Bytes::new()),
            State::UntilClose => Ok(read.split().freeze()),
            State::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                *left -= count as u64;
                if *left == 0 {
                    self.0 = State::Done;
                }
                Ok(read.split_to(count).freeze())
            }
            State::Chunked(decoder) => {
                let decoded = decoder.decode(read).map_err(|_malformed| BadAnswer::Chunks)?;
                let mut taken = read.split_to(decoded.consumed);
                taken.truncate(decoded.payload);
                if decoded.is_done {
                    self.0 = State::Done;
                }
                Ok(taken.freeze())
            }
        }
    }
}

/// What a relay is bound by and whom it tells.
pub(crate) struct RelayTerms<'a> {
    pub(crate) framing: Framing,
    pub(crate) timeouts: &'a TimeoutsConfig,
    pub(crate) on_tokens: &'a (dyn Fn(bool, u32) + Sync),
    /// Told when the answer has been read to its end, with the time of its first token.
    pub(crate) on_whole: &'a (dyn Fn(Option<Timestamp>) + Sync),
}

impl Exchange<'_> {
    /// Relays the body behind a head the client already has.
    pub(crate) async fn relay(
        &mut self,
        session: &mut Session,
        watch: &mut Watch,
        terms: RelayTerms<'_>,
    ) -> RelayEnd {
        let mut payloads = Payloads::new(terms.framing);
        loop {
            let payload = match payloads.take(&mut self.connection.read) {
                Ok(payload) => payload,
                Err(_bad) => return RelayEnd::Cut(ErrorCode::BadUpstreamResponse),
            };
            let tokens = watch.note(&payload, payloads.is_done());
            if tokens > 0 {
                self.note_tokens(watch, &terms, tokens);
            }
            let is_last = payloads.is_done();
            if is_last {
                (terms.on_whole)(watch.first_token);
            }
            // Behind good chunks there may be a bad one in the same read: it comes next.
            let is_more_read = !payload.is_empty() && !self.connection.read.is_empty();
            let client = session.as_downstream_mut();
            if client.write_response_body(payload, is_last).await.is_err() {
                return RelayEnd::ClientGone;
            }
            if is_last {
                return RelayEnd::Complete;
            }
            if is_more_read {
                continue;
            }
            match self.read_more().await {
                Ok(1..) => {}
                Ok(0) if matches!(terms.framing, Framing::UntilClose) && watch.has_ended => {
                    watch.note(&[], true);
                    (terms.on_whole)(watch.first_token);
                    let ended = client.write_response_body(Bytes::new(), true).await;
                    return if ended.is_ok() { RelayEnd::Complete } else { RelayEnd::ClientGone };
                }
                Ok(0) | Err(Stop::Closed | Stop::ClosedWhileSending) => {
                    return RelayEnd::Cut(ErrorCode::UpstreamClosed);
                }
                Err(Stop::ClientGone) => return RelayEnd::ClientGone,
                Err(Stop::TimedOut(code)) => return RelayEnd::Cut(code),
                Err(Stop::Bad(_)) => return RelayEnd::Cut(ErrorCode::BadUpstreamResponse),
            }
        }
    }

    fn note_tokens(&mut self, watch: &mut Watch, terms: &RelayTerms<'_>, tokens: u32) {
        let now = now();
        let is_first = watch.first_token.is_none();
        if is_first {
            watch.first_token = Some(now);
        }
        // Only tokens move the clock: pings and empty deltas do not keep a dead stream alive.
        self.deadline.set(now, terms.timeouts.between_tokens, ErrorCode::BetweenTokensTimeout);
        (terms.on_tokens)(is_first, tokens);
    }

    /// Reads a whole small answer instead of relaying it; `None` when it is too large or breaks
    /// off.
    pub(crate) async fn hold(
        &mut self,
        framing: Framing,
        limit: usize,
    ) -> Result<Option<Bytes>, Stop> {
        let mut payloads = Payloads::new(framing);
        let mut held = BytesMut::new();
        loop {
            let Ok(payload) = payloads.take(&mut self.connection.read) else { return Ok(None) };
            held.extend_from_slice(&payload);
            if held.len() > limit {
                return Ok(None);
            }
            if payloads.is_done() {
                return Ok(Some(held.freeze()));
            }
            match self.read_more().await {
                Ok(1..) => {}
                Ok(0) if matches!(framing, Framing::UntilClose) => return Ok(Some(held.freeze())),
                Err(Stop::ClientGone) => return Err(Stop::ClientGone),
                Ok(0) | Err(_) => return Ok(None),
            }
        }
    }
}
