//! The fill level of a batch at which its streams meet their objectives for the time per token.

/// The share of an objective up to which a batch is filled at first.
const INITIAL_SHARE: f64 = 0.9;
/// The amount by which the share rises with each stream that meets its objective.
const STEP_UP: f64 = 0.000_2;
/// The amount by which it falls with each stream that misses its objective: in balance 2 % do.
const STEP_DOWN: f64 = 0.01;
/// The bounds of the share.
const MIN_SHARE: f64 = 0.75;
const MAX_SHARE: f64 = 1.1;
/// The range of predictions, as a share of the objective, of the streams that count: other
/// predictions say nothing of the limit.
const COUNTED_PREDICTIONS: std::ops::RangeInclusive<f64> = 0.75..=1.3;
/// The number of tokens below which the time per token is noise.
const MIN_TOKENS: f64 = 8.0;

/// The share of an objective for the time per token that a prediction may reach before a batch is
/// full. Prompts that come later lengthen the steps of a stream. The room that they need depends on
/// the traffic: equal chats can fill a batch up to the objective, long prompts that come in bursts
/// only up to 80 % of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BatchShareLearner(f64);

impl Default for BatchShareLearner {
    fn default() -> Self {
        Self(INITIAL_SHARE)
    }
}

impl BatchShareLearner {
    /// Learns from a stream of `tokens` tokens: its objective, its predicted and its actual time
    /// per token.
    pub(super) fn learn(
        &mut self,
        objective_us: f64,
        predicted_us: f64,
        actual_us: f64,
        tokens: f64,
    ) {
        if tokens < MIN_TOKENS || !COUNTED_PREDICTIONS.contains(&(predicted_us / objective_us)) {
            return;
        }
        let change = if actual_us > objective_us { -STEP_DOWN } else { STEP_UP };
        self.0 = (self.0 + change).clamp(MIN_SHARE, MAX_SHARE);
    }

    pub(super) fn get(self) -> f64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_share_follows_the_miss_rate() {
        let settled = |late: u32| {
            let mut share = BatchShareLearner::default();
            for n in 0..20_000_u32 {
                let actual = if n % 100 < late { 51.0 } else { 49.0 };
                share.learn(50.0, 45.0, actual, 100.0);
            }
            share.get()
        };
        assert!(settled(0) == MAX_SHARE && settled(1) > 1.08 && settled(10) < 0.78);
        let mut share = BatchShareLearner::default();
        share.learn(50.0, 20.0, 60.0, 100.0);
        share.learn(50.0, 45.0, 60.0, 4.0);
        assert_eq!(share.get(), INITIAL_SHARE, "far from the limit, or too short");
    }
}
