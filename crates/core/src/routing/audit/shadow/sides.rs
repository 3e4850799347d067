//! The state of each side of the comparison beyond the recorded readings: a prefix index of the
//! prompts that it sent, and the turn of its rotation.

use std::sync::Arc;

use ahash::HashMap;
use penstock_scoring::{Candidate, PrefixParams};

use crate::fleet::{Model, Serving, Topology};
use crate::prefix::{Chain, MemoryBudget, ModelIndex, Slot};
use crate::routing::readings::find_prefixes;

/// The parameters for tracking prompts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tracking {
    pub(super) params: PrefixParams,
    /// The share of conversations that are compared: only this share of a cache holds them.
    pub(super) sample: f64,
}

/// One side: the actual destinations of requests, or the shadow's.
#[derive(Debug)]
pub(super) struct Side {
    models: HashMap<Box<str>, ModelSide>,
    pool: Arc<MemoryBudget>,
}

#[derive(Debug)]
pub(super) struct ModelSide {
    index: ModelIndex,
    /// The slot of each row.
    slots: Vec<Slot>,
    /// The turn of strategies that rotate.
    pub(super) turn: u64,
}

impl Side {
    pub(super) fn new(pool: Arc<MemoryBudget>) -> Self {
        Self { models: HashMap::default(), pool }
    }

    /// Adopts the models and backends of a new topology.
    pub(super) fn follow(&mut self, topology: &Topology) {
        self.models.retain(|name, _| topology.model_id(name).is_some());
        for model in topology.models() {
            let pool = &self.pool;
            let side = self.models.entry(model.name.clone()).or_insert_with(|| ModelSide {
                index: ModelIndex::new(Arc::clone(pool)),
                slots: Vec::new(),
                turn: 0,
            });
            side.slots = side.index.assign(model.serving.iter().map(|row| row.state.serial));
        }
    }

    pub(super) fn model(&mut self, model: &Model) -> Option<&mut ModelSide> {
        self.models.get_mut(&model.name)
    }
}

impl ModelSide {
    /// Cuts prompts as the live index does, and forgets the blocks that restarted engines lost.
    pub(super) fn refresh(&self, model: &Model) {
        self.index.set_block_tokens(model.prefixes.block_tokens());
        let epochs = model.serving.iter().map(|row| row.state.telemetry.epoch());
        self.index.sync_epochs(self.slots.iter().copied().zip(epochs));
    }

    /// Returns the number of leading blocks that the backend in `row` is believed to have.
    pub(super) fn matched(&self, row: u32, chain: &Chain) -> u32 {
        self.slot(row).map_or(0, |slot| self.index.matched(slot, chain.hashes()))
    }

    /// Reads the matched blocks of every candidate.
    pub(super) fn read_prefixes(&self, chain: &Chain, rows: &[u32], candidates: &mut [Candidate]) {
        find_prefixes(&self.index, chain, rows, candidates, |row| self.slot(row));
    }

    /// Stores that a prompt was sent to a backend.
    pub(super) fn store(&self, serving: &Serving, row: u32, chain: &Chain, tracking: Tracking) {
        if let Some(slot) = self.slot(row).filter(|_| chain.blocks() > 0) {
            let mut state = serving.cache_state(&tracking.params, chain.block_tokens());
            state.capacity = part(state.capacity, tracking.sample);
            self.index.routed(slot, chain, state);
        }
    }

    fn slot(&self, row: u32) -> Option<Slot> {
        self.slots.get(row as usize).copied()
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
