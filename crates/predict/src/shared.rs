//! The predictor of one model on one backend, as decisions and attempts share it.
//!
//! A decision reads plain numbers without a lock. The events of a request (sent, first token,
//! tokens, end) are learned under a lock that a decision never takes, and [published](Published) as
//! numbers again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::backend::{BackendPredictor, Reported};
use super::batch_ratios::BatchRatios;
use super::coefficients::Coefficients;
use super::later;
use super::learned::Learned;
use super::prediction::{EngineLimits, Prediction, Sent, predict};
use super::published::{Besides, Published};
use super::share::EngineShare;
use super::ticket::Ticket;
use super::wait_curve::WaitCurve;

/// The number of tokens of a stream after which its age is learned, if it does not lead.
const WINDOW: u32 = 16;
/// The number of steps without a token of the leading stream after which another one leads.
const LOST: f64 = 3.0;

/// The prior of an unknown engine: a model of 8 billion parameters on a small GPU.
const UNKNOWN_ENGINE: Coefficients = Coefficients {
    base: 15_000.0,
    token: 60.0,
    decode: 60.0,
    context: 0.05,
    pair: 0.0005,
    batches: BatchRatios::ON_THE_LINE,
};

/// The predictor of one model on one backend.
#[derive(Debug)]
pub struct Predictor {
    learned: Mutex<BackendPredictor>,
    published: Published,
    waits: WaitCurve,
    /// The stream whose tokens show the ends of steps: those of the others come with them, a little
    /// earlier or later.
    leader: AtomicU64,
    leaders: AtomicU64,
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
    pub tightest: f64,
    /// The share of an objective for the time per token that `tpot` may reach before the batch is
    /// full.
    pub batch_share: f64,
    /// The time per token of the request if it ran there alone.
    pub tpot_alone: f64,
    /// The time per token beside all that is there, once the requests without a first token have
    /// theirs: requests that are sent at the same time have none yet.
    pub tpot_among_all: f64,
    /// The number of requests in its batch; infinite if unknown.
    pub slots: f64,
    /// The time that the oldest prompt there has waited for others, whatever is known of the
    /// engine's limits.
    pub waited: f64,
    /// True if enough is known of the backend to refuse a request by its predictions.
    pub is_trusted: bool,
}

impl Estimate {
    /// Returns the estimate for a later time, at which `prediction` is predicted.
    fn later(&self, prediction: &Prediction) -> Self {
        let tightest = if prediction.streams < 1.0 { f64::INFINITY } else { self.tightest };
        Self { prediction: *prediction, tightest, ..*self }
    }
}

/// The state of a predictor, for display.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictorReport {
    /// The learned step times.
    pub coefficients: Coefficients,
    /// The time of network and front end.
    pub front_end: f64,
    /// The number of requests in its batch; infinite if unknown.
    pub slots: f64,
    /// The remaining prefill work.
    pub backlog: f64,
    /// The logarithm of the factor that corrects the mean of [`super::Regime::Prefill`].
    pub bias: f64,
    /// The share of first tokens within the predicted 90th percentile.
    pub coverage: f64,
    /// The mean absolute error of predictions, as a share of the truth.
    pub error: f64,
    /// The number of first tokens that it has learned from.
    pub first_tokens: f64,
    /// The number of gaps that it has learned from.
    pub gaps: f64,
    /// The number of requests without a first token.
    pub waiting: f64,
    /// The number of streams.
    pub streams: f64,
    /// The tokens in the contexts of streams, those of peers among them.
    pub context: f64,
    /// The share of an objective for the time per token up to which its batch is filled.
    pub batch_share: f64,
    /// The remaining time in which it is expected to emit nothing.
    pub stall: f64,
    /// True if enough is known to refuse a request by its predictions.
    pub is_trusted: bool,
}

impl Predictor {
    /// Starts with the step times of a similar engine.
    pub fn new(prior: &Coefficients, limits: EngineLimits) -> Self {
        let learned = BackendPredictor::new(prior, limits);
        let this = Self {
            published: Published::default(),
            waits: WaitCurve::default(),
            leader: AtomicU64::new(0),
            leaders: AtomicU64::new(0),
            learned: Mutex::new(learned),
        };
        this.publish(&this.learned.lock());
        this
    }

    /// Predicts a request at `now`. Takes no lock and allocates nothing.
    #[inline]
    pub fn estimate(&self, sent: &Sent, now: f64) -> Estimate {
        let view = self.published.view(&self.waits, now);
        let prediction = predict(&view, sent, now);
        let tpot_alone = view.coefficients.step(1.0, sent.prompt);
        let published = &self.published;
        Estimate {
            prediction,
            tpot_among_all: prediction.tpot * view.growth(),
            tightest: published.tightest(),
            batch_share: published.batch_share(),
            tpot_alone,
            slots: view.limits.slots,
            waited: (now - published.oldest_due()).max(0.0),
            is_trusted: published.is_trusted() && prediction.stall <= 0.0,
        }
    }

    /// Returns the time to the first token of a request from when it may be sent: once the prompts
    /// before it take no more than `most_backlog`, and the engine has a slot for it. Its mean and
    /// its 90th percentile; 0 while predictions are not trusted.
    pub fn time_admitted(&self, sent: &Sent, most_backlog: f64, now: f64) -> (f64, f64) {
        if !self.published.is_trusted() {
            return (0.0, 0.0);
        }
        predict(&self.published.view(&self.waits, now), sent, now).admitted(most_backlog)
    }

    /// Returns the microseconds until the latencies of a request would satisfy `is_met`, if nothing
    /// else arrives; at most 120 s. `None` if they would not on an idle engine either.
    pub fn time_until(
        &self,
        sent: &Sent,
        now: f64,
        is_met: impl Fn(&Estimate) -> bool,
    ) -> Option<f64> {
        let view = self.published.view(&self.waits, now);
        let now_there = self.estimate(sent, now);
        later::time_until(&view, sent, now, |prediction| is_met(&now_there.later(prediction)))
    }

    /// Returns the number of requests like this one whose latencies would satisfy `is_met`, if they
    /// came together in `passed` microseconds and nothing else does.
    pub fn met_together(
        &self,
        sent: &Sent,
        now: f64,
        passed: f64,
        is_met: impl Fn(&Estimate) -> bool,
    ) -> u32 {
        let view = self.published.view(&self.waits, now);
        let now_there = self.estimate(sent, now);
        later::met_together(&view, sent, now, passed, |one| is_met(&now_there.later(one)))
    }

    fn publish(&self, learned: &BackendPredictor) {
        let besides = Besides {
            recent: learned.prompts().recent(),
            tightest: learned.tightest(),
            batch_share: learned.batch_share(),
            oldest_due: learned.oldest_due(),
            is_trusted: learned.is_trusted(),
        };
        self.published.publish(&learned.view(&self.waits, 0.0), &besides);
    }

    fn learn<T>(&self, learn: impl FnOnce(&mut BackendPredictor) -> T) -> T {
        let mut learned = self.learned.lock();
        let learned_something = learn(&mut learned);
        self.publish(&learned);
        learned_something
    }

    /// Adds a request that is sent by this prediction; it counts until the ticket is dropped.
    /// `objective` is for its time per token, in microseconds.
    pub fn send(
        self: &Arc<Self>,
        sent: Sent,
        prediction: Prediction,
        objective: Option<f64>,
        now: f64,
    ) -> PredictionTicket {
        let ticket = self.learn(|learned| learned.sent(sent, prediction, objective, now));
        let id = self.leaders.fetch_add(1, Ordering::Relaxed) + 1;
        let emitted = ticket.age();
        let predictor = Arc::clone(self);
        PredictionTicket { predictor, ticket, id, emitted, learned: emitted, now, has_ended: false }
    }

    /// Learns from requests that wait for longer than predicted, and from what the engine reports.
    /// Call it about once a second.
    pub fn refresh(&self, reported: Reported, now: f64) {
        self.learn(|learned| learned.refresh(&self.waits, reported, now));
    }

    /// Records that the engine has ended its step number `steps` at `at`, for a caller that does
    /// not see each token: the simulator.
    pub fn observe_steps(&self, at: f64, steps: f64) {
        self.learn(|learned| {
            // Without a stream there a balancer sees none of its steps.
            if learned.counts() != (0.0, 0.0) {
                learned.emitted(at);
                learned.step_ended(at, steps - learned.steps_seen());
            }
        });
    }

    /// Returns the load of this penstock there.
    pub fn own_share(&self) -> EngineShare {
        self.learned.lock().own_share()
    }

    /// Takes the load that peers report. Returns whether this changes what is counted.
    pub fn set_others(&self, reported: &EngineShare) -> bool {
        self.learn(|learned| learned.set_others(reported))
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
        self.learned.lock().is_little_known()
    }

    /// Starts with the learned state of the same model on another backend, if little was learned
    /// here.
    pub fn adopt(&self, other: &Learned) {
        self.learn(|learned| learned.adopt(other));
    }

    /// Returns the learned state of the engine, for the next process.
    pub fn learned_state(&self) -> Learned {
        self.learned.lock().learned_state()
    }

    /// Continues with the learned state of another process.
    pub fn restore(&self, learned: Learned) {
        self.learn(|predictor| predictor.restore(learned));
    }

    /// Returns the state of the predictor at `now`.
    pub fn report(&self, now: f64) -> PredictorReport {
        let learned = self.learned.lock();
        let residual = learned.residual();
        let view = learned.view(&self.waits, now);
        let (waiting, streams) = learned.counts();
        let stall = view.silence.rest(learned.steps().0, view.inside.time, now);
        PredictorReport {
            coefficients: view.coefficients,
            front_end: view.front_end,
            slots: view.limits.slots,
            backlog: view.inside.time + view.outside.time,
            bias: residual.bias(),
            coverage: residual.coverage(),
            error: residual.error(),
            first_tokens: residual.seen(),
            gaps: learned.gaps(),
            waiting,
            streams,
            context: view.context,
            batch_share: learned.batch_share(),
            stall,
            is_trusted: learned.is_trusted() && stall <= 0.0,
        }
    }
}

/// A request at a backend, from its prediction to its end, however it ends.
#[derive(Debug)]
pub struct PredictionTicket {
    predictor: Arc<Predictor>,
    ticket: Ticket,
    id: u64,
    /// The number of tokens that came, and of those that were learned.
    emitted: u32,
    learned: u32,
    /// The last time at which it was seen.
    now: f64,
    has_ended: bool,
}

impl PredictionTicket {
    /// Returns the prediction by which it was sent.
    pub fn prediction(&self) -> &Prediction {
        &self.ticket.prediction
    }

    /// Records `count` tokens that come at `now`, the first of them or further ones.
    pub fn tokens(&mut self, count: u32, now: f64) {
        if self.ticket.sent.is_whole || count == 0 {
            return;
        }
        self.now = now;
        if self.emitted == 0 {
            let ticket = &mut self.ticket;
            self.predictor.learn(|learned| learned.first_token(ticket, now));
            (self.emitted, self.learned) = (1, 1);
            return;
        }
        self.emitted = self.emitted.saturating_add(count);
        let leader = self.predictor.leader.load(Ordering::Relaxed);
        if leader == self.id {
            return self.lead(count, now);
        }
        if self.emitted - self.learned >= WINDOW {
            self.learned = self.emitted;
            let (ticket, emitted) = (&mut self.ticket, self.emitted);
            let (step, ended) = self.predictor.learn(|learned| {
                learned.progress(ticket, emitted, now);
                learned.steps()
            });
            self.take_over(step, ended, now);
        } else if leader == 0 {
            self.take_over(0.0, f64::NEG_INFINITY, now);
        }
    }

    /// Records the end of a step: the stream that leads has emitted.
    fn lead(&mut self, count: u32, now: f64) {
        let (ticket, emitted) = (&mut self.ticket, self.emitted);
        self.learned = emitted;
        self.predictor.learn(|learned| {
            learned.progress(ticket, emitted, now);
            learned.step_ended(now, count.into());
        });
    }

    /// Leads from now on, if no other stream does.
    fn take_over(&mut self, step: f64, ended: f64, now: f64) {
        if now > ended + LOST * step {
            self.predictor.leader.store(self.id, Ordering::Relaxed);
        }
    }

    /// Records that it has emitted `emitted` tokens, for a caller that does not see each of them:
    /// the simulator.
    pub fn observe(&mut self, emitted: u32, now: f64) {
        let ticket = &mut self.ticket;
        self.now = now;
        self.emitted = self.emitted.max(emitted);
        self.predictor.learn(|learned| learned.progress(ticket, emitted, now));
    }

    /// Ends a complete response at `now`. `output` is its number of tokens, where the engine
    /// reports it.
    pub fn complete(&mut self, output: Option<u32>, now: f64) {
        self.now = now;
        self.end(output, true, now);
    }

    /// Ends a request whose client has left at `now`.
    pub fn cut(&mut self, now: f64) {
        self.end(None, false, now);
    }

    /// Ends the request. Tokens that were not learned yet came when it was seen last.
    fn end(&mut self, output: Option<u32>, is_complete: bool, now: f64) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let (ticket, emitted, seen) = (&mut self.ticket, self.emitted, self.now);
        self.predictor.learn(|learned| {
            learned.progress(ticket, emitted, seen);
            learned.ended(ticket, output, is_complete, now);
        });
        let (leader, none) = (&self.predictor.leader, 0);
        let _other = leader.compare_exchange(self.id, none, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for PredictionTicket {
    fn drop(&mut self) {
        self.end(None, false, self.now);
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod idle_tests;
#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
