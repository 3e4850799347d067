//! Invariants that hold for every configuration and workload. They are checked at the end of every
//! run, and periodically within it in builds with debug assertions.

use penstock_core::admission::queue::ModelQueue;
use penstock_core::fleet::Serving;
use penstock_predict::{EngineLoad, PromptWork};

use super::result::{RequestResult, Status};
use super::{World, WorldError};

/// The number of events between two checks within a run.
#[cfg(debug_assertions)]
const INTERVAL: u64 = 4096;

impl World<'_> {
    #[cfg(debug_assertions)]
    pub(super) fn verify_sometimes(&mut self) -> Result<(), WorldError> {
        self.events += 1;
        if self.events.is_multiple_of(INTERVAL) { self.verify() } else { Ok(()) }
    }

    /// Checks every invariant.
    ///
    /// # Errors
    /// [`WorldError::Invariant`] for the first invariant that does not hold: the simulator has a
    /// bug.
    pub(super) fn verify(&self) -> Result<(), WorldError> {
        let in_flight = self.balancers.iter().flat_map(|one| &one.topology.backends);
        let in_flight: u32 = in_flight.map(|backend| backend.state.load.in_flight()).sum();
        let live = self.live.iter().flatten().count();
        let open = self.results.iter().filter(|one| one.status == Status::Open).count();
        let blocks = self.engines.all.iter().map(|one| one.engine.block_counts());
        let queued = self.balancers.iter().flat_map(|one| &one.queues);
        let queued: usize = queued.map(ModelQueue::len).sum();
        let is_over = open == 0;
        let holds =
            |holds: bool, what| if holds { Ok(()) } else { Err(WorldError::Invariant { what }) };
        holds(in_flight as usize == live, "permits are not those of the requests in flight")?;
        holds(open == self.open, "requests were lost, or ended twice")?;
        let places = self.places.iter().flatten().count();
        holds(
            [queued, places, self.entries.len()] == [self.waiting; 3],
            "queues do not hold the requests that wait",
        )?;
        holds(!is_over || live + queued == 0, "a request ended and is still in flight, or waits")?;
        holds(
            blocks.clone().all(|(used, free, total)| used + free == total),
            "KV blocks were lost, or are used twice",
        )?;
        holds(
            !is_over || self.engines.all.iter().all(|one| one.engine.is_idle()),
            "an engine still has requests after the end",
        )?;
        holds(
            !is_over || blocks.clone().all(|(used, ..)| used == 0),
            "an idle engine holds KV blocks",
        )?;
        self.verify_counts(is_over)?;
        holds(self.results.iter().all(is_in_order), "a request ended before it started")
    }

    /// Checks that predictors and loads count the requests in flight, and nothing once all have
    /// ended.
    fn verify_counts(&self, is_over: bool) -> Result<(), WorldError> {
        let rows = self.balancers.iter().flat_map(|one| one.topology.models());
        let rows = || rows.clone().flat_map(|model| &model.serving);
        let predictors = rows().filter_map(|row| row.model_state.used_predictor());
        let loads: Vec<EngineLoad> = predictors.map(|one| one.own_load()).collect();
        let live = self.live.iter().flatten().count() as f64;
        let counted: f64 = loads.iter().map(|one| one.waiting_count + one.stream_count).sum();
        let holds =
            |holds: bool, what| if holds { Ok(()) } else { Err(WorldError::Invariant { what }) };
        holds(!self.predicts || counted == live, "predictors do not count the requests in flight")?;
        let is_empty = |one: &EngineLoad| {
            let PromptWork { tokens, time_us } = one.prompt_work;
            [one.waiting_count, one.stream_count, one.context_tokens, tokens, time_us] == [0.0; 5]
        };
        holds(
            !is_over || loads.iter().all(is_empty),
            "a predictor still counts prompts or streams after the end",
        )?;
        let tokens = |row: &Serving| (row.state.work.tokens(), row.state.work.prefill_tokens());
        let counts =
            |row: &Serving| [row.model_state.load.in_flight(), row.model_state.sheddable()];
        holds(
            !is_over || rows().all(|row| counts(row) == [0; 2] && tokens(row) == (0, 0)),
            "models or tokens are still in flight after the end",
        )
    }
}

/// Returns whether the times of a request are in order.
fn is_in_order(one: &RequestResult) -> bool {
    match one.status {
        Status::Open | Status::Abandoned => true,
        Status::Done => one.arrived < one.first_token && one.first_token <= one.ended,
        Status::Shed(_) | Status::Failed(_) | Status::Left => one.arrived <= one.ended,
    }
}
