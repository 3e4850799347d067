//! `models.<id>.price`: the price of a model's tokens.

use serde_json::json;

use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, section};
use crate::syntax::shape::Shape;

section! {
    /// The price of a model's tokens, in a currency of your choice.
    pub struct Price requires ["input", "output"] {
        /// Price of a million input tokens.
        pub input: f64 ["input" as Amount] = 0.0,
        /// Price of a million output tokens.
        pub output: f64 ["output" as Amount] = 0.0,
    }
}

impl Price {
    /// Returns the cost of the given numbers of tokens.
    pub fn cost(&self, input_tokens: u64, output_tokens: u64) -> f64 {
        (input_tokens as f64 * self.input + output_tokens as f64 * self.output) / 1e6
    }
}

/// An amount of money.
struct Amount;

impl Setting for Amount {
    type Value = f64;

    fn read(node: &Node, reader: &mut Reader) -> Option<f64> {
        const EXPECTED: &str = "a price, 0 or more";
        let text = reader.scalar(node, EXPECTED)?;
        match text.parse::<f64>() {
            Ok(amount) if amount.is_finite() && amount >= 0.0 => Some(amount),
            Ok(_) | Err(_) => reader.refuse_value(node, text, EXPECTED),
        }
    }

    fn dump(value: &f64) -> Dump {
        Dump::Float(*value)
    }

    fn shape() -> Shape {
        Shape::Scalar(json!({"type": "number", "minimum": 0}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_per_million_tokens() {
        let price = Price { input: 2.5, output: 10.0 };
        assert!((price.cost(1_000_000, 100_000) - 3.5).abs() < 1e-12);
    }
}
