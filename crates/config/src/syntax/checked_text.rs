//! Texts that a rule accepts. They are kept as they were written.

use std::marker::PhantomData;

use super::document::Node;
use super::dump::Dump;
use super::reader::Reader;
use super::setting::Setting;
use super::shape::Shape;

/// The rule of a kind of text.
pub(crate) trait TextRule {
    /// The accepted texts, for errors.
    const EXPECTED: &'static str;

    /// Returns whether the rule accepts a text.
    fn accepts(text: &str) -> bool;

    /// The accepted texts, as far as the schema describes them.
    fn shape() -> Shape {
        Shape::text()
    }
}

/// A text that the rule `R` accepts.
pub(crate) struct Checked<R>(PhantomData<R>);

impl<R: TextRule> Setting for Checked<R> {
    type Value = String;

    fn read(node: &Node, reader: &mut Reader) -> Option<String> {
        reader.parse(node, R::EXPECTED, |text| R::accepts(text).then(|| text.to_owned()))
    }

    fn dump(value: &String) -> Dump {
        Dump::text(value)
    }

    fn shape() -> Shape {
        R::shape()
    }
}

/// Returns whether a text is not empty, and has neither spaces nor control characters.
pub(crate) fn is_one_word(text: &str) -> bool {
    let is_fit = |letter: char| !letter.is_control() && !letter.is_whitespace();
    !text.is_empty() && text.chars().all(is_fit)
}
