//! The learned state of one model on one backend, and the tickets of the requests there.
//! Single-threaded: [`super::Predictor`] is the shared form.

use super::batch_share::BatchShareLearner;
use super::bursts::Bursts;
use super::coefficients::{Coefficients, StepLearner};
use super::engine_load::EngineLoad;
use super::front_end::FrontEndLearner;
use super::kv_sharing::KvSharing;
use super::limit_learner::{LimitLearner, is_too_long};
use super::output_lengths::OutputLengths;
use super::pace::{PaceLearner, PaceSpreadLearner};
use super::pauses::PauseLearner;
use super::prediction::{EngineLimits, EngineView, Prediction, RequestShape, predict};
use super::prefill::PrefillLearner;
use super::prompts::{PromptWork, Prompts};
use super::residual::{Regime, Residual};
use super::stall::Stall;
use super::step_size::StepSizeLearner;
use super::streams::Streams;
use super::ticket::Allowances;
use super::tokenizer::TokenizerLearner;
use super::wait_curve::WaitCurve;

/// The number of gaps below which predictions are not trusted.
const MIN_GAPS: f64 = 50.0;
/// The number of first tokens below which predictions are not trusted.
const MIN_FIRST_TOKENS: f64 = 15.0;
/// The number of first tokens after a change of the engine that show whether predictions are right
/// again.
const FIRST_TOKENS_AFTER_CHANGE: f64 = 30.0;
/// The largest trusted share of first tokens within the 90th percentile: above it, predictions are
/// too long. Predictions that are too short need no bound: a request that is late by them is late.
const MAX_COVERAGE: f64 = 0.97;
/// The error below which a larger share is trusted as well: on an engine that takes the same time
/// for everything, predictions are nearly always right.
const SMALL_ERROR: f64 = 0.15;
/// The error at which predictions are not trusted, whatever share comes within the 90th percentile:
/// it is as large as the times themselves.
const MAX_ERROR: f64 = 1.0;
/// The number of first tokens from which on the coverage counts.
const MIN_COVERAGE_SAMPLES: f64 = 100.0;
/// The factor by which a wait must exceed its prediction, and then the wait last learned, to be
/// learned from.
const OVERRUN_FACTOR: f64 = 1.5;
/// The most steps until the first token of a prompt with nothing before it, besides those that its
/// length explains.
const MAX_FIRST_STEPS: f64 = 4.0;
/// The fraction of the room for streams above which the wait curve is computed with each refresh.
const NEARLY_FULL_SHARE: f64 = 0.5;
/// The fraction above which it is also computed as streams start and end. In a full batch of 16 one
/// ends every few steps, and a curve one second old is off by as much as it predicts.
const FULL_SHARE: f64 = 0.9;
/// The least time between two such curves, in microseconds.
const MIN_CURVE_US: f64 = 100e3;
/// The share of its KV cache that all contexts and prompts there take from which some of them wait
/// for the cache.
const FULL_CACHE_SHARE: f64 = 0.9;

/// The limits and the load that an engine reports; a limit that it does not report is infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReportedLimits {
    /// The number of requests that it runs at a time.
    pub slots: f64,
    /// The size of its KV cache in tokens.
    pub kv_tokens: f64,
    /// The tokens in it that are in use; `None` if it does not report that, or requests wait in it.
    pub used_kv_tokens: Option<f64>,
    /// The number of requests that it runs now; `None` if it does not report that.
    pub running: Option<f64>,
    /// True if others wait in it although its KV cache has room.
    pub is_queued: bool,
    /// The number of its running and waiting requests, of all models and all senders.
    pub request_count: Option<f64>,
}

impl Default for ReportedLimits {
    fn default() -> Self {
        Self {
            slots: f64::INFINITY,
            kv_tokens: f64::INFINITY,
            used_kv_tokens: None,
            running: None,
            is_queued: false,
            request_count: None,
        }
    }
}

/// The predictor of one model on one backend.
#[derive(Debug)]
pub struct BackendPredictor {
    step_learner: StepLearner,
    prefill_learner: PrefillLearner,
    front_end_learner: FrontEndLearner,
    tokenizer_learner: TokenizerLearner,
    coefficients: Coefficients,
    limits: EngineLimits,
    limit_learner: LimitLearner,
    step_size_learner: StepSizeLearner,
    /// True if the engine reports its slots, and the size of its KV cache.
    knows_slots: bool,
    knows_kv_tokens: bool,
    kv_sharing: KvSharing,
    /// True if it started with the learned state of another backend, or of another version here.
    is_informed: bool,
    prompts: Prompts,
    /// The number of requests without a first token, except those with a response in one piece.
    waiting_count: u32,
    streams: Streams,
    /// The most streams that the engine has had at one time.
    max_stream_count: f64,
    stall: Stall,
    /// The load of peers there, as counted from their reports.
    peer_load: EngineLoad,
    lengths: OutputLengths,
    residual: Residual,
    /// The last time at which it learned from a first token; minus infinity before.
    learned_at_us: f64,
    allowances: Allowances,
    sent_count: u64,
    /// The work of all prompts that were sent.
    sent_work_us: f64,
    /// The end of the last step, and the number of steps that have ended.
    step_ended_at_us: f64,
    steps_ended: f64,
    /// True if a first token has shown that end, and not the stream that shows the ends of steps.
    is_end_inferred: bool,
    /// The start of that step; `None` if several ended at one time.
    step_started_at_us: Option<f64>,
    /// The time for which the engine has stood still.
    paused_us: f64,
    /// True if the current step computes no prompt, as far as is known.
    is_decode_only: bool,
    bursts: Bursts,
    pace_learner: PaceLearner,
    pace_spread_learner: PaceSpreadLearner,
    pause_learner: PauseLearner,
    batch_share_learner: BatchShareLearner,
}

impl BackendPredictor {
    /// Starts with the step times of a similar engine.
    pub fn new(prior: &Coefficients, limits: EngineLimits) -> Self {
        Self {
            step_learner: StepLearner::new(prior),
            prefill_learner: PrefillLearner::new(prior.token_us, prior.pair_us),
            front_end_learner: FrontEndLearner::default(),
            tokenizer_learner: TokenizerLearner::default(),
            coefficients: *prior,
            knows_slots: limits.slots.is_finite(),
            knows_kv_tokens: limits.kv_tokens.is_finite(),
            kv_sharing: KvSharing::default(),
            step_size_learner: StepSizeLearner::new(limits.step_tokens),
            limits,
            limit_learner: LimitLearner::default(),
            is_informed: false,
            prompts: Prompts::default(),
            waiting_count: 0,
            streams: Streams::default(),
            max_stream_count: 0.0,
            stall: Stall::default(),
            peer_load: EngineLoad::default(),
            lengths: OutputLengths::default(),
            residual: Residual::default(),
            learned_at_us: f64::NEG_INFINITY,
            allowances: Allowances::default(),
            sent_count: 0,
            sent_work_us: 0.0,
            step_ended_at_us: 0.0,
            steps_ended: 0.0,
            is_end_inferred: false,
            step_started_at_us: None,
            paused_us: 0.0,
            is_decode_only: false,
            bursts: Bursts::default(),
            pace_learner: PaceLearner::default(),
            pace_spread_learner: PaceSpreadLearner::default(),
            pause_learner: PauseLearner::default(),
            batch_share_learner: BatchShareLearner::default(),
        }
    }

    /// Returns the state that decisions read at `now_us`.
    pub(crate) fn view<'a>(&self, wait_curve: &'a WaitCurve, now_us: f64) -> EngineView<'a> {
        let (peers, queued) = (&self.peer_load, self.prompts.queued());
        let is_tried = self.waiting_count > 0 || self.streams.count() >= 1.0;
        EngineView {
            coefficients: self.coefficients,
            limits: self.limits,
            step_ended_at_us: self.step_ended_at_us,
            waiting_count: f64::from(self.waiting_count) + peers.waiting_count,
            in_batch: self.prompts.in_batch(),
            queued: PromptWork {
                tokens: queued.tokens + peers.prompt_work.tokens,
                time_us: queued.time_us + peers.prompt_work.time_us,
            },
            prefill_share: self.prefill_share(now_us),
            stream_count: self.stream_count(),
            own_stream_count: self.streams.count(),
            context_tokens: self.context_tokens(),
            wait_curve,
            factors: self.residual.all_factors(),
            front_end_us: self.prefill_learner.front_end_us(),
            tokenizer_token_us: self.tokenizer_learner.token_us(self.coefficients.token_us),
            mean_output_tokens: self.lengths.mean_tokens(),
            pace_factor: self.pace_learner.factor(),
            pace_p90_factor: self.pace_spread_learner.factor(),
            pauses: self.pause_learner.pauses(),
            silence: self.stall.silence(is_tried, self.step_us()),
        }
    }

    /// Predicts the latencies of a request at `now_us`.
    pub fn predict(
        &self,
        wait_curve: &WaitCurve,
        request: &RequestShape,
        now_us: f64,
    ) -> Prediction {
        predict(&self.view(wait_curve, now_us), request, now_us)
    }

    fn step_us(&self) -> f64 {
        self.coefficients.step_us(self.stream_count(), self.context_tokens())
    }

    /// Returns the share of the time that prefills took lately.
    fn prefill_share(&self, now_us: f64) -> f64 {
        self.prompts.decayed_work().share_at(now_us)
    }

    fn stream_count(&self) -> f64 {
        self.streams.count() + self.peer_load.stream_count
    }

    fn context_tokens(&self) -> f64 {
        self.streams.context_tokens() + self.peer_load.context_tokens
    }

    /// Returns the number of steps that have ended.
    pub(crate) fn steps_ended(&self) -> f64 {
        self.steps_ended
    }

    /// Returns the duration of a step now, and the end of the last one.
    pub(crate) fn step_state(&self) -> (f64, f64) {
        (self.step_us(), self.step_ended_at_us)
    }

    /// Learns from requests that wait for longer than predicted and from what the engine reports,
    /// and computes the numbers that change slowly. Call it about once a second.
    pub fn refresh(&mut self, wait_curve: &WaitCurve, reported: ReportedLimits, now_us: f64) {
        if let Some(used_tokens) = reported.used_kv_tokens {
            self.kv_sharing.learn(used_tokens, self.context_tokens(), reported.kv_tokens);
        }
        self.set_limits(reported.slots, self.kv_sharing.room(reported.kv_tokens));
        self.prompts.forget_done(now_us);
        self.stall.expire(now_us);
        if self.limit_learner.expire(now_us) {
            self.use_learned_limits();
        }
        let (step_us, mut has_overdue) = (self.step_us(), false);
        let is_behind = |regime| matches!(regime, Regime::Prefill | Regime::Slot);
        for one in self.prompts.iter_mut().filter(|one| is_behind(one.regime)) {
            let elapsed_us = now_us - one.sent_at_us;
            has_overdue |= is_too_long(elapsed_us, one.raw_ttft_us, step_us);
            // Learned again after growth by half: a long wait would otherwise count every second.
            if elapsed_us > OVERRUN_FACTOR * one.learned_wait_us.max(one.raw_ttft_us) {
                one.learned_wait_us = elapsed_us;
                self.residual.learn_overrun(one.regime, one.raw_ttft_us, elapsed_us);
            }
        }
        if let Some(reported_count) = reported.request_count {
            let own_count = self.stream_count() + f64::from(self.waiting_count);
            self.pause_learner
                .note_requests(reported_count, own_count + self.peer_load.waiting_count);
        }
        let is_queued = reported.is_queued && !self.fills_cache();
        if let Some(running) = reported.running
            && self.limit_learner.learn_reported(running, is_queued, has_overdue, now_us)
        {
            self.use_learned_limits();
        }
        // Far from full no request waits for a slot, and computing the curve is expensive.
        if self.used_share() > NEARLY_FULL_SHARE {
            self.lengths.see_running(self.streams.ages());
            self.compute_curve(wait_curve, now_us);
        }
    }

    /// Returns whether all that was sent to the engine fills its KV cache: some of it waits for the
    /// cache then, even while a stream that gave way to the others leaves room.
    fn fills_cache(&self) -> bool {
        let prompts = self.prompts.in_batch().tokens + self.prompts.queued().tokens;
        self.context_tokens() + prompts > FULL_CACHE_SHARE * self.limits.kv_tokens
    }

    /// Computes the curve again after a stream has started or ended, if requests may wait for a
    /// slot now and it is not new.
    pub(crate) fn update_curve(&self, wait_curve: &WaitCurve, now_us: f64) {
        if self.used_share() > FULL_SHARE && now_us >= wait_curve.computed_at_us() + MIN_CURVE_US {
            self.compute_curve(wait_curve, now_us);
        }
    }

    fn compute_curve(&self, wait_curve: &WaitCurve, now_us: f64) {
        wait_curve.compute(&self.lengths, &self.streams, self.steps_ended, now_us);
    }

    /// Returns the share of the room for streams that requests take.
    fn used_share(&self) -> f64 {
        let streams = self.stream_count();
        let mean_context_tokens = (self.context_tokens() / streams.max(1.0)).max(1.0);
        let room = self.limits.slots.min(self.limits.kv_tokens / mean_context_tokens);
        (streams + f64::from(self.waiting_count) + self.peer_load.waiting_count) / room
    }

    /// Returns the share of an objective for the time per token that a prediction may reach before
    /// the batch is full.
    pub(crate) fn batch_share(&self) -> f64 {
        self.batch_share_learner.get()
    }

    /// Returns when the first token of the oldest prompt is due if nothing is before it; infinite
    /// if none waits.
    pub(crate) fn oldest_due_at_us(&self) -> f64 {
        self.prompts.first_waiting().map_or(f64::INFINITY, |one| {
            let steps = MAX_FIRST_STEPS + one.tokens / self.limits.step_tokens;
            one.sent_at_us + one.tokenizer_us + one.work_us + steps * self.step_us()
        })
    }

    /// Returns when it last learned from a time to the first token; minus infinity before.
    pub(crate) fn learned_at_us(&self) -> f64 {
        self.learned_at_us
    }

    /// Returns the number of first tokens that it has learned from.
    pub(crate) fn first_token_count(&self) -> f64 {
        self.residual.first_token_count()
    }

    /// Returns the least time per token that a running stream can bear; infinite if none has an
    /// objective.
    pub(crate) fn tightest_tpot_us(&self) -> f64 {
        self.allowances.tightest_tpot_us()
    }

    /// Returns whether it has seen enough, and was right often enough, to refuse a request by its
    /// predictions.
    pub(crate) fn is_trusted(&self) -> bool {
        let first_tokens = self.residual.first_token_count();
        let is_covered =
            self.residual.coverage() <= MAX_COVERAGE || self.residual.error() < SMALL_ERROR;
        let is_known = match first_tokens < MIN_COVERAGE_SAMPLES {
            // An engine that never stops reading prompts has no gaps to learn from: its coverage
            // counts.
            true => first_tokens >= MIN_FIRST_TOKENS && self.step_learner.gap_count() >= MIN_GAPS,
            false => is_covered,
        };
        // Under full load there are few gaps to learn from again.
        let is_settled = !self.step_learner.is_relearning()
            || self.residual.first_tokens_since_change() >= FIRST_TOKENS_AFTER_CHANGE;
        is_known && is_settled && self.residual.error() < MAX_ERROR
    }

    /// Returns the learned step times of the engine.
    #[cfg(test)]
    pub(crate) fn coefficients(&self) -> &Coefficients {
        &self.coefficients
    }

    /// Returns the recent residual of predictions.
    pub(crate) fn residual(&self) -> &Residual {
        &self.residual
    }

    /// Returns the number of gaps that it has learned from.
    pub(crate) fn gap_count(&self) -> f64 {
        self.step_learner.gap_count()
    }

    /// Returns the prompts that were sent and have no first token yet.
    pub(crate) fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// Returns the numbers of requests without a first token and of streams.
    pub(crate) fn counts(&self) -> (f64, f64) {
        (self.waiting_count.into(), self.streams.count())
    }
}

mod engine;
mod learning;
mod requests;
#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
