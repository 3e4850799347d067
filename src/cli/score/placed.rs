//! Which backend received which prompts of a model, for any number of backends.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::prefix::{MemoryBudget, PrefixIndex, SLOTS};

/// The prefix indexes of one model. A backend has a place here once it was picked.
#[derive(Debug, Default)]
pub(super) struct Placed {
    slots: BTreeMap<String, usize>,
    /// The first is of the first 64 slots.
    shards: Vec<PrefixIndex>,
}

impl Placed {
    /// Leading blocks of a prompt that each of the backends is believed to have, in their order.
    pub(super) fn matched<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        chain: &[u64],
    ) -> Vec<u32> {
        let mut found = vec![0; self.shards.len() * SLOTS];
        for (index, blocks) in self.shards.iter().zip(found.chunks_exact_mut(SLOTS)) {
            index.longest(chain, u64::MAX, |slot, length| {
                if let Some(count) = blocks.get_mut(slot) {
                    *count = length;
                }
            });
        }
        names
            .map(|name| {
                self.slots.get(name).and_then(|slot| found.get(*slot).copied()).unwrap_or(0)
            })
            .collect()
    }

    /// Records that a backend received a prompt.
    pub(super) fn record(
        &mut self,
        name: &str,
        chain: &[u64],
        capacity: u32,
        budget: &Arc<MemoryBudget>,
    ) {
        let next = self.slots.len();
        let slot = *self.slots.entry(name.to_owned()).or_insert(next);
        if self.shards.len() <= slot / SLOTS {
            self.shards.push(PrefixIndex::new(capacity, Arc::clone(budget)));
        }
        if let Some(index) = self.shards.get_mut(slot / SLOTS) {
            index.set_capacity(slot % SLOTS, capacity);
            index.record(slot % SLOTS, chain);
        }
    }
}
