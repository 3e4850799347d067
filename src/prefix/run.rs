//! Blocks that follow one another in prompts, and which backends hold them: up to where, and since
//! when.

use hashbrown::HashTable;
use smallvec::SmallVec;

/// Backends per index: one bit each.
pub const SLOTS: usize = u64::BITS as usize;

/// No run.
pub(super) const NONE: u32 = u32::MAX;

/// What memory managers add to a piece of memory of its own.
const PIECE: usize = 16;

/// A slot's part of a run. All of it was used last at the same time, its first block after the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    /// Leading blocks of the run that the slot holds: at least one.
    pub(super) blocks: u32,
    /// The run that the slot used next after this one; `NONE` for the newest.
    pub(super) newer: u32,
    /// The run that the slot used last before this one; `NONE` for the oldest.
    pub(super) older: u32,
    /// How often the slot had missed a beginning when it used the run last.
    pub(super) used: u32,
    /// The same when it last missed this run: it has none of it that was not used since, and nothing
    /// of what follows it; 0 where it never did.
    pub(super) missed: u32,
}

impl Hold {
    /// What is used now; not in a list yet.
    pub(super) fn new(blocks: u32, used: u32) -> Self {
        Self { blocks, newer: NONE, older: NONE, used, missed: 0 }
    }
}

/// Blocks that follow one another in prompts. What follows the last, or parts from the run before its
/// end, is a run of its own: a hash tells all that goes before it.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The block before its first; the first of a prompt stands for itself.
    before: u64,
    hashes: SmallVec<[u64; 2]>,
    /// A bit for each slot that holds some of it.
    holders: u64,
    /// What they hold, in the order of their bits.
    holds: SmallVec<[Hold; 1]>,
}

impl Run {
    pub(super) fn new(before: Option<&u64>, hashes: &[u64]) -> Self {
        let before = before.or(hashes.first()).copied().unwrap_or_default();
        Self { before, hashes: SmallVec::from_slice(hashes), ..Self::default() }
    }

    /// The first block.
    pub(super) fn head(&self) -> Option<u64> {
        self.hashes.first().copied()
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

    /// What the slots hold that hold any of it, in the order of their bits.
    pub(super) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// How many blocks a chain and the run have in common. As a hash tells what goes before it, they
    /// part but once.
    pub(super) fn in_common(&self, chain: &[u64]) -> u32 {
        let most = self.hashes.len().min(chain.len());
        let equal = |at: usize| self.hashes.get(at) == chain.get(at);
        if most > 0 && equal(most - 1) {
            return u32::try_from(most).unwrap_or(NONE);
        }
        let (mut known, mut parted) = (0, most);
        while known < parted {
            let middle = known.midpoint(parted);
            if equal(middle) { known = middle + 1 } else { parted = middle }
        }
        u32::try_from(known).unwrap_or(NONE)
    }

    /// Which of its blocks is the first that is one of `blocks`, or follows what is `gone`.
    pub(super) fn first_of(&self, blocks: &[u64], gone: &HashTable<u64>) -> Option<u32> {
        if gone.find(self.before, |hash| *hash == self.before).is_some() {
            return Some(0);
        }
        let at = self.hashes.iter().position(|hash| blocks.contains(hash))?;
        u32::try_from(at).ok()
    }

    pub(super) fn hold(&self, slot: usize) -> Option<&Hold> {
        self.holds.get(self.place_of(slot)?)
    }

    pub(super) fn hold_mut(&mut self, slot: usize) -> Option<&mut Hold> {
        let place = self.place_of(slot)?;
        self.holds.get_mut(place)
    }

    /// Lets a slot that holds nothing of it hold some.
    pub(super) fn add_hold(&mut self, slot: usize, hold: Hold) {
        let place = self.rank(slot);
        self.holders |= 1 << slot;
        self.holds.reserve_exact(1);
        self.holds.insert(place, hold);
    }

    /// Takes it from a slot.
    pub(super) fn drop_hold(&mut self, slot: usize) {
        if let Some(place) = self.place_of(slot) {
            self.holds.remove(place);
            self.holders &= !(1 << slot);
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

    /// Drops the blocks at its end that nobody holds.
    pub(super) fn trim(&mut self) {
        let held = self.holds.iter().map(|hold| hold.blocks).max().unwrap_or(0);
        if held < self.len() {
            self.hashes.truncate(held as usize);
            self.hashes.shrink_to_fit();
        }
    }

    /// Bytes it takes in memory of its own.
    pub(super) fn bytes_apart(&self) -> usize {
        let piece = |is_apart: bool, bytes: usize| if is_apart { bytes + PIECE } else { 0 };
        piece(self.hashes.spilled(), self.hashes.capacity() * size_of::<u64>())
            + piece(self.holds.spilled(), self.holds.capacity() * size_of::<Hold>())
    }

    fn place_of(&self, slot: usize) -> Option<usize> {
        (slot < SLOTS && self.holders & 1 << slot != 0).then(|| self.rank(slot))
    }

    /// How many of the holders come before a slot.
    fn rank(&self, slot: usize) -> usize {
        (self.holders & ((1 << slot) - 1)).count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_chain_has_in_common_with_a_run_is_found() {
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
    fn holds_are_kept_by_lane() {
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
