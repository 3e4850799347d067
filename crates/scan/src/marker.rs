//! Bitmaps of stretches of 64 bytes, made with the widest vector instructions of the processor, and
//! the escapes among their backslashes.

use pulp::{Arch, NullaryFnOnce};
use wide::u8x16;

use super::bytes::{BLOCK, PROCESSOR};

/// Work for [`widest_marking`].
pub(super) trait Marking {
    type Output;

    fn run(self, marker: impl Marker) -> Self::Output;
}

/// Runs work that marks bytes, with the fastest [`Marker`] of this processor.
#[inline(always)]
pub(super) fn widest_marking<W: Marking>(work: W) -> W::Output {
    match *PROCESSOR {
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => pulp::Simd::vectorize(simd, With(work, InHalves(simd))),
        processor => processor.dispatch(With(work, InBlocks)),
    }
}

/// The number of bytes marked at once: one for each bit of a word.
pub(super) const STRETCH: usize = 64;

/// Compares each byte of a stretch and sets a bit per match; the first byte is the lowest bit.
pub(super) trait Marker: Copy {
    /// Marks the bytes of one value.
    fn mark(self, stretch: &[u8; STRETCH], byte: u8) -> u64;

    /// Marks `count` values from `first` on.
    fn mark_range(self, stretch: &[u8; STRETCH], first: u8, count: u8) -> u64;

    /// Marks the bytes that are equal to those of another stretch.
    fn mark_equal(self, stretch: &[u8; STRETCH], other: &[u8; STRETCH]) -> u64;
}

/// Marks one block after another.
#[derive(Debug, Clone, Copy)]
pub(super) struct InBlocks;

impl Marker for InBlocks {
    #[inline(always)]
    fn mark(self, stretch: &[u8; STRETCH], byte: u8) -> u64 {
        let (blocks, _) = stretch.as_chunks();
        blocks.iter().rev().fold(0, |marks, block| {
            let is_equal = u8x16::new(*block).simd_eq(u8x16::splat(byte));
            marks << BLOCK | u64::from(is_equal.to_bitmask())
        })
    }

    #[inline(always)]
    fn mark_range(self, stretch: &[u8; STRETCH], first: u8, count: u8) -> u64 {
        let (blocks, _) = stretch.as_chunks();
        blocks.iter().rev().fold(0, |marks, block| {
            let distance = u8x16::new(*block) - u8x16::splat(first);
            let is_in = distance.min(u8x16::splat(count - 1)).simd_eq(distance);
            marks << BLOCK | u64::from(is_in.to_bitmask())
        })
    }

    #[inline(always)]
    fn mark_equal(self, stretch: &[u8; STRETCH], other: &[u8; STRETCH]) -> u64 {
        let ((blocks, _), (others, _)) = (stretch.as_chunks(), other.as_chunks());
        blocks.iter().zip(others).rev().fold(0, |marks, (block, other)| {
            let is_equal = u8x16::new(*block).simd_eq(u8x16::new(*other));
            marks << BLOCK | u64::from(is_equal.to_bitmask())
        })
    }
}

/// Marks half a stretch at a time. Written out with intrinsics, because the compiler does not merge
/// two blocks into one instruction.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
struct InHalves(pulp::x86::V3);

#[cfg(target_arch = "x86_64")]
impl Marker for InHalves {
    #[inline(always)]
    fn mark(self, stretch: &[u8; STRETCH], byte: u8) -> u64 {
        let pulp::x86::V3 { avx, avx2, .. } = self.0;
        let wanted = avx._mm256_set1_epi8(byte.cast_signed());
        let [low, high]: [std::arch::x86_64::__m256i; 2] = pulp::cast(*stretch);
        let mark = |half| {
            let is_equal = avx2._mm256_cmpeq_epi8(half, wanted);
            u64::from(avx2._mm256_movemask_epi8(is_equal).cast_unsigned())
        };
        mark(low) | mark(high) << (STRETCH / 2)
    }

    #[inline(always)]
    fn mark_range(self, stretch: &[u8; STRETCH], first: u8, count: u8) -> u64 {
        let pulp::x86::V3 { avx, avx2, .. } = self.0;
        let first = avx._mm256_set1_epi8(first.cast_signed());
        let last = avx._mm256_set1_epi8((count - 1).cast_signed());
        let [low, high]: [std::arch::x86_64::__m256i; 2] = pulp::cast(*stretch);
        let mark = |half| {
            let distance = avx2._mm256_sub_epi8(half, first);
            let is_in = avx2._mm256_cmpeq_epi8(avx2._mm256_min_epu8(distance, last), distance);
            u64::from(avx2._mm256_movemask_epi8(is_in).cast_unsigned())
        };
        mark(low) | mark(high) << (STRETCH / 2)
    }

    #[inline(always)]
    fn mark_equal(self, stretch: &[u8; STRETCH], other: &[u8; STRETCH]) -> u64 {
        let [low, high]: [std::arch::x86_64::__m256i; 2] = pulp::cast(*stretch);
        let [other_low, other_high]: [std::arch::x86_64::__m256i; 2] = pulp::cast(*other);
        let mark = |half, other| {
            let is_equal = self.0.avx2._mm256_cmpeq_epi8(half, other);
            u64::from(self.0.avx2._mm256_movemask_epi8(is_equal).cast_unsigned())
        };
        mark(low, other_low) | mark(high, other_high) << (STRETCH / 2)
    }
}

/// A struct instead of a closure, because stable Rust cannot force a closure to be inlined.
struct With<W, M>(W, M);

impl<W: Marking, M: Marker> NullaryFnOnce for With<W, M> {
    type Output = W::Output;

    #[inline(always)]
    fn call(self) -> Self::Output {
        self.0.run(self.1)
    }
}

/// The bits with even indexes.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// The backslashes that start an escape: in a row of backslashes the first one and then every other
/// one.
#[inline(always)]
pub(super) fn escape_starts(backslashes: u64) -> u64 {
    let first = backslashes & !(backslashes << 1);
    // Adding its first bit to a row clears the row; here for the rows that start at an even index.
    let even_rows = backslashes & !backslashes.wrapping_add(first & EVEN);
    even_rows & EVEN | backslashes & !even_rows & !EVEN
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Marks([u8; STRETCH], u8);

    impl Marking for Marks {
        type Output = u64;

        fn run(self, marker: impl Marker) -> u64 {
            marker.mark(&self.0, self.1)
        }
    }

    #[test]
    fn every_processor_marks_alike() {
        for place in 0..STRETCH {
            let mut stretch = [b'.'; STRETCH];
            stretch[place] = b'x';
            stretch[STRETCH - 1 - place / 3] = b'x';
            let expected =
                (0..STRETCH).fold(0, |all, at| all | u64::from(stretch[at] == b'x') << at);
            assert_eq!(InBlocks.mark(&stretch, b'x'), expected);
            assert_eq!(widest_marking(Marks(stretch, b'x')), expected);
            assert_eq!(widest_marking(Marks([0xff; STRETCH], 0xff)), u64::MAX);
        }
    }

    #[test]
    fn every_other_backslash_of_a_row_starts_an_escape() {
        for pattern in 0..1_u64 << 16 {
            for shift in [0, 1, 23, 48] {
                let backslashes = pattern << shift;
                let mut expected = 0;
                let mut place = 0;
                while place < 64 {
                    if backslashes >> place & 1 == 1 {
                        expected |= 1 << place;
                        place += 1;
                    }
                    place += 1;
                }
                assert_eq!(escape_starts(backslashes), expected, "{backslashes:#b}");
            }
        }
    }
}
