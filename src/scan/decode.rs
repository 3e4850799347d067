//! Decodes strings of JSON into memory of the caller's, in blocks: text is copied first and looked at
//! afterwards, so that an escape costs a step and not a search of its own.

use pulp::NullaryFnOnce;
use wide::u8x16;

use super::bytes::widest;

/// As many bytes as a word has bits.
const BLOCK: usize = 64;

/// What the letter of an escape of two bytes stands for; 0 for all that are none.
#[expect(clippy::indexing_slicing, reason = "a wrong index would not compile")]
const MEANT: [u8; 256] = {
    let mut meant = [0; 256];
    let pairs = *b"n\nt\tr\rb\x08f\x0c\"\"\\\\//";
    let mut at = 0;
    while at < pairs.len() {
        meant[pairs[at] as usize] = pairs[at + 1];
        at += 2;
    }
    meant
};

/// Why decoding stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// At the closing quote, not taken.
    Quote,
    /// At an escape of more than two bytes, not taken.
    LongEscape,
    /// There is no more room, or no more text.
    Room,
}

/// Decodes what is left of a valid string into `room`: how many bytes were read, how many written,
/// and why no more.
pub(super) fn decode(text: &[u8], room: &mut [u8]) -> (usize, usize, Stop) {
    if let Some(length) = decode_short(text, room) {
        return (length, length, Stop::Quote);
    }
    let (mut read, mut written, stop) = widest(InBlocks { text, room: &mut *room });
    if let Some(stop) = stop {
        return (read, written, stop);
    }
    // What is left is less than a block, or all the room is.
    while let (Some(byte), Some(slot)) = (text.get(read), room.get_mut(written)) {
        let is_stop = matches!(byte, b'"' | b'\\');
        let meant = if is_stop { meant_at(text, read) } else { *byte };
        if is_stop && meant == 0 {
            return (read, written, Stop::at(text, read));
        }
        *slot = meant;
        (read, written) = (read + 1 + usize::from(is_stop), written + 1);
    }
    (read, written, Stop::Room)
}

/// Decodes a string that ends in its first block and has no escapes: its length.
#[inline(always)]
fn decode_short(text: &[u8], room: &mut [u8]) -> Option<usize> {
    let block = text.first_chunk::<BLOCK>()?;
    let length = stops(block).trailing_zeros() as usize;
    if block.get(length) != Some(&b'"') {
        return None;
    }
    *room.first_chunk_mut::<BLOCK>()? = *block;
    Some(length)
}

struct InBlocks<'a, 'b> {
    text: &'a [u8],
    room: &'b mut [u8],
}

impl NullaryFnOnce for InBlocks<'_, '_> {
    type Output = (usize, usize, Option<Stop>);

    /// Goes on until less than a block is left of the text or of the room.
    #[inline(always)]
    fn call(self) -> Self::Output {
        let Self { text, room } = self;
        let (mut read, mut written) = (0, 0);
        while let Some(block) = text.get(read..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
            let (mut stops, mut from) = (stops(block), read);
            // A block is copied anew behind each escape, whole: how much of it was plain text is a
            // matter of where the next copy goes.
            loop {
                let source = text.get(from..).and_then(|rest| rest.first_chunk::<BLOCK>());
                let to = room.get_mut(written..).and_then(|rest| rest.first_chunk_mut::<BLOCK>());
                let (Some(source), Some(to)) = (source, to) else {
                    let is_full = source.is_some() && written > 0;
                    return (from, written, is_full.then_some(Stop::Room));
                };
                *to = *source;
                if stops == 0 {
                    break;
                }
                let at = read + stops.trailing_zeros() as usize;
                written += at - from;
                let meant = meant_at(text, at);
                if meant == 0 {
                    return (at, written, Some(Stop::at(text, at)));
                }
                if let Some(slot) = room.get_mut(written) {
                    *slot = meant;
                }
                (from, written) = (at + 2, written + 1);
                // The letter of an escape may look like a further one.
                let found = stops & stops.wrapping_neg();
                stops &= !(found | found << 1);
            }
            let end = from.max(read + BLOCK);
            (read, written) = (end, written + end - from);
        }
        (read, written, None)
    }
}

impl Stop {
    fn at(text: &[u8], at: usize) -> Self {
        if text.get(at) == Some(&b'"') { Self::Quote } else { Self::LongEscape }
    }
}

/// The quotes and backslashes of a block, a bit each.
#[inline(always)]
fn stops(block: &[u8; BLOCK]) -> u64 {
    let (parts, _) = block.as_chunks::<16>();
    parts.iter().rev().fold(0, |stops, part| {
        let part = u8x16::new(*part);
        let is = |byte: u8| part.simd_eq(u8x16::splat(byte));
        stops << 16 | u64::from((is(b'"') | is(b'\\')).to_bitmask())
    })
}

/// What the escape of two bytes at `at` stands for; 0 where there is none.
#[inline(always)]
fn meant_at(text: &[u8], at: usize) -> u8 {
    match text.get(at..).and_then(|rest| rest.first_chunk::<2>()) {
        None | Some([b'"', _]) => 0,
        Some([_, letter]) => MEANT.get(usize::from(*letter)).copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_stops_where_it_cannot_go_on() {
        let mut room = [0; 100];
        let mut of = |text: &str, size: usize| {
            let (read, written, stop) = decode(text.as_bytes(), &mut room[..size]);
            (text[read..].to_owned(), String::from_utf8_lossy(&room[..written]).into_owned(), stop)
        };
        let long = "x".repeat(40);
        assert_eq!(of("a\\nb\" tail", 100), ("\" tail".into(), "a\nb".into(), Stop::Quote));
        assert_eq!(
            of(&format!("{long}\\u00e9z\""), 100),
            ("\\u00e9z\"".into(), long.clone(), Stop::LongEscape)
        );
        assert_eq!(of(&format!("{long}\""), 40), ("\"".into(), long.clone(), Stop::Room));
        assert_eq!(of(&long, 100), (String::new(), long, Stop::Room));
        assert_eq!(of("", 100), (String::new(), String::new(), Stop::Room));
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_was_meant(
            text in "([a-z \n\t\"\\\\/é😀]|[a-z ]{20,50}){0,20}",
            size in 0_usize..200,
        ) {
            let raw = serde_json::to_string(&text).unwrap();
            let mut room = vec![0; size];
            let (read, written, stop) = decode(&raw.as_bytes()[1..], &mut room);
            prop_assert!(text.as_bytes().starts_with(&room[..written]));
            match stop {
                Stop::Quote => {
                    prop_assert_eq!(&room[..written], text.as_bytes());
                    prop_assert_eq!(read, raw.len() - 2);
                }
                Stop::LongEscape => prop_assert!(raw.as_bytes()[1 + read..].starts_with(b"\\u")),
                Stop::Room => prop_assert!((written > 0 || size == 0) && size - written < BLOCK),
            }
        }
    }
}
