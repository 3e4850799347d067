//! The prefix index of one model, shared by all threads and carried over from topology to topology.
//!
//! An index has room for 64 backends (one bit each), so a model with more backends has several
//! shards. A [`Slot`] names the shard and the bit of a backend; it is stable for as long as the
//! backend serves the model.
//!
//! Locking: one mutex per model, held for one lookup or one record (less than a microsecond for 256
//! blocks; see `benches/weighted.rs`), or while a prompt that was not computed is withdrawn, which
//! compares at most its blocks and 32 others. A lookup and the update that follows it take the lock
//! separately, so two concurrent requests with the same new prompt may both miss. The second record
//! then wins, which costs one prefill and breaks nothing. Nothing else may be locked while it is
//! held, and no code under it may block.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use penstock_scoring::PrefixParams;

use super::chain::Chain;
use super::engine_cache::{EngineCache, Membership};
use super::events::{CacheEvent, CacheState, Predicted};
use super::index::PrefixIndex;
use super::memory::MemoryBudget;
use super::run::SLOTS;

/// The most evictions of one background pass over an index.
const MAX_EVICTIONS: u32 = 4096;

/// The position of a backend in a model's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The shard of the model; each has room for 64 backends.
    pub shard: u16,
    /// The bit within the shard.
    pub bit: u8,
}

impl Slot {
    /// The slot before one is assigned.
    pub const UNASSIGNED: Self = Self { shard: 0, bit: 0 };

    fn of(index: usize) -> Self {
        Self {
            shard: u16::try_from(index / SLOTS).unwrap_or(u16::MAX),
            bit: u8::try_from(index % SLOTS).unwrap_or(u8::MAX),
        }
    }

    fn index(self) -> usize {
        usize::from(self.shard) * SLOTS + usize::from(self.bit)
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
    /// The cache that each slot's backend has for all its models.
    caches: Vec<Option<Membership>>,
}

impl ModelIndex {
    /// Returns an empty index that shares `memory`.
    pub fn new(memory: Arc<MemoryBudget>) -> Self {
        Self {
            assigned: Mutex::default(),
            shards: Mutex::default(),
            block_tokens: AtomicU32::new(0),
            memory,
        }
    }

    /// Assigns a slot to each backend that serves the model now, given by serial, and returns them
    /// in the same order. A backend keeps its slot; slots of backends that no longer serve the
    /// model are cleared and reused.
    pub fn assign(&self, backends: impl Iterator<Item = u64> + Clone) -> Vec<Slot> {
        // Only here are both locked at one time, so the order cannot differ.
        let mut assigned = self.assigned.lock();
        let mut shards = self.shards.lock();
        for (index, owner) in assigned.iter_mut().enumerate() {
            if owner.is_some_and(|serial| !backends.clone().any(|other| other == serial)) {
                *owner = None;
                if let Some(cache) = shards.caches.get_mut(index) {
                    // Ends the membership: the backend's other models have a larger even share
                    // again.
                    *cache = None;
                }
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

    /// Makes backends share their caches with their other models.
    pub fn share<'a>(&self, caches: impl Iterator<Item = (Slot, &'a Arc<EngineCache>)>) {
        let mut shards = self.shards.lock();
        for (slot, cache) in caches {
            let index = slot.index();
            if shards.caches.len() <= index {
                shards.caches.resize_with(index + 1, || None);
            }
            if let Some(known) = shards.caches.get_mut(index)
                && !known.as_ref().is_some_and(|known| Arc::ptr_eq(known.cache(), cache))
            {
                *known = Some(Membership::of(cache));
            }
        }
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

    /// Records that a prompt is sent to a backend. From now on it is predicted to be cached there,
    /// unless the backend keeps none.
    pub fn routed(&self, slot: Slot, chain: &Chain, state: CacheState) {
        if state.capacity == 0 {
            self.apply(slot, CacheEvent::Cleared);
        } else if chain.blocks() > 0 {
            self.record(slot, chain.hashes(), state);
        }
    }

    /// Records that a backend did not compute a prompt that was routed to it.
    pub fn not_computed(&self, slot: Slot, predicted: &Predicted) {
        if let Some(event) = predicted.when_not_computed() {
            self.apply(slot, event);
        }
    }

    /// Records that a backend served a prompt and reported how many tokens of it were cached.
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

    /// The tokens per block, if an engine of the model reports them.
    pub fn block_tokens(&self) -> Option<u32> {
        Some(self.block_tokens.load(Ordering::Relaxed)).filter(|tokens| *tokens > 0)
    }

    /// Sets the block size that the engines report. Blocks of another size can never match again,
    /// so they are dropped. Blocks recorded before the first report have the default size.
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

    /// Evicts the least recently used blocks of a backend until at most `tokens` remain of those
    /// that count towards its cache.
    pub fn evict_to(&self, slot: Slot, tokens: u64) {
        if let Some(index) = self.shards.lock().indexes.get_mut(usize::from(slot.shard)) {
            index.evict_to(usize::from(slot.bit), tokens);
        }
    }

    /// Tokens of the blocks that a backend is predicted to have cached.
    pub fn held_tokens(&self, slot: Slot) -> u64 {
        let shards = self.shards.lock();
        let index = shards.indexes.get(usize::from(slot.shard));
        index.map_or(0, |index| index.held_tokens(usize::from(slot.bit)))
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
        let index = slot.index();
        if self.epochs.len() <= index {
            // A slot in between may get an epoch that is not its own: it holds nothing yet.
            self.epochs.resize(index + 1, state.epoch);
        }
        self.sync_epoch(slot, state.epoch);
        let cache = self.caches.get(index).and_then(Option::as_ref);
        if let Some(index) = self.indexes.get_mut(shard) {
            if let Some(cache) = cache.map(Membership::cache) {
                let block_tokens = state.block_tokens.max(1);
                cache.set_capacity(u64::from(state.capacity) * u64::from(block_tokens));
                index.share(bit, cache, block_tokens);
            }
            index.set_capacity(bit, state.capacity);
        }
    }

    fn sync_epoch(&mut self, slot: Slot, epoch: u32) {
        let known = self.epochs.get_mut(slot.index()).filter(|known| **known != epoch);
        if let Some((known, index)) = known.zip(self.indexes.get_mut(usize::from(slot.shard))) {
            *known = epoch;
            index.clear(usize::from(slot.bit));
        }
    }

    fn apply(&mut self, slot: Slot, event: CacheEvent<'_>) {
        let Some(index) = self.indexes.get_mut(usize::from(slot.shard)) else { return };
        let slot = usize::from(slot.bit);
        match event {
            CacheEvent::Stored(chain) => index.record(slot, chain),
            CacheEvent::Removed(blocks) => index.remove(slot, blocks),
            CacheEvent::Missed(first) => index.miss(slot, first),
            CacheEvent::NotStored { first, last } => index.take_back(slot, first, last),
            CacheEvent::Cleared => index.clear(slot),
        }
    }
}

#[cfg(test)]
mod tests;
