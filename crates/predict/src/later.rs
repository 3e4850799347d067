//! The time until a request that would be late now would be in time, if nothing else arrives.

use std::time::Duration;

use super::prediction::{EngineView, Prediction, Sent, predict};
use super::prompts::{Work, decayed};
use super::stall::Silence;

/// The longest time that is predicted ahead, in microseconds: 120 s. SDKs do not wait for longer.
const LONGEST: f64 = 120e6;
/// The longest time that is predicted ahead.
pub const LONGEST_WAIT: Duration = Duration::from_secs(120);
/// The first time that is tried, in microseconds: 50 ms. Each further one is twice as long.
const FIRST: f64 = 50e3;
/// The number of bisections between the last two.
const HALVINGS: u32 = 6;
/// The exponent of the largest power of 2 that is tried: at most 511 requests are counted.
const MOST_TOGETHER: u32 = 8;

impl EngineView<'_> {
    /// Returns the state after `passed` microseconds from `now`: prompts are computed, streams end,
    /// and nothing arrives.
    fn after(&self, passed: f64, now: f64) -> Self {
        let step = self.coefficients.step(self.streams, self.context).max(1.0);
        let budget = (self.limits.step_tokens - self.streams).max(1.0);
        let prompts = self.inside.tokens + self.outside.tokens;
        let work = self.inside.time + self.outside.time + prompts / budget * step;
        let left = if work > 0.0 { (1.0 - passed / work).max(0.0) } else { 0.0 };
        let rest = |of: Work| Work { tokens: of.tokens * left, time: of.time * left };
        // Whole requests: a prompt that is computed in part still waits.
        let started = self.waiting - (self.waiting * left).ceil().min(self.waiting);
        let all = self.streams + started;
        let tokens = passed / step;
        let ended = self.waits.ended_within(tokens, now, step);
        // Without a wait curve (the engine was never nearly full), as if outputs ended at random.
        let ended = ended.unwrap_or_else(|| all * (1.0 - (-tokens / self.output.max(1.0)).exp()));
        let streams = (all - ended).max(0.0);
        Self {
            step_ended: self.step_ended.max(now + passed - step),
            waiting: self.waiting - started,
            inside: rest(self.inside),
            outside: rest(self.outside),
            prefill_share: decayed(self.prefill_share, passed),
            streams,
            // The silence is known until `now` only.
            silence: Silence { until: self.silence.until.min(now), ..self.silence },
            own_streams: self.own_streams.min(streams),
            context: self.context * if all > 0.0 { streams / all.max(1.0) } else { 0.0 },
            ..*self
        }
    }

    /// Returns the same engine with nothing to do.
    fn idle(&self) -> Self {
        Self {
            waiting: 0.0,
            inside: Work::default(),
            outside: Work::default(),
            prefill_share: 0.0,
            streams: 0.0,
            own_streams: 0.0,
            context: 0.0,
            silence: Silence::default(),
            ..*self
        }
    }
}

/// Returns the microseconds until the prediction of a request satisfies `is_met`, at most 120 s;
/// `None` if it would not on an idle engine either.
pub(super) fn time_until(
    view: &EngineView<'_>,
    request: &Sent,
    now: f64,
    is_met: impl Fn(&Prediction) -> bool,
) -> Option<f64> {
    let met_after = |passed: f64| is_met(&predict(&view.after(passed, now), request, now + passed));
    if is_met(&predict(view, request, now)) {
        return Some(0.0);
    }
    if !is_met(&predict(&view.idle(), request, now)) {
        return None;
    }
    let (mut late, mut met) = (0.0, FIRST);
    while !met_after(met) {
        if met >= LONGEST {
            return Some(LONGEST);
        }
        (late, met) = (met, (2.0 * met).min(LONGEST));
    }
    for _ in 0..HALVINGS {
        let middle = late.midpoint(met);
        if met_after(middle) { met = middle } else { late = middle }
    }
    Some(met)
}

/// Returns the number of requests like `request` that would satisfy `is_met` if they came together
/// in `passed` microseconds, and nothing else does: the last of them waits for the prompts of all.
pub(super) fn met_together(
    view: &EngineView<'_>,
    request: &Sent,
    now: f64,
    passed: f64,
    is_met: impl Fn(&Prediction) -> bool,
) -> u32 {
    let (then, at) = (view.after(passed, now), now + passed);
    let all_met = |count: u32| {
        let count = f64::from(count);
        let streams = then.streams + count - 1.0;
        let [prompt, cached] = [request.prompt, request.cached].map(|own| own * count);
        let sent = Sent { prompt, cached, ..*request };
        streams < then.limits.slots && is_met(&predict(&EngineView { streams, ..then }, &sent, at))
    };
    // The largest power of 2 that is met, and then smaller ones in addition.
    let most =
        (0..=MOST_TOGETHER).map(|power| 1 << power).take_while(|count| all_met(*count)).last();
    let Some(least) = most else { return 0 };
    (0..least.ilog2()).rev().fold(least, |found, power| {
        let count = found + (1 << power);
        if all_met(count) { count } else { found }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Coefficients, EngineLimits, Factors, Lengths, Silence, Streams, WaitCurve};
    use super::*;

    const REQUEST: Sent = Sent { prompt: 1000.0, cached: 0.0, max_output: 100.0, is_whole: false };

    fn view(waits: &WaitCurve) -> EngineView<'_> {
        EngineView {
            coefficients: Coefficients {
                base: 10_000.0,
                token: 50.0,
                decode: 100.0,
                ..Coefficients::default()
            },
            limits: EngineLimits::default(),
            step_ended: 0.0,
            waiting: 0.0,
            inside: Work::default(),
            outside: Work::default(),
            prefill_share: 0.0,
            streams: 0.0,
            own_streams: 0.0,
            context: 0.0,
            waits,
            factors: Factors([(1.0, 1.3); 4]),
            front_end: 0.0,
            output: 100.0,
            pace: 1.0,
            pace_percentile: 1.2,
            silence: Silence::default(),
        }
    }

    fn until(view: &EngineView<'_>, ttft_ms: f64) -> Option<f64> {
        let millis = time_until(view, &REQUEST, 0.0, |one| one.ttft_p90 <= ttft_ms * 1000.0);
        millis.map(|micros| micros / 1000.0)
    }

    #[test]
    fn backlog_drains_until_the_objective_is_met() {
        let waits = WaitCurve::default();
        let outside = Work { tokens: 20_000.0, time: 1e6 };
        let busy = EngineView { waiting: 20.0, outside, ..view(&waits) };
        assert_eq!(until(&view(&waits), 100.0), Some(0.0));
        assert_eq!(until(&busy, 70.0), None, "its own prompt takes longer");
        let (soon, later) = (until(&busy, 700.0).unwrap(), until(&busy, 200.0).unwrap());
        assert!((500.0..1000.0).contains(&soon), "{soon}");
        assert!((soon + 300.0..1500.0).contains(&later), "{soon} {later}");
    }

    #[test]
    fn streams_end_until_tokens_are_fast_enough() {
        let mut lengths = Lengths::default();
        (0..5000).for_each(|_| lengths.learn(100.0));
        let mut streams = Streams::default();
        (0..100).for_each(|age| streams.add(500.0, age + 1));
        let waits = WaitCurve::default();
        waits.compute(&lengths, &streams, 0.0);
        let busy =
            EngineView { streams: 100.0, own_streams: 100.0, context: 55_000.0, ..view(&waits) };
        let until = |ms: f64| time_until(&busy, &REQUEST, 0.0, |one| one.tpot <= ms * 1000.0);
        assert_eq!(until(30.0), Some(0.0));
        assert_eq!(until(9.0), None, "it is slower even alone");
        let (soon, later) = (until(16.0).unwrap(), until(12.0).unwrap());
        assert!((200_000.0..1_500_000.0).contains(&soon), "{soon}");
        assert!(later > soon + 200_000.0, "{soon} {later}");
    }
}
