//! Limits of an engine, learned from requests that wait although little is before them: slots of
//! its batch, or tokens in its KV cache. If the number of streams was the same during such waits,
//! that is the batch; if the sum of their contexts was, that is the cache. The limit is what
//! differed less.

use super::residual::Regime;

/// The factor by which a wait must exceed its prediction to show that there was no room.
const TOO_LONG: f64 = 2.0;
/// The least such wait, in microseconds: below 50 ms networks and threads wait as well.
const LEAST_WAIT: f64 = 50_000.0;
/// The number of such waits in a row that show a limit.
const CONFIRMED: usize = 3;
/// The time for which limits are believed after the last such wait, in microseconds: 10 minutes. A
/// wrong limit keeps away the requests that would disprove it.
const BELIEVED: f64 = 600e6;
/// The largest difference of the amounts during these waits, and of the streams during one of them,
/// as a share: in a full batch a stream starts when another one ends.
const SPREAD: f64 = 0.1;

/// Returns the difference of two amounts, as a share of the larger one.
fn difference(one: f64, other: f64) -> f64 {
    (one - other).abs() / one.max(other).max(1.0)
}

/// Returns whether two numbers of streams are about the same.
fn is_near(one: f64, other: f64) -> bool {
    difference(one, other) <= SPREAD || (one - other).abs() <= 1.0
}

/// Returns whether a wait of `elapsed` shows that there was no room, if `raw` was predicted and a
/// step takes `step`.
pub(super) fn is_too_long(elapsed: f64, raw: f64, step: f64) -> bool {
    elapsed >= (TOO_LONG * raw + 4.0 * step).max(LEAST_WAIT)
}

/// The wait for a first token, and the streams beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    /// The regime of its prediction, and the prediction before correction.
    pub(super) regime: Regime,
    pub(super) raw: f64,
    /// The times at which it was sent and came, and the duration of a step.
    pub(super) sent_at: f64,
    pub(super) now: f64,
    pub(super) step: f64,
    /// The number of streams there when it was sent, and when it came.
    pub(super) before: f64,
    pub(super) streams: f64,
    /// The tokens of their contexts, and its own, when it came.
    pub(super) context: f64,
}

impl Wait {
    /// Returns whether it is longer than networks, threads and single steps take.
    fn is_long(&self) -> bool {
        self.now - self.sent_at >= (4.0 * self.step).max(LEAST_WAIT)
    }

    /// Returns whether it shows that there was no room.
    fn is_too_long(&self) -> bool {
        is_too_long(self.now - self.sent_at, self.raw, self.step)
    }
}

/// A limit, and the amount in use when waits showed it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Limit {
    found: f64,
    shown: f64,
}

impl Limit {
    const NONE: Self = Self { found: f64::INFINITY, shown: f64::INFINITY };

    fn of(amount: f64) -> Self {
        Self { found: amount, shown: amount }
    }

    /// Records that the engine has room for `amount`. Returns whether that is more than the limit.
    /// A little more may be seen where the end of a stream comes late; much more disproves the
    /// limit.
    fn exceed(&mut self, amount: f64) -> bool {
        if amount <= self.found {
            return false;
        }
        self.found = if is_near(amount, self.shown) { amount } else { f64::INFINITY };
        true
    }
}

/// Learns the limits that an engine does not report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LimitLearner {
    slots: Limit,
    kv_tokens: Limit,
    /// The numbers of streams and the contexts at the last such waits.
    waits: [(f64, f64); CONFIRMED],
    /// The number of waits that are known, and the number of those in a row, without a request
    /// between them that did not wait.
    count: usize,
    in_row: usize,
    /// The end of the last wait that counted: those that started before are of the same overload.
    counted_at: f64,
    /// The number of running requests when the engine last reported that others wait.
    running: Option<f64>,
}

impl Default for LimitLearner {
    fn default() -> Self {
        Self {
            slots: Limit::NONE,
            kv_tokens: Limit::NONE,
            waits: [(0.0, 0.0); CONFIRMED],
            count: 0,
            in_row: 0,
            counted_at: f64::NEG_INFINITY,
            running: None,
        }
    }
}

impl LimitLearner {
    /// Learns from a first token. Returns whether a limit has changed. If `knows_kv_tokens`, the
    /// engine reports its cache, and waits that this does not explain show its slots.
    pub(super) fn learn(&mut self, wait: &Wait, knows_kv_tokens: bool) -> bool {
        if wait.regime == Regime::Slot && self.slots.found <= wait.streams + 1.0 && wait.is_long() {
            // Once the slots are known, waits for a slot are predicted, and confirm them.
            self.counted_at = wait.now;
        }
        if wait.regime != Regime::Prefill || wait.streams < 1.0 {
            return false;
        }
        if !wait.is_too_long() {
            self.in_row = 0;
            // A request that started at once disproves a full cache only if more was in it than in
            // the waits.
            let most = self.waits.iter().map(|(_, context)| *context).fold(0.0, f64::max);
            if wait.context > most * (1.0 + SPREAD) {
                self.count = 0;
            }
            return self.kv_tokens.exceed(wait.context);
        }
        // If the number of streams has changed meanwhile, it may have waited for prompts.
        if !is_near(wait.before, wait.streams) || wait.sent_at < self.counted_at {
            return false;
        }
        self.counted_at = wait.now;
        self.waits.rotate_left(1);
        if let Some(last) = self.waits.last_mut() {
            // The stream that starts now is one of them.
            *last = (wait.streams + 1.0, wait.context);
        }
        (self.count, self.in_row) = (self.count + 1, self.in_row + 1);
        self.count >= CONFIRMED && self.confirm(knows_kv_tokens)
    }

    /// Finds the limit that the last waits have in common, if there is one.
    fn confirm(&mut self, knows_kv_tokens: bool) -> bool {
        let range = |values: [f64; CONFIRMED]| {
            let values = values.into_iter();
            (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max))
        };
        let (fewest, most) = range(self.waits.map(|(streams, _)| streams));
        let (least, greatest) = range(self.waits.map(|(_, context)| context));
        let spread = if knows_kv_tokens { f64::INFINITY } else { difference(least, greatest) };
        let is_batch =
            most - fewest <= 1.0 || is_near(fewest, most) && difference(fewest, most) <= spread;
        if is_batch && self.in_row >= CONFIRMED {
            self.slots = Limit::of(most);
        } else if spread <= SPREAD {
            // Preempted streams count among the contexts, so the largest one is too large.
            (self.slots, self.kv_tokens) = (Limit::NONE, Limit::of(f64::midpoint(least, greatest)));
        } else {
            return false;
        }
        (self.count, self.in_row) = (0, 0);
        true
    }

    /// Takes the number of running requests that the engine reports while others wait in it, `None`
    /// if none wait, about once a second. The same number twice in a row is its batch, if a request
    /// here waits for too long; a known batch is confirmed without one. Returns whether the limit
    /// has changed.
    pub(super) fn reported(&mut self, running: Option<f64>, has_overdue: bool, now: f64) -> bool {
        let before = std::mem::replace(&mut self.running, running);
        let Some(running) = running.filter(|_| running == before) else { return false };
        let is_known = running == self.slots.found;
        if !is_known && !has_overdue {
            // A long prompt may make others wait, too.
            return false;
        }
        (self.slots, self.counted_at) = (Limit::of(running), now);
        !is_known
    }

    /// Records that `streams` streams run beside each other. Returns whether that is more than the
    /// known slots.
    pub(super) fn saw(&mut self, streams: f64) -> bool {
        self.slots.exceed(streams)
    }

    /// Forgets limits that no wait has shown for long. Returns whether the limits have changed.
    pub(super) fn expire(&mut self, now: f64) -> bool {
        let is_known = self.slots.found.is_finite() || self.kv_tokens.found.is_finite();
        if !is_known || now <= self.counted_at.max(0.0) + BELIEVED {
            return false;
        }
        if self.counted_at == f64::NEG_INFINITY {
            // An earlier process found them: they are believed from now on.
            self.counted_at = now;
            return false;
        }
        *self = Self::default();
        true
    }

    /// Takes limits that an earlier process has found.
    pub(super) fn found_before(&mut self, slots: Option<f64>, kv_tokens: Option<f64>) {
        self.slots = slots.map_or(Limit::NONE, Limit::of);
        self.kv_tokens = kv_tokens.map_or(Limit::NONE, Limit::of);
    }

    /// Returns the slots; infinite while nothing shows them.
    pub(super) fn slots(&self) -> f64 {
        self.slots.found
    }

    /// Returns the tokens in the KV cache; infinite while nothing shows them.
    pub(super) fn kv_tokens(&self) -> f64 {
        self.kv_tokens.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait beside 31 streams that ends at `now`.
    fn wait(sent_at: f64, now: f64) -> Wait {
        let (regime, raw, step) = (Regime::Prefill, 50_000.0, 10_000.0);
        Wait { regime, raw, sent_at, now, step, before: 30.0, streams: 31.0, context: now }
    }

    fn learn(limits: &mut LimitLearner, wait: Wait) -> bool {
        limits.learn(&wait, false)
    }

    #[test]
    fn three_overloads_show_the_slots_and_more_streams_disprove_them() {
        let mut limits = LimitLearner::default();
        assert!(!learn(&mut limits, wait(0.0, 9e5)) && !learn(&mut limits, wait(1e6, 2e6)));
        assert!(!learn(&mut limits, wait(2.5e6, 2.56e6)), "not in a row");
        assert!(!learn(&mut limits, wait(3e6, 4e6)) && !learn(&mut limits, wait(4e6, 5e6)));
        assert!(!learn(&mut limits, wait(4.5e6, 5.5e6)), "the same overload");
        assert!(learn(&mut limits, wait(5e6, 6e6)));
        assert_eq!((limits.slots(), limits.kv_tokens()), (32.0, f64::INFINITY));
        assert!(!limits.saw(32.0) && limits.saw(33.0));
        assert_eq!(limits.slots(), 33.0);
        assert!(limits.saw(40.0));
        assert_eq!(limits.slots(), f64::INFINITY);
    }

    #[test]
    fn limit_is_what_differed_less_during_the_waits() {
        let mut limits = LimitLearner::default();
        let shown = [(1e6, 29.0, 39_000.0), (3e6, 31.0, 40_000.0), (5e6, 28.0, 39_500.0)];
        for (at, streams, context) in shown {
            let wait = Wait { before: streams, streams, context, ..wait(at, at + 1e6) };
            let is_news = learn(&mut limits, wait);
            assert_eq!(is_news, at == 5e6);
            let at_once = Wait { context: 38_000.0, ..self::wait(at + 1.1e6, at + 1.11e6) };
            assert!(!learn(&mut limits, at_once), "a cache with room");
        }
        assert_eq!((limits.slots(), limits.kv_tokens()), (f64::INFINITY, 39_500.0));
        let start = |context| Wait { context, ..wait(7e6, 7.01e6) };
        assert!(!learn(&mut limits, start(39_000.0)) && learn(&mut limits, start(41_000.0)));
        assert_eq!(limits.kv_tokens(), 41_000.0, "a little more");
        let late = Wait { context: 60_000.0, ..wait(7e6, 8e6) };
        assert!(!learn(&mut limits, late), "it has waited: there was no room for so much");
        assert!(learn(&mut limits, start(60_000.0)) && limits.kv_tokens().is_infinite());
        let mut reported = LimitLearner::default();
        for (at, streams, context) in shown {
            let wait = Wait { before: streams, streams, context, ..wait(at, at + 1e6) };
            reported.learn(&wait, true);
        }
        assert_eq!((reported.slots(), reported.kv_tokens()), (32.0, f64::INFINITY));
    }

    #[test]
    fn short_waits_show_nothing() {
        let mut limits = LimitLearner::default();
        for n in 0..10 {
            let (at, raw, step) = (f64::from(n) * 1e6, 300.0, 10.0);
            assert!(!learn(&mut limits, Wait { raw, step, ..wait(at, at + 20_000.0) }));
        }
    }

    #[test]
    fn what_no_wait_shows_is_forgotten() {
        let mut limits = LimitLearner::default();
        (0..3_u32).for_each(|n| {
            learn(&mut limits, wait(f64::from(n) * 1e6, f64::from(n) * 1e6 + 9e5));
        });
        assert!(!limits.expire(500e6) && limits.slots() == 32.0);
        assert!(limits.expire(700e6) && limits.slots() == f64::INFINITY);
        limits.found_before(Some(8.0), None);
        assert!(!limits.expire(5000e6) && !limits.expire(5500e6) && limits.slots() == 8.0);
        assert!(limits.expire(5700e6));
    }

    #[test]
    fn engine_that_reports_waiting_requests_twice_shows_its_slots() {
        let mut limits = LimitLearner::default();
        let full = Some(16.0);
        assert!(!limits.reported(full, true, 1e6) && !limits.reported(Some(14.0), true, 2e6));
        assert!(!limits.reported(full, true, 3e6) && !limits.reported(None, true, 4e6));
        assert!(!limits.reported(full, true, 5e6) && !limits.reported(full, false, 6e6));
        assert!(limits.reported(full, true, 7e6) && limits.slots() == 16.0);
        assert!(!limits.reported(full, false, 500e6), "no news");
        assert!(!limits.expire(900e6) && limits.slots() == 16.0, "but a confirmation");
    }

    #[test]
    fn waits_for_a_slot_confirm_the_slots() {
        let mut limits = LimitLearner::default();
        limits.found_before(Some(32.0), None);
        let slot = |at| Wait { regime: Regime::Slot, ..wait(at, at + 1e6) };
        for n in 1..4 {
            assert!(!learn(&mut limits, slot(f64::from(n) * 500e6)));
            assert!(!limits.expire(f64::from(n) * 500e6 + 400e6));
        }
        assert!(!learn(&mut limits, Wait { streams: 20.0, ..slot(2000e6) }), "there was room");
        assert!(limits.expire(2200e6));
    }

    #[test]
    fn waits_while_the_batch_grows_show_nothing() {
        let mut limits = LimitLearner::default();
        for n in 0..10 {
            let at = f64::from(n) * 1e6;
            assert!(!learn(&mut limits, Wait { before: 20.0, ..wait(at, at + 9e5) }));
        }
    }
}
