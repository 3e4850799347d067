//! Requests on their way to an engine.

use penstock_api::units::to_micros;

use super::World;
use super::attempts::FailureCause;
use super::engines::PICOS;
use super::events::{Sent, WorldEvent};
use crate::engine::SubmittedRequest;
use crate::workload::Request;

impl<'a> World<'a> {
    /// Returns the delay between a decision and the engine's queue, in microseconds.
    pub(super) fn delay_of(&self, request: &Request, backend: usize) -> u64 {
        let learned = self.spec.engines.get(backend).and_then(|engine| engine.front_end);
        if let Some(learned) = learned {
            return learned / PICOS;
        }
        let delays = &self.spec.delays;
        let tokens = to_micros(delays.per_token).saturating_mul(request.input_tokens.into());
        to_micros(delays.network) + to_micros(delays.front_end) + tokens
    }

    /// Sends a request on its way to a backend.
    pub(super) fn send(&mut self, sent: Sent) {
        self.queue.push(sent.due, WorldEvent::Send(sent));
        if let Some(on_their_way) = self.sent.get_mut(sent.backend) {
            on_their_way.insert(sent);
        }
    }

    /// Delivers a request to the engine of its backend.
    pub(super) fn deliver(&mut self, sent: Sent, at: u64) {
        // A tree, because thousands of requests may be on their way at once: removal from a list
        // would scan it.
        if let Some(on_their_way) = self.sent.get_mut(sent.backend) {
            on_their_way.remove(&sent);
        }
        let Sent { id, attempt, .. } = sent;
        let Some(index) = self.backend_of(id, Some(attempt)) else { return };
        let Some(request) = self.request_of(id) else { return };
        let Some(engine) = self.engines.all.get(index) else { return };
        match (engine.is_up(), engine.refusals) {
            (false, _) => return self.fail(id, FailureCause::NotSent, at),
            (true, 1..) => return self.fail(id, FailureCause::Refused, at),
            (true, 0) => {}
        }
        self.capture(index, at);
        let model = self.model_at(id, index);
        if let Some(one) = self.engines.all.get_mut(index) {
            one.engine.submit(at.saturating_mul(PICOS), &model, &request);
        }
        self.engines.plan(index);
    }

    /// Returns a request in the form that its engine receives.
    pub(super) fn request_of(&self, id: u32) -> Option<SubmittedRequest<'a>> {
        let request = self.workload.requests.get(id as usize)?;
        Some(SubmittedRequest {
            id,
            input_tokens: request.input_tokens,
            output_tokens: request.output_tokens,
            max_tokens: Some(request.max_tokens).filter(|most| *most > 0),
            prefix: self.workload.prefix_of(request),
            prefix_tokens: self.workload.block_tokens,
        })
    }

    /// Returns the name of a request's model on a backend.
    pub(super) fn model_at(&self, id: u32, index: usize) -> Box<str> {
        let live = self.live.get(id as usize).and_then(Option::as_ref);
        let at = live.map_or(0, |live| live.balancer());
        let Some(one) = self.balancers.get(at as usize) else { return Box::default() };
        let sent = live.and_then(|live| live.serving(&one.topology));
        let request = self.workload.requests.get(id as usize);
        let requested = request.and_then(|one| self.workload.models.get(usize::from(one.model)));
        let instead = self.terms_of(id).and_then(|terms| terms.instead.as_deref());
        let name = instead.or(requested.map(String::as_str));
        let serves = |row: &&penstock_core::fleet::Serving| {
            usize::from(row.backend) == index && name.is_some_and(|name| *row.model == *name)
        };
        let served = || one.topology.models().iter().flat_map(|model| &model.serving).find(serves);
        sent.or_else(served).map_or("", |row| row.adapter_name()).into()
    }

    /// Returns the backend of a request, if `attempt` is still the current attempt.
    pub(super) fn backend_of(&self, id: u32, attempt: Option<u16>) -> Option<usize> {
        let live = self.live.get(id as usize)?.as_ref()?;
        let is_current = attempt.is_none_or(|attempt| attempt == live.attempt);
        let serving = live.serving(&self.balancers.get(live.balancer() as usize)?.topology);
        serving.filter(|_| is_current).map(|serving| usize::from(serving.backend))
    }
}
