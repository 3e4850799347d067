//! Decodes strings of JSON into memory of the caller's, in blocks: text is copied first and looked at
//! afterwards, so that an escape costs a step and not a search of its own.

use wide::u8x16;

const BLOCK: usize = 32;

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
    let (mut read, mut written) = (0, 0);
    loop {
        let from = text.get(read..).and_then(|rest| rest.first_chunk::<BLOCK>());
        let to = room.get_mut(written..).and_then(|rest| rest.first_chunk_mut::<BLOCK>());
        let (Some(from), Some(to)) = (from, to) else { break };
        *to = *from;
        let stops = stops(from);
        let plain = stops.trailing_zeros() as usize;
        (read, written) = (read + plain, written + plain);
        if stops == 0 {
            continue;
        }
        if text.get(read) == Some(&b'"') {
            return (read, written, Stop::Quote);
        }
        let Some(meant) = meant_at(text, read) else { return (read, written, Stop::LongEscape) };
        if let Some(slot) = room.get_mut(written) {
            *slot = meant;
        }
        (read, written) = (read + 2, written + 1);
    }
    // What is left is less than a block, or the room is.
    while let (Some(byte), Some(slot)) = (text.get(read), room.get_mut(written)) {
        let (meant, length) = match byte {
            b'"' => return (read, written, Stop::Quote),
            b'\\' => match meant_at(text, read) {
                Some(meant) => (meant, 2),
                None => return (read, written, Stop::LongEscape),
            },
            plain => (*plain, 1),
        };
        *slot = meant;
        (read, written) = (read + length, written + 1);
    }
    (read, written, Stop::Room)
}

/// The quotes and backslashes of a block, a bit each.
#[inline(always)]
fn stops(block: &[u8; BLOCK]) -> u32 {
    let (halves, _) = block.as_chunks::<16>();
    halves.iter().rev().fold(0, |stops, half| {
        let half = u8x16::new(*half);
        let is = |byte: u8| half.simd_eq(u8x16::splat(byte));
        stops << 16 | (is(b'"') | is(b'\\')).to_bitmask()
    })
}

/// What the escape of two bytes at `at` stands for; none if it is longer.
#[inline(always)]
fn meant_at(text: &[u8], at: usize) -> Option<u8> {
    Some(match text.get(at + 1)? {
        b'n' => b'\n',
        b'"' => b'"',
        b'\\' => b'\\',
        b'/' => b'/',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 0x08,
        b'f' => 0x0c,
        _ => return None,
    })
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
                Stop::Room => prop_assert_eq!(written, size),
            }
        }
    }
}
