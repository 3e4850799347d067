//! What lies before an engine that requests wait for side by side: the gateway and the queue of a hosted API, a network far
//! away. The steps do not show it, and no request makes another one wait longer for it.

/// Requests that count: the last ones.
const REMEMBERED: usize = 32;
/// Requests below which nothing is known.
const LEAST: usize = 8;
/// The share of the requests that wait for less than it.
const SHORTEST: f64 = 0.2;
/// The share of the whole wait that it is at least. What is below that may as well be a wrong cost of prompts.
const LEAST_SHARE: f64 = 0.5;
/// The share of a wait that the steps of the streams beside it take at least: they go on, so the engine computes nothing else.
const STEPS_GO_ON: f64 = 0.75;
/// The step that runs when a request comes, and the one that computes its prompt.
const OWN_STEPS: f64 = 2.0;
/// The share of the most streams ever seen up to which no request waits for a slot.
const NO_FULL_BATCH: f64 = 0.9;

/// A first token, as far as it shows what lies before the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FirstWait {
    /// How long it took.
    pub(super) took: f64,
    /// How long a step takes that computes no prompt, and how many ended meanwhile.
    pub(super) step: f64,
    pub(super) steps: f64,
    /// Streams that are there now, this one among them, and the most that the engine has had.
    pub(super) streams: f64,
    pub(super) most_streams: f64,
}

/// Finds the front end by requests that waited although the streams beside them went on.
#[derive(Debug, Clone, Default)]
pub(super) struct FrontEnd {
    /// What the last ones waited before their own steps, and as a whole.
    waits: [(f64, f64); REMEMBERED],
    seen: usize,
}

impl FrontEnd {
    /// A first token has come. Returns how long the front end takes, where that is most of what requests wait for.
    pub(super) fn learn(&mut self, wait: &FirstWait) -> Option<f64> {
        let FirstWait { took, step, steps, streams, most_streams } = *wait;
        let meanwhile = steps * step;
        if meanwhile < STEPS_GO_ON * took || streams > NO_FULL_BATCH * most_streams {
            return None;
        }
        let at = self.seen % REMEMBERED;
        let before = meanwhile.min(took) - OWN_STEPS * step;
        self.waits.iter_mut().skip(at).take(1).for_each(|one| *one = (before, took));
        self.seen += 1;
        let mut waits = self.waits;
        let known = waits.get_mut(..self.seen.min(REMEMBERED))?;
        let before = quantile(known, SHORTEST, |wait| wait.0);
        let whole = quantile(known, 0.5, |wait| wait.1);
        Some(before).filter(|_| self.seen >= LEAST && before >= LEAST_SHARE * whole)
    }
}

/// The value below which that share of the others is; there is one at least.
fn quantile(waits: &mut [(f64, f64)], share: f64, of: impl Fn(&(f64, f64)) -> f64) -> f64 {
    let place = crate::units::floor_index(share * waits.len() as f64);
    let by_value = |one: &(f64, f64), other: &(f64, f64)| of(one).total_cmp(&of(other));
    of(waits.select_nth_unstable_by(place, by_value).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 20 steps of 20 ms.
    const WAIT: FirstWait =
        FirstWait { took: 400.0, step: 20.0, steps: 20.0, streams: 4.0, most_streams: 8.0 };

    fn found(waits: impl Iterator<Item = FirstWait>) -> Option<f64> {
        let mut front_end = FrontEnd::default();
        waits.map(|wait| front_end.learn(&wait)).last().flatten()
    }

    #[test]
    fn most_of_the_wait_is_found_from_eight_requests_on() {
        assert_eq!(found((0..7).map(|_| WAIT)), None);
        assert_eq!(found((0..8).map(|_| WAIT)), Some(360.0));
        // What one of five waits for less is the front end; the rest varies.
        let waits = (0..40_u32).map(|n| {
            let steps = f64::from(20 + n % 10);
            FirstWait { steps, took: steps * 20.0, ..WAIT }
        });
        assert!((360.0..=420.0).contains(&found(waits).unwrap()));
    }

    #[test]
    fn engines_that_compute_prompts_have_none() {
        // Steps are ten times as long meanwhile.
        assert_eq!(found((0..40).map(|_| FirstWait { steps: 2.0, ..WAIT })), None);
        // The step that runs, and one more.
        let short = FirstWait { took: 35.0, steps: 2.0, ..WAIT };
        assert_eq!(found((0..40).map(|_| short)), None);
        // A full batch: requests wait for a slot.
        assert_eq!(found((0..40).map(|_| FirstWait { streams: 8.0, ..WAIT })), None);
    }

    #[test]
    fn requests_that_no_longer_wait_end_it() {
        let short = FirstWait { took: 35.0, steps: 2.0, ..WAIT };
        assert_eq!(found((0..40).map(|n| if n < 30 { WAIT } else { short })), None);
    }
}
