//! All that is learned of one model on one backend, and the tickets of the requests there.

use super::backlog::Backlog;
use super::coefficients::{Coefficients, GapSample, StepLearner};
use super::lengths::Lengths;
use super::prediction::{EngineLimits, EngineView, Prediction, Sent, predict};
use super::residual::{Regime, Residual};
use super::slot_wait::WaitTable;
use super::streams::Streams;

/// Gaps and first tokens below which predictions are not trusted.
const LEAST_GAPS: f64 = 50.0;
const LEAST_FIRST_TOKENS: f64 = 15.0;
/// Where the share within the 90th percentile has to be.
const TRUSTED_COVERAGE: std::ops::RangeInclusive<f64> = 0.8..=0.97;
/// First tokens before the coverage counts.
const COVERAGE_SEEN: f64 = 100.0;

/// What a request carries from its prediction to its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticket {
    /// When it was sent.
    pub sent_at: f64,
    /// What was predicted.
    pub prediction: Prediction,
    /// Its uncached tokens.
    uncached: f64,
    prompt: f64,
    /// Tokens that it has emitted; 0 before the first.
    age: u32,
}

/// The predictor of one model on one backend.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendPredictor {
    steps: StepLearner,
    coefficients: Coefficients,
    /// What the engine has room for.
    pub limits: EngineLimits,
    /// What lies before the first step of a request.
    pub front_end: f64,
    backlog: Backlog,
    streams: Streams,
    lengths: Lengths,
    waits: WaitTable,
    residual: Residual,
}

impl BackendPredictor {
    /// Begins with the step time of an engine like it.
    pub fn new(prior: &Coefficients, limits: EngineLimits, front_end: f64) -> Self {
        let lengths = Lengths::default();
        Self {
            steps: StepLearner::new(prior),
            coefficients: *prior,
            limits,
            front_end,
            backlog: Backlog::default(),
            streams: Streams::default(),
            waits: WaitTable::new(&lengths),
            lengths,
            residual: Residual::default(),
        }
    }

    /// Predicts a request of which so many tokens are cached, at `now`.
    pub fn predict(&self, prompt: f64, cached: f64, now: f64) -> Prediction {
        let view = EngineView {
            coefficients: &self.coefficients,
            limits: &self.limits,
            backlog: &self.backlog,
            streams: &self.streams,
            waits: &self.waits,
            residual: &self.residual,
            front_end: self.front_end,
        };
        predict(&view, &Sent { prompt, cached, output: self.lengths.mean() }, now)
    }

    /// A request is sent by this prediction.
    pub fn sent(&mut self, prompt: f64, cached: f64, prediction: Prediction, now: f64) -> Ticket {
        let uncached = (prompt - cached).max(1.0);
        self.backlog.sent(now, uncached, prediction.work);
        Ticket { sent_at: now, prediction, uncached, prompt, age: 0 }
    }

    /// Its first token has come.
    pub fn first_token(&mut self, ticket: &mut Ticket, now: f64) {
        if ticket.age > 0 {
            return;
        }
        let Prediction { work, raw, regime, .. } = ticket.prediction;
        self.backlog.first_token(now, ticket.uncached, work);
        self.residual.learn(regime, raw, now - ticket.sent_at);
        ticket.age = 1;
        self.streams.add(ticket.prompt, 1);
    }

    /// It has emitted so many tokens.
    pub fn progress(&mut self, ticket: &mut Ticket, tokens: u32) {
        if ticket.age > 0 && tokens > ticket.age {
            self.streams.grow(ticket.age, tokens);
            ticket.age = tokens;
        }
    }

    /// It has ended: with all its tokens, or cut by its client or a failure.
    pub fn ended(&mut self, ticket: &Ticket, is_complete: bool, now: f64) {
        if ticket.age == 0 {
            self.backlog.left(now, ticket.uncached, ticket.prediction.work);
            return;
        }
        self.streams.remove(ticket.prompt, ticket.age);
        let length = f64::from(ticket.age);
        if is_complete { self.lengths.learn(length) } else { self.lengths.learn_cut(length) }
    }

    /// A request that has no first token is waiting longer than was predicted.
    pub fn overrun(&mut self, ticket: &Ticket, now: f64) {
        let Prediction { raw, regime, .. } = ticket.prediction;
        self.residual.learn_overrun(regime, raw, now - ticket.sent_at);
    }

    /// A step without prompts.
    pub fn learn_gap(&mut self, sample: &GapSample) {
        self.steps.learn_gap(sample);
        self.coefficients = self.steps.coefficients();
    }

    /// Prompts took so much longer than the steps in which they were computed.
    pub fn learn_prefill(&mut self, tokens: f64, cached: f64, time: f64) {
        self.steps.learn_prefill(tokens, cached, time);
        self.coefficients = self.steps.coefficients();
    }

    /// Computes what changes slowly: when streams end. Call it about once a second.
    pub fn refresh(&mut self) {
        self.lengths.see_running(self.streams.ages());
        self.waits = WaitTable::new(&self.lengths);
    }

    /// The engine has started again: its requests are gone, and its caches.
    pub fn restarted(&mut self) {
        (self.backlog, self.streams) = (Backlog::default(), Streams::default());
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

    /// Requests without a first token, and streams.
    pub fn counts(&self) -> (f64, f64) {
        (self.backlog.waiting(), self.streams.count())
    }
}

/// Which kind of wait a prediction was about, as a word.
impl std::fmt::Display for Regime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Prefill => "prefill",
            Self::Slot => "slot",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: Coefficients =
        Coefficients { base: 13_000.0, token: 40.0, decode: 42.0, context: 0.07, pair: 0.00005 };
    const LIMITS: EngineLimits =
        EngineLimits { slots: 128.0, kv_tokens: 400_000.0, step_tokens: 2048.0 };

    #[test]
    fn steps_are_learned_from_a_guess_that_is_far_off() {
        let wrong =
            Coefficients { base: 30_000.0, token: 90.0, decode: 10.0, context: 0.01, ..TRUE };
        let mut predictor = BackendPredictor::new(&wrong, LIMITS, 0.0);
        for n in 0..4000_u32 {
            let hash = f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 65_536.0;
            let decodes = f64::from(n % 100 + 1);
            let context = decodes * (500.0 + 1500.0 * f64::from(n % 7) / 7.0);
            let gap = TRUE.step(decodes, context) * (0.95 + 0.1 * hash);
            predictor.learn_gap(&GapSample { gap, decodes, context, steps: 1.0 });
            predictor.learn_prefill(800.0, 0.0, TRUE.prefill(0.0, 800.0) * (0.9 + 0.2 * hash));
        }
        let found = predictor.coefficients();
        let near = |a: f64, b: f64, share: f64| assert!((a / b - 1.0).abs() < share, "{found:?}");
        near(found.base, TRUE.base, 0.03);
        near(found.token, TRUE.token, 0.05);
        near(found.step(64.0, 64_000.0), TRUE.step(64.0, 64_000.0), 0.02);
    }

    #[test]
    fn engine_that_becomes_slower_is_noticed() {
        let mut predictor = BackendPredictor::new(&TRUE, LIMITS, 0.0);
        let learn = |predictor: &mut BackendPredictor, factor: f64, steps: u32| {
            for n in 0..steps {
                let decodes = f64::from(n % 64 + 1);
                let gap = TRUE.step(decodes, decodes * 1000.0) * factor;
                let context = decodes * 1000.0;
                predictor.learn_gap(&GapSample { gap, decodes, context, steps: 1.0 });
            }
        };
        learn(&mut predictor, 1.0, 10_000);
        // Fifteen seconds of steps that take twice as long.
        learn(&mut predictor, 2.0, 400);
        let off = predictor.coefficients().step(32.0, 32_000.0) / TRUE.step(32.0, 32_000.0);
        assert!((1.6..2.2).contains(&off), "{off}");
    }

    #[test]
    fn requests_that_end_in_any_way_leave_nothing() {
        let mut predictor = BackendPredictor::new(&TRUE, LIMITS, 0.0);
        let mut tickets = Vec::new();
        for n in 0..1000_u32 {
            let now = f64::from(n) * 1e4;
            let prediction = predictor.predict(500.0, 100.0, now);
            assert!(prediction.ttft > 0.0 && prediction.ttft_p90 >= prediction.ttft);
            tickets.push(predictor.sent(500.0, 100.0, prediction, now));
        }
        assert!(predictor.predict(500.0, 0.0, 1e7).backlog > 1e6);
        for (n, ticket) in (0_u32..).zip(&mut tickets) {
            let now = 1e7 + f64::from(n) * 1e4;
            if n % 3 > 0 {
                predictor.first_token(ticket, now);
                predictor.progress(ticket, n % 100 + 1);
            }
            predictor.ended(ticket, n % 2 == 0, now);
        }
        assert_eq!(predictor.counts(), (0.0, 0.0));
        assert_eq!(predictor.predict(500.0, 0.0, 1e8).backlog, 0.0);
    }
}
