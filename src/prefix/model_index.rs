//! The prefix index of one model, shared by all threads and carried over from topology to topology.
//!
//! An index has room for 64 backends (one bit each), so a model with more backends has several
//! shards. A [`Slot`] names the shard and the bit of a backend; it is stable for as long as the
//! backend serves the model.
//!
//! Locking: one mutex per model, held for one lookup or one record (less than a microsecond for 256
//! blocks; see `benches/weighted.rs`). A lookup and the update that follows it take the lock separately, so two
//! concurrent requests with the same new prompt may both miss; the second record then wins, which
//! costs one prefill and breaks nothing. Nothing else may be locked while it is held, and no code
//! under it may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::chain::Chain;
use super::events::{CacheEvent, CacheState, Predicted};
use super::index::PrefixIndex;
use super::memory::MemoryBudget;
use super::run::SLOTS;
use crate::scoring::PrefixParams;

/// The most evictions of one background pass over an index.
const MAX_EVICTIONS: u32 = 4096;

/// The position of a backend in a model's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Which of the model's shards; each has room for 64 backends.
    pub shard: u16,
    /// The bit within the shard.
    pub bit: u8,
}

impl Slot {
    /// Before a slot is assigned.
    pub const UNASSIGNED: Self = Self { shard: 0, bit: 0 };

    fn of(index: usize) -> Self {
        Self {
            shard: u16::try_from(index / SLOTS).unwrap_or(u16::MAX),
            bit: u8::try_from(index % SLOTS).unwrap_or(u8::MAX),
        }
    }
}

/// The prefix index of one model.
#[derive(Debug)]
pub struct ModelIndex {
    /// The serial of the backend in each slot.
    assigned: Mutex<Vec<Option<u64>>>,
    shards: Mutex<Shards>,
    /// Tokens per block as reported by the engines; 0 when none reports.
    block_tokens: AtomicU32,
    memory: Arc<MemoryBudget>,
}

#[derive(Debug, Default)]
struct Shards {
    indexes: Vec<PrefixIndex>,
    /// The engine epoch of each slot.
    epochs: Vec<u32>,
}

impl ModelIndex {
    /// An empty index that shares `memory`.
    pub fn new(memory: Arc<MemoryBudget>) -> Self {
        Self {
            assigned: Mutex::default(),
            shards: Mutex::default(),
            block_tokens: AtomicU32::new(0),
            memory,
        }
    }

    /// Assigns a slot to each backend that serves the model now, given by serial, and returns them in
    /// the same order. A backend keeps its slot; slots of backends that no longer serve the model are
    /// cleared and reused.
    pub fn assign(&self, backends: impl Iterator<Item = u64> + Clone) -> Vec<Slot> {
        let mut assigned = self.assigned.lock();
        let mut shards = self.shards.lock();
        for (index, owner) in assigned.iter_mut().enumerate() {
            if owner.is_some_and(|serial| !backends.clone().any(|other| other == serial)) {
                *owner = None;
                if let Some(shard) = shards.indexes.get_mut(index / SLOTS) {
                    shard.clear(index % SLOTS);
                }
            }
        }
        let slots = backends.map(|serial| {
            let known = assigned.iter().position(|owner| *owner == Some(serial));
            let index = known.or_else(|| assigned.iter().position(Option::is_none));
            let index = index.unwrap_or(assigned.len());
            if index == assigned.len() {
                assigned.push(None);
            }
            if let Some(owner) = assigned.get_mut(index) {
                *owner = Some(serial);
            }
            Slot::of(index)
        });
        slots.collect()
    }

    /// Runs lookups on the shards under one lock; the first shard holds the first 64 slots.
    pub fn read<R>(&self, lookup: impl FnOnce(&[PrefixIndex]) -> R) -> R {
        lookup(&self.shards.lock().indexes)
    }

    /// Leading blocks of a prompt that a backend is predicted to have cached.
    pub fn matched(&self, slot: Slot, chain: &[u64]) -> u32 {
        let mut length = 0;
        self.read(|shards| {
            if let Some(shard) = shards.get(usize::from(slot.shard)) {
                shard.longest(chain, 1 << slot.bit, |_, found| length = found);
            }
        });
        length
    }

    /// Records that a prompt was sent to a backend. Blocks from an earlier epoch of its engine are
    /// dropped first.
    pub fn record(&self, slot: Slot, chain: &[u64], state: CacheState) {
        let mut shards = self.shards.lock();
        shards.prepare(slot, state, &self.memory);
        shards.apply(slot, CacheEvent::Stored(chain));
    }

    /// A prompt is sent to a backend, which is predicted to have it cached from now on.
    pub fn routed(&self, slot: Slot, chain: &Chain, state: CacheState) {
        if chain.blocks() > 0 {
            self.record(slot, chain.hashes(), state);
        }
    }

    /// A backend failed to serve a prompt that was routed to it.
    pub fn not_served(&self, slot: Slot, predicted: &Predicted) {
        if let Some(event) = predicted.when_not_served() {
            self.apply(slot, event);
        }
    }

    /// A backend served a prompt and reports how many tokens of it were cached.
    pub fn served(&self, slot: Slot, predicted: &Predicted, cached_tokens: u32) {
        if let Some(event) = predicted.when_served(cached_tokens) {
            self.apply(slot, event);
        }
    }

    /// Drops the blocks of backends whose engine epoch has changed: it restarted or was away.
    pub fn sync_epochs(&self, epochs: impl Iterator<Item = (Slot, u32)>) {
        let mut shards = self.shards.lock();
        epochs.for_each(|(slot, epoch)| shards.sync_epoch(slot, epoch));
    }

    /// Applies a change of a backend's cache.
    pub fn apply(&self, slot: Slot, event: CacheEvent<'_>) {
        self.shards.lock().apply(slot, event);
    }

    /// Tokens per block, when an engine of the model reports it.
    pub fn block_tokens(&self) -> Option<u32> {
        Some(self.block_tokens.load(Ordering::Relaxed)).filter(|tokens| *tokens > 0)
    }

    /// Sets the block size that the engines report. Blocks of another size can never match again, so
    /// they are dropped; those recorded before the first report have the default size.
    pub fn set_block_tokens(&self, block_tokens: Option<u32>) {
        let default = PrefixParams::default().block_tokens;
        let tokens = block_tokens.unwrap_or(0);
        let before = self.block_tokens.swap(tokens, Ordering::Relaxed);
        let [before, now] = [before, tokens].map(|size| if size == 0 { default } else { size });
        if before != now {
            for index in &mut self.shards.lock().indexes {
                (0..SLOTS).for_each(|slot| index.clear(slot));
            }
        }
    }

    /// Evicts the least recently used blocks of a backend until at most `blocks` are left.
    pub fn evict_to(&self, slot: Slot, blocks: u32) {
        if let Some(index) = self.shards.lock().indexes.get_mut(usize::from(slot.shard)) {
            index.evict_to(usize::from(slot.bit), blocks);
        }
    }

    /// Bytes of memory in use; `None` when nothing was ever recorded.
    pub fn bytes(&self) -> Option<usize> {
        let shards = self.shards.lock();
        shards.indexes.iter().map(PrefixIndex::charged).reduce(|all, one| all + one)
    }

    /// Evicts blocks until at most `bytes` of memory are in use, or until the pass has done enough.
    pub fn shrink_to(&self, bytes: usize) {
        for _ in 0..MAX_EVICTIONS {
            // The lock is released after each eviction: decisions must not wait for the whole pass.
            let mut shards = self.shards.lock();
            let size = shards.indexes.iter().map(PrefixIndex::charged).sum::<usize>();
            let largest = shards.indexes.iter_mut().max_by_key(|index| index.charged());
            if size <= bytes || !largest.is_some_and(PrefixIndex::evict_some) {
                return;
            }
        }
    }

    /// Blocks that a backend is predicted to have cached.
    pub fn held(&self, slot: Slot) -> u32 {
        let shards = self.shards.lock();
        let index = shards.indexes.get(usize::from(slot.shard));
        index.map_or(0, |index| index.held(usize::from(slot.bit)))
    }
}

impl Shards {
    /// Makes room for a backend's slot, and brings its epoch and capacity up to date.
    fn prepare(&mut self, slot: Slot, state: CacheState, memory: &Arc<MemoryBudget>) {
        let (shard, bit) = (usize::from(slot.shard), usize::from(slot.bit));
        while self.indexes.len() <= shard {
            self.indexes.push(PrefixIndex::new(state.capacity, Arc::clone(memory)));
        }
        let index = shard * SLOTS + bit;
        if self.epochs.len() <= index {
            self.epochs.resize(index + 1, state.epoch);
        }
        self.sync_epoch(slot, state.epoch);
        if let Some(index) = self.indexes.get_mut(shard) {
            index.set_capacity(bit, state.capacity);
        }
    }

    fn sync_epoch(&mut self, slot: Slot, epoch: u32) {
        let (shard, bit) = (usize::from(slot.shard), usize::from(slot.bit));
        let known = self.epochs.get_mut(shard * SLOTS + bit).filter(|known| **known != epoch);
        if let Some((known, index)) = known.zip(self.indexes.get_mut(shard)) {
            *known = epoch;
            index.clear(bit);
        }
    }

    fn apply(&mut self, slot: Slot, event: CacheEvent<'_>) {
        let Some(index) = self.indexes.get_mut(usize::from(slot.shard)) else { return };
        let slot = usize::from(slot.bit);
        match event {
            CacheEvent::Stored(chain) => index.record(slot, chain),
            CacheEvent::Removed(blocks) => index.remove(slot, blocks),
            CacheEvent::Missed(first) => index.miss(slot, first),
            CacheEvent::Cleared => index.clear(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: CacheState = CacheState { capacity: 100, epoch: 0 };

    fn prefixes(bytes: usize) -> ModelIndex {
        ModelIndex::new(MemoryBudget::new(bytes))
    }

    fn ids(serials: &[u64]) -> impl Iterator<Item = u64> + Clone + '_ {
        serials.iter().copied()
    }

    #[test]
    fn slots_are_stable_and_reused_after_removal() {
        let prefixes = prefixes(1 << 20);
        let first = prefixes.assign(ids(&[7, 3, 9]));
        for slot in &first {
            prefixes.record(*slot, &[1, 2, 3], KEPT);
        }
        let second = prefixes.assign(ids(&[9, 7, 4]));
        assert_eq!((second[0], second[1]), (first[2], first[0]), "in any order");
        assert_eq!(second[2], first[1], "a free slot is reused");
        assert_eq!(prefixes.held(second[2]), 0);
        assert_eq!(prefixes.held(second[0]), 3);
        assert_eq!(prefixes.matched(second[0], &[1, 2, 9]), 2);
        assert_eq!(prefixes.matched(second[2], &[1, 2, 9]), 0);
        prefixes.apply(second[0], CacheEvent::Cleared);
        assert_eq!(prefixes.held(second[0]), 0);
    }

    #[test]
    fn more_than_64_backends_use_several_shards() {
        let prefixes = prefixes(1 << 24);
        let all: Vec<u64> = (0..200).collect();
        let slots = prefixes.assign(ids(&all));
        assert_eq!(slots[199], Slot { shard: 3, bit: 7 });
        prefixes.record(slots[199], &[1, 2], KEPT);
        prefixes.record(slots[135], &[1, 2, 3], KEPT);
        let held: Vec<u32> = [199, 135, 7].map(|index| prefixes.held(slots[index])).into();
        assert_eq!(held, [2, 3, 0], "equal bits of different shards are independent");
    }

    #[test]
    fn engine_restart_clears_its_blocks() {
        let prefixes = prefixes(1 << 20);
        let slots = prefixes.assign(ids(&[1, 2]));
        for slot in &slots {
            prefixes.record(*slot, &[1, 2, 3, 4], KEPT);
        }
        prefixes.record(slots[0], &[9], CacheState { epoch: 1, ..KEPT });
        assert_eq!((prefixes.held(slots[0]), prefixes.held(slots[1])), (1, 4));
        prefixes.record(slots[1], &[1], CacheState { capacity: 2, ..KEPT });
        assert_eq!(prefixes.held(slots[1]), 2);
        prefixes.sync_epochs(slots.iter().copied().zip([1, 1]));
        assert_eq!(
            (prefixes.held(slots[0]), prefixes.held(slots[1])),
            (1, 0),
            "also without a record"
        );
    }

    #[test]
    fn cache_events_update_the_prediction() {
        let prefixes = prefixes(1 << 20);
        let slots = prefixes.assign(ids(&[1]));
        prefixes.record(slots[0], &[1, 2, 3, 4], KEPT);
        let longest = |chain: &[u64]| {
            let mut found = 0;
            prefixes.read(|all| all[0].longest(chain, 1, |_, length| found = length));
            found
        };
        prefixes.apply(slots[0], CacheEvent::Removed(&[3]));
        assert_eq!((longest(&[1, 2, 3, 4]), prefixes.held(slots[0])), (2, 2));
        prefixes.apply(slots[0], CacheEvent::Stored(&[1, 2, 3]));
        assert_eq!(longest(&[1, 2, 3, 4]), 3);
        prefixes.apply(slots[0], CacheEvent::Removed(&[1]));
        assert_eq!((longest(&[1, 2, 3, 4]), prefixes.held(slots[0])), (0, 0));
        prefixes.apply(slots[0], CacheEvent::Stored(&[1, 2, 3]));
        prefixes.apply(slots[0], CacheEvent::Cleared);
        assert_eq!((longest(&[1]), prefixes.held(slots[0])), (0, 0));
    }

    #[test]
    fn changed_block_size_clears_the_index() {
        let prefixes = prefixes(1 << 20);
        let slots = prefixes.assign(ids(&[1]));
        assert_eq!(prefixes.block_tokens(), None);
        prefixes.record(slots[0], &[1, 2], KEPT);
        prefixes.set_block_tokens(None);
        prefixes.set_block_tokens(Some(16));
        assert_eq!((prefixes.block_tokens(), prefixes.held(slots[0])), (Some(16), 2));
        prefixes.set_block_tokens(Some(32));
        assert_eq!((prefixes.block_tokens(), prefixes.held(slots[0])), (Some(32), 0));
        prefixes.record(slots[0], &[7], KEPT);
        prefixes.set_block_tokens(Some(32));
        assert_eq!(prefixes.held(slots[0]), 1);
    }
}
