//! The predictor of one model on one backend as decisions and attempts share it.
//!
//! A decision reads plain numbers without a lock. What happens to a request (sent, first token, tokens, end) is learned
//! under one, which a decision never takes, and published as numbers again. Numbers of two moments may be mixed for
//! an instant; each is finite by itself, so that a prediction is off then, and nothing more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::backend::{BackendPredictor, Ticket};
use super::backlog::share_at;
use super::coefficients::Coefficients;
use super::prediction::{EngineLimits, EngineView, Prediction, Sent, predict};
use super::residual::Factors;
use super::wait_curve::WaitCurve;

/// Tokens of a stream after which its age and its gaps are learned.
const WINDOW: u32 = 16;
/// Tokens below which a window that a prompt has ended shows nothing.
const LEAST_WINDOW: u32 = 2;

/// What is taken for an engine of which nothing is known: one of 8 billion parameters on a small GPU.
const UNKNOWN_ENGINE: Coefficients =
    Coefficients { base: 15_000.0, token: 60.0, decode: 60.0, context: 0.05, pair: 0.0 };

const NUMBERS: usize = 25;

/// The predictor of one model on one backend.
#[derive(Debug)]
pub struct Predictor {
    learned: Mutex<BackendPredictor>,
    numbers: [AtomicU64; NUMBERS],
    waits: WaitCurve,
    /// Changes whenever a prompt enters or leaves the engine.
    epoch: AtomicU32,
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
    /// Whether enough is known of the backend for a request to be refused by it.
    pub is_trusted: bool,
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
    /// Whether enough is known for a request to be refused by it.
    pub is_trusted: bool,
}

impl Predictor {
    /// Starts with the step time of an engine like it.
    pub fn new(prior: &Coefficients, limits: EngineLimits) -> Self {
        let learned = BackendPredictor::new(prior, limits);
        let this = Self {
            numbers: std::array::from_fn(|_| AtomicU64::new(0)),
            waits: WaitCurve::default(),
            epoch: AtomicU32::new(0),
            learned: Mutex::new(learned),
        };
        this.publish(&this.learned.lock());
        this
    }

    /// Predicts a request at `now`. Takes no lock and allocates nothing.
    #[inline]
    pub fn estimate(&self, sent: &Sent, now: f64) -> Estimate {
        let [base, token, decode, context_cost, pair, slots, kv_tokens, step_tokens, rest @ ..] =
            self.numbers.each_ref().map(|one| f64::from_bits(one.load(Ordering::Relaxed)));
        let [until, waiting, waiting_tokens, recent, changed, streams, context, rest @ ..] = rest;
        let [mean_a, p90_a, mean_b, p90_b, mean_c, p90_c, front_end, output, rest @ ..] = rest;
        let [tightest, is_trusted] = rest;
        let view = EngineView {
            coefficients: Coefficients { base, token, decode, context: context_cost, pair },
            limits: EngineLimits { slots, kv_tokens, step_tokens },
            backlog: (until - now).max(0.0),
            waiting,
            waiting_tokens,
            prefill_share: if recent > 0.0 { share_at(recent, changed, now) } else { 0.0 },
            streams,
            context,
            waits: &self.waits,
            factors: Factors([(mean_a, p90_a), (mean_b, p90_b), (mean_c, p90_c)]),
            front_end,
            output,
        };
        let prediction = predict(&view, sent, now);
        Estimate { prediction, tightest, is_trusted: is_trusted > 0.0 }
    }

    fn publish(&self, learned: &BackendPredictor) {
        let view = learned.view(&self.waits, 0.0);
        let Coefficients { base, token, decode, context, pair } = view.coefficients;
        let EngineLimits { slots, kv_tokens, step_tokens } = view.limits;
        let backlog = learned.backlog();
        let (recent, changed) = backlog.recent();
        let Factors([(mean_a, p90_a), (mean_b, p90_b), (mean_c, p90_c)]) = view.factors;
        let is_trusted = f64::from(u8::from(learned.is_trusted()));
        let numbers: [f64; NUMBERS] = [
            base,
            token,
            decode,
            context,
            pair,
            slots,
            kv_tokens,
            step_tokens,
            backlog.until(),
            view.waiting,
            view.waiting_tokens,
            recent,
            changed,
            view.streams,
            view.context,
            mean_a,
            p90_a,
            mean_b,
            p90_b,
            mean_c,
            p90_c,
            view.front_end,
            view.output,
            learned.tightest(),
            is_trusted,
        ];
        for (place, number) in self.numbers.iter().zip(numbers) {
            place.store(number.to_bits(), Ordering::Relaxed);
        }
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
        self.epoch.fetch_add(1, Ordering::Relaxed);
        let window = Window { epoch: 0, start: now, last: now, tokens: 0 };
        let emitted = ticket.age();
        let predictor = Arc::clone(self);
        PredictionTicket { predictor, ticket, emitted, window, now, has_ended: false }
    }

    /// Learns from requests that wait for longer than was predicted, and from what the engine reports of its limits.
    /// Call it about once a second.
    pub fn refresh(&self, slots: f64, kv_tokens: f64, now: f64) {
        self.learn(|learned| {
            learned.set_limits(slots, kv_tokens);
            learned.refresh(&self.waits, now);
        });
    }

    /// So many steps in which all streams emitted a token passed between two times, for a caller that does not see each
    /// token: the simulator.
    pub fn observe_steps(&self, from: f64, to: f64, steps: f64) {
        self.learn(|learned| {
            if steps >= f64::from(LEAST_WINDOW) && learned.counts().0 < 0.5 {
                learned.learn_gaps(from, to, steps);
            }
        });
    }

    /// The engine has started again.
    pub fn restarted(&self) {
        self.learn(BackendPredictor::restarted);
    }

    /// What is shown of it at `now`.
    pub fn report(&self, now: f64) -> PredictorReport {
        let learned = self.learned.lock();
        let residual = learned.residual();
        let view = learned.view(&self.waits, now);
        PredictorReport {
            coefficients: view.coefficients,
            front_end: view.front_end,
            slots: view.limits.slots,
            backlog: view.backlog,
            bias: residual.bias(),
            coverage: residual.coverage(),
            error: residual.error(),
            first_tokens: residual.seen(),
            gaps: learned.gaps(),
            waiting: view.waiting,
            streams: view.streams,
            is_trusted: learned.is_trusted(),
        }
    }
}

/// Tokens of a stream between which no prompt entered or left the engine.
#[derive(Debug, Clone, Copy)]
struct Window {
    epoch: u32,
    start: f64,
    last: f64,
    tokens: u32,
}

/// A request at a backend, from its prediction to its end, however it ends.
#[derive(Debug)]
pub struct PredictionTicket {
    predictor: Arc<Predictor>,
    ticket: Ticket,
    emitted: u32,
    window: Window,
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
            let epoch = self.predictor.epoch.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            self.window = Window { epoch, start: now, last: now, tokens: 0 };
            self.emitted = 1;
            return;
        }
        self.emitted = self.emitted.saturating_add(count);
        let epoch = self.predictor.epoch.load(Ordering::Relaxed);
        if epoch != self.window.epoch {
            self.close_window();
            self.window = Window { epoch, start: now, last: now, tokens: 0 };
            return;
        }
        self.window.tokens += count;
        self.window.last = now;
        if self.window.tokens >= WINDOW {
            self.close_window();
            self.window = Window { epoch, start: now, last: now, tokens: 0 };
        }
    }

    /// Learns from the tokens since the last window.
    fn close_window(&mut self) {
        let Window { start, last, tokens, .. } = self.window;
        let (ticket, emitted, now) = (&mut self.ticket, self.emitted, self.now);
        self.predictor.learn(|learned| {
            learned.progress(ticket, emitted, now);
            // A prompt that was there all the time lengthened the steps.
            if tokens >= LEAST_WINDOW && learned.counts().0 < 0.5 {
                learned.learn_gaps(start, last, tokens.into());
            }
        });
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
        self.end(output, true);
    }

    fn end(&mut self, output: Option<u32>, is_complete: bool) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let (ticket, emitted, now) = (&mut self.ticket, self.emitted, self.now);
        self.predictor.learn(|learned| {
            learned.progress(ticket, emitted, now);
            learned.ended(ticket, output, is_complete, now);
        });
        self.predictor.epoch.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for PredictionTicket {
    fn drop(&mut self) {
        self.end(None, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Sent =
        Sent { prompt: 500.0, cached: 100.0, max_output: f64::INFINITY, is_whole: false };

    fn send(predictor: &Arc<Predictor>, now: f64) -> PredictionTicket {
        let estimate = predictor.estimate(&SENT, now);
        predictor.send(SENT, estimate.prediction, None, now)
    }

    #[test]
    fn decisions_read_what_was_learned() {
        let predictor = Arc::new(Predictor::default());
        let idle = predictor.estimate(&SENT, 1e6).prediction;
        let first = send(&predictor, 1e6);
        let behind = predictor.estimate(&SENT, 1e6).prediction;
        assert!((behind.backlog - idle.work).abs() < 1e-6, "{behind:?}");
        drop(first);
        assert_eq!(predictor.estimate(&SENT, 1e6).prediction.backlog, 0.0);
    }

    #[test]
    fn tickets_leave_nothing_however_they_end() {
        let predictor = Arc::new(Predictor::default());
        let mut tickets: Vec<PredictionTicket> =
            (0..300).map(|n| send(&predictor, f64::from(n) * 1e4)).collect();
        for (n, ticket) in (0_u32..).zip(&mut tickets) {
            let mut now = 3e6 + f64::from(n) * 1e4;
            for token in 0..n % 40 {
                ticket.tokens(1 + token % 2, now);
                now += 2e4;
            }
            if n % 3 == 0 {
                ticket.complete(Some(n % 40), now);
            }
        }
        drop(tickets);
        let report = predictor.report(1e9);
        assert_eq!((report.waiting, report.streams, report.backlog), (0.0, 0.0, 0.0));
    }

    #[test]
    fn gaps_of_a_single_stream_are_learned() {
        let predictor = Arc::new(Predictor::default());
        for request in 0..20_u32 {
            let start = f64::from(request) * 1e7;
            let mut ticket = send(&predictor, start);
            let mut now = start + 40_000.0;
            for _ in 0..100 {
                ticket.tokens(1, now);
                now += 5_000.0;
            }
            ticket.complete(None, now);
        }
        let report = predictor.report(1e9);
        let step = report.coefficients.step(1.0, 550.0);
        assert!((step / 5_000.0 - 1.0).abs() < 0.05, "{report:?}");
        let found = predictor.estimate(&SENT, 1e9).prediction;
        assert!((found.ttft / 40_000.0 - 1.0).abs() < 0.1, "{found:?}");
        assert!(report.is_trusted, "{report:?}");
    }

    #[test]
    fn tightest_objective_of_running_streams_is_seen() {
        let predictor = Arc::new(Predictor::default());
        let prediction = predictor.estimate(&SENT, 0.0).prediction;
        let mut slow = predictor.send(SENT, prediction, Some(80_000.0), 0.0);
        let mut fast = predictor.send(SENT, prediction, Some(50_000.0), 0.0);
        assert_eq!(predictor.estimate(&SENT, 0.0).tightest, f64::INFINITY, "none runs yet");
        slow.tokens(1, 1e5);
        fast.tokens(1, 1e5);
        assert_eq!(predictor.estimate(&SENT, 1e5).tightest, 50_000.0);
        drop(fast);
        assert_eq!(predictor.estimate(&SENT, 1e5).tightest, 80_000.0);
        drop(slow);
        assert_eq!(predictor.estimate(&SENT, 1e5).tightest, f64::INFINITY);
    }

    #[test]
    fn responses_in_one_piece_show_the_speed_too() {
        let predictor = Arc::new(Predictor::default());
        let whole = Sent { is_whole: true, ..SENT };
        for request in 0..200_u32 {
            let now = f64::from(request) * 1e7;
            let prediction = predictor.estimate(&whole, now).prediction;
            let mut ticket = predictor.send(whole, prediction, None, now);
            let output = 50 + request % 100;
            ticket.complete(Some(output), now + 30_000.0 + f64::from(output) * 8_000.0);
        }
        let found = predictor.estimate(&whole, 1e10).prediction;
        assert!((found.ttft / 830_000.0 - 1.0).abs() < 0.25, "{found:?}");
        assert!((found.tpot / 8_000.0 - 1.0).abs() < 0.3, "{found:?}");
    }
}
