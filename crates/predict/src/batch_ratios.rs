//! The steps of small batches in relation to the line that the regression finds.

use serde::{Deserialize, Serialize};

/// The number of batch sizes with a ratio, from one request on. Some engines compute small batches
/// in another way: llama.cpp computes requests apart whose slots are not neighbours. Of four slots
/// that is every second batch of three, and none of four.
const BATCHES: usize = 8;
/// The largest ratio, and the inverse of the least.
const MAX_RATIO: f64 = 1.5;
/// The prior: the number of steps that count as if they were on the line.
const PRIOR_STEPS: f64 = 50.0;
/// The number of last steps of a batch size that count.
const MAX_STEPS: f64 = 300.0;
/// The value that stands for a ratio of 1, the line itself.
const UNIT: u8 = 128;

/// The time of a step in relation to the line, for batches of one request, of two, and so on: in
/// units of 1/128, so that all are read as one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRatios([u8; BATCHES]);

impl Default for BatchRatios {
    fn default() -> Self {
        Self::ON_THE_LINE
    }
}

impl BatchRatios {
    /// The ratios of an engine whose batches are all on the line.
    pub(crate) const ON_THE_LINE: Self = Self([UNIT; BATCHES]);

    /// Returns the ratio of a batch of `decodes` requests.
    #[inline(always)]
    pub(crate) fn of(&self, decodes: f64) -> f64 {
        let parts = index(decodes).and_then(|at| self.0.get(at)).copied().unwrap_or(UNIT);
        f64::from(parts) * (1.0 / f64::from(UNIT))
    }

    /// Returns all ratios, in order.
    pub fn all(&self) -> [f64; BATCHES] {
        self.0.map(|parts| f64::from(parts) / f64::from(UNIT))
    }

    #[inline(always)]
    pub(super) fn from_bits(bits: u64) -> Self {
        // In the order of this machine: the number never leaves the process.
        Self(bits.to_ne_bytes())
    }

    pub(super) fn to_bits(self) -> u64 {
        u64::from_ne_bytes(self.0)
    }
}

/// Returns the index of the ratio of a batch; `None` for an empty one.
#[inline(always)]
fn index(decodes: f64) -> Option<usize> {
    usize::from(rounded(decodes)).checked_sub(1)
}

/// Returns the nearest value of the type.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn rounded(value: f64) -> u8 {
    (value + 0.5) as u8
}

/// Learns the ratios, as means over the last steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct BatchRatioLearner {
    ratios: [f64; BATCHES],
    steps: [f64; BATCHES],
}

impl Default for BatchRatioLearner {
    fn default() -> Self {
        Self { ratios: [1.0; BATCHES], steps: [0.0; BATCHES] }
    }
}

impl BatchRatioLearner {
    /// Learns that `steps` steps of a batch took `ratio` times as long as the line says.
    pub(super) fn learn(&mut self, decodes: f64, ratio: f64, steps: f64) {
        let Some(at) = index(decodes) else { return };
        for (mean, known) in self.ratios.iter_mut().zip(&mut self.steps).skip(at).take(1) {
            *known = (*known + steps).min(MAX_STEPS);
            // Bounded, because more steps than the mean counts must not overshoot the sample.
            *mean += (steps / *known).min(1.0) * (ratio - *mean);
        }
    }

    /// Returns the learned ratios.
    pub(super) fn ratios(&self) -> BatchRatios {
        let mut ratios = BatchRatios::default();
        for ((parts, mean), known) in ratios.0.iter_mut().zip(&self.ratios).zip(&self.steps) {
            let ratio = (mean * known + PRIOR_STEPS) / (known + PRIOR_STEPS);
            *parts = rounded(ratio.clamp(1.0 / MAX_RATIO, MAX_RATIO) * f64::from(UNIT));
        }
        ratios
    }
}
