//! Limits of an engine, learned from requests that wait although little is before them: slots of
//! its batch, or tokens in its KV cache. If the number of streams was the same during such waits,
//! that is the batch; if the sum of their contexts was, that is the cache. The limit is what
//! differed less.

use super::residual::Regime;

/// The factor by which a wait must exceed its prediction to show that there was no room.
const OVERDUE_FACTOR: f64 = 2.0;
/// The least such wait, in microseconds: below 50 ms networks and threads wait as well.
const MIN_WAIT_US: f64 = 50_000.0;
/// The number of such waits in a row that show a limit.
const CONFIRMING_WAITS: usize = 3;
/// The number of such reports, not in a row, that show the slots.
const CONFIRMING_REPORTS: u32 = 3;
/// The time for which limits are believed after the last such wait, in microseconds: 10 minutes. A
/// wrong limit keeps away the requests that would disprove it.
const BELIEVED_US: f64 = 600e6;
/// The largest difference of the amounts during these waits, and of the streams during one of them,
/// as a share: in a full batch a stream starts when another one ends.
const MAX_SPREAD: f64 = 0.1;

/// The number of times in a row, about a second apart, at which an engine is nearly full by the
/// lent slots, without any sign of a limit, after which it is taken to have more.
const MAX_UNSHOWN: u32 = 20;
/// The share of the lent slots from which an engine is nearly full: the others may be kept free.
const NEARLY_FULL: f64 = 0.75;

/// Returns the difference of two amounts, as a share of the larger one.
fn difference(one_amount: f64, other_amount: f64) -> f64 {
    (one_amount - other_amount).abs() / one_amount.max(other_amount).max(1.0)
}

/// Returns whether two numbers of streams are about the same.
fn is_near(one_count: f64, other_count: f64) -> bool {
    difference(one_count, other_count) <= MAX_SPREAD || (one_count - other_count).abs() <= 1.0
}

/// Returns whether a wait of `elapsed_us` shows that there was no room, if `raw_ttft_us` was
/// predicted and a step takes `step_us`.
pub(super) fn is_too_long(elapsed_us: f64, raw_ttft_us: f64, step_us: f64) -> bool {
    elapsed_us >= (OVERDUE_FACTOR * raw_ttft_us + 4.0 * step_us).max(MIN_WAIT_US)
}

/// The wait for a first token, and the streams beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    /// The regime of its prediction, and the prediction before correction.
    pub(super) regime: Regime,
    pub(super) raw_ttft_us: f64,
    /// The times at which it was sent and came, and the duration of a step.
    pub(super) sent_at_us: f64,
    pub(super) first_token_at_us: f64,
    pub(super) step_us: f64,
    /// The number of streams there when it was sent, and when it came.
    pub(super) stream_count_before: f64,
    pub(super) stream_count: f64,
    /// The tokens of their contexts, and its own, when it came.
    pub(super) context_tokens: f64,
}

impl Wait {
    /// Returns whether it is longer than networks, threads and single steps take.
    fn is_long(&self) -> bool {
        self.first_token_at_us - self.sent_at_us >= (4.0 * self.step_us).max(MIN_WAIT_US)
    }

    /// Returns whether it shows that there was no room.
    fn is_too_long(&self) -> bool {
        is_too_long(self.first_token_at_us - self.sent_at_us, self.raw_ttft_us, self.step_us)
    }
}

/// A limit, and the amount in use when waits showed it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LearnedLimit {
    limit: f64,
    shown_by: f64,
}

impl LearnedLimit {
    const NONE: Self = Self { limit: f64::INFINITY, shown_by: f64::INFINITY };

    fn of(amount: f64) -> Self {
        Self { limit: amount, shown_by: amount }
    }

    /// Records that the engine has room for `amount`. Returns whether that is more than the limit.
    /// A little more may be seen where the end of a stream comes late; much more disproves the
    /// limit.
    fn exceed(&mut self, amount: f64) -> bool {
        if amount <= self.limit {
            return false;
        }
        self.limit = if is_near(amount, self.shown_by) { amount } else { f64::INFINITY };
        true
    }
}

/// The streams of an engine, and the tokens of their contexts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct InUse {
    stream_count: f64,
    context_tokens: f64,
}

/// Learns the limits that an engine does not report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LimitLearner {
    slots: LearnedLimit,
    kv_tokens: LearnedLimit,
    /// The use of the engine at the last such waits.
    waits: [InUse; CONFIRMING_WAITS],
    /// The number of waits that are known, and the number of those in a row, without a request
    /// between them that did not wait.
    count: usize,
    consecutive: usize,
    /// The end of the last wait that counted: those that started before are of the same overload.
    counted_at_us: f64,
    /// The number of running requests when the engine last reported that others wait.
    running_while_queued: Option<f64>,
    /// The most requests that it has reported to run, whether others waited or not, and when it
    /// last did.
    max_running: f64,
    max_running_at_us: f64,
    /// The number of reports of that many, while others waited there and one from here too long.
    max_report_count: u32,
    /// True if a request has waited for too long since the last report.
    has_waited: bool,
    lent: LentSlots,
}

/// The slots of another engine with the same model, which hold until this one shows its own or that
/// it has more.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LentSlots {
    slots: f64,
    /// The largest number that this engine has shown to be too small.
    refuted: f64,
    /// The number of times in a row at which the engine was nearly full by it, and showed no limit.
    unshown_count: u32,
}

impl LentSlots {
    const NONE: Self = Self { slots: f64::INFINITY, refuted: 0.0, unshown_count: 0 };

    fn refute(&mut self) -> bool {
        if self.slots.is_infinite() {
            return false;
        }
        *self = Self { refuted: self.slots, ..Self::NONE };
        true
    }
}

impl Default for LimitLearner {
    fn default() -> Self {
        Self {
            slots: LearnedLimit::NONE,
            kv_tokens: LearnedLimit::NONE,
            waits: [InUse::default(); CONFIRMING_WAITS],
            count: 0,
            consecutive: 0,
            counted_at_us: f64::NEG_INFINITY,
            running_while_queued: None,
            max_running: 0.0,
            max_running_at_us: f64::NEG_INFINITY,
            max_report_count: 0,
            has_waited: false,
            lent: LentSlots::NONE,
        }
    }
}

impl LimitLearner {
    /// Learns from a first token. Returns whether a limit has changed. If `knows_kv_tokens`, the
    /// engine reports its cache, and waits that this does not explain show its slots.
    pub(super) fn learn(&mut self, wait: &Wait, knows_kv_tokens: bool) -> bool {
        if wait.regime == Regime::Slot
            && self.slots.limit <= wait.stream_count + 1.0
            && wait.is_long()
        {
            // Once the slots are known, waits for a slot are predicted, and confirm them.
            self.counted_at_us = wait.first_token_at_us;
        }
        if wait.regime != Regime::Prefill || wait.stream_count < 1.0 {
            return false;
        }
        if !wait.is_too_long() {
            self.consecutive = 0;
            // A request that started at once disproves a full cache only if more was in it than in
            // the waits.
            let max_context = self.waits.iter().map(|wait| wait.context_tokens).fold(0.0, f64::max);
            if wait.context_tokens > max_context * (1.0 + MAX_SPREAD) {
                self.count = 0;
            }
            return self.kv_tokens.exceed(wait.context_tokens);
        }
        self.has_waited = true;
        // If the number of streams has changed meanwhile, it may have waited for prompts.
        if !is_near(wait.stream_count_before, wait.stream_count)
            || wait.sent_at_us < self.counted_at_us
        {
            return false;
        }
        self.counted_at_us = wait.first_token_at_us;
        self.waits.rotate_left(1);
        if let Some(last) = self.waits.last_mut() {
            // The stream that starts now is one of them.
            *last = InUse {
                stream_count: wait.stream_count + 1.0,
                context_tokens: wait.context_tokens,
            };
        }
        (self.count, self.consecutive) = (self.count + 1, self.consecutive + 1);
        self.count >= CONFIRMING_WAITS && self.confirm(knows_kv_tokens)
    }

    /// Finds the limit that the last waits have in common, if there is one.
    fn confirm(&mut self, knows_kv_tokens: bool) -> bool {
        let range = |values: [f64; CONFIRMING_WAITS]| {
            let values = values.into_iter();
            (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max))
        };
        let (min_streams, max_streams) = range(self.waits.map(|wait| wait.stream_count));
        let (min_context, max_context) = range(self.waits.map(|wait| wait.context_tokens));
        let spread =
            if knows_kv_tokens { f64::INFINITY } else { difference(min_context, max_context) };
        let is_batch = max_streams - min_streams <= 1.0
            || is_near(min_streams, max_streams) && difference(min_streams, max_streams) <= spread;
        if is_batch && self.consecutive >= CONFIRMING_WAITS {
            self.slots = LearnedLimit::of(max_streams);
        } else if spread <= MAX_SPREAD {
            // Preempted streams count among the contexts, so the largest one is too large.
            (self.slots, self.kv_tokens) =
                (LearnedLimit::NONE, LearnedLimit::of(f64::midpoint(min_context, max_context)));
        } else {
            return false;
        }
        (self.count, self.consecutive) = (0, 0);
        true
    }

    /// Takes the number of requests that the engine reports to run, and whether others wait in it
    /// although its KV cache has room, about once a second. The same number twice in a row is its
    /// batch, if a request here waits for too long and the engine has not run more at a time; a
    /// known batch is confirmed without one. Returns whether the limit has changed.
    pub(super) fn learn_reported(
        &mut self,
        running: f64,
        is_queued: bool,
        has_overdue: bool,
        now_us: f64,
    ) -> bool {
        let has_overdue = std::mem::take(&mut self.has_waited) || has_overdue;
        let now_queued = is_queued.then_some(running);
        let before = std::mem::replace(&mut self.running_while_queued, now_queued);
        let is_old = now_us > self.max_running_at_us + BELIEVED_US;
        if running > self.max_running || is_old {
            (self.max_running, self.max_report_count) = (running, 0);
        }
        if running == self.max_running {
            self.max_running_at_us = now_us;
        }
        if !is_queued {
            return false;
        }
        let is_known = running == self.slots();
        // A long prompt may make others wait, too, beside any number.
        let is_largest = running == self.max_running && has_overdue;
        self.max_report_count += u32::from(is_largest);
        let is_again = before == Some(running) && has_overdue && is_near(running, self.max_running);
        let is_shown = is_again || is_largest && self.max_report_count >= CONFIRMING_REPORTS;
        if is_known && before == Some(running) || is_shown {
            (self.slots, self.counted_at_us) = (LearnedLimit::of(running), now_us);
        }
        is_shown && !is_known
    }

    /// Records that `stream_count` streams run beside each other. Returns whether that is more than
    /// the known slots.
    pub(super) fn observe_streams(&mut self, stream_count: f64) -> bool {
        let LentSlots { slots, .. } = self.lent;
        let has_more = stream_count > slots && !is_near(stream_count, slots);
        let is_refuted = has_more && self.lent.refute();
        self.slots.exceed(stream_count) || is_refuted
    }

    /// Takes the slots that another engine with the same model has shown; infinite if none has.
    /// Call it about once a second. Returns whether the limit has changed.
    pub(super) fn lend(&mut self, slots: f64, stream_count: f64) -> bool {
        let before = self.slots();
        let is_full =
            self.slots.limit.is_infinite() && stream_count >= NEARLY_FULL * self.lent.slots;
        self.lent.unshown_count = if is_full { self.lent.unshown_count + 1 } else { 0 };
        if self.lent.unshown_count > MAX_UNSHOWN {
            self.lent.refute();
        }
        self.lent.slots = if slots > self.lent.refuted { slots } else { f64::INFINITY };
        self.slots() != before
    }

    /// Forgets limits that no wait has shown for long. Returns whether the limits have changed.
    pub(super) fn expire(&mut self, now_us: f64) -> bool {
        let is_known = self.slots.limit.is_finite() || self.kv_tokens.limit.is_finite();
        if !is_known || now_us <= self.counted_at_us + BELIEVED_US {
            return false;
        }
        if self.counted_at_us == f64::NEG_INFINITY {
            // An earlier process found them: they are believed from now on.
            self.counted_at_us = now_us;
            return false;
        }
        *self = Self { lent: self.lent, ..Self::default() };
        true
    }

    /// Takes limits that an earlier process has found.
    pub(super) fn restore(&mut self, slots: Option<f64>, kv_tokens: Option<f64>) {
        self.slots = slots.map_or(LearnedLimit::NONE, LearnedLimit::of);
        self.kv_tokens = kv_tokens.map_or(LearnedLimit::NONE, LearnedLimit::of);
    }

    /// Returns the slots; infinite while nothing shows them.
    pub(super) fn slots(&self) -> f64 {
        if self.slots.limit.is_finite() { self.slots.limit } else { self.lent.slots }
    }

    /// Returns the slots that this engine has shown; infinite if it has shown none.
    pub(super) fn shown_slots(&self) -> f64 {
        self.slots.limit
    }

    /// Returns the most requests that the engine has reported to run in the last minutes.
    pub(super) fn max_running(&self) -> f64 {
        self.max_running
    }

    /// Returns the tokens in the KV cache; infinite while nothing shows them.
    pub(super) fn kv_tokens(&self) -> f64 {
        self.kv_tokens.limit
    }
}

#[cfg(test)]
#[path = "limit_learner_tests.rs"]
mod tests;
