//! Strings of responses, piece by piece. JSON writes a character beyond the basic plane as a
//! surrogate pair, and programs that cut strings by UTF-16 units split the pair into two deltas. So
//! a [`Piece`] keeps a half at either end, and [`Halves`] joins the pieces of each text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The replacement of a half whose partner never comes.
pub(super) const REPLACEMENT: &str = "\u{fffd}";

/// The bytes of a surrogate in WTF-8.
const SURROGATE_BYTES: usize = 3;

/// A JSON string as WTF-8: UTF-8 that may contain halves of surrogate pairs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Piece<'a>(Cow<'a, [u8]>);

impl Piece<'_> {
    /// Returns whether it is the empty string.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text if it is complete by itself: halves become [`REPLACEMENT`].
    pub(super) fn text(&self) -> Cow<'_, str> {
        match simdutf8::basic::from_utf8(&self.0) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => {
                let mut out = String::with_capacity(self.0.len());
                push_lossy(&mut out, &self.0);
                Cow::Owned(out)
            }
        }
    }
}

impl<'a> From<&'a str> for Piece<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }
}

impl<'a> From<&'a [u8]> for Piece<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Cow::Borrowed(bytes))
    }
}

impl From<Vec<u8>> for Piece<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Cow::Owned(bytes))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Piece<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PieceVisitor;

        impl<'de> Visitor<'de> for PieceVisitor {
            type Value = Piece<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Piece<'de>, E> {
                Ok(bytes.into())
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Piece<'de>, E> {
                Ok(bytes.to_vec().into())
            }
        }

        // Read as bytes: `serde_json` refuses halves in strings.
        deserializer.deserialize_bytes(PieceVisitor)
    }
}

/// The text that a piece belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    /// The text of the response.
    Text,
    /// The reason of the model for a refusal, which is a separate text.
    Refusal,
    /// The model's thinking.
    Thinking,
    /// The arguments of the call with this index.
    Arguments(usize),
}

/// The first halves of surrogate pairs whose second halves have not arrived.
#[derive(Debug, Default)]
pub(super) struct Halves(Vec<(Channel, u16)>);

impl Halves {
    /// Joins a piece with the half before it. A half at its end waits for the next piece.
    pub(super) fn join<'p>(&mut self, channel: Channel, piece: &'p Piece<'_>) -> Cow<'p, str> {
        if self.0.is_empty()
            && let Ok(text) = simdutf8::basic::from_utf8(&piece.0)
        {
            return Cow::Borrowed(text);
        }
        if piece.is_empty() {
            return Cow::Borrowed("");
        }
        Cow::Owned(self.join_halves(channel, &piece.0))
    }

    fn join_halves(&mut self, channel: Channel, piece: &[u8]) -> String {
        let mut out = String::with_capacity(piece.len() + SURROGATE_BYTES);
        let mut rest = piece;
        let held = self.0.iter().position(|(own, _)| *own == channel);
        if let Some(place) = held {
            let (_, first) = self.0.swap_remove(place);
            let second = piece.split_at_checked(SURROGATE_BYTES).and_then(|(start, behind)| {
                let pair = [first, surrogate(start)?];
                let joined = char::decode_utf16(pair).next()?.ok()?;
                Some((joined, behind))
            });
            match second {
                Some((joined, behind)) => {
                    out.push(joined);
                    rest = behind;
                }
                None => out.push_str(REPLACEMENT),
            }
        }
        let end = rest.len().checked_sub(SURROGATE_BYTES).and_then(|at| rest.split_at_checked(at));
        let half = end.and_then(|(before, last)| Some((before, surrogate(last)?)));
        match half {
            Some((before, first @ 0xD800..=0xDBFF)) => {
                push_lossy(&mut out, before);
                self.0.push((channel, first));
            }
            _ => push_lossy(&mut out, rest),
        }
        out
    }

    /// Returns the texts that end with a half: no further piece of them will follow.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Channel> {
        std::mem::take(&mut self.0).into_iter().map(|(channel, _)| channel)
    }
}

/// Returns the surrogate that three bytes of WTF-8 encode.
fn surrogate(bytes: &[u8]) -> Option<u16> {
    match *bytes {
        [0xED, second @ 0xA0..=0xBF, third] => {
            Some(0xD000 | (u16::from(second & 0x3F) << 6) | u16::from(third & 0x3F))
        }
        _ => None,
    }
}

/// Appends WTF-8; each remaining half becomes [`REPLACEMENT`].
fn push_lossy(out: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        // The standard library sees a surrogate as three chunks: only the first byte counts.
        if chunk.invalid().first().is_some_and(|first| *first >= 0xC0) {
            out.push_str(REPLACEMENT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[&str]) -> String {
        let mut halves = Halves::default();
        let mut out = String::new();
        for piece in pieces {
            let json = format!("\"{piece}\"");
            let piece: Piece<'_> = serde_json::from_str(&json).unwrap();
            out += &halves.join(Channel::Text, &piece);
        }
        halves.take().for_each(|_| out += REPLACEMENT);
        out
    }

    #[test]
    fn halves_are_joined_across_pieces() {
        for (pieces, expected) in [
            (&["a\\ud83d", "\\ude00b"][..], "a😀b"),
            (&["\\ud83d", "", "\\ude00"], "😀"),
            (&["\\ud83d", "\\ude00\\ud83d", "\\ude00"], "😀😀"),
            (&["\\ud83d\\ude00"], "😀"),
            (&["\\ud83d", "x"], "\u{fffd}x"),
            (&["\\ude00"], "\u{fffd}"),
            (&["x\\ud83d"], "x\u{fffd}"),
            (&["\\ud83d", "\\ud83d", "\\ude00"], "\u{fffd}😀"),
            (&["a\\ud83db", "é"], "a\u{fffd}bé"),
            (&["\\ude00\\ud83d"], "\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(joined(pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn halves_wait_in_their_own_text() {
        let mut halves = Halves::default();
        let piece = |json| serde_json::from_str::<Piece<'_>>(json).unwrap();
        assert_eq!(halves.join(Channel::Text, &piece("\"\\ud83d\"")), "");
        assert_eq!(halves.join(Channel::Arguments(1), &piece("\"x\\ud83d\"")), "x");
        assert_eq!(halves.join(Channel::Thinking, &piece("\"y\"")), "y");
        assert_eq!(halves.join(Channel::Arguments(1), &piece("\"\\ude01\"")), "😁");
        assert_eq!(halves.join(Channel::Text, &piece("\"\\ude00\"")), "😀");
        assert_eq!(halves.take().count(), 0);
    }
}
