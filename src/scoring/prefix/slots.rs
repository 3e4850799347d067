//! The distinct blocks of an index, each with who holds it.

use hashbrown::HashTable;

use super::pages::{PAGE, Pages};

/// No slot, no node.
pub(super) const NONE: u32 = u32::MAX;

/// Blocks by their hash. What belongs to one block lies in three columns: without padding they take
/// 20 bytes.
#[derive(Debug, Default)]
pub(super) struct Slots {
    by_hash: HashTable<u32>,
    hashes: Pages<u64>,
    /// A bit for each lane that holds the block.
    holders: Pages<u64>,
    /// The first node of the block's list of holders; of a free slot, the next free one.
    firsts: Pages<u32>,
    free: u32,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { free: NONE, ..Self::default() }
    }

    /// Distinct blocks held.
    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        self.by_hash.allocation_size()
            + self.hashes.bytes()
            + self.holders.bytes()
            + self.firsts.bytes()
    }

    pub(super) fn find(&self, hash: u64) -> Option<u32> {
        let is_it = |slot: &u32| self.hash(*slot) == hash;
        self.by_hash.find(hash, is_it).copied()
    }

    /// The lanes that hold a block; none where nobody does.
    pub(super) fn holders_of(&self, hash: u64) -> u64 {
        self.find(hash).map_or(0, |slot| self.holders(slot))
    }

    fn hash(&self, slot: u32) -> u64 {
        self.hashes.get(slot).copied().unwrap_or_default()
    }

    pub(super) fn holders(&self, slot: u32) -> u64 {
        self.holders.get(slot).copied().unwrap_or_default()
    }

    pub(super) fn first(&self, slot: u32) -> u32 {
        self.firsts.get(slot).copied().unwrap_or(NONE)
    }

    pub(super) fn set(&mut self, slot: u32, holders: u64, first: u32) {
        if let (Some(old), Some(head)) = (self.holders.get_mut(slot), self.firsts.get_mut(slot)) {
            (*old, *head) = (holders, first);
        }
    }

    /// The slot of a block, a new one where there is none.
    pub(super) fn obtain(&mut self, hash: u64) -> u32 {
        if let Some(slot) = self.find(hash) {
            return slot;
        }
        let slot = self.take_free(hash);
        let Self { by_hash, hashes, .. } = self;
        let rehash = |slot: &u32| hashes.get(*slot).copied().unwrap_or_default();
        by_hash.insert_unique(hash, slot, rehash);
        slot
    }

    fn take_free(&mut self, hash: u64) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        self.free = self.first(slot);
        if let Some(own) = self.hashes.get_mut(slot) {
            *own = hash;
        }
        self.set(slot, 0, NONE);
        slot
    }

    fn grow(&mut self) {
        let from = u32::try_from(self.hashes.len()).unwrap_or(NONE);
        self.hashes.grow(0);
        self.holders.grow(0);
        self.firsts.grow(NONE);
        for slot in (from..).take(PAGE) {
            self.set(slot, 0, self.free);
            self.free = slot;
        }
    }

    /// Gives a slot up that nobody holds any more.
    pub(super) fn release(&mut self, slot: u32) {
        let hash = self.hash(slot);
        if let Ok(entry) = self.by_hash.find_entry(hash, |other| *other == slot) {
            entry.remove();
            self.set(slot, 0, self.free);
            self.free = slot;
        }
    }
}
