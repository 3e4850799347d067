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

    /// The tokens of the prompt that a candidate would have to compute. The prompt is at least as
    /// long as its blocks: they include tools, which the estimate leaves out, and count text by its
    /// bytes.
    pub fn new_tokens(&self, candidate: &Candidate) -> f64 {
        let [blocks, cached] = [candidate.prompt_blocks, candidate.matched_blocks]
            .map(|blocks| blocks.saturating_mul(self.block_tokens));
        f64::from(self.prompt_tokens.max(blocks).saturating_sub(cached))
    }
}
