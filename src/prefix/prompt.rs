//! A request's prompt as a chain of block hashes.

use super::{Chain, ChainBuilder, HashCache};
use crate::scan::{Outline, OutlineSink, RAW_PIECE, RequestProfile};
use crate::scoring::PrefixParams;

/// Bytes of text a token stands for.
const TEXT_PER_TOKEN: usize = 4;

/// Hashes the prompt in `body` into `chain`; empty for operations that have none. `model` is the name
/// the engines know: adapters are models of their own, and share nothing. Allocates only when the
/// prompt is longer than any before. What `cache` knows of it need not be hashed, and comes to the same.
pub fn prompt_chain(
    request: &RequestProfile,
    body: &[u8],
    (model, terms): (&str, PrefixParams),
    (chain, cache): (&mut Chain, Option<&HashCache>),
) {
    let outline = Outline::of(request, body);
    let salt = outline.map(|outline| outline.salt()).unwrap_or_default();
    let seed = ChainBuilder::seed(&[model.as_bytes(), salt]);
    let block = terms.block_tokens as usize * TEXT_PER_TOKEN;
    chain.set_block_tokens(terms.block_tokens);
    let cache = cache.filter(|_| HashCache::suits(block, RAW_PIECE));
    let mut blocks = Blocks(ChainBuilder::new(chain, seed, (block, terms.max_blocks as usize)));
    blocks.0.look_up_in(cache);
    if let Some(outline) = outline {
        outline.write(&mut blocks);
    }
    blocks.0.finish();
}

struct Blocks<'a>(ChainBuilder<'a>);

impl OutlineSink for Blocks<'_> {
    #[inline]
    fn add(&mut self, piece: &[u8]) {
        self.0.add(piece);
    }

    #[inline]
    fn room(&mut self) -> &mut [u8] {
        self.0.room()
    }

    #[inline]
    fn fill(&mut self, count: usize) {
        self.0.fill(count);
    }

    fn is_full(&self) -> bool {
        self.0.is_full()
    }

    fn recalls(&self) -> bool {
        self.0.recalls()
    }

    fn recall(&mut self, raw: &[u8; RAW_PIECE]) -> Option<(usize, bool)> {
        self.0.recall(raw)
    }

    fn remember(&mut self, read: (usize, bool)) {
        self.0.remember(read);
    }
}
