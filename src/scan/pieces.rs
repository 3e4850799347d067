//! Hands the text of strings to a sink, decoded; but for pieces of long ones whose text the sink knows
//! by their raw bytes.

use memchr::memchr_iter;

use super::decode::{Stop, decode, decode_blocks};
use super::outline::OutlineSink;
use super::unescape::Unescape;

/// Raw bytes of a string that a sink is asked about at a time.
pub const RAW_PIECE: usize = 2048;
/// Of so many quotes it is looked whether they end a string.
const QUOTES: usize = 4;

/// Hands on the string that begins at `at`, decoded; says where it ends, or the end of the body where
/// nothing that follows makes a difference.
pub(super) fn write_string(body: &[u8], at: usize, sink: &mut impl OutlineSink) -> usize {
    let text = body.get(at + 1..).unwrap_or_default();
    let (mut read, mut is_over) = (0, false);
    while !is_over
        && sink.recalls()
        && let Some(piece) = text.get(read..).and_then(|rest| rest.first_chunk())
        && goes_on(piece)
    {
        let count;
        (count, is_over) = sink.recall(piece).unwrap_or_else(|| {
            let done = write_text(piece, decode_blocks, sink);
            sink.remember(done);
            done
        });
        read += count;
    }
    if !is_over {
        let (count, _) = write_text(text.get(read..).unwrap_or_default(), decode, sink);
        read += count;
    }
    if sink.is_full() { body.len() } else { at + 1 + read + 1 }
}

/// Whether a string is likely to go on through half of a piece at least: what ends before that is
/// decoded sooner than looked up.
fn goes_on(piece: &[u8; RAW_PIECE]) -> bool {
    let (front, _) = piece.split_at(RAW_PIECE / 2);
    let is_escaped = |at: usize| at.checked_sub(1).and_then(|at| front.get(at)) == Some(&b'\\');
    memchr_iter(b'"', front).take(QUOTES).all(is_escaped)
}

/// Hands on what a string holds from the beginning of `text` on: how much of it was read, and whether
/// the string is over.
fn write_text(
    text: &[u8],
    decode: impl Fn(&[u8], &mut [u8]) -> (usize, usize, Stop),
    sink: &mut impl OutlineSink,
) -> (usize, bool) {
    let mut at = 0;
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let (read, written, stop) = decode(rest, sink.room());
        sink.fill(written);
        at += read;
        match stop {
            Stop::Quote => return (at, true),
            _ if sink.is_full() || read == 0 && stop == Stop::Room => return (at, false),
            Stop::Room => {}
            Stop::LongEscape => {
                let escape = text.get(at..).unwrap_or_default();
                let Some(escape) = escape.get(..escape_length(escape)) else { return (at, false) };
                for character in Unescape::new(escape) {
                    sink.add(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                at += escape.len();
            }
        }
    }
}

fn escape_length(escape: &[u8]) -> usize {
    let is_high =
        |unit: &[u8]| matches!(unit, [b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]);
    match escape.get(1) {
        Some(b'u') if escape.get(2..).is_some_and(is_high) => 12,
        Some(b'u') => 6,
        _ => 2,
    }
}
