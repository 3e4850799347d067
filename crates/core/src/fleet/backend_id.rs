//! The identity of a backend, and sets of them.

use penstock_config::MAX_BACKENDS;

/// A number of a backend, stable within the process. It is assigned at first sight of (name, URL,
/// engine) and reused only after the last reference to that backend is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub u16);

/// A set of backends, as a bitmask.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BackendSet([u64; MAX_BACKENDS / 64]);

impl BackendSet {
    pub fn insert(&mut self, id: BackendId) {
        if let Some(word) = self.0.get_mut(usize::from(id.0) / 64) {
            *word |= 1 << (id.0 % 64);
        }
    }

    /// Adds every backend of another set.
    pub fn insert_all(&mut self, other: &Self) {
        for (word, added) in self.0.iter_mut().zip(other.0) {
            *word |= added;
        }
    }

    /// Removes every backend of another set.
    pub fn remove_all(&mut self, other: &Self) {
        for (word, removed) in self.0.iter_mut().zip(other.0) {
            *word &= !removed;
        }
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns whether a backend is in the set.
    pub fn contains(&self, id: BackendId) -> bool {
        self.0.get(usize::from(id.0) / 64).is_some_and(|word| word & (1 << (id.0 % 64)) != 0)
    }
}
