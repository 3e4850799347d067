//! 64 bits in JSON as 16 hexadecimal digits: as numbers, programs may round them to floats.

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

/// A hash or a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::routing::audit) struct Hex(pub(in crate::routing::audit) u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
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
