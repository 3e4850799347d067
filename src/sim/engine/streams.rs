//! The streams of an engine as their clients see them: how many tokens each has got, and how long the steps took.

use super::plan::Plan;
use super::request::Phase;
use super::{Engine, EngineServer};

/// Steps in which all requests decoded: between two times, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedSteps {
    /// When the first of them started.
    pub from: u64,
    /// When the last one ended.
    pub to: u64,
    /// How many.
    pub steps: u64,
}

impl Engine {
    /// Steps of the plan that have ended at `at`, where it only decodes.
    fn decoded_steps(&self, at: u64) -> Option<DecodedSteps> {
        let plan = self.plan.as_ref()?;
        let Plan::Decoding { start, steps, decodes, context } = plan else { return None };
        let time = &self.spec.step_time;
        let is_over = plan.end(time) <= at;
        let ended = if is_over { *steps } else { plan.steps_started(at, time).saturating_sub(1) };
        let to = start + time.of_steps(ended, *decodes, *context);
        (ended > 0).then_some(DecodedSteps { from: *start, to, steps: ended })
    }

    fn streams(&self, at: u64, streams: &mut Vec<(u32, u32)>) {
        let since = self.decoded_steps(at).map_or(0, |decoded| decoded.steps);
        let since = u32::try_from(since).unwrap_or(u32::MAX);
        let running = self.running.iter().filter_map(|slot| self.requests.get(*slot));
        streams.extend(running.filter_map(|request| {
            let Phase::Decoding { base } = request.phase else { return None };
            let computed = self.decoders.computed(base).saturating_sub(request.computed);
            Some((request.id, request.emitted.saturating_add(computed).saturating_add(since)))
        }));
    }
}

impl EngineServer {
    /// The requests that decode at `at`, and how many tokens each has emitted; replaces what was in `streams`.
    pub fn streams(&self, at: u64, streams: &mut Vec<(u32, u32)>) {
        streams.clear();
        self.engines().for_each(|engine| engine.streams(at, streams));
    }

    /// The decoding steps that have ended at `at` since something else happened; none where several models compute.
    pub fn decoded_steps(&self, at: u64) -> Option<DecodedSteps> {
        let mut engines = self.engines();
        let only = engines.next().filter(|_| engines.next().is_none())?;
        only.decoded_steps(at)
    }
}
