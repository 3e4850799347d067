//! The state of a predictor as plain numbers, which decisions read without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use super::batch_ratios::BatchRatios;
use super::coefficients::Coefficients;
use super::pauses::Pauses;
use super::prediction::{EngineLimits, EngineView};
use super::prompts::{DecayedWork, PromptWork};
use super::residual::{Factors, RegimeFactors};
use super::stall::StreamSilence;
use super::wait_curve::WaitCurve;

#[derive(Debug, Default)]
struct AtomicF64(AtomicU64);

impl AtomicF64 {
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
// Every decision reads it: no other data that is written may share its cache lines.
#[repr(align(64))]
pub(super) struct PublishedView {
    base_us: AtomicF64,
    token_us: AtomicF64,
    decode_us: AtomicF64,
    context_us: AtomicF64,
    pair_us: AtomicF64,
    batch_ratios: AtomicU64,
    slots: AtomicF64,
    kv_tokens: AtomicF64,
    step_tokens: AtomicF64,
    step_ended_at_us: AtomicF64,
    waiting_count: AtomicF64,
    in_batch_tokens: AtomicF64,
    in_batch_us: AtomicF64,
    queued_tokens: AtomicF64,
    queued_us: AtomicF64,
    decayed_work_us: AtomicF64,
    updated_at_us: AtomicF64,
    stream_count: AtomicF64,
    own_stream_count: AtomicF64,
    context_tokens: AtomicF64,
    factors: [[AtomicF64; 2]; 4],
    front_end_us: AtomicF64,
    tokenizer_token_us: AtomicF64,
    mean_output_tokens: AtomicF64,
    pace_factor: AtomicF64,
    pace_p90_factor: AtomicF64,
    pause_factor: AtomicF64,
    pause_rest_us: AtomicF64,
    silent_since_us: AtomicF64,
    silent_until_us: AtomicF64,
    tightest_tpot_us: AtomicF64,
    batch_share: AtomicF64,
    oldest_due_at_us: AtomicF64,
    learned_at_us: AtomicF64,
    first_token_count: AtomicF64,
    is_trusted: AtomicF64,
}

/// The numbers that are published beside the view.
#[derive(Debug, Clone, Copy)]
pub(super) struct PublishedExtras {
    pub(super) decayed_work: DecayedWork,
    /// The least time per token that a stream there can bear.
    pub(super) tightest_tpot_us: f64,
    /// The share of an objective for the time per token up to which a batch is filled.
    pub(super) batch_share: f64,
    /// The time at which the first token of the oldest prompt is due if nothing is before it;
    /// infinite if none waits.
    pub(super) oldest_due_at_us: f64,
    /// The last time at which a first token was learned from; minus infinity if none was.
    pub(super) learned_at_us: f64,
    /// The number of first tokens that were learned from.
    pub(super) first_token_count: f64,
    /// True if enough is known to refuse a request by predictions.
    pub(super) is_trusted: bool,
}

impl PublishedView {
    /// Returns the view at `now_us`.
    #[inline(always)]
    pub(super) fn view<'a>(&self, wait_curve: &'a WaitCurve, now_us: f64) -> EngineView<'a> {
        let decayed_work_us = self.decayed_work_us.get();
        let factors = |numbers: &[AtomicF64; 2]| {
            let [mean, p90] = numbers;
            RegimeFactors { mean: mean.get(), p90: p90.get() }
        };
        let [prefill, slot, whole, idle] = &self.factors;
        EngineView {
            coefficients: Coefficients {
                base_us: self.base_us.get(),
                token_us: self.token_us.get(),
                decode_us: self.decode_us.get(),
                context_us: self.context_us.get(),
                pair_us: self.pair_us.get(),
                batch_ratios: BatchRatios::from_bits(self.batch_ratios.load(Ordering::Relaxed)),
            },
            limits: EngineLimits {
                slots: self.slots.get(),
                kv_tokens: self.kv_tokens.get(),
                step_tokens: self.step_tokens.get(),
            },
            step_ended_at_us: self.step_ended_at_us.get(),
            waiting_count: self.waiting_count.get(),
            in_batch: PromptWork {
                tokens: self.in_batch_tokens.get(),
                time_us: self.in_batch_us.get(),
            },
            queued: PromptWork { tokens: self.queued_tokens.get(), time_us: self.queued_us.get() },
            // Without recent prefills the exponential is saved.
            prefill_share: match decayed_work_us > 0.0 {
                true => DecayedWork {
                    work_us: decayed_work_us,
                    updated_at_us: self.updated_at_us.get(),
                }
                .share_at(now_us),
                false => 0.0,
            },
            stream_count: self.stream_count.get(),
            own_stream_count: self.own_stream_count.get(),
            context_tokens: self.context_tokens.get(),
            wait_curve,
            factors: Factors([prefill, slot, whole, idle].map(factors)),
            front_end_us: self.front_end_us.get(),
            tokenizer_token_us: self.tokenizer_token_us.get(),
            mean_output_tokens: self.mean_output_tokens.get(),
            pace_factor: self.pace_factor.get(),
            pace_p90_factor: self.pace_p90_factor.get(),
            pauses: Pauses { factor: self.pause_factor.get(), rest_us: self.pause_rest_us.get() },
            silence: self.silence(),
        }
    }

    /// The end is read first and written last: a stream that starts must not seem to have been
    /// there since long ago.
    #[inline(always)]
    fn silence(&self) -> StreamSilence {
        let until_us = f64::from_bits(self.silent_until_us.0.load(Ordering::Acquire));
        StreamSilence { since_us: self.silent_since_us.get(), until_us }
    }

    /// Returns the least time per token that a stream there can bear, in microseconds; infinite if
    /// none has an objective.
    #[inline(always)]
    pub(super) fn tightest_tpot_us(&self) -> f64 {
        self.tightest_tpot_us.get()
    }

    /// Returns the share of an objective for the time per token up to which a batch is filled.
    #[inline(always)]
    pub(super) fn batch_share(&self) -> f64 {
        self.batch_share.get()
    }

    /// Returns when the first token of the oldest prompt is due if nothing is before it; infinite
    /// if none waits.
    #[inline(always)]
    pub(super) fn oldest_due_at_us(&self) -> f64 {
        self.oldest_due_at_us.get()
    }

    /// Returns when a time to the first token was last learned from; minus infinity if none was.
    #[inline(always)]
    pub(super) fn learned_at_us(&self) -> f64 {
        self.learned_at_us.get()
    }

    /// Returns the number of first tokens that were learned from.
    #[inline(always)]
    pub(super) fn first_token_count(&self) -> f64 {
        self.first_token_count.get()
    }

    /// Returns whether enough is known to refuse a request by predictions.
    #[inline(always)]
    pub(super) fn is_trusted(&self) -> bool {
        self.is_trusted.get() > 0.0
    }

    pub(super) fn publish(&self, view: &EngineView<'_>, extras: &PublishedExtras) {
        let Coefficients { base_us, token_us, decode_us, context_us, pair_us, batch_ratios } =
            view.coefficients;
        let EngineLimits { slots, kv_tokens, step_tokens } = view.limits;
        let numbers = [
            (&self.base_us, base_us),
            (&self.token_us, token_us),
            (&self.decode_us, decode_us),
            (&self.context_us, context_us),
            (&self.pair_us, pair_us),
            (&self.slots, slots),
            (&self.kv_tokens, kv_tokens),
            (&self.step_tokens, step_tokens),
            (&self.step_ended_at_us, view.step_ended_at_us),
            (&self.waiting_count, view.waiting_count),
            (&self.in_batch_tokens, view.in_batch.tokens),
            (&self.in_batch_us, view.in_batch.time_us),
            (&self.queued_tokens, view.queued.tokens),
            (&self.queued_us, view.queued.time_us),
            (&self.decayed_work_us, extras.decayed_work.work_us),
            (&self.updated_at_us, extras.decayed_work.updated_at_us),
            (&self.stream_count, view.stream_count),
            (&self.own_stream_count, view.own_stream_count),
            (&self.context_tokens, view.context_tokens),
            (&self.front_end_us, view.front_end_us),
            (&self.tokenizer_token_us, view.tokenizer_token_us),
            (&self.mean_output_tokens, view.mean_output_tokens),
            (&self.pace_factor, view.pace_factor),
            (&self.pace_p90_factor, view.pace_p90_factor),
            (&self.pause_factor, view.pauses.factor),
            (&self.pause_rest_us, view.pauses.rest_us),
            (&self.silent_since_us, view.silence.since_us),
            (&self.tightest_tpot_us, extras.tightest_tpot_us),
            (&self.batch_share, extras.batch_share),
            (&self.oldest_due_at_us, extras.oldest_due_at_us),
            (&self.learned_at_us, extras.learned_at_us),
            (&self.first_token_count, extras.first_token_count),
            (&self.is_trusted, f64::from(u8::from(extras.is_trusted))),
        ];
        for (place, number) in numbers {
            place.set(number);
        }
        // After `silent_since_us`, on every processor: see `silence`.
        self.silent_until_us.0.store(view.silence.until_us.to_bits(), Ordering::Release);
        self.batch_ratios.store(batch_ratios.to_bits(), Ordering::Relaxed);
        for ([mean, p90], factors) in self.factors.iter().zip(view.factors.0) {
            mean.set(factors.mean);
            p90.set(factors.p90);
        }
    }
}
