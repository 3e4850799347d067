//! The blocks of the KV cache, and the prefixes kept in them.
//!
//! **Blocks and prefixes.** Space is counted in blocks of 16 tokens. Prefixes are kept in the
//! blocks of the prompts' hashes, which may be larger (traces have 512 tokens per hash). Such a
//! prefix block is shared, kept and evicted as a whole. With 16 tokens per hash this is exactly
//! vLLM's behaviour.
//!
//! **Order of eviction.** Free blocks, with or without a prefix, wait in one queue and are reused
//! in the order in which they were freed: least recently used first (LRU). A request that ends
//! frees its blocks from last to first, so the end of a prefix is evicted before its root.
//!
//! **Speed.** A prompt of an agent has a thousand blocks, nearly all cached. Each block names the
//! one that followed it last, so that a walk along a prefix reads neighbours in memory, and looks
//! into the hash table only where prefixes part.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use ahash::HashMap;

use super::BLOCK_TOKENS;

/// The number of queue entries beyond which stale ones are removed.
const SLACK: usize = 1024;

/// The position of a prefix block among all of a cache.
type Place = u32;

/// The place of no block.
const NOWHERE: Place = Place::MAX;

/// Free blocks in the queue.
#[derive(Debug, Clone, Copy)]
enum Freed {
    /// A number of blocks without a prefix.
    Blank(u32),
    /// The blocks of a prefix block; valid only if `number` is that of its latest release.
    Prefix { place: Place, number: u64 },
}

/// The blocks that a request holds.
#[derive(Debug, Clone)]
pub(super) struct HeldBlocks {
    /// The hashes of the whole blocks of its prompt.
    prefix: Box<[u64]>,
    prefix_tokens: u32,
    /// The places of the leading prefix blocks that it shares.
    shared: Vec<Place>,
    /// The number of unshared blocks of 16 tokens that it holds.
    own: u32,
}

impl HeldBlocks {
    pub(super) fn new(prefix: &[u64], prefix_tokens: u32, input_tokens: u32) -> Self {
        let tokens = prefix_tokens.max(BLOCK_TOKENS);
        let whole = (input_tokens / tokens) as usize;
        Self {
            prefix: prefix.iter().take(whole).copied().collect(),
            prefix_tokens: tokens,
            shared: Vec::new(),
            own: 0,
        }
    }

    /// Returns the hashes of the whole blocks of the prompt.
    pub(super) fn hashes(&self) -> &[u64] {
        &self.prefix
    }

    /// Returns the tokens per hash.
    pub(super) fn prefix_tokens(&self) -> u32 {
        self.prefix_tokens
    }

    /// Returns the number of 16-token blocks per prefix block.
    fn units(&self) -> u32 {
        self.prefix_tokens / BLOCK_TOKENS
    }

    fn shared_units(&self) -> u32 {
        u32::try_from(self.shared.len()).unwrap_or(u32::MAX).saturating_mul(self.units())
    }

    /// Returns the number of further blocks needed to hold `tokens`.
    pub(super) fn missing(&self, tokens: u32) -> u32 {
        let held = self.shared_units().saturating_add(self.own);
        tokens.div_ceil(BLOCK_TOKENS).saturating_sub(held)
    }
}

/// A prefix block in the cache.
#[derive(Debug, Clone, Copy)]
struct CachedBlock {
    hash: u64,
    /// The number of its blocks; 0 once it is evicted.
    units: u32,
    /// The number of requests that share it.
    users: u32,
    /// The sequence number of its latest release.
    freed: u64,
    /// The place of the block that followed it last.
    next: Place,
}

/// The cached part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hit {
    /// The number of prefix blocks.
    blocks: usize,
    /// The number of tokens in them.
    pub(super) tokens: u32,
    /// The 16-token blocks among them that no request uses; they count as free until a request uses
    /// them.
    pub(super) unused: u32,
}

impl Hit {
    /// Returns a hit of tokens that are found without sharing blocks.
    pub(super) fn of_tokens(tokens: u32) -> Self {
        Self { blocks: 0, tokens, unused: 0 }
    }
}

/// The block cache of an engine.
#[derive(Debug, Clone)]
pub(super) struct BlockCache {
    total: u32,
    /// The number of blocks that requests hold.
    used: u32,
    kept: Vec<CachedBlock>,
    /// The place of each block by its hash.
    places: HashMap<u64, Place>,
    /// The places of evicted blocks, for new ones.
    vacant: Vec<Place>,
    /// The free blocks; the front one is reused first.
    freed: VecDeque<Freed>,
    frees: u64,
}

impl BlockCache {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            used: 0,
            kept: Vec::new(),
            places: HashMap::default(),
            vacant: Vec::new(),
            freed: VecDeque::from([Freed::Blank(total)]),
            frees: 0,
        }
    }

    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Returns the number of blocks that no request uses, with or without a prefix.
    pub(super) fn free_blocks(&self) -> u32 {
        self.total.saturating_sub(self.used)
    }

    /// Returns the place of the block with this hash, which follows the one at `last`.
    fn place_after(&self, last: Place, hash: u64) -> Option<Place> {
        let next = self.at(last).map_or(NOWHERE, |last| last.next);
        match self.at(next) {
            Some(block) if block.hash == hash => Some(next),
            _ => self.places.get(&hash).copied(),
        }
    }

    /// Returns the block at a place; `None` if it is evicted.
    fn at(&self, place: Place) -> Option<&CachedBlock> {
        self.kept.get(place as usize).filter(|kept| kept.units > 0)
    }

    /// Finds the cached part of the first `limit` tokens of a prompt.
    pub(super) fn find(&self, held: &HeldBlocks, limit: u32) -> Hit {
        let most = (limit / held.prefix_tokens) as usize;
        let mut hit = Hit { blocks: 0, tokens: 0, unused: 0 };
        let mut last = NOWHERE;
        for hash in held.prefix.iter().take(most) {
            let place = self.place_after(last, *hash);
            let Some((place, kept)) = place.and_then(|place| Some((place, self.at(place)?))) else {
                break;
            };
            last = place;
            hit.blocks += 1;
            hit.tokens += held.prefix_tokens;
            if kept.users == 0 {
                hit.unused += kept.units;
            }
        }
        hit
    }

    /// Lets a request without blocks share the blocks of `hit`.
    pub(super) fn share(&mut self, held: &mut HeldBlocks, hit: Hit) {
        held.shared.clear();
        let mut last = NOWHERE;
        for hash in held.prefix.iter().take(hit.blocks) {
            let Some(place) = self.place_after(last, *hash) else {
                debug_assert!(false, "a hit is in the cache");
                return;
            };
            self.follow(last, place);
            last = place;
            held.shared.push(place);
            let Some(kept) = self.kept.get_mut(place as usize) else { return };
            if kept.users == 0 {
                self.used += kept.units;
            }
            kept.users += 1;
        }
    }

    /// Records that the block at `place` follows the one at `last`.
    fn follow(&mut self, last: Place, place: Place) {
        if let Some(last) = self.kept.get_mut(last as usize) {
            last.next = place;
        }
    }

    /// Takes the blocks needed for `tokens` tokens. Returns whether there are enough; if not,
    /// nothing changes.
    pub(super) fn grow(&mut self, held: &mut HeldBlocks, tokens: u32) -> bool {
        let missing = held.missing(tokens);
        if missing > self.free_blocks() {
            return false;
        }
        self.take(missing);
        held.own += missing;
        true
    }

    /// Takes blocks that are known to be free.
    pub(super) fn take(&mut self, blocks: u32) {
        debug_assert!(blocks <= self.free_blocks(), "{blocks} of {}", self.free_blocks());
        self.used += blocks;
        let mut missing = blocks;
        while missing > 0 {
            let Some(freed) = self.freed.pop_front() else {
                debug_assert!(false, "every free block is in the queue");
                return;
            };
            let found = match freed {
                Freed::Blank(units) => units,
                Freed::Prefix { place, number } => self.evict(place, number),
            };
            if found > missing {
                self.freed.push_front(Freed::Blank(found - missing));
            }
            missing = missing.saturating_sub(found);
        }
    }

    /// Returns whether the block at a place was not used since the release with this number.
    fn is_free(&self, place: Place, number: u64) -> bool {
        self.at(place).is_some_and(|kept| kept.users == 0 && kept.freed == number)
    }

    /// Evicts a prefix block that no request uses. Returns the number of its blocks; 0 if it was
    /// used since that release.
    fn evict(&mut self, place: Place, number: u64) -> u32 {
        if !self.is_free(place, number) {
            return 0;
        }
        let Some(kept) = self.kept.get_mut(place as usize) else { return 0 };
        self.places.remove(&kept.hash);
        self.vacant.push(place);
        std::mem::take(&mut kept.units)
    }

    /// Keeps the whole blocks of a prompt's first `computed` tokens for other requests to share. A
    /// block that another request computed at the same time stays private to this request.
    pub(super) fn keep(&mut self, held: &mut HeldBlocks, computed: u32) {
        let whole = (computed / held.prefix_tokens) as usize;
        while held.shared.len() < whole {
            let Some(hash) = held.prefix.get(held.shared.len()).copied() else {
                return;
            };
            let units = held.units();
            if held.own < units {
                return;
            }
            let Entry::Vacant(entry) = self.places.entry(hash) else { return };
            let block = CachedBlock { hash, units, users: 1, freed: 0, next: NOWHERE };
            let place = match self.vacant.pop() {
                Some(place) => place,
                None => Place::try_from(self.kept.len()).unwrap_or(NOWHERE),
            };
            match self.kept.get_mut(place as usize) {
                Some(vacant) => *vacant = block,
                None => self.kept.push(block),
            }
            entry.insert(place);
            self.follow(held.shared.last().copied().unwrap_or(NOWHERE), place);
            held.shared.push(place);
            held.own -= units;
        }
    }

    /// Frees all blocks of a request with `computed` tokens.
    pub(super) fn free(&mut self, held: &mut HeldBlocks, computed: u32) {
        // Decoding requests take blocks together, so `own` may be out of date.
        let own = held.own.max(computed.div_ceil(BLOCK_TOKENS).saturating_sub(held.shared_units()));
        self.used -= own;
        self.release_blank(own);
        held.own = 0;
        // From last to first, so that the root of the prefix is evicted last.
        for place in held.shared.drain(..).rev() {
            let Some(kept) = self.kept.get_mut(place as usize) else {
                continue;
            };
            kept.users -= 1;
            if kept.users == 0 {
                self.frees += 1;
                kept.freed = self.frees;
                self.used -= kept.units;
                self.freed.push_back(Freed::Prefix { place, number: self.frees });
            }
        }
        // Entries of blocks that were used again stay in the queue; without this it would only
        // grow. At most half of the entries are left, so that each one is walked past a fixed
        // number of times.
        if self.freed.len() > 4 * self.places.len() + SLACK {
            for freed in std::mem::take(&mut self.freed) {
                match freed {
                    Freed::Blank(units) => self.release_blank(units),
                    Freed::Prefix { place, number } if self.is_free(place, number) => {
                        self.freed.push_back(freed);
                    }
                    Freed::Prefix { .. } => {}
                }
            }
        }
    }

    /// Adds blocks without a prefix to the end of the queue. They join those that end it, so that
    /// the queue has no more than one such entry per prefix block.
    fn release_blank(&mut self, blocks: u32) {
        match self.freed.back_mut() {
            Some(Freed::Blank(units)) => *units += blocks,
            _ if blocks > 0 => self.freed.push_back(Freed::Blank(blocks)),
            _ => {}
        }
    }
}

#[cfg(test)]
impl BlockCache {
    /// Asserts that every block is used or in the queue, and counted once.
    pub(super) fn check(&self) {
        let in_queue = |freed: &Freed| match freed {
            Freed::Blank(units) => *units,
            Freed::Prefix { place, number } if self.is_free(*place, *number) => {
                self.at(*place).map_or(0, |kept| kept.units)
            }
            Freed::Prefix { .. } => 0,
        };
        let free: u32 = self.freed.iter().map(in_queue).sum();
        assert_eq!(self.used + free, self.total, "{self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most queue entries while equal requests of ten blocks run one after the other.
    fn longest_queue(cache: &mut BlockCache, prefix: &[u64]) -> usize {
        let run = |_| {
            let mut held = HeldBlocks::new(prefix, BLOCK_TOKENS, 160);
            let hit = cache.find(&held, 160);
            cache.share(&mut held, hit);
            assert!(cache.grow(&mut held, 160));
            cache.keep(&mut held, 160);
            cache.free(&mut held, 160);
            cache.freed.len()
        };
        let longest = (0..10_000).map(run).max();
        cache.check();
        longest.unwrap()
    }

    #[test]
    fn queue_of_free_blocks_stays_short() {
        assert_eq!(longest_queue(&mut BlockCache::new(1000), &[]), 1, "they are one entry");
        let prefix: Vec<u64> = (1..=10).collect();
        let longest = longest_queue(&mut BlockCache::new(1000), &prefix);
        assert!((SLACK..=SLACK + 50).contains(&longest), "stale entries are removed: {longest}");
    }
}
