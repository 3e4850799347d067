//! The front end: requests wait side by side before an engine, in the gateway and the queue of a
//! hosted API or on a network far away. No request makes another one wait longer there, so it shows
//! in waits that do not grow with the prompts ahead, and beside which the streams go on.

/// The number of last requests that count.
const MAX_WAITS: usize = 32;
/// The number of requests below which nothing is known.
const MIN_WAITS: usize = 8;
/// The share of the requests that wait for less than the front end.
const SHORT_QUANTILE: f64 = 0.2;
/// The least share of the median wait that the front end takes. Less may as well be a wrong cost of
/// prompts.
const MIN_SHARE: f64 = 0.5;
/// The least share of the time beside streams that their steps take: they go on, so the engine
/// computes nothing else.
const MIN_STEPS_SHARE: f64 = 0.75;
/// The number of steps of a request: the one that runs when it comes, and the one that computes its
/// prompt.
const OWN_STEPS: f64 = 2.0;
/// The share of the most streams ever seen up to which no request waits for a slot.
const MAX_BATCH_SHARE: f64 = 0.9;

/// The number of requests over which the shortest wait is taken, and of those before them: it
/// bounds the front end, however long the others waited.
const WINDOW_REQUESTS: usize = 64;

/// A first token, as it shows what lies before the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FirstWait {
    /// The time to the first token.
    pub(super) ttft_us: f64,
    /// The time that its own prompt takes, as far as is known.
    pub(super) own_prefill_us: f64,
    pub(super) ahead: Ahead,
    /// The duration of a step that computes no prompt.
    pub(super) step_us: f64,
    /// The number of streams that are there now, this one among them, and the most that the engine
    /// has had.
    pub(super) stream_count: f64,
    pub(super) max_stream_count: f64,
}

/// The time in which streams were observed, and the time that the steps in it take without prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Observed {
    time_us: f64,
    steps_us: f64,
}

/// The load before a request when it was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Ahead {
    /// The tokens of the prompts without a first token, its own among them.
    tokens: f64,
    observed: Observed,
}

/// The tokens of prompts ahead, and the time to the first token.
type TtftPoint = (f64, f64);

/// Finds the front end as the part of the wait that does not depend on the prompts ahead.
#[derive(Debug, Clone, Default)]
pub(super) struct FrontEndLearner {
    waits: [TtftPoint; MAX_WAITS],
    wait_count: usize,
    observed: Observed,
    shortest: Shortest,
}

/// The shortest waits of the last [`WINDOW_REQUESTS`] requests, and of those before them.
#[derive(Debug, Clone, Default)]
struct Shortest {
    current_us: Option<f64>,
    previous_us: Option<f64>,
    wait_count: usize,
}

impl Shortest {
    /// Adds a wait. Returns the shortest one.
    fn add(&mut self, wait_us: f64) -> f64 {
        if self.wait_count >= WINDOW_REQUESTS {
            (self.previous_us, self.current_us, self.wait_count) = (self.current_us, None, 0);
        }
        self.wait_count += 1;
        let current_us = self.current_us.map_or(wait_us, |shortest| shortest.min(wait_us));
        self.current_us = Some(current_us);
        self.previous_us.map_or(current_us, |previous| previous.min(current_us))
    }
}

impl FrontEndLearner {
    /// Records that steps have ended beside streams, `gap_us` after those before. Without prompts
    /// they take `steps_us`.
    pub(super) fn steps_ended(&mut self, gap_us: f64, steps_us: f64) {
        self.observed.time_us += gap_us;
        self.observed.steps_us += steps_us;
    }

    /// Returns the load before a request that is sent now. `tokens` counts the prompts without a
    /// first token, its own among them.
    pub(super) fn ahead(&self, tokens: f64) -> Ahead {
        Ahead { tokens, observed: self.observed }
    }

    /// Learns from a first token. Returns the time of the front end, if that is most of what
    /// requests wait for.
    pub(super) fn learn(&mut self, wait: &FirstWait) -> Option<f64> {
        let FirstWait {
            ttft_us: wait_us,
            own_prefill_us,
            ahead,
            step_us,
            stream_count,
            max_stream_count,
        } = *wait;
        let Ahead { tokens, observed } = ahead;
        let shortest = self.shortest.add((wait_us - own_prefill_us).max(0.0));
        let steps_us = self.observed.steps_us - observed.steps_us;
        let go_on = steps_us >= MIN_STEPS_SHARE * (self.observed.time_us - observed.time_us);
        if !go_on || stream_count > MAX_BATCH_SHARE * max_stream_count {
            return None;
        }
        let at = self.wait_count % MAX_WAITS;
        self.waits.iter_mut().skip(at).take(1).for_each(|one| *one = (tokens, wait_us));
        self.wait_count += 1;
        // A copy: sorting the ring would change which wait is replaced next.
        let mut waits = self.waits;
        let known = waits.get_mut(..self.wait_count.min(MAX_WAITS))?;
        if known.len() < MIN_WAITS {
            return None;
        }
        let us_per_token = slope(known);
        let found_us =
            quantile(known, SHORT_QUANTILE, |(ahead, wait_us)| wait_us - us_per_token * ahead);
        // A burst behind a full batch waits like requests before a front end: the shortest wait is
        // the bound.
        let found_us = (found_us - OWN_STEPS * step_us).min((shortest - step_us).max(0.0));
        Some(found_us)
            .filter(|_| found_us >= MIN_SHARE * quantile(known, 0.5, |(_, wait_us)| wait_us))
    }
}

/// Returns the growth of the wait per token ahead: between the medians of the requests with fewer
/// and with more of them, which a single stall does not change. Source: Brown and Mood, "On median
/// tests for linear hypotheses" (1951).
fn slope(waits: &mut [TtftPoint]) -> f64 {
    waits.sort_unstable_by(|(one, _), (other, _)| one.total_cmp(other));
    let (fewer, more) = waits.split_at_mut(waits.len() / 2);
    let medians = |half: &mut [TtftPoint]| {
        (quantile(half, 0.5, |(ahead, _)| ahead), quantile(half, 0.5, |(_, wait_us)| wait_us))
    };
    let ((few, early_us), (many, late_us)) = (medians(fewer), medians(more));
    if many > few { ((late_us - early_us) / (many - few)).max(0.0) } else { 0.0 }
}

/// Returns the quantile `share` of the values that `of` takes of waits; there is one at least.
fn quantile(waits: &mut [TtftPoint], share: f64, of: impl Fn(TtftPoint) -> f64) -> f64 {
    let place = penstock_api::units::floor_index(share * waits.len() as f64);
    let by_value = |one: &TtftPoint, other: &TtftPoint| of(*one).total_cmp(&of(*other));
    of(*waits.select_nth_unstable_by(place, by_value).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn behind(tokens: f64) -> Ahead {
        Ahead { tokens, observed: Observed { time_us: 0.0, steps_us: 0.0 } }
    }

    const WAIT: FirstWait = FirstWait {
        ttft_us: 400.0,
        own_prefill_us: 0.0,
        ahead: behind(100.0),
        step_us: 20.0,
        stream_count: 4.0,
        max_stream_count: 8.0,
    };

    fn found(waits: impl Iterator<Item = FirstWait>) -> Option<f64> {
        let mut front_end_us = FrontEndLearner::default();
        waits.map(|wait| front_end_us.learn(&wait)).last().flatten()
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
                ttft_us: 400.0 + f64::from(n % 10) + ahead * 0.5,
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
            ttft_us: 40.0 + by_prompts(n) * 0.5,
            ahead: behind(by_prompts(n)),
            ..WAIT
        });
        assert_eq!(found(waits), None);
        // The step that runs, and one more.
        assert_eq!(found((0..40).map(|_| FirstWait { ttft_us: 35.0, ..WAIT })), None);
        // A full batch: requests wait for a slot.
        assert_eq!(found((0..40).map(|_| FirstWait { stream_count: 8.0, ..WAIT })), None);
    }

    /// An engine that computes the prompts of others.
    #[test]
    fn stalled_streams_reveal_no_front_end_time() {
        for (steps, expected) in [(100.0, None), (390.0, Some(360.0))] {
            let mut front_end_us = FrontEndLearner::default();
            let waits = (0..20).map(|_| {
                let ahead = front_end_us.ahead(100.0);
                front_end_us.steps_ended(400.0, steps);
                front_end_us.learn(&FirstWait { ahead, ..WAIT })
            });
            assert_eq!(waits.last().flatten(), expected, "{steps}");
        }
    }

    #[test]
    fn stall_is_not_learned_as_front_end_time() {
        let waits = (0..40_u32).map(|n| {
            let ahead = f64::from(n % 10 + 1) * 500.0;
            let ttft_us = if n % 8 == 0 { 5_000.0 } else { 40.0 + ahead * 0.2 };
            FirstWait { ttft_us, ahead: behind(ahead), ..WAIT }
        });
        assert_eq!(found(waits), None);
    }

    #[test]
    fn short_waits_reset_the_front_end_time() {
        let short = FirstWait { ttft_us: 35.0, ..WAIT };
        assert_eq!(found((0..40).map(|n| if n < 30 { WAIT } else { short })), None);
    }
}
