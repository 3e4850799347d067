//! Tests of many bytes at once: eight per word for short strings, and loops that the compiler
//! vectorises for long ones. Every test is exact, and none needs `unsafe`.

use std::sync::LazyLock;

use penstock_api::slices::{after, before};
use pulp::{Arch, NullaryFnOnce};

/// Runs `work` with the widest vector instructions that this processor supports. Only code inlined
/// into `work` is compiled for them. The dispatch costs a few nanoseconds, so it pays for long runs
/// of bytes but not for single words.
#[inline(always)]
pub(super) fn widest<W: NullaryFnOnce>(work: W) -> W::Output {
    PROCESSOR.dispatch(work)
}

pub(super) static PROCESSOR: LazyLock<Arch> = LazyLock::new(Arch::new);

/// The number of bytes in a word.
pub(super) const WORD: usize = 8;
const LOW: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte of a word.
pub(super) const HIGH: u64 = LOW << 7;

/// The little-endian word at `at`; `None` if fewer than eight bytes are left.
#[inline(always)]
pub(super) fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

/// The number of bytes in a block: one vector register on every supported processor.
pub(super) const BLOCK: usize = 16;

/// The block at `at`; `None` if fewer bytes are left.
#[inline(always)]
pub(super) fn block_at(bytes: &[u8], at: usize) -> Option<&[u8; BLOCK]> {
    bytes.get(at..)?.first_chunk()
}

/// The bit whose flipping swaps the quote with the space.
const SWAP: u8 = 0x02;
/// The first byte after the quote and the control characters, once that bit is flipped: no other
/// byte lies below it.
const AFTER_STOPS: u8 = 0x21;
/// The bits whose flipping moves the non-ASCII bytes to 0..=0x7f, and the backslash to 0x80.
const TURN: u8 = 0x80 | b'\\';
/// The first byte after these, once those bits are flipped.
const AFTER_ODD: u8 = 0x81;

/// Returns whether a block is ASCII and contains no byte that ends or escapes a string.
#[inline(always)]
pub(super) fn is_plain_block(block: &[u8; BLOCK]) -> bool {
    // Zero marks a hit in both: the form the compiler turns into the fewest instructions.
    let stops = block.map(|byte| (byte ^ SWAP).saturating_sub(AFTER_STOPS - 1));
    let odd = block.map(|byte| (byte ^ TURN).saturating_sub(AFTER_ODD - 1));
    !stops.iter().zip(odd).fold(false, |hit, (stop, odd)| hit | ((*stop).min(odd) == 0))
}

/// Returns whether `byte` interrupts a JSON string: a quote, a backslash or a control character.
#[inline(always)]
pub(super) fn is_stop(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// The first byte in a word that interrupts a JSON string.
#[derive(Clone, Copy)]
pub(super) struct StopByte {
    word: u64,
    /// The highest bit of that byte; zero if there is none.
    bit: u64,
}

impl StopByte {
    /// Finds the first quote, backslash or control character.
    #[inline(always)]
    pub(super) fn find(word: u64) -> Self {
        let quote_or_control = (word ^ (LOW * SWAP as u64)).wrapping_sub(LOW * AFTER_STOPS as u64);
        let backslash = (word ^ (LOW * 0x5c)).wrapping_sub(LOW);
        // Non-ASCII bytes are no stops: `!word` removes them.
        let stops = (quote_or_control | backslash) & !word & HIGH;
        // A borrow starts in a byte that matches and only moves up: the lowest bit is exact.
        Self { word, bit: stops & stops.wrapping_neg() }
    }

    /// Returns whether the word has no such byte.
    #[inline(always)]
    pub(super) fn is_none(self) -> bool {
        self.bit == 0
    }

    /// Returns whether the byte is a quote.
    #[inline(always)]
    pub(super) fn is_quote(self) -> bool {
        // The bit, widened to all bits of its byte.
        let byte = (self.bit >> 7) * 0xff;
        self.bit != 0 && (self.word ^ (LOW * 0x22)) & byte == 0
    }

    /// The index of the byte; [`WORD`] if there is none.
    #[inline(always)]
    pub(super) fn index(self) -> usize {
        (self.bit.trailing_zeros() / 8) as usize
    }

    /// The bytes before it, and the low bits of the byte itself.
    #[inline(always)]
    pub(super) fn before(self) -> u64 {
        self.word & self.bit.wrapping_sub(1)
    }
}

/// Returns whether all bytes are ASCII without control characters.
#[inline(never)]
pub(super) fn is_plain(bytes: &[u8]) -> bool {
    // With the highest bit flipped, control characters and non-ASCII bytes lie below 0xa0: one
    // minimum decides.
    widest(|| bytes.iter().fold(u8::MAX, |least, byte| least.min(byte ^ 0x80))) >= 0xa0
}

/// Returns whether all bytes are ASCII above the quote without a backslash, as in base64: none of
/// them interrupts a string.
#[inline(never)]
pub(super) fn is_dense(bytes: &[u8]) -> bool {
    // Two minima take half the instructions of comparisons, and reading both halves together takes
    // fewer still. If the length is odd, the halves share a byte.
    let half = bytes.len() / 2;
    let front = before(bytes, bytes.len() - half);
    let back = after(bytes, half);
    let start = (u8::MAX, u8::MAX);
    let (least, turned) = widest(|| {
        front.iter().zip(back).fold(start, |(least, turned), (one, other)| {
            (least.min(*one.min(other)), turned.min((one ^ TURN).min(other ^ TURN)))
        })
    });
    least > b'"' && turned >= AFTER_ODD
}

/// The index of the first control character.
pub(super) fn find_control(bytes: &[u8]) -> Option<usize> {
    // The minimum vectorises, a search with an early exit does not; its result is rarely needed.
    if bytes.iter().fold(u8::MAX, |least, byte| least.min(*byte)) >= 0x20 {
        return None;
    }
    bytes.iter().position(|byte| *byte < 0x20)
}

/// The number of UTF-8 continuation bytes.
pub(super) fn count_continuations(bytes: &[u8]) -> u64 {
    // A block this short cannot overflow a byte, so the sum stays in byte-wide lanes.
    widest(|| bytes.chunks(192).map(count_in_block).sum())
}

#[inline(always)]
fn count_in_block(block: &[u8]) -> u64 {
    u64::from(block.iter().map(|byte| u8::from(byte.cast_signed() < -0x40)).sum::<u8>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stop_of_a_word_is_exact() {
        for byte in 0..=u8::MAX {
            for place in 0..WORD {
                let mut bytes = *b"a~\x7f z#]!";
                bytes[place] = byte;
                let word = u64::from_le_bytes(bytes);
                let found = StopByte::find(word);
                assert_eq!(found.is_quote(), byte == b'"');
                if is_stop(byte) {
                    assert_eq!(found.index(), place, "byte {byte:#x}");
                    assert_eq!(found.before() & HIGH, 0);
                } else {
                    assert!(found.is_none(), "byte {byte:#x} at {place} is no stop");
                    assert_eq!(found.before() & HIGH != 0, byte >= 0x80);
                }
                for later in place + 1..WORD {
                    let mut bytes = bytes;
                    bytes[later] = b'"';
                    let found = StopByte::find(u64::from_le_bytes(bytes));
                    assert_eq!(found.index(), if is_stop(byte) { place } else { later });
                    assert_eq!(found.is_quote(), byte == b'"' || !is_stop(byte));
                }
            }
        }
    }

    #[test]
    fn plain_blocks_hold_no_stop_and_only_ascii() {
        for byte in 0..=u8::MAX {
            for place in 0..BLOCK {
                let mut block = *b"!# ~\x7fA[]z0 9^_@}";
                block[place] = byte;
                let is_odd = is_stop(byte) || byte >= 0x80;
                assert_eq!(is_plain_block(&block), !is_odd, "byte {byte:#x} at {place}");
            }
        }
    }

    #[test]
    fn dense_bytes_stop_no_string() {
        for byte in 0..=u8::MAX {
            let is_dense_byte = byte > b'"' && byte != b'\\' && byte < 0x80;
            for len in [1, 2, 3, 64, 1023, 1024] {
                for place in [0, 1, len / 2, len - 1] {
                    let mut bytes = vec![b'Q'; len];
                    bytes[place.min(len - 1)] = byte;
                    assert_eq!(is_dense(&bytes), is_dense_byte, "byte {byte:#x} at {place}");
                }
            }
        }
    }

    #[test]
    fn odd_bytes_are_found_at_every_place() {
        for len in [0, 1, 255, 256, 257, 700] {
            let clean = vec![b'a'; len];
            assert!(is_plain(&clean) && find_control(&clean).is_none());
            for place in 0..len {
                let mut bytes = clean.clone();
                bytes[place] = 0x1f;
                assert!(!is_plain(&bytes));
                assert_eq!(find_control(&bytes), Some(place));
                bytes[place] = 0x80;
                assert!(!is_plain(&bytes));
                assert_eq!(find_control(&bytes), None);
                assert_eq!(count_continuations(&bytes), 1);
            }
        }
        assert_eq!(count_continuations("日本語é".repeat(100).as_bytes()), 700);
    }
}
