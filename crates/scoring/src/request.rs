//! What scorers know of a request.

use super::objectives::Objectives;
use super::readings::Candidate;

/// What scorers know of a request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestFeatures {
    /// The hash of its prompt's first full block; of all of it where there is none.
    pub first_block: u64,
    /// The hash of its last full block, and so of all before it; of all of it where there is none.
    pub last_block: u64,
    /// Full blocks of the prompt.
    pub prompt_blocks: u32,
    /// Whether there is no prompt to break ties by, so that equal candidates take turns.
    pub in_turn: bool,
    /// The model's turn, where equal candidates take turns.
    pub turn: u64,
    /// Tokens per block.
    pub block_tokens: u32,
    /// The estimated length of its prompt, in tokens.
    pub prompt_tokens: u32,
    /// A hash of the session it names.
    pub session: Option<u64>,
    /// The row of the candidate at which its session is at home.
    pub home: Option<u32>,
    /// What its client wants.
    pub objectives: Objectives,
}

impl RequestFeatures {
    /// Whether a candidate has the prompt, or at least the session that it belongs to.
    pub(super) fn is_warm(&self, candidate: &Candidate, threshold: f64) -> bool {
        candidate.match_ratio() >= threshold || self.home == Some(candidate.row)
    }

    /// The tokens of the prompt a candidate would have to compute. The prompt is at least as long as
    /// its blocks: they include what the estimate leaves out (tools), and count text by its bytes.
    pub fn new_tokens(&self, candidate: &Candidate) -> f64 {
        let [blocks, cached] = [candidate.prompt_blocks, candidate.matched_blocks]
            .map(|blocks| blocks.saturating_mul(self.block_tokens));
        f64::from(self.prompt_tokens.max(blocks).saturating_sub(cached))
    }
}
