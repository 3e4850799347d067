//! Which leading blocks of prompts which backends are believed to have cached. It is an
//! approximation that learns from our own decisions: an engine that is sent a prompt keeps its KV
//! blocks for a while, and forgets them least recently used first.
//!
//! A prompt is a [`Chain`] of hashes, one per full block, each over the block and the hash before
//! it: equal hashes mean equal prompts up to there. Source: the block hashes of vLLM, llm-d, BLIS.

mod budget;
mod chain;
mod hash_cache;
mod index;
mod pages;
mod run;
mod runs;

pub use budget::Budget;
pub use chain::{Chain, ChainBuilder};
pub use hash_cache::{HashCache, SECRET};
pub use index::{LANES, PrefixIndex};
