//! A prompt's blocks as few hashes, for the access log: the first blocks one by one, later ones in
//! groups that grow with their position. In at most 160 hashes a log records the point where short
//! prompts diverge in blocks of 32 tokens, and 1.4 million tokens of a long prompt to within 6 % of
//! its length.

use penstock_api::mix::mix;

/// The tokens of a block.
pub const FOLDED_TOKENS: u32 = 32;
/// The numbers of blocks that share a hash, one for each [`GROUPS`] hashes: together 1,024 tokens,
/// then 16,384, then four times more each. The first two are those of older logs.
const TOGETHER: [u32; 5] = [1, 16, 64, 256, 1024];
/// The number of hashes for groups of the same size.
const GROUPS: u32 = 32;
/// The most hashes of a prompt.
pub const MAX_FOLDED: usize = 160;
/// The most blocks that the hashes represent.
pub const MAX_UNFOLDED: u32 = GROUPS * (1 + 16 + 64 + 256 + 1024);
/// The number of blocks that a replay keeps of each prompt at least.
const MIN_REPLAYED: usize = 544;
/// The number of blocks that a replay keeps of all prompts: 64 MiB of hashes.
const ALL_REPLAYED: usize = 8 << 20;

/// The blocks of each group, in order.
fn groups() -> impl Iterator<Item = u32> {
    TOGETHER.into_iter().flat_map(|blocks| (0..GROUPS).map(move |_| blocks))
}

/// Returns the hashes that represent a prompt's blocks. Each hash includes all blocks before it.
pub fn fold(blocks: &[u64]) -> impl Iterator<Item = u64> + '_ {
    let ends = groups().scan(0, |end, group| {
        *end += group as usize;
        Some(*end)
    });
    // The last block of a group stands for all of it, so a part of a group has no hash.
    ends.map_while(|end| blocks.get(end - 1).copied())
}

/// Returns hashes for every block again: the same for prompts with the same folded hashes.
pub fn unfold(folded: &[u64]) -> impl Iterator<Item = u64> + '_ {
    folded.iter().zip(groups()).flat_map(|(hash, group)| {
        let hash = *hash;
        (0..group).map(move |number| if group == 1 { hash } else { mix(hash ^ u64::from(number)) })
    })
}

/// The most blocks of a prompt that a replay of `prompts` prompts keeps, so that its memory is
/// bounded.
pub fn most_replayed(prompts: usize) -> usize {
    (ALL_REPLAYED / prompts.max(1)).max(MIN_REPLAYED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(blocks: &[u64]) -> Vec<u64> {
        unfold(&fold(blocks).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn prompts_share_what_they_shared_before_to_the_last_whole_group() {
        let prompt = |own: u64, from: u64| -> Vec<u64> {
            (0..50_000).map(|n| if n < from { n } else { own * 100_000 + n }).collect()
        };
        let common = |a: &[u64], b: &[u64]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let shared = [
            (0, 0),
            (5, 5),
            (32, 32),
            (47, 32),
            (48, 48),
            (100, 96),
            (544, 544),
            (607, 544),
            (3000, 2848),
            (50_000, 43_552),
        ];
        for (from, shared) in shared {
            let (a, b) = (round(&prompt(1, from)), round(&prompt(2, from)));
            assert_eq!(common(&a, &b), shared, "{from}");
            assert_eq!(a.len(), MAX_UNFOLDED as usize);
        }
        assert_eq!(fold(&prompt(1, 0)).count(), MAX_FOLDED);
        assert_eq!(round(&prompt(1, 0)[..7]), prompt(1, 0)[..7]);
        assert_eq!(round(&prompt(1, 0)[..63]).len(), 48, "a part of a group is left out");
    }

    #[test]
    fn replay_of_many_prompts_keeps_less_of_each() {
        assert!(most_replayed(100) > MAX_UNFOLDED as usize);
        assert_eq!((most_replayed(2048), most_replayed(20_000)), (4096, 544));
    }
}
