//! A prompt as a chain of block hashes.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::hash_cache::{HashCache, Key};

/// The longest block: 256 tokens of 4 bytes.
const MAX_BLOCK: usize = 1024;
/// What most engines have: 16 tokens of 4 bytes.
const USUAL_BLOCK: usize = 64;

/// The hashes of a prompt's full blocks, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    hashes: Vec<u64>,
    /// Of all of a prompt that has no full block; 0 where there is no text at all.
    whole: u64,
    block_tokens: u32,
}

impl Chain {
    /// A prompt whose blocks of `block_tokens` are known by their hashes: from a trace, or made up.
    pub fn of(hashes: Vec<u64>, block_tokens: u32) -> Self {
        Self { hashes, block_tokens, whole: 0 }
    }

    /// One hash per full block.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Tokens of a block; 0 where nobody said.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Says how many tokens a block has.
    pub fn set_block_tokens(&mut self, tokens: u32) {
        self.block_tokens = tokens;
    }

    /// The hash of the first block; without one, of the whole prompt.
    pub fn first(&self) -> u64 {
        self.hashes.first().copied().unwrap_or(self.whole)
    }

    /// The hash of the last block, which depends on all before it; without one, of the whole
    /// prompt.
    pub fn last(&self) -> u64 {
        self.hashes.last().copied().unwrap_or(self.whole)
    }

    /// Adds the blocks of `text`, which is whole blocks, up to `most` of them; returns the hash of the
    /// last one, before them `last`.
    fn extend(&mut self, text: &[u8], block: usize, (last, most): (u64, usize)) -> u64 {
        let most = most.saturating_sub(self.hashes.len());
        // The compiler makes much less of hashing what is known to be of this size.
        if block == USUAL_BLOCK {
            let (blocks, _) = text.as_chunks::<USUAL_BLOCK>();
            return self.add(blocks.iter().take(most).map(|block| xxh3_64(block)), last);
        }
        self.add(text.chunks_exact(block).take(most).map(xxh3_64), last)
    }

    fn add(&mut self, digests: impl Iterator<Item = u64>, mut last: u64) -> u64 {
        self.hashes.extend(digests.map(|digest| {
            last = behind(last, digest);
            last
        }));
        last
    }

    /// Whether there is no prompt to tell from others.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty() && self.whole == 0
    }

    /// How many full blocks there are.
    pub fn blocks(&self) -> u32 {
        u32::try_from(self.hashes.len()).unwrap_or(u32::MAX)
    }
}

/// The hash of a block with this digest, behind one with the hash `last`. Apart from the digest, so that
/// those of many blocks are made at a time: only this has to wait for the block before. Source: the
/// mix of wyhash (Wang Yi), with constants of its own.
fn behind(last: u64, digest: u64) -> u64 {
    fold(last ^ 0x9e37_79b9_7f4a_7c15, digest ^ 0xd1b5_4a32_d192_ed03)
}

/// The halves of the product, one upon the other.
#[expect(clippy::cast_possible_truncation, reason = "the halves of the product")]
#[inline(always)]
pub(super) fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> u64::BITS) as u64 ^ product as u64
}

/// Text is gathered up to this before it is hashed: pieces are often shorter than a block.
const STAGE: usize = 2 * MAX_BLOCK;

/// Makes a [`Chain`] of text that comes in pieces. Where the pieces are cut makes no difference.
#[derive(Debug)]
pub struct ChainBuilder<'a> {
    chain: &'a mut Chain,
    last: u64,
    block: usize,
    most: usize,
    stage: [u8; STAGE],
    filled: usize,
    cache: Option<&'a HashCache>,
    sought: Option<Sought>,
    /// Whether it makes sense to ask the cache: a prompt parts from all others once, and for good.
    recalls: bool,
    /// Whether the cache knew the piece before, so that it may know what follows one that had to give
    /// way to another.
    knew: bool,
    /// Whether what the cache does not know has come before.
    learns: bool,
    /// Pieces the cache knew, and those it did not.
    counts: (u32, u32),
}

/// A piece of raw text the cache did not know, and how many blocks there were before it.
#[derive(Debug, Clone, Copy)]
struct Sought {
    key: Key,
    blocks: usize,
}

impl<'a> ChainBuilder<'a> {
    /// Starts `chain` anew, with blocks of `block` bytes (1..=1024) and at most `most` of them. `seed`
    /// keeps apart what must not be mixed: models, adapters, cache salts.
    pub fn new(chain: &'a mut Chain, seed: u64, (block, most): (usize, usize)) -> Self {
        chain.hashes.clear();
        chain.whole = seed;
        let block = block.clamp(1, MAX_BLOCK);
        Self {
            chain,
            last: seed,
            block,
            most,
            stage: [0; STAGE],
            filled: 0,
            cache: None,
            sought: None,
            recalls: false,
            knew: false,
            learns: false,
            counts: (0, 0),
        }
    }

    /// Has it look up what was hashed before.
    // In place: its stage is too large to be handed around.
    pub fn look_up_in(&mut self, cache: Option<&'a HashCache>) {
        self.recalls = cache.is_some();
        self.cache = cache;
    }

    /// A seed for what must not be mixed with anything else.
    pub fn seed(parts: &[&[u8]]) -> u64 {
        parts.iter().fold(0, |seed, part| xxh3_64_with_seed(part, seed))
    }

    /// Whether more text makes no difference.
    pub fn is_full(&self) -> bool {
        self.chain.hashes.len() >= self.most
    }

    /// Adds text.
    #[inline]
    pub fn add(&mut self, text: &[u8]) {
        if let Some(room) = self.stage.get_mut(self.filled..self.filled + text.len()) {
            room.copy_from_slice(text);
            self.filled += text.len();
        } else {
            self.add_behind_stage(text);
        }
    }

    /// Room for further text: at least as much as the longest block.
    #[inline]
    pub fn room(&mut self) -> &mut [u8] {
        if self.filled > MAX_BLOCK {
            self.hash_stage();
        }
        self.stage.get_mut(self.filled..).unwrap_or_default()
    }

    /// So many bytes of the room are text now.
    #[inline]
    pub fn fill(&mut self, count: usize) {
        self.filled = STAGE.min(self.filled + count);
    }

    /// Whether it makes sense to ask for pieces of raw text.
    pub fn recalls(&self) -> bool {
        self.recalls && !self.is_full()
    }

    /// Adds what a string's piece of raw text is known to stand for: so many bytes of it, and whether the
    /// string ends there. Where it is not known, the text it stands for is to be added now, and
    /// [`ChainBuilder::remember`] to be told the same of it.
    pub fn recall(&mut self, piece: &[u8]) -> Option<(usize, bool)> {
        let cache = self.cache?;
        self.hash_stage();
        if self.is_full() {
            return None;
        }
        // All that came before, as far as it makes a difference.
        let carried = self.stage.get(..self.filled).unwrap_or_default();
        let key = cache.key((self.last, self.block), carried, piece);
        let blocks = self.chain.hashes.len();
        let room = self.stage.get_mut(self.filled..).unwrap_or_default();
        let Some(known) = cache.get(key, &mut self.chain.hashes, room) else {
            self.counts.1 += 1;
            self.learns |= cache.is_sought_again(key);
            self.recalls = self.learns || self.knew;
            self.sought = self.learns.then_some(Sought { key, blocks });
            self.knew = false;
            return None;
        };
        self.counts.0 += 1;
        self.knew = true;
        self.last = self.chain.hashes.last().copied().unwrap_or(self.last);
        self.chain.hashes.truncate(self.most);
        self.stage.copy_within(self.filled..self.filled + known.carry, 0);
        self.filled = known.carry;
        Some((known.read, known.is_over))
    }

    /// The text added since was all that so much of the piece stands for.
    pub fn remember(&mut self, read: (usize, bool)) {
        self.hash_stage();
        let (Some(cache), Some(sought)) = (self.cache, self.sought.take()) else { return };
        if !self.is_full() {
            let hashes = self.chain.hashes.get(sought.blocks..).unwrap_or_default();
            let carried = self.stage.get(..self.filled).unwrap_or_default();
            cache.put(sought.key, read, (hashes, carried));
        }
    }

    /// Ends the chain: what does not fill a block is no part of it. A prompt that fills none at all is
    /// told from others by that, so that they need not all be equals.
    pub fn finish(mut self) {
        self.hash_stage();
        if let Some(cache) = self.cache {
            cache.count(self.counts);
        }
        if self.chain.hashes.is_empty() {
            let text = self.stage.get(..self.filled).unwrap_or_default();
            let seed = std::mem::take(&mut self.chain.whole);
            if !text.is_empty() {
                self.chain.whole = behind(seed, xxh3_64(text));
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn add_behind_stage(&mut self, mut text: &[u8]) {
        self.hash_stage();
        if self.filled > 0 {
            let taken = text.len().min(self.block - self.filled);
            let (begin, behind) = text.split_at(taken);
            self.keep(begin);
            text = behind;
            if self.filled < self.block {
                return;
            }
            self.hash_stage();
        }
        // Whole blocks are hashed where they lie.
        let (whole, rest) = text.split_at(text.len() - text.len() % self.block);
        self.last = self.chain.extend(whole, self.block, (self.last, self.most));
        self.keep(rest);
    }

    /// Hashes the full blocks gathered so far, and keeps the rest.
    fn hash_stage(&mut self) {
        let whole = self.filled - self.filled % self.block;
        if whole == 0 {
            return;
        }
        let blocks = self.stage.get(..whole).unwrap_or_default();
        self.last = self.chain.extend(blocks, self.block, (self.last, self.most));
        self.stage.copy_within(whole..self.filled, 0);
        self.filled -= whole;
    }

    fn keep(&mut self, part: &[u8]) {
        let to = self.stage.get_mut(self.filled..self.filled + part.len());
        to.unwrap_or_default().copy_from_slice(part);
        self.filled += part.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chain(parts: &[&[u8]], seed: u64, most: usize) -> Chain {
        let mut chain = Chain::default();
        let mut builder = ChainBuilder::new(&mut chain, seed, (64, most));
        parts.iter().for_each(|part| builder.add(part));
        builder.finish();
        chain
    }

    #[test]
    fn a_chain_has_a_hash_per_full_block_and_says_where_prompts_part() {
        let text: Vec<u8> = (0..200).collect();
        let whole = chain(&[&text], 1, 100);
        assert_eq!(whole.blocks(), 3, "the tail of 8 bytes is no block");
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
            "no block, and yet not the same"
        );
        assert_ne!(short.first(), chain(&[b"short"], 8, 2).first(), "another model");
        assert!(chain(&[], 7, 2).is_empty() && !short.is_empty() && !whole.is_empty());
    }

    #[test]
    fn equal_blocks_at_different_places_have_different_hashes() {
        let chain = chain(&[&[b'x'; 256]], 1, 100);
        let distinct: std::collections::BTreeSet<_> = chain.hashes().iter().collect();
        assert_eq!(distinct.len(), 4);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(text: Vec<u8>, cuts in prop::collection::vec(0_usize..200, 0..8)) {
            let mut parts: Vec<&[u8]> = Vec::new();
            let mut rest = &text[..];
            for cut in cuts {
                let (part, behind) = rest.split_at(cut.min(rest.len()));
                parts.push(part);
                rest = behind;
            }
            parts.push(rest);
            prop_assert_eq!(chain(&parts, 3, 1000), chain(&[&text], 3, 1000));
        }
    }
}
