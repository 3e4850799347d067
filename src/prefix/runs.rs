//! The runs of an index, found by their first blocks.

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
    /// Bytes that runs take in memory of their own.
    apart: usize,
}

impl Runs {
    /// Distinct blocks held.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes taken, those kept for later among them.
    pub(super) fn bytes(&self) -> usize {
        self.by_head.allocation_size() + self.pages.bytes() + self.apart
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

    /// The run that begins with a block.
    pub(super) fn find(&self, head: u64) -> Option<(u32, &Run)> {
        let is_it = |run: &u32| self.head(*run) == head;
        let run = *self.by_head.find(head, is_it)?;
        Some((run, self.pages.get(run)?))
    }

    /// Adds a run of blocks behind another block; nothing is known of who holds it.
    pub(super) fn add(&mut self, before: Option<&u64>, hashes: &[u64]) -> Option<u32> {
        let head = *hashes.first()?;
        let run = self.pages.take()?;
        self.change(run, |own| *own = Run::new(before, hashes));
        let Self { by_head, pages, .. } = self;
        let rehash = |run: &u32| pages.get(*run).and_then(Run::head).unwrap_or_default();
        by_head.insert_unique(head, run, rehash);
        Some(run)
    }

    /// Changes a run otherwise than in its first block.
    pub(super) fn change(&mut self, run: u32, change: impl FnOnce(&mut Run)) {
        if let Some(run) = self.pages.get_mut(run) {
            let (blocks, apart) = (run.hashes().len(), run.bytes_apart());
            change(run);
            self.blocks = self.blocks + run.hashes().len() - blocks;
            self.apart = self.apart + run.bytes_apart() - apart;
        }
    }

    /// Drops what nobody holds of a run, and with its last block the run.
    pub(super) fn trim(&mut self, run: u32) {
        let Some(own) = self.pages.get(run) else { return };
        if own.holders() != 0 {
            return self.change(run, Run::trim);
        }
        let head = own.head().unwrap_or_default();
        if let Ok(entry) = self.by_head.find_entry(head, |other| *other == run) {
            entry.remove();
            self.change(run, |own| *own = Run::default());
            self.pages.give_back(run);
        }
        if self.by_head.is_empty() {
            *self = Self::default();
        }
    }

    fn head(&self, run: u32) -> u64 {
        self.pages.get(run).and_then(Run::head).unwrap_or_default()
    }
}
