//! Changes of the predicted cache of a backend: by events of an engine ([`CacheEvent`]), or by the
//! outcome of the prompts that are routed to it ([`Predicted`]). All values are plain, so that live
//! traffic, a replay and a simulation update an index in the same way.

use penstock_scoring::PrefixParams;

/// The most blocks that a backend is predicted to keep, whatever its engine reports.
const MAX_CAPACITY: u32 = 1 << 22;

/// A change of a backend's cache. The blocks are penstock's own hashes: a source with other hashes
/// (BlockStored, BlockRemoved and AllBlocksCleared of vLLM) has to translate them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEvent<'a> {
    /// It stores the blocks of a prompt, from its beginning.
    Stored(&'a [u64]),
    /// It has removed these blocks, which makes everything after them useless.
    Removed(&'a [u64]),
    /// It received a prompt that begins with this block and had not even that.
    Missed(u64),
    /// It has not stored these blocks of a prompt and those between, although they were recorded.
    NotStored { first: u64, last: u64 },
    /// It has dropped all blocks.
    Cleared,
}

/// The size and the lifetime of a backend's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheState {
    /// The most blocks it holds, for all models together; 0 if its engine keeps none.
    pub capacity: u32,
    pub block_tokens: u32,
    /// Changes whenever its engine restarts or returns, which empties the cache.
    pub epoch: u32,
}

impl CacheState {
    /// The state of a cache whose engine reports `capacity_tokens`; without a report, or when a
    /// lower capacity is configured, the configured one applies.
    pub fn new(
        params: &PrefixParams,
        block_tokens: u32,
        capacity_tokens: Option<u64>,
        epoch: u32,
    ) -> Self {
        let blocks = capacity_tokens.map(|tokens| tokens / u64::from(block_tokens.max(1)));
        let most = if params.is_capped { params.capacity } else { MAX_CAPACITY };
        let own = || params.capacity_in(block_tokens);
        // Less than one block is no report: a capacity of 0 would mean that the engine keeps none.
        let capacity = blocks
            .filter(|blocks| *blocks > 0)
            .map_or_else(own, |blocks| u32::try_from(blocks).unwrap_or(u32::MAX).min(most));
        Self { capacity, block_tokens, epoch }
    }
}

/// The prediction for a prompt when it was routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predicted {
    /// The hash of the first block.
    pub first_block: u64,
    /// Full blocks of the prompt.
    pub prompt_blocks: u32,
    /// Leading blocks the backend was predicted to have cached.
    pub matched_blocks: u32,
    /// The hash of the block after them.
    pub new_block: Option<u64>,
    /// The hash of the last full block.
    pub last_block: u64,
    pub block_tokens: u32,
}

impl Predicted {
    /// Returns the change after the backend did not compute the prompt: what the prompt added is
    /// withdrawn. The part that it shares with earlier prompts is still there.
    pub fn when_not_computed(&self) -> Option<CacheEvent<'static>> {
        self.new_block.map(|first| CacheEvent::NotStored { first, last: self.last_block })
    }

    /// Returns the change after the engine reported how many tokens of the prompt were cached. If
    /// at least two blocks of a prompt were predicted, fewer cached tokens than one block mean that
    /// the beginning was evicted, and with it every prompt that begins alike. One predicted block
    /// proves nothing: an engine computes at least the end of each prompt, and reports full blocks
    /// only.
    pub fn when_served(&self, cached_tokens: u32) -> Option<CacheEvent<'static>> {
        let is_evicted = self.matched_blocks >= 2 && cached_tokens < self.block_tokens;
        is_evicted.then_some(CacheEvent::Missed(self.first_block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predicted(matched_blocks: u32) -> Predicted {
        let new_block = (matched_blocks < 4).then(|| 1 + u64::from(matched_blocks));
        let (first_block, last_block) = (1, 4);
        let (prompt_blocks, block_tokens) = (4, 16);
        Predicted {
            first_block,
            prompt_blocks,
            matched_blocks,
            new_block,
            last_block,
            block_tokens,
        }
    }

    const MISSED: Option<CacheEvent<'_>> = Some(CacheEvent::Missed(1));

    #[test]
    fn failed_attempt_withdraws_what_is_new() {
        assert_eq!(
            predicted(0).when_not_computed(),
            Some(CacheEvent::NotStored { first: 1, last: 4 })
        );
        assert_eq!(
            predicted(2).when_not_computed(),
            Some(CacheEvent::NotStored { first: 3, last: 4 })
        );
        assert_eq!(predicted(4).when_not_computed(), None, "nothing is");
    }

    #[test]
    fn reported_miss_withdraws_a_prediction_of_two_blocks() {
        assert_eq!(predicted(1).when_served(0), None);
        assert_eq!(predicted(4).when_served(16), None);
        assert_eq!(predicted(2).when_served(15), MISSED);
    }

    #[test]
    fn reported_capacity_wins_unless_capped() {
        let params = PrefixParams::default();
        let capped = PrefixParams { capacity: 10, is_capped: true, ..params };
        let capacity =
            |params: &PrefixParams, tokens| CacheState::new(params, 16, tokens, 0).capacity;
        assert_eq!(capacity(&params, None), params.capacity);
        assert_eq!(capacity(&params, Some(1600)), 100);
        assert_eq!(capacity(&params, Some(15)), params.capacity, "less than a block is no report");
        for (block_tokens, blocks) in [(16, 31_250), (128, 3906), (512, 976), (1 << 20, 1)] {
            let unreported = CacheState::new(&params, block_tokens, None, 0);
            assert_eq!(unreported.capacity, blocks, "500,000 tokens, whatever the size of blocks");
            let state = CacheState::new(&capped, block_tokens, None, 0);
            assert_eq!(state.capacity, 10, "as configured");
        }
        assert_eq!(capacity(&params, Some(u64::MAX)), MAX_CAPACITY);
        assert_eq!((capacity(&capped, Some(1600)), capacity(&capped, Some(32))), (10, 2));
    }
}
