//! The model that the message of an error names: the requested one, or another that the client has
//! named, such as that of a tool.

use penstock_api::is_same_model;

use super::quotes::RequestText;

/// The model that a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedModel {
    Requested,
    /// Another one, which the request names, too.
    OfClient,
    /// None, or one that the request does not name.
    Unknown,
}

/// The most names of a message that are looked for in the request.
const MAX_NAMES: usize = 12;
/// The longest of these names, in bytes.
const MAX_LENGTH: usize = 256;
/// The marks around a name.
const QUOTES: &[char] = &['`', '\'', '"', '“', '”', '‘', '’'];
/// Further letters between the words of a message.
const BETWEEN: &[char] = &[',', ';', '(', ')', '[', ']', '{', '}', '<', '>', '='];
/// Letters at the end of a word that are no part of a name.
const AFTER: &[char] = &['.', ':', '!', '?'];

impl NamedModel {
    /// Finds the model in a message. `model`: the backend's name for the requested one.
    pub(super) fn find(message: &str, model: &str, request: &RequestText<'_>) -> Self {
        // Some engines leave out the owner of a model, and others put a folder before it.
        let has_base = |name: &str| !name.contains('/') || !model.contains('/');
        let is_requested = |name: &str| {
            is_same_model(name, model)
                || (has_base(name) && is_same_model(base_of(name), base_of(model)))
        };
        let is_of_client = |name: &str| {
            name.len() <= MAX_LENGTH
                && (request.has_value(name) || request.has_value(base_of(name)))
        };
        let find_in = |names: &[&str]| match names {
            names if names.iter().any(|name| is_requested(name)) => Some(Self::Requested),
            names if names.iter().any(|name| is_of_client(name)) => Some(Self::OfClient),
            _ => None,
        };
        // Marks come first: the name between them may have any words.
        let marked: Vec<&str> = quoted(message).take(MAX_NAMES).collect();
        let followers: Vec<&str> = after_model(message).take(MAX_NAMES).collect();
        if let Some(found) = find_in(&marked).or_else(|| find_in(&followers)) {
            return found;
        }
        // An engine may have chosen the tag.
        let is_tagged =
            |name: &str| name.split_once(':').is_some_and(|(base, _)| is_same_model(base, model));
        match marked.into_iter().chain(words(message)).any(|it| is_requested(it) || is_tagged(it)) {
            true => Self::Requested,
            false => Self::Unknown,
        }
    }
}

/// The part of a name after its owner or folder.
fn base_of(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// The words of a message, without quotes and punctuation.
fn words(message: &str) -> impl Iterator<Item = &str> {
    let is_between = |letter: char| {
        letter.is_whitespace() || QUOTES.contains(&letter) || BETWEEN.contains(&letter)
    };
    let words = message.split(is_between).map(|word| word.trim_end_matches(AFTER));
    words.filter(|word| !word.is_empty())
}

/// The words that follow the word "model".
fn after_model(message: &str) -> impl Iterator<Item = &str> {
    let pairs = words(message).zip(words(message).skip(1));
    pairs.filter(|(first, _)| first.eq_ignore_ascii_case("model")).map(|(_, second)| second)
}

/// The texts between quotes: all that lies between the first and the last mark of a kind, as a name
/// may have such a mark, and each text between two marks.
fn quoted(message: &str) -> impl Iterator<Item = &str> {
    let outer = QUOTES.iter().filter_map(|mark| {
        let (_, after) = message.split_once(*mark)?;
        Some(after.rsplit_once(*mark)?.0)
    });
    outer.chain(message.split(QUOTES)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_model_is_the_requested_one_or_another_of_the_client() {
        let request = br#"{"model":"m","tools":[{"model":"gpt-image-9"},{"model":"o\u0072g\/x:1"},{"model":"o'brien"},{"model":"bogus m"},{"file":"model m"},{"model":"owner/stripped-2"}],"input":"does it?"}"#;
        for (model, message, expected) in [
            ("m", "The model `m` does not exist", NamedModel::Requested),
            ("m", "model \"m:latest\" not found, try pulling it first", NamedModel::Requested),
            ("m", "model 'm:8b-q4' not found", NamedModel::Requested),
            ("org/m", "model 'm' not found", NamedModel::Requested),
            ("m", "models/m is not found for API version v1", NamedModel::Requested),
            ("my model", "The model `my model` does not exist", NamedModel::Requested),
            ("m", "The tool's model `gpt-image-9` is not known to m.", NamedModel::OfClient),
            ("m", "The model 'o'brien' does not exist", NamedModel::OfClient),
            ("m", "The model `bogus m` does not exist", NamedModel::OfClient),
            ("m", "The model `stripped-2` does not exist", NamedModel::OfClient),
            ("m", "file 'model m' does not exist", NamedModel::OfClient),
            ("m", "m is not a model that exists", NamedModel::Requested),
            ("m", "The model `gpt-image-9` does not exist.", NamedModel::OfClient),
            ("m", "model: gpt-image-9", NamedModel::OfClient),
            ("m", "Model gpt-image-9 not found.", NamedModel::OfClient),
            (
                "m",
                "models/gpt-image-9 does not exist: model 'models/gpt-image-9'",
                NamedModel::OfClient,
            ),
            ("m", "The requested model 'org/x:1' does not exist.", NamedModel::OfClient),
            ("gpt-image", "The model 'gpt-image-9' does not exist.", NamedModel::OfClient),
            ("m", "The model `upstream-7` does not exist.", NamedModel::Unknown),
            ("m", "The model does not exist.", NamedModel::Unknown),
            ("m", "", NamedModel::Unknown),
        ] {
            assert_eq!(
                NamedModel::find(message, model, &RequestText::new(request)),
                expected,
                "{model}: {message}"
            );
        }
    }
}
