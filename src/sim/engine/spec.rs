//! What an engine is.

use super::{BLOCK_TOKENS, StepModel, StepWork};
use crate::config::Engine;

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

/// Which waiting request is admitted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The one that arrived first: vLLM, TensorRT-LLM, llama.cpp.
    #[default]
    Arrival,
    /// The one of whose prompt the most is cached, as SGLang has it (`--schedule-policy lpm`); by arrival where more
    /// than 128 wait.
    LongestPrefix,
}

/// How a server takes models into memory when requests need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDemand {
    /// The most models in memory (Ollama: `OLLAMA_MAX_LOADED_MODELS`).
    pub most: u32,
    /// How long loading one takes, in picoseconds.
    pub load_time: u64,
}

/// The slots of engines that have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// How many; the engine's default where it is not known.
    pub count: Option<u32>,
    /// The context of each, in tokens.
    pub context: u32,
    /// How Ollama takes models into memory.
    pub on_demand: OnDemand,
}

impl Default for Slots {
    fn default() -> Self {
        Self { count: None, context: 8192, on_demand: OnDemand { most: 1, load_time: 0 } }
    }
}

/// Slots of llama.cpp without `--parallel`.
const LLAMA_CPP_SLOTS: u32 = 4;
/// Slots of Ollama without `OLLAMA_NUM_PARALLEL`.
const OLLAMA_SLOTS: u32 = 1;

/// An engine's step time and limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSpec {
    /// How long its steps take.
    pub step_time: StepModel,
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
    /// Which waiting request is the next.
    pub order: Order,
    /// How models get into memory; `None` where all are there.
    pub on_demand: Option<OnDemand>,
    /// What lies between penstock and the first step of a request, in picoseconds: network, front end and tokenizer.
    /// `None` where it was not learned; the engine itself does not use it.
    pub front_end: Option<u64>,
}

/// Why a specification describes no engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A limit is 0.
    #[error(
        "an engine needs at least one request, one token per step, one KV block and one model in memory"
    )]
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
    /// A fit begins with coefficients.
    #[error("a table of step times cannot be fitted; begin with a row, or with 'unknown'")]
    Table,
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

    /// The same engine with the scheduler of `engine`; those that are not known schedule as vLLM does.
    #[must_use]
    pub fn scheduled_as(self, engine: Engine, slots: &Slots) -> Self {
        let has_slots = self.caching == Caching::Slots && slots.count.is_none();
        let with_slots = |usual| {
            let own = self.clone();
            if has_slots {
                return own;
            }
            own.with_slots(slots.count.unwrap_or(usual), slots.context)
        };
        match engine {
            Engine::Sglang => Self { order: Order::LongestPrefix, ..self },
            Engine::TrtLlm => Self { admission: Admission::Reserved, ..self },
            Engine::LlamaCpp => with_slots(LLAMA_CPP_SLOTS),
            Engine::Ollama => Self { on_demand: Some(slots.on_demand), ..with_slots(OLLAMA_SLOTS) },
            // A new engine schedules as vLLM does until its own rules are added above.
            _ => match slots.count {
                Some(count) => self.with_slots(count, slots.context),
                None => self,
            },
        }
    }

    /// Checks that the engine can run.
    ///
    /// # Errors
    /// See [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        let (requests, tokens) = (self.max_requests, self.max_step_tokens);
        let one = StepWork { decodes: 1, ..StepWork::default() };
        match () {
            () if requests == 0 || tokens == 0 || self.longest() == 0 => Err(SpecError::Zero),
            () if self.on_demand.is_some_and(|on_demand| on_demand.most == 0) => {
                Err(SpecError::Zero)
            }
            () if tokens < requests => Err(SpecError::StepTooSmall { tokens, requests }),
            () if self.step_time.of(&one) == 0 => Err(SpecError::NoTime),
            () => Ok(()),
        }
    }
}
