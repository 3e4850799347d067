//! How prompts are cut into blocks, and how many blocks a backend is predicted to keep.

use super::params::{BLOCK, BLOCKS, ParamError, Params};
use super::spec::ScorerSpec;

/// The parameters of the prefix-affinity scorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixParams {
    /// Tokens per block; 16 is the default of vLLM.
    pub block_tokens: u32,
    /// Whether the block size that engines report replaces it: unless the size is configured.
    pub follows_engines: bool,
    /// Blocks a backend is predicted to keep; 31,250 are the 500,000 tokens of llm-d's default.
    pub capacity: u32,
    /// Whether the capacity is configured: then it also bounds what engines report.
    pub is_capped: bool,
    /// The most blocks of one prompt that are used.
    pub max_blocks: u32,
}

impl Default for PrefixParams {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            follows_engines: true,
            capacity: 31_250,
            is_capped: false,
            max_blocks: 1024,
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

    /// The same for a model whose engines report blocks of `reported` tokens.
    #[must_use]
    pub fn following(self, reported: Option<u32>) -> Self {
        let followed = reported.filter(|tokens| self.follows_engines && *tokens > 0);
        let block_tokens = followed.map_or(self.block_tokens, |tokens| tokens.min(BLOCK.most));
        Self { block_tokens, ..self }
    }
}
