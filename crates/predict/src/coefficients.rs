//! The step times of an engine, and how they are learned from the gaps between tokens.

use serde::{Deserialize, Serialize};

use super::batch_ratios::{BatchLearner, BatchRatios};

/// The five coefficients of a step, in microseconds:
/// `base + token P + decode D + context K + pair A`, for `P` new prompt tokens, `D` decoding
/// requests with `K` tokens of context, and `A` attention pairs of prompts; and the ratios by which
/// small batches differ from that.
///
/// Source: the regression models that simulators of vLLM use (BLIS, Vidur, Dynamo's mocker); see
/// `docs/performance/simulation.md` for how far they are off.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Coefficients {
    /// The time of every step.
    pub base: f64,
    /// The time of each new prompt token.
    pub token: f64,
    /// The time of each decoding request.
    pub decode: f64,
    /// The time of each token in the contexts of decoding requests.
    pub context: f64,
    /// The time of each pair of tokens between which a prompt has attention.
    pub pair: f64,
    /// The ratios of the steps of small batches to the line of the others.
    pub batches: BatchRatios,
}

impl Coefficients {
    /// Returns the time of a step in which `decodes` requests decode, and nothing else happens.
    #[inline]
    pub fn step(&self, decodes: f64, context: f64) -> f64 {
        (self.base + self.added(decodes, context)) * self.batches.of(decodes)
    }

    /// Returns the time that `decodes` more requests add to a step, whatever the size of the batch.
    #[inline]
    pub fn added(&self, decodes: f64, context: f64) -> f64 {
        self.decode * decodes + self.context * context
    }

    /// Returns the prefill time of a prompt of which `uncached` tokens are computed behind `cached`
    /// ones.
    #[inline]
    pub fn prefill(&self, cached: f64, uncached: f64) -> f64 {
        self.token * uncached + self.pair * uncached * (cached + uncached * 0.5)
    }
}

/// One step in which all requests decoded, as the gap between two tokens shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GapSample {
    /// The duration of the step.
    pub gap: f64,
    /// The number of requests that decoded.
    pub decodes: f64,
    /// The tokens of their contexts.
    pub context: f64,
    /// The number of equal steps that the sample stands for.
    pub steps: f64,
}

/// Learns `base`, `decode` and `context` by recursive least squares with forgetting, relative to
/// the gap: a step of 10 ms counts as much as one of 100 ms. [`super::prefill::PrefillLearner`]
/// learns the cost of a prompt token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepLearner {
    weights: [f64; 3],
    covariance: [[f64; 3]; 3],
    /// The number of gaps that were learned from.
    gaps: f64,
    /// The mean absolute deviation of a gap from its prediction, as a share of the gap.
    deviation: f64,
    /// A slower mean of the same deviations.
    #[serde(default = "some_unexplained")]
    unexplained: f64,
    /// The mean of recent deviations, with their signs.
    drift: f64,
    /// The number of steps for which it still forgets fast.
    relearning: f64,
    /// The ratios of small batches.
    #[serde(default)]
    batches: BatchLearner,
}

/// The units of requests and tokens in the regression, so that its weights are of one size.
const DECODES: f64 = 100.0;
const CONTEXT: f64 = 1e5;
/// The factor by which the weight of a sample falls with each later step.
const FORGETTING: f64 = 0.9995;
/// This factor for [`RELEARNED`] steps after the engine has changed: when gaps are off by [`ALARM`]
/// in one direction.
const FORGETTING_FAST: f64 = 0.98;
const RELEARNED: f64 = 200.0;
const ALARM: f64 = 0.1;
/// The alarm in mean deviations, and its upper bound: the steps of some engines, as of llama.cpp on
/// a CPU with one to four streams, lie on no line.
const UNEXPLAINED: f64 = 2.5;
const UNEXPLAINED_RATE: f64 = 0.003;
const MOST_ALARM: f64 = 0.3;
/// The largest trace of the covariance: it must not wind up while samples hardly vary.
const MOST_VARIANCE: f64 = 1e4;
/// The share of the deviation that each step corrects while it learns again.
const CATCH_UP: f64 = 0.1;
/// The number of mean deviations beyond which a gap is a pause of the network or the engine.
const OUTLIER: f64 = 5.0;
/// The least mean deviation in this comparison.
const LEAST_DEVIATION: f64 = 0.05;
/// The largest step without negative weights, in relation to the observed one.
const MOST_CANCELLED: f64 = 3.0;
/// The number of gaps before outliers are ignored, changes are noticed and ratios are learned.
const WARM_UP: f64 = 50.0;

impl StepLearner {
    /// Starts with the coefficients of the engine, or of a similar one.
    pub fn new(prior: &Coefficients) -> Self {
        // A hundred streams may make a step twice as long, and so may 100,000 tokens of context.
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

    /// Returns the learned coefficients, with the costs of prompts.
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

    /// Keeps what was learned as a prior: the engine is another one, or another version.
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

    /// Returns whether the engine has just changed.
    pub fn is_relearning(&self) -> bool {
        self.relearning > 0.0
    }

    /// Returns the number of gaps that it has learned from.
    pub fn gaps(&self) -> f64 {
        self.gaps
    }

    /// Learns from a step without prompts. It minimizes the relative error
    /// `(gap - expected) / gap`, so the regressors are divided by the gap.
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
            // A real change shows in the next gaps, too: the deviation grows with each ignored gap.
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

    /// Bounds weights of opposite signs. If streams and contexts hardly change, as when peers
    /// report them, the regression is ill-conditioned: such weights cancel out here and nowhere
    /// else. The positive ones stay, scaled to the step as it is here.
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

/// Returns the prior of `unexplained`.
fn some_unexplained() -> f64 {
    0.1
}

/// Returns the factor by which all weights follow a gap. An engine that has changed is faster or
/// slower in all it does, most of the time: its steps follow the gaps at once, and the regression
/// corrects the rest. One pause must not count for much.
fn catch_up(off: f64, steps: f64) -> f64 {
    let ratio = (1.0 / (1.0 - off).max(0.01)).clamp(0.25, 4.0);
    let share = 1.0 - (1.0 - CATCH_UP).powf(steps.min(100.0));
    ratio.powf(share).clamp(0.8, 1.25)
}

pub(super) type Vec3 = [f64; 3];

/// The unit of weights within the regression, in microseconds: a millisecond.
const SCALE: f64 = 1000.0;
/// The variance of the relative error of one gap.
const NOISE: f64 = 0.0025;

pub(super) fn dot(a: &Vec3, b: &Vec3) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
