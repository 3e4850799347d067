//! Requests from their arrival to their end.

use penstock_api::units::{Timestamp, TokenCount, narrow};
use penstock_core::admission::queue::{Charge, Cost, QueueEnd};
use penstock_core::fleet::{
    BackendSet, InflightGuard, LatencySample, Outcome, OutcomeSource, Serving, Topology,
    cooldown_time,
};
use penstock_core::routing::{RetrySafety, RouteError, RoutingDecision};
use penstock_predict::PredictionTicket;

use super::balancer::{Arrived, PermittedDecision, requester_of};
use super::engines::PICOS;
use super::events::{Sent, WorldEvent};
use super::result::{FailReason, ShedReason, Status};
use super::{World, timestamp};
use crate::random::{Purpose, RandomStream};

/// A request that has not ended, with its current attempt.
#[derive(Debug)]
pub(super) struct LiveRequest {
    balancer: u32,
    pub(super) attempt: u16,
    /// If set, a backend has limited its rate.
    has_met_limit: bool,
    /// The start of the attempt.
    started: u64,
    pub(super) decision: RoutingDecision,
    permit: InflightGuard,
    /// The charge to its owner in the queue of a model.
    pub(super) charge: Option<(usize, Charge)>,
    /// The backends where earlier attempts failed.
    tried: Option<Box<BackendSet>>,
}

impl LiveRequest {
    pub(super) fn balancer(&self) -> u32 {
        self.balancer
    }

    /// Returns the number of prompt tokens that were believed to be cached.
    pub(super) fn believed(&self) -> u32 {
        self.decision.cached_tokens()
    }

    /// Returns the prediction of the request, if there is one.
    pub(super) fn prediction(&mut self) -> Option<&mut PredictionTicket> {
        self.permit.prediction()
    }

    /// Returns the model on the backend that serves the request.
    pub(super) fn serving<'a>(&self, topology: &'a Topology) -> Option<&'a Serving> {
        self.decision.serving(topology)
    }
}

/// The reason why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCause {
    NotSent,
    Refused,
    NoResponse,
    Cut,
    TooLong,
}

/// The history of a request before its next attempt.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    attempt: u16,
    pub(super) tried: Option<Box<BackendSet>>,
    has_met_limit: bool,
    failure: Option<FailureCause>,
}

impl World<'_> {
    pub(super) fn arrive(&mut self, id: u32, at: u64) {
        let Some(request) = self.workload.requests.get(id as usize) else { return };
        if let Some(result) = self.results.get_mut(id as usize) {
            result.arrived = at;
        }
        if request.patience_ms > 0 {
            self.queue.push(at + u64::from(request.patience_ms) * 1000, WorldEvent::Leave(id));
        }
        let balancer = self.balancer_of(id);
        if let Some(one) = self.balancers.get(balancer as usize) {
            // Once per request, whatever its number of attempts, as in the proxy.
            one.credit.earn(&self.spec.config.routing.retry_budget);
        }
        // Before the queue: a request that no budget admits must not wait.
        if !self.reserve_cost(id, balancer, timestamp(at)) {
            return self.shed(id, ShedReason::BudgetExceeded, at);
        }
        if self.has_others_waiting(id, balancer) {
            return self.line_up(id, balancer, at);
        }
        self.attempt(id, balancer, Earlier::default(), at);
    }

    pub(super) fn balancer_of(&self, id: u32) -> u32 {
        // In turn, as a network in front of them spreads connections.
        id % u32::try_from(self.balancers.len()).unwrap_or(1).max(1)
    }

    /// Sends a request to a backend; queues or ends it if no backend can take it.
    fn attempt(&mut self, id: u32, balancer: u32, earlier: Earlier, at: u64) {
        let failure = earlier.failure;
        let Err(error) = self.try_attempt(id, balancer, earlier, at) else { return };
        match failure {
            None if error.may_pass() && self.spec.config.queue.size > 0 => {
                self.line_up(id, balancer, at);
            }
            None => self.shed(id, shed_reason(&error), at),
            Some(failure) => self.end(id, Status::Failed(reason_of(failure)), at),
        }
    }

    /// Sends a request to a backend.
    pub(super) fn try_attempt(
        &mut self,
        id: u32,
        balancer: u32,
        earlier: Earlier,
        at: u64,
    ) -> Result<(), RouteError> {
        let workload = self.workload;
        let unknown = || RouteError::AllTried { model: String::new() };
        let request = workload.requests.get(id as usize).ok_or_else(unknown)?;
        // Before the decision: the proxy has seen the tokens of the other streams by then.
        (0..self.engines.all.len()).for_each(|index| self.learn_steps(index, at));
        let queued_ms = self.queued_ms(id, at);
        let chosen = self.chosen_by_oracle(id, balancer, &earlier, at)?;
        let one = self.balancers.get_mut(balancer as usize).ok_or_else(unknown)?;
        one.publish(&self.engines.all, at);
        let attempt = earlier.attempt + 1;
        let examined = self.spec.examined.filter(|one| one.request == id && attempt == 1);
        let untried =
            examined.and_then(|one| one.backend).map(|only| one.all_but(only)).unwrap_or_default();
        let tried = chosen.as_ref().or(earlier.tried.as_deref()).unwrap_or(&untried);
        let now = timestamp(at);
        let terms = self.budgets.as_ref().and_then(|budgets| budgets.terms_of(id));
        let arrived = Arrived { id, request, workload, tried, terms, attempt, queued_ms, now };
        if examined.is_some_and(|examined| examined.backend.is_none()) {
            self.picks = one.single_picks(&arrived);
        }
        let PermittedDecision { decision, mut permit } = one.decide(&arrived)?;
        let believed = decision.cached_tokens();
        if let Some(result) = self.results.get_mut(id as usize) {
            result.attempts = attempt;
            result.decided = at;
            result.backend = decision.backend.0;
            result.believed_tokens = believed;
            if let Some(ticket) = permit.prediction() {
                result.predicted = narrow(ticket.prediction().ttft_us);
                result.predicted_p90 = narrow(ticket.prediction().ttft_p90_us);
            }
        }
        let index = decision.serving(&one.topology).map_or(0, |row| usize::from(row.backend));
        let (due, number) = (at + self.delay_of(request, index), self.queue.planned());
        self.send(Sent { due, number, id, attempt, backend: index });
        let Earlier { tried, has_met_limit, .. } = earlier;
        let (started, charge) = (at, None);
        let live = LiveRequest {
            balancer,
            attempt,
            has_met_limit,
            started,
            decision,
            permit,
            charge,
            tried,
        };
        if let Some(place) = self.live.get_mut(id as usize) {
            *place = Some(Box::new(live));
        }
        Ok(())
    }

    pub(super) fn first_token(&mut self, id: u32, cached_tokens: u32, at: u64) {
        let Some(Some(live)) = self.live.get_mut(id as usize) else { return };
        live.permit.first_token();
        if let Some(ticket) = live.permit.prediction() {
            ticket.tokens(1, at as f64);
        }
        let topology = self.balancers.get(live.balancer as usize).map(|one| &one.topology);
        if let Some(serving) = topology.and_then(|topology| live.decision.serving(topology)) {
            serving.state.note_response(timestamp(at));
        }
        if let Some(result) = self.results.get_mut(id as usize) {
            result.first_token = at;
            result.cached_tokens = cached_tokens;
        }
    }

    pub(super) fn finish(&mut self, id: u32, output_tokens: u32, at: u64) {
        let Some(result) = self.results.get_mut(id as usize) else { return };
        result.output_tokens = output_tokens;
        let (first, cached) = (result.first_token, result.cached_tokens);
        self.pay(id, output_tokens, timestamp(at));
        self.learn_model(id, at);
        let Some(mut live) = self.live.get_mut(id as usize).and_then(Option::take) else { return };
        live.permit.complete(Some(TokenCount(output_tokens)), timestamp(at));
        let Some(request) = self.workload.requests.get(id as usize) else { return };
        let sample = if request.is_streamed {
            LatencySample::Stream(Some(Timestamp(first)))
        } else {
            LatencySample::Whole
        };
        self.learn(id, &live, Outcome::Ok, sample, at);
        let balancer = self.balancers.get_mut(live.balancer as usize);
        if let Some(balancer) = balancer {
            if let Some((model, charge)) = live.charge
                && let Some(queue) = balancer.queues.get_mut(model)
            {
                queue.settle(&charge, Cost { output: output_tokens, ..charge.cost });
            }
            let serving = live.decision.serving(&balancer.topology);
            if let Some(serving) = serving.filter(|_| request.is_streamed) {
                serving.latency.learn_length(TokenCount(output_tokens));
            }
            if let Some(weighted) = balancer.weighted().filter(|_| self.spec.reports_cached) {
                weighted.learn(&balancer.topology, &live.decision, cached);
            }
        }
        self.end(id, Status::Done, at);
    }

    /// Updates the backend's state with the outcome of an attempt.
    fn learn(&self, id: u32, live: &LiveRequest, outcome: Outcome, sample: LatencySample, at: u64) {
        let Some(balancer) = self.balancers.get(live.balancer as usize) else { return };
        let Some(serving) = live.decision.serving(&balancer.topology) else { return };
        let Some(backend) = balancer.topology.backends.get(usize::from(serving.backend)) else {
            return;
        };
        let Some(request) = self.workload.requests.get(id as usize) else { return };
        let requester = requester_of(request);
        let source = OutcomeSource {
            at: timestamp(at),
            started: timestamp(live.started),
            requester,
            scope: serving.cooldown_scope(requester),
            probe: live.permit.probe(),
        };
        // A live proxy logs the transition; here only its effect on the result matters.
        let _transition = serving.learn_attempt(outcome, source, sample, &backend.config.health);
        let tokens = Some(TokenCount(request.output_tokens)).filter(|_| outcome == Outcome::Ok);
        serving.measure_quality(outcome, source, sample, tokens);
    }

    /// Handles a failed attempt: retries if the retry rule allows it.
    pub(super) fn fail(&mut self, id: u32, failure: FailureCause, at: u64) {
        let Some(index) = self.backend_of(id, None) else { return };
        if failure == FailureCause::Cut {
            // The engine does not say how much it had emitted.
            self.pay(id, 1, timestamp(at));
        }
        let Some(live) = self.live.get_mut(id as usize).and_then(Option::take) else { return };
        self.learn(id, &live, self.outcome_of(id, failure), LatencySample::None, at);
        let LiveRequest { balancer, attempt, has_met_limit, decision, permit, tried, .. } = *live;
        self.capture(index, at);
        // Before the retry, which must find the place of this attempt free.
        drop(permit);
        self.check_soon(balancer, u32::try_from(index).unwrap_or(0), at);
        let Some(one) = self.balancers.get(balancer as usize) else { return };
        // If the response was cut, the engine had read the prompt, so its prefix stays recorded.
        if let Some(weighted) = one.weighted().filter(|_| failure != FailureCause::Cut) {
            weighted.take_back(&one.topology, &decision);
        }
        let mut tried = tried.unwrap_or_default();
        tried.insert(decision.backend);
        let is_refused_again = has_met_limit && failure == FailureCause::Refused;
        let routing = &self.spec.config.routing;
        let may_retry = !is_refused_again
            && one.credit.take_retry(safety_of(failure), attempt.into(), routing, timestamp(at));
        if !may_retry {
            return self.end(id, Status::Failed(reason_of(failure)), at);
        }
        let has_met_limit = has_met_limit || failure == FailureCause::Refused;
        let earlier =
            Earlier { attempt, tried: Some(tried), has_met_limit, failure: Some(failure) };
        self.attempt(id, balancer, earlier, at);
    }

    fn outcome_of(&self, id: u32, failure: FailureCause) -> Outcome {
        match failure {
            FailureCause::NotSent => Outcome::Unreachable,
            FailureCause::NoResponse | FailureCause::Cut => Outcome::Fault,
            FailureCause::TooLong => Outcome::Client,
            FailureCause::Refused => {
                let jitter =
                    RandomStream::new(self.spec.seed, Purpose::Cooldowns, id.into()).uniform();
                let cooldown = cooldown_time(&self.spec.config.routing.cooldown, None, jitter);
                Outcome::Busy { cooldown, status: 429 }
            }
        }
    }

    /// Fails an attempt whose engine was lost.
    pub(super) fn lose(&mut self, id: u32, at: u64) {
        let has_started =
            self.results.get(id as usize).is_some_and(|result| result.first_token > 0);
        self.fail(id, if has_started { FailureCause::Cut } else { FailureCause::NoResponse }, at);
    }

    /// Fails an attempt whose prompt is longer than the engine takes.
    pub(super) fn refuse_length(&mut self, id: u32, at: u64) {
        self.fail(id, FailureCause::TooLong, at);
    }

    /// Handles the departure of a client, unless the first token has arrived.
    pub(super) fn leave(&mut self, id: u32, at: u64) {
        // Patience is about the first token: a client that reads stays.
        if self.results.get(id as usize).is_none_or(|result| result.first_token > 0) {
            return;
        }
        if self.leave_queue(id, QueueEnd::ClientLeft, at) {
            return self.end(id, Status::Left, at);
        }
        let Some(index) = self.backend_of(id, None) else { return };
        // The prompt; nothing was emitted yet.
        self.pay(id, 0, timestamp(at));
        self.capture(index, at);
        let Some(mut live) = self.live.get_mut(id as usize).and_then(Option::take) else { return };
        self.learn(id, &live, Outcome::Cancel, LatencySample::None, at);
        live.permit.cut(timestamp(at));
        drop(live);
        if let Some(one) = self.engines.all.get_mut(index) {
            one.engine.cancel(at.saturating_mul(PICOS), id);
        }
        self.engines.plan(index);
        self.end(id, Status::Left, at);
    }

    /// Ends a request; its followers arrive after their pause, or never.
    pub(super) fn end(&mut self, id: u32, status: Status, at: u64) {
        let workload = self.workload;
        let mut ended = vec![(id, status)];
        while let Some((id, status)) = ended.pop() {
            let Some(result) = self.results.get_mut(id as usize) else { continue };
            if result.status != Status::Open {
                continue;
            }
            result.status = status;
            result.ended = at;
            self.open -= 1;
            self.release(id, timestamp(at));
            for follower in workload.followers_of(id) {
                if status != Status::Done {
                    // A stack instead of recursion: a chain of followers may be as long as the
                    // workload.
                    ended.push((follower, Status::Abandoned));
                } else if let Some(awaited) = self.awaited.get_mut(follower as usize) {
                    *awaited = awaited.saturating_sub(1);
                    let request =
                        workload.requests.get(follower as usize).filter(|_| *awaited == 0);
                    if let Some(request) = request {
                        let earliest = self.arrival_of(follower);
                        // A trace has times, too: a session that is served faster does not run
                        // ahead of it.
                        let at = earliest.max(at + u64::from(request.pause));
                        self.queue.push(at, WorldEvent::Arrive(follower));
                    }
                }
            }
        }
    }
}

fn safety_of(failure: FailureCause) -> RetrySafety {
    match failure {
        FailureCause::NotSent | FailureCause::Refused => RetrySafety::Safe,
        FailureCause::NoResponse => RetrySafety::IfLostAllowed,
        FailureCause::Cut | FailureCause::TooLong => RetrySafety::Unsafe,
    }
}

fn reason_of(failure: FailureCause) -> FailReason {
    match failure {
        FailureCause::NotSent => FailReason::NotSent,
        FailureCause::Refused => FailReason::Refused,
        FailureCause::NoResponse => FailReason::NoResponse,
        FailureCause::Cut => FailReason::Cut,
        FailureCause::TooLong => FailReason::TooLong,
    }
}

pub(super) fn shed_reason(error: &RouteError) -> ShedReason {
    match error {
        RouteError::Saturated { .. } => ShedReason::Saturated,
        RouteError::CoolingDown { .. } => ShedReason::CoolingDown,
        RouteError::ObjectiveMissed { .. } => ShedReason::ObjectiveMissed,
        RouteError::NoHealthyBackend { .. } | RouteError::AllTried { .. } => ShedReason::Unhealthy,
        RouteError::ModelNotFound { .. }
        | RouteError::NoBackendInZone { .. }
        | RouteError::CapabilityMismatch { .. }
        | RouteError::FallbackChainExhausted { .. }
        | RouteError::DiscoveryPending { .. } => ShedReason::Unserved,
    }
}
