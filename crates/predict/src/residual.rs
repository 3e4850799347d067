//! The residual of predictions: a factor for the mean, and one for the 90th percentile.

use serde::{Deserialize, Serialize};

/// The kind of wait that is predicted; each kind has errors of a different origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Regime {
    /// The request starts with the next step, or behind other prompts.
    #[default]
    Prefill,
    /// The request waits until a stream has ended.
    Slot,
    /// The response comes in one piece, so that the length of the output counts.
    Whole,
    /// The engine has nothing else to do. The residual of bursts says nothing of it, and every
    /// backend that gets no requests any more is predicted as idle.
    Idle,
}

const REGIMES: usize = 4;

/// The factors by which the mean and the 90th percentile differ from what the engine model
/// computes, per regime.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Factors(pub [RegimeFactors; REGIMES]);

/// The factors of one regime.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RegimeFactors {
    /// The factor for the mean.
    pub mean: f64,
    /// The factor for the 90th percentile.
    pub p90: f64,
}

impl RegimeFactors {
    const ONE: Self = Self { mean: 1.0, p90: 1.0 };
}

impl Factors {
    /// Returns the factors of a regime.
    #[inline]
    pub(crate) fn of(&self, regime: Regime) -> RegimeFactors {
        self.0.get(index(regime)).copied().unwrap_or(RegimeFactors::ONE)
    }
}

/// The rate at which the mean follows.
const RATE: f64 = 0.05;
/// The rate at which the mean of waits for a slot follows.
const SLOT_RATE: f64 = 0.02;
/// The rate at which the percentile follows.
const PERCENTILE_RATE: f64 = 0.02;
/// The rate at which the usual values follow mean and percentile.
const SLOW_RATE: f64 = 0.01;
/// The rate at which the mean error follows: about the last fifty.
const ERROR_RATE: f64 = 0.02;
/// The number of first tokens at which the mean follows half as fast as later.
const SLOW_START: f64 = 100.0;
/// The share of first tokens within the percentile.
const PERCENTILE: f64 = 0.9;
/// The logarithm of the largest factor: e^4, about 55.
const MAX_LOG_RATIO: f64 = 4.0;
/// The factor by which a first token must come later than its percentile, or earlier than its mean,
/// to be a surprise: its logarithm.
const SURPRISE: f64 = std::f64::consts::LN_2;
/// The number of surprises in a row that show that the engine has changed. First tokens that come
/// too early show it sooner: a backend that seems slow gets few.
const LATE_SURPRISES: f64 = 4.0;
const EARLY_SURPRISES: f64 = 2.0;
/// The rate at which the factors follow from then on.
const SURPRISED_RATE: f64 = 0.5;
/// The percentile before any first token was seen: 30 % above the mean.
const PRIOR_P90: f64 = 0.26;

/// The recent logarithm of truth / prediction, per regime.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Residual {
    bias: [f64; REGIMES],
    #[serde(rename = "percentile")]
    p90: [f64; REGIMES],
    #[serde(rename = "seen")]
    first_token_count: f64,
    /// The number of first tokens since the engine has changed; `None` if it has not.
    #[serde(rename = "since_change")]
    first_tokens_since_change: Option<f64>,
    /// Slow means of `bias` and `p90`; they stay while steps are learned again.
    #[serde(rename = "usual")]
    slow: [[f64; REGIMES]; 2],
    is_relearning: bool,
    /// The number of surprises in a row on the idle engine; negative if the first tokens came too
    /// early.
    #[serde(skip)]
    surprises: f64,
    /// The weights of all samples of a regime.
    #[serde(rename = "known")]
    weights: [f64; REGIMES],
    /// The share of first tokens within the 90th percentile (decayed).
    #[serde(rename = "covered")]
    coverage: f64,
    /// The mean absolute percentage error (decayed).
    error: f64,
}

impl Default for Residual {
    fn default() -> Self {
        Self {
            bias: [0.0; REGIMES],
            p90: [PRIOR_P90; REGIMES],
            first_token_count: 0.0,
            first_tokens_since_change: None,
            slow: [[0.0; REGIMES], [PRIOR_P90; REGIMES]],
            is_relearning: false,
            surprises: 0.0,
            weights: [0.0; REGIMES],
            coverage: PERCENTILE,
            error: 0.0,
        }
    }
}

fn index(regime: Regime) -> usize {
    match regime {
        Regime::Prefill => 0,
        Regime::Slot => 1,
        Regime::Whole => 2,
        Regime::Idle => 3,
    }
}

impl Residual {
    /// Returns the factors of all regimes.
    pub(crate) fn all_factors(&self) -> Factors {
        let all = [Regime::Prefill, Regime::Slot, Regime::Whole, Regime::Idle];
        Factors(all.map(|regime| self.factors(regime)))
    }

    /// Returns the factors for the mean and the 90th percentile of what the engine model computes.
    pub(crate) fn factors(&self, regime: Regime) -> RegimeFactors {
        let at = |values: &[f64; REGIMES]| values.get(index(regime)).copied().unwrap_or(0.0);
        let (bias, p90) = (at(&self.bias), at(&self.p90));
        RegimeFactors { mean: bias.exp(), p90: p90.max(bias).exp() }
    }

    /// Learns from a first token that came after `actual_us`, where the engine model had computed
    /// `raw_ttft_us`.
    pub(crate) fn learn(&mut self, regime: Regime, raw_ttft_us: f64, actual_us: f64) {
        if !(raw_ttft_us > 0.0 && actual_us > 0.0) {
            return;
        }
        let log_ratio = (actual_us / raw_ttft_us).ln().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
        let RegimeFactors { mean, p90 } = self.factors(regime);
        self.first_token_count += 1.0;
        if let Some(first_token_count) = &mut self.first_tokens_since_change {
            *first_token_count += 1.0;
        }
        let rate = (1.0 / self.first_token_count).max(0.005);
        let is_covered = f64::from(u8::from(actual_us <= raw_ttft_us * p90));
        self.coverage += rate * (is_covered - self.coverage);
        let error = (raw_ttft_us * mean / actual_us - 1.0).abs();
        self.error += rate.max(ERROR_RATE) * (error - self.error);
        self.update(regime, log_ratio, 1.0);
        if regime == Regime::Idle {
            self.follow_surprises(log_ratio);
        }
    }

    /// Learns from a first token of an engine that was idle, if it is a surprise even without the
    /// time that requests sent later explain: `actual_us` is the rest. A smaller difference may be
    /// theirs as well.
    pub(crate) fn learn_unexplained(&mut self, raw_ttft_us: f64, actual_us: f64) {
        let late_us = raw_ttft_us * self.factors(Regime::Idle).p90 * SURPRISE.exp();
        if actual_us > late_us {
            self.learn(Regime::Idle, raw_ttft_us, actual_us);
        }
    }

    /// Follows an idle engine whose first tokens have become much later or earlier, each by more
    /// than those before explain: the usual rates would take a hundred of them. Beside other
    /// requests, bursts explain it.
    fn follow_surprises(&mut self, log_ratio: f64) {
        let at = index(Regime::Idle);
        for (bias, p90) in self.bias.iter_mut().zip(&mut self.p90).skip(at).take(1) {
            self.surprises = if log_ratio > p90.max(*bias) + SURPRISE {
                self.surprises.max(0.0) + 1.0
            } else if log_ratio < *bias - SURPRISE {
                self.surprises.min(0.0) - 1.0
            } else {
                0.0
            };
            if self.surprises >= LATE_SURPRISES || self.surprises <= -EARLY_SURPRISES {
                *bias += SURPRISED_RATE * (log_ratio - *bias);
                *p90 += SURPRISED_RATE * (log_ratio + PRIOR_P90 - *p90);
            }
        }
    }

    /// Learns from a request that still waits after `elapsed_us`, longer than predicted: its wait
    /// will be `elapsed_us` at least. Call it each time that the wait has grown by half.
    pub(crate) fn learn_overrun(&mut self, regime: Regime, raw_ttft_us: f64, elapsed_us: f64) {
        if raw_ttft_us > 0.0 && elapsed_us > raw_ttft_us * self.factors(regime).mean {
            self.update(
                regime,
                (elapsed_us / raw_ttft_us).ln().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO),
                // Half the weight: the wait is a lower bound, and its first token will count again.
                0.5,
            );
        }
    }

    fn update(&mut self, regime: Regime, log_ratio: f64, weight: f64) {
        let at = index(regime);
        let total = self.weights.get_mut(at).map_or(0.0, |total| {
            *total += weight;
            *total
        });
        // The first labels are those of the shortest waits: those of long waits come late.
        let max_rate = if regime == Regime::Slot { SLOT_RATE } else { RATE };
        let rate = max_rate * weight * total / (total + SLOW_START);
        for bias in self.bias.iter_mut().skip(at).take(1) {
            *bias += rate * (log_ratio - *bias);
        }
        for p90 in self.p90.iter_mut().skip(at).take(1) {
            // The gradient of the pinball loss.
            let step = if log_ratio > *p90 { PERCENTILE } else { PERCENTILE - 1.0 };
            *p90 += PERCENTILE_RATE * weight * step;
        }
        if !self.is_relearning {
            self.follow_slowly(at, (weight / total.max(1.0)).max(weight * SLOW_RATE));
        }
    }

    fn follow_slowly(&mut self, at: usize, rate: f64) {
        for (slow, fast) in self.slow.iter_mut().zip([&self.bias, &self.p90]) {
            for (slow, fast) in slow.iter_mut().zip(fast).skip(at).take(1) {
                *slow += rate * (fast - *slow);
            }
        }
    }

    /// Notes that the engine has changed: what was right before says less.
    pub(crate) fn note_change(&mut self) {
        self.first_tokens_since_change = Some(0.0);
        self.is_relearning = true;
        [self.bias, self.p90] = self.slow;
    }

    /// Notes that the steps are learned again: they explain what the factors had to make up for
    /// meanwhile.
    pub(crate) fn note_relearned(&mut self) {
        self.is_relearning = false;
        [self.bias, self.p90] = self.slow;
    }

    /// Returns the number of first tokens since the engine has changed; infinite if it has not.
    pub(crate) fn first_tokens_since_change(&self) -> f64 {
        self.first_tokens_since_change.unwrap_or(f64::INFINITY)
    }

    /// Returns the number of first tokens that were learned from.
    pub(crate) fn first_token_count(&self) -> f64 {
        self.first_token_count
    }

    /// Returns the share of the last first tokens that came within the predicted 90th percentile.
    pub(crate) fn coverage(&self) -> f64 {
        self.coverage
    }

    /// Returns the natural logarithm of the mean factor of a regime.
    pub(crate) fn bias(&self, regime: Regime) -> f64 {
        self.bias.get(index(regime)).copied().unwrap_or(0.0)
    }

    /// Returns the mean absolute error of predictions, as a share of the truth.
    pub(crate) fn error(&self) -> f64 {
        self.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_and_percentile_are_found() {
        let mut residual = Residual::default();
        for n in 0..20_000_u32 {
            // Truth is 1.5 times the prediction, give or take a third.
            let noise = f64::from(n.wrapping_mul(2_654_435_761) >> 16) / 65_536.0;
            residual.learn(Regime::Prefill, 100.0, 150.0 * (0.67 + 0.66 * noise));
        }
        let RegimeFactors { mean, p90 } = residual.factors(Regime::Prefill);
        assert!((1.35..1.6).contains(&mean), "{mean}");
        assert!((1.8..2.05).contains(&p90), "{p90}");
        assert!((0.86..0.94).contains(&residual.coverage()), "{}", residual.coverage());
        assert_eq!(residual.factors(Regime::Slot).mean, 1.0);
    }

    #[test]
    fn requests_that_still_wait_teach_now() {
        let mut residual = Residual::default();
        for _ in 0..400 {
            residual.learn_overrun(Regime::Slot, 100.0, 300.0);
            residual.learn_overrun(Regime::Prefill, 100.0, 50.0);
        }
        assert!(residual.factors(Regime::Slot).mean > 2.5);
        assert_eq!(residual.factors(Regime::Prefill).mean, 1.0);
    }

    #[test]
    fn surprises_in_a_row_are_followed() {
        let mut residual = Residual::default();
        let late = |residual: &mut Residual, regime, count| {
            (0..count).for_each(|_| residual.learn(regime, 100.0, 1000.0));
            residual.factors(regime).mean
        };
        assert!(late(&mut residual, Regime::Idle, 3) < 1.1);
        residual.learn(Regime::Idle, 100.0, 100.0);
        assert!(late(&mut residual, Regime::Idle, 3) < 1.1, "not in a row");
        assert!(late(&mut residual, Regime::Idle, 4) > 5.0);
        assert!(residual.factors(Regime::Idle).p90 > residual.factors(Regime::Idle).mean);
        assert!(late(&mut residual, Regime::Prefill, 20) < 2.0, "bursts explain it");
    }
}
