//! Prompts that penstock writes itself: texts with placeholders, built in or from a file that is
//! read and checked when the configuration is loaded.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::syntax::document::Node;
use crate::syntax::dump::Dump;
use crate::syntax::errors::{Problem, PromptError};
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;

/// The longest prompt, in bytes.
// It is sent with every such call, and takes room in the context of the model.
const MAX_LENGTH: usize = 64 * 1024;

/// The placeholders of a prompt, without braces.
pub(crate) struct Places {
    required: &'static [&'static str],
    optional: &'static [&'static str],
}

/// A prompt with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    text: Arc<str>,
    /// The file from which it was read; `None` for the built-in text.
    file: Option<PathBuf>,
}

impl Prompt {
    /// The built-in prompt of a critique.
    pub fn critique() -> Self {
        Self::built_in(include_str!("../../../../conf/prompts/critique.txt"))
    }

    /// The built-in prompt of the final call.
    pub fn last() -> Self {
        Self::built_in(include_str!("../../../../conf/prompts/final.txt"))
    }

    fn built_in(text: &str) -> Self {
        Self { text: text.trim_end().into(), file: None }
    }

    /// Returns its length in bytes, including placeholders.
    pub fn length(&self) -> usize {
        self.text.len()
    }

    /// Returns the text with each `{name}` replaced by its value in `values`. Values are inserted
    /// literally: braces in them have no meaning.
    pub fn fill(&self, values: &[(&str, &str)]) -> String {
        let room: usize = values.iter().map(|(_, value)| value.len()).sum();
        let mut filled = String::with_capacity(self.text.len() + room);
        let mut rest = &*self.text;
        while let Some((before, name, after)) = next_place(rest) {
            filled.push_str(before);
            match values.iter().find(|(own, _)| *own == name) {
                Some((_, value)) => filled.push_str(value),
                None => debug_assert!(false, "placeholders are checked when the prompt is read"),
            }
            rest = after;
        }
        filled.push_str(rest);
        filled
    }

    fn read(path: PathBuf, places: &Places) -> Result<Self, PromptError> {
        let text = std::fs::read_to_string(&path).map_err(PromptError::Unreadable)?;
        check(&text, places)?;
        // Absolute, so that a dump names the same file from any directory.
        let file = std::path::absolute(&path).unwrap_or(path);
        Ok(Self { text: text.trim_end().into(), file: Some(file) })
    }

    /// Returns the file from which it was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

/// Returns the first `{name}` of a text, with the text before and after it. A name consists of
/// lower-case letters and `_`.
fn next_place(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let open = from + text.get(from..)?.find('{')?;
        let inside = text.get(open + 1..)?;
        let is_letter = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'_';
        let length = inside.bytes().take_while(is_letter).count();
        let (name, after) = inside.split_at_checked(length)?;
        match after.strip_prefix('}') {
            Some(after) if length > 0 => return Some((text.get(..open)?, name, after)),
            // Braces that are no placeholder are text: prompts often show JSON.
            _ => from = open + 1,
        }
    }
}

fn check(text: &str, places: &Places) -> Result<(), PromptError> {
    if text.len() > MAX_LENGTH {
        return Err(PromptError::TooLong { limit: MAX_LENGTH });
    }
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, name, after)) = next_place(rest) {
        if ![places.required, places.optional].concat().contains(&name) {
            return Err(PromptError::Unknown { name: name.to_owned() });
        }
        found.push(name);
        rest = after;
    }
    match places.required.iter().find(|name| !found.contains(*name)) {
        Some(name) => Err(PromptError::Missing { name }),
        None => Ok(()),
    }
}

/// A kind of prompt.
pub(crate) trait PromptKind {
    const PLACES: Places;
}

/// The prompt of a critique.
pub(crate) struct Critique;

impl PromptKind for Critique {
    const PLACES: Places = Places { required: &["query", "response"], optional: &["number"] };
}

/// The prompt of the final call.
pub(crate) struct Final;

impl PromptKind for Final {
    const PLACES: Places = Places { required: &["query", "candidates"], optional: &[] };
}

/// A file with a prompt.
pub(crate) struct PromptFile<K>(PhantomData<K>);

impl<K: PromptKind> Setting for PromptFile<K> {
    type Value = Prompt;

    fn read(node: &Node, reader: &mut Reader) -> Option<Prompt> {
        let given = reader.scalar(node, "the path of a file")?;
        let path = reader.base_dir().join(given);
        match Prompt::read(path.clone(), &K::PLACES) {
            Ok(prompt) => Some(prompt),
            Err(source) => reader.refuse(node, |key| Problem::Prompt { key, path, source }),
        }
    }

    fn dump(prompt: &Prompt) -> Dump {
        prompt.file().map_or(Dump::Null, |path| Dump::text(&path.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_filled_in_once() {
        let prompt = Prompt::built_in("{query} {\"json\": {}} {response}{response} { query }");
        let filled = prompt.fill(&[("query", "{response}"), ("response", "b")]);
        assert_eq!(filled, "{response} {\"json\": {}} bb { query }");
    }

    #[test]
    fn built_in_prompts_pass_the_checks_of_files() {
        check(&Prompt::critique().text, &Critique::PLACES).unwrap();
        check(&Prompt::last().text, &Final::PLACES).unwrap();
    }

    #[test]
    fn placeholders_are_checked() {
        let problem = |text: &str| check(text, &Final::PLACES).unwrap_err().to_string();
        assert_eq!(problem("{query}"), "the prompt has no {candidates}");
        assert_eq!(
            problem("{query} {candidate}"),
            "the prompt has {candidate}, which nothing fills in"
        );
        assert!(problem(&"x".repeat(MAX_LENGTH + 1)).contains("longer than"));
        check("{candidates} {\"a\": {query}}", &Final::PLACES).unwrap();
    }
}
