//! The prompts of a model that each backend received, for any number of backends.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_core::prefix::{MemoryBudget, PrefixIndex, SLOTS};

/// The prefix indexes of one model. A backend gets a slot when it is first picked.
#[derive(Debug, Default)]
pub(super) struct Placed {
    slots: BTreeMap<String, usize>,
    /// One index for each 64 slots, in order.
    shards: Vec<PrefixIndex>,
}

impl Placed {
    /// Returns the leading blocks of a prompt that each backend is believed to have, in the order
    /// of `names`.
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
