//! The specification of a simulated engine.

use penstock_api::{Engine, ModelLoading, Scheduler};

use super::{BLOCK_TOKENS, StepModel, StepWork};

/// The condition for admitting a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// Admits when the next chunk fits, as in vLLM and SGLang; a later shortage preempts.
    #[default]
    OnDemand,
    /// Admits when the prompt and its maximum output fit next to those of all others, as in
    /// TensorRT-LLM's `GUARANTEED_NO_EVICT`; nothing is ever preempted.
    Reserved,
}

/// The prefix cache of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Caching {
    /// No prompt is cached.
    None,
    /// Blocks of all prompts are cached for every request while there is room: vLLM, SGLang,
    /// TensorRT-LLM.
    #[default]
    Blocks,
    /// Each slot keeps its last prompt for the next request in that slot: llama.cpp, and Ollama on
    /// it.
    Slots,
}

/// The order in which waiting requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// By arrival: vLLM, TensorRT-LLM, llama.cpp.
    #[default]
    Arrival,
    /// The request with the most cached prompt tokens first, as in SGLang (`--schedule-policy
    /// lpm`); by arrival if more than 128 wait.
    LongestPrefix,
}

/// The limits of a server that loads models when requests need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDemand {
    /// The maximum number of models in memory (Ollama: `OLLAMA_MAX_LOADED_MODELS`).
    pub most: u32,
    /// The time to load a model, in picoseconds.
    pub load_time: u64,
}

/// The slots of engines that have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The number of slots; the engine's default if unknown.
    pub count: Option<u32>,
    /// The context of each slot, in tokens.
    pub context: u32,
    /// The way in which Ollama loads models into memory.
    pub on_demand: OnDemand,
}

impl Default for Slots {
    fn default() -> Self {
        Self { count: None, context: 8192, on_demand: OnDemand { most: 1, load_time: 0 } }
    }
}

/// An engine's step time and limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSpec {
    /// The duration of its steps.
    pub step_time: StepModel,
    /// The maximum number of requests in a batch (vLLM: `max_num_seqs`).
    pub max_requests: u32,
    /// The maximum number of tokens per step (vLLM: `max_num_batched_tokens`).
    pub max_step_tokens: u32,
    /// The maximum length of a prompt with its output, in tokens (vLLM: `max_model_len`).
    pub max_context: u32,
    /// The number of blocks in the KV cache, each of [`BLOCK_TOKENS`] tokens.
    pub kv_blocks: u32,
    /// The prompts it keeps for later requests with the same prefix.
    pub caching: Caching,
    /// The condition for admitting a request.
    pub admission: Admission,
    /// The order in which waiting requests are admitted.
    pub order: Order,
    /// The limits of loading models on demand; `None` if all models are in memory.
    pub on_demand: Option<OnDemand>,
    /// The time between penstock and the first step of a request, in picoseconds: network, front
    /// end and tokenizer. `None` if it was not learned; the engine itself does not use it.
    pub front_end: Option<u64>,
}

/// The reason why a specification is invalid.
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
    /// Steps without a duration would never advance time.
    #[error("the base of the step time must be greater than 0")]
    NoTime,
    /// A fit starts from coefficients.
    #[error("a table of step times cannot be fitted; begin with a row, or with 'unknown'")]
    Table,
}

impl EngineSpec {
    /// Returns the maximum length of a prompt with its output: limited by the model and by the KV
    /// cache.
    pub fn longest(&self) -> u32 {
        self.max_context.min(self.kv_blocks.saturating_mul(BLOCK_TOKENS))
    }

    /// Returns the same engine scheduled as llama.cpp, with `slots` slots, each with its own
    /// context and cache. Requests wait for a free slot, and none is ever preempted.
    #[must_use]
    pub fn with_slots(self, slots: u32, context: u32) -> Self {
        let blocks = context.div_ceil(BLOCK_TOKENS).saturating_mul(slots);
        // Every slot must get a token in each step.
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

    /// Returns the same engine with at most `count` requests at a time.
    #[must_use]
    pub fn with_max_requests(self, count: u32) -> Self {
        let context = self.max_context;
        match self.caching {
            // Each slot has a KV cache of its length.
            Caching::Slots => self.with_slots(count, context),
            Caching::None | Caching::Blocks => Self {
                max_requests: count,
                max_step_tokens: self.max_step_tokens.max(count),
                ..self
            },
        }
    }

    /// Returns the same engine with the scheduler of `engine`; unknown engines schedule as vLLM
    /// does.
    #[must_use]
    pub fn scheduled_as(self, engine: Engine, slots: &Slots) -> Self {
        let has_slots = self.caching == Caching::Slots && slots.count.is_none();
        let row = engine.row();
        match row.scheduler {
            Some(Scheduler::LongestPrefix) => Self { order: Order::LongestPrefix, ..self },
            Some(Scheduler::Reserved) => Self { admission: Admission::Reserved, ..self },
            Some(Scheduler::Slots { usual }) => {
                let loads = row.loading == ModelLoading::OnDemand;
                let on_demand = if loads { Some(slots.on_demand) } else { self.on_demand };
                let count = slots.count.unwrap_or(usual);
                // A row that was measured with slots has its number of them already.
                let spec = if has_slots { self } else { self.with_slots(count, slots.context) };
                Self { on_demand, ..spec }
            }
            Some(Scheduler::Arrival) | None => match slots.count {
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
            // Some decoding request would never get a token.
            () if tokens < requests => Err(SpecError::StepTooSmall { tokens, requests }),
            // Virtual time would stand still.
            () if self.step_time.of(&one) == 0 => Err(SpecError::NoTime),
            () => Ok(()),
        }
    }
}
