//! Longest cached prefixes for all backends in one walk, exact LRU per backend.
//!
//! Blocks that were recorded together lie together, in runs: a walk takes a step for each run, not
//! for each block, and so does a record of what is known. Source of the idea: the radix trees of
//! SGLang and its router; here the hashes themselves tell what goes before them, so that runs are
//! found by their first block and need no tree.

use std::sync::Arc;

use hashbrown::HashTable;

use super::budget::Budget;
use super::run::{Hold, NONE};
use super::runs::Runs;

/// The most lanes of an index: one bit each.
pub const LANES: usize = 64;
/// So many blocks are forgotten at a time where memory is short.
const FORGOTTEN_AT_ONCE: u32 = 64;

/// The ends of one backend's list of runs, in the order of their last use.
#[derive(Debug, Clone)]
struct Lane {
    newest: u32,
    oldest: u32,
    /// Blocks held.
    count: u32,
    /// The most it may hold.
    capacity: u32,
    /// How often it was found to lack the beginning of a prompt.
    missed: u32,
}

/// Which blocks which of up to 64 backends are believed to have cached. A backend is a lane, 0..64.
#[derive(Debug)]
pub struct PrefixIndex {
    runs: Runs,
    lanes: Vec<Lane>,
    /// The runs of the chain that is being recorded.
    path: Vec<u32>,
    capacity: u32,
    charged: usize,
    budget: Arc<Budget>,
}

impl PrefixIndex {
    /// An empty index in which each lane holds at most `capacity` blocks.
    pub fn new(capacity: u32, budget: Arc<Budget>) -> Self {
        budget.share(true);
        let runs = Runs::default();
        Self { runs, lanes: Vec::new(), path: Vec::new(), capacity, charged: 0, budget }
    }

    /// Blocks held by a lane.
    pub fn held(&self, lane: usize) -> u32 {
        self.lanes.get(lane).map_or(0, |lane| lane.count)
    }

    /// Distinct blocks held by anybody.
    pub fn blocks(&self) -> usize {
        self.runs.blocks()
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.runs.bytes()
            + self.lanes.capacity() * size_of::<Lane>()
            + self.path.capacity() * size_of::<u32>()
    }

    /// Bytes that count for the budget.
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Tells `found` for each of the `lanes` (a bit each) how many leading blocks of `chain` it holds
    /// without a gap. Refreshes nothing.
    pub fn longest(&self, chain: &[u64], lanes: u64, mut found: impl FnMut(usize, u32)) {
        let (mut alive, mut length, mut rest) = (lanes, 0, chain);
        // Of each lane, the last time that it missed what was walked over.
        let mut missed = [0; LANES];
        while alive != 0
            && let Some(run) = rest.first().and_then(|head| self.runs.find(*head))
        {
            let (run, common) = (run.1, run.1.in_common(rest));
            bits(alive & !run.holders()).for_each(|lane| found(lane, length));
            alive &= run.holders();
            for (lane, hold) in bits(run.holders()).zip(run.holds()) {
                let Some(missed) = missed.get_mut(lane) else { continue };
                *missed = hold.missed.max(*missed);
                let held = if hold.used < *missed { 0 } else { hold.blocks };
                if held < common && alive & 1 << lane != 0 {
                    found(lane, length + held);
                    alive &= !(1 << lane);
                }
            }
            length += common;
            rest = rest.get(common as usize..).unwrap_or_default();
        }
        bits(alive).for_each(|lane| found(lane, length));
    }

    /// Notes that a lane was sent a prompt. Its first block counts as used last, so that it is the last
    /// to be forgotten: a chain without its beginning can never be found again.
    pub fn record(&mut self, lane: usize, chain: &[u64]) {
        if lane >= LANES {
            return;
        }
        self.open(lane);
        let capacity = self.lanes.get(lane).map_or(0, |lane| lane.capacity as usize);
        let kept = chain.get(..capacity.min(chain.len())).unwrap_or_default();
        let bound = self.budget.bound(self.charged);
        let mut path = std::mem::take(&mut self.path);
        let known = self.take_known(lane, kept, &mut path);
        self.take_new(lane, kept.split_at(known), &mut path);
        while let Some(run) = path.pop() {
            self.unlink(lane, run);
            self.link_newest(lane, run);
        }
        self.path = path;
        self.make_room(lane);
        self.settle();
        while self.budget.used() > bound && self.forget_some() {
            self.settle();
        }
    }

    /// Forgets what a lane holds beyond so many blocks, as if they did not fit.
    pub fn hold_at_most(&mut self, lane: usize, blocks: u32) {
        while self.held(lane) > blocks {
            self.evict(lane, self.held(lane) - blocks);
        }
        self.settle();
    }

    /// Forgets some blocks, so that memory becomes free. Whether there were any.
    pub fn give_back(&mut self) -> bool {
        let had_some = self.forget_some();
        self.settle();
        had_some
    }

    /// Notes that a lane has no prompt that begins with this block: its engine computed one anew. What
    /// follows the block counts again once it was recorded again, and else ages.
    pub fn miss(&mut self, lane: usize, first: u64) {
        let Some(run) = self.runs.find(first).map(|(run, _)| run) else { return };
        let Some(times) = self.lanes.get(lane).map(|lane| lane.missed) else { return };
        let Some(times) = times.checked_add(1) else {
            // After four billions of them: all that it is believed to have goes, with the counts.
            self.clear(lane);
            return self.set_missed(lane, 0);
        };
        if let Some(hold) = self.runs.hold_mut(run, lane) {
            hold.missed = times;
            self.set_missed(lane, times);
        }
    }

    fn set_missed(&mut self, lane: usize, times: u32) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.missed = times;
        }
    }

    /// Forgets blocks on a lane, and all that follows them in any prompt: the engine told that it does
    /// not have them. Looks through all that the lane holds.
    pub fn forget(&mut self, lane: usize, blocks: &[u64]) {
        let mut next = self.lanes.get(lane).map_or(NONE, |lane| lane.newest);
        let mut gone = HashTable::new();
        // What follows a block was never used after it, so one pass meets everything in order.
        while let Some(Hold { blocks: held, older, .. }) = self.runs.hold(next, lane).copied() {
            let at = self.runs.get(next).and_then(|run| run.first_of(blocks, &gone));
            if let Some(at) = at.filter(|at| *at < held) {
                let hashes = self.runs.get(next).map(|run| run.hashes()).unwrap_or_default();
                for hash in hashes.iter().take(held as usize).skip(at as usize) {
                    gone.insert_unique(*hash, *hash, |hash| *hash);
                }
                self.shorten(lane, next, at);
            }
            next = older;
        }
        self.settle();
    }

    /// Lets a lane hold at most `capacity` blocks; what is too much is forgotten at once.
    pub fn set_capacity(&mut self, lane: usize, capacity: u32) {
        if lane >= LANES {
            return;
        }
        self.open(lane);
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.capacity = capacity.max(1);
        }
        self.make_room(lane);
        self.settle();
    }

    /// Forgets all a lane holds, and gives its memory back.
    pub fn clear(&mut self, lane: usize) {
        while self.held(lane) > 0 {
            self.evict(lane, u32::MAX);
        }
        self.settle();
    }

    fn open(&mut self, lane: usize) {
        let capacity = self.capacity.max(1);
        while self.lanes.len() <= lane {
            self.lanes.push(Lane { newest: NONE, oldest: NONE, count: 0, capacity, missed: 0 });
        }
    }

    /// Lets a lane hold what is known of a chain, and no run more than that. How many blocks that are;
    /// their runs go onto the path.
    fn take_known(&mut self, lane: usize, chain: &[u64], path: &mut Vec<u32>) -> usize {
        let mut known = 0;
        while let Some(rest) = chain.get(known..)
            && let Some((run, own)) = rest.first().and_then(|head| self.runs.find(*head))
        {
            let common = own.in_common(rest);
            match own.hold(lane).map(|hold| hold.blocks) {
                Some(held) if held > common => self.split(run, common),
                Some(held) => self.set_blocks(lane, run, (held, common)),
                None => {
                    self.runs.change(run, |own| own.add_hold(lane, Hold::new(common, 0)));
                    self.count(lane, (0, common));
                    self.link_newest(lane, run);
                }
            }
            path.push(run);
            known += common as usize;
        }
        known
    }

    /// Adds what was not known of a chain: to the run at whose end it begins, or as a run of its own.
    fn take_new(&mut self, lane: usize, (known, new): (&[u64], &[u64]), path: &mut Vec<u32>) {
        let Ok(count @ 1..) = u32::try_from(new.len()) else { return };
        let last = path.last().copied();
        let whole = |run: u32| {
            let own = self.runs.get(run)?;
            own.hold(lane).map(|hold| hold.blocks).filter(|held| *held == own.len())
        };
        if let Some((run, held)) = last.and_then(|run| Some((run, whole(run)?))) {
            self.runs.change(run, |own| own.append(new));
            self.set_blocks(lane, run, (held, held + count));
        } else if let Some(run) = self.runs.add(known.last(), new) {
            self.runs.change(run, |own| own.add_hold(lane, Hold::new(count, 0)));
            self.count(lane, (0, count));
            self.link_newest(lane, run);
            path.push(run);
        }
    }

    /// Parts a run behind its first `at` blocks. To a lane that holds more, both parts are as old as
    /// the run was.
    fn split(&mut self, run: u32, at: u32) {
        let Some(own) = self.runs.get(run) else { return };
        let behind: smallvec::SmallVec<[u64; 64]> =
            own.hashes().get(at as usize..).unwrap_or_default().into();
        // To a lane that missed the run, the second part follows what it missed.
        let beyond = |(lane, hold): (usize, &Hold)| {
            let part =
                Hold { blocks: hold.blocks.checked_sub(at)?, newer: run, missed: 0, ..*hold };
            (part.blocks > 0).then_some((lane, part))
        };
        let holds: smallvec::SmallVec<[(usize, Hold); 8]> =
            bits(own.holders()).zip(own.holds()).filter_map(beyond).collect();
        let before = own.hashes().get(..at as usize).and_then(<[u64]>::last).copied();
        let Some(second) = self.runs.add(before.as_ref(), &behind) else { return };
        for (lane, part) in holds {
            self.runs.change(second, |own| own.add_hold(lane, part));
            if let Some(hold) = self.runs.hold_mut(run, lane) {
                (hold.blocks, hold.older) = (at, second);
            }
            self.set_newer_of(lane, part.older, second);
        }
        self.runs.trim(run);
    }

    /// Forgets what a lane holds too much.
    fn make_room(&mut self, lane: usize) {
        while let Some(own) = self.lanes.get(lane)
            && own.count > own.capacity
        {
            self.evict(lane, own.count - own.capacity);
        }
    }

    /// Forgets some blocks of the lane that holds most: memory is short. Whether there were any.
    fn forget_some(&mut self) -> bool {
        let most = self.lanes.iter().enumerate().max_by_key(|(_, lane)| lane.count);
        let Some((lane, _)) = most.filter(|(_, lane)| lane.count > 0) else { return false };
        self.evict(lane, FORGOTTEN_AT_ONCE);
        true
    }

    /// Forgets the end of the run that a lane used least recently: at most so many blocks.
    fn evict(&mut self, lane: usize, most: u32) {
        let Some(oldest) = self.lanes.get(lane).map(|lane| lane.oldest) else { return };
        let held = self.runs.hold(oldest, lane).map_or(0, |hold| hold.blocks);
        self.shorten(lane, oldest, held.saturating_sub(most));
    }

    /// Leaves a lane the first `kept` blocks of those it holds of a run.
    fn shorten(&mut self, lane: usize, run: u32, kept: u32) {
        let Some(held) = self.runs.hold(run, lane).map(|hold| hold.blocks) else { return };
        if kept == 0 {
            self.unlink(lane, run);
            self.runs.change(run, |own| own.drop_hold(lane));
            self.count(lane, (held, 0));
        } else {
            self.set_blocks(lane, run, (held, kept));
        }
        self.runs.trim(run);
    }

    fn set_blocks(&mut self, lane: usize, run: u32, (before, now): (u32, u32)) {
        if let Some(hold) = self.runs.hold_mut(run, lane) {
            hold.blocks = now;
        }
        self.count(lane, (before, now));
    }

    fn count(&mut self, lane: usize, (before, now): (u32, u32)) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.count = lane.count + now - before;
        }
    }

    fn unlink(&mut self, lane: usize, run: u32) {
        let Some(Hold { newer, older, .. }) = self.runs.hold(run, lane).copied() else { return };
        self.set_newer_of(lane, older, newer);
        if let Some(newer) = self.runs.hold_mut(newer, lane) {
            newer.older = older;
        } else if let Some(lane) = self.lanes.get_mut(lane) {
            lane.newest = older;
        }
    }

    fn link_newest(&mut self, lane: usize, run: u32) {
        let Some(own) = self.lanes.get_mut(lane) else { return };
        let before = std::mem::replace(&mut own.newest, run);
        let used = own.missed;
        self.set_newer_of(lane, before, run);
        if let Some(hold) = self.runs.hold_mut(run, lane) {
            (hold.newer, hold.older, hold.used) = (NONE, before, used);
        }
    }

    /// Says what a lane used next after `run`; with no run, what it used least recently.
    fn set_newer_of(&mut self, lane: usize, run: u32, newer: u32) {
        if let Some(hold) = self.runs.hold_mut(run, lane) {
            hold.newer = newer;
        } else if let Some(lane) = self.lanes.get_mut(lane) {
            lane.oldest = newer;
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
        self.budget.share(false);
    }
}

fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < u64::BITS).then_some(lane as usize)
    })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
