//! SplitMix64's mixing function (Steele, Lea and Flood, 2014): spreads every bit of a number over
//! all bits of the result, so that consecutive or similar inputs give unrelated numbers.

/// Added before mixing, or from one number of a sequence to the next: 2^64 / golden ratio.
pub const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of a number.
#[inline(always)]
pub const fn mix(number: u64) -> u64 {
    let mut z = number;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_that_of_splitmix64() {
        let first = mix(0_u64.wrapping_add(GOLDEN_GAMMA));
        let second = mix(GOLDEN_GAMMA.wrapping_add(GOLDEN_GAMMA));
        assert_eq!([first, second], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }
}
