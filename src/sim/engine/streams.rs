//! The streams of an engine as their clients see them: how many tokens each has got, and how long the steps took.

use super::plan::Plan;
use super::request::Phase;
use super::{Engine, EngineServer};

impl Engine {
    /// When the last step ended before `at`, in picoseconds, and how many have.
    fn steps_ended(&self, at: u64) -> Option<(u64, u64)> {
        let time = &self.spec.step_time;
        let before = self.counters.steps;
        Some(match self.plan.as_ref()? {
            Plan::Mixed { end, .. } if *end <= at => (*end, before + 1),
            Plan::Mixed { start, .. } => (*start, before),
            Plan::Decoding { start, decodes, context, .. } => {
                let ended = self.decoded_steps(at);
                (start + time.of_steps(ended, *decodes, *context), before + ended)
            }
        })
    }

    /// Steps of the plan that have ended at `at`, where it only decodes.
    fn decoded_steps(&self, at: u64) -> u64 {
        let time = &self.spec.step_time;
        match &self.plan {
            Some(plan @ Plan::Decoding { steps, .. }) if plan.end(time) <= at => *steps,
            Some(plan) => plan.steps_started(at, time).saturating_sub(1),
            None => 0,
        }
    }

    /// Its requests, those that run before those that wait.
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
    /// The requests that its engines have.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.engines().flat_map(Engine::ids)
    }

    /// The requests that decode at `at`, and how many tokens each has emitted; replaces what was in `streams`.
    pub fn streams(&self, at: u64, streams: &mut Vec<(u32, u32)>) {
        streams.clear();
        self.engines().for_each(|engine| engine.streams(at, streams));
    }

    /// When the last step ended, and how many have; nothing where several models compute, or none.
    pub fn steps_ended(&self, at: u64) -> Option<(u64, u64)> {
        let mut engines = self.engines();
        let only = engines.next().filter(|_| engines.next().is_none())?;
        only.steps_ended(at)
    }
}
