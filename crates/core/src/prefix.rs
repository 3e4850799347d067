//! Predicts which leading blocks of a prompt each backend has in its prefix cache. The prediction
//! is learned from routed requests: an engine that receives a prompt keeps its KV blocks for a
//! while and evicts the least recently used ones (LRU). An engine may also report events itself.
//!
//! A prompt is a [`Chain`] of hashes, one per full block, each over the block and the hash before
//! it: equal hashes mean equal prompts up to that block. Source: the block hashes of vLLM, llm-d,
//! BLIS.
//!
//! Reading order: `chain` and `prompt` (hashing), `index` with `run`, `runs` and `pages` (one
//! model, up to 64 backends, exact LRU), `model_index` (any number of backends, the lock), `events`
//! (changes of a prediction), `engine_cache` (the bound over the models of a backend), `memory`
//! (the bound over all models). A wrong prediction costs a prefill on the backend; it never changes
//! a response.

mod chain;
mod engine_cache;
mod events;
mod folded;
mod index;
mod memory;
mod model_index;
mod pages;
mod prompt;
mod run;
mod runs;

pub use chain::{Chain, ChainBuilder};
pub use engine_cache::EngineCache;
pub use events::{CacheEvent, CacheState, Predicted};
pub use folded::{FOLDED_TOKENS, MAX_FOLDED, MAX_UNFOLDED, fold, most_replayed, unfold};
pub use index::PrefixIndex;
pub use memory::{MemoryBudget, fair_shares};
pub use model_index::{ModelIndex, Slot};
pub use prompt::prompt_chain;
pub use run::SLOTS;
