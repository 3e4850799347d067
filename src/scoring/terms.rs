//! How prompts are cut into blocks, and how many of them are remembered.

use super::params::ParamError;
use super::profile::ScorerSpec;

/// The parameters of whatever scorer reads prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixTerms {
    /// Tokens of a block: 16, as vLLM's.
    pub block_tokens: u32,
    /// Blocks a backend is believed to keep: 31,250 are the 500,000 tokens of llm-d's default.
    pub capacity: u32,
    /// The most blocks of one prompt that are looked at.
    pub max_blocks: u32,
}

impl Default for PrefixTerms {
    fn default() -> Self {
        Self { block_tokens: 16, capacity: 31_250, max_blocks: 1024 }
    }
}

impl PrefixTerms {
    /// Those of a configured list: the parameters of its prefix-affinity.
    ///
    /// # Errors
    /// [`ParamError`] when one of them does not fit.
    pub fn of(specs: &[ScorerSpec]) -> Result<Self, ParamError> {
        let usual = Self::default();
        let Some(spec) = specs.iter().find(|one| one.is("prefix-affinity")) else {
            return Ok(usual);
        };
        let block_tokens = spec.params.count("block-size", usual.block_tokens)?;
        if block_tokens > 256 {
            let expected = "a whole number of tokens from 1 to 256";
            return Err(ParamError::Bad { name: "block-size", expected });
        }
        Ok(Self {
            block_tokens,
            capacity: spec.params.count("capacity", usual.capacity)?,
            max_blocks: spec.params.count("max-blocks", usual.max_blocks)?,
        })
    }
}
