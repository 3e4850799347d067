//! Which prompts of a model went where, for any number of backends.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::scoring::prefix::{Budget, LANES, PrefixIndex};

/// The prefix indexes of one model. A backend has a place here once it was picked.
#[derive(Debug, Default)]
pub(super) struct Placed {
    lanes: BTreeMap<String, usize>,
    /// The first is of the first 64 lanes.
    shards: Vec<PrefixIndex>,
}

impl Placed {
    /// Leading blocks of a prompt that each of the backends is believed to have, in their order.
    pub(super) fn matched<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        chain: &[u64],
    ) -> Vec<u32> {
        let mut found = vec![0; self.shards.len() * LANES];
        for (index, blocks) in self.shards.iter().zip(found.chunks_exact_mut(LANES)) {
            index.longest(chain, u64::MAX, |lane, length| {
                if let Some(slot) = blocks.get_mut(lane) {
                    *slot = length;
                }
            });
        }
        let blocks = |name| self.lanes.get(name).and_then(|lane| found.get(*lane));
        names.map(|name| blocks(name).copied().unwrap_or_default()).collect()
    }

    /// Notes that a backend was sent a prompt.
    pub(super) fn record(
        &mut self,
        name: &str,
        chain: &[u64],
        (capacity, budget): (u32, &Arc<Budget>),
    ) {
        let next = self.lanes.len();
        let lane = *self.lanes.entry(name.to_owned()).or_insert(next);
        if self.shards.len() <= lane / LANES {
            self.shards.push(PrefixIndex::new(capacity, Arc::clone(budget)));
        }
        if let Some(index) = self.shards.get_mut(lane / LANES) {
            index.set_capacity(lane % LANES, capacity);
            index.record(lane % LANES, chain);
        }
    }
}
