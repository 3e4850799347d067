//! A run: blocks that follow one another in prompts, with the number that each backend holds.

use hashbrown::HashTable;
use penstock_api::slices::element_of;
use smallvec::SmallVec;

/// Backends per index: one bit each.
pub const SLOTS: usize = u64::BITS as usize;

/// The end of a list of runs.
pub(super) const NONE: u32 = u32::MAX;

/// The bytes that an allocator adds to each allocation.
const ALLOCATION: usize = 16;

/// A slot's part of a run. All of it was last used at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    /// Leading blocks of the run that the slot holds; at least one.
    pub(super) blocks: u32,
    /// The next newer run of the slot; `NONE` for the newest.
    pub(super) newer: u32,
    /// The next older run of the slot; `NONE` for the oldest.
    pub(super) older: u32,
    /// The slot's count of misses when it last used the run.
    pub(super) used: u32,
    /// The slot's count of misses when it last missed this run, 0 for never. Blocks that follow the
    /// run and were not used since are no longer cached.
    pub(super) missed: u32,
}

impl Hold {
    /// A part that is not in a list yet.
    pub(super) fn new(blocks: u32, used: u32) -> Self {
        Self { blocks, newer: NONE, older: NONE, used, missed: 0 }
    }
}

/// Blocks that follow one another in prompts. A prompt that continues after the last block, or
/// leaves the run before its end, continues in another run.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The block before the first one; for the start of a prompt the first block itself.
    before: u64,
    hashes: SmallVec<[u64; 2]>,
    /// One bit for each slot that holds some of it.
    holders: u64,
    /// Their parts, in the order of the bits: slot `n` is at the number of lower bits set.
    holds: SmallVec<[Hold; 1]>,
}

impl Run {
    pub(super) fn new(before: Option<&u64>, hashes: &[u64]) -> Self {
        let before = before.copied().unwrap_or_else(|| element_of(hashes, 0));
        Self { before, hashes: SmallVec::from_slice(hashes), ..Self::default() }
    }

    /// The first block; of a run that is in use.
    pub(super) fn head(&self) -> u64 {
        element_of(&self.hashes, 0)
    }

    pub(super) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.hashes.len()).unwrap_or(NONE)
    }

    pub(super) fn holders(&self) -> u64 {
        self.holders
    }

    /// The parts of all holders, in the order of their bits.
    pub(super) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// The number of leading blocks that a chain shares with the run. A hash covers all blocks
    /// before it, so after the first difference nothing is equal, and a binary search finds it.
    pub(super) fn in_common(&self, chain: &[u64]) -> u32 {
        let most = self.hashes.len().min(chain.len());
        if most > 0 && self.is_equal_at(most - 1, chain) {
            return u32::try_from(most).unwrap_or(NONE);
        }
        let (mut known, mut differs) = (0, most);
        while known < differs {
            let middle = known.midpoint(differs);
            if self.is_equal_at(middle, chain) { known = middle + 1 } else { differs = middle }
        }
        u32::try_from(known).unwrap_or(NONE)
    }

    #[inline(always)]
    fn is_equal_at(&self, at: usize, chain: &[u64]) -> bool {
        self.hashes.get(at) == chain.get(at)
    }

    /// The first of its blocks that is one of `blocks` or follows a `gone` block.
    pub(super) fn first_of(&self, blocks: &[u64], gone: &HashTable<u64>) -> Option<u32> {
        if gone.find(self.before, |hash| *hash == self.before).is_some() {
            return Some(0);
        }
        let at = self.hashes.iter().position(|hash| blocks.contains(hash))?;
        u32::try_from(at).ok()
    }

    pub(super) fn hold(&self, slot: usize) -> Option<&Hold> {
        self.holds.get(self.index_of(slot)?)
    }

    pub(super) fn hold_mut(&mut self, slot: usize) -> Option<&mut Hold> {
        let index = self.index_of(slot)?;
        self.holds.get_mut(index)
    }

    /// Adds the part of a slot that holds none of it yet.
    pub(super) fn add_hold(&mut self, slot: usize, hold: Hold) {
        let index = self.rank(slot);
        self.holders |= 1 << slot;
        // Exact, because the budget pays for the capacity, used or not.
        self.holds.reserve_exact(1);
        self.holds.insert(index, hold);
    }

    /// Removes the part of a slot.
    pub(super) fn drop_hold(&mut self, slot: usize) {
        if let Some(index) = self.index_of(slot) {
            self.holds.remove(index);
            self.holders &= !(1 << slot);
            // By halves: a holder that comes and goes does not reallocate each time.
            if self.holds.len() <= self.holds.capacity() / 2 {
                self.holds.shrink_to_fit();
            }
        }
    }

    /// Adds blocks at its end.
    pub(super) fn append(&mut self, hashes: &[u64]) {
        self.hashes.reserve_exact(hashes.len());
        self.hashes.extend_from_slice(hashes);
    }

    /// Drops the blocks at its end that no slot holds.
    pub(super) fn trim(&mut self) {
        let held = self.holds.iter().map(|hold| hold.blocks).max().unwrap_or(0);
        if held < self.len() {
            self.hashes.truncate(held as usize);
            self.hashes.shrink_to_fit();
        }
    }

    /// Bytes allocated outside of the run itself.
    pub(super) fn heap_bytes(&self) -> usize {
        let Self { hashes, holds, .. } = self;
        let of_hashes = hashes.spilled().then(|| hashes.capacity() * size_of::<u64>() + ALLOCATION);
        let of_holds = holds.spilled().then(|| holds.capacity() * size_of::<Hold>() + ALLOCATION);
        of_hashes.unwrap_or(0) + of_holds.unwrap_or(0)
    }

    fn index_of(&self, slot: usize) -> Option<usize> {
        (slot < SLOTS && self.holders & 1 << slot != 0).then(|| self.rank(slot))
    }

    /// Number of holders with a lower slot.
    fn rank(&self, slot: usize) -> usize {
        (self.holders & ((1 << slot) - 1)).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_blocks_are_counted_up_to_the_first_difference() {
        let run = Run::new(None, &[1, 2, 3, 4, 5]);
        for (chain, common) in [
            (&[1, 2, 3, 4, 5][..], 5),
            (&[1, 2, 3], 3),
            (&[1, 2, 3, 4, 5, 6], 5),
            (&[1, 2, 9, 8], 2),
            (&[1, 9], 1),
            (&[9], 0),
            (&[], 0),
        ] {
            assert_eq!(run.in_common(chain), common, "{chain:?}");
        }
    }

    #[test]
    fn holds_are_found_by_slot() {
        let mut run = Run::new(None, &[1, 2, 3]);
        for (slot, blocks) in [(63, 1), (0, 2), (7, 3)] {
            run.add_hold(slot, Hold::new(blocks, 0));
        }
        let blocks = |run: &Run, slot| run.hold(slot).map(|hold| hold.blocks);
        assert_eq!([0, 7, 63, 8].map(|slot| blocks(&run, slot)), [Some(2), Some(3), Some(1), None]);
        run.drop_hold(7);
        run.trim();
        assert_eq!((run.len(), run.holders()), (2, 1 << 63 | 1));
        assert_eq!([0, 7, 63].map(|slot| blocks(&run, slot)), [Some(2), None, Some(1)]);
    }
}
