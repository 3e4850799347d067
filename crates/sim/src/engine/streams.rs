//! The streams of an engine as their clients see them: the tokens of each, and the duration of the
//! steps.

use super::plan::StepPlan;
use super::request::Phase;
use super::{BatchingEngine, EngineServer};

impl BatchingEngine {
    /// Returns the end of the last step that ended by `at`, in picoseconds, and the number of steps
    /// ended.
    fn steps_ended(&self, at: u64) -> Option<(u64, u64)> {
        let time = &self.spec.step_time;
        let before = self.counters.steps;
        Some(match self.plan.as_ref()? {
            StepPlan::Mixed { end, .. } if *end <= at => (*end, before + 1),
            StepPlan::Mixed { start, .. } => (*start, before),
            StepPlan::Decoding { start, decodes, context, .. } => {
                let ended = self.decoded_steps(at);
                (start + time.of_steps(ended, *decodes, *context), before + ended)
            }
        })
    }

    /// Returns the number of steps of a decoding plan that have ended by `at`.
    fn decoded_steps(&self, at: u64) -> u64 {
        let time = &self.spec.step_time;
        match &self.plan {
            Some(plan @ StepPlan::Decoding { steps, .. }) if plan.end(time) <= at => *steps,
            Some(plan) => plan.steps_started(at, time).saturating_sub(1),
            None => 0,
        }
    }

    /// Returns the ids of its requests, running before waiting.
    fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = self.running.iter().chain(&self.waiting);
        slots.filter_map(|slot| self.requests.get(*slot)).map(|request| request.id)
    }

    fn streams(&self, at: u64, streams: &mut Vec<(u32, u32)>) {
        let since = u32::try_from(self.decoded_steps(at)).unwrap_or(u32::MAX);
        let running = self.running.iter().filter_map(|slot| self.requests.get(*slot));
        streams.extend(running.filter_map(|request| {
            let Phase::Decoding { base } = request.phase else { return None };
            let computed = self.decoders.computed(base).saturating_sub(request.computed);
            Some((request.id, request.emitted.saturating_add(computed).saturating_add(since)))
        }));
    }
}

impl EngineServer {
    /// Returns the ids of the requests at its engines.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.engines().flat_map(BatchingEngine::ids)
    }

    /// Fills `streams` with the requests that decode at `at` and the number of tokens each has
    /// emitted; previous entries are dropped.
    pub fn streams(&self, at: u64, streams: &mut Vec<(u32, u32)>) {
        streams.clear();
        self.engines().for_each(|engine| engine.streams(at, streams));
    }

    /// Returns the end of the last step and the number of steps ended; `None` if several models are
    /// in memory, or none computes.
    pub fn steps_ended(&self, at: u64) -> Option<(u64, u64)> {
        let mut engines = self.engines();
        let only = engines.next().filter(|_| engines.next().is_none())?;
        only.steps_ended(at)
    }
}
