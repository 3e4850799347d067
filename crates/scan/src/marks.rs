//! Reads strings with many escapes, such as code and quoted documents. A search for the next escape
//! mispredicts a branch at nearly every one, while a bitmap of 64 bytes costs the same with any
//! number of escapes.

use pulp::NullaryFnOnce;
use wide::u8x16;

use super::bytes::{HIGH, widest};
use super::cursor::{Cursor, Parsed, Syntax};
use super::marker::{STRETCH, escape_starts};

/// After this many stretches without a backslash, escapes count as rare again.
const CLEAN_STRETCHES: u32 = 16;

/// Bitmaps of a stretch, by class of byte; the first byte is the lowest bit.
struct Marks {
    quotes: u64,
    backslashes: u64,
    /// The letters of the most frequent escapes: `n` and `t`.
    letters: u64,
    has_controls: bool,
    is_ascii: bool,
}

impl Marks {
    // One block after another: with markers of half a stretch the compiler generates code that
    // takes five times as long.
    #[inline(always)]
    fn of(stretch: &[u8; STRETCH]) -> Self {
        let (blocks, _) = stretch.as_chunks::<16>();
        let (mut quotes, mut backslashes, mut letters) = (0, 0, 0);
        let mut least = u8x16::splat(u8::MAX);
        let mut all = u8x16::ZERO;
        for block in blocks.iter().rev() {
            let block = u8x16::new(*block);
            let is = |byte: u8| block.simd_eq(u8x16::splat(byte));
            quotes = quotes << 16 | u64::from(is(b'"').to_bitmask());
            backslashes = backslashes << 16 | u64::from(is(b'\\').to_bitmask());
            letters = letters << 16 | u64::from((is(b'n') | is(b't')).to_bitmask());
            least = least.min(block);
            all |= block;
        }
        let has_controls = least.min(u8x16::splat(0x1f)).simd_eq(least).to_bitmask() != 0;
        Self { quotes, backslashes, letters, has_controls, is_ascii: all.to_bitmask() == 0 }
    }

    /// The bytes at which the string ends or is invalid. The caller must exclude escaped bytes.
    #[inline(always)]
    fn stops(&self, stretch: &[u8; STRETCH]) -> u64 {
        if self.has_controls { self.quotes | controls(stretch) } else { self.quotes }
    }
}

/// The control characters. They are an error, so this need not be fast.
#[cold]
fn controls(stretch: &[u8; STRETCH]) -> u64 {
    stretch.iter().rev().fold(0, |marks, byte| marks << 1 | u64::from(*byte < 0x20))
}

/// The state of the scan between two stretches.
#[derive(Default)]
struct MarkProgress {
    /// As in `BodyString`, without its bit.
    excess: usize,
    /// One bit: set if the byte before the cursor starts an escape.
    is_open: u64,
    /// The end of the last `\u` escape that was read.
    read: usize,
}

/// A struct instead of a closure, because stable Rust cannot force a closure to be inlined.
struct InStretches<'a, 'b> {
    cursor: &'a mut Cursor<'b>,
    high: &'a mut u64,
}

impl NullaryFnOnce for InStretches<'_, '_> {
    type Output = Result<usize, Syntax>;

    #[inline(always)]
    fn call(self) -> Self::Output {
        self.cursor.escapes_in_stretches(self.high)
    }
}

impl Cursor<'_> {
    /// Consumes a string from a backslash to its end, or until escapes are rare, or until less than
    /// a stretch of the body remains. Returns by how many bytes the escapes exceed the decoded
    /// text.
    #[inline(never)]
    pub(super) fn dense_escapes(&mut self, high: &mut u64) -> Result<usize, Syntax> {
        widest(InStretches { cursor: self, high })
    }

    #[inline(always)]
    fn escapes_in_stretches(&mut self, high: &mut u64) -> Result<usize, Syntax> {
        let mut progress = MarkProgress::default();
        let mut at = self.at;
        let mut clean_stretches = 0;
        while clean_stretches < CLEAN_STRETCHES
            && let Some(stretch) = self.bytes.get(at..).and_then(|rest| rest.first_chunk())
        {
            let marks = Marks::of(stretch);
            if !marks.is_ascii {
                *high |= HIGH;
            }
            let starters = escape_starts(marks.backslashes & !progress.is_open);
            let mut escaped = starters << 1 | progress.is_open;
            let stops = marks.stops(stretch) & !escaped;
            if stops != 0 {
                // What follows the end of the string belongs to other values.
                escaped &= (stops & stops.wrapping_neg()) - 1;
            }
            progress.excess = progress.excess.wrapping_add(escaped.count_ones() as usize);
            let common = marks.letters | marks.quotes | marks.backslashes;
            if escaped & !common != 0 {
                self.rare_escapes(at, escaped & !common, &mut progress)?;
            }
            if stops != 0 {
                self.at = at + stops.trailing_zeros() as usize;
                return Ok(progress.excess);
            }
            progress.is_open = starters >> (STRETCH - 1);
            at += STRETCH;
            clean_stretches = if marks.backslashes == 0 { clean_stretches + 1 } else { 0 };
        }
        if progress.read > at {
            // The second half of a pair is after `at`: the one byte for its backslash is not
            // counted yet.
            let is_counted = progress.read - "uXXXX".len() < at;
            progress.excess = progress.excess.wrapping_add(usize::from(!is_counted));
            at = progress.read;
        } else if progress.is_open == 1 {
            // Back to the backslash: the next reader needs its escape whole.
            at -= 1;
        }
        self.at = at;
        Ok(progress.excess)
    }

    /// Consumes the escapes whose second bytes are marked, as offsets from `start`. Each one is
    /// already counted as one byte of excess.
    #[inline(never)]
    fn rare_escapes(
        &mut self,
        start: usize,
        mut marked: u64,
        progress: &mut MarkProgress,
    ) -> Parsed {
        while marked != 0 {
            let at = start + marked.trailing_zeros() as usize;
            marked &= marked - 1;
            if at < progress.read {
                continue;
            }
            self.at = at;
            match self.bytes.get(at) {
                Some(b'/' | b'b' | b'f' | b'r') => {}
                Some(b'u') => {
                    self.at += 1;
                    let excess = self.unicode_escape()?;
                    let is_pair = self.at > at + "uXXXX".len();
                    // Each backslash of the escape was counted as one byte already, and a pair has
                    // two.
                    let counted = if is_pair { 2 } else { 1 };
                    progress.excess = progress.excess.wrapping_add(excess.wrapping_sub(counted));
                    progress.read = self.at;
                }
                _ => return Err(Syntax::Escape),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_marked_at_every_place() {
        for byte in 0..=u8::MAX {
            for place in 0..STRETCH {
                let mut stretch = [b'a'; STRETCH];
                stretch[place] = byte;
                let marks = Marks::of(&stretch);
                let bit = |is_set: bool| u64::from(is_set) << place;
                assert_eq!(marks.quotes, bit(byte == b'"'));
                assert_eq!(marks.backslashes, bit(byte == b'\\'));
                assert_eq!(marks.letters, bit(matches!(byte, b'n' | b't')));
                assert_eq!(marks.has_controls, byte < 0x20, "byte {byte:#x} at {place}");
                assert_eq!(controls(&stretch), bit(byte < 0x20));
                assert_eq!(marks.is_ascii, byte < 0x80);
            }
        }
    }
}
