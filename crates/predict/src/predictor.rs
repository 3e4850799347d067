//! The predictor of one model on one backend, as decisions and attempts share it.
//!
//! A decision reads plain numbers without a lock. The events of a request (sent, first token,
//! tokens, end) are learned under a lock that a decision never takes, and
//! [published](PublishedView) as numbers again.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use super::backend::{BackendPredictor, ReportedLimits};
use super::batch_ratios::BatchRatios;
use super::coefficients::Coefficients;
use super::engine_load::EngineLoad;
use super::learned_state::LearnedState;
use super::lookahead;
use super::prediction::{EngineLimits, MeanAndP90, Prediction, RequestShape, predict};
use super::published_view::{PublishedExtras, PublishedView};
use super::residual::Regime;
use super::wait_curve::WaitCurve;

pub use prediction_ticket::PredictionTicket;

/// The prior of an unknown engine: a model of 8 billion parameters on a small GPU.
const UNKNOWN_ENGINE: Coefficients = Coefficients {
    base_us: 15_000.0,
    token_us: 60.0,
    decode_us: 60.0,
    context_us: 0.05,
    pair_us: 0.0005,
    batch_ratios: BatchRatios::ON_THE_LINE,
};

/// The predictor of one model on one backend.
#[derive(Debug)]
pub struct Predictor {
    backend: Mutex<BackendPredictor>,
    published: PublishedView,
    wait_curve: WaitCurve,
    /// The stream whose tokens show the ends of steps: those of the others come with them, a little
    /// earlier or later.
    leader: AtomicU64,
    last_id: AtomicU64,
}

impl Default for Predictor {
    fn default() -> Self {
        Self::new(&UNKNOWN_ENGINE, EngineLimits::default())
    }
}

/// The estimate of a request on a backend, as a decision reads it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// The predicted latencies.
    pub prediction: Prediction,
    /// The least time per token that a stream there can bear; infinite if none has an objective.
    pub tightest_tpot_us: f64,
    /// The share of an objective for the time per token that `tpot_us` may reach before the batch
    /// is full.
    pub batch_share: f64,
    /// The time per token of the request if it ran there alone.
    pub tpot_alone_us: f64,
    /// The time of the whole response if it ran there alone.
    pub alone_us: f64,
    /// The time per token beside all that is there, once the requests without a first token have
    /// theirs: requests that are sent at the same time have none yet.
    pub tpot_among_all_us: f64,
    /// The maximum number of requests in a batch; infinite if unknown.
    pub slots: f64,
    /// The time that the oldest prompt there has waited for others, whatever is known of the
    /// engine's limits.
    pub waited_us: f64,
    /// The time since a first token there was last learned from; infinite if none was.
    pub since_learned_us: f64,
    /// The number of first tokens there that were learned from.
    pub first_token_count: f64,
    /// True if enough is known of the backend to refuse a request by its predictions.
    pub is_trusted: bool,
}

impl Estimate {
    /// Returns the estimate for a later time, at which `prediction` is predicted.
    fn later(&self, prediction: &Prediction) -> Self {
        let tightest_tpot_us =
            if prediction.stream_count < 1.0 { f64::INFINITY } else { self.tightest_tpot_us };
        Self { prediction: *prediction, tightest_tpot_us, ..*self }
    }
}

/// The state of a predictor, for display.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictorReport {
    /// The learned step times.
    pub coefficients: Coefficients,
    /// The time of network and front end.
    pub front_end_us: f64,
    /// The further time there per token of a prompt.
    pub tokenizer_token_us: f64,
    /// The maximum number of requests in a batch; infinite if unknown.
    pub slots: f64,
    /// The remaining prefill work.
    pub backlog_us: f64,
    /// The logarithm of the factor that corrects the mean of [`Regime::Prefill`].
    pub bias: f64,
    /// The same for [`Regime::Idle`].
    pub idle_bias: f64,
    /// The share of first tokens within the predicted 90th percentile.
    pub coverage: f64,
    /// The mean absolute error of predictions, as a share of the truth.
    pub error: f64,
    /// The number of first tokens that it has learned from.
    pub first_token_count: f64,
    /// The number of gaps that it has learned from.
    pub gap_count: f64,
    /// The number of requests without a first token.
    pub waiting_count: f64,
    /// The number of streams.
    pub stream_count: f64,
    /// The tokens in the contexts of streams, those of peers among them.
    pub context_tokens: f64,
    /// The share of an objective for the time per token up to which its batch is filled.
    pub batch_share: f64,
    /// The remaining time in which it is expected to emit nothing.
    pub stall_us: f64,
    /// True if enough is known to refuse a request by its predictions.
    pub is_trusted: bool,
}

impl Predictor {
    /// Starts with the step times of a similar engine.
    pub fn new(prior: &Coefficients, limits: EngineLimits) -> Self {
        let backend = BackendPredictor::new(prior, limits);
        let this = Self {
            published: PublishedView::default(),
            wait_curve: WaitCurve::default(),
            leader: AtomicU64::new(0),
            last_id: AtomicU64::new(0),
            backend: Mutex::new(backend),
        };
        this.publish(&this.backend.lock());
        this
    }

    /// Predicts a request at `now_us`. Takes no lock and allocates nothing.
    #[inline(always)]
    pub fn estimate(&self, request: &RequestShape, now_us: f64) -> Estimate {
        let view = self.published.view(&self.wait_curve, now_us);
        let prediction = predict(&view, request, now_us);
        let tpot_alone_us = view.coefficients.step_us(1.0, request.prompt_tokens);
        let published = &self.published;
        Estimate {
            prediction,
            tpot_among_all_us: prediction.tpot_us * view.growth(),
            tightest_tpot_us: published.tightest_tpot_us(),
            batch_share: published.batch_share(),
            tpot_alone_us,
            alone_us: view.alone_us(&prediction, tpot_alone_us),
            slots: view.limits.slots,
            waited_us: (now_us - published.oldest_due_at_us()).max(0.0),
            since_learned_us: (now_us - published.learned_at_us()).max(0.0),
            first_token_count: published.first_token_count(),
            // How long a silence lasts is a guess, and no request is refused by a guess.
            is_trusted: published.is_trusted() && prediction.stall_us <= 0.0,
        }
    }

    /// Returns the time to the first token of a request from when it may be sent: once the prompts
    /// before it take no more than `max_backlog_us`, and the engine has a slot for it. Its mean and
    /// its 90th percentile; 0 while predictions are not trusted.
    pub fn admitted_ttft(
        &self,
        request: &RequestShape,
        max_backlog_us: f64,
        now_us: f64,
    ) -> MeanAndP90 {
        if !self.published.is_trusted() {
            return MeanAndP90::default();
        }
        predict(&self.published.view(&self.wait_curve, now_us), request, now_us)
            .admitted_ttft(max_backlog_us)
    }

    /// Returns the microseconds until the latencies of a request would satisfy `is_met`, if nothing
    /// else arrives; at most 120 s. `None` if they would not on an idle engine either.
    pub fn time_until(
        &self,
        request: &RequestShape,
        now_us: f64,
        is_met: impl Fn(&Estimate) -> bool,
    ) -> Option<f64> {
        let view = self.published.view(&self.wait_curve, now_us);
        let estimate = self.estimate(request, now_us);
        lookahead::time_until(&view, request, now_us, |prediction| {
            is_met(&estimate.later(prediction))
        })
    }

    /// Returns the number of requests like this one whose latencies would satisfy `is_met`, if they
    /// came together in `passed_us` microseconds and nothing else does.
    pub fn met_together(
        &self,
        request: &RequestShape,
        now_us: f64,
        passed_us: f64,
        is_met: impl Fn(&Estimate) -> bool,
    ) -> u32 {
        let view = self.published.view(&self.wait_curve, now_us);
        let estimate = self.estimate(request, now_us);
        lookahead::met_together(&view, request, now_us, passed_us, |one| {
            is_met(&estimate.later(one))
        })
    }

    fn publish(&self, backend: &BackendPredictor) {
        let extras = PublishedExtras {
            decayed_work: backend.prompts().decayed_work(),
            tightest_tpot_us: backend.tightest_tpot_us(),
            batch_share: backend.batch_share(),
            oldest_due_at_us: backend.oldest_due_at_us(),
            learned_at_us: backend.learned_at_us(),
            first_token_count: backend.first_token_count(),
            is_trusted: backend.is_trusted(),
        };
        // The time does not matter: the decayed work is published with the time of its last change.
        self.published.publish(&backend.view(&self.wait_curve, 0.0), &extras);
    }

    fn learn<T>(&self, learn: impl FnOnce(&mut BackendPredictor) -> T) -> T {
        let mut backend = self.backend.lock();
        let result = learn(&mut backend);
        // Under the lock: an older state must not overwrite a newer one.
        self.publish(&backend);
        result
    }

    /// Adds a request that is sent by this prediction; it counts until the ticket is dropped.
    /// `tpot_objective_us` is for its time per token, in microseconds.
    pub fn send(
        self: &Arc<Self>,
        request: RequestShape,
        prediction: Prediction,
        tpot_objective_us: Option<f64>,
        now_us: f64,
    ) -> PredictionTicket {
        let ticket =
            self.learn(|backend| backend.send(request, prediction, tpot_objective_us, now_us));
        PredictionTicket::new(self, ticket)
    }

    /// Learns from requests that wait for longer than predicted, and from what the engine reports.
    /// Call it about once a second.
    pub fn refresh(&self, reported: ReportedLimits, now_us: f64) {
        self.learn(|backend| backend.refresh(&self.wait_curve, reported, now_us));
    }

    /// Records that the engine has ended its step number `steps_ended` at `at_us`, for a caller
    /// that does not see each token: the simulator.
    pub fn observe_steps(&self, at_us: f64, steps_ended: f64) {
        self.learn(|backend| {
            // Without a stream there a balancer sees none of its steps.
            if backend.counts() != (0.0, 0.0) {
                backend.emitted(at_us);
                backend.step_ended(at_us, steps_ended - backend.steps_ended());
            }
        });
    }

    /// Returns the load of this penstock there.
    pub fn own_load(&self) -> EngineLoad {
        self.backend.lock().own_load()
    }

    /// Takes the load that peers report. Returns whether this changes what is counted.
    pub fn set_peer_load(&self, reported: &EngineLoad) -> bool {
        self.learn(|backend| backend.set_peer_load(reported))
    }

    /// Records that the engine has started again.
    pub fn restarted(&self) {
        self.learn(BackendPredictor::restarted);
    }

    /// Records that the engine is another version.
    pub fn version_changed(&self) {
        self.learn(BackendPredictor::version_changed);
    }

    /// Returns whether enough is known to refuse a request by its predictions.
    pub fn is_trusted(&self) -> bool {
        self.published.is_trusted()
    }

    /// Returns whether so little was learned here that the state of another backend says more.
    pub fn is_little_known(&self) -> bool {
        self.backend.lock().is_little_known()
    }

    /// Starts with the learned state of the same model on another backend, if little was learned
    /// here.
    pub fn adopt(&self, other: &LearnedState) {
        self.learn(|backend| backend.adopt(other));
    }

    /// Returns the slots that the engine has shown; infinite if it has shown none.
    pub fn shown_slots(&self) -> f64 {
        self.backend.lock().shown_slots()
    }

    /// Returns the most requests that the engine has reported to run in the last minutes.
    pub fn max_running(&self) -> f64 {
        self.backend.lock().max_running()
    }

    /// Takes the slots that another engine with the same model has shown; infinite if none has.
    /// They hold until this one shows its own or that it has more. Call it about once a second.
    pub fn lend_slots(&self, slots: f64) {
        self.learn(|backend| backend.lend_slots(slots));
    }

    /// Returns the learned state of the engine, for the next process.
    pub fn learned_state(&self) -> LearnedState {
        self.backend.lock().learned_state()
    }

    /// Continues with the learned state of another process.
    pub fn restore(&self, learned: LearnedState) {
        self.learn(|predictor| predictor.restore(learned));
    }

    /// Returns the state of the predictor at `now_us`.
    pub fn report(&self, now_us: f64) -> PredictorReport {
        let backend = self.backend.lock();
        let residual = backend.residual();
        let view = backend.view(&self.wait_curve, now_us);
        let (waiting_count, stream_count) = backend.counts();
        let stall_us =
            view.silence.remaining_us(backend.step_state().0, view.in_batch.time_us, now_us);
        PredictorReport {
            coefficients: view.coefficients,
            front_end_us: view.front_end_us,
            tokenizer_token_us: view.tokenizer_token_us,
            slots: view.limits.slots,
            backlog_us: view.in_batch.time_us + view.queued.time_us,
            bias: residual.bias(Regime::Prefill),
            idle_bias: residual.bias(Regime::Idle),
            coverage: residual.coverage(),
            error: residual.error(),
            first_token_count: residual.first_token_count(),
            gap_count: backend.gap_count(),
            waiting_count,
            stream_count,
            context_tokens: view.context_tokens,
            batch_share: backend.batch_share(),
            stall_us,
            is_trusted: backend.is_trusted() && stall_us <= 0.0,
        }
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod idle_tests;
mod prediction_ticket;
#[cfg(test)]
#[path = "predictor_tests.rs"]
mod tests;
