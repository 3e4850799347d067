//! Return times of refused requests: spread over the seconds in which they can be served. Otherwise
//! a refused burst would return as a burst and be refused again.

use std::collections::VecDeque;
use std::time::Duration;

use ahash::HashMap;
use parking_lot::Mutex;
use penstock_api::units::{Timestamp, whole_seconds};

/// The latest return, in seconds: SDKs do not wait for longer.
const LATEST: u64 = 120;
/// The most models whose returns are remembered; beyond that all are forgotten.
const MAX_MODELS: usize = 1024;

/// The returns of one model's requests.
#[derive(Debug, Default)]
struct Returns {
    /// The second since the start that the first entry of `taken` belongs to.
    first: u64,
    /// The taken share of each second's capacity.
    taken: VecDeque<f64>,
}

impl Returns {
    /// Takes a place in the first second with room, at least `least` seconds from now. Returns the
    /// seconds until then.
    fn take(&mut self, now: u64, least: u64, together: u32) -> u64 {
        while self.first < now && self.taken.pop_front().is_some() {
            self.first += 1;
        }
        if self.taken.is_empty() {
            self.first = now;
        }
        let share = 1.0 / f64::from(together.max(1));
        for wait in least..LATEST {
            let index = usize::try_from(now + wait - self.first).unwrap_or(usize::MAX);
            while self.taken.len() <= index {
                self.taken.push_back(0.0);
            }
            if let Some(taken) = self.taken.get_mut(index)
                // Shares such as 1/3 do not add up to exactly 1.
                && *taken + share <= 1.0 + f64::EPSILON * 64.0
            {
                *taken += share;
                return wait;
            }
        }
        LATEST
    }
}

/// The returns of all models.
#[derive(Debug, Default)]
pub struct ReturnTimes {
    models: Mutex<HashMap<Box<str>, Returns>>,
}

impl ReturnTimes {
    /// The `Retry-After` of a refused request: whole seconds, at least `wait`. `together` is the
    /// number of such requests that could be served together then.
    pub fn after(&self, model: &str, wait: Duration, together: u32, now: Timestamp) -> Duration {
        let least = whole_seconds(wait).as_secs();
        let mut models = self.models.lock();
        if models.len() >= MAX_MODELS && !models.contains_key(model) {
            models.clear();
        }
        let returns = models.entry(model.into()).or_default();
        Duration::from_secs(returns.take(now.0 / 1_000_000, least.max(1), together))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    #[test]
    fn retry_after_spreads_a_burst() {
        let times = ReturnTimes::default();
        let after = |wait, now| times.after("m", Duration::from_millis(wait), 3, at(now)).as_secs();
        let waits: Vec<u64> = (0..8).map(|_| after(700, 10)).collect();
        assert_eq!(waits, [1, 1, 1, 2, 2, 2, 3, 3]);
        assert_eq!(after(2500, 10), 3, "one is left there");
        assert_eq!((after(0, 11), after(0, 12)), (3, 2), "the seconds 12 and 13 are full");
        assert_eq!(after(0, 100), 1);
        assert_eq!(times.after("other", Duration::ZERO, 0, at(100)).as_secs(), 1);
    }

    #[test]
    fn returns_and_models_are_bounded() {
        let times = ReturnTimes::default();
        let latest = (0..500).map(|_| times.after("m", Duration::ZERO, 1, at(0))).max();
        assert_eq!(latest, Some(Duration::from_secs(120)));
        for model in 0..3000 {
            times.after(&model.to_string(), Duration::ZERO, 1, at(0));
        }
        assert!(times.models.lock().len() <= MAX_MODELS);
    }
}
