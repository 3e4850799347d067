//! Parts of slices that the caller knows to exist. Indexing would panic if that is wrong. These
//! functions assert it in debug builds and return an empty or default value in release builds: a
//! test finds a broken invariant, and no user's process crashes.

use std::fmt::Debug;
use std::slice::SliceIndex;

/// The part of `all` in `range`, which lies within it.
#[inline(always)]
pub fn part_of<T, R>(all: &[T], range: R) -> &[T]
where
    R: SliceIndex<[T], Output = [T]> + Debug,
{
    let part = all.get(range);
    debug_assert!(part.is_some(), "a range within {} elements", all.len());
    part.unwrap_or_default()
}

/// The element of `all` at `index`, which is within it.
#[inline(always)]
pub fn element_of<T: Copy + Default>(all: &[T], index: usize) -> T {
    let element = all.get(index);
    debug_assert!(element.is_some(), "{index} within {} elements", all.len());
    element.copied().unwrap_or_default()
}

/// Splits bytes at a position that was measured on the same bytes. A position past the end is a bug
/// in the caller: it fails in tests, and otherwise gives all bytes and an empty rest.
pub fn split_at(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    debug_assert!(at <= bytes.len(), "split at {at} of {} bytes", bytes.len());
    bytes.split_at_checked(at).unwrap_or((bytes, &[]))
}

/// The bytes from `at` on, a position that was measured on the same bytes: see [`split_at`].
#[inline(always)]
pub fn after(bytes: &[u8], at: usize) -> &[u8] {
    debug_assert!(at <= bytes.len(), "from {at} of {} bytes", bytes.len());
    bytes.get(at..).unwrap_or(&[])
}

/// The bytes before `at`, a position that was measured on the same bytes: see [`split_at`].
#[inline(always)]
pub fn before(bytes: &[u8], at: usize) -> &[u8] {
    debug_assert!(at <= bytes.len(), "up to {at} of {} bytes", bytes.len());
    bytes.get(..at).unwrap_or(&[])
}

/// The bytes from `start` to `end`, positions that were measured on the same bytes: see
/// [`split_at`].
#[inline(always)]
pub fn between(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    debug_assert!(start <= end && end <= bytes.len(), "{start}..{end} of {} bytes", bytes.len());
    bytes.get(start..end).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_elements_are_those_of_the_slice() {
        let all = [1, 2, 3];
        assert_eq!(
            (part_of(&all, 1..), part_of(&all, 3..), element_of(&all, 2)),
            (&all[1..], &[][..], 3)
        );
    }

    #[test]
    #[should_panic(expected = "within 3 elements")]
    fn range_beyond_the_slice_is_found_by_tests() {
        part_of(&[1, 2, 3], 4..);
    }
}
