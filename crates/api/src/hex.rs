//! Hexadecimal digits: bytes without the cost of the formatter, and 64 bits in JSON.

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

/// Writes two digits for each byte to the front of `out`, as far as there is space.
pub fn write(bytes: &[u8], out: &mut [u8]) {
    for (byte, pair) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
}

fn digit(half: u8) -> u8 {
    if half < 10 { b'0' + half } else { b'a' + half - 10 }
}

/// 64 bits, such as a hash or a seed, that JSON holds as 16 digits: as numbers, programs may round
/// them to floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hex(pub u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // The parser below takes a sign as well.
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = u64::from_str_radix(&text, 16).ok().filter(|_| is_hex);
        value
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("'{text}' is not 16 hexadecimal digits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_formatter() {
        for byte in 0..=u8::MAX {
            let mut out = [0; 2];
            write(&[byte], &mut out);
            assert_eq!(out, *format!("{byte:02x}").as_bytes());
        }
        let mut short = [b'.'; 3];
        write(&[0xab, 0xcd], &mut short);
        assert_eq!(&short, b"ab.", "half a byte is not written");
    }

    #[test]
    fn all_bits_survive() {
        for bits in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            let text = serde_json::to_string(&Hex(bits)).unwrap();
            assert_eq!(serde_json::from_str::<Hex>(&text).unwrap(), Hex(bits));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["\"12\"", "12", "\"+23456789abcdef0\"", "\"0123456789abcdef0\""] {
            assert!(serde_json::from_str::<Hex>(text).is_err(), "{text}");
        }
    }
}
