//! How many requests an engine has in its batch at most, learned from requests that wait although little is before
//! them.

use super::residual::Regime;

/// By how much a wait has to exceed its prediction to show that the batch was full.
const TOO_LONG: f64 = 2.0;
/// How many such waits in a row show it.
const CONFIRMED: u32 = 3;
/// How far the numbers of streams during these waits may differ.
const SPREAD: f64 = 0.1;

/// Learns the slots of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotLearner {
    found: f64,
    suspected: f64,
    times: u32,
}

impl Default for SlotLearner {
    fn default() -> Self {
        Self { found: f64::INFINITY, suspected: 0.0, times: 0 }
    }
}

impl SlotLearner {
    /// A first token came after `took`, where `raw` was computed, beside so many streams. Returns whether the slots are
    /// news.
    pub fn learn(&mut self, regime: Regime, took: f64, raw: f64, step: f64, streams: f64) -> bool {
        if regime != Regime::Prefill || streams < 1.0 {
            return false;
        }
        if took < TOO_LONG * raw + 4.0 * step {
            self.times = 0;
            return false;
        }
        if (streams / self.suspected.max(1.0) - 1.0).abs() > SPREAD {
            (self.suspected, self.times) = (streams, 0);
        }
        self.suspected = self.suspected.max(streams);
        self.times += 1;
        if self.times < CONFIRMED {
            return false;
        }
        self.times = 0;
        // The stream that started then is one of them.
        self.found = self.suspected + 1.0;
        true
    }

    /// So many streams run beside each other. Returns whether that is more than it had found.
    pub fn saw(&mut self, streams: f64) -> bool {
        if streams <= self.found {
            return false;
        }
        self.found = streams;
        true
    }

    /// Earlier waits have shown so many.
    pub(super) fn found_before(&mut self, slots: f64) {
        self.found = slots;
    }

    /// The slots; infinite while nothing shows them.
    pub fn found(&self) -> f64 {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_overloads_show_the_slots_and_more_streams_disprove_them() {
        let mut slots = SlotLearner::default();
        let learn = |slots: &mut SlotLearner, took| {
            slots.learn(Regime::Prefill, took, 50_000.0, 10_000.0, 31.0)
        };
        assert!(!learn(&mut slots, 900_000.0) && !learn(&mut slots, 700_000.0));
        assert!(!learn(&mut slots, 60_000.0), "not in a row");
        assert!(!learn(&mut slots, 900_000.0) && !learn(&mut slots, 900_000.0));
        assert!(learn(&mut slots, 700_000.0));
        assert_eq!(slots.found(), 32.0);
        assert!(!slots.saw(32.0) && slots.saw(40.0));
        assert_eq!(slots.found(), 40.0);
    }
}
