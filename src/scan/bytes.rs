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

/// The highest bit of the first byte of `word` a JSON string must stop at. Bits above the lowest
/// one set may be wrong: a borrow starts in a byte that matches and only moves up.
#[inline(always)]
pub(super) fn stops(word: u64) -> u64 {
    let control = word.wrapping_sub(LOW * 0x20);
    let quote = (word ^ (LOW * 0x22)).wrapping_sub(LOW);
    let backslash = (word ^ (LOW * 0x5c)).wrapping_sub(LOW);
    (control | quote | backslash) & !word & HIGH
}

/// The highest bits that are set in the bytes before the first one marked in `stops`.
#[inline(always)]
pub(super) fn high_bits_before(word: u64, stops: u64) -> u64 {
    word & stops.wrapping_sub(1) & !stops & HIGH
}

/// The index of the first byte marked in `stops`; the length of a word when none is.
#[inline(always)]
pub(super) fn first_stop(stops: u64) -> usize {
    (stops.trailing_zeros() / 8) as usize
}

/// Whether all bytes are ASCII and none is a control character.
pub(super) fn is_plain(bytes: &[u8]) -> bool {
    // With the highest bit flipped, control characters and all that is not ASCII lie below the
    // blank: one minimum, which compilers vectorise, tells.
    bytes.iter().fold(u8::MAX, |least, byte| least.min(byte ^ 0x80)) >= 0xa0
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
                let found = stops(word);
                let high = high_bits_before(word, found);
                if byte == b'"' || byte == b'\\' || byte < 0x20 {
                    assert_eq!(first_stop(found), place, "byte {byte:#x}");
                    assert_eq!(high, 0);
                } else {
                    assert_eq!(found, 0, "byte {byte:#x} at {place} is no stop");
                    assert_eq!(high != 0, byte >= 0x80);
                }
                bytes[0] = 0xc3;
                let word = u64::from_le_bytes(bytes);
                assert!(place == 0 || high_bits_before(word, stops(word)) != 0, "before the stop");
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
