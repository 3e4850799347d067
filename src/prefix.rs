//! Which leading blocks of prompts which backends are believed to have cached. It is an
//! approximation that learns from our own decisions: an engine that is sent a prompt keeps its KV
//! blocks for a while, and forgets them least recently used first.
//!
//! A prompt is a [`Chain`] of hashes, one per full block, each over the block and the hash before
//! it: equal hashes mean equal prompts up to there. Source: the block hashes of vLLM, llm-d, BLIS.

mod chain;
mod events;
mod index;
mod memory;
mod model_index;
mod pages;
mod prompt;
mod run;
mod runs;

pub use chain::{Chain, ChainBuilder};
pub use events::{CacheEvent, CacheState, Predicted};
pub use index::PrefixIndex;
pub use memory::{MemoryBudget, fair_shares};
pub use model_index::{ModelIndex, Slot};
pub use prompt::prompt_chain;
pub use run::SLOTS;
