//! Hashes the prompt of a request into a [`Chain`].

use penstock_scan::{Outline, OutlineSink, RequestProfile};
use penstock_scoring::PrefixParams;

use super::{Chain, ChainBuilder};

/// Bytes of text per token.
const BYTES_PER_TOKEN: usize = 4;

/// Hashes the prompt in `body` into `chain`, which stays empty for operations without one. `model`
/// is the resolved name: adapters are models, and models share no blocks. Allocates only when the
/// prompt has more blocks than any before.
pub fn prompt_chain(
    request: &RequestProfile,
    body: &[u8],
    model: &str,
    params: PrefixParams,
    chain: &mut Chain,
) {
    let outline = Outline::of(request, body);
    let salt = outline.map(|outline| outline.salt()).unwrap_or_default();
    let seed = ChainBuilder::seed(&[model.as_bytes(), salt]);
    let block = params.block_tokens as usize * BYTES_PER_TOKEN;
    chain.set_block_tokens(params.block_tokens);
    let mut blocks = Blocks(ChainBuilder::new(chain, seed, block, params.max_blocks as usize));
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
}

#[cfg(test)]
mod tests;
