//! The state of a predictor as plain numbers, which decisions read without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::batch_ratios::BatchRatios;
use super::coefficients::Coefficients;
use super::prediction::{EngineLimits, EngineView};
use super::prompts::{Work, share_at};
use super::residual::Factors;
use super::stall::Silence;
use super::wait_curve::WaitCurve;

#[derive(Debug, Default)]
struct Number(AtomicU64);

impl Number {
    #[inline(always)]
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

/// The numbers of an [`EngineView`], and the others that a decision reads. They may be of two
/// moments for an instant; a prediction is off then, and nothing more.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Published {
    base: Number,
    token: Number,
    decode: Number,
    context_cost: Number,
    pair: Number,
    batches: AtomicU64,
    slots: Number,
    kv_tokens: Number,
    step_tokens: Number,
    step_ended: Number,
    waiting: Number,
    inside_tokens: Number,
    inside_time: Number,
    outside_tokens: Number,
    outside_time: Number,
    recent: Number,
    changed: Number,
    streams: Number,
    own_streams: Number,
    context: Number,
    factors: [(Number, Number); 4],
    front_end: Number,
    output: Number,
    pace: Number,
    pace_percentile: Number,
    silent_since: Number,
    silent_until: Number,
    tightest: Number,
    batch_share: Number,
    oldest_due: Number,
    is_trusted: Number,
}

/// The numbers that are published besides the view.
#[derive(Debug, Clone, Copy)]
pub(super) struct Besides {
    /// The decayed prefill work, and the time of its last change.
    pub(super) recent: (f64, f64),
    /// The least time per token that a stream there can bear.
    pub(super) tightest: f64,
    /// The share of an objective for the time per token up to which a batch is filled.
    pub(super) batch_share: f64,
    /// The time at which the first token of the oldest prompt is due if nothing is before it;
    /// infinite if none waits.
    pub(super) oldest_due: f64,
    /// True if enough is known to refuse a request by predictions.
    pub(super) is_trusted: bool,
}

impl Published {
    /// Returns the view at `now`.
    #[inline(always)]
    pub(super) fn view<'a>(&self, waits: &'a WaitCurve, now: f64) -> EngineView<'a> {
        let recent = self.recent.get();
        let factors = |at: &(Number, Number)| (at.0.get(), at.1.get());
        let [prefill, slot, whole, idle] = &self.factors;
        EngineView {
            coefficients: Coefficients {
                base: self.base.get(),
                token: self.token.get(),
                decode: self.decode.get(),
                context: self.context_cost.get(),
                pair: self.pair.get(),
                batches: BatchRatios::from_bits(self.batches.load(Ordering::Relaxed)),
            },
            limits: EngineLimits {
                slots: self.slots.get(),
                kv_tokens: self.kv_tokens.get(),
                step_tokens: self.step_tokens.get(),
            },
            step_ended: self.step_ended.get(),
            waiting: self.waiting.get(),
            inside: Work { tokens: self.inside_tokens.get(), time: self.inside_time.get() },
            outside: Work { tokens: self.outside_tokens.get(), time: self.outside_time.get() },
            prefill_share: match recent > 0.0 {
                true => share_at(recent, self.changed.get(), now),
                false => 0.0,
            },
            streams: self.streams.get(),
            own_streams: self.own_streams.get(),
            context: self.context.get(),
            waits,
            factors: Factors([prefill, slot, whole, idle].map(factors)),
            front_end: self.front_end.get(),
            output: self.output.get(),
            pace: self.pace.get(),
            pace_percentile: self.pace_percentile.get(),
            silence: self.silence(),
        }
    }

    /// The end is read first and written last: a stream that starts must not seem to have been
    /// there since long ago.
    #[inline(always)]
    fn silence(&self) -> Silence {
        let until = self.silent_until.get();
        Silence { since: self.silent_since.get(), until }
    }

    /// Returns the least time per token that a stream there can bear, in microseconds; infinite if
    /// none has an objective.
    #[inline(always)]
    pub(super) fn tightest(&self) -> f64 {
        self.tightest.get()
    }

    /// Returns the share of an objective for the time per token up to which a batch is filled.
    #[inline(always)]
    pub(super) fn batch_share(&self) -> f64 {
        self.batch_share.get()
    }

    /// Returns when the first token of the oldest prompt is due if nothing is before it; infinite
    /// if none waits.
    #[inline(always)]
    pub(super) fn oldest_due(&self) -> f64 {
        self.oldest_due.get()
    }

    /// Returns whether enough is known to refuse a request by predictions.
    #[inline(always)]
    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted.get() > 0.0
    }

    pub(super) fn publish(&self, view: &EngineView<'_>, besides: &Besides) {
        let Coefficients { base, token, decode, context, pair, batches } = view.coefficients;
        let EngineLimits { slots, kv_tokens, step_tokens } = view.limits;
        let numbers = [
            (&self.base, base),
            (&self.token, token),
            (&self.decode, decode),
            (&self.context_cost, context),
            (&self.pair, pair),
            (&self.slots, slots),
            (&self.kv_tokens, kv_tokens),
            (&self.step_tokens, step_tokens),
            (&self.step_ended, view.step_ended),
            (&self.waiting, view.waiting),
            (&self.inside_tokens, view.inside.tokens),
            (&self.inside_time, view.inside.time),
            (&self.outside_tokens, view.outside.tokens),
            (&self.outside_time, view.outside.time),
            (&self.recent, besides.recent.0),
            (&self.changed, besides.recent.1),
            (&self.streams, view.streams),
            (&self.own_streams, view.own_streams),
            (&self.context, view.context),
            (&self.front_end, view.front_end),
            (&self.output, view.output),
            (&self.pace, view.pace),
            (&self.pace_percentile, view.pace_percentile),
            (&self.silent_since, view.silence.since),
            (&self.silent_until, view.silence.until),
            (&self.tightest, besides.tightest),
            (&self.batch_share, besides.batch_share),
            (&self.oldest_due, besides.oldest_due),
            (&self.is_trusted, f64::from(u8::from(besides.is_trusted))),
        ];
        for (place, number) in numbers {
            place.set(number);
        }
        self.batches.store(batches.to_bits(), Ordering::Relaxed);
        for ((mean, percentile), factors) in self.factors.iter().zip(view.factors.0) {
            mean.set(factors.0);
            percentile.set(factors.1);
        }
    }
}
