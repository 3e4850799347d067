//! Byte tests many at a time: eight in a word for short strings, whole stretches for long ones in
//! loops the compiler turns into vector code. Every one is exact; none needs `unsafe`.

/// The number of bytes in a word.
pub(super) const WORD: usize = 8;
const LOW: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte of a word.
pub(super) const HIGH: u64 = LOW << 7;

/// The word at `at`, lowest address in the lowest byte; none when fewer bytes are left.
#[inline(always)]
pub(super) fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

/// Whether a JSON string must stop at `byte`: a quote, a backslash or a control character.
#[inline(always)]
pub(super) fn is_stop(byte: u8) -> bool {
    byte == b'"' || byte == b'\\' || byte < 0x20
}

/// The first byte of a word that a JSON string must stop at.
#[derive(Clone, Copy)]
pub(super) struct Stop {
    word: u64,
    /// The highest bit of that byte; zero when there is none.
    bit: u64,
}

impl Stop {
    /// Looks for a quote, a backslash or a control character.
    #[inline(always)]
    pub(super) fn find(word: u64) -> Self {
        // Flipping this bit swaps the quote with the blank, so one comparison finds it together
        // with the control characters below.
        let quote_or_control = (word ^ (LOW * 0x02)).wrapping_sub(LOW * 0x21);
        let backslash = (word ^ (LOW * 0x5c)).wrapping_sub(LOW);
        let stops = (quote_or_control | backslash) & !word & HIGH;
        // A borrow starts in a byte that matches and only moves up: the lowest bit is exact.
        Self { word, bit: stops & stops.wrapping_neg() }
    }

    /// Whether there is none.
    #[inline(always)]
    pub(super) fn is_none(self) -> bool {
        self.bit == 0
    }

    /// Whether it is a quote.
    #[inline(always)]
    pub(super) fn is_quote(self) -> bool {
        let byte = (self.bit >> 7) * 0xff;
        self.bit != 0 && (self.word ^ (LOW * 0x22)) & byte == 0
    }

    /// Its index; the length of a word when there is none.
    #[inline(always)]
    pub(super) fn index(self) -> usize {
        (self.bit.trailing_zeros() / 8) as usize
    }

    /// What lies before it, and its own low bits.
    #[inline(always)]
    pub(super) fn before(self) -> u64 {
        self.word & self.bit.wrapping_sub(1)
    }
}

/// Whether all bytes are ASCII and none is a control character.
pub(super) fn is_plain(bytes: &[u8]) -> bool {
    // With the highest bit flipped, control characters and all that is not ASCII lie below the
    // blank: one minimum tells.
    bytes.iter().fold(u8::MAX, |least, byte| least.min(byte ^ 0x80)) >= 0xa0
}

/// Whether all bytes are ASCII above the quote and none is a backslash, as in base64: a string goes
/// on past all of them.
pub(super) fn is_dense(bytes: &[u8]) -> bool {
    // As signed numbers, all that is not ASCII lies below the quote too.
    let is_odd = |byte: &u8| (byte.cast_signed() <= 0x22) | (*byte == b'\\');
    !bytes.iter().fold(false, |odd, byte| odd | is_odd(byte))
}

/// The index of the first control character.
pub(super) fn find_control(bytes: &[u8]) -> Option<usize> {
    if bytes.iter().fold(u8::MAX, |least, byte| least.min(*byte)) >= 0x20 {
        return None;
    }
    bytes.iter().position(|byte| *byte < 0x20)
}

/// The number of bytes that continue a character of UTF-8.
pub(super) fn count_continuations(bytes: &[u8]) -> u64 {
    // Summed in bytes, which cannot overflow in a block this short: lanes stay narrow.
    let is_continuation = |byte: &u8| u8::from(byte.cast_signed() < -0x40);
    bytes.chunks(192).map(|block| u64::from(block.iter().map(is_continuation).sum::<u8>())).sum()
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
                let found = Stop::find(word);
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
                    let found = Stop::find(u64::from_le_bytes(bytes));
                    assert_eq!(found.index(), if is_stop(byte) { place } else { later });
                    assert_eq!(found.is_quote(), byte == b'"' || !is_stop(byte));
                }
            }
        }
    }

    #[test]
    fn dense_bytes_stop_no_string() {
        for byte in 0..=u8::MAX {
            let is_dense_byte = byte > b'"' && byte != b'\\' && byte < 0x80;
            for place in [0, 1, 500, 1023] {
                let mut bytes = [b'Q'; 1024];
                bytes[place] = byte;
                assert_eq!(is_dense(&bytes), is_dense_byte, "byte {byte:#x} at {place}");
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
