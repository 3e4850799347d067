//! How long the steps of an engine take, and how that is learned from the gaps between tokens.

use serde::{Deserialize, Serialize};

use super::batch_ratios::{BatchLearner, BatchRatios};

/// The five numbers of a step: `base + token P + decode D + context K + pair A`, for `P` new prompt tokens, `D`
/// decoding requests with `K` tokens of context, and `A` attention pairs of prompts. In microseconds. And the ratios by which
/// small batches differ from that.
///
/// Source: the regression models that simulators of vLLM use (BLIS, Vidur, Dynamo's mocker); see
/// `docs/simulated-engines.md` for how far they are off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Coefficients {
    /// Every step.
    pub base: f64,
    /// Each new prompt token.
    pub token: f64,
    /// Each decoding request.
    pub decode: f64,
    /// Each token in the contexts of decoding requests.
    pub context: f64,
    /// Each pair of tokens between which a prompt has attention.
    pub pair: f64,
    /// Steps of small batches in relation to what the others come to.
    pub batches: BatchRatios,
}

impl Coefficients {
    /// A step in which so many requests decode, and nothing else happens.
    #[inline]
    pub fn step(&self, decodes: f64, context: f64) -> f64 {
        (self.base + self.added(decodes, context)) * self.batches.of(decodes)
    }

    /// By how much so many more requests make a step longer, whatever the size of the batch.
    #[inline]
    pub fn added(&self, decodes: f64, context: f64) -> f64 {
        self.decode * decodes + self.context * context
    }

    /// The prefill of a prompt of which `uncached` tokens are computed behind `cached` ones.
    #[inline]
    pub fn prefill(&self, cached: f64, uncached: f64) -> f64 {
        self.token * uncached + self.pair * uncached * (cached + uncached * 0.5)
    }
}

/// One step in which all requests decoded, as the gap between two tokens shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GapSample {
    /// How long it took.
    pub gap: f64,
    /// Requests that decoded.
    pub decodes: f64,
    /// The tokens of their contexts.
    pub context: f64,
    /// How many steps of the same kind the sample stands for.
    pub steps: f64,
}

/// Learns `base`, `decode` and `context` by recursive least squares with forgetting, relative to the gap: a step of
/// 10 ms counts as much as one of 100 ms. What a prompt token costs is learned by [`super::prefill::PrefillLearner`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepLearner {
    weights: [f64; 3],
    covariance: [[f64; 3]; 3],
    /// Gaps that were learned from.
    gaps: f64,
    /// Mean absolute deviation of a gap from what was expected, as a share.
    deviation: f64,
    /// The same over more gaps.
    #[serde(default = "some_unexplained")]
    unexplained: f64,
    /// The mean of late deviations, with their signs.
    drift: f64,
    /// Steps for which it still forgets fast.
    relearning: f64,
    /// How far small batches are off.
    #[serde(default)]
    batches: BatchLearner,
}

/// Requests and tokens in which the regression counts, so that its numbers are of one size.
const DECODES: f64 = 100.0;
const CONTEXT: f64 = 1e5;
/// How much a sample counts one sample later.
const FORGETTING: f64 = 0.9995;
/// The same for so many steps after the engine has changed: when gaps are off by [`ALARM`] in one direction.
const FORGETTING_FAST: f64 = 0.98;
const RELEARNED: f64 = 200.0;
const ALARM: f64 = 0.1;
/// The same in mean deviations, and its bound: the steps of some engines, as of llama.cpp on a CPU with one to four
/// streams, lie on no line.
const UNEXPLAINED: f64 = 2.5;
const UNEXPLAINED_RATE: f64 = 0.003;
const MOST_ALARM: f64 = 0.3;
/// The largest sum of variances: what no sample shows for long is not made up.
const MOST_VARIANCE: f64 = 1e4;
/// The share of the difference that a gap takes away then.
const CATCH_UP: f64 = 0.1;
/// A gap that is off by so many deviations is a pause of the network or the engine.
const OUTLIER: f64 = 5.0;
/// The least deviation that is taken for more than noise.
const LEAST_DEVIATION: f64 = 0.05;
/// The largest step without negative weights, in relation to the one that was seen.
const MOST_CANCELLED: f64 = 3.0;
/// Gaps before outliers are left out.
const WARM_UP: f64 = 50.0;

impl StepLearner {
    /// Begins with what is known of the engine, or of one like it.
    pub fn new(prior: &Coefficients) -> Self {
        // A hundred streams may make a step twice as long, and so may a hundred thousand tokens of context.
        let variance = (prior.base / SCALE).powi(2).max(1.0);
        let covariance = [[variance, 0.0, 0.0], [0.0, variance, 0.0], [0.0, 0.0, variance]];
        Self {
            weights: [prior.base, prior.decode * DECODES, prior.context * CONTEXT],
            covariance,
            gaps: 0.0,
            deviation: 0.2,
            unexplained: some_unexplained(),
            drift: 0.0,
            relearning: 0.0,
            batches: BatchLearner::default(),
        }
    }

    /// What it has learned, with what prompts cost besides.
    pub fn coefficients(&self, token: f64, pair: f64) -> Coefficients {
        let [base, decode, context] = self.weights.map(|weight| weight.max(0.0));
        Coefficients {
            base,
            decode: decode / DECODES,
            context: context / CONTEXT,
            token,
            pair,
            batches: self.batches.ratios(),
        }
    }

    /// The engine is another one, or another version: what was learned is a first guess now.
    pub fn doubt(&mut self) {
        let [base, decode, context] = self.weights;
        let guess = Coefficients {
            base,
            decode: decode / DECODES,
            context: context / CONTEXT,
            ..Coefficients::default()
        };
        *self = Self { batches: self.batches, ..Self::new(&guess) };
    }

    /// Whether the engine has just changed.
    pub fn is_relearning(&self) -> bool {
        self.relearning > 0.0
    }

    /// Gaps that it has learned from.
    pub fn gaps(&self) -> f64 {
        self.gaps
    }

    /// Learns from a step without prompts. The relative error `(gap - expected) / gap` is what is made small, so the
    /// regressors are divided by the gap.
    pub fn learn_gap(&mut self, sample: &GapSample) {
        let GapSample { gap, decodes, context, steps } = *sample;
        if !(gap > 0.0 && gap.is_finite()) {
            return;
        }
        let x = [1.0, decodes / DECODES, context / CONTEXT].map(|one| one / gap * SCALE);
        let weights = self.weights.map(|weight| weight / SCALE);
        let line = dot(&x, &weights);
        let off = 1.0 - line * self.batches.ratios().of(decodes);
        if self.gaps > WARM_UP && off.abs() > OUTLIER * self.deviation.max(LEAST_DEVIATION) {
            // A real change shows in the next gaps, too: the deviation grows with every one that is left out.
            self.deviation = self.deviation.max(LEAST_DEVIATION) * 1.05;
            return;
        }
        let rate = (steps / 100.0).clamp(0.01, 0.5);
        self.deviation += rate * (off.abs() - self.deviation);
        self.gaps += steps;
        self.drift += (0.05 * steps).min(0.5) * (off - self.drift);
        self.unexplained += (UNEXPLAINED_RATE * steps).min(0.1) * (off.abs() - self.unexplained);
        let alarm = (UNEXPLAINED * self.unexplained).clamp(ALARM, MOST_ALARM);
        if self.drift.abs() > alarm && self.gaps > WARM_UP {
            (self.relearning, self.drift) = (RELEARNED, 0.0);
        }
        let factor = if self.is_relearning() { catch_up(off, steps) } else { 1.0 };
        self.weights.iter_mut().for_each(|weight| *weight *= factor);
        self.update(&x, 1.0 - line * factor, steps);
        if self.gaps > WARM_UP && !self.is_relearning() {
            self.batches.learn(decodes, 1.0 / line.max(0.1), steps);
        }
        self.bound(&x);
        self.relearning = (self.relearning - steps).max(0.0);
    }

    /// Where streams and contexts hardly change, as of others that report them, weights of opposite signs may grow that
    /// cancel out here and nowhere else. What is left then is the step as it is here.
    fn bound(&mut self, x: &[f64; 3]) {
        let weights = self.weights.map(|weight| weight / SCALE);
        let positive = weights.map(|weight| weight.max(0.0));
        let (here, most) = (dot(x, &weights), dot(x, &positive));
        if most > MOST_CANCELLED {
            self.weights = positive.map(|weight| weight * here.clamp(0.5, 2.0) / most * SCALE);
        }
    }

    fn update(&mut self, x: &[f64; 3], off: f64, steps: f64) {
        let usual = if self.relearning > 0.0 { FORGETTING_FAST } else { FORGETTING };
        let forgetting = usual.powf(steps.min(2000.0)).max(0.1);
        let px: Vec3 = self.covariance.map(|row| dot(&row, x));
        let noise = forgetting / steps.max(1.0) * NOISE;
        let scale = noise + dot(x, &px);
        for (weight, gain) in self.weights.iter_mut().zip(&px) {
            *weight += gain / scale * off * SCALE;
        }
        for (row, p) in self.covariance.iter_mut().zip(px) {
            for (one, q) in row.iter_mut().zip(px) {
                *one = (*one - p * q / scale) / forgetting;
            }
        }
        let trace: f64 = (0..3).filter_map(|at| self.covariance.get(at)?.get(at)).sum();
        if trace > MOST_VARIANCE {
            let shrink = MOST_VARIANCE / trace;
            self.covariance.iter_mut().flatten().for_each(|one| *one *= shrink);
        }
    }
}

/// The share of a gap that is taken for unexplained before gaps were seen.
fn some_unexplained() -> f64 {
    0.1
}

/// An engine that has changed is faster or slower in all it does, most of the time: its steps follow the gaps at once,
/// and the regression corrects what is left. One pause must not count for much.
fn catch_up(off: f64, steps: f64) -> f64 {
    let ratio = (1.0 / (1.0 - off).max(0.01)).clamp(0.25, 4.0);
    let share = 1.0 - (1.0 - CATCH_UP).powf(steps.min(100.0));
    ratio.powf(share).clamp(0.8, 1.25)
}

pub(super) type Vec3 = [f64; 3];

/// Microseconds in which the weights count within the regression: a millisecond.
const SCALE: f64 = 1000.0;
/// The variance of a relative error of one gap.
const NOISE: f64 = 0.0025;

pub(super) fn dot(a: &Vec3, b: &Vec3) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
