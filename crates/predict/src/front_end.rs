//! The front end: requests wait side by side before an engine, in the gateway and the queue of a
//! hosted API or on a network far away. No request makes another one wait longer there, so it shows
//! in waits that do not grow with the prompts ahead, and beside which the streams go on.

/// The number of last requests that count.
const REMEMBERED: usize = 32;
/// The number of requests below which nothing is known.
const LEAST: usize = 8;
/// The share of the requests that wait for less than the front end.
const SHORTEST: f64 = 0.2;
/// The least share of the median wait that the front end takes. Less may as well be a wrong cost of
/// prompts.
const LEAST_SHARE: f64 = 0.5;
/// The least share of the time beside streams that their steps take: they go on, so the engine
/// computes nothing else.
const STEPS_GO_ON: f64 = 0.75;
/// The number of steps of a request: the one that runs when it comes, and the one that computes its
/// prompt.
const OWN_STEPS: f64 = 2.0;
/// The share of the most streams ever seen up to which no request waits for a slot.
const NO_FULL_BATCH: f64 = 0.9;

/// The number of requests over which the shortest wait is taken, and of those before them: it
/// bounds the front end, however long the others waited.
const COMPARED: usize = 64;

/// A first token, as it shows what lies before the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FirstWait {
    /// The time to the first token.
    pub(super) took: f64,
    /// The time that its own prompt takes, as far as is known.
    pub(super) own: f64,
    pub(super) ahead: Ahead,
    /// The duration of a step that computes no prompt.
    pub(super) step: f64,
    /// The number of streams that are there now, this one among them, and the most that the engine
    /// has had.
    pub(super) streams: f64,
    pub(super) most_streams: f64,
}

/// The time in which streams were observed, and the time that the steps in it take without prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Watched {
    time: f64,
    steps: f64,
}

/// The load before a request when it was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Ahead {
    /// The tokens of the prompts without a first token, its own among them.
    tokens: f64,
    watched: Watched,
}

/// The tokens of prompts ahead, and the time to the first token.
type Point = (f64, f64);

/// Finds the front end as the part of the wait that does not depend on the prompts ahead.
#[derive(Debug, Clone, Default)]
pub(super) struct FrontEnd {
    waits: [Point; REMEMBERED],
    seen: usize,
    watched: Watched,
    shortest: Shortest,
}

/// The shortest waits of the last [`COMPARED`] requests, and of those before them.
#[derive(Debug, Clone, Default)]
struct Shortest {
    now: Option<f64>,
    before: Option<f64>,
    seen: usize,
}

impl Shortest {
    /// Adds a wait. Returns the shortest one.
    fn add(&mut self, took: f64) -> f64 {
        if self.seen >= COMPARED {
            (self.before, self.now, self.seen) = (self.now, None, 0);
        }
        self.seen += 1;
        let now = self.now.map_or(took, |shortest| shortest.min(took));
        self.now = Some(now);
        self.before.map_or(now, |before| before.min(now))
    }
}

impl FrontEnd {
    /// Records that steps have ended beside streams, `gap` after those before. Without prompts they
    /// take `steps`.
    pub(super) fn steps_ended(&mut self, gap: f64, steps: f64) {
        self.watched.time += gap;
        self.watched.steps += steps;
    }

    /// Returns the load before a request that is sent now. `tokens` counts the prompts without a
    /// first token, its own among them.
    pub(super) fn ahead(&self, tokens: f64) -> Ahead {
        Ahead { tokens, watched: self.watched }
    }

    /// Learns from a first token. Returns the time of the front end, if that is most of what
    /// requests wait for.
    pub(super) fn learn(&mut self, wait: &FirstWait) -> Option<f64> {
        let FirstWait { took, own, ahead, step, streams, most_streams } = *wait;
        let Ahead { tokens, watched } = ahead;
        let shortest = self.shortest.add((took - own).max(0.0));
        let steps = self.watched.steps - watched.steps;
        let go_on = steps >= STEPS_GO_ON * (self.watched.time - watched.time);
        if !go_on || streams > NO_FULL_BATCH * most_streams {
            return None;
        }
        let at = self.seen % REMEMBERED;
        self.waits.iter_mut().skip(at).take(1).for_each(|one| *one = (tokens, took));
        self.seen += 1;
        let mut waits = self.waits;
        let known = waits.get_mut(..self.seen.min(REMEMBERED))?;
        if known.len() < LEAST {
            return None;
        }
        let per_token = slope(known);
        let before = quantile(known, SHORTEST, |(ahead, took)| took - per_token * ahead);
        // A burst behind a full batch waits like requests before a front end: the shortest wait is
        // the bound.
        let before = (before - OWN_STEPS * step).min((shortest - step).max(0.0));
        Some(before).filter(|_| before >= LEAST_SHARE * quantile(known, 0.5, |(_, took)| took))
    }
}

/// Returns the growth of the wait per token ahead: between the medians of the requests with fewer
/// and with more of them, which a single stall does not change. Source: Brown and Mood, "On median
/// tests for linear hypotheses" (1951).
fn slope(waits: &mut [Point]) -> f64 {
    waits.sort_unstable_by(|(one, _), (other, _)| one.total_cmp(other));
    let (fewer, more) = waits.split_at_mut(waits.len() / 2);
    let medians = |half: &mut [Point]| {
        (quantile(half, 0.5, |(ahead, _)| ahead), quantile(half, 0.5, |(_, took)| took))
    };
    let ((fewer, soon), (more, late)) = (medians(fewer), medians(more));
    if more > fewer { ((late - soon) / (more - fewer)).max(0.0) } else { 0.0 }
}

/// Returns the quantile `share` of the values that `of` takes of waits; there is one at least.
fn quantile(waits: &mut [Point], share: f64, of: impl Fn(Point) -> f64) -> f64 {
    let place = penstock_api::units::floor_index(share * waits.len() as f64);
    let by_value = |one: &Point, other: &Point| of(*one).total_cmp(&of(*other));
    of(*waits.select_nth_unstable_by(place, by_value).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn behind(tokens: f64) -> Ahead {
        Ahead { tokens, watched: Watched { time: 0.0, steps: 0.0 } }
    }

    const WAIT: FirstWait = FirstWait {
        took: 400.0,
        own: 0.0,
        ahead: behind(100.0),
        step: 20.0,
        streams: 4.0,
        most_streams: 8.0,
    };

    fn found(waits: impl Iterator<Item = FirstWait>) -> Option<f64> {
        let mut front_end = FrontEnd::default();
        waits.map(|wait| front_end.learn(&wait)).last().flatten()
    }

    #[test]
    fn most_of_the_wait_is_found_from_eight_requests_on() {
        assert_eq!(found((0..7).map(|_| WAIT)), None);
        assert_eq!(found((0..8).map(|_| WAIT)), Some(360.0));
        // One of five waits for less than the front end; the rest varies, and grows with the
        // prompts ahead.
        let waits = (0..40_u32).map(|n| {
            let ahead = f64::from(n * 7 % 30) * 10.0;
            FirstWait {
                took: 400.0 + f64::from(n % 10) + ahead * 0.5,
                ahead: behind(ahead),
                ..WAIT
            }
        });
        assert!((350.0..=370.0).contains(&found(waits).unwrap()));
    }

    #[test]
    fn engines_that_compute_prompts_have_none() {
        let by_prompts = |n: u32| f64::from(n * 7 % 30 + 1) * 100.0;
        let waits = (0..40).map(|n| FirstWait {
            took: 40.0 + by_prompts(n) * 0.5,
            ahead: behind(by_prompts(n)),
            ..WAIT
        });
        assert_eq!(found(waits), None);
        // The step that runs, and one more.
        assert_eq!(found((0..40).map(|_| FirstWait { took: 35.0, ..WAIT })), None);
        // A full batch: requests wait for a slot.
        assert_eq!(found((0..40).map(|_| FirstWait { streams: 8.0, ..WAIT })), None);
    }

    /// An engine that computes the prompts of others.
    #[test]
    fn streams_that_stand_still_meanwhile_show_none() {
        for (steps, expected) in [(100.0, None), (390.0, Some(360.0))] {
            let mut front_end = FrontEnd::default();
            let waits = (0..20).map(|_| {
                let ahead = front_end.ahead(100.0);
                front_end.steps_ended(400.0, steps);
                front_end.learn(&FirstWait { ahead, ..WAIT })
            });
            assert_eq!(waits.last().flatten(), expected, "{steps}");
        }
    }

    #[test]
    fn a_stall_is_no_front_end() {
        let waits = (0..40_u32).map(|n| {
            let ahead = f64::from(n % 10 + 1) * 500.0;
            let took = if n % 8 == 0 { 5_000.0 } else { 40.0 + ahead * 0.2 };
            FirstWait { took, ahead: behind(ahead), ..WAIT }
        });
        assert_eq!(found(waits), None);
    }

    #[test]
    fn requests_that_no_longer_wait_end_it() {
        let short = FirstWait { took: 35.0, ..WAIT };
        assert_eq!(found((0..40).map(|n| if n < 30 { WAIT } else { short })), None);
    }
}
