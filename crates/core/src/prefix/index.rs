//! The longest cached prefix of a prompt on up to 64 backends, in one walk, with exact LRU eviction
//! for each backend.
//!
//! # Layout
//! Blocks that were recorded together are stored together, in a run: an array of hashes, and for
//! each backend (slot) that holds some of them a [`Hold`] with the number of leading blocks it
//! holds. A lookup takes one hash table access per run instead of one per block. The idea is the
//! radix tree of SGLang and its router. A hash covers all blocks before it, so the tree needs no
//! edges: the hash of its first block finds a run, and the hash of the next block finds the run
//! that continues a prompt.
//!
//! # LRU
//! Each slot links its runs in a list from the most to the least recently used. Recording a prompt
//! moves its runs to the front in reverse order, so that its first run is the newest: the beginning
//! of a prompt is evicted last, because no block after a missing one can ever be found. Eviction
//! shortens the oldest run from its end for the same reason.
//!
//! # Misses
//! An engine that reports a miss of a block has evicted everything after it as well, in any prompt.
//! Finding all of that would need a walk over the slot, so a miss only records a count:
//! `Hold::missed` on the run that was missed, and `Hold::used` on a run that is used later. While a
//! lookup walks a prompt, a run does not count if its `used` is less than the largest `missed` up
//! to it.
//!
//! # Invariants
//! - A slot holds a leading part of a run, never a gap: `1 <= hold.blocks <= run.len()`.
//! - A run never contains blocks that no slot holds, and is dropped with its last holder.
//! - Two runs never begin with the same hash; a prompt that leaves a run in its middle splits it.
//! - `SlotState::count` is the sum of `blocks` over the slot's list, and at most its capacity.
//! - In a slot's list, the blocks that follow a block in a prompt are older than the block.
//!   `remove` relies on it to finish in one pass; linking runs in another order would leave
//!   unreachable blocks in the index.
//! - `charged` is the last charge to the shared budget; it is updated at the end of every change.
//!
//! `tests::lookups_and_eviction_match_exact_lru` compares all this with a list per backend.

mod eviction;

use std::sync::Arc;

use hashbrown::HashTable;
use penstock_api::slices::part_of;

use super::engine_cache::{CacheShare, EngineCache};
use super::memory::MemoryBudget;
use super::run::{Hold, NONE, SLOTS};
use super::runs::Runs;

/// The most runs that [`PrefixIndex::take_back`] looks at: those of a prompt are among the newest
/// until others have been recorded.
const MAX_LOOKED_BACK: usize = 32;

/// One backend's list of runs in the order of their last use.
#[derive(Debug)]
struct SlotState {
    newest: u32,
    oldest: u32,
    /// The number of blocks held.
    count: u32,
    /// The most blocks it may hold.
    capacity: u32,
    /// The number of misses so far; the time against which `Hold::used` and `Hold::missed` are
    /// compared.
    missed: u32,
    /// Its part of the backend's cache, which bounds it in addition to its capacity.
    share: Option<CacheShare>,
}

impl SlotState {
    /// The most blocks it may hold now.
    fn room(&self) -> u32 {
        self.share.as_ref().map_or(self.capacity, |share| share.room().min(self.capacity))
    }
}

/// The predicted cache contents of up to 64 backends. A backend is a slot, 0..64.
#[derive(Debug)]
pub struct PrefixIndex {
    runs: Runs,
    slots: Vec<SlotState>,
    /// The runs of the chain that is being recorded; kept to avoid an allocation.
    path: Vec<u32>,
    capacity: u32,
    charged: usize,
    budget: Arc<MemoryBudget>,
}

impl PrefixIndex {
    /// Returns an empty index in which each slot holds at most `capacity` blocks.
    pub fn new(capacity: u32, budget: Arc<MemoryBudget>) -> Self {
        budget.join();
        let runs = Runs::default();
        Self { runs, slots: Vec::new(), path: Vec::new(), capacity, charged: 0, budget }
    }

    /// Blocks held by a slot.
    pub fn held(&self, slot: usize) -> u32 {
        self.slots.get(slot).map_or(0, |slot| slot.count)
    }

    /// Distinct blocks held by any slot.
    pub fn blocks(&self) -> usize {
        self.runs.blocks()
    }

    pub fn bytes(&self) -> usize {
        self.runs.bytes()
            + self.slots.capacity() * size_of::<SlotState>()
            + self.path.capacity() * size_of::<u32>()
    }

    /// Bytes charged to the memory budget.
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Calls `found` for each of the `slots` (one bit each) with the number of leading blocks of
    /// `chain` it holds without a gap. Does not count as a use.
    pub fn longest(&self, chain: &[u64], slots: u64, mut found: impl FnMut(usize, u32)) {
        let (mut alive, mut length, mut rest) = (slots, 0, chain);
        // For each slot, its latest miss on the runs walked so far.
        let mut missed = [0; SLOTS];
        while alive != 0
            && let Some(run) = rest.first().and_then(|head| self.runs.find(*head))
        {
            let (run, common) = (run.1, run.1.in_common(rest));
            // Slots that hold nothing of this run end with the blocks before it.
            bits(alive & !run.holders()).for_each(|slot| found(slot, length));
            alive &= run.holders();
            for (slot, hold) in bits(run.holders()).zip(run.holds()) {
                let Some(missed) = missed.get_mut(slot) else { continue };
                *missed = hold.missed.max(*missed);
                let held = if hold.used < *missed { 0 } else { hold.blocks };
                if held < common && alive & 1 << slot != 0 {
                    found(slot, length + held);
                    alive &= !(1 << slot);
                }
            }
            length += common;
            rest = part_of(rest, common as usize..);
        }
        bits(alive).for_each(|slot| found(slot, length));
    }

    /// Records that a slot was sent a prompt. Its first block counts as the most recently used, so
    /// it is evicted last: a chain without its beginning can never be found.
    pub fn record(&mut self, slot: usize, chain: &[u64]) {
        if slot >= SLOTS {
            return;
        }
        self.open(slot);
        let room = self.slots.get(slot).map_or(0, |slot| slot.room() as usize);
        // Blocks beyond the room would be evicted again at once.
        let kept = part_of(chain, ..room.min(chain.len()));
        // Read before the change, which must not add to a budget that is already exceeded.
        let bound = self.budget.bound(self.charged);
        let mut path = std::mem::take(&mut self.path);
        let known = self.take_known(slot, kept, &mut path);
        let (known, new) = kept.split_at(known);
        self.take_new(slot, known, new, &mut path);
        // From the end: the first run of the prompt becomes the newest.
        while let Some(run) = path.pop() {
            self.unlink(slot, run);
            self.link_newest(slot, run);
        }
        self.path = path;
        self.make_room(slot);
        self.update_charge();
        while self.budget.used() > bound && self.evict_least_recent() {
            self.update_charge();
        }
    }

    /// Evicts the least recently used blocks of a slot until at most `tokens` of a shared cache
    /// remain.
    pub fn evict_to(&mut self, slot: usize, tokens: u64) {
        let share = self.slots.get(slot).and_then(|slot| slot.share.as_ref());
        let blocks = share.map_or(u32::MAX, |share| share.blocks_of(tokens));
        while self.held(slot) > blocks {
            self.evict(slot, self.held(slot) - blocks);
        }
        self.update_charge();
    }

    /// Evicts some blocks to free memory. Returns whether there were any.
    pub fn evict_some(&mut self) -> bool {
        let had_some = self.evict_least_recent();
        self.update_charge();
        had_some
    }

    /// Records that a slot's engine had no prompt that begins with this block. Blocks after it
    /// count again once they are recorded again; until then they age in the LRU list.
    pub fn miss(&mut self, slot: usize, first: u64) {
        let Some(run) = self.runs.find(first).map(|(run, _)| run) else { return };
        let Some(times) = self.slots.get(slot).map(|slot| slot.missed) else { return };
        let Some(times) = times.checked_add(1) else {
            // The count would wrap after four billion misses: restart with an empty slot.
            self.clear(slot);
            return self.set_missed(slot, 0);
        };
        if let Some(hold) = self.runs.hold_mut(run, slot) {
            hold.missed = times;
            self.set_missed(slot, times);
        }
    }

    fn set_missed(&mut self, slot: usize, times: u32) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.missed = times;
        }
    }

    /// Removes the blocks that a prompt added to a slot, from `first` to `last`. Keeps them if
    /// another prompt has split their run, or has made it longer; not for an identical one in
    /// flight, which cannot be seen. Looks at the [`MAX_LOOKED_BACK`] runs that were used last.
    pub fn take_back(&mut self, slot: usize, first: u64, last: u64) {
        let mut next = self.slots.get(slot).map_or(NONE, |slot| slot.newest);
        for _ in 0..MAX_LOOKED_BACK {
            let Some(run) = self.runs.get(next) else { return };
            let Some(Hold { blocks, older, .. }) = run.hold(slot).copied() else { return };
            let held = part_of(run.hashes(), ..blocks as usize);
            if held.last() == Some(&last) {
                let at = (0..blocks).zip(held).find(|(_, hash)| **hash == first);
                self.shorten(slot, next, at.map_or(0, |(at, _)| at));
                return self.update_charge();
            }
            next = older;
        }
    }

    /// Removes blocks from a slot, and everything after them in any prompt: for engines that report
    /// which blocks they evicted. No such report is read yet. Walks all runs of the slot.
    pub fn remove(&mut self, slot: usize, blocks: &[u64]) {
        let mut next = self.slots.get(slot).map_or(NONE, |slot| slot.newest);
        let mut gone = HashTable::new();
        // The blocks that follow a block are older than it, so one pass from new to old sees them
        // later.
        while let Some(run) = self.runs.get(next)
            && let Some(Hold { blocks: held, older, .. }) = run.hold(slot).copied()
        {
            if let Some(at) = run.first_of(blocks, &gone).filter(|at| *at < held) {
                for hash in part_of(run.hashes(), at as usize..held as usize) {
                    gone.insert_unique(*hash, *hash, |hash| *hash);
                }
                self.shorten(slot, next, at);
            }
            next = older;
        }
        self.update_charge();
    }

    /// Sets the capacity of a slot in blocks, and evicts the blocks above it.
    pub fn set_capacity(&mut self, slot: usize, capacity: u32) {
        if slot >= SLOTS {
            return;
        }
        self.open(slot);
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.capacity = capacity.max(1);
        }
        self.make_room(slot);
        self.update_charge();
    }

    /// Makes a slot hold part of a backend's cache, in blocks of `block_tokens`.
    pub fn share(&mut self, slot: usize, cache: &Arc<EngineCache>, block_tokens: u32) {
        if slot >= SLOTS {
            return;
        }
        self.open(slot);
        if let Some(own) = self.slots.get_mut(slot)
            && !own.share.as_ref().is_some_and(|share| share.is_of(cache, block_tokens))
        {
            own.share.insert(CacheShare::new(cache, block_tokens)).hold(own.count);
        }
    }

    /// Tokens held by a slot that shares a backend's cache.
    pub fn held_tokens(&self, slot: usize) -> u64 {
        let own = self.slots.get(slot);
        own.and_then(|own| Some(own.share.as_ref()?.tokens(own.count))).unwrap_or(0)
    }

    /// Evicts all blocks of a slot, and frees the memory.
    pub fn clear(&mut self, slot: usize) {
        while self.held(slot) > 0 {
            self.evict(slot, u32::MAX);
        }
        self.update_charge();
    }

    fn open(&mut self, slot: usize) {
        let capacity = self.capacity.max(1);
        while self.slots.len() <= slot {
            self.slots.push(SlotState {
                newest: NONE,
                oldest: NONE,
                count: 0,
                capacity,
                missed: 0,
                share: None,
            });
        }
    }

    /// Marks the blocks of a chain that the index already contains as held by a slot, splitting the
    /// last run where the chain leaves it. Returns their number; their runs are pushed onto the
    /// path.
    fn take_known(&mut self, slot: usize, chain: &[u64], path: &mut Vec<u32>) -> usize {
        let mut known = 0;
        while let Some(rest) = chain.get(known..)
            && let Some((run, own)) = rest.first().and_then(|head| self.runs.find(*head))
        {
            let common = own.in_common(rest);
            match own.hold(slot).map(|hold| hold.blocks) {
                // A part has one time of use: what follows the common blocks was used earlier.
                Some(held) if held > common => self.split(run, common),
                Some(held) => self.set_blocks(slot, run, held, common),
                None => {
                    self.runs.change(run, |own| own.add_hold(slot, Hold::new(common, 0)));
                    self.count(slot, 0, common);
                    self.link_newest(slot, run);
                }
            }
            path.push(run);
            known += common as usize;
        }
        known
    }

    /// Adds the new blocks of a chain: to the end of the run they follow, or as a new run.
    fn take_new(&mut self, slot: usize, known: &[u64], new: &[u64], path: &mut Vec<u32>) {
        let Ok(count @ 1..) = u32::try_from(new.len()) else { return };
        let last = path.last().copied();
        if let Some((run, held)) = last.and_then(|run| Some((run, self.whole(slot, run)?))) {
            self.runs.change(run, |own| own.append(new));
            self.set_blocks(slot, run, held, held + count);
        } else if let Some(run) = self.runs.add(known.last(), new) {
            self.runs.change(run, |own| own.add_hold(slot, Hold::new(count, 0)));
            self.count(slot, 0, count);
            self.link_newest(slot, run);
            path.push(run);
        }
    }

    /// The length of a run if a slot holds all of it.
    fn whole(&self, slot: usize, run: u32) -> Option<u32> {
        let run = self.runs.get(run)?;
        run.hold(slot).map(|hold| hold.blocks).filter(|held| *held == run.len())
    }

    /// Splits a run after its first `at` blocks. For a slot that holds blocks of both parts, the
    /// second one directly follows the first in the LRU list.
    fn split(&mut self, run: u32, at: u32) {
        let Some(own) = self.runs.get(run) else { return };
        let rest: smallvec::SmallVec<[u64; 64]> = part_of(own.hashes(), at as usize..).into();
        // A miss stays on the first part: the second part follows it, so the walk sees it.
        let parts = bits(own.holders()).zip(own.holds()).filter_map(|(slot, hold)| {
            let blocks = hold.blocks.checked_sub(at).filter(|blocks| *blocks > 0)?;
            Some((slot, Hold { blocks, newer: run, missed: 0, ..*hold }))
        });
        let parts: smallvec::SmallVec<[(usize, Hold); 8]> = parts.collect();
        let before = own.hashes().get(..at as usize).and_then(<[u64]>::last).copied();
        let Some(second) = self.runs.add(before.as_ref(), &rest) else { return };
        for (slot, part) in parts {
            self.runs.change(second, |own| own.add_hold(slot, part));
            if let Some(hold) = self.runs.hold_mut(run, slot) {
                (hold.blocks, hold.older) = (at, second);
            }
            self.set_newer_of(slot, part.older, second);
        }
        self.runs.trim(run);
    }

    /// Brings the memory budget up to date.
    fn update_charge(&mut self) {
        let used = self.runs.bytes();
        self.budget.charge(self.charged, used);
        self.charged = used;
    }
}

impl Drop for PrefixIndex {
    fn drop(&mut self) {
        self.budget.charge(self.charged, 0);
        self.budget.leave();
    }
}

fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (slot < u64::BITS).then_some(slot as usize)
    })
}

#[cfg(test)]
mod tests;
