//! `models.<id>.price`: the price of a model's tokens.

use serde_json::json;

use super::Config;
use crate::syntax::collections::Maybe;
use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::reader::Reader;
use crate::syntax::setting::{Setting, section};
use crate::syntax::shape::Shape;
use crate::syntax::values::Name;

section! {
    /// The price of a model's tokens, in a currency of your choice.
    pub struct Price requires ["input", "output"] {
        /// Price of a million input tokens.
        pub input: f64 ["input" as Amount] = 0.0,
        /// Price of a million output tokens.
        pub output: f64 ["output" as Amount] = 0.0,
        /// Price of a million input tokens that the engine has cached. Default: that of input
        /// tokens.
        pub cached_input: Option<f64> ["cached_input" as Maybe<Amount>] = None,
        /// Price of a request, whatever its tokens.
        pub per_request: f64 ["per_request" as Amount] = 0.0,
        /// The currency, such as EUR. All prices have the same.
        pub currency: Option<String> ["currency" as Maybe<Name>] = None,
    }
}

impl Price {
    /// Returns the cost of the given numbers of tokens, without the price of the request.
    pub fn cost(&self, input_tokens: u64, output_tokens: u64) -> f64 {
        (input_tokens as f64 * self.input + output_tokens as f64 * self.output) / 1e6
    }

    /// Returns the cost of a request. `cached_tokens` are a part of its input.
    pub fn request_cost(&self, input_tokens: u64, cached_tokens: u64, output_tokens: u64) -> f64 {
        let cached = cached_tokens.min(input_tokens);
        let cached_price = self.cached_input.unwrap_or(self.input);
        self.per_request
            + self.cost(input_tokens - cached, output_tokens)
            + cached as f64 * cached_price / 1e6
    }

    /// Returns whether nothing costs anything.
    pub fn is_free(&self) -> bool {
        // Without a separate price, cached tokens cost what others do: nothing, if the rest is 0.
        let cached = self.cached_input.unwrap_or(0.0);
        self.input == 0.0 && self.output == 0.0 && cached == 0.0 && self.per_request == 0.0
    }
}

impl Config {
    /// Returns every price, of models and of models on backends.
    pub fn prices(&self) -> impl Iterator<Item = &Price> {
        let of_models = self.models.iter().filter_map(|(_, model)| model.price.as_ref());
        let entries = self.backends.iter().flat_map(|backend| backend.models.iter().flatten());
        of_models.chain(entries.filter_map(|model| model.price.as_ref()))
    }

    /// Returns the currency of all prices, if one of them names it.
    pub fn currency(&self) -> Option<&str> {
        self.prices().find_map(|price| price.currency.as_deref())
    }
}

/// An amount of money.
pub(super) struct Amount;

impl Setting for Amount {
    type Value = f64;

    fn read(node: &Node, reader: &mut Reader) -> Option<f64> {
        reader.parse(node, "a price, 0 or more", |text| {
            text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0)
        })
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
        let price = Price { input: 2.5, output: 10.0, ..Price::default() };
        assert!((price.cost(1_000_000, 100_000) - 3.5).abs() < 1e-12);
        assert!((price.request_cost(1_000_000, 600_000, 100_000) - 3.5).abs() < 1e-12);
        let price = Price { cached_input: Some(0.5), per_request: 1.0, ..price };
        assert!((price.request_cost(1_000_000, 600_000, 100_000) - 3.3).abs() < 1e-12);
        assert!((price.request_cost(100, 600, 0) - 1.000_05).abs() < 1e-12, "at most all of it");
        assert!(!price.is_free() && Price::default().is_free());
    }
}
