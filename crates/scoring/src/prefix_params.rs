//! The parameters of prefix tracking: the blocks that prompts are cut into, and the number of
//! blocks a backend is predicted to keep.

use super::params::{BLOCK, BLOCKS, ParamError, Params};
use super::spec::ScorerSpec;

/// The parameters of the prefix-affinity scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixParams {
    /// Tokens per block; 16 is the default of vLLM.
    pub block_tokens: u32,
    /// True if the block size that engines report replaces this one: none is configured.
    pub follows_engines: bool,
    /// Blocks a backend is predicted to keep, if the capacity is configured.
    pub capacity: u32,
    /// True if the capacity is configured: then it also bounds the capacity that engines report.
    pub is_capped: bool,
    /// The most blocks of one prompt that are used. The default limits the memory that a thread
    /// keeps for decisions to 2 MiB; prompts that models accept are shorter.
    pub max_blocks: u32,
}

/// Tokens a backend is predicted to keep unless its engine reports them: llm-d's default, 31,250
/// blocks of 16.
const USUAL_CAPACITY: u32 = 500_000;

impl Default for PrefixParams {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            follows_engines: true,
            capacity: USUAL_CAPACITY / 16,
            is_capped: false,
            max_blocks: 1 << 18,
        }
    }
}

impl PrefixParams {
    /// The parameters of prefix-affinity in a list of scorers, or the defaults.
    ///
    /// # Errors
    /// [`ParamError`] when one of them is out of range.
    pub fn of(specs: &[ScorerSpec]) -> Result<Self, ParamError> {
        let spec = specs.iter().find(|one| one.is("prefix-affinity"));
        spec.map_or_else(|| Ok(Self::default()), |spec| Self::of_params(&spec.params))
    }

    pub(super) fn of_params(params: &Params) -> Result<Self, ParamError> {
        let usual = Self::default();
        Ok(Self {
            block_tokens: params.count("block-size", usual.block_tokens, BLOCK)?,
            follows_engines: !params.has("block-size"),
            capacity: params.count("capacity", usual.capacity, BLOCKS)?,
            is_capped: params.has("capacity"),
            max_blocks: params.count("max-blocks", usual.max_blocks, BLOCKS)?,
        })
    }

    /// The number of blocks of `block_tokens` that a backend is predicted to keep if it does not
    /// report its capacity.
    pub fn capacity_in(&self, block_tokens: u32) -> u32 {
        if self.is_capped { self.capacity } else { (USUAL_CAPACITY / block_tokens.max(1)).max(1) }
    }

    /// The parameters for a model whose engines report blocks of `reported` tokens.
    #[must_use]
    pub fn following(self, reported: Option<u32>) -> Self {
        let followed = reported.filter(|tokens| self.follows_engines && *tokens > 0);
        let block_tokens = followed.map_or(self.block_tokens, |tokens| tokens.min(BLOCK.most));
        Self { block_tokens, ..self }
    }
}
