//! What the two sides of a comparison know: fleets beside the live one, each with turns and prefix
//! indexes of its own, filled in the same way.

use std::sync::Arc;

use super::Sighting;
use crate::fleet::{BackendId, ModelId, Serving, SharedBackend, Topology};
use crate::prefix::{Chain, MemoryBudget};
use crate::scoring::PrefixParams;

/// How prompts are kept track of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measure {
    pub(super) terms: PrefixParams,
    /// The share of the conversations that are seen: only so much of a cache is theirs.
    pub(super) sample: f64,
}

/// One side: a fleet beside the live one.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) fleet: Arc<Topology>,
    pool: Arc<MemoryBudget>,
}

impl Side {
    fn new(pool: Arc<MemoryBudget>) -> Self {
        Self { fleet: Arc::default(), pool }
    }

    fn follow(&mut self, fleet: &Topology, stand_in: impl FnMut(&SharedBackend) -> SharedBackend) {
        let beside = fleet.beside(&self.fleet, &self.pool, stand_in);
        self.fleet = Arc::new(beside);
    }

    /// How many leading blocks of a prompt a backend is believed to have.
    pub(super) fn matched(&self, (model, row): (ModelId, u32), chain: &Chain) -> u32 {
        let topology = &self.fleet;
        let found = topology.model(model).zip(topology.serving(model, row));
        found.map_or(0, |(model, row)| model.prefixes.matched(row.slot, chain.hashes()))
    }

    /// Notes that a backend is sent a prompt.
    pub(super) fn record(&self, (model, row): (ModelId, u32), chain: &Chain, measure: Measure) {
        let topology = &self.fleet;
        let found = topology.model(model).zip(topology.serving(model, row));
        if let Some((model, row)) = found.filter(|_| chain.blocks() > 0) {
            let mut state = row.cache_state(&measure.terms, chain.block_tokens());
            state.capacity = part(state.capacity, measure.sample);
            model.prefixes.routed(row.slot, chain, state);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a number is no larger, and at least 1"
)]
fn part(whole: u32, share: f64) -> u32 {
    (f64::from(whole) * share).ceil().max(1.0) as u32
}

/// Both sides.
#[derive(Debug)]
pub(super) struct Sides {
    /// The fleet they stand beside.
    of: Arc<Topology>,
    /// Knows where requests were sent.
    pub(super) live: Side,
    /// Knows where the shadow would have sent them.
    pub(super) shadow: Side,
}

impl Sides {
    pub(super) fn new([live, shadow]: [Arc<MemoryBudget>; 2]) -> Self {
        Self { of: Arc::default(), live: Side::new(live), shadow: Side::new(shadow) }
    }

    /// Lets both follow the fleet a decision was made over.
    pub(super) fn follow(&mut self, fleet: &Arc<Topology>) {
        if Arc::ptr_eq(&self.of, fleet) {
            return;
        }
        self.of = Arc::clone(fleet);
        self.live.follow(fleet, Arc::clone);
        let before = Arc::clone(&self.shadow.fleet);
        self.shadow.follow(fleet, |state| {
            let known = before.backends.iter().find(|one| one.state.serial == state.serial);
            known.map_or_else(|| Arc::new(state.stand_in()), |one| Arc::clone(&one.state))
        });
    }

    /// Shows the shadow how the backends of the request's model are doing now. While the request is
    /// in flight, it is left out: it was not there when the live decision was made.
    pub(super) fn look(&self, seen: &Sighting, is_in_flight: bool) {
        let (model, _) = seen.place;
        let live = self.of.model(model);
        let beside = self.shadow.fleet.model(model);
        let Some((live, beside)) = live.zip(beside) else { return };
        for (row, stand_in) in live.serving.iter().zip(&beside.serving) {
            let is_own = |backend: BackendId| is_in_flight && backend == seen.backend;
            stand_in.state.follow(&row.state, is_own(row.id).then_some(seen.taken));
        }
        for side in [&self.live, &self.shadow] {
            if let Some(model) = side.fleet.model(model) {
                model.prefixes.set_block_tokens(live.prefixes.block_tokens());
                model.prefixes.sync_epochs(model.serving.iter().map(Serving::slot_and_epoch));
            }
        }
    }
}
