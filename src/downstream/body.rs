//! Reading a request's body: whole, once, straight into the buffer it is kept in, under one clock
//! and one bound for all bodies together.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use http::HeaderMap;
use http::header;
use pingora_proxy::Session;
use tokio::time::Sleep;

use super::client::Client;
use crate::api::ErrorCode;
use crate::clock::now;
use crate::config::LimitsConfig;
use crate::proxy::context::{BodyBudget, BodyClaim, Counted, HeldBody};
use crate::proxy::failure::OwnError;
use crate::units::{ByteSize, Timestamp};
use crate::wire::chunked::{ChunkDecoder, ChunkError};

/// How often a slow upload is looked at.
const RATE_CHECK: Duration = Duration::from_secs(5);
/// Asked for beyond a body's end: a read that comes back short tells the runtime that the socket is
/// drained, which saves a system call later on.
const SLACK: usize = 64;
/// The longest single read of a chunked body.
const CHUNK_READ: usize = 64 * 1024;
/// What is read and thrown away so that a client gets to see an early answer.
const DRAIN_BYTES: usize = 64 << 20;
/// The same behind a head that was refused: whoever sends more than this there is no client to be
/// kind to.
const REFUSED_DRAIN_BYTES: usize = 1 << 20;
/// How long such a client waits between two reads. Without it a few senders of large heads are always
/// ready to be read, and each of them takes as many turns as a good client.
const REFUSED_DRAIN_PAUSE: Duration = Duration::from_millis(10);
/// Such clients that are drained at one time; of further ones the rest is thrown away by the system,
/// and whoever still sends may miss the answer. A flood of large heads costs no more than reading them.
const REFUSED_DRAINS: usize = 32;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// How a request's body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyLength {
    None,
    Known(u64),
    Chunked,
    /// By HTTP/2's frames; the length where the client gives one, which the frames then have.
    Framed(Option<u64>),
}

/// Why a body was not read.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The client left or broke off: there is nobody to answer.
    ClientGone,
    /// The client gets this.
    Answer(OwnError),
}

impl BodyError {
    fn answer(code: ErrorCode, message: String) -> Self {
        Self::Answer(OwnError::new(code, message).closing())
    }
}

impl BodyLength {
    /// Reads the framing off a head that Pingora has accepted.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(header::TRANSFER_ENCODING) {
            return Self::Chunked;
        }
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        match length.and_then(|digits| digits.trim().parse().ok()) {
            None | Some(0) => Self::None,
            Some(bytes) => Self::Known(bytes),
        }
    }

    /// What is known to be wrong before a byte is read.
    pub(crate) fn check(self, headers: &HeaderMap, limits: &LimitsConfig) -> Result<(), OwnError> {
        let encoding = headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes());
        if encoding.is_some_and(|name| !name.eq_ignore_ascii_case(b"identity")) {
            let message = "Compressed request bodies are not supported: send the body as it is";
            return Err(OwnError::new(ErrorCode::UnsupportedEncoding, message));
        }
        match self {
            Self::Known(bytes) | Self::Framed(Some(bytes)) if bytes > limits.max_body_size.0 => {
                Err(too_large(limits.max_body_size))
            }
            Self::None | Self::Known(_) | Self::Chunked | Self::Framed(_) => Ok(()),
        }
    }
}

fn too_large(limit: ByteSize) -> OwnError {
    let message = format!("The body is larger than {limit} (limits.max_body_size)");
    OwnError::new(ErrorCode::BodyTooLarge, message).closing()
}

/// Takes a body off Pingora's hands: from here on the session believes there is none, and the
/// guard's stream is read instead. Must come before anything asks the session about its body.
pub(crate) fn take_over(session: &mut Session) {
    let head = session.req_header_mut();
    head.remove_header(&header::CONTENT_LENGTH);
    head.remove_header(&header::TRANSFER_ENCODING);
}

/// One body being read.
pub(crate) struct BodyReader<'a> {
    client: &'a Client,
    limits: &'a LimitsConfig,
    budget: &'a Arc<BodyBudget>,
    pace: Pace,
}

impl<'a> BodyReader<'a> {
    pub(crate) fn new(
        client: &'a Client,
        limits: &'a LimitsConfig,
        budget: &'a Arc<BodyBudget>,
    ) -> Self {
        Self { client, limits, budget, pace: Pace::new(limits) }
    }

    /// Reads the whole body. The client's next head may follow only after that.
    pub(crate) async fn read(mut self, length: BodyLength) -> Result<HeldBody, BodyError> {
        let body = match length {
            BodyLength::None => HeldBody::new(BytesMut::new(), self.claim(0)?),
            BodyLength::Known(bytes) => self.read_known(bytes).await?,
            BodyLength::Chunked => self.read_chunked().await?,
            BodyLength::Framed(length) => self.read_framed(length).await?,
        };
        self.client.expect_head();
        Ok(body)
    }

    fn claim(&self, bytes: usize) -> Result<BodyClaim, BodyError> {
        let limit = self.limits.buffered_bodies.to_usize();
        BodyClaim::take(self.budget, bytes, limit).ok_or_else(memory_full)
    }

    async fn read_known(&mut self, bytes: u64) -> Result<HeldBody, BodyError> {
        let total = usize::try_from(bytes).unwrap_or(usize::MAX);
        let claim = self.claim(total)?;
        if let Some(body) = self.client.take_body(total) {
            return Ok(HeldBody::new(body, claim));
        }
        let mut body = BytesMut::with_capacity(total.saturating_add(SLACK));
        while body.len() < total {
            let limit = total - body.len() + SLACK;
            if self.read_some(&mut body, limit).await? == 0 {
                return Err(BodyError::ClientGone);
            }
        }
        if body.len() > total {
            self.client.unread(&body.split_off(total));
        }
        Ok(HeldBody::new(body, claim))
    }

    async fn read_chunked(&mut self) -> Result<HeldBody, BodyError> {
        let mut claim = self.claim(0)?;
        let mut decoder = ChunkDecoder::default();
        let mut body = BytesMut::new();
        let mut raw = BytesMut::with_capacity(CHUNK_READ);
        loop {
            raw.clear();
            raw.reserve(CHUNK_READ);
            if self.read_some(&mut raw, CHUNK_READ).await? == 0 {
                return Err(BodyError::ClientGone);
            }
            let decoded = decoder.decode(&mut raw).map_err(malformed)?;
            if !decoded.is_done
                && let Some(bad) = raw.get_mut(decoded.consumed..).filter(|rest| !rest.is_empty())
            {
                decoder.decode(bad).map_err(malformed)?;
            }
            let total = body.len() + decoded.payload;
            if total > self.limits.max_body_size.to_usize() {
                return Err(BodyError::Answer(too_large(self.limits.max_body_size)));
            }
            if !claim.grow_to(total) {
                return Err(memory_full());
            }
            body.extend_from_slice(raw.get(..decoded.payload).unwrap_or_default());
            if decoded.is_done {
                self.client.unread(raw.get(decoded.consumed..).unwrap_or_default());
                return Ok(HeldBody::new(body, claim));
            }
        }
    }

    async fn read_framed(&mut self, length: Option<u64>) -> Result<HeldBody, BodyError> {
        let known = length.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut claim = self.claim(known)?;
        let mut body = BytesMut::with_capacity(known);
        while self.read_some(&mut body, CHUNK_READ).await? > 0 {
            if body.len() > self.limits.max_body_size.to_usize() {
                return Err(BodyError::Answer(too_large(self.limits.max_body_size)));
            }
            if !claim.grow_to(body.len()) {
                return Err(memory_full());
            }
        }
        Ok(HeldBody::new(body, claim))
    }

    async fn read_some(&mut self, into: &mut BytesMut, limit: usize) -> Result<usize, BodyError> {
        let Self { client, pace, .. } = self;
        let count = poll_fn(|cx| match client.poll_body(cx, into, limit) {
            Poll::Ready(read) => Poll::Ready(Some(read)),
            Poll::Pending => pace.poll_too_slow(cx).map(|()| None),
        })
        .await;
        match count {
            Some(Ok(count)) => {
                pace.got += count as u64;
                Ok(count)
            }
            Some(Err(_reset)) => Err(BodyError::ClientGone),
            None => Err(BodyError::answer(
                ErrorCode::BodyTimeout,
                "The body did not arrive in time (limits.body_read_timeout, limits.min_body_rate)"
                    .into(),
            )),
        }
    }
}

fn memory_full() -> BodyError {
    BodyError::answer(
        ErrorCode::BodyMemoryFull,
        "Too many request bodies are held at once (limits.buffered_bodies)".into(),
    )
}

fn malformed(error: ChunkError) -> BodyError {
    let message = format!("The chunked body is malformed: {error}");
    BodyError::answer(ErrorCode::InvalidRequest, message)
}

/// Judges how fast a body comes in: by its total time, and by a least rate.
struct Pace {
    started: Timestamp,
    time: Duration,
    rate: u64,
    got: u64,
    checked: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    fn new(limits: &LimitsConfig) -> Self {
        Self {
            started: now(),
            time: limits.body_read_timeout,
            rate: limits.min_body_rate.0,
            got: 0,
            checked: 0,
            timer: None,
        }
    }

    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let passed = now().since(self.started);
            let left = self.time.saturating_sub(passed);
            if left.is_zero() {
                return Poll::Ready(());
            }
            let wait = RATE_CHECK.min(left);
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
            let needed = self.rate * RATE_CHECK.as_secs();
            if left > RATE_CHECK && self.got - self.checked < needed {
                return Poll::Ready(());
            }
            self.checked = self.got;
        }
    }
}

/// Reads and drops what a client still sends after an early answer, for a while, so that it gets
/// to read that answer instead of a reset.
pub(crate) async fn drain(client: &Client, refused: &Arc<AtomicUsize>) {
    // A stream of HTTP/2 is told to stop, and its connection goes on.
    let Client::Http1(client) = client else { return };
    let is_refused = client.is_refused();
    let counted = is_refused.then(|| Counted::new(refused));
    if counted.as_ref().is_some_and(|counted| counted.count() > REFUSED_DRAINS) {
        return;
    }
    let limit = if is_refused { REFUSED_DRAIN_BYTES } else { DRAIN_BYTES };
    let mut scrap = BytesMut::with_capacity(CHUNK_READ);
    let drained = async {
        // The answer is complete: a client that reads to the end must not wait for the drain.
        poll_fn(|cx| client.poll_shutdown(cx)).await?;
        let mut total = 0;
        while total < limit {
            scrap.clear();
            scrap.reserve(CHUNK_READ);
            let read = poll_fn(|cx| client.poll_body(cx, &mut scrap, CHUNK_READ)).await;
            match read {
                Ok(count @ 1..) => total += count,
                Ok(0) => break,
                Err(error) => return Err(error),
            }
            // A crowd that keeps sending must not keep the others waiting.
            match is_refused {
                true => tokio::time::sleep(REFUSED_DRAIN_PAUSE).await,
                false => tokio::task::yield_now().await,
            }
        }
        io::Result::Ok(total)
    };
    match tokio::time::timeout(DRAIN_TIME, drained).await {
        Ok(Ok(bytes)) => tracing::debug!(bytes, "drained a client after an early answer"),
        Ok(Err(error)) => tracing::debug!(%error, "a client reset after an early answer"),
        Err(_elapsed) => tracing::debug!("a client kept sending after an early answer"),
    }
}
