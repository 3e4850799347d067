//! Pauses of an engine that goes on afterwards: its CPU time has a quota, or other processes share
//! its GPU. They come at any time, so that they lengthen all work alike.

/// The least gap between tokens that is a pause, in expected gaps.
const MIN_GAPS: f64 = 4.0;
/// The most long gaps in a row that are pauses: between two an engine may end one step only.
const MAX_RUN: u32 = 2;
/// The longest pause that counts, in microseconds: 200 ms, twice the period of a CPU quota in
/// Linux. One garbage collection or network fault must not pass for a slow engine.
const MAX_PAUSE_US: f64 = 200e3;
/// The observed time in which what was learned decays to 1/e: 5 s.
const DECAY_US: f64 = 5e6;
/// The prior: the observed time that counts as if it had no pause, 0.2 s.
const PRIOR_US: f64 = 0.2e6;
/// The factor of the known requests that an engine must exceed to have requests of others.
const KNOWN_FACTOR: f64 = 1.1;
/// The number of requests by which it must exceed that product.
const KNOWN_MARGIN: f64 = 0.5;
/// The rate at which the share of reports with requests of others follows.
const REPORT_RATE: f64 = 0.1;
/// The largest such share beside which pauses are learned.
const MAX_OTHERS_SHARE: f64 = 0.2;
/// The least factor by which pauses are looked for beside prompts.
const MIN_FACTOR: f64 = 1.2;
/// The largest share of pauses in the time.
const MAX_SHARE: f64 = 0.75;

/// The effect of pauses on work that starts at any time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pauses {
    /// The factor by which work takes longer.
    pub factor: f64,
    /// The mean rest of a pause that goes on when work arrives, in microseconds: pauses that go on
    /// at any time count by their lengths (Pollaczek and Khinchine).
    pub rest_us: f64,
}

impl Default for Pauses {
    /// Returns no pauses.
    fn default() -> Self {
        Self { factor: 1.0, rest_us: 0.0 }
    }
}

/// Learns pauses from the gaps between tokens. The sums decay with the observed time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PauseLearner {
    observed_us: f64,
    paused_us: f64,
    /// The sum of the squares of pauses.
    squared: f64,
    /// The number of long gaps in a row up to now, and the sums of their pauses.
    run: u32,
    run_us: f64,
    run_squared: f64,
    /// The recent share of reports in which the engine had requests of others.
    others_share: f64,
}

impl PauseLearner {
    /// Notes that the engine reports `reported_count` requests, of which `known_count` are known
    /// here: prompts of others look like pauses.
    pub(super) fn note_requests(&mut self, reported_count: f64, known_count: f64) {
        let has_others = reported_count > known_count * KNOWN_FACTOR + KNOWN_MARGIN;
        self.others_share += REPORT_RATE * (f64::from(u8::from(has_others)) - self.others_share);
        if self.has_others() {
            *self = Self { others_share: self.others_share, ..Self::default() };
        }
    }

    fn has_others(&self) -> bool {
        self.others_share > MAX_OTHERS_SHARE
    }

    /// Learns from a gap without prompts that was expected to take `expected_us`. Returns the
    /// pause in it, in microseconds.
    pub(super) fn learn(&mut self, gap_us: f64, expected_us: f64) -> f64 {
        if self.has_others() || !(expected_us > 0.0 && gap_us.is_finite() && gap_us > 0.0) {
            return 0.0;
        }
        let observed_us = gap_us.min(expected_us + MAX_PAUSE_US);
        let kept = (-observed_us / DECAY_US).exp();
        self.observed_us = self.observed_us * kept + observed_us;
        (self.paused_us, self.squared) = (self.paused_us * kept, self.squared * kept);
        if gap_us < MIN_GAPS * expected_us {
            // The engine goes on as before: those were pauses.
            self.paused_us += self.run_us;
            self.squared += self.run_squared;
            (self.run, self.run_us, self.run_squared) = (0, 0.0, 0.0);
            return 0.0;
        }
        self.run = self.run.saturating_add(1);
        if self.run > MAX_RUN {
            // The engine has become slow, or computes a long prompt that is not known here.
            (self.run_us, self.run_squared) = (0.0, 0.0);
            return 0.0;
        }
        let pause_us = (gap_us - expected_us).min(MAX_PAUSE_US);
        self.run_us += pause_us;
        self.run_squared += pause_us * pause_us;
        pause_us
    }

    /// Returns the pause in a gap in which prompts may have been computed, in microseconds. It
    /// exists only where gaps without prompts have shown pauses: what prompts take is uncertain.
    pub(super) fn pause_beside_prompts(&self, gap_us: f64, expected_us: f64) -> f64 {
        if gap_us < MIN_GAPS * expected_us || self.pauses().factor < MIN_FACTOR {
            return 0.0;
        }
        // The mean of pauses, by their lengths.
        (gap_us - expected_us).min(self.squared / self.paused_us.max(1.0))
    }

    /// Returns the pauses.
    pub(super) fn pauses(&self) -> Pauses {
        let time_us = self.observed_us + PRIOR_US;
        let share = (self.paused_us / time_us).min(MAX_SHARE);
        Pauses { factor: 1.0 / (1.0 - share), rest_us: self.squared / (2.0 * time_us) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_steps_are_found() {
        let mut learner = PauseLearner::default();
        assert_eq!(learner.pauses(), Pauses::default());
        for n in 0..2_000 {
            let pause_us = if n % 10 == 9 { 100e3 } else { 0.0 };
            assert_eq!(learner.learn(5e3 + pause_us, 5e3), pause_us);
        }
        // 100 of each 150 ms.
        let Pauses { factor, rest_us } = learner.pauses();
        assert!((2.6..3.2).contains(&factor), "{factor}");
        assert!((28e3..36e3).contains(&rest_us), "{rest_us}");
        (0..3_000).for_each(|_| _ = learner.learn(5e3, 5e3));
        assert!(learner.pauses().factor < 1.2);
    }

    #[test]
    fn an_engine_that_has_become_slow_does_not_pause() {
        let mut learner = PauseLearner::default();
        let paused_us: f64 = (0..100).map(|_| learner.learn(30e3, 5e3)).sum();
        assert!(paused_us < 100e3, "{paused_us}");
        assert_eq!(learner.pauses(), Pauses::default());
    }

    #[test]
    fn one_long_pause_counts_little() {
        let mut learner = PauseLearner::default();
        (0..500).for_each(|_| _ = learner.learn(10e3, 10e3));
        learner.learn(5e6, 10e3);
        assert!(learner.pauses().factor < 1.1, "{:?}", learner.pauses());
    }
}
