//! How prompts are cut into blocks, and how many of them are remembered.

use super::params::{BLOCK, BLOCKS, ParamError, Params};
use super::spec::ScorerSpec;

/// The parameters of whatever scorer reads prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixParams {
    /// Tokens of a block: 16, as vLLM's.
    pub block_tokens: u32,
    /// Whether blocks are as large as the engines', where these tell: so unless the size is given.
    pub follows_engines: bool,
    /// Blocks a backend is believed to keep: 31,250 are the 500,000 tokens of llm-d's default.
    pub capacity: u32,
    /// Whether that is given: then no more is believed, whatever engines tell.
    pub is_capped: bool,
    /// The most blocks of one prompt that are looked at.
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
    /// Those of a configured list: the parameters of its prefix-affinity.
    ///
    /// # Errors
    /// [`ParamError`] when one of them does not fit.
    pub fn of(specs: &[ScorerSpec]) -> Result<Self, ParamError> {
        let spec = specs.iter().find(|one| one.is("prefix-affinity"));
        spec.map_or_else(|| Ok(Self::default()), |spec| Self::of_params(&spec.params))
    }

    /// Those that the parameters of prefix-affinity are.
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

    /// The same for a model whose engines told that their blocks have `told` tokens.
    #[must_use]
    pub fn following(self, told: Option<u32>) -> Self {
        let followed = told.filter(|told| self.follows_engines && *told > 0);
        let block_tokens = followed.map_or(self.block_tokens, |told| told.min(BLOCK.0));
        Self { block_tokens, ..self }
    }
}
