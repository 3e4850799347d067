//! A prompt's blocks in few hashes: the first blocks one by one, those behind them sixteen at a time. So a log keeps where
//! short prompts part in blocks of 32 tokens, and 17,408 tokens of a long one, in at most 64 hashes.

use crate::mix::mix;

/// Tokens of a block.
pub const FOLDED_TOKENS: u32 = 32;
/// Blocks with a hash each.
const SINGLE: usize = 32;
/// Blocks that share a hash behind them.
const TOGETHER: usize = 16;
/// The most hashes.
pub const MOST_FOLDED: usize = 64;
/// The most blocks that they stand for.
pub const MOST_UNFOLDED: u32 = 544;

/// The hashes that stand for a prompt's blocks, of which each hash includes all before it.
pub fn fold(blocks: &[u64]) -> impl Iterator<Item = u64> + '_ {
    let (single, together) = blocks.split_at(SINGLE.min(blocks.len()));
    let last = together.chunks_exact(TOGETHER).filter_map(<[u64]>::last);
    single.iter().chain(last).copied().take(MOST_FOLDED)
}

/// Hashes for every block again: the same for prompts whose folded hashes are the same.
pub fn unfold(folded: &[u64]) -> impl Iterator<Item = u64> + '_ {
    let (single, together) = folded.split_at(SINGLE.min(folded.len()));
    let each = |hash: &u64| {
        let hash = *hash;
        (0..TOGETHER as u64).map(move |number| mix(hash ^ number))
    };
    single.iter().copied().chain(together.iter().flat_map(each))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(blocks: &[u64]) -> Vec<u64> {
        unfold(&fold(blocks).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn prompts_share_what_they_shared_before_to_sixteen_blocks() {
        let prompt = |own: u64, from: u64| -> Vec<u64> {
            (0..600).map(|n| if n < from { n } else { own * 1000 + n }).collect()
        };
        let common = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        for (from, shared) in [(0, 0), (5, 5), (32, 32), (47, 32), (48, 48), (100, 96)] {
            let (a, b) = (round(&prompt(1, from)), round(&prompt(2, from)));
            assert_eq!(common(&a, &b), shared, "{from}");
            assert_eq!(a.len(), MOST_UNFOLDED as usize);
        }
        assert_eq!(fold(&prompt(1, 0)).count(), MOST_FOLDED);
        assert_eq!(round(&prompt(1, 0)[..7]), prompt(1, 0)[..7]);
        assert_eq!(round(&prompt(1, 0)[..63]).len(), 48, "a part of sixteen is left out");
    }
}
