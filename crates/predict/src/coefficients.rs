//! The step times of an engine, and how they are learned from the gaps between tokens.

use serde::{Deserialize, Serialize};

use super::batch_ratios::{BatchRatioLearner, BatchRatios};

/// The five coefficients of a step, in microseconds: `base_us + token_us P + decode_us D +
/// context_us K + pair_us A`, for `P` new prompt tokens, `D` decoding requests with `K` tokens of
/// context, and `A` attention pairs of prompts; and the ratios by which small batches differ from
/// that.
///
/// Source: the regression models that simulators of vLLM use (BLIS, Vidur, Dynamo's mocker); see
/// `docs/performance/simulation.md` for how far they are off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Coefficients {
    /// The time of every step.
    pub base_us: f64,
    /// The time of each new prompt token.
    pub token_us: f64,
    /// The time of each decoding request.
    pub decode_us: f64,
    /// The time of each token in the contexts of decoding requests.
    pub context_us: f64,
    /// The time of each pair of tokens between which a prompt has attention.
    pub pair_us: f64,
    /// The ratios of the steps of small batches to the line of the others.
    pub batch_ratios: BatchRatios,
}

impl Coefficients {
    /// Returns the time of a step in which `decodes` requests decode, and nothing else happens.
    #[inline(always)]
    pub fn step_us(&self, decodes: f64, context_tokens: f64) -> f64 {
        (self.base_us + self.added_us(decodes, context_tokens)) * self.batch_ratios.of(decodes)
    }

    /// Returns the time that `decodes` more requests add to a step, whatever the size of the batch.
    #[inline(always)]
    pub(crate) fn added_us(&self, decodes: f64, context_tokens: f64) -> f64 {
        self.decode_us * decodes + self.context_us * context_tokens
    }

    /// Returns the prefill time of a prompt of which `uncached_tokens` are computed behind
    /// `cached_tokens` ones.
    #[inline]
    pub fn prefill_us(&self, cached_tokens: f64, uncached_tokens: f64) -> f64 {
        // A token has attention to all before it: to half of the new ones, on average.
        self.token_us * uncached_tokens
            + self.pair_us * uncached_tokens * (cached_tokens + uncached_tokens * 0.5)
    }
}

/// One step in which all requests decoded, as the gap between two tokens shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GapSample {
    /// The duration of the step.
    pub gap_us: f64,
    /// The number of requests that decoded.
    pub decodes: f64,
    /// The tokens of their contexts.
    pub context_tokens: f64,
    /// The number of equal steps that the sample stands for.
    pub steps: f64,
}

/// Learns `base_us`, `decode_us` and `context_us` by recursive least squares with forgetting,
/// relative to the gap: a step of 10 ms counts as much as one of 100 ms.
/// [`super::prefill::PrefillLearner`] learns the cost of a prompt token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepLearner {
    weights: [f64; 3],
    covariance: [[f64; 3]; 3],
    /// The number of gaps that were learned from.
    #[serde(rename = "gaps")]
    gap_count: f64,
    /// The mean absolute deviation of a gap from its prediction, as a share of the gap.
    deviation: f64,
    /// A slower mean of the same deviations.
    #[serde(rename = "unexplained", default = "prior_slow_deviation")]
    slow_deviation: f64,
    /// The mean of recent deviations, with their signs.
    drift: f64,
    /// The number of steps for which it still forgets fast.
    #[serde(rename = "relearning")]
    relearning_steps: f64,
    /// The ratios of small batches.
    #[serde(rename = "batches", default)]
    batch_ratios: BatchRatioLearner,
}

/// The unit of requests in the regression, so that its weights are of one size.
const DECODES_UNIT: f64 = 100.0;
/// The unit of tokens.
const CONTEXT_UNIT: f64 = 1e5;
/// The factor by which the weight of a sample falls with each later step.
const FORGETTING: f64 = 0.9995;
/// This factor for [`RELEARNING_STEPS`] steps after the engine has changed: when gaps are off by
/// [`MIN_ALARM`] in one direction.
const FORGETTING_FAST: f64 = 0.98;
const RELEARNING_STEPS: f64 = 200.0;
const MIN_ALARM: f64 = 0.1;
/// The alarm in slow mean deviations: the steps of some engines, as of llama.cpp on a CPU with one
/// to four streams, lie on no line.
const ALARM_DEVIATIONS: f64 = 2.5;
/// The rate per step at which the slow mean deviation follows.
const SLOW_DEVIATION_RATE: f64 = 0.003;
/// The largest alarm.
const MAX_ALARM: f64 = 0.3;
/// The largest trace of the covariance: it must not wind up while samples hardly vary.
const MAX_VARIANCE: f64 = 1e4;
/// The share of the deviation that each step corrects while it learns again.
const CATCH_UP: f64 = 0.1;
/// The number of mean deviations beyond which a gap is a pause of the network or the engine.
const OUTLIER: f64 = 5.0;
/// The least mean deviation in this comparison.
const MIN_DEVIATION: f64 = 0.05;
/// The largest step without negative weights, in relation to the observed one.
const MAX_CANCELLED: f64 = 3.0;
/// The number of gaps before outliers are ignored, changes are noticed and ratios are learned.
const WARM_UP_GAPS: f64 = 50.0;

impl StepLearner {
    /// Starts with the coefficients of the engine, or of a similar one.
    pub(crate) fn new(prior: &Coefficients) -> Self {
        // A hundred streams may make a step twice as long, and so may 100,000 tokens of context.
        let variance = (prior.base_us / UNIT_US).powi(2).max(1.0);
        let covariance = [[variance, 0.0, 0.0], [0.0, variance, 0.0], [0.0, 0.0, variance]];
        Self {
            weights: [
                prior.base_us,
                prior.decode_us * DECODES_UNIT,
                prior.context_us * CONTEXT_UNIT,
            ],
            covariance,
            gap_count: 0.0,
            deviation: 0.2,
            slow_deviation: prior_slow_deviation(),
            drift: 0.0,
            relearning_steps: 0.0,
            batch_ratios: BatchRatioLearner::default(),
        }
    }

    /// Returns the learned coefficients, with the costs of prompts.
    pub(crate) fn coefficients(&self, token_us: f64, pair_us: f64) -> Coefficients {
        let [base_us, decode, context] = self.weights.map(|weight| weight.max(0.0));
        Coefficients {
            base_us,
            decode_us: decode / DECODES_UNIT,
            context_us: context / CONTEXT_UNIT,
            token_us,
            pair_us,
            batch_ratios: self.batch_ratios.ratios(),
        }
    }

    /// Keeps what was learned as a prior: the engine is another one, or another version.
    pub(crate) fn demote_to_prior(&mut self) {
        let [base_us, decode, context] = self.weights;
        let prior = Coefficients {
            base_us,
            decode_us: decode / DECODES_UNIT,
            context_us: context / CONTEXT_UNIT,
            ..Coefficients::default()
        };
        *self = Self { batch_ratios: self.batch_ratios, ..Self::new(&prior) };
    }

    /// Returns whether the engine has just changed.
    pub(crate) fn is_relearning(&self) -> bool {
        self.relearning_steps > 0.0
    }

    /// Returns the number of gaps that it has learned from.
    pub(crate) fn gap_count(&self) -> f64 {
        self.gap_count
    }

    /// Learns from a step without prompts. It minimizes the relative error
    /// `(gap_us - expected) / gap_us`, so the regressors are divided by the gap.
    pub(crate) fn learn_gap(&mut self, sample: &GapSample) {
        let GapSample { gap_us, decodes, context_tokens, steps } = *sample;
        // A single infinite gap would spoil the weights for good.
        if !(gap_us > 0.0 && gap_us.is_finite()) {
            return;
        }
        let regressors = [1.0, decodes / DECODES_UNIT, context_tokens / CONTEXT_UNIT]
            .map(|one| one / gap_us * UNIT_US);
        let weights = self.weights.map(|weight| weight / UNIT_US);
        let line = dot(&regressors, &weights);
        let residual = 1.0 - line * self.batch_ratios.ratios().of(decodes);
        if self.gap_count > WARM_UP_GAPS
            && residual.abs() > OUTLIER * self.deviation.max(MIN_DEVIATION)
        {
            // A real change shows in the next gaps, too: the deviation grows with each ignored gap.
            self.deviation = self.deviation.max(MIN_DEVIATION) * 1.05;
            return;
        }
        let rate = (steps / 100.0).clamp(0.01, 0.5);
        self.deviation += rate * (residual.abs() - self.deviation);
        self.gap_count += steps;
        self.drift += (0.05 * steps).min(0.5) * (residual - self.drift);
        self.slow_deviation +=
            (SLOW_DEVIATION_RATE * steps).min(0.1) * (residual.abs() - self.slow_deviation);
        let alarm = (ALARM_DEVIATIONS * self.slow_deviation).clamp(MIN_ALARM, MAX_ALARM);
        if self.drift.abs() > alarm && self.gap_count > WARM_UP_GAPS {
            (self.relearning_steps, self.drift) = (RELEARNING_STEPS, 0.0);
        }
        let factor = if self.is_relearning() { catch_up(residual, steps) } else { 1.0 };
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
        self.update(&regressors, 1.0 - line * factor, steps);
        // While the line still moves, a ratio to it means nothing.
        if self.gap_count > WARM_UP_GAPS && !self.is_relearning() {
            self.batch_ratios.learn(decodes, 1.0 / line.max(0.1), steps);
        }
        self.bound(&regressors);
        self.relearning_steps = (self.relearning_steps - steps).max(0.0);
    }

    /// Bounds weights of opposite signs. If streams and contexts hardly change, as when peers
    /// report them, the regression is ill-conditioned: such weights cancel out here and nowhere
    /// else. The positive ones stay, scaled to the step as it is here.
    fn bound(&mut self, regressors: &Vec3) {
        let weights = self.weights.map(|weight| weight / UNIT_US);
        let positive = weights.map(|weight| weight.max(0.0));
        let (line, max_line) = (dot(regressors, &weights), dot(regressors, &positive));
        if max_line > MAX_CANCELLED {
            self.weights =
                positive.map(|weight| weight * line.clamp(0.5, 2.0) / max_line * UNIT_US);
        }
    }

    fn update(&mut self, regressors: &Vec3, residual: f64, steps: f64) {
        let usual = if self.relearning_steps > 0.0 { FORGETTING_FAST } else { FORGETTING };
        // Bounded: one sample of many steps must not erase all earlier ones.
        let forgetting = usual.powf(steps.min(2000.0)).max(0.1);
        let px: Vec3 = self.covariance.map(|row| dot(&row, regressors));
        // The variance of a mean falls with the number of gaps in it.
        let noise = forgetting / steps.max(1.0) * NOISE;
        let scale = noise + dot(regressors, &px);
        for (weight, gain) in self.weights.iter_mut().zip(&px) {
            *weight += gain / scale * residual * UNIT_US;
        }
        for (row, p) in self.covariance.iter_mut().zip(px) {
            for (one, q) in row.iter_mut().zip(px) {
                *one = (*one - p * q / scale) / forgetting;
            }
        }
        let trace: f64 = (0..3).filter_map(|at| self.covariance.get(at)?.get(at)).sum();
        if trace > MAX_VARIANCE {
            let shrink = MAX_VARIANCE / trace;
            self.covariance.iter_mut().flatten().for_each(|one| *one *= shrink);
        }
    }
}

/// Returns the prior of `slow_deviation`.
fn prior_slow_deviation() -> f64 {
    0.1
}

/// Returns the factor by which all weights follow a gap. An engine that has changed is faster or
/// slower in all it does, most of the time: its steps follow the gaps at once, and the regression
/// corrects the rest. One pause must not count for much.
fn catch_up(residual: f64, steps: f64) -> f64 {
    let ratio = (1.0 / (1.0 - residual).max(0.01)).clamp(0.25, 4.0);
    let share = 1.0 - (1.0 - CATCH_UP).powf(steps.min(100.0));
    ratio.powf(share).clamp(0.8, 1.25)
}

pub(super) type Vec3 = [f64; 3];

/// The unit of weights within the regression, in microseconds: a millisecond.
const UNIT_US: f64 = 1000.0;
/// The variance of the relative error of one gap.
const NOISE: f64 = 0.0025;

pub(super) fn dot(a: &Vec3, b: &Vec3) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
