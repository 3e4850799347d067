//! Reads a request's body whole and once, straight into the buffer that holds it, under a timeout,
//! a minimum rate and the budget that all bodies share.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use http::header;
use penstock_api::slices::split_at;
use penstock_api::units::Timestamp;
use penstock_clock::now;
use penstock_config::LimitsConfig;
use pingora_proxy::Session;
use tokio::time::Sleep;

use super::body::{BodyBudget, BodyClaim, BodyError, BodyLength, HeldBody};
use super::client::Client;
use crate::wire::chunked::ChunkDecoder;

/// The interval between checks of an upload's rate.
pub(super) const RATE_CHECK: Duration = Duration::from_secs(5);
/// Bytes to read past a body's end: a short read shows the runtime that the socket is drained,
/// which saves a system call later on.
const SLACK: usize = 64;
/// The longest single read of a chunked body.
const MAX_CHUNK_READ: usize = 64 * 1024;

/// Takes the body away from Pingora: the session believes that there is none, and the body is read
/// from the [`Client`]. Must come before anything uses the session's body; otherwise Pingora reads
/// body bytes into its own buffers, and this reader waits for them.
pub(crate) fn take_over(session: &mut Session) {
    let head = session.req_header_mut();
    head.remove_header(&header::CONTENT_LENGTH);
    head.remove_header(&header::TRANSFER_ENCODING);
}

pub(crate) struct BodyReader<'a> {
    client: &'a Client,
    limits: &'a LimitsConfig,
    budget: &'a Arc<BodyBudget>,
    pace: UploadPace,
}

impl<'a> BodyReader<'a> {
    pub(crate) fn new(
        client: &'a Client,
        limits: &'a LimitsConfig,
        budget: &'a Arc<BodyBudget>,
    ) -> Self {
        Self { client, limits, budget, pace: UploadPace::new(limits) }
    }

    /// Reads the whole body. Only then may the client's next head follow.
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
        BodyClaim::take(self.budget, bytes, limit).ok_or(BodyError::MemoryFull)
    }

    async fn read_known(&mut self, bytes: u64) -> Result<HeldBody, BodyError> {
        let total = usize::try_from(bytes).unwrap_or(usize::MAX);
        // Claimed whole before the first read: an upload that cannot be held is refused at once.
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
        let mut raw = BytesMut::with_capacity(MAX_CHUNK_READ);
        loop {
            raw.clear();
            raw.reserve(MAX_CHUNK_READ);
            if self.read_some(&mut raw, MAX_CHUNK_READ).await? == 0 {
                return Err(BodyError::ClientGone);
            }
            let decoded = decoder.decode(&mut raw)?;
            if !decoded.is_done
                && let Some(bad) = raw.get_mut(decoded.consumed..).filter(|rest| !rest.is_empty())
            {
                // The decoder stopped at a byte that breaks the framing: this call reports it.
                decoder.decode(bad)?;
            }
            self.grow(&mut claim, body.len() + decoded.payload)?;
            let (payload, _framing) = split_at(&raw, decoded.payload);
            body.extend_from_slice(payload);
            if decoded.is_done {
                let (_body, next_request) = split_at(&raw, decoded.consumed);
                self.client.unread(next_request);
                return Ok(HeldBody::new(body, claim));
            }
        }
    }

    async fn read_framed(&mut self, length: Option<u64>) -> Result<HeldBody, BodyError> {
        let known = length.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut claim = self.claim(known)?;
        let mut body = BytesMut::with_capacity(known);
        while self.read_some(&mut body, MAX_CHUNK_READ).await? > 0 {
            self.grow(&mut claim, body.len())?;
        }
        Ok(HeldBody::new(body, claim))
    }

    fn grow(&self, claim: &mut BodyClaim, total: usize) -> Result<(), BodyError> {
        let limit = self.limits.max_body_size;
        if total > limit.to_usize() {
            return Err(BodyError::TooLarge { limit });
        }
        if claim.grow_to(total) { Ok(()) } else { Err(BodyError::MemoryFull) }
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
                pace.received += count as u64;
                Ok(count)
            }
            Some(Err(_reset)) => Err(BodyError::ClientGone),
            None => Err(BodyError::TimedOut),
        }
    }
}

/// Enforces the speed of an upload: a total timeout, and a minimum rate per [`RATE_CHECK`].
struct UploadPace {
    started: Timestamp,
    timeout: Duration,
    /// The minimum rate in bytes per second.
    min_rate: u64,
    received: u64,
    /// The value of `received` at the last check.
    checked: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

impl UploadPace {
    fn new(limits: &LimitsConfig) -> Self {
        Self {
            started: now(),
            timeout: limits.body_read_timeout,
            min_rate: limits.min_body_rate.0,
            received: 0,
            checked: 0,
            timer: None,
        }
    }

    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let left = self.timeout.saturating_sub(now().since(self.started));
            if left.is_zero() {
                return Poll::Ready(());
            }
            let wait = RATE_CHECK.min(left);
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
            let needed = self.min_rate * RATE_CHECK.as_secs();
            // The last interval before the timeout is shorter: its bytes show no rate.
            if left > RATE_CHECK && self.received - self.checked < needed {
                return Poll::Ready(());
            }
            self.checked = self.received;
        }
    }
}
