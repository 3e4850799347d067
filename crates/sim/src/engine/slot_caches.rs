//! One cache per slot, as in llama.cpp: each keeps the prompt that it served last. A request takes
//! the free slot whose prompt shares the longest prefix with its own, if that is more than a tenth
//! of its prompt. Otherwise it takes the least recently used free slot.

use super::block_cache::{HeldBlocks, Hit};

/// The divisor of the prompt length that gives the required common prefix (llama.cpp:
/// `--slot-prompt-similarity`).
const MIN_SIMILARITY: u32 = 10;

#[derive(Debug, Clone, Default)]
struct SlotCache {
    hashes: Box<[u64]>,
    is_taken: bool,
    /// The sequence number of its latest release.
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

    /// Returns the slot that a prompt would take and the hit on its first `limit` tokens; `None`
    /// while all slots are taken.
    pub(super) fn find(&self, held: &HeldBlocks, limit: u32) -> Option<(usize, Hit)> {
        let free = || self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_taken);
        let common = |slot: &SlotCache| {
            let pairs = slot.hashes.iter().zip(held.hashes());
            let blocks = pairs.take_while(|(kept, wanted)| kept == wanted).count();
            u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(held.prefix_tokens())
        };
        let alike = free().map(|(index, slot)| (common(slot).min(limit), index));
        // Ties go to the first slot, as in llama.cpp.
        let alike = alike.max_by_key(|(tokens, index)| (*tokens, std::cmp::Reverse(*index)))?;
        if alike.0.saturating_mul(MIN_SIMILARITY) > limit {
            return Some((alike.1, Hit::of_tokens(alike.0)));
        }
        let oldest = free().min_by_key(|(_, slot)| slot.freed)?;
        Some((oldest.0, Hit::of_tokens(common(oldest.1).min(limit))))
    }

    /// Replaces the prompt of a slot and marks the slot as taken.
    pub(super) fn take(&mut self, index: usize, held: &HeldBlocks) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_taken = true;
            slot.hashes = held.hashes().into();
        }
    }

    /// Frees the slot of a request that ended; its prompt stays.
    pub(super) fn free(&mut self, index: usize) {
        self.frees += 1;
        if let Some(slot) = self.slots.get_mut(index) {
            slot.is_taken = false;
            slot.freed = self.frees;
        }
    }
}
