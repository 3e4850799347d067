//! Decodes JSON strings into the caller's memory, block by block. Each block is copied first and
//! searched for escapes afterwards, so that an escape costs one step and not a separate search.

use super::marker::{InBlocks, Marker, Marking, STRETCH as BLOCK, widest_marking};

/// The bytes read from the start of a block: an escape may end after the block.
const SEEN: usize = 2 * BLOCK;
/// The bytes written from the start of a decoded block, including those that the next block
/// overwrites.
const MARGIN: usize = 3 * BLOCK;

/// The byte that each letter of a two-byte escape stands for; 0 for other letters.
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

/// The reason why decoding stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The closing quote follows; it is not consumed.
    Quote,
    /// An escape of more than two bytes follows; it is not consumed.
    LongEscape,
    /// The room is full, or the text has ended.
    Room,
}

/// Decodes the remainder of a valid string into `room`. Returns the number of bytes read, the
/// number of bytes written, and why decoding stopped.
pub(super) fn decode(text: &[u8], room: &mut [u8]) -> (usize, usize, Stop) {
    let (mut read, mut written, stop) = in_blocks(text, room);
    if let Some(stop) = stop {
        return (read, written, stop);
    }
    // Near the end of the text or of the room, decoding continues byte by byte.
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

#[inline(always)]
fn in_blocks(text: &[u8], room: &mut [u8]) -> (usize, usize, Option<Stop>) {
    match decode_short(text, room) {
        Some(length) => (length, length, Some(Stop::Quote)),
        None => widest_marking(Decoding { text, room }),
    }
}

/// Decodes a string without escapes that ends in its first block. Returns its length.
#[inline(always)]
fn decode_short(text: &[u8], room: &mut [u8]) -> Option<usize> {
    let block = text.first_chunk::<BLOCK>()?;
    let (quotes, backslashes) = (InBlocks.mark(block, b'"'), InBlocks.mark(block, b'\\'));
    let length = quotes.trailing_zeros() as usize;
    // The mask covers the bytes up to the first quote: an escape among them needs the general path.
    if quotes == 0 || backslashes & (quotes ^ quotes.wrapping_sub(1)) != 0 {
        return None;
    }
    *room.first_chunk_mut::<BLOCK>()? = *block;
    Some(length)
}

struct Decoding<'a, 'b> {
    text: &'a [u8],
    room: &'b mut [u8],
}

impl Marking for Decoding<'_, '_> {
    type Output = (usize, usize, Option<Stop>);

    /// Decodes until the end of the text or of the room is near. All indexes within a block have
    /// bounds known at compile time.
    #[inline(always)]
    fn run(self, marker: impl Marker) -> Self::Output {
        let Self { text, room } = self;
        let (mut read, mut written) = (0, 0);
        loop {
            let seen = text.get(read..).and_then(|rest| rest.first_chunk::<SEEN>());
            let out = room.get_mut(written..).and_then(|rest| rest.first_chunk_mut::<MARGIN>());
            let (Some(seen), Some(out)) = (seen, out) else {
                // Without progress the byte-wise loop goes on: a caller takes none as the end of
                // the text.
                let is_full = seen.is_some() && written > 0;
                return (read, written, is_full.then_some(Stop::Room));
            };
            let block = seen.first_chunk().unwrap_or(&[0; BLOCK]);
            let (quotes, backslashes) = (marker.mark(block, b'"'), marker.mark(block, b'\\'));
            let mut stops = quotes | backslashes;
            let (mut from, mut to) = (0, 0);
            copy(seen, from, out, to);
            while stops != 0 {
                let at = stops.trailing_zeros() as usize;
                let found = stops & stops.wrapping_neg();
                to += at - from;
                let letter = seen.get((at + 1) % SEEN).copied().unwrap_or(0);
                let meant = MEANT.get(usize::from(letter)).copied().unwrap_or(0);
                if quotes & found != 0 || meant == 0 {
                    return (read + at, written + to, Some(Stop::at(text, read + at)));
                }
                if let Some(slot) = out.get_mut(to % SEEN) {
                    *slot = meant;
                }
                (from, to) = (at + 2, to + 1);
                // Copies more than needed; the next copy overwrites the surplus.
                copy(seen, from, out, to);
                // The letter of an escape may itself be a quote or a backslash.
                stops &= !(found | found << 1);
            }
            // This branch is predicted correctly but for one escape in 64, so the next block does
            // not wait for `from`.
            let end = if from > BLOCK { end_after_block(from) } else { BLOCK };
            (read, written) = (read + end, written + to + end - from);
        }
    }
}

/// Kept out of line so that it stays a branch.
#[cold]
#[inline(never)]
fn end_after_block(from: usize) -> usize {
    from
}

/// Copies a block. Both offsets are reduced to the valid range, which removes bounds checks; bytes
/// copied from a reduced offset are overwritten later.
#[inline(always)]
fn copy(seen: &[u8; SEEN], from: usize, out: &mut [u8; MARGIN], to: usize) {
    let source = seen.get(from % BLOCK..).and_then(|rest| rest.first_chunk::<BLOCK>());
    let target = out.get_mut(to % SEEN..).and_then(|rest| rest.first_chunk_mut::<BLOCK>());
    if let (Some(source), Some(target)) = (source, target) {
        *target = *source;
    }
}

impl Stop {
    fn at(text: &[u8], at: usize) -> Self {
        if text.get(at) == Some(&b'"') { Self::Quote } else { Self::LongEscape }
    }
}

/// The byte that the two-byte escape at `at` stands for; 0 if there is none.
#[inline(always)]
fn meant_at(text: &[u8], at: usize) -> u8 {
    match text.get(at..).and_then(|rest| rest.first_chunk::<2>()) {
        None | Some([b'"', _]) => 0,
        Some([_, letter]) => MEANT.get(usize::from(*letter)).copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decoder_stops_at_quotes_long_escapes_and_full_output() {
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
        fn decoded_text_matches_its_source(
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
                Stop::Room => prop_assert!((written > 0 || size == 0) && size - written < MARGIN),
            }
        }
    }
}
