//! The requests of a model that the same backends can take: the more important priorities first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::EntryId;
use super::class::{Class, Entry};
use crate::fleet::BackendSet;
use crate::units::Timestamp;

/// A line.
#[derive(Debug)]
pub(super) struct Line {
    /// The backends that can take its requests.
    pub(super) backends: BackendSet,
    /// At most one per priority.
    classes: BTreeMap<Reverse<i32>, Class>,
    len: usize,
}

impl Line {
    pub(super) fn new(backends: BackendSet) -> Self {
        Self { backends, classes: BTreeMap::new(), len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, priority: i32, entry: &Entry) {
        self.classes.entry(Reverse(priority)).or_default().push(entry);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, priority: i32, entry: &Entry) {
        if let Some(class) = self.classes.get_mut(&Reverse(priority)) {
            class.remove(entry);
            self.len -= 1;
        }
    }

    /// Its next request, and that one's priority.
    pub(super) fn first(&mut self, now: Timestamp, newest_first: bool) -> Option<(i32, EntryId)> {
        let mut classes = self.classes.iter_mut().filter(|(_, class)| !class.is_empty());
        let (Reverse(priority), class) = classes.next()?;
        Some((*priority, class.first(now, newest_first)?))
    }

    /// The least important of its requests, and that one's priority.
    pub(super) fn last(&self) -> Option<(i32, EntryId)> {
        let mut classes = self.classes.iter().rev().filter(|(_, class)| !class.is_empty());
        let (Reverse(priority), class) = classes.next()?;
        Some((*priority, class.last()?))
    }

    /// The owner of `entry` was served it for so many tokens.
    pub(super) fn charge(&mut self, priority: i32, entry: &Entry, tokens: u64) {
        if let Some(class) = self.classes.get_mut(&Reverse(priority)) {
            class.charge(entry.owner, entry.weight, tokens);
        }
    }
}
