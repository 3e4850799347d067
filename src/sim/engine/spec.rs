//! What an engine is.

use super::{BLOCK_TOKENS, StepTime};

/// When a waiting request is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// When its next chunk fits, as in vLLM and SGLang; a shortage later preempts.
    #[default]
    OnDemand,
    /// When its prompt and its longest output fit beside those of all others, as in TensorRT-LLM's
    /// `GUARANTEED_NO_EVICT`; nothing is ever preempted.
    Reserved,
}

/// What an engine keeps of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Caching {
    /// Nothing.
    None,
    /// The blocks of all prompts, as long as there is room, for every request: vLLM, SGLang, TensorRT-LLM.
    #[default]
    Blocks,
    /// The last prompt of each slot, for the next request that takes the slot: llama.cpp, and Ollama on it.
    Slots,
}

/// An engine's step time and limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSpec {
    /// How long its steps take.
    pub step_time: StepTime,
    /// The most requests in a batch (vLLM: `max_num_seqs`).
    pub max_requests: u32,
    /// The most tokens that a step computes (vLLM: `max_num_batched_tokens`).
    pub max_step_tokens: u32,
    /// The longest prompt with its output, in tokens (vLLM: `max_model_len`).
    pub max_context: u32,
    /// Blocks of the KV cache, each of [`BLOCK_TOKENS`] tokens.
    pub kv_blocks: u32,
    /// What it keeps of prompts for others that begin alike.
    pub caching: Caching,
    /// When a request is admitted.
    pub admission: Admission,
}

/// Why a specification describes no engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A limit is 0.
    #[error("an engine needs at least one request, one token per step and one KV block")]
    Zero,
    /// A batch would not fit into a step.
    #[error(
        "the tokens of a step ({tokens}) must be at least the requests of a batch ({requests})"
    )]
    StepTooSmall {
        /// Tokens of a step.
        tokens: u32,
        /// Requests of a batch.
        requests: u32,
    },
    /// Steps that take no time would never let it pass.
    #[error("the base of the step time must be greater than 0")]
    NoTime,
}

impl EngineSpec {
    /// The longest prompt with its output: what the model and the KV cache have room for.
    pub fn longest(&self) -> u32 {
        self.max_context.min(self.kv_blocks.saturating_mul(BLOCK_TOKENS))
    }

    /// The same engine as llama.cpp: so many slots, each with its own context and cache. Requests wait for a free
    /// slot, and none is ever preempted.
    #[must_use]
    pub fn with_slots(self, slots: u32, context: u32) -> Self {
        let blocks = context.div_ceil(BLOCK_TOKENS).saturating_mul(slots);
        let max_step_tokens = self.max_step_tokens.max(slots);
        Self {
            max_requests: slots,
            max_context: context,
            kv_blocks: blocks,
            caching: Caching::Slots,
            max_step_tokens,
            ..self
        }
    }

    /// Checks that the engine can run.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        let (requests, tokens) = (self.max_requests, self.max_step_tokens);
        match () {
            () if requests == 0 || tokens == 0 || self.longest() == 0 => Err(SpecError::Zero),
            () if tokens < requests => Err(SpecError::StepTooSmall { tokens, requests }),
            () if self.step_time.base == 0 => Err(SpecError::NoTime),
            () => Ok(()),
        }
    }
}
