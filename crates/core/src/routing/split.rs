//! Aliases that share their requests among several models by weight, as for a canary. A number of
//! the request alone selects its model, so that all its attempts, and all requests with the same
//! number, go to the same model. With a constant sum of weights, a growing canary at the end of the
//! list keeps its requests.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The number that selects the branch of a request: a hash of its session, its key, or its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitPoint(pub u64);

impl SplitPoint {
    /// Hashes the name of the session, of the key or of the request.
    pub fn of(name: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(name))
    }
}

/// Returns the index of the model that gets the request, by the weights of all; 0 if their sum is
/// 0. Each alias splits differently: the canaries of two aliases are not one group of requests.
pub(super) fn branch_of(
    alias: &str,
    weights: impl Iterator<Item = u32> + Clone,
    point: SplitPoint,
) -> usize {
    let total: u64 = weights.clone().map(u64::from).sum();
    let hash = xxh3_64_with_seed(alias.as_bytes(), point.0);
    let Some(mut left) = hash.checked_rem(total) else { return 0 };
    let found = weights.map(u64::from).position(|weight| match left.checked_sub(weight) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    });
    debug_assert!(found.is_some(), "the remainder is below the sum of the weights");
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(weights: &[u32], point: u64) -> usize {
        branch_of("gpt-4o", weights.iter().copied(), SplitPoint(point))
    }

    #[test]
    fn shares_follow_the_weights() {
        let mut counts = [0_u32; 3];
        (0..100_000).for_each(|point| counts[branch(&[90, 0, 10], point)] += 1);
        assert_eq!(counts[1], 0, "weight 0 gets nothing");
        assert!((9_600..10_400).contains(&counts[2]), "{counts:?}");
        assert_eq!(branch(&[0, 0], 7), 0);
    }

    #[test]
    fn larger_canary_keeps_its_requests() {
        for point in 0..10_000 {
            if branch(&[95, 5], point) == 1 {
                assert_eq!(branch(&[80, 20], point), 1, "{point}");
            }
        }
    }

    #[test]
    fn aliases_split_independently() {
        let weights = || [1, 1].into_iter();
        let same = (0..10_000)
            .filter(|point| {
                let point = SplitPoint(*point);
                branch_of("a", weights(), point) == branch_of("b", weights(), point)
            })
            .count();
        assert!((4_700..5_300).contains(&same), "{same}");
    }
}
