//! The runs of an index in a hash table by the hash of their first block. Accounts for their
//! memory.

use hashbrown::HashTable;

use super::pages::Pages;
use super::run::{Hold, Run};

/// The runs of an index.
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_head: HashTable<u32>,
    pages: Pages<Run>,
    /// Blocks of all runs.
    blocks: usize,
    /// Bytes that runs allocate besides their entries.
    heap: usize,
}

impl Runs {
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes in use, including free entries.
    pub(super) fn bytes(&self) -> usize {
        self.by_head.allocation_size() + self.pages.bytes() + self.heap
    }

    pub(super) fn get(&self, run: u32) -> Option<&Run> {
        self.pages.get(run)
    }

    pub(super) fn hold(&self, run: u32, slot: usize) -> Option<&Hold> {
        self.pages.get(run)?.hold(slot)
    }

    pub(super) fn hold_mut(&mut self, run: u32, slot: usize) -> Option<&mut Hold> {
        self.pages.get_mut(run)?.hold_mut(slot)
    }

    /// The run whose first block has this hash.
    pub(super) fn find(&self, head: u64) -> Option<(u32, &Run)> {
        let run = *self.by_head.find(head, |run| head_of(&self.pages, *run) == head)?;
        Some((run, self.pages.get(run)?))
    }

    /// Adds a run of blocks that follow the block `before`; it has no holders yet.
    pub(super) fn add(&mut self, before: Option<&u64>, hashes: &[u64]) -> Option<u32> {
        let head = *hashes.first()?;
        let run = self.pages.take()?;
        self.change(run, |own| *own = Run::new(before, hashes));
        let Self { by_head, pages, .. } = self;
        by_head.insert_unique(head, run, |other| head_of(pages, *other));
        Some(run)
    }

    /// Changes a run, except its first block: that is its key.
    pub(super) fn change(&mut self, run: u32, change: impl FnOnce(&mut Run)) {
        if let Some(run) = self.pages.get_mut(run) {
            let (blocks, heap) = (run.hashes().len(), run.heap_bytes());
            change(run);
            self.blocks = self.blocks + run.hashes().len() - blocks;
            self.heap = self.heap + run.heap_bytes() - heap;
        }
    }

    /// Drops the blocks of a run that no slot holds, and the run with its last holder.
    pub(super) fn trim(&mut self, run: u32) {
        let Some(own) = self.pages.get(run) else { return };
        if own.holders() != 0 {
            return self.change(run, Run::trim);
        }
        let head = own.head();
        if let Ok(entry) = self.by_head.find_entry(head, |other| *other == run) {
            entry.remove();
            self.change(run, |own| *own = Run::default());
            self.pages.give_back(run);
        }
        // A hash table does not shrink by itself: an empty index gives its memory back.
        if self.by_head.is_empty() {
            *self = Self::default();
        }
    }
}

/// The first block of a run in the table.
#[inline(always)]
fn head_of(pages: &Pages<Run>, run: u32) -> u64 {
    let run = pages.get(run);
    debug_assert!(run.is_some(), "the table names runs that exist");
    run.map_or(0, Run::head)
}
