//! All that is learned of one model on one backend, and the tickets of the requests there. Single-threaded: see
//! [`super::Predictor`] for what is shared.

use std::collections::{BTreeMap, VecDeque};

use super::backlog::Backlog;
use super::coefficients::{Coefficients, GapSample, StepLearner};
use super::lengths::Lengths;
use super::prediction::{EngineLimits, EngineView, Prediction, Sent, predict};
use super::prefill::{PrefillLearner, PrefillSample};
use super::residual::{Regime, Residual};
use super::slots::SlotLearner;
use super::streams::Streams;
use super::wait_curve::WaitCurve;

/// Gaps and first tokens below which predictions are not trusted.
const LEAST_GAPS: f64 = 50.0;
const LEAST_FIRST_TOKENS: f64 = 15.0;
/// Where the share within the 90th percentile has to be.
const TRUSTED_COVERAGE: std::ops::RangeInclusive<f64> = 0.8..=0.97;
/// First tokens before the coverage counts.
const COVERAGE_SEEN: f64 = 100.0;
/// Waiting requests that are looked at for overruns.
const MOST_WAITING: usize = 64;
/// By how much a wait has to exceed its prediction, and then itself, to be learned from.
const OVERRUN: f64 = 1.25;
/// Prompt tokens that are learned from together where prompts follow each other without a pause.
const STRETCH: f64 = 1024.0;
/// The tokens over which a stream may spend the time that it is ahead of its objective.
const SLACK_TOKENS: f64 = 64.0;
/// The share of the room for streams above which it is computed when they end.
const NEARLY_FULL: f64 = 0.5;

/// What a request carries from its prediction to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticket {
    /// When it was sent.
    pub sent_at: f64,
    /// What was sent.
    pub sent: Sent,
    /// What was predicted.
    pub prediction: Prediction,
    /// Its number on the backend.
    number: u64,
    /// Whether no other request waited for its first token when it was sent.
    is_alone: bool,
    /// Its objective for the time per token, if it has one.
    objective: Option<f64>,
    /// The time per token that it can bear now: its objective, and what it is ahead of it. In nanoseconds.
    allowed: Option<u64>,
    /// When its first token came.
    first_at: f64,
    /// Tokens that it has emitted; 0 before the first.
    age: u32,
}

impl Ticket {
    /// Tokens that it has emitted.
    pub fn age(&self) -> u32 {
        self.age
    }
}

/// Prompts that followed each other without a pause of the engine.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    tokens: f64,
    pairs: f64,
    time: f64,
    steps: f64,
}

/// A request without a first token.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    number: u64,
    sent_at: f64,
    raw: f64,
    regime: Regime,
    /// The wait that was learned from last.
    learned: f64,
}

/// The predictor of one model on one backend.
#[derive(Debug)]
pub struct BackendPredictor {
    steps: StepLearner,
    prefill: PrefillLearner,
    coefficients: Coefficients,
    limits: EngineLimits,
    slots: SlotLearner,
    backlog: Backlog,
    streams: Streams,
    lengths: Lengths,
    residual: Residual,
    waiting: VecDeque<Waiting>,
    /// The times per token that running streams can bear, in nanoseconds, and how many have each.
    allowed: BTreeMap<u64, u32>,
    sent: u64,
    last_first_token: f64,
    stretch: Stretch,
    /// The end of the last gap that was learned from: gaps of streams that run beside each other are one.
    gap_end: f64,
}

impl BackendPredictor {
    /// Starts with the step time of an engine like it.
    pub fn new(prior: &Coefficients, limits: EngineLimits) -> Self {
        Self {
            steps: StepLearner::new(prior),
            prefill: PrefillLearner::new(prior.token, prior.pair),
            coefficients: *prior,
            limits,
            slots: SlotLearner::default(),
            backlog: Backlog::default(),
            streams: Streams::default(),
            lengths: Lengths::default(),
            residual: Residual::default(),
            waiting: VecDeque::new(),
            allowed: BTreeMap::new(),
            sent: 0,
            last_first_token: 0.0,
            stretch: Stretch::default(),
            gap_end: 0.0,
        }
    }

    /// What decisions read; all but how far the backlog is, which depends on the time.
    pub fn view<'a>(&self, waits: &'a WaitCurve, now: f64) -> EngineView<'a> {
        EngineView {
            coefficients: self.coefficients,
            limits: self.limits(),
            backlog: self.backlog.left_at(now),
            waiting: self.backlog.waiting(),
            waiting_tokens: self.backlog.mean_tokens(),
            prefill_share: self.backlog.prefill_share(now),
            streams: self.streams.count(),
            context: self.streams.context(),
            waits,
            factors: self.residual.all_factors(),
            front_end: self.prefill.front_end(),
            output: self.lengths.mean(),
        }
    }

    /// Predicts a request at `now`.
    pub fn predict(&self, waits: &WaitCurve, sent: &Sent, now: f64) -> Prediction {
        predict(&self.view(waits, now), sent, now)
    }

    /// A request is sent by this prediction. `objective`: for its time per token.
    pub fn sent(
        &mut self,
        sent: Sent,
        prediction: Prediction,
        objective: Option<f64>,
        now: f64,
    ) -> Ticket {
        let uncached = sent.uncached();
        let is_alone = self.backlog.waiting() < 0.5;
        self.sent += 1;
        let mut ticket = Ticket {
            sent_at: now,
            sent,
            prediction,
            number: self.sent,
            is_alone,
            objective,
            allowed: None,
            first_at: 0.0,
            age: 0,
        };
        if sent.is_whole {
            self.backlog.sent_whole(now, prediction.work);
            self.start_stream(&mut ticket, now);
            return ticket;
        }
        self.backlog.sent(now, uncached, prediction.work);
        let Prediction { raw, regime, .. } = prediction;
        if self.waiting.len() < MOST_WAITING {
            let (number, sent_at) = (self.sent, now);
            self.waiting.push_back(Waiting { number, sent_at, raw, regime, learned: 0.0 });
        }
        ticket
    }

    /// Its first token has come.
    pub fn first_token(&mut self, ticket: &mut Ticket, now: f64) {
        if ticket.age > 0 {
            return;
        }
        let Prediction { work, raw, regime, .. } = ticket.prediction;
        let took = now - ticket.sent_at;
        self.learn_prefill(ticket, now);
        if self.slots.learn(regime, took, raw, self.step(), self.streams.count()) {
            self.limits.slots = self.slots.found();
        }
        self.backlog.first_token(now, ticket.sent.uncached(), work);
        self.forget_waiting(ticket.number);
        self.residual.learn(regime, raw, took);
        self.last_first_token = now;
        self.start_stream(ticket, now);
    }

    fn start_stream(&mut self, ticket: &mut Ticket, now: f64) {
        ticket.age = 1;
        ticket.first_at = now;
        self.streams.add(ticket.sent.prompt, 1);
        self.allow(ticket, ticket.objective);
        if self.slots.saw(self.streams.count()) {
            self.limits.slots = self.slots.found();
        }
    }

    /// A prompt was computed: alone, or directly behind others.
    fn learn_prefill(&mut self, ticket: &Ticket, now: f64) {
        let Prediction { regime, steps, phase, .. } = ticket.prediction;
        let (tokens, sent) = (ticket.sent.uncached(), &ticket.sent);
        let pairs = tokens * (sent.cached + tokens * 0.5);
        let is_last = ticket.number == self.sent;
        let is_behind = ticket.sent_at < self.last_first_token;
        if regime != Regime::Prefill {
            self.stretch = Stretch::default();
        } else if ticket.is_alone && is_last {
            let time = now - ticket.sent_at - steps - phase;
            self.prefill.learn(&PrefillSample { tokens, pairs, time, has_front_end: true });
            self.learned();
        } else if is_behind {
            let gap = now - self.last_first_token;
            let step = self.step();
            self.stretch.tokens += tokens;
            self.stretch.pairs += pairs;
            self.stretch.time += gap;
            // Prompts that end with the same step come at the same time.
            if gap > 0.3 * step {
                self.stretch.steps += steps.max(step);
            }
            if self.stretch.tokens >= STRETCH {
                let Stretch { tokens, pairs, time, steps } = std::mem::take(&mut self.stretch);
                let time = time - steps;
                self.prefill.learn(&PrefillSample { tokens, pairs, time, has_front_end: false });
                self.learned();
            }
        } else {
            self.stretch = Stretch::default();
        }
    }

    fn step(&self) -> f64 {
        self.coefficients.step(self.streams.count(), self.streams.context())
    }

    /// It has emitted so many tokens.
    pub fn progress(&mut self, ticket: &mut Ticket, tokens: u32, now: f64) {
        if ticket.age == 0 || tokens <= ticket.age {
            return;
        }
        self.streams.grow(ticket.age, tokens);
        ticket.age = tokens;
        if let Some(objective) = ticket.objective {
            let ahead = ticket.first_at + f64::from(tokens) * objective - now;
            self.allow(ticket, Some(objective + ahead.max(0.0) / SLACK_TOKENS));
        }
    }

    /// It has ended: with all its tokens, or cut by its client or a failure. `output`: its tokens, where they are known
    /// better than from the stream.
    pub fn ended(&mut self, ticket: &mut Ticket, output: Option<u32>, is_complete: bool, now: f64) {
        if ticket.age == 0 {
            self.backlog.left(now, ticket.sent.uncached(), ticket.prediction.work);
            self.forget_waiting(ticket.number);
            return;
        }
        self.streams.remove(ticket.sent.prompt, ticket.age);
        self.allow(ticket, None);
        if ticket.sent.is_whole {
            return self.learn_whole(ticket, output.filter(|_| is_complete), now);
        }
        let length = f64::from(output.unwrap_or(ticket.age).max(ticket.age));
        if is_complete { self.lengths.learn(length) } else { self.lengths.learn_cut(length) }
    }

    /// A response came in one piece: its duration and length show how fast the engine decodes.
    fn learn_whole(&mut self, ticket: &Ticket, output: Option<u32>, now: f64) {
        let Some(output) = output.map(f64::from).filter(|output| *output >= 1.0) else { return };
        self.lengths.learn(output);
        let Prediction { raw, decode, regime, .. } = ticket.prediction;
        let took = now - ticket.sent_at;
        self.residual.learn(regime, raw, took);
        let gap = (took - (raw - decode)) / (output - 1.0);
        if output >= 8.0 && gap > 0.0 {
            let (decodes, context) = (self.streams.count() + 1.0, self.streams.context());
            let context = context + ticket.sent.prompt + output * 0.5;
            self.learn_gap(&GapSample { gap, decodes, context, steps: output.min(16.0) });
        }
    }

    /// A step without prompts.
    pub fn learn_gap(&mut self, sample: &GapSample) {
        self.steps.learn_gap(sample);
        self.learned();
    }

    /// A stream emitted a token in each of `steps` steps between two times between which no prompt was computed.
    pub fn learn_gaps(&mut self, from: f64, to: f64, steps: f64) {
        if from < self.gap_end || steps < 1.0 || self.streams.count() < 1.0 {
            return;
        }
        self.gap_end = to;
        let (decodes, context) = (self.streams.count(), self.streams.context());
        self.learn_gap(&GapSample { gap: (to - from) / steps, decodes, context, steps });
    }

    fn learned(&mut self) {
        self.coefficients = self.steps.coefficients(self.prefill.token(), self.prefill.pair());
    }

    /// Learns from requests that wait for longer than was predicted, and computes what changes slowly. Call it about
    /// once a second.
    pub fn refresh(&mut self, waits: &WaitCurve, now: f64) {
        for one in &mut self.waiting {
            let elapsed = now - one.sent_at;
            if elapsed > OVERRUN * one.learned.max(one.raw) {
                one.learned = elapsed;
                self.residual.learn_overrun(one.regime, one.raw, elapsed);
            }
        }
        let limits = self.limits();
        let (count, context) = (self.streams.count(), self.streams.context());
        let room = limits.slots.min(limits.kv_tokens / (context / count.max(1.0)).max(1.0));
        if count + self.backlog.waiting() > room * NEARLY_FULL {
            self.lengths.see_running(self.streams.ages());
            waits.compute(&self.lengths, &self.streams, now);
        }
    }

    /// The engine has started again: its requests are gone, its caches, and maybe its settings.
    pub fn restarted(&mut self) {
        (self.backlog, self.streams) = (Backlog::default(), Streams::default());
        self.waiting.clear();
        self.allowed.clear();
        self.stretch = Stretch::default();
        self.slots = SlotLearner::default();
        self.limits.slots = f64::INFINITY;
    }

    /// What the engine reports of its limits; infinite where it does not.
    pub fn set_limits(&mut self, slots: f64, kv_tokens: f64) {
        if slots.is_finite() {
            self.limits.slots = slots;
        }
        self.limits.kv_tokens = kv_tokens;
    }

    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn forget_waiting(&mut self, number: u64) {
        if let Some(index) = self.waiting.iter().position(|one| one.number == number) {
            self.waiting.remove(index);
        }
    }

    fn allow(&mut self, ticket: &mut Ticket, per_token: Option<f64>) {
        if let Some(before) = ticket.allowed.take()
            && let Some(count) = self.allowed.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.allowed.remove(&before);
            }
        }
        ticket.allowed = per_token.map(nanoseconds);
        if let Some(after) = ticket.allowed {
            *self.allowed.entry(after).or_default() += 1;
        }
    }

    /// The least time per token that a running stream can bear; infinite where none has an objective.
    pub fn tightest(&self) -> f64 {
        self.allowed.keys().next().map_or(f64::INFINITY, |least| *least as f64 / 1000.0)
    }

    /// Whether it has seen enough, and was right often enough, for a request to be refused by it.
    pub fn is_trusted(&self) -> bool {
        let seen = self.residual.seen();
        let is_covered =
            seen < COVERAGE_SEEN || TRUSTED_COVERAGE.contains(&self.residual.coverage());
        let is_settled = self.steps.gaps() >= LEAST_GAPS && !self.steps.is_relearning();
        is_settled && seen >= LEAST_FIRST_TOKENS && is_covered
    }

    /// What it has learned of the engine's steps.
    pub fn coefficients(&self) -> &Coefficients {
        &self.coefficients
    }

    /// What predictions missed lately.
    pub fn residual(&self) -> &Residual {
        &self.residual
    }

    /// Gaps that it has learned from.
    pub fn gaps(&self) -> f64 {
        self.steps.gaps()
    }

    /// The prefill work that was sent to it.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Requests without a first token, and streams.
    pub fn counts(&self) -> (f64, f64) {
        (self.backlog.waiting(), self.streams.count())
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
fn nanoseconds(micros: f64) -> u64 {
    (micros * 1000.0).round().clamp(0.0, 1e18) as u64
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
