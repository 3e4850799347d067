//! What scorers read.

/// Where a request's adapter stands on a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Adapter {
    /// The request needs none, or nobody knows.
    #[default]
    Unknown,
    /// It is loaded and in use.
    Active,
    /// There is a free slot to load it into.
    FreeSlot,
    /// Requests for it wait to have it loaded.
    Waiting,
    /// All slots are taken by others.
    Absent,
}

/// What scorers know of one candidate at one moment. A reading that is `None` is not known; what
/// becomes of it is up to the scorer, see [`ScorerRow`](super::ScorerRow).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Candidate {
    /// A hash of its name, the same in every process.
    pub key: u64,
    /// Its place among all backends that could be candidates, from 0.
    pub place: u32,
    /// Requests waiting in the engine's queue.
    pub waiting: Option<f64>,
    /// Requests in the engine's batch.
    pub running: Option<f64>,
    /// Effective load: waiting, running, and what was dispatched since they were read.
    pub load: Option<f64>,
    /// The part of its KV cache in use, 0..=1.
    pub kv_utilization: Option<f64>,
    /// Requests this process has in flight there. It knows that itself; NaN where it is told so and
    /// was not.
    pub in_flight: f64,
    /// Tokens of those requests: prompts, and what they are expected to yield. NaN as above.
    pub tokens_in_flight: f64,
    /// Tokens of prompts that have not been answered with a first byte.
    pub prefill_tokens: f64,
    /// Leading blocks of the request's prompt that it is believed to have cached.
    pub matched_blocks: u32,
    /// Full blocks of the prompt.
    pub prompt_blocks: u32,
    /// Lower is better.
    pub priority: u32,
    /// The peak-sensitive moving average of the TTFT, in milliseconds.
    pub latency_ms: Option<f64>,
    /// Where the request's adapter stands.
    pub adapter: Adapter,
}

impl Candidate {
    /// A candidate nothing is known of.
    pub fn new(name: &str) -> Self {
        Self { key: xxhash_rust::xxh3::xxh3_64(name.as_bytes()), ..Self::default() }
    }

    /// The part of the prompt it has cached, 0..=1; 0 without a full block.
    pub fn match_ratio(&self) -> f64 {
        if self.prompt_blocks == 0 {
            return 0.0;
        }
        f64::from(self.matched_blocks.min(self.prompt_blocks)) / f64::from(self.prompt_blocks)
    }

    /// A finite reading, at least 0; anything else is not known.
    pub fn reading(given: f64) -> Option<f64> {
        given.is_finite().then(|| given.max(0.0))
    }
}

/// What scorers know of a request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Ask {
    /// The hash of its prompt's first full block; of all of it where there is none.
    pub first_block: u64,
    /// The hash of its last full block, and so of all before it; of all of it where there is none.
    pub last_block: u64,
    /// Whether there is no prompt to tell equals apart by.
    pub in_turn: bool,
    /// Whose turn it is among equals, where prompts do not tell.
    pub turn: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// The estimated length of its prompt, in tokens.
    pub prompt_tokens: u32,
    /// A hash of what names its session.
    pub session: Option<u64>,
}

impl Ask {
    /// The tokens of the prompt a candidate would have to compute. The prompt is as long as its blocks
    /// at least: they hold what the estimate leaves out (tools), and count text by its bytes.
    pub fn new_tokens(&self, candidate: &Candidate) -> f64 {
        let tokens = |blocks: u32| blocks.saturating_mul(self.block_tokens);
        let all = self.prompt_tokens.max(tokens(candidate.prompt_blocks));
        f64::from(all.saturating_sub(tokens(candidate.matched_blocks)))
    }
}
