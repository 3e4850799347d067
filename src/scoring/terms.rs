//! How prompts are cut into blocks, and how many of them are remembered.

use super::params::ParamError;
use super::profile::ScorerSpec;

/// The most tokens of a block.
const MAX_BLOCK_TOKENS: u32 = 256;

/// The parameters of whatever scorer reads prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixTerms {
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

impl Default for PrefixTerms {
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
        if block_tokens > MAX_BLOCK_TOKENS {
            let expected = "a whole number of tokens from 1 to 256";
            return Err(ParamError::Bad { name: "block-size", expected });
        }
        Ok(Self {
            block_tokens,
            follows_engines: !spec.params.has("block-size"),
            capacity: spec.params.count("capacity", usual.capacity)?,
            is_capped: spec.params.has("capacity"),
            max_blocks: spec.params.count("max-blocks", usual.max_blocks)?,
        })
    }

    /// The same for a model whose engines told that their blocks have `told` tokens.
    #[must_use]
    pub fn following(self, told: Option<u32>) -> Self {
        let followed = told.filter(|told| self.follows_engines && *told > 0);
        let block_tokens = followed.map_or(self.block_tokens, |told| told.min(MAX_BLOCK_TOKENS));
        Self { block_tokens, ..self }
    }
}
