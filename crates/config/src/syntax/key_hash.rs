//! SHA-256 of a client's key: what is kept of keys that must not be readable.

use std::fmt;
use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use super::document::Node;
use super::dump::Dump;
use super::reader::Reader;
use super::setting::Setting;
use super::shape::Shape;

const PREFIX: &str = "sha256:";
const EXPECTED: &str = "sha256: and 64 hexadecimal digits";
/// Shown in place of a hash, against which a reader could try short keys.
const MASK: &str = "***";

/// The SHA-256 hash of a key. The time of a look-up in a table of hashes reveals nothing: no client
/// can choose the hash of its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Returns the hash of a key as a client sends it.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }

    /// Returns the hash written as `sha256:` and 64 hexadecimal digits; `None` for other text.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.trim().strip_prefix(PREFIX)?.as_bytes();
        let (pairs, rest) = digits.as_chunks::<2>();
        let mut hash = [0; 32];
        if pairs.len() != hash.len() || !rest.is_empty() {
            return None;
        }
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(hash))
    }

    /// Returns the bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the hash with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the hash as [`KeyHash::parse`] reads it.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(PREFIX.len() + 64);
        text.push_str(PREFIX);
        for byte in self.0 {
            for half in [byte >> 4, byte & 15] {
                text.extend(char::from_digit(u32::from(half), 16));
            }
        }
        text
    }
}

fn digit(letter: u8) -> Option<u8> {
    let value = char::from(letter).to_digit(16)?;
    u8::try_from(value).ok()
}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Eight bytes of a SHA-256 are as good as all.
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(MASK)
    }
}

impl Setting for KeyHash {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let text = reader.scalar(node, EXPECTED)?;
        // The text is not quoted: it may be a key that was meant for `key`.
        Self::parse(text).or_else(|| reader.refuse_value(node, MASK, EXPECTED))
    }

    fn dump(_value: &Self) -> Dump {
        Dump::text(MASK)
    }

    fn shape() -> Shape {
        Shape::pattern(r"^\s*sha256:[0-9a-fA-F]{64}\s*$")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_as_sha256sum_prints_them() {
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hash = KeyHash::of(b"abc");
        assert_eq!((KeyHash::parse(text), hash.to_text()), (Some(hash), text.to_owned()));
        assert_eq!(KeyHash::parse(&text.to_uppercase().replace("SHA", "sha")), Some(hash));
        assert_eq!(format!("{hash:?}"), "***");
    }

    #[test]
    fn other_texts_are_no_hashes() {
        let digits = "0".repeat(64);
        for text in ["", "sha256:", &digits, "sha256:00", "md5:00", &format!("sha256:{digits}0")] {
            assert_eq!(KeyHash::parse(text), None, "{text}");
        }
        let sign = format!("sha256:+{}", "0".repeat(63));
        assert_eq!(KeyHash::parse(&sign), None);
    }
}
