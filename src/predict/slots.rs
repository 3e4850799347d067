//! How many requests an engine has in its batch at most, learned from requests that wait although little is before
//! them.

use super::residual::Regime;

/// By how much a wait has to exceed its prediction to show that the batch was full.
const TOO_LONG: f64 = 2.0;
/// The least such wait, in microseconds: below 50 ms networks and threads wait as well.
const LEAST_WAIT: f64 = 50_000.0;
/// How many such waits in a row show it.
const CONFIRMED: u32 = 3;
/// How long they are believed after the last such wait, in microseconds: 10 minutes. What is taken for a full batch and is none
/// keeps away the requests that would show it.
const BELIEVED: f64 = 600e6;
/// How far the numbers of streams during these waits may differ, and during one of them: in a full batch one starts when one
/// ends.
const SPREAD: f64 = 0.1;

/// Whether two numbers of streams are about the same.
fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= (SPREAD * one.max(other)).max(1.0)
}

/// A first token, and the streams beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Wait {
    /// What its prediction was about, and what was computed for it.
    pub(super) regime: Regime,
    pub(super) raw: f64,
    /// When it was sent, when it came, and how long a step takes.
    pub(super) sent_at: f64,
    pub(super) now: f64,
    pub(super) step: f64,
    /// The streams there when it was sent, and when it came.
    pub(super) before: f64,
    pub(super) streams: f64,
}

/// Learns the slots of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotLearner {
    found: f64,
    suspected: f64,
    times: u32,
    /// When the last wait ended that counted: those that began before are of the same overload.
    counted_at: f64,
}

impl Default for SlotLearner {
    fn default() -> Self {
        Self { found: f64::INFINITY, suspected: 0.0, times: 0, counted_at: f64::NEG_INFINITY }
    }
}

impl SlotLearner {
    /// A first token has come. Returns whether the slots are news.
    pub(super) fn learn(&mut self, wait: &Wait) -> bool {
        let Wait { regime, raw, sent_at, now, step, before, streams } = *wait;
        if regime != Regime::Prefill || streams < 1.0 {
            return false;
        }
        if now - sent_at < (TOO_LONG * raw + 4.0 * step).max(LEAST_WAIT) {
            self.times = 0;
            return false;
        }
        // Where the streams have become more meanwhile, it waited for their prompts.
        if !is_near(before, streams) || sent_at < self.counted_at {
            return false;
        }
        if !is_near(streams, self.suspected) {
            (self.suspected, self.times) = (streams, 0);
        }
        self.suspected = self.suspected.max(streams);
        self.counted_at = now;
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
    pub(super) fn saw(&mut self, streams: f64) -> bool {
        if streams <= self.found {
            return false;
        }
        // One more may be seen where the end of another one comes late; many more were no full batch.
        self.found = if is_near(streams, self.suspected + 1.0) { streams } else { f64::INFINITY };
        true
    }

    /// Forgets what no wait has shown for long. Returns whether the slots are news.
    pub(super) fn expire(&mut self, now: f64) -> bool {
        if self.found.is_infinite() || now <= self.counted_at.max(0.0) + BELIEVED {
            return false;
        }
        if self.counted_at == f64::NEG_INFINITY {
            // Found by an earlier process.
            self.counted_at = now;
            return false;
        }
        *self = Self::default();
        true
    }

    /// Earlier waits have shown so many.
    pub(super) fn found_before(&mut self, slots: f64) {
        (self.found, self.suspected) = (slots, slots - 1.0);
    }

    /// The slots; infinite while nothing shows them.
    pub fn found(&self) -> f64 {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait beside 31 streams that ends at `now`.
    fn wait(sent_at: f64, now: f64) -> Wait {
        let (regime, raw, step) = (Regime::Prefill, 50_000.0, 10_000.0);
        Wait { regime, raw, sent_at, now, step, before: 30.0, streams: 31.0 }
    }

    #[test]
    fn three_overloads_show_the_slots_and_more_streams_disprove_them() {
        let mut slots = SlotLearner::default();
        assert!(!slots.learn(&wait(0.0, 9e5)) && !slots.learn(&wait(1e6, 2e6)));
        assert!(!slots.learn(&wait(2.5e6, 2.56e6)), "not in a row");
        assert!(!slots.learn(&wait(3e6, 4e6)) && !slots.learn(&wait(4e6, 5e6)));
        assert!(!slots.learn(&wait(4.5e6, 5.5e6)), "the same overload");
        assert!(slots.learn(&wait(5e6, 6e6)));
        assert_eq!(slots.found(), 32.0);
        assert!(!slots.saw(32.0) && slots.saw(33.0));
        assert_eq!(slots.found(), 33.0);
        assert!(slots.saw(40.0));
        assert_eq!(slots.found(), f64::INFINITY);
    }

    #[test]
    fn short_waits_show_nothing() {
        let mut slots = SlotLearner::default();
        for n in 0..10 {
            let (at, raw, step) = (f64::from(n) * 1e6, 300.0, 10.0);
            assert!(!slots.learn(&Wait { raw, step, ..wait(at, at + 20_000.0) }));
        }
    }

    #[test]
    fn what_no_wait_shows_is_forgotten() {
        let mut slots = SlotLearner::default();
        (0..3_u32).for_each(|n| {
            slots.learn(&wait(f64::from(n) * 1e6, f64::from(n) * 1e6 + 9e5));
        });
        assert!(!slots.expire(500e6) && slots.found() == 32.0);
        assert!(slots.expire(700e6) && slots.found() == f64::INFINITY);
        slots.found_before(8.0);
        assert!(!slots.expire(5000e6) && !slots.expire(5500e6) && slots.found() == 8.0);
        assert!(slots.expire(5700e6));
    }

    #[test]
    fn waits_while_the_batch_grows_show_nothing() {
        let mut slots = SlotLearner::default();
        for n in 0..10 {
            let at = f64::from(n) * 1e6;
            assert!(!slots.learn(&Wait { before: 20.0, ..wait(at, at + 9e5) }));
        }
    }
}
