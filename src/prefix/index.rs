//! Longest cached prefixes for all backends in one walk, exact LRU per backend.
//!
//! Blocks that were recorded together lie together, in runs: a walk takes a step for each run, not
//! for each block, and so does a record of what is known. Source of the idea: the radix trees of
//! SGLang and its router; here the hashes themselves tell what goes before them, so that runs are
//! found by their first block and need no tree.

use std::sync::Arc;

use hashbrown::HashTable;

use super::memory::MemoryBudget;
use super::run::{Hold, NONE, SLOTS};
use super::runs::Runs;

/// So many blocks are forgotten at a time where memory is short.
const FORGOTTEN_AT_ONCE: u32 = 64;

/// The ends of one backend's list of runs, in the order of their last use.
#[derive(Debug, Clone)]
struct SlotState {
    newest: u32,
    oldest: u32,
    /// Blocks held.
    count: u32,
    /// The most it may hold.
    capacity: u32,
    /// How often it was found to lack the beginning of a prompt.
    missed: u32,
}

/// Which blocks which of up to 64 backends are believed to have cached. A backend is a slot, 0..64.
#[derive(Debug)]
pub struct PrefixIndex {
    runs: Runs,
    slots: Vec<SlotState>,
    /// The runs of the chain that is being recorded.
    path: Vec<u32>,
    capacity: u32,
    charged: usize,
    budget: Arc<MemoryBudget>,
}

impl PrefixIndex {
    /// An empty index in which each slot holds at most `capacity` blocks.
    pub fn new(capacity: u32, budget: Arc<MemoryBudget>) -> Self {
        budget.join();
        let runs = Runs::default();
        Self { runs, slots: Vec::new(), path: Vec::new(), capacity, charged: 0, budget }
    }

    /// Blocks held by a slot.
    pub fn held(&self, slot: usize) -> u32 {
        self.slots.get(slot).map_or(0, |slot| slot.count)
    }

    /// Distinct blocks held by anybody.
    pub fn blocks(&self) -> usize {
        self.runs.blocks()
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.runs.bytes()
            + self.slots.capacity() * size_of::<SlotState>()
            + self.path.capacity() * size_of::<u32>()
    }

    /// Bytes that count for the budget.
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Tells `found` for each of the `slots` (a bit each) how many leading blocks of `chain` it holds
    /// without a gap. Refreshes nothing.
    pub fn longest(&self, chain: &[u64], slots: u64, mut found: impl FnMut(usize, u32)) {
        let (mut alive, mut length, mut rest) = (slots, 0, chain);
        // Of each slot, the last time that it missed what was walked over.
        let mut missed = [0; SLOTS];
        while alive != 0
            && let Some(run) = rest.first().and_then(|head| self.runs.find(*head))
        {
            let (run, common) = (run.1, run.1.in_common(rest));
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
            rest = rest.get(common as usize..).unwrap_or_default();
        }
        bits(alive).for_each(|slot| found(slot, length));
    }

    /// Notes that a slot was sent a prompt. Its first block counts as used last, so that it is the last
    /// to be forgotten: a chain without its beginning can never be found again.
    pub fn record(&mut self, slot: usize, chain: &[u64]) {
        if slot >= SLOTS {
            return;
        }
        self.open(slot);
        let capacity = self.slots.get(slot).map_or(0, |slot| slot.capacity as usize);
        let kept = chain.get(..capacity.min(chain.len())).unwrap_or_default();
        let bound = self.budget.bound(self.charged);
        let mut path = std::mem::take(&mut self.path);
        let known = self.take_known(slot, kept, &mut path);
        self.take_new(slot, kept.split_at(known), &mut path);
        while let Some(run) = path.pop() {
            self.unlink(slot, run);
            self.link_newest(slot, run);
        }
        self.path = path;
        self.make_room(slot);
        self.settle();
        while self.budget.used() > bound && self.evict_least_recent() {
            self.settle();
        }
    }

    /// Forgets what a slot holds beyond so many blocks, as if they did not fit.
    pub fn evict_to(&mut self, slot: usize, blocks: u32) {
        while self.held(slot) > blocks {
            self.evict(slot, self.held(slot) - blocks);
        }
        self.settle();
    }

    /// Forgets some blocks, so that memory becomes free. Whether there were any.
    pub fn evict_some(&mut self) -> bool {
        let had_some = self.evict_least_recent();
        self.settle();
        had_some
    }

    /// Notes that a slot has no prompt that begins with this block: its engine computed one anew. What
    /// follows the block counts again once it was recorded again, and else ages.
    pub fn miss(&mut self, slot: usize, first: u64) {
        let Some(run) = self.runs.find(first).map(|(run, _)| run) else { return };
        let Some(times) = self.slots.get(slot).map(|slot| slot.missed) else { return };
        let Some(times) = times.checked_add(1) else {
            // After four billions of them: all that it is believed to have goes, with the counts.
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

    /// Forgets blocks on a slot, and all that follows them in any prompt: the engine told that it does
    /// not have them. Looks through all that the slot holds.
    pub fn remove(&mut self, slot: usize, blocks: &[u64]) {
        let mut next = self.slots.get(slot).map_or(NONE, |slot| slot.newest);
        let mut gone = HashTable::new();
        // What follows a block was never used after it, so one pass meets everything in order.
        while let Some(Hold { blocks: held, older, .. }) = self.runs.hold(next, slot).copied() {
            let at = self.runs.get(next).and_then(|run| run.first_of(blocks, &gone));
            if let Some(at) = at.filter(|at| *at < held) {
                let hashes = self.runs.get(next).map(|run| run.hashes()).unwrap_or_default();
                for hash in hashes.iter().take(held as usize).skip(at as usize) {
                    gone.insert_unique(*hash, *hash, |hash| *hash);
                }
                self.shorten(slot, next, at);
            }
            next = older;
        }
        self.settle();
    }

    /// Lets a slot hold at most `capacity` blocks; what is too much is forgotten at once.
    pub fn set_capacity(&mut self, slot: usize, capacity: u32) {
        if slot >= SLOTS {
            return;
        }
        self.open(slot);
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.capacity = capacity.max(1);
        }
        self.make_room(slot);
        self.settle();
    }

    /// Forgets all a slot holds, and gives its memory back.
    pub fn clear(&mut self, slot: usize) {
        while self.held(slot) > 0 {
            self.evict(slot, u32::MAX);
        }
        self.settle();
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
            });
        }
    }

    /// Lets a slot hold what is known of a chain, and no run more than that. How many blocks that are;
    /// their runs go onto the path.
    fn take_known(&mut self, slot: usize, chain: &[u64], path: &mut Vec<u32>) -> usize {
        let mut known = 0;
        while let Some(rest) = chain.get(known..)
            && let Some((run, own)) = rest.first().and_then(|head| self.runs.find(*head))
        {
            let common = own.in_common(rest);
            match own.hold(slot).map(|hold| hold.blocks) {
                Some(held) if held > common => self.split(run, common),
                Some(held) => self.set_blocks(slot, run, (held, common)),
                None => {
                    self.runs.change(run, |own| own.add_hold(slot, Hold::new(common, 0)));
                    self.count(slot, (0, common));
                    self.link_newest(slot, run);
                }
            }
            path.push(run);
            known += common as usize;
        }
        known
    }

    /// Adds what was not known of a chain: to the run at whose end it begins, or as a run of its own.
    fn take_new(&mut self, slot: usize, (known, new): (&[u64], &[u64]), path: &mut Vec<u32>) {
        let Ok(count @ 1..) = u32::try_from(new.len()) else { return };
        let last = path.last().copied();
        let whole = |run: u32| {
            let own = self.runs.get(run)?;
            own.hold(slot).map(|hold| hold.blocks).filter(|held| *held == own.len())
        };
        if let Some((run, held)) = last.and_then(|run| Some((run, whole(run)?))) {
            self.runs.change(run, |own| own.append(new));
            self.set_blocks(slot, run, (held, held + count));
        } else if let Some(run) = self.runs.add(known.last(), new) {
            self.runs.change(run, |own| own.add_hold(slot, Hold::new(count, 0)));
            self.count(slot, (0, count));
            self.link_newest(slot, run);
            path.push(run);
        }
    }

    /// Parts a run behind its first `at` blocks. To a slot that holds more, both parts are as old as
    /// the run was.
    fn split(&mut self, run: u32, at: u32) {
        let Some(own) = self.runs.get(run) else { return };
        let behind: smallvec::SmallVec<[u64; 64]> =
            own.hashes().get(at as usize..).unwrap_or_default().into();
        // To a slot that missed the run, the second part follows what it missed.
        let beyond = |(slot, hold): (usize, &Hold)| {
            let part =
                Hold { blocks: hold.blocks.checked_sub(at)?, newer: run, missed: 0, ..*hold };
            (part.blocks > 0).then_some((slot, part))
        };
        let holds: smallvec::SmallVec<[(usize, Hold); 8]> =
            bits(own.holders()).zip(own.holds()).filter_map(beyond).collect();
        let before = own.hashes().get(..at as usize).and_then(<[u64]>::last).copied();
        let Some(second) = self.runs.add(before.as_ref(), &behind) else { return };
        for (slot, part) in holds {
            self.runs.change(second, |own| own.add_hold(slot, part));
            if let Some(hold) = self.runs.hold_mut(run, slot) {
                (hold.blocks, hold.older) = (at, second);
            }
            self.set_newer_of(slot, part.older, second);
        }
        self.runs.trim(run);
    }

    /// Forgets what a slot holds too much.
    fn make_room(&mut self, slot: usize) {
        while let Some(own) = self.slots.get(slot)
            && own.count > own.capacity
        {
            self.evict(slot, own.count - own.capacity);
        }
    }

    /// Forgets some blocks of the slot that holds most: memory is short. Whether there were any.
    fn evict_least_recent(&mut self) -> bool {
        let most = self.slots.iter().enumerate().max_by_key(|(_, slot)| slot.count);
        let Some((slot, _)) = most.filter(|(_, slot)| slot.count > 0) else { return false };
        self.evict(slot, FORGOTTEN_AT_ONCE);
        true
    }

    /// Forgets the end of the run that a slot used least recently: at most so many blocks.
    fn evict(&mut self, slot: usize, most: u32) {
        let Some(oldest) = self.slots.get(slot).map(|slot| slot.oldest) else { return };
        let held = self.runs.hold(oldest, slot).map_or(0, |hold| hold.blocks);
        self.shorten(slot, oldest, held.saturating_sub(most));
    }

    /// Leaves a slot the first `kept` blocks of those it holds of a run.
    fn shorten(&mut self, slot: usize, run: u32, kept: u32) {
        let Some(held) = self.runs.hold(run, slot).map(|hold| hold.blocks) else { return };
        if kept == 0 {
            self.unlink(slot, run);
            self.runs.change(run, |own| own.drop_hold(slot));
            self.count(slot, (held, 0));
        } else {
            self.set_blocks(slot, run, (held, kept));
        }
        self.runs.trim(run);
    }

    fn set_blocks(&mut self, slot: usize, run: u32, (before, now): (u32, u32)) {
        if let Some(hold) = self.runs.hold_mut(run, slot) {
            hold.blocks = now;
        }
        self.count(slot, (before, now));
    }

    fn count(&mut self, slot: usize, (before, now): (u32, u32)) {
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.count = slot.count + now - before;
        }
    }

    fn unlink(&mut self, slot: usize, run: u32) {
        let Some(Hold { newer, older, .. }) = self.runs.hold(run, slot).copied() else { return };
        self.set_newer_of(slot, older, newer);
        if let Some(newer) = self.runs.hold_mut(newer, slot) {
            newer.older = older;
        } else if let Some(slot) = self.slots.get_mut(slot) {
            slot.newest = older;
        }
    }

    fn link_newest(&mut self, slot: usize, run: u32) {
        let Some(own) = self.slots.get_mut(slot) else { return };
        let before = std::mem::replace(&mut own.newest, run);
        let used = own.missed;
        self.set_newer_of(slot, before, run);
        if let Some(hold) = self.runs.hold_mut(run, slot) {
            (hold.newer, hold.older, hold.used) = (NONE, before, used);
        }
    }

    /// Says what a slot used next after `run`; with no run, what it used least recently.
    fn set_newer_of(&mut self, slot: usize, run: u32, newer: u32) {
        if let Some(hold) = self.runs.hold_mut(run, slot) {
            hold.newer = newer;
        } else if let Some(slot) = self.slots.get_mut(slot) {
            slot.oldest = newer;
        }
    }

    /// Tells the budget what is used.
    fn settle(&mut self) {
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
