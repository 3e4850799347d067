//! The prefix cache of one backend, shared by all its models. Adapters and models of one engine
//! compete for the same KV blocks, so their predicted blocks together are at most the engine's
//! capacity.
//!
//! The bound holds at the moment of recording, like that of [`super::MemoryBudget`]: a model whose
//! record would exceed it evicts its own blocks. A reserve of 1/16 is withheld from models above an
//! even share, so that a late starter finds room at once. A background pass then evens the shares
//! out ([`super::fair_shares`]). Counted in tokens, because models may have blocks of different
//! sizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The part of the cache reserved for models below an even share, as a divisor.
const RESERVE: u64 = 16;

/// The tokens that the models of a backend hold of its cache. Nothing is bounded until a capacity
/// is set.
#[derive(Debug)]
pub struct EngineCache {
    capacity: AtomicU64,
    held: AtomicU64,
    models: AtomicU32,
}

impl Default for EngineCache {
    fn default() -> Self {
        Self {
            capacity: AtomicU64::new(u64::MAX),
            held: AtomicU64::new(0),
            models: AtomicU32::new(0),
        }
    }
}

impl EngineCache {
    pub fn set_capacity(&self, tokens: u64) {
        // A load before the store: it rarely changes, and the line is read by every record.
        if self.capacity.load(Ordering::Relaxed) != tokens {
            self.capacity.store(tokens, Ordering::Relaxed);
        }
    }

    /// Lowers the capacity if the engine reports less than before; a higher one counts from the
    /// next record on.
    pub fn lower_capacity(&self, tokens: u64) {
        self.capacity.fetch_min(tokens, Ordering::Relaxed);
    }

    /// The tokens that its models hold together.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The tokens that may be held together after a record of a model above an even share: with
    /// several models the capacity without the reserve.
    pub fn limit_of_large(&self) -> u64 {
        let capacity = self.capacity.load(Ordering::Relaxed);
        if self.models.load(Ordering::Relaxed) > 1 {
            capacity - capacity / RESERVE
        } else {
            capacity
        }
    }

    /// The most tokens that a model with `own` tokens may hold.
    fn room(&self, own: u64) -> u64 {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let even = capacity / u64::from(self.models.load(Ordering::Relaxed).max(1));
        let limit = if own > even { self.limit_of_large() } else { capacity };
        limit.saturating_sub(self.held().saturating_sub(own))
    }

    fn charge(&self, before: u64, now: u64) {
        // Two's complement: a negative difference is added as well.
        self.held.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// The membership of a model in a backend's cache, counted until it is dropped.
#[derive(Debug)]
pub(super) struct Membership(Arc<EngineCache>);

impl Membership {
    pub(super) fn of(cache: &Arc<EngineCache>) -> Self {
        cache.models.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(cache))
    }

    pub(super) fn cache(&self) -> &Arc<EngineCache> {
        &self.0
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.models.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A model's part of a backend's cache: as many blocks as its index holds.
#[derive(Debug)]
pub(super) struct CacheShare {
    cache: Arc<EngineCache>,
    block_tokens: u64,
    blocks: u32,
}

impl CacheShare {
    pub(super) fn new(cache: &Arc<EngineCache>, block_tokens: u32) -> Self {
        Self { cache: Arc::clone(cache), block_tokens: block_tokens.max(1).into(), blocks: 0 }
    }

    /// Returns whether it is a part of `cache`, in blocks of `block_tokens`.
    pub(super) fn is_of(&self, cache: &Arc<EngineCache>, block_tokens: u32) -> bool {
        Arc::ptr_eq(&self.cache, cache) && self.block_tokens == u64::from(block_tokens.max(1))
    }

    /// Charges the blocks that are held now.
    pub(super) fn hold(&mut self, blocks: u32) {
        self.cache.charge(self.tokens(self.blocks), self.tokens(blocks));
        self.blocks = blocks;
    }

    /// The most blocks that may be held now.
    pub(super) fn room(&self) -> u32 {
        self.blocks_of(self.cache.room(self.tokens(self.blocks)))
    }

    /// The number of whole blocks in `tokens`.
    pub(super) fn blocks_of(&self, tokens: u64) -> u32 {
        u32::try_from(tokens / self.block_tokens).unwrap_or(u32::MAX)
    }

    /// The tokens of a number of blocks.
    pub(super) fn tokens(&self, blocks: u32) -> u64 {
        u64::from(blocks) * self.block_tokens
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        self.hold(0);
    }
}
