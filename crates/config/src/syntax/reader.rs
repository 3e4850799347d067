//! The state of reading a document: the current path, and the errors and warnings so far.

use std::path::{Path, PathBuf};

use super::document::{Content, Node};
use super::errors::{ConfigFault, Problem};
use super::source_place::SourcePlace;
use super::suggest::nearest;
use super::warnings::{ConfigWarning, Warning};

/// The state of reading a document.
pub(crate) struct Reader {
    pub(crate) faults: Vec<ConfigFault>,
    pub(crate) warnings: Vec<ConfigWarning>,
    base_dir: PathBuf,
    path: Vec<String>,
}

impl Reader {
    /// A reader for which relative paths start at `base_dir`.
    pub(crate) fn new(base_dir: &Path) -> Self {
        Self {
            faults: Vec::new(),
            warnings: Vec::new(),
            base_dir: base_dir.to_owned(),
            path: Vec::new(),
        }
    }

    /// The directory that relative paths start at.
    pub(crate) fn base_dir(&self) -> &Path {
        &self.base_dir
    }

    /// Runs `read` with `step` (`.key` or `[index]`) appended to the current path.
    pub(crate) fn within<T>(&mut self, step: String, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(step);
        let value = read(self);
        self.path.pop();
        value
    }

    /// The path of the value being read, as in `backends[2].url`.
    pub(crate) fn path(&self) -> String {
        // The step of a top-level key begins with a dot as well.
        self.path.concat().trim_start_matches('.').to_owned()
    }

    /// Records an error at `place`.
    pub(crate) fn fault(&mut self, place: &SourcePlace, problem: Problem) {
        self.faults.push(ConfigFault { place: place.clone(), problem });
    }

    /// Records a warning at `place`.
    pub(crate) fn warn(&mut self, place: &SourcePlace, warning: Warning) {
        self.warnings.push(ConfigWarning { place: place.clone(), warning });
    }

    /// Records an error of the value being read. Returns `None` for the caller to return.
    pub(crate) fn refuse<T>(
        &mut self,
        node: &Node,
        problem: impl FnOnce(String) -> Problem,
    ) -> Option<T> {
        let problem = problem(self.path());
        self.fault(&node.place, problem);
        None
    }

    pub(crate) fn refuse_value<T>(
        &mut self,
        node: &Node,
        given: &str,
        expected: &str,
    ) -> Option<T> {
        let (given, expected) = (given.to_owned(), expected.to_owned());
        self.refuse(node, |key| Problem::WrongValue { key, given, expected })
    }

    /// Refuses a name that is not one of `names`.
    pub(crate) fn refuse_name<T>(
        &mut self,
        node: &Node,
        given: &str,
        names: impl Iterator<Item = &'static str>,
    ) -> Option<T> {
        let names: Vec<&str> = names.collect();
        let suggestion = nearest(given, names.iter().copied()).map(str::to_owned);
        let (given, known) = (given.to_owned(), names.join(", "));
        self.refuse(node, |key| Problem::UnknownValue { key, given, suggestion, known })
    }

    /// Refuses a node of the wrong kind.
    pub(crate) fn refuse_kind<T>(&mut self, node: &Node, expected: &str) -> Option<T> {
        let (found, expected) = (node.kind(), expected.to_owned());
        self.refuse(node, |key| Problem::WrongKind { key, found, expected })
    }

    /// Reads a scalar by `parse`; refuses a text that this does not accept.
    pub(crate) fn parse<T>(
        &mut self,
        node: &Node,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.scalar(node, expected)?;
        parse(text).or_else(|| self.refuse_value(node, text, expected))
    }

    /// The text of a scalar; refuses other nodes.
    pub(crate) fn scalar<'a>(&mut self, node: &'a Node, expected: &str) -> Option<&'a str> {
        match &node.content {
            Content::Scalar(text) => Some(text),
            // `- llama3: 8b` is meant as one text.
            Content::Map(entries) if matches!(entries.as_slice(), [one] if one.is_plain()) => {
                self.refuse_kind(node, &format!("{expected}; a text with ': ' in it needs quotes"))
            }
            Content::Null | Content::List(_) | Content::Map(_) => self.refuse_kind(node, expected),
        }
    }
}
