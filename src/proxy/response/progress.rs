//! The lessons of a relay for its backend, during the relay and at its end.

use penstock_api::units::{Timestamp, TokenCount};
use penstock_core::fleet::{InflightGuard, Outcome, SlotId};

use crate::proxy::Proxy;
use crate::proxy::attempt::Attempt;
use crate::proxy::auth::KeyOwner;
use crate::proxy::context::{RequestContext, ScannedRequest};
use crate::proxy::outcome::{AttemptResult, record_outcome};
use crate::proxy::rate_limits::settle_rate_of;
use crate::upstream::relay::RelayObserver;
use crate::upstream::response_head::ResponseHead;
use crate::upstream::response_monitor::ResponseMonitor;

/// Reports the progress of one relay to the backend's state and the observers.
pub(super) struct Progress<'a> {
    proxy: &'a Proxy,
    /// The maximum number of ids of stored responses that are kept.
    id_limit: usize,
    /// The owner of a stored response.
    owner: KeyOwner,
    request: &'a ScannedRequest,
    attempt: &'a Attempt<'a>,
    arrived_at: Timestamp,
    /// The attempt's slot in the drain estimate.
    drain_slot: Option<SlotId>,
    /// The result of the attempt, if the response is complete.
    result: AttemptResult,
    is_stream: bool,
    ctx: &'a RequestContext,
}

impl RelayObserver for Progress<'_> {
    fn tokens_passed(&self, is_first: bool, tokens: u32, now: Timestamp) {
        let serving = self.attempt.serving;
        serving.state.note_response(now);
        if let Some(slot) = self.drain_slot {
            serving.state.drain_estimate.add_tokens(slot, tokens);
        }
        // Before the requests that wait for capacity look at the backend.
        if self.attempt.is_predicted {
            self.attempt.tokens(tokens, now);
        }
        if is_first {
            self.attempt.first_token();
            self.proxy.observers.first_token(serving.id, now.since(self.arrived_at));
        }
        self.proxy.observers.progress(serving.id, tokens);
    }

    // The permit is released before the last bytes are written: a client that sends its next
    // request at once must find the backend free.
    fn response_read(&self, monitor: &ResponseMonitor) {
        self.learn_id(monitor);
        self.request.learn_end(self.attempt.serving, monitor);
        if self.is_stream {
            self.attempt.serving.latency.learn_length(TokenCount(monitor.tokens));
        }
        let first_token = monitor.first_token.filter(|_| self.is_stream);
        // A stream is committed by its head: a failure shows only in its content.
        let has_failed =
            self.is_stream && self.result.outcome == Outcome::Ok && monitor.has_failed();
        let outcome = if has_failed { Outcome::Fault } else { self.result.outcome };
        let result = AttemptResult { outcome, first_token, usage: monitor.usage(), ..self.result };
        record_outcome(self.attempt, &result, &self.ctx.generation, &self.proxy.observers);
        settle_rate_of(self.ctx, result.usage, monitor.tokens);
    }
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        proxy: &'a Proxy,
        ctx: &'a RequestContext,
        request: &'a ScannedRequest,
        attempt: &'a Attempt<'a>,
        head: &ResponseHead,
    ) -> Self {
        Self {
            proxy,
            id_limit: ctx.generation.config.limits.response_ids,
            owner: ctx.key_owner(),
            request,
            attempt,
            arrived_at: ctx.arrived_at,
            drain_slot: attempt.permit.lock().as_ref().and_then(InflightGuard::drain_slot),
            result: AttemptResult {
                first_token: None,
                ..AttemptResult::by_status(head.status, ctx)
            },
            is_stream: head.stream.is_some(),
            ctx,
        }
    }

    /// Remembers where the response is stored.
    pub(super) fn learn_id(&self, monitor: &ResponseMonitor) {
        let (ids, backend) = (&self.proxy.response_ids, self.attempt.serving.id);
        if let Some(id) = monitor.response_id() {
            ids.learn(id, backend, self.owner, self.id_limit);
        }
        let conversation = self.request.conversation.as_deref();
        if let Some(id) = conversation.filter(|_| self.result.outcome == Outcome::Ok) {
            ids.claim(id, backend, self.owner, self.id_limit);
        }
    }
}
