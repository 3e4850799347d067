//! A YAML document as a tree of nodes with positions. Scalars keep their text; their type depends
//! on the setting that reads them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::errors::ConfigError;
use super::other_format::{has_comment, other_format};
use super::source_place::SourcePlace;
use super::syntax_cause::{Misled, cause_of};

/// The maximum depth: twice that of any section. Reading takes several KiB of stack per level.
const MAX_DEPTH: usize = 16;

/// The maximum number of events replayed from YAML aliases. Aliases of aliases grow exponentially
/// ("billion laughs"); no real file expands to this size.
const MAX_REPEATED: usize = 20_000;

/// A value and its position.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) place: SourcePlace,
    pub(crate) content: Content,
}

/// The content of a node.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Null,
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a mapping, its position, and its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: SourcePlace,
    pub(crate) node: Node,
}

impl Entry {
    /// Returns whether the value is a scalar.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.node.content, Content::Scalar(_))
    }
}

impl Node {
    /// Returns the kind of node, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.content {
            Content::Null => "empty",
            Content::Scalar(_) => "a single value",
            Content::List(_) => "a list",
            Content::Map(_) => "a mapping",
        }
    }

    /// Returns the entry of a mapping called `key`; `None` when it is empty.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.content {
            Content::Map(entries) => entries
                .iter()
                // A key without a value is as good as none: `routing:` alone sets nothing.
                .find(|entry| entry.key == key && !matches!(entry.node.content, Content::Null)),
            Content::Null | Content::Scalar(_) | Content::List(_) => None,
        }
    }

    /// Returns the value of `key`, or this node if there is none, so that messages have a position.
    pub(crate) fn at(&self, key: &str) -> &Self {
        self.entry(key).map_or(self, |entry| &entry.node)
    }

    /// Returns the items of a list; a single value counts as a list of one.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.content {
            Content::List(items) => items,
            Content::Scalar(_) => std::slice::from_ref(self),
            Content::Null | Content::Map(_) => &[],
        }
    }

    /// Returns the position of the key `key`, or of this node if there is none.
    pub(crate) fn key_place(&self, key: &str) -> &SourcePlace {
        self.entry(key).map_or(&self.place, |entry| &entry.place)
    }
}

/// The positions of a mapping's keys, for rules that look up each of very many.
pub(crate) struct KeyPlaces<'a> {
    keys: HashMap<&'a str, &'a SourcePlace>,
    mapping: &'a SourcePlace,
}

impl<'a> KeyPlaces<'a> {
    /// Collects the positions of the keys of `node`.
    pub(crate) fn of(node: &'a Node) -> Self {
        let mut keys = HashMap::new();
        if let Content::Map(entries) = &node.content {
            for entry in entries.iter().filter(|one| !matches!(one.node.content, Content::Null)) {
                // The first of a repeated key, as `Node::entry` finds it.
                keys.entry(entry.key.as_str()).or_insert(&entry.place);
            }
        }
        Self { keys, mapping: &node.place }
    }

    /// Returns the position of `key`, or of the mapping if there is none.
    pub(crate) fn place(&self, key: &str) -> &'a SourcePlace {
        self.keys.get(key).copied().unwrap_or(self.mapping)
    }
}

/// Parses `text`, which came from `file`.
pub(crate) fn parse_document(text: &str, file: &Arc<str>) -> Result<Node, ConfigError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // A scalar keeps its text; the setting that reads it judges it.
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED },
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
    };
    let document = SourceText { text, file };
    let start = SourcePlace::File { file: Arc::clone(file), line: 1, column: 1 };
    // An empty document is an empty configuration, which has its own message.
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Ok(Node { place: start, content: Content::Null });
    }
    let other_format = || {
        other_format(text).map(|found| {
            let place = SourcePlace::File { file: Arc::clone(file), line: found.line, column: 1 };
            ConfigError::OtherFormat { place, format: found.format }
        })
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(raw) => {
            let root = document.resolve(raw);
            let is_odd = matches!(root.content, Content::Scalar(_)) || has_comment_key(&root);
            is_odd.then(other_format).flatten().map_or(Ok(root), Err)
        }
        Err(source) => {
            if let Some(error) = other_format() {
                return Err(error);
            }
            let place = source.location().map_or(start, |location| document.place(location));
            let misled =
                source.location().and_then(|at| cause_of(text, at.line(), at.column(), &source));
            let cause = misled.map(|misled| misled.cause);
            let place = match misled {
                Some(Misled { line, column, .. }) => {
                    SourcePlace::File { file: Arc::clone(file), line, column }
                }
                None => place,
            };
            Err(ConfigError::Syntax { place, cause, source: Box::new(source) })
        }
    }
}

/// Returns whether a comment of JSON became a key, as YAML reads a line of it.
pub(super) fn has_comment_key(node: &Node) -> bool {
    match &node.content {
        Content::Null | Content::Scalar(_) => false,
        Content::List(items) => items.iter().any(has_comment_key),
        Content::Map(entries) => {
            entries.iter().any(|one| has_comment(&one.key) || has_comment_key(&one.node))
        }
    }
}

struct SourceText<'a> {
    text: &'a str,
    file: &'a Arc<str>,
}

impl SourceText<'_> {
    fn place(&self, location: Location) -> SourcePlace {
        SourcePlace::File {
            file: Arc::clone(self.file),
            line: location.line().max(1),
            column: location.column().max(1),
        }
    }

    fn resolve(&self, raw: Spanned<Raw>) -> Node {
        let place = self.place(raw.referenced);
        let content = match raw.value {
            Raw::Null => Content::Null,
            Raw::Text(text) => Content::Scalar(text),
            // At its definition: an alias is written with the name of its anchor.
            Raw::Typed(shown) => Content::Scalar(self.written(raw.defined).unwrap_or(shown)),
            Raw::List(items) => {
                Content::List(items.into_iter().map(|item| self.resolve(item)).collect())
            }
            Raw::Map(entries) => Content::Map(
                entries
                    .into_iter()
                    .map(|(key, value)| Entry {
                        place: self.place(key.referenced),
                        key: key.value,
                        node: self.resolve(value),
                    })
                    .collect(),
            ),
        };
        Node { place, content }
    }

    /// Returns the scalar as it was written: a model called `1.10` must not become `1.1`.
    fn written(&self, location: Location) -> Option<String> {
        let span = location.span();
        let start = usize::try_from(span.byte_offset()?).ok()?;
        let length = usize::try_from(span.byte_len()?).ok()?;
        let written = self.text.get(start..start.checked_add(length)?)?.trim();
        (!written.is_empty()).then(|| written.to_owned())
    }
}

/// A value as the YAML parser returns it.
enum Raw {
    Null,
    Text(String),
    /// Parsed as a number or boolean; shown as the parser understood it.
    Typed(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Typed(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}
