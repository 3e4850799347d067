//! The learned state of one model on one backend, and the tickets of the requests there.
//! Single-threaded: [`super::Predictor`] is the shared form.

use super::batch_share::BatchShare;
use super::bursts::{Bursts, SAME};
use super::coefficients::{Coefficients, StepLearner};
use super::front_end::FrontEnd;
use super::lengths::Lengths;
use super::limit_learner::{LimitLearner, is_too_long};
use super::pace::{Pace, PaceSpread};
use super::prediction::{EngineLimits, EngineView, Prediction, Sent, predict};
use super::prefill::PrefillLearner;
use super::prompts::{Prompt, Prompts, StepEnd, Work, share_at};
use super::residual::{Regime, Residual};
use super::share::EngineShare;
use super::stall::Stall;
use super::streams::Streams;
use super::ticket::{Allowances, Ticket};
use super::wait_curve::WaitCurve;

/// The numbers of gaps and of first tokens below which predictions are not trusted.
const LEAST_GAPS: f64 = 50.0;
const LEAST_FIRST_TOKENS: f64 = 15.0;
/// The number of first tokens after a change of the engine that show whether predictions are right
/// again.
const FIRST_TOKENS_AFTER_CHANGE: f64 = 30.0;
/// The largest trusted share of first tokens within the 90th percentile: above it, predictions are
/// too long. Predictions that are too short need no bound: a request that is late by them is late.
const MOST_COVERAGE: f64 = 0.97;
/// The error below which a larger share is trusted as well: on an engine that takes the same time
/// for everything, predictions are nearly always right.
const SMALL_ERROR: f64 = 0.15;
/// The error at which predictions are not trusted, whatever share comes within the 90th percentile:
/// they are off by as much as the truth.
const MOST_ERROR: f64 = 1.0;
/// The number of first tokens from which on the coverage counts.
const COVERAGE_SEEN: f64 = 100.0;
/// The factor by which a wait must exceed its prediction, and then the wait last learned, to be
/// learned from.
const OVERRUN: f64 = 1.5;
/// The most steps until the first token of a prompt with nothing before it, besides those that its
/// length explains.
const MAX_FIRST_STEPS: f64 = 4.0;
/// The number of tokens over which a stream may spend its lead over its objective.
const SLACK_TOKENS: f64 = 64.0;
/// The fraction of the room for streams above which the wait curve is computed.
const NEARLY_FULL: f64 = 0.5;

/// The limits and the load that an engine reports; a limit that it does not report is infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reported {
    /// The number of requests that it runs at a time.
    pub slots: f64,
    /// The size of its KV cache in tokens.
    pub kv_tokens: f64,
    /// The number of running requests while others wait in the engine although its KV cache has
    /// room; `None` if none wait.
    pub running_full: Option<f64>,
}

impl Default for Reported {
    fn default() -> Self {
        Self { slots: f64::INFINITY, kv_tokens: f64::INFINITY, running_full: None }
    }
}

/// The predictor of one model on one backend.
#[derive(Debug)]
pub struct BackendPredictor {
    steps: StepLearner,
    prefill: PrefillLearner,
    front_end: FrontEnd,
    coefficients: Coefficients,
    limits: EngineLimits,
    learned_limits: LimitLearner,
    /// True if the engine reports its slots, and the size of its KV cache.
    knows_slots: bool,
    knows_kv_tokens: bool,
    /// True if it started with the learned state of another backend, or of another version here.
    is_informed: bool,
    prompts: Prompts,
    /// The number of requests without a first token, except those with a response in one piece.
    waiting: u32,
    streams: Streams,
    /// The most streams that the engine has had at one time.
    most_streams: f64,
    stall: Stall,
    /// The load of peers there, as counted from their reports.
    others: EngineShare,
    lengths: Lengths,
    residual: Residual,
    allowed: Allowances,
    sent: u64,
    /// The end of the last step, and the number of steps that have ended.
    step_ended: f64,
    steps_seen: f64,
    /// True if the current step computes no prompt, as far as is known.
    is_clean: bool,
    bursts: Bursts,
    pace: Pace,
    pace_spread: PaceSpread,
    batch_share: BatchShare,
}

impl BackendPredictor {
    /// Starts with the step times of a similar engine.
    pub fn new(prior: &Coefficients, limits: EngineLimits) -> Self {
        Self {
            steps: StepLearner::new(prior),
            prefill: PrefillLearner::new(prior.token, prior.pair),
            front_end: FrontEnd::default(),
            coefficients: *prior,
            knows_slots: limits.slots.is_finite(),
            knows_kv_tokens: limits.kv_tokens.is_finite(),
            limits,
            learned_limits: LimitLearner::default(),
            is_informed: false,
            prompts: Prompts::default(),
            waiting: 0,
            streams: Streams::default(),
            most_streams: 0.0,
            stall: Stall::default(),
            others: EngineShare::default(),
            lengths: Lengths::default(),
            residual: Residual::default(),
            allowed: Allowances::default(),
            sent: 0,
            step_ended: 0.0,
            steps_seen: 0.0,
            is_clean: false,
            bursts: Bursts::default(),
            pace: Pace::default(),
            pace_spread: PaceSpread::default(),
            batch_share: BatchShare::default(),
        }
    }

    /// Returns the state that decisions read at `now`.
    pub fn view<'a>(&self, waits: &'a WaitCurve, now: f64) -> EngineView<'a> {
        let (others, outside) = (&self.others, self.prompts.outside());
        let is_tried = self.waiting > 0 || self.streams.count() >= 1.0;
        EngineView {
            coefficients: self.coefficients,
            limits: self.limits,
            step_ended: self.step_ended,
            waiting: f64::from(self.waiting) + others.waiting,
            inside: self.prompts.inside(),
            outside: Work {
                tokens: outside.tokens + others.prompts.tokens,
                time: outside.time + others.prompts.time,
            },
            prefill_share: self.prefill_share(now),
            streams: self.all_streams(),
            own_streams: self.streams.count(),
            context: self.all_context(),
            waits,
            factors: self.residual.all_factors(),
            front_end: self.prefill.front_end(),
            output: self.lengths.mean(),
            pace: self.pace.factor(),
            pace_percentile: self.pace_spread.factor(),
            silence: self.stall.silence(is_tried, self.step()),
        }
    }

    /// Predicts the latencies of a request at `now`.
    pub fn predict(&self, waits: &WaitCurve, sent: &Sent, now: f64) -> Prediction {
        predict(&self.view(waits, now), sent, now)
    }

    /// Adds a request that is sent by this prediction. `objective` is for its time per token.
    pub fn sent(
        &mut self,
        sent: Sent,
        prediction: Prediction,
        objective: Option<f64>,
        now: f64,
    ) -> Ticket {
        let own_idle = self.waiting == 0 && self.streams.count() < 1.0;
        if own_idle {
            self.stall.tried(self.step(), now);
        }
        let is_idle = own_idle && self.others.waiting < 1.0 && self.others.streams < 1.0;
        // While the engine was idle, nothing showed the ends of its steps.
        self.is_clean &= !own_idle;
        self.sent += 1;
        let number = self.sent;
        let Prediction { raw, regime, work, decode, .. } = prediction;
        let done_at = if sent.is_whole { now + raw - decode } else { f64::INFINITY };
        let (tokens, learned, started) = (sent.uncached(), 0.0, None);
        let sent_at = now;
        let ahead = self.front_end.ahead(self.own_share().prompts.tokens + tokens);
        let prompt =
            Prompt { number, sent_at, tokens, work, ahead, done_at, raw, regime, learned, started };
        if is_idle {
            self.step_ended = now + self.prefill.front_end();
        }
        self.prompts.send(prompt, is_idle.then_some(StepEnd { at: now, number: self.steps_seen }));
        self.is_clean &= !is_idle;
        let (allowed, first_at, age) = (None, 0.0, 0);
        // An objective that is missed even alone is no reason to keep others away.
        let alone = self.coefficients.step(1.0, sent.prompt);
        let objective = objective.filter(|objective| *objective >= alone);
        let mut ticket =
            Ticket { sent_at: now, sent, prediction, number, objective, allowed, first_at, age };
        if sent.is_whole {
            self.start_stream(&mut ticket, now);
        } else {
            self.waiting += 1;
        }
        ticket
    }

    /// Learns from the first token of a request.
    pub fn first_token(&mut self, ticket: &mut Ticket, now: f64) {
        if ticket.age > 0 {
            return;
        }
        let Prediction { raw, regime, .. } = ticket.prediction;
        let took = now - ticket.sent_at;
        self.learn_limits(ticket, now);
        self.waiting = self.waiting.saturating_sub(1);
        if now > self.step_ended + SAME * self.step() {
            self.step_ended(now, 1.0);
        }
        let prompt = self.prompts.remove(ticket.number);
        if let Some(prompt) = prompt.filter(|_| matches!(regime, Regime::Prefill | Regime::Idle)) {
            self.learn_front_end(&prompt, now);
            self.learn_prompt(ticket, &prompt, now);
        }
        self.is_clean = false;
        self.stall.computed(ticket.prediction.work, now);
        // If another request was sent later, this one was not alone on the engine.
        if regime != Regime::Idle || ticket.number == self.sent {
            self.residual.learn(regime, raw, took);
        }
        self.stall.started(self.step(), now);
        self.start_stream(ticket, now);
    }

    fn start_stream(&mut self, ticket: &mut Ticket, now: f64) {
        ticket.age = 1;
        ticket.first_at = now;
        self.streams.add(ticket.sent.prompt, 1);
        self.most_streams = self.most_streams.max(self.all_streams());
        self.allowed.set(ticket, ticket.objective);
        if self.learned_limits.saw(self.all_streams()) {
            self.use_learned_limits();
        }
    }

    fn step(&self) -> f64 {
        self.coefficients.step(self.all_streams(), self.all_context())
    }

    /// Returns the share of the time that prefills took lately.
    fn prefill_share(&self, now: f64) -> f64 {
        let (recent, changed) = self.prompts.recent();
        share_at(recent, changed, now)
    }

    fn all_streams(&self) -> f64 {
        self.streams.count() + self.others.streams
    }

    fn all_context(&self) -> f64 {
        self.streams.context() + self.others.context
    }

    /// Records that the stream has emitted `tokens` tokens in all.
    pub fn progress(&mut self, ticket: &mut Ticket, tokens: u32, now: f64) {
        if ticket.age == 0 || tokens <= ticket.age {
            return;
        }
        self.streams.grow(ticket.age, tokens);
        ticket.age = tokens;
        self.stall.emitted(now);
        if let Some(objective) = ticket.objective {
            let ahead = ticket.first_at + f64::from(tokens) * objective - now;
            self.allowed.set(ticket, Some(objective + ahead.max(0.0) / SLACK_TOKENS));
        }
    }

    /// Records further tokens, for a caller that does not see of which stream: the simulator.
    pub fn emitted(&mut self, now: f64) {
        self.stall.emitted(now);
    }

    /// Ends a request: with all its tokens, or cut by its client or a failure. `output` is its
    /// number of tokens, where that is known better than from the stream.
    pub fn ended(&mut self, ticket: &mut Ticket, output: Option<u32>, is_complete: bool, now: f64) {
        if ticket.age == 0 {
            self.no_token(ticket, is_complete, now);
            self.waiting = self.waiting.saturating_sub(1);
            let prompt = self.prompts.remove(ticket.number);
            if prompt.is_some_and(|one| one.started.is_some()) {
                self.bursts.discard_unfinished();
            }
            return;
        }
        if ticket.sent.is_whole {
            self.prompts.remove(ticket.number);
        }
        self.streams.remove(ticket.sent.prompt, ticket.age);
        self.allowed.set(ticket, None);
        self.start_prompts(now);
        if ticket.sent.is_whole {
            self.no_token(ticket, is_complete, now);
            return self.learn_whole(ticket, output.filter(|_| is_complete), now);
        }
        self.stall.ended(is_complete, now);
        let length = f64::from(output.unwrap_or(ticket.age).max(ticket.age));
        let (predicted, actual) =
            (ticket.prediction.tpot, (now - ticket.first_at) / (length - 1.0).max(1.0));
        self.pace_spread.learn(predicted, actual, length);
        if let Some(objective) = ticket.objective {
            self.batch_share.learn(objective, predicted, actual, length);
        }
        if is_complete { self.lengths.learn(length) } else { self.lengths.learn_cut(length) }
    }

    /// Records the end of a request of which no token was seen: it came as a whole, or was cut
    /// before.
    fn no_token(&mut self, ticket: &Ticket, is_complete: bool, now: f64) {
        if is_complete {
            return self.stall.emitted(now);
        }
        let expected = ticket.prediction.ttft - ticket.prediction.stall;
        self.stall.left(ticket.sent_at, expected, self.step(), now);
    }

    /// Returns the number of steps that have ended.
    pub fn steps_seen(&self) -> f64 {
        self.steps_seen
    }

    /// Returns the duration of a step now, and the end of the last one.
    pub fn steps(&self) -> (f64, f64) {
        (self.step(), self.step_ended)
    }

    /// Learns from requests that wait for longer than predicted and from what the engine reports,
    /// and computes the numbers that change slowly. Call it about once a second.
    pub fn refresh(&mut self, waits: &WaitCurve, reported: Reported, now: f64) {
        self.set_limits(reported.slots, reported.kv_tokens);
        self.prompts.forget_done(now);
        self.stall.expire(now);
        if self.learned_limits.expire(now) {
            self.use_learned_limits();
        }
        let (step, mut has_overdue) = (self.step(), false);
        let is_behind = |one: &&mut Prompt| matches!(one.regime, Regime::Prefill | Regime::Slot);
        for one in self.prompts.iter_mut().filter(is_behind) {
            let elapsed = now - one.sent_at;
            has_overdue |= is_too_long(elapsed, one.raw, step);
            if elapsed > OVERRUN * one.learned.max(one.raw) {
                one.learned = elapsed;
                self.residual.learn_overrun(one.regime, one.raw, elapsed);
            }
        }
        if self.learned_limits.reported(reported.running_full, has_overdue, now) {
            self.use_learned_limits();
        }
        let limits = self.limits;
        let (count, context) = (self.all_streams(), self.all_context());
        let room = limits.slots.min(limits.kv_tokens / (context / count.max(1.0)).max(1.0));
        if count + f64::from(self.waiting) + self.others.waiting > room * NEARLY_FULL {
            self.lengths.see_running(self.streams.ages());
            waits.compute(&self.lengths, &self.streams, now);
        }
    }

    /// Returns the share of an objective for the time per token that a prediction may reach before
    /// the batch is full.
    pub fn batch_share(&self) -> f64 {
        self.batch_share.get()
    }

    /// Returns when the first token of the oldest prompt is due if nothing is before it; infinite
    /// if none waits.
    pub fn oldest_due(&self) -> f64 {
        self.prompts.first_waiting().map_or(f64::INFINITY, |one| {
            let steps = MAX_FIRST_STEPS + one.tokens / self.limits.step_tokens;
            one.sent_at + one.work + steps * self.step()
        })
    }

    /// Returns the least time per token that a running stream can bear; infinite if none has an
    /// objective.
    pub fn tightest(&self) -> f64 {
        self.allowed.tightest()
    }

    /// Returns whether it has seen enough, and was right often enough, to refuse a request by its
    /// predictions.
    pub fn is_trusted(&self) -> bool {
        let seen = self.residual.seen();
        let is_covered =
            self.residual.coverage() <= MOST_COVERAGE || self.residual.error() < SMALL_ERROR;
        let is_known = match seen < COVERAGE_SEEN {
            // An engine that never stops reading prompts has no gaps to learn from: its coverage
            // counts.
            true => seen >= LEAST_FIRST_TOKENS && self.steps.gaps() >= LEAST_GAPS,
            false => is_covered,
        };
        // Under full load there are few gaps to learn from again.
        let is_settled = !self.steps.is_relearning()
            || self.residual.since_change() >= FIRST_TOKENS_AFTER_CHANGE;
        is_known && is_settled && self.residual.error() < MOST_ERROR
    }

    /// Returns the learned step times of the engine.
    pub fn coefficients(&self) -> &Coefficients {
        &self.coefficients
    }

    /// Returns the recent residual of predictions.
    pub fn residual(&self) -> &Residual {
        &self.residual
    }

    /// Returns the number of gaps that it has learned from.
    pub fn gaps(&self) -> f64 {
        self.steps.gaps()
    }

    /// Returns the prompts that were sent and have no first token yet.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Returns the numbers of requests without a first token and of streams.
    pub fn counts(&self) -> (f64, f64) {
        (self.waiting.into(), self.streams.count())
    }
}

mod engine;
mod learning;
#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
