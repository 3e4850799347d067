//! Which prompts of a model went where: the prefix index of one model, carried from topology to
//! topology.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::pool::IndexPool;
use super::{PrefixIndex, SLOTS};
use crate::clock::Stopwatch;
use crate::scoring::PrefixParams;

/// Of so many times a lock is held, one is measured.
const MEASURED: u32 = 16;

/// How often at most an index gives memory back in a row.
const GIVING_BACK: u32 = 4096;

/// The place of a backend in a model's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Which of the model's indexes: each has room for 64 backends.
    pub shard: u16,
    /// The bit within.
    pub bit: u8,
}

/// The prefix index of one model. The one lock of a decision: held for a lookup, and for a record.
#[derive(Debug)]
pub struct ModelIndex {
    slots: Mutex<Vec<Option<u64>>>,
    shards: Mutex<Shards>,
    /// Tokens of a block as the engines told; 0 where none did.
    block_tokens: AtomicU32,
    pool: Arc<IndexPool>,
}

#[derive(Debug, Default)]
struct Shards {
    indexes: Vec<PrefixIndex>,
    /// The epoch of the engine in each slot.
    epochs: Vec<u32>,
    /// How often the lock was taken.
    taken: u32,
}

/// What is to be believed of a backend's cache from now on, whoever says so: our own decisions, or
/// an engine that publishes what becomes of its blocks (BlockStored, BlockRemoved and
/// AllBlocksCleared of vLLM). Blocks are hashes of our own: who knows others translates them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEvent<'a> {
    /// It has the blocks of a prompt, from its beginning.
    Stored(&'a [u64]),
    /// It does not have these any more, and so nothing that follows them.
    Removed(&'a [u64]),
    /// It was sent a prompt that begins with this block, and had not even that.
    Missed(u64),
    /// It has none.
    Cleared,
}

/// What is known of a backend's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheState {
    /// The most blocks it holds.
    pub capacity: u32,
    /// How often its engine has restarted or was away.
    pub epoch: u32,
}

impl ModelIndex {
    /// An empty index, its memory a part of the pool's.
    pub fn new(pool: Arc<IndexPool>) -> Self {
        Self {
            slots: Mutex::default(),
            shards: Mutex::default(),
            block_tokens: AtomicU32::new(0),
            pool,
        }
    }

    /// The slots of the backends that serve the model now, by their serials and in their order; what
    /// was known of others is forgotten.
    pub fn assign(&self, backends: impl Iterator<Item = u64> + Clone) -> Vec<Slot> {
        let mut slots = self.slots.lock();
        let mut shards = self.shards.lock();
        for (place, slot) in slots.iter_mut().enumerate() {
            if slot.is_some_and(|id| !backends.clone().any(|other| other == id)) {
                *slot = None;
                if let Some(shard) = shards.indexes.get_mut(place / SLOTS) {
                    shard.clear(place % SLOTS);
                }
            }
        }
        let place = |id| {
            let known = slots.iter().position(|slot| *slot == Some(id));
            let place = known.or_else(|| slots.iter().position(Option::is_none));
            let place = place.unwrap_or(slots.len());
            if place == slots.len() {
                slots.push(None);
            }
            if let Some(slot) = slots.get_mut(place) {
                *slot = Some(id);
            }
            Slot {
                shard: u16::try_from(place / SLOTS).unwrap_or(u16::MAX),
                bit: u8::try_from(place % SLOTS).unwrap_or(u8::MAX),
            }
        };
        backends.map(place).collect()
    }

    /// Works on the indexes, for lookups: the first is of the first 64 slots.
    pub fn read<R>(&self, work: impl FnOnce(&[PrefixIndex]) -> R) -> R {
        self.locked(|shards| work(&shards.indexes))
    }

    /// Leading blocks of a prompt that a backend is believed to have.
    pub fn matched(&self, slot: Slot, chain: &[u64]) -> u32 {
        let mut length = 0;
        self.read(|shards| {
            if let Some(shard) = shards.get(usize::from(slot.shard)) {
                shard.longest(chain, 1 << slot.bit, |_, found| length = found);
            }
        });
        length
    }

    /// Notes that a backend was sent a prompt. What it was sent in another epoch of its engine is
    /// forgotten.
    pub fn record(&self, slot: Slot, chain: &[u64], kept: CacheState) {
        self.locked(|shards| {
            shards.meet(slot, kept, &self.pool);
            shards.apply(slot, CacheEvent::Stored(chain));
        });
    }

    /// Forgets what those backends had whose engines have restarted or were away, by how often.
    pub fn renew(&self, epochs: impl Iterator<Item = (Slot, u32)>) {
        self.locked(|shards| epochs.for_each(|(slot, epoch)| shards.renew(slot, epoch)));
    }

    /// Takes in what became of a backend's cache.
    pub fn apply(&self, slot: Slot, event: CacheEvent<'_>) {
        self.locked(|shards| shards.apply(slot, event));
    }

    /// Tokens of a block, where the model's engines tell.
    pub fn block_tokens(&self) -> Option<u32> {
        Some(self.block_tokens.load(Ordering::Relaxed)).filter(|tokens| *tokens > 0)
    }

    /// Takes in the size of the engines' blocks. What was cut into others can never be found again;
    /// what was cut before any engine told was cut into those of the usual size.
    pub fn follow(&self, block_tokens: Option<u32>) {
        let usual = PrefixParams::default().block_tokens;
        let tokens = block_tokens.unwrap_or(0);
        let before = self.block_tokens.swap(tokens, Ordering::Relaxed);
        let size = |tokens| if tokens == 0 { usual } else { tokens };
        if size(before) != size(tokens) {
            self.locked(|shards| {
                for index in &mut shards.indexes {
                    (0..SLOTS).for_each(|slot| index.clear(slot));
                }
            });
        }
    }

    fn locked<R>(&self, work: impl FnOnce(&mut Shards) -> R) -> R {
        let mut shards = self.shards.lock();
        shards.taken = shards.taken.wrapping_add(1);
        if !shards.taken.is_multiple_of(MEASURED) {
            return work(&mut shards);
        }
        let watch = Stopwatch::start();
        let result = work(&mut shards);
        drop(shards);
        self.pool.measure(watch.elapsed());
        result
    }

    /// Forgets what a backend is believed to have beyond so many blocks, the oldest first.
    pub(crate) fn hold_at_most(&self, slot: Slot, blocks: u32) {
        self.locked(|shards| {
            if let Some(index) = shards.indexes.get_mut(usize::from(slot.shard)) {
                index.hold_at_most(usize::from(slot.bit), blocks);
            }
        });
    }

    /// Bytes of memory it takes; `None` when it never wanted any.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.locked(|shards| {
            shards.indexes.iter().map(PrefixIndex::charged).reduce(|all, one| all + one)
        })
    }

    /// Gives memory back until it takes no more than so many bytes, or has done so many times.
    pub(crate) fn give_back(&self, bytes: usize) {
        for _ in 0..GIVING_BACK {
            // In turns: decisions want the lock, too.
            let is_done = self.locked(|shards| {
                let size = shards.indexes.iter().map(PrefixIndex::charged).sum::<usize>();
                let largest = shards.indexes.iter_mut().max_by_key(|index| index.charged());
                size <= bytes || !largest.is_some_and(PrefixIndex::give_back)
            });
            if is_done {
                return;
            }
        }
    }

    /// Blocks a backend is believed to have.
    pub fn held(&self, slot: Slot) -> u32 {
        let shards = self.shards.lock();
        let index = shards.indexes.get(usize::from(slot.shard));
        index.map_or(0, |index| index.held(usize::from(slot.bit)))
    }
}

impl Shards {
    /// Makes room for a backend, and forgets what it had in another epoch of its engine.
    fn meet(&mut self, slot: Slot, kept: CacheState, pool: &IndexPool) {
        let (shard, bit) = (usize::from(slot.shard), usize::from(slot.bit));
        while self.indexes.len() <= shard {
            self.indexes.push(PrefixIndex::new(kept.capacity, Arc::clone(pool.budget())));
        }
        let place = shard * SLOTS + bit;
        if self.epochs.len() <= place {
            self.epochs.resize(place + 1, kept.epoch);
        }
        self.renew(slot, kept.epoch);
        if let Some(index) = self.indexes.get_mut(shard) {
            index.set_capacity(bit, kept.capacity);
        }
    }

    fn renew(&mut self, slot: Slot, epoch: u32) {
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
            CacheEvent::Removed(blocks) => index.forget(slot, blocks),
            CacheEvent::Missed(first) => index.miss(slot, first),
            CacheEvent::Cleared => index.clear(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KEPT: CacheState = CacheState { capacity: 100, epoch: 0 };

    fn prefixes(bytes: usize) -> ModelIndex {
        let pool = IndexPool::default();
        pool.budget().set_limit(bytes);
        ModelIndex::new(Arc::new(pool))
    }

    fn ids(serials: &[u64]) -> impl Iterator<Item = u64> + Clone + '_ {
        serials.iter().copied()
    }

    #[test]
    fn backends_keep_their_lanes_and_what_leaves_is_forgotten() {
        let prefixes = prefixes(1 << 20);
        let first = prefixes.assign(ids(&[7, 3, 9]));
        for slot in &first {
            prefixes.record(*slot, &[1, 2, 3], KEPT);
        }
        let second = prefixes.assign(ids(&[9, 7, 4]));
        assert_eq!((second[0], second[1]), (first[2], first[0]), "whatever their order");
        assert_eq!(second[2], first[1], "a free slot is used again");
        assert_eq!(prefixes.held(second[2]), 0);
        assert_eq!(prefixes.held(second[0]), 3);
        assert_eq!(prefixes.matched(second[0], &[1, 2, 9]), 2);
        assert_eq!(prefixes.matched(second[2], &[1, 2, 9]), 0);
        prefixes.apply(second[0], CacheEvent::Cleared);
        assert_eq!(prefixes.held(second[0]), 0);
    }

    #[test]
    fn there_is_room_for_any_number_of_backends() {
        let prefixes = prefixes(1 << 24);
        let all: Vec<u64> = (0..200).collect();
        let slots = prefixes.assign(ids(&all));
        assert_eq!(slots[199], Slot { shard: 3, bit: 7 });
        prefixes.record(slots[199], &[1, 2], KEPT);
        prefixes.record(slots[135], &[1, 2, 3], KEPT);
        let held: Vec<u32> = [199, 135, 7].map(|index| prefixes.held(slots[index])).into();
        assert_eq!(held, [2, 3, 0], "slots of equal bits are not mixed up");
    }

    #[test]
    fn a_restart_forgets_and_capacity_follows() {
        let prefixes = prefixes(1 << 20);
        let slots = prefixes.assign(ids(&[1, 2]));
        for slot in &slots {
            prefixes.record(*slot, &[1, 2, 3, 4], KEPT);
        }
        prefixes.record(slots[0], &[9], CacheState { epoch: 1, ..KEPT });
        assert_eq!((prefixes.held(slots[0]), prefixes.held(slots[1])), (1, 4));
        prefixes.record(slots[1], &[1], CacheState { capacity: 2, ..KEPT });
        assert_eq!(prefixes.held(slots[1]), 2);
        prefixes.renew(slots.iter().copied().zip([1, 1]));
        assert_eq!((prefixes.held(slots[0]), prefixes.held(slots[1])), (1, 0), "also unasked");
    }

    #[test]
    fn engines_may_say_themselves_what_becomes_of_their_blocks() {
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
    fn blocks_of_another_size_are_forgotten() {
        let prefixes = prefixes(1 << 20);
        let slots = prefixes.assign(ids(&[1]));
        assert_eq!(prefixes.block_tokens(), None);
        prefixes.record(slots[0], &[1, 2], KEPT);
        prefixes.follow(None);
        prefixes.follow(Some(16));
        assert_eq!((prefixes.block_tokens(), prefixes.held(slots[0])), (Some(16), 2));
        prefixes.follow(Some(32));
        assert_eq!((prefixes.block_tokens(), prefixes.held(slots[0])), (Some(32), 0));
        prefixes.record(slots[0], &[7], KEPT);
        prefixes.follow(Some(32));
        assert_eq!(prefixes.held(slots[0]), 1);
    }

    #[test]
    fn every_sixteenth_lock_is_measured() {
        let prefixes = prefixes(1 << 20);
        (0..160).for_each(|_| prefixes.read(|_| ()));
        let (count, all, longest) = prefixes.pool.locks_held();
        assert_eq!(count, 10);
        assert!(longest <= all && all > Duration::ZERO);
    }
}
