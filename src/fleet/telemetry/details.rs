//! What an engine reports that changes rarely.

/// What an engine reports that changes rarely; `None` is not reported.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineDetails {
    /// Tokens per block of its KV cache.
    pub block_size: Option<u32>,
    /// Blocks in its KV cache.
    pub blocks: Option<u64>,
    /// Tokens its KV cache holds, if it reports that instead of blocks.
    pub cache_tokens: Option<u64>,
    /// Whether it keeps the KV cache of prompts for those with the same beginning.
    pub prefix_caching: Option<bool>,
    /// Its LoRA adapters; `None` if it has none or does not report them.
    pub adapters: Option<Adapters>,
    /// When its process started, in seconds since 1970.
    pub started_at: Option<f64>,
}

/// The LoRA adapters of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adapters {
    /// Those in the batch.
    pub running: Vec<Box<str>>,
    /// Those with queued requests.
    pub waiting: Vec<Box<str>>,
    /// The most in one batch.
    pub max: Option<u32>,
    /// Names that are not used: too long, unprintable, or too many.
    pub dropped: u32,
}

impl EngineDetails {
    /// Tokens its KV cache holds.
    pub fn capacity_tokens(&self) -> Option<u64> {
        let by_blocks = self.blocks.zip(self.block_size);
        by_blocks.map(|(count, size)| count.saturating_mul(size.into())).or(self.cache_tokens)
    }

    /// Whether they come from a process that started later.
    pub(super) fn is_younger_than(&self, other: &Self) -> bool {
        self.started_at.zip(other.started_at).is_some_and(|(new, old)| new > old)
    }
}
