//! A request as scorers read it.

use super::objectives::Objectives;
use super::readings::Candidate;

/// The features of a request that scorers read.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestFeatures {
    /// The hash of its prompt's first full block, or of the whole prompt if there is none.
    pub first_block: u64,
    /// The hash of its last full block, which covers all before it, or of the whole prompt if there
    /// is none.
    pub last_block: u64,
    /// Full blocks of the prompt.
    pub prompt_blocks: u32,
    /// True if the prompt has more blocks than are counted (`max-blocks`).
    pub is_cut: bool,
    /// True if there is no prompt to break ties by, so that equal candidates take turns.
    pub in_turn: bool,
    /// The model's turn, if equal candidates take turns.
    pub turn: u64,
    pub block_tokens: u32,
    /// The estimated length of its prompt, in tokens.
    pub prompt_tokens: u32,
    /// A hash of the session it names.
    pub session: Option<u64>,
    /// The row of the candidate at which its session is at home.
    pub home: Option<u32>,
    /// The latency objectives and the priority.
    pub objectives: Objectives,
}

impl RequestFeatures {
    /// Returns whether a candidate has the prompt cached, or is the home of its session.
    pub(super) fn is_warm(&self, candidate: &Candidate, threshold: f64) -> bool {
        candidate.match_ratio() >= threshold || self.home == Some(candidate.row)
    }

    /// Returns the tokens of the prompt that a candidate is believed to have cached.
    pub fn cached_tokens(&self, candidate: &Candidate) -> u32 {
        self.size(candidate).tokens_in(candidate.matched_blocks)
    }

    /// Returns the tokens of the prompt that a candidate would have to compute.
    pub fn new_tokens(&self, candidate: &Candidate) -> f64 {
        let size = self.size(candidate);
        f64::from(size.tokens.saturating_sub(size.tokens_in(candidate.matched_blocks)))
    }

    fn size(&self, candidate: &Candidate) -> PromptSize {
        let Self { prompt_tokens, block_tokens, is_cut, .. } = *self;
        let blocks = candidate.prompt_blocks;
        // A prompt without an estimate is as long as its blocks.
        let tokens = match prompt_tokens {
            0 => blocks.saturating_mul(block_tokens),
            tokens => tokens,
        };
        PromptSize { tokens, blocks, block_tokens, is_cut }
    }
}

/// The size of a prompt, in tokens and in blocks of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptSize {
    /// The estimated tokens, by the density of the text.
    pub tokens: u32,
    /// The number of full blocks.
    pub blocks: u32,
    /// The tokens of a block, if each has four bytes.
    pub block_tokens: u32,
    /// True if the prompt has more blocks than are counted.
    pub is_cut: bool,
}

impl PromptSize {
    /// Returns the tokens in the first `blocks` blocks: their share of the prompt. Blocks of code
    /// or data have up to twice the tokens of prose, and blocks of some scripts half as many.
    pub fn tokens_in(&self, blocks: u32) -> u32 {
        let Self { tokens, block_tokens, is_cut, .. } = *self;
        let by_length = |blocks: u32| u64::from(blocks) * u64::from(block_tokens);
        // The end of the prompt is shorter than a block.
        let [least, most] = [self.blocks, self.blocks.saturating_add(1)].map(by_length);
        let length = if is_cut { 0 } else { u64::from(tokens).clamp(least, most) };
        let found = match length {
            0 => by_length(blocks),
            length => by_length(blocks).saturating_mul(tokens.into()) / length,
        };
        u32::try_from(found).unwrap_or(u32::MAX)
    }
}
