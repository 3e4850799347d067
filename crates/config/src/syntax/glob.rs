//! Patterns for model names: `*` matches any string, `?` one character.

use penstock_api::{DEFAULT_TAG, has_tag, without_default_tag};

use super::document::Node;
use super::dump::Dump;
use super::reader::Reader;
use super::setting::Setting;

/// A pattern for model names, as in `llama3:*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelGlob(String);

impl ModelGlob {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns whether a name is a pattern rather than one name.
    pub fn is_pattern(name: &str) -> bool {
        name.contains(['*', '?'])
    }

    /// Returns its specificity: the number of fixed letters, then the number of `?`.
    pub fn specificity(&self) -> (usize, usize) {
        let fixed = self.0.chars().filter(|letter| !matches!(letter, '*' | '?')).count();
        (fixed, self.0.chars().filter(|letter| *letter == '?').count())
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the pattern matches all of `model`. Linear in practice, never worse than the
    /// product of both lengths.
    pub fn matches(&self, model: &str) -> bool {
        self.fits(model.chars(), |wanted, letter| wanted == letter)
    }

    /// Returns whether the pattern matches a spelling of the model: in any case, and with or
    /// without the default tag. Allocates nothing.
    pub fn matches_spelling(&self, model: &str) -> bool {
        let is_alike = |wanted: char, letter: char| wanted.eq_ignore_ascii_case(&letter);
        let plain = without_default_tag(model);
        let tagged = || plain.chars().chain(DEFAULT_TAG.chars());
        self.fits(plain.chars(), is_alike) || (!has_tag(plain) && self.fits(tagged(), is_alike))
    }

    fn fits<T>(&self, text: T, is_alike: impl Fn(char, char) -> bool) -> bool
    where
        T: Iterator<Item = char> + Clone,
    {
        let mut pattern = self.0.chars();
        let mut rest = text;
        // The state to resume from if the text after the last `*` does not match: that `*` then
        // takes one more letter.
        let mut retry = None;
        loop {
            match pattern.next() {
                Some('*') => {
                    retry = Some((pattern.clone(), rest.clone()));
                    continue;
                }
                Some(wanted) => {
                    let found = rest.next();
                    if found.is_some_and(|letter| wanted == '?' || is_alike(wanted, letter)) {
                        continue;
                    }
                    if found.is_none() && retry.is_none() {
                        return false;
                    }
                }
                None if rest.clone().next().is_none() => return true,
                // Text is left over: the last `*` takes more of it.
                None => {}
            }
            let Some((suffix, mut from)) = retry.take() else { return false };
            if from.next().is_none() {
                return false;
            }
            pattern = suffix.clone();
            rest = from.clone();
            retry = Some((suffix, from));
        }
    }
}

impl Setting for ModelGlob {
    type Value = Self;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        String::read(node, reader).map(Self)
    }

    fn dump(value: &Self) -> Dump {
        Dump::text(&value.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match() {
        for (pattern, model, fits) in [
            ("llama3:*", "llama3:70b", true),
            ("llama3:*", "llama3:", true),
            ("llama3:*", "llama2:70b", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("?", "é", true),
            ("?", "", false),
            ("*b", "aab", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("a**", "a", true),
            ("gpt-?", "gpt-4o", false),
            ("exact", "exactly", false),
        ] {
            assert_eq!(ModelGlob::new(pattern).matches(model), fits, "{pattern} against {model}");
        }
    }

    #[test]
    fn hostile_patterns_end_soon() {
        let pattern = ModelGlob::new(&"*a".repeat(100));
        assert!(!pattern.matches(&"a".repeat(99)));
        assert!(pattern.matches(&"a".repeat(2000)));
    }
}
