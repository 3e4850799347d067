//! The LRU list of each slot, and eviction from its end. Every change of a slot's blocks ends in
//! `count`, so that its sum and its share of the backend's cache are always right.

use super::PrefixIndex;
use crate::prefix::run::{Hold, NONE};

/// Blocks evicted at a time when memory is short.
const EVICTED_AT_ONCE: u32 = 64;

impl PrefixIndex {
    /// Evicts the blocks above the capacity of a slot.
    pub(super) fn make_room(&mut self, slot: usize) {
        while let Some(own) = self.slots.get(slot)
            && let room = own.room()
            && own.count > room
        {
            self.evict(slot, own.count - room);
        }
    }

    /// Evicts some blocks of the slot that holds most. Returns whether there were any.
    pub(super) fn evict_least_recent(&mut self) -> bool {
        // The lists of different slots have no common order of use.
        let most = self.slots.iter().enumerate().max_by_key(|(_, slot)| slot.count);
        let Some((slot, _)) = most.filter(|(_, slot)| slot.count > 0) else { return false };
        self.evict(slot, EVICTED_AT_ONCE);
        true
    }

    /// Evicts at most `most` blocks from the end of the least recently used run of a slot.
    pub(super) fn evict(&mut self, slot: usize, most: u32) {
        let Some(oldest) = self.slots.get(slot).map(|slot| slot.oldest) else { return };
        let held = self.runs.hold(oldest, slot).map_or(0, |hold| hold.blocks);
        self.shorten(slot, oldest, held.saturating_sub(most));
    }

    /// Reduces the blocks that a slot holds of a run to the first `kept`.
    pub(super) fn shorten(&mut self, slot: usize, run: u32, kept: u32) {
        let Some(held) = self.runs.hold(run, slot).map(|hold| hold.blocks) else { return };
        if kept == 0 {
            self.unlink(slot, run);
            self.runs.change(run, |own| own.drop_hold(slot));
            self.count(slot, held, 0);
        } else {
            self.set_blocks(slot, run, held, kept);
        }
        self.runs.trim(run);
    }

    pub(super) fn set_blocks(&mut self, slot: usize, run: u32, before: u32, now: u32) {
        if let Some(hold) = self.runs.hold_mut(run, slot) {
            hold.blocks = now;
        }
        self.count(slot, before, now);
    }

    pub(super) fn count(&mut self, slot: usize, before: u32, now: u32) {
        if let Some(slot) = self.slots.get_mut(slot) {
            // Added first: the difference may be negative, and the counts are unsigned.
            slot.count = slot.count + now - before;
            if let Some(share) = &mut slot.share {
                share.hold(slot.count);
            }
        }
    }

    pub(super) fn unlink(&mut self, slot: usize, run: u32) {
        let Some(Hold { newer, older, .. }) = self.runs.hold(run, slot).copied() else { return };
        self.set_newer_of(slot, older, newer);
        if let Some(newer) = self.runs.hold_mut(newer, slot) {
            newer.older = older;
        } else if let Some(slot) = self.slots.get_mut(slot) {
            slot.newest = older;
        }
    }

    pub(super) fn link_newest(&mut self, slot: usize, run: u32) {
        let Some(own) = self.slots.get_mut(slot) else { return };
        let before = std::mem::replace(&mut own.newest, run);
        // Used now, so it counts again, whatever the slot has missed before.
        let used = own.missed;
        self.set_newer_of(slot, before, run);
        if let Some(hold) = self.runs.hold_mut(run, slot) {
            (hold.newer, hold.older, hold.used) = (NONE, before, used);
        }
    }

    /// Sets the newer neighbour of `run` in a slot's list, or the oldest run of the list for
    /// `NONE`.
    pub(super) fn set_newer_of(&mut self, slot: usize, run: u32, newer: u32) {
        if let Some(hold) = self.runs.hold_mut(run, slot) {
            hold.newer = newer;
        } else if let Some(slot) = self.slots.get_mut(slot) {
            slot.oldest = newer;
        }
    }
}
