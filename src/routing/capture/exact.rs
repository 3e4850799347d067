//! Numbers in JSON that come back bit by bit: `serde_json` writes the shortest text that stands for
//! a number, but reads one only nearly, so the text is kept and read by the standard library.

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::scoring::Value;

/// A finite number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::routing) struct Exact(pub(in crate::routing) f64);

/// A hash or a seed: all 64 bits, as 16 hexadecimal digits, because programs that take numbers for
/// floating point would round it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::routing) struct Hex(pub(in crate::routing) u64);

/// A parameter of a scorer.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::routing) struct Param(pub(in crate::routing) Value);

fn parse<E: Error>(text: &str) -> Result<f64, E> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| E::custom(format!("'{text}' is not a number")))
}

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_f64(self.0)
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(from).and_then(|raw| parse(raw.get())).map(Self)
    }
}

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
        let wrong = || D::Error::custom(format!("'{text}' is not 16 hexadecimal digits"));
        value.map(Self).ok_or_else(wrong)
    }
}

impl Serialize for Param {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Value::Number(number) => out.serialize_f64(*number),
            Value::Text(text) => out.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Param {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        if raw.get().starts_with('"') {
            let text = serde_json::from_str(raw.get()).map_err(D::Error::custom)?;
            return Ok(Self(Value::Text(text)));
        }
        parse(raw.get()).map(|number| Self(Value::Number(number)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back_bit_by_bit(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let text = serde_json::to_string(&Exact(number)).unwrap();
            let back: Exact = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back.0.to_bits(), number.to_bits(), "{}", text);
            let text = serde_json::to_string(&Hex(bits)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Hex>(&text).unwrap(), Hex(bits));
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["\"1\"", "null", "1e999", "[]", "true"] {
            assert!(serde_json::from_str::<Exact>(text).is_err(), "{text}");
        }
        for text in ["\"12\"", "12", "\"+23456789abcdef0\"", "\"0123456789abcdef0\""] {
            assert!(serde_json::from_str::<Hex>(text).is_err(), "{text}");
        }
        let text: Param = serde_json::from_str("\"x-id\"").unwrap();
        assert_eq!(text.0, Value::Text("x-id".to_owned()));
    }
}
