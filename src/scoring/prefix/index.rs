//! Longest cached prefixes for all backends in one walk, exact LRU per backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::lane::{CHUNK, Lane, Node};
use super::pages::Pages;
use super::slots::{NONE, Slots};

/// The most lanes of an index: one bit each.
pub const LANES: usize = 64;
/// What a chunk of nodes takes at most, with a block of its own for each of them.
const CHUNK_BYTES: usize = CHUNK as usize * (16 + 36);

/// How much memory all indexes together may take; nothing unless a limit is set.
#[derive(Debug, Default)]
pub struct Budget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) })
    }

    /// Lets them take so many bytes from now on. With less than is used, nothing is added until
    /// enough was forgotten.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes set aside now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        let take = |used: usize| {
            let after = used + CHUNK_BYTES;
            (after <= self.limit.load(Ordering::Relaxed)).then_some(after)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn give_back(&self, chunks: usize) {
        self.used.fetch_sub(chunks * CHUNK_BYTES, Ordering::Relaxed);
    }
}

/// Which blocks which of up to 64 backends are believed to have cached. A backend is a lane, 0..64.
#[derive(Debug)]
pub struct PrefixIndex {
    slots: Slots,
    nodes: Pages<Node>,
    /// The lane each chunk of nodes belongs to.
    owners: Vec<u8>,
    free_chunks: Vec<u32>,
    lanes: Vec<Lane>,
    capacity: u32,
    budget: Arc<Budget>,
}

impl PrefixIndex {
    /// An empty index in which each lane holds at most `capacity` blocks.
    pub fn new(capacity: u32, budget: Arc<Budget>) -> Self {
        Self {
            slots: Slots::new(),
            nodes: Pages::default(),
            owners: Vec::new(),
            free_chunks: Vec::new(),
            lanes: Vec::new(),
            capacity: capacity.max(1),
            budget,
        }
    }

    /// Blocks held by a lane.
    pub fn held(&self, lane: usize) -> u32 {
        self.lanes.get(lane).map_or(0, |lane| lane.count)
    }

    /// Distinct blocks held by anybody.
    pub fn blocks(&self) -> usize {
        self.slots.len()
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
            + self.nodes.bytes()
            + self.owners.capacity()
            + self.free_chunks.capacity() * 4
            + self
                .lanes
                .iter()
                .map(|one| size_of::<Lane>() + one.chunks.capacity() * 4)
                .sum::<usize>()
    }

    /// Tells `found` for each of the `lanes` (a bit each) how many leading blocks of `chain` it holds
    /// without a gap. Refreshes nothing.
    pub fn longest(&self, chain: &[u64], lanes: u64, mut found: impl FnMut(usize, u32)) {
        let mut alive = lanes;
        let mut length = 0;
        for hash in chain {
            let holders = self.slots.holders_of(*hash);
            bits(alive & !holders).for_each(|lane| found(lane, length));
            alive &= holders;
            if alive == 0 {
                return;
            }
            length += 1;
        }
        bits(alive).for_each(|lane| found(lane, length));
    }

    /// Notes that a lane was sent a prompt. From the last block to the first, so that the first is
    /// the last to be forgotten: a chain without its beginning can never be found again.
    pub fn record(&mut self, lane: usize, chain: &[u64]) {
        if lane >= LANES {
            return;
        }
        while self.lanes.len() <= lane {
            self.lanes.push(Lane::new(self.capacity));
        }
        let capacity = self.lanes.get(lane).map_or(0, |lane| lane.capacity as usize);
        let kept = chain.get(..capacity.min(chain.len())).unwrap_or_default();
        for hash in kept.iter().rev() {
            self.touch(lane, *hash);
        }
    }

    /// Forgets all but the first `kept` blocks of a chain on a lane: the engine told that it does not
    /// have them.
    pub fn forget(&mut self, lane: usize, chain: &[u64], kept: usize) {
        for hash in chain.get(kept..).unwrap_or_default() {
            if let Some(node) = self.node_of(lane, *hash) {
                self.remove(lane, node);
            }
        }
    }

    /// Lets a lane hold at most `capacity` blocks; what is too much is forgotten at once.
    pub fn set_capacity(&mut self, lane: usize, capacity: u32) {
        while self.lanes.len() <= lane && lane < LANES {
            self.lanes.push(Lane::new(self.capacity));
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.capacity = capacity.max(1);
        }
        while self.lanes.get(lane).is_some_and(|lane| lane.count > lane.capacity) {
            self.evict(lane);
        }
    }

    /// Forgets all a lane holds, and gives its memory back.
    pub fn clear(&mut self, lane: usize) {
        while self.held(lane) > 0 {
            self.evict(lane);
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            let chunks = std::mem::take(&mut lane.chunks);
            lane.free = NONE;
            self.budget.give_back(chunks.len());
            self.free_chunks.extend(chunks);
        }
    }

    fn touch(&mut self, lane: usize, hash: u64) {
        if let Some(node) = self.node_of(lane, hash) {
            self.unlink(lane, node);
            self.link_newest(lane, node);
            return;
        }
        if self.lanes.get(lane).is_some_and(|lane| lane.count >= lane.capacity) {
            self.evict(lane);
        }
        let Some(node) = self.take_node(lane) else { return };
        let slot = self.slots.obtain(hash);
        let (holders, first) = (self.slots.holders(slot), self.slots.first(slot));
        self.slots.set(slot, holders | 1 << lane, node);
        if let Some(own) = self.nodes.get_mut(node) {
            (own.slot, own.next) = (slot, first);
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.count += 1;
        }
        self.link_newest(lane, node);
    }

    fn evict(&mut self, lane: usize) {
        let oldest = self.lanes.get(lane).map_or(NONE, |lane| lane.oldest);
        if oldest != NONE {
            self.remove(lane, oldest);
        }
    }

    fn remove(&mut self, lane: usize, node: u32) {
        self.unlink(lane, node);
        self.leave_slot(lane, node);
        if let Some(own) = self.lanes.get_mut(lane) {
            own.count -= 1;
            if let Some(free) = self.nodes.get_mut(node) {
                *free = Node { older: own.free, ..Node::FREE };
                own.free = node;
            }
        }
    }

    /// Takes a node out of its block's list of holders, and the block out of the index with the last.
    fn leave_slot(&mut self, lane: usize, node: u32) {
        let Node { slot, next, .. } = self.node(node);
        let holders = self.slots.holders(slot) & !(1 << lane);
        let mut first = self.slots.first(slot);
        if first == node {
            first = next;
        } else {
            let mut before = first;
            while before != NONE && self.node(before).next != node {
                before = self.node(before).next;
            }
            if let Some(before) = self.nodes.get_mut(before) {
                before.next = next;
            }
        }
        self.slots.set(slot, holders, first);
        if holders == 0 {
            self.slots.release(slot);
        }
    }

    fn node(&self, node: u32) -> Node {
        self.nodes.get(node).copied().unwrap_or(Node::FREE)
    }

    fn node_of(&self, lane: usize, hash: u64) -> Option<u32> {
        let slot = self.slots.find(hash)?;
        if lane >= LANES || self.slots.holders(slot) & 1 << lane == 0 {
            return None;
        }
        let mut node = self.slots.first(slot);
        while node != NONE {
            let owner = self.owners.get((node / CHUNK) as usize)?;
            if usize::from(*owner) == lane {
                return Some(node);
            }
            node = self.node(node).next;
        }
        None
    }

    fn unlink(&mut self, lane: usize, node: u32) {
        let Node { newer, older, .. } = self.node(node);
        if let Some(newer) = self.nodes.get_mut(newer) {
            newer.older = older;
        }
        if let Some(older) = self.nodes.get_mut(older) {
            older.newer = newer;
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            if newer == NONE {
                lane.newest = older;
            }
            if older == NONE {
                lane.oldest = newer;
            }
        }
    }

    fn link_newest(&mut self, lane: usize, node: u32) {
        let Some(lane) = self.lanes.get_mut(lane) else { return };
        let before = std::mem::replace(&mut lane.newest, node);
        if before == NONE {
            lane.oldest = node;
        }
        if let Some(before) = self.nodes.get_mut(before) {
            before.newer = node;
        }
        if let Some(own) = self.nodes.get_mut(node) {
            (own.newer, own.older) = (NONE, before);
        }
    }

    /// A free node of a lane. Where the budget is spent, its oldest block makes room.
    fn take_node(&mut self, lane: usize) -> Option<u32> {
        if self.lanes.get(lane)?.free == NONE && !self.add_chunk(lane) {
            self.evict(lane);
        }
        let own = self.lanes.get_mut(lane)?;
        let node = own.free;
        own.free = self.nodes.get(node)?.older;
        Some(node)
    }

    fn add_chunk(&mut self, lane: usize) -> bool {
        if !self.budget.take() {
            return false;
        }
        let chunk = self.free_chunks.pop().or_else(|| self.grow());
        let (Some(chunk), Some(own)) = (chunk, self.lanes.get_mut(lane)) else {
            self.budget.give_back(1);
            return false;
        };
        if let Some(owner) = self.owners.get_mut(chunk as usize) {
            *owner = u8::try_from(lane).unwrap_or(u8::MAX);
        }
        own.chunks.push(chunk);
        for node in chunk * CHUNK..(chunk + 1) * CHUNK {
            if let Some(free) = self.nodes.get_mut(node) {
                *free = Node { older: own.free, ..Node::FREE };
                own.free = node;
            }
        }
        true
    }

    fn grow(&mut self) -> Option<u32> {
        let chunk = u32::try_from(self.owners.len()).ok()?;
        chunk.checked_add(1)?.checked_mul(CHUNK)?;
        self.nodes.grow(Node::FREE);
        self.owners.push(0);
        Some(chunk)
    }
}

impl Drop for PrefixIndex {
    fn drop(&mut self) {
        self.budget.give_back(self.lanes.iter().map(|lane| lane.chunks.len()).sum());
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
