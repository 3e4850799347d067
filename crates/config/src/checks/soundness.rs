//! The parts of a document that were read without errors. A rule that reads an invalid setting
//! would judge its default and blame valid settings, so only rules about valid settings run.

use std::collections::BTreeSet;

use crate::syntax::document::{Content, Node};
use crate::syntax::errors::{ConfigFault, Problem};
use crate::syntax::source_place::SourcePlace;

/// The positions of the errors found so far.
#[derive(Debug, Default)]
pub(crate) struct Soundness {
    values: BTreeSet<SourcePlace>,
    unknown_keys: BTreeSet<SourcePlace>,
}

impl Soundness {
    /// Records the positions of `faults`.
    pub(crate) fn after(faults: &[ConfigFault]) -> Self {
        let mut found = Self::default();
        for fault in faults {
            let places = match fault.problem {
                Problem::UnknownKey { .. } => &mut found.unknown_keys,
                _ => &mut found.values,
            };
            places.insert(fault.place.clone());
        }
        found
    }

    /// Returns whether every value of `node` is valid.
    pub(crate) fn holds(&self, node: &Node) -> bool {
        // The usual case: a valid file is not searched once per rule.
        if self.values.is_empty() {
            return true;
        }
        let is_sound = !self.values.contains(&node.place);
        is_sound
            && match &node.content {
                Content::Null | Content::Scalar(_) => true,
                Content::List(items) => items.iter().all(|item| self.holds(item)),
                Content::Map(entries) => entries
                    .iter()
                    .all(|one| !self.values.contains(&one.place) && self.holds(&one.node)),
            }
    }

    /// Returns whether the setting `key` of a mapping is valid; a missing one is.
    pub(crate) fn holds_at(&self, mapping: &Node, key: &str) -> bool {
        mapping.entry(key).is_none_or(|entry| self.holds(&entry.node))
    }

    /// Returns whether a mapping has no unknown key. An unknown key may be a misspelled one, so
    /// other keys may only seem to be missing.
    pub(crate) fn is_complete(&self, mapping: &Node) -> bool {
        match &mapping.content {
            Content::Map(entries) => {
                entries.iter().all(|entry| !self.unknown_keys.contains(&entry.place))
            }
            Content::Null | Content::Scalar(_) | Content::List(_) => true,
        }
    }
}
