//! The predictor of one model on one backend as decisions and attempts share it.
//!
//! A decision reads plain numbers without a lock. What happens to a request (sent, first token, tokens, end) is learned
//! under one, which a decision never takes, and [published](Published) as numbers again.

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

/// Tokens of a stream after which its age is learned, where it does not lead.
const WINDOW: u32 = 16;
/// Steps without a token of the stream that leads after which another one does.
const LOST: f64 = 3.0;

/// What is taken for an engine of which nothing is known: one of 8 billion parameters on a small GPU.
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
    /// The stream whose tokens show when steps end: those of the others come with them, a little earlier or later.
    leader: AtomicU64,
    leaders: AtomicU64,
}

impl Default for Predictor {
    fn default() -> Self {
        Self::new(&UNKNOWN_ENGINE, EngineLimits::default())
    }
}

/// What a decision makes of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// What is predicted.
    pub prediction: Prediction,
    /// The least time per token that a stream there can bear; infinite where none has an objective.
    pub tightest: f64,
    /// The share of an objective for the time per token that `tpot` may reach before the batch is full.
    pub batch_share: f64,
    /// The time per token of the request if it ran there alone.
    pub tpot_alone: f64,
    /// The same beside all that is there, once those without a first token have theirs: of requests that are sent at the same
    /// time none has.
    pub tpot_among_all: f64,
    /// Requests in its batch; infinite where it is not known.
    pub slots: f64,
    /// The time that the oldest prompt there has waited for others, whatever is known of the engine's limits.
    pub waited: f64,
    /// Whether enough is known of the backend for a request to be refused by it.
    pub is_trusted: bool,
}

impl Estimate {
    /// The same at another time, of which this is predicted.
    fn later(&self, prediction: &Prediction) -> Self {
        let tightest = if prediction.streams < 1.0 { f64::INFINITY } else { self.tightest };
        Self { prediction: *prediction, tightest, ..*self }
    }
}

/// What is shown of a predictor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictorReport {
    /// How long its steps take.
    pub coefficients: Coefficients,
    /// Network and front end.
    pub front_end: f64,
    /// Requests in its batch; infinite where it is not known.
    pub slots: f64,
    /// The prefill work that is left.
    pub backlog: f64,
    /// By how much predictions are multiplied, as a logarithm.
    pub bias: f64,
    /// The share of first tokens within the predicted 90th percentile.
    pub coverage: f64,
    /// The mean absolute error of predictions, as a share of the truth.
    pub error: f64,
    /// First tokens and gaps that it has learned from.
    pub first_tokens: f64,
    /// See `first_tokens`.
    pub gaps: f64,
    /// Requests without a first token, and streams.
    pub waiting: f64,
    /// See `waiting`.
    pub streams: f64,
    /// The tokens of the streams' contexts.
    pub context: f64,
    /// The share of an objective for the time per token up to which its batch is filled.
    pub batch_share: f64,
    /// How much longer it is expected to emit nothing.
    pub stall: f64,
    /// Whether enough is known for a request to be refused by it.
    pub is_trusted: bool,
}

impl Predictor {
    /// Starts with the step time of an engine like it.
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

    /// How long the first token of a request takes from when it may be sent: once the prompts before it take no more than
    /// `most_backlog`, and the engine has a slot for it. The mean, and the 90th percentile; 0 while predictions are not trusted.
    pub fn time_admitted(&self, sent: &Sent, most_backlog: f64, now: f64) -> (f64, f64) {
        if !self.published.is_trusted() {
            return (0.0, 0.0);
        }
        predict(&self.published.view(&self.waits, now), sent, now).admitted(most_backlog)
    }

    /// In how many microseconds the latencies of a request would be as `is_met` wants them, if nothing else arrives; at
    /// most 120 s. `None` where they would not be on an idle engine either.
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

    /// How many requests like this one would have latencies as `is_met` wants them, if they came together in `passed`
    /// microseconds and nothing else does.
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

    /// A request is sent by this prediction; it counts until the ticket is dropped. `objective`: for its time per
    /// token, in microseconds.
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

    /// Learns from requests that wait for longer than was predicted, and from what the engine reports.
    /// Call it about once a second.
    pub fn refresh(&self, reported: Reported, now: f64) {
        self.learn(|learned| learned.refresh(&self.waits, reported, now));
    }

    /// The engine has ended its step number `steps` at `at`, for a caller that does not see each token: the simulator.
    pub fn observe_steps(&self, at: f64, steps: f64) {
        self.learn(|learned| {
            // Without a stream there a balancer sees none of its steps.
            if learned.counts() != (0.0, 0.0) {
                learned.emitted(at);
                learned.step_ended(at, steps - learned.steps_seen());
            }
        });
    }

    /// What this penstock has there.
    pub fn own_share(&self) -> EngineShare {
        self.learned.lock().own_share()
    }

    /// Others report what they have there. Returns whether that is news.
    pub fn set_others(&self, reported: &EngineShare) -> bool {
        self.learn(|learned| learned.set_others(reported))
    }

    /// The engine has started again.
    pub fn restarted(&self) {
        self.learn(BackendPredictor::restarted);
    }

    /// The engine is another version.
    pub fn version_changed(&self) {
        self.learn(BackendPredictor::version_changed);
    }

    /// Whether enough is known for a request to be refused by it.
    pub fn is_trusted(&self) -> bool {
        self.published.is_trusted()
    }

    /// Whether so little was learned that what is known of another backend says more.
    pub fn is_little_known(&self) -> bool {
        self.learned.lock().is_little_known()
    }

    /// Starts with what was learned of the same model on another backend, where little was learned here.
    pub fn adopt(&self, other: &Learned) {
        self.learn(|learned| learned.adopt(other));
    }

    /// What was learned of the engine, for the next process.
    pub fn learned_state(&self) -> Learned {
        self.learned.lock().learned_state()
    }

    /// Continues with what another process has learned.
    pub fn restore(&self, learned: Learned) {
        self.learn(|predictor| predictor.restore(learned));
    }

    /// What is shown of it at `now`.
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
    /// Tokens that came, and those of them that were learned.
    emitted: u32,
    learned: u32,
    /// The last time it was seen.
    now: f64,
    has_ended: bool,
}

impl PredictionTicket {
    /// What was predicted.
    pub fn prediction(&self) -> &Prediction {
        &self.ticket.prediction
    }

    /// Tokens have come at `now`, the first of them or further ones.
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

    /// A step has ended: the stream that leads has emitted.
    fn lead(&mut self, count: u32, now: f64) {
        let (ticket, emitted) = (&mut self.ticket, self.emitted);
        self.learned = emitted;
        self.predictor.learn(|learned| {
            learned.progress(ticket, emitted, now);
            learned.step_ended(now, count.into());
        });
    }

    /// Leads from now on, where no other stream does.
    fn take_over(&mut self, step: f64, ended: f64, now: f64) {
        if now > ended + LOST * step {
            self.predictor.leader.store(self.id, Ordering::Relaxed);
        }
    }

    /// It has emitted so many tokens, for a caller that does not see each of them: the simulator.
    pub fn observe(&mut self, emitted: u32, now: f64) {
        let ticket = &mut self.ticket;
        self.now = now;
        self.emitted = self.emitted.max(emitted);
        self.predictor.learn(|learned| learned.progress(ticket, emitted, now));
    }

    /// The response is complete at `now`; `output`: its tokens, where the engine reports them.
    pub fn complete(&mut self, output: Option<u32>, now: f64) {
        self.now = now;
        self.end(output, true, now);
    }

    /// The client has left at `now`.
    pub fn cut(&mut self, now: f64) {
        self.end(None, false, now);
    }

    /// Tokens that were not learned yet came when it was seen last.
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
