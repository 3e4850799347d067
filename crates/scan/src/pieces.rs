//! Decodes JSON strings into a sink.

use penstock_api::slices::after;

use super::decode::{Stop, decode};
use super::unescape::Unescape;

/// Receives an outline piece by piece. Text is decoded directly into the sink's memory
/// ([`OutlineSink::room`]), so that hashing a prompt copies it only once.
pub trait OutlineSink {
    /// Appends a piece.
    fn add(&mut self, piece: &[u8]);
    /// Memory for the next piece, never empty.
    fn room(&mut self) -> &mut [u8];
    /// Appends the first `count` bytes of the room.
    fn fill(&mut self, count: usize);
    /// Returns whether the sink ignores further pieces, so that the walk may stop.
    fn is_full(&self) -> bool;
}

/// Decodes the string whose opening quote is at `at`. Returns the offset after it, or the end of
/// the body if the sink is full.
pub(super) fn write_string(body: &[u8], at: usize, sink: &mut impl OutlineSink) -> usize {
    let read = write_text(after(body, at + 1), sink);
    if sink.is_full() { body.len() } else { at + 1 + read + 1 }
}

/// Decodes text up to the closing quote, or until the sink is full. Returns the number of bytes
/// read.
fn write_text(text: &[u8], sink: &mut impl OutlineSink) -> usize {
    let mut at = 0;
    loop {
        let rest = after(text, at);
        let (read, written, stop) = decode(rest, sink.room());
        sink.fill(written);
        at += read;
        match stop {
            Stop::Quote => return at,
            _ if sink.is_full() || read == 0 && stop == Stop::Room => return at,
            Stop::Room => {}
            Stop::LongEscape => {
                let escape = after(text, at);
                let Some(escape) = escape.get(..escape_length(escape)) else { return at };
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
        // A high surrogate: the scan has checked that the other half follows.
        Some(b'u') if escape.get(2..).is_some_and(is_high) => 12,
        Some(b'u') => 6,
        _ => 2,
    }
}
