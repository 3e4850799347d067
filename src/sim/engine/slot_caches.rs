//! One cache per slot, as llama.cpp has them: each keeps the prompt that it served last. A request takes the free slot
//! whose prompt has the most in common with its own, if that is more than a tenth of it, else the free one that was
//! used the longest ago.

use super::block_cache::{Held, Hit};

/// The part of a prompt that must be in common (llama.cpp: `--slot-prompt-similarity`).
const LEAST_SIMILARITY: u32 = 10;

/// A slot.
#[derive(Debug, Clone, Default)]
struct SlotCache {
    hashes: Box<[u64]>,
    is_taken: bool,
    /// When it was last freed, as a count.
    freed: u64,
}

/// The slots of an engine.
#[derive(Debug, Clone)]
pub(super) struct SlotCaches {
    slots: Vec<SlotCache>,
    frees: u64,
}

impl SlotCaches {
    pub(super) fn new(slots: u32) -> Self {
        Self { slots: vec![SlotCache::default(); slots as usize], frees: 0 }
    }

    /// The slot that a prompt would take, and what it finds there of the first `limit` tokens; `None` while all are
    /// taken.
    pub(super) fn find(&self, held: &Held, limit: u32) -> Option<(usize, Hit)> {
        let free = || self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_taken);
        let common = |slot: &SlotCache| {
            let pairs = slot.hashes.iter().zip(held.hashes());
            let blocks = pairs.take_while(|(kept, wanted)| kept == wanted).count();
            u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(held.prefix_tokens())
        };
        let alike = free().map(|(index, slot)| (common(slot).min(limit), index));
        // Of equals the first, as in llama.cpp.
        let alike = alike.max_by_key(|(tokens, index)| (*tokens, std::cmp::Reverse(*index)))?;
        if alike.0.saturating_mul(LEAST_SIMILARITY) > limit {
            return Some((alike.1, Hit::of_tokens(alike.0)));
        }
        let oldest = free().min_by_key(|(_, slot)| slot.freed)?;
        Some((oldest.0, Hit::of_tokens(common(oldest.1).min(limit))))
    }

    /// A prompt takes a slot, and replaces what was in it.
    pub(super) fn take(&mut self, index: usize, held: &Held) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_taken = true;
            slot.hashes = held.hashes().into();
        }
    }

    /// Its request is gone; the prompt stays.
    pub(super) fn free(&mut self, index: usize) {
        self.frees += 1;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_taken = false;
            slot.freed = self.frees;
        }
    }
}
