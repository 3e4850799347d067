//! Engine details that change rarely.

/// The details of an engine that change rarely; `None` if not reported.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineDetails {
    /// Tokens per block of its KV cache.
    pub block_size: Option<u32>,
    /// Blocks in its KV cache.
    pub blocks: Option<u64>,
    /// The tokens its KV cache holds, if it reports them instead of blocks.
    pub cache_tokens: Option<u64>,
    /// True if it keeps the KV cache of prompts for later ones with the same beginning.
    pub prefix_caching: Option<bool>,
    /// Its LoRA adapters; `None` if it has none or does not report them.
    pub adapters: Option<Adapters>,
    /// The start of its process, in seconds since 1970.
    pub started_at: Option<f64>,
}

/// The LoRA adapters of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adapters {
    /// The adapters in the batch.
    pub running: Vec<Box<str>>,
    /// The adapters with queued requests.
    pub waiting: Vec<Box<str>>,
    /// The most adapters in one batch.
    pub max: Option<u32>,
    /// The number of names that are not used: too long, unprintable, or too many.
    pub dropped: u32,
}

impl EngineDetails {
    /// The tokens its KV cache holds.
    pub fn capacity_tokens(&self) -> Option<u64> {
        let by_blocks = self.blocks.zip(self.block_size);
        by_blocks.map(|(count, size)| count.saturating_mul(size.into())).or(self.cache_tokens)
    }

    /// Returns whether the details come from a process that started later.
    pub(super) fn is_younger_than(&self, other: &Self) -> bool {
        self.started_at.zip(other.started_at).is_some_and(|(new, old)| new > old)
    }
}
