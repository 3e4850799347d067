//! The engines of a fleet, and the time of the next event of each.

use super::World;
use super::events::WorldEvent;
use super::faults::FaultKind;
use crate::engine::{
    EngineCounters, EngineEvent, EngineServer, EngineSpec, EventKind, SpecError, StepModel,
};

/// Picoseconds in a microsecond.
pub(super) const PICOS: u64 = 1_000_000;

/// An engine and its current faults.
#[derive(Debug)]
pub(super) struct SimEngine {
    pub(super) engine: EngineServer,
    /// The duration of its steps without faults.
    usual: StepModel,
    /// The number of active faults that keep it down.
    pub(super) downs: u32,
    /// The number of active faults that make it refuse requests.
    pub(super) refusals: u32,
    /// The number of active faults that withhold its metrics.
    pub(super) lost_scrapes: u32,
    /// The number of restarts.
    pub(super) starts: u32,
}

impl SimEngine {
    pub(super) fn is_up(&self) -> bool {
        self.downs == 0
    }

    /// Makes steps `factor` times as long as usual from now on.
    pub(super) fn slow_down(&mut self, factor: f64, at: u64) {
        let step_time = self.usual.slowed_down(factor);
        self.engine.set_step_time(at.saturating_mul(PICOS), &step_time);
    }
}

#[derive(Debug)]
pub(super) struct Engines {
    pub(super) all: Vec<SimEngine>,
    /// The time of each engine's next event, in microseconds.
    due: Vec<u64>,
    events: Vec<EngineEvent>,
}

impl Engines {
    pub(super) fn new(specs: &[EngineSpec]) -> Result<Self, SpecError> {
        let all = specs.iter().map(|spec| {
            Ok(SimEngine {
                engine: EngineServer::new(spec.clone())?,
                usual: spec.step_time.clone(),
                downs: 0,
                refusals: 0,
                lost_scrapes: 0,
                starts: 0,
            })
        });
        let all: Vec<SimEngine> = all.collect::<Result<_, SpecError>>()?;
        Ok(Self { due: vec![u64::MAX; all.len()], all, events: Vec::new() })
    }

    /// Returns the time of the next engine event, and the engine.
    pub(super) fn next_at(&self) -> Option<(u64, usize)> {
        let due = self.due.iter().enumerate().min_by_key(|(_, at)| **at);
        due.map(|(index, at)| (*at, index)).filter(|(at, _)| *at < u64::MAX)
    }

    /// Updates the time of an engine's next event.
    pub(super) fn plan(&mut self, index: usize) {
        let next = self.all.get(index).and_then(|one| one.engine.next_event());
        if let Some(due) = self.due.get_mut(index) {
            // Rounded up: an engine that is run too early would have no event, again and again.
            *due = next.map_or(u64::MAX, |picos| picos.div_ceil(PICOS));
        }
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = (EngineCounters, u32)> + '_ {
        self.all
            .iter()
            .map(|one| (one.engine.counters(), one.engine.telemetry(u64::MAX).total_blocks))
    }
}

impl World<'_> {
    /// Handles all events of an engine up to `at`.
    pub(super) fn run_engine(&mut self, index: usize, at: u64) {
        self.capture(index, at);
        let mut events = std::mem::take(&mut self.engines.events);
        if let Some(one) = self.engines.all.get_mut(index) {
            one.engine.advance(at.saturating_mul(PICOS), &mut events);
        }
        for event in events.drain(..) {
            match event.kind {
                EventKind::FirstToken { cached_tokens } => {
                    self.first_token(event.id, cached_tokens, at)
                }
                EventKind::Finished { output_tokens } => self.finish(event.id, output_tokens, at),
                EventKind::Refused(_) => self.refuse_length(event.id, at),
            }
        }
        self.engines.events = events;
        self.engines.plan(index);
    }

    pub(super) fn start_fault(&mut self, number: u32, at: u64) {
        let Some(fault) = self.spec.faults.get(number as usize) else { return };
        let Some(index) = fault.index(&self.spec.config) else { return };
        self.capture(index, at);
        let Some(one) = self.engines.all.get_mut(index) else { return };
        match fault.kind {
            FaultKind::Down => {
                // Counted, since faults may overlap: the engine is up when the last of them ends.
                one.downs += 1;
                one.starts += 1;
                let lost = one.engine.restart(at.saturating_mul(PICOS));
                for id in lost {
                    self.lose(id, at);
                }
            }
            FaultKind::Refuse => one.refusals += 1,
            FaultKind::ScrapeLost => one.lost_scrapes += 1,
            FaultKind::Slow(factor) => one.slow_down(factor, at),
        }
        self.engines.plan(index);
        self.queue.push(at.saturating_add(fault.micros()), WorldEvent::FaultEnd(number));
    }

    pub(super) fn end_fault(&mut self, number: u32, at: u64) {
        let Some(fault) = self.spec.faults.get(number as usize) else { return };
        let Some(index) = fault.index(&self.spec.config) else { return };
        self.capture(index, at);
        let Some(one) = self.engines.all.get_mut(index) else { return };
        match fault.kind {
            FaultKind::Down => one.downs -= 1,
            FaultKind::Refuse => one.refusals -= 1,
            FaultKind::ScrapeLost => one.lost_scrapes -= 1,
            FaultKind::Slow(_) => one.slow_down(1.0, at),
        }
        self.engines.plan(index);
        if fault.kind == FaultKind::Down {
            let starts = f64::from(one_start(&self.engines, index));
            for balancer in &self.balancers {
                balancer.learn_start(index, starts);
            }
        }
    }
}

fn one_start(engines: &Engines, index: usize) -> u32 {
    engines.all.get(index).map_or(0, |one| one.starts)
}
