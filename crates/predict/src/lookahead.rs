//! The time until a request that would be late now would be in time, if nothing else arrives.

use std::time::Duration;

use super::prediction::{EngineView, Prediction, RequestShape, predict};
use super::prompts::{PromptWork, decayed};
use super::stall::StreamSilence;

/// The longest time that is predicted ahead, in microseconds: 120 s. SDKs do not wait for longer.
const MAX_LOOKAHEAD_US: f64 = 120e6;
/// The longest time that is predicted ahead.
pub const MAX_LOOKAHEAD: Duration = Duration::from_secs(120);
/// The first time that is tried, in microseconds: 50 ms. Each further one is twice as long.
const FIRST_LOOKAHEAD_US: f64 = 50e3;
/// The number of bisections between the last two.
const BISECTIONS: u32 = 6;
/// The exponent of the largest power of 2 that is tried: at most 511 requests are counted.
const MAX_POWER: u32 = 8;

impl EngineView<'_> {
    /// Returns the state after `passed_us` microseconds from `now_us`: prompts are computed,
    /// streams end, and nothing arrives.
    fn after(&self, passed_us: f64, now_us: f64) -> Self {
        let step_us = self.coefficients.step_us(self.stream_count, self.context_tokens).max(1.0);
        let budget_tokens = (self.limits.step_tokens - self.stream_count).max(1.0);
        let prompt_tokens = self.in_batch.tokens + self.queued.tokens;
        let work_us =
            self.in_batch.time_us + self.queued.time_us + prompt_tokens / budget_tokens * step_us;
        let left = if work_us > 0.0 { (1.0 - passed_us / work_us).max(0.0) } else { 0.0 };
        let remaining =
            |of: PromptWork| PromptWork { tokens: of.tokens * left, time_us: of.time_us * left };
        // Whole requests: a prompt that is computed in part still waits.
        let started_count =
            self.waiting_count - (self.waiting_count * left).ceil().min(self.waiting_count);
        let all = self.stream_count + started_count;
        let tokens = passed_us / step_us;
        let ended_count = self.wait_curve.ended_within(tokens, now_us, step_us);
        // Without a wait curve (the engine was never nearly full), as if outputs ended at random.
        let ended_count = ended_count
            .unwrap_or_else(|| all * (1.0 - (-tokens / self.mean_output_tokens.max(1.0)).exp()));
        let stream_count = (all - ended_count).max(0.0);
        Self {
            // An engine that works has ended its last step at most one step ago.
            step_ended_at_us: self.step_ended_at_us.max(now_us + passed_us - step_us),
            waiting_count: self.waiting_count - started_count,
            in_batch: remaining(self.in_batch),
            queued: remaining(self.queued),
            prefill_share: decayed(self.prefill_share, passed_us),
            stream_count,
            // The silence is known until `now_us` only.
            silence: StreamSilence { until_us: self.silence.until_us.min(now_us), ..self.silence },
            own_stream_count: self.own_stream_count.min(stream_count),
            context_tokens: self.context_tokens
                * if all > 0.0 { stream_count / all.max(1.0) } else { 0.0 },
            ..*self
        }
    }

    /// Returns the same engine with nothing to do.
    fn idle(&self) -> Self {
        Self {
            waiting_count: 0.0,
            in_batch: PromptWork::default(),
            queued: PromptWork::default(),
            prefill_share: 0.0,
            stream_count: 0.0,
            own_stream_count: 0.0,
            context_tokens: 0.0,
            silence: StreamSilence::default(),
            ..*self
        }
    }
}

/// Returns the microseconds until the prediction of a request satisfies `is_met`, at most 120 s;
/// `None` if it would not on an idle engine either.
pub(super) fn time_until(
    view: &EngineView<'_>,
    request: &RequestShape,
    now_us: f64,
    is_met: impl Fn(&Prediction) -> bool,
) -> Option<f64> {
    let met_after = |passed_us: f64| {
        is_met(&predict(&view.after(passed_us, now_us), request, now_us + passed_us))
    };
    if is_met(&predict(view, request, now_us)) {
        return Some(0.0);
    }
    if !is_met(&predict(&view.idle(), request, now_us)) {
        return None;
    }
    let (mut late_us, mut met_us) = (0.0, FIRST_LOOKAHEAD_US);
    while !met_after(met_us) {
        if met_us >= MAX_LOOKAHEAD_US {
            return Some(MAX_LOOKAHEAD_US);
        }
        (late_us, met_us) = (met_us, (2.0 * met_us).min(MAX_LOOKAHEAD_US));
    }
    for _ in 0..BISECTIONS {
        let middle_us = late_us.midpoint(met_us);
        if met_after(middle_us) { met_us = middle_us } else { late_us = middle_us }
    }
    Some(met_us)
}

/// Returns the number of requests like `request` that would satisfy `is_met` if they came together
/// in `passed_us` microseconds, and nothing else does: the last of them waits for the prompts of
/// all.
pub(super) fn met_together(
    view: &EngineView<'_>,
    request: &RequestShape,
    now_us: f64,
    passed_us: f64,
    is_met: impl Fn(&Prediction) -> bool,
) -> u32 {
    let (then, at_us) = (view.after(passed_us, now_us), now_us + passed_us);
    let all_met = |count: u32| {
        let count = f64::from(count);
        let stream_count = then.stream_count + count - 1.0;
        let [prompt_tokens, cached_tokens] =
            [request.prompt_tokens, request.cached_tokens].map(|tokens| tokens * count);
        let all = RequestShape { prompt_tokens, cached_tokens, ..*request };
        stream_count < then.limits.slots
            && is_met(&predict(&EngineView { stream_count, ..then }, &all, at_us))
    };
    // The largest power of 2 that is met, and then smaller ones in addition.
    let power_of_2 =
        (0..=MAX_POWER).map(|power| 1 << power).take_while(|count| all_met(*count)).last();
    let Some(least) = power_of_2 else { return 0 };
    (0..least.ilog2()).rev().fold(least, |found, power| {
        let count = found + (1 << power);
        if all_met(count) { count } else { found }
    })
}

#[cfg(test)]
mod tests {
    use crate::output_lengths::OutputLengths;
    use crate::pauses::Pauses;
    use crate::residual::{Factors, RegimeFactors};
    use crate::stall::StreamSilence;
    use crate::streams::{Stream, Streams};
    use crate::{Coefficients, EngineLimits, WaitCurve};

    use super::*;

    const REQUEST: RequestShape = RequestShape {
        prompt_tokens: 1000.0,
        cached_tokens: 0.0,
        max_output_tokens: 100.0,
        is_whole: false,
    };

    fn view(wait_curve: &WaitCurve) -> EngineView<'_> {
        EngineView {
            coefficients: Coefficients {
                base_us: 10_000.0,
                token_us: 50.0,
                decode_us: 100.0,
                ..Coefficients::default()
            },
            limits: EngineLimits::default(),
            step_ended_at_us: 0.0,
            waiting_count: 0.0,
            in_batch: PromptWork::default(),
            queued: PromptWork::default(),
            prefill_share: 0.0,
            stream_count: 0.0,
            own_stream_count: 0.0,
            context_tokens: 0.0,
            wait_curve,
            factors: Factors([RegimeFactors { mean: 1.0, p90: 1.3 }; 4]),
            front_end_us: 0.0,
            tokenizer_token_us: 0.0,
            mean_output_tokens: 100.0,
            pace_factor: 1.0,
            pace_p90_factor: 1.2,
            pauses: Pauses::default(),
            silence: StreamSilence::default(),
        }
    }

    fn until(view: &EngineView<'_>, ttft_ms: f64) -> Option<f64> {
        let millis = time_until(view, &REQUEST, 0.0, |one| one.ttft_p90_us <= ttft_ms * 1000.0);
        millis.map(|micros| micros / 1000.0)
    }

    #[test]
    fn backlog_drains_until_the_objective_is_met() {
        let wait_curve = WaitCurve::default();
        let queued = PromptWork { tokens: 20_000.0, time_us: 1e6 };
        let busy = EngineView { waiting_count: 20.0, queued, ..view(&wait_curve) };
        assert_eq!(until(&view(&wait_curve), 100.0), Some(0.0));
        assert_eq!(until(&busy, 70.0), None, "its own prompt takes longer");
        let (soon, later) = (until(&busy, 700.0).unwrap(), until(&busy, 200.0).unwrap());
        assert!((500.0..1000.0).contains(&soon), "{soon}");
        assert!((soon + 300.0..1500.0).contains(&later), "{soon} {later}");
    }

    #[test]
    fn streams_end_until_tokens_are_fast_enough() {
        let mut lengths = OutputLengths::default();
        (0..5000).for_each(|_| lengths.learn(100.0, f64::INFINITY));
        let mut streams = Streams::default();
        let stream = Stream {
            number: 0,
            prompt_tokens: 500.0,
            age_tokens: 0,
            max_output_tokens: f64::INFINITY,
        };
        (1..=100).for_each(|age_tokens| streams.add(&Stream { age_tokens, ..stream }, 0.0));
        let wait_curve = WaitCurve::default();
        wait_curve.compute(&lengths, &streams, 0.0, 0.0);
        let busy = EngineView {
            stream_count: 100.0,
            own_stream_count: 100.0,
            context_tokens: 55_000.0,
            ..view(&wait_curve)
        };
        let until = |ms: f64| time_until(&busy, &REQUEST, 0.0, |one| one.tpot_us <= ms * 1000.0);
        assert_eq!(until(30.0), Some(0.0));
        assert_eq!(until(9.0), None, "it is slower even alone");
        let (soon, later) = (until(16.0).unwrap(), until(12.0).unwrap());
        assert!((200_000.0..1_500_000.0).contains(&soon), "{soon}");
        assert!(later > soon + 200_000.0, "{soon} {later}");
    }
}
