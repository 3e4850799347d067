//! A prompt as a chain of block hashes.
//!
//! The hash of a block covers the block's text and the hash of the block before it, so two equal
//! hashes mean equal prompts up to the end of that block. Everything else in this module depends on
//! that: a lookup compares hashes and never text, and a prefix is found by its last block alone. A
//! hash of the block's text alone would let equal paragraphs at different positions be taken for
//! each other. 64 bits are enough because a collision costs a wrong prediction, never a wrong
//! response: with 31,250 blocks on each of 64 backends two blocks collide with a probability of
//! about 10^-7.

use penstock_api::slices::part_of;
use penstock_scoring::PromptSize;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The longest block: 256 tokens of 4 bytes.
const MAX_BLOCK: usize = 1024;
/// The block of most engines: 16 tokens of 4 bytes.
const USUAL_BLOCK: usize = 64;

/// The hashes of a prompt's full blocks, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    hashes: Vec<u64>,
    /// The hash of the whole text of a prompt without a full block; 0 without any text.
    whole: u64,
    block_tokens: u32,
    /// True if the prompt has more blocks than it may have.
    is_cut: bool,
}

impl Chain {
    /// Returns a prompt with the given hashes of blocks of `block_tokens`: from a trace, or
    /// generated.
    pub fn of(hashes: Vec<u64>, block_tokens: u32) -> Self {
        Self { hashes, block_tokens, whole: 0, is_cut: false }
    }

    /// Declares whether the prompt has more blocks than these.
    #[must_use]
    pub fn with_cut(self, is_cut: bool) -> Self {
        Self { is_cut, ..self }
    }

    /// Returns whether the prompt has more blocks than are here.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the size of the prompt, which has an estimated number of `tokens`.
    pub fn size(&self, tokens: u32) -> PromptSize {
        let (blocks, block_tokens, is_cut) = (self.blocks(), self.block_tokens, self.is_cut);
        PromptSize { tokens, blocks, block_tokens, is_cut }
    }

    /// One hash per full block.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Tokens per block; 0 when not set.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Sets the number of tokens per block.
    pub fn set_block_tokens(&mut self, tokens: u32) {
        self.block_tokens = tokens;
    }

    /// The hash of the first block, or of the whole prompt when it has no full block.
    pub fn first(&self) -> u64 {
        self.hashes.first().copied().unwrap_or(self.whole)
    }

    /// The hash of the last block, which covers all blocks before it, or of the whole prompt when
    /// it has no full block.
    pub fn last(&self) -> u64 {
        self.hashes.last().copied().unwrap_or(self.whole)
    }

    /// Returns whether there is no text at all, so that nothing distinguishes this prompt from
    /// others.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty() && self.whole == 0
    }

    /// Number of full blocks.
    pub fn blocks(&self) -> u32 {
        u32::try_from(self.hashes.len()).unwrap_or(u32::MAX)
    }
}

/// The hash of a block with this `digest` that follows a block with the hash `previous`. Digest and
/// chaining are separate steps so that the digests of several blocks are computed in parallel: only
/// this multiplication waits for the previous block. Source: the mix of wyhash (Wang Yi), with
/// different constants.
fn chained(previous: u64, digest: u64) -> u64 {
    fold(previous ^ 0x9e37_79b9_7f4a_7c15, digest ^ 0xd1b5_4a32_d192_ed03)
}

/// The 128-bit product, folded to 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "the halves of the product")]
#[inline(always)]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> u64::BITS) as u64 ^ product as u64
}

/// Text is staged up to this many bytes before it is hashed: pieces are often shorter than a block.
const STAGE: usize = 2 * MAX_BLOCK;

/// Builds a [`Chain`] from text that arrives in pieces; piece boundaries do not affect the result.
///
/// Pieces are copied into a stage and hashed when it is full. Invariant: `filled <= STAGE`, and
/// after `hash_stage` less than one block is left, so `room` always offers at least `MAX_BLOCK`
/// bytes: a decoder that writes into it always makes progress.
#[derive(Debug)]
pub struct ChainBuilder<'a> {
    chain: &'a mut Chain,
    /// The hash of the last full block, or the seed.
    last: u64,
    block: usize,
    max_blocks: usize,
    stage: [u8; STAGE],
    filled: usize,
}

impl<'a> ChainBuilder<'a> {
    /// Clears `chain` and builds it from blocks of `block` bytes (1..=1024), at most `max_blocks`
    /// of them. `seed` separates prompts that must not share blocks: models, adapters, cache salts.
    pub fn new(chain: &'a mut Chain, seed: u64, block: usize, max_blocks: usize) -> Self {
        chain.hashes.clear();
        // Holds the seed until `finish`, which needs it for a prompt without a full block.
        chain.whole = seed;
        chain.is_cut = false;
        let block = block.clamp(1, MAX_BLOCK);
        Self { chain, last: seed, block, max_blocks, stage: [0; STAGE], filled: 0 }
    }

    /// A seed made of everything that separates prompts.
    pub fn seed(parts: &[&[u8]]) -> u64 {
        parts.iter().fold(0, |seed, part| xxh3_64_with_seed(part, seed))
    }

    /// Returns whether the chain has all the blocks it may have, so that more text changes nothing.
    pub fn is_full(&self) -> bool {
        self.chain.hashes.len() >= self.max_blocks
    }

    #[inline]
    pub fn add(&mut self, text: &[u8]) {
        if let Some(room) = self.stage.get_mut(self.filled..self.filled + text.len()) {
            room.copy_from_slice(text);
            self.filled += text.len();
        } else {
            self.add_past_stage(text);
        }
    }

    /// Room for more text: at least as much as the longest block.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        if self.filled > MAX_BLOCK {
            self.hash_stage();
        }
        let room = self.stage.get_mut(self.filled..);
        debug_assert!(room.is_some(), "less than one block is left after hashing");
        room.unwrap_or_default()
    }

    /// Declares the first `count` bytes of the room as text.
    #[inline]
    pub fn fill(&mut self, count: usize) {
        self.filled = STAGE.min(self.filled + count);
    }

    /// Completes the chain. Text that does not fill a block is not part of it; a prompt shorter
    /// than one block is identified by the hash of its whole text, so that short prompts still
    /// differ.
    pub fn finish(mut self) {
        self.hash_stage();
        // One that ends with its last allowed block counts as cut as well.
        self.chain.is_cut = self.is_full();
        if self.chain.hashes.is_empty() {
            let text = part_of(&self.stage[..], ..self.filled);
            let seed = std::mem::take(&mut self.chain.whole);
            if !text.is_empty() {
                self.chain.whole = chained(seed, xxh3_64(text));
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn add_past_stage(&mut self, mut text: &[u8]) {
        self.hash_stage();
        if self.filled > 0 {
            let taken = text.len().min(self.block - self.filled);
            let (begin, rest) = text.split_at(taken);
            self.keep(begin);
            text = rest;
            if self.filled < self.block {
                return;
            }
            self.hash_stage();
        }
        // Whole blocks are hashed in place, without a copy.
        let (whole, rest) = text.split_at(text.len() - text.len() % self.block);
        self.last = self.chain.extend(whole, self.block, self.last, self.max_blocks);
        self.keep(rest);
    }

    /// Hashes the full blocks of the stage and moves the rest to its start.
    fn hash_stage(&mut self) {
        let whole = self.filled - self.filled % self.block;
        if whole == 0 {
            return;
        }
        let blocks = part_of(&self.stage[..], ..whole);
        self.last = self.chain.extend(blocks, self.block, self.last, self.max_blocks);
        self.stage.copy_within(whole..self.filled, 0);
        self.filled -= whole;
    }

    fn keep(&mut self, part: &[u8]) {
        let to = self.stage.get_mut(self.filled..self.filled + part.len());
        debug_assert!(to.is_some(), "less than one block is kept");
        if let Some(to) = to {
            to.copy_from_slice(part);
            self.filled += part.len();
        }
    }
}

impl Chain {
    /// Adds the blocks of `text`, which consists of whole blocks, until there are `max_blocks`;
    /// returns the hash of the last one.
    fn extend(&mut self, text: &[u8], block: usize, last: u64, max_blocks: usize) -> u64 {
        let missing = max_blocks.saturating_sub(self.hashes.len());
        // A block size known at compile time makes hashing much faster.
        if block == USUAL_BLOCK {
            let (blocks, _) = text.as_chunks::<USUAL_BLOCK>();
            return self.push_all(blocks.iter().take(missing).map(|block| xxh3_64(block)), last);
        }
        self.push_all(text.chunks_exact(block).take(missing).map(xxh3_64), last)
    }

    fn push_all(&mut self, digests: impl Iterator<Item = u64>, mut last: u64) -> u64 {
        self.hashes.extend(digests.map(|digest| {
            last = chained(last, digest);
            last
        }));
        last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(parts: &[&[u8]], seed: u64, most: usize) -> Chain {
        let mut chain = Chain::default();
        let mut builder = ChainBuilder::new(&mut chain, seed, 64, most);
        parts.iter().for_each(|part| builder.add(part));
        builder.finish();
        chain
    }

    #[test]
    fn chain_has_one_hash_per_full_block() {
        let text: Vec<u8> = (0..200).collect();
        let whole = chain(&[&text], 1, 100);
        assert_eq!(whole.blocks(), 3, "the last 8 bytes are not a full block");
        let mut other = text.clone();
        other[130] = 0;
        let other = chain(&[&other], 1, 100);
        assert_eq!(whole.hashes()[..2], other.hashes()[..2]);
        assert_ne!(whole.hashes()[2], other.hashes()[2]);
        assert_ne!(whole.first(), chain(&[&text], 2, 100).first(), "another model");
        assert_eq!(chain(&[&text], 1, 2).hashes(), &whole.hashes()[..2]);
        let short = chain(&[b"short"], 7, 2);
        assert_eq!((short.blocks(), short.first()), (0, short.last()));
        assert_eq!(short.first(), chain(&[b"sho", b"rt"], 7, 2).first());
        assert_ne!(
            short.first(),
            chain(&[b"other"], 7, 2).first(),
            "no full block, but different text"
        );
        assert_ne!(short.first(), chain(&[b"short"], 8, 2).first(), "another model");
        assert!(chain(&[], 7, 2).is_empty() && !short.is_empty() && !whole.is_empty());
    }

    #[test]
    fn equal_blocks_at_different_positions_hash_differently() {
        let chain = chain(&[&[b'x'; 256]], 1, 100);
        let distinct: std::collections::BTreeSet<_> = chain.hashes().iter().collect();
        assert_eq!(distinct.len(), 4);
    }

    proptest! {
        #[test]
        fn piece_boundaries_do_not_affect_the_chain(text: Vec<u8>, cuts in prop::collection::vec(0_usize..200, 0..8)) {
            let mut parts: Vec<&[u8]> = Vec::new();
            let mut rest = &text[..];
            for cut in cuts {
                let (part, after) = rest.split_at(cut.min(rest.len()));
                parts.push(part);
                rest = after;
            }
            parts.push(rest);
            prop_assert_eq!(chain(&parts, 3, 1000), chain(&[&text], 3, 1000));
        }
    }
}
