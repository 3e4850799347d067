//! Sets of operations.

use super::operation::{OPERATIONS, Operation};

/// A set of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operations(pub(super) u32);

impl Operations {
    /// Every operation of the table.
    pub const ALL: Self = Self((1 << OPERATIONS.len()) - 1);

    /// The set of these operations.
    pub const fn of(list: &[Operation]) -> Self {
        let mut all = Self(0);
        let mut rest = list;
        // No iterator and no `for` loop runs in a constant.
        while let [first, more @ ..] = rest {
            all = all.with(*first);
            rest = more;
        }
        all
    }

    /// Returns the set that `name` means in configuration: one operation, or the group `audio` or
    /// `images`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "audio" => Some(Self::of(&[
                Operation::Speech,
                Operation::Transcriptions,
                Operation::Translations,
            ])),
            "images" => Some(Self::of(&[
                Operation::ImageGenerations,
                Operation::ImageEdits,
                Operation::ImageVariations,
            ])),
            _ => OPERATIONS
                .iter()
                .find(|row| row.name == name)
                .map(|row| Self::default().with(row.operation)),
        }
    }

    /// Returns the set with `operation` in it.
    #[must_use]
    pub const fn with(self, operation: Operation) -> Self {
        Self(self.0 | 1 << operation as u32)
    }

    /// Returns the operations in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the operation that serves a request for `operation`: itself if it is in the set,
    /// else the first in the set that it can be converted to.
    pub fn target_of(self, operation: Operation) -> Option<Operation> {
        if self.contains(operation) {
            return Some(operation);
        }
        let mut targets = operation.row().converts_to.iter().copied();
        targets.find(|target| self.contains(*target))
    }

    /// Returns the set with every operation that can be converted to one in it.
    #[must_use]
    pub fn with_convertible(self) -> Self {
        let convertible = OPERATIONS.iter().filter(|row| self.target_of(row.operation).is_some());
        convertible.fold(self, |all, row| all.with(row.operation))
    }

    /// Returns the operations in this set and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether `operation` is in the set.
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u32) != 0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the operations in the set, in table order.
    pub fn iter(self) -> impl Iterator<Item = Operation> {
        OPERATIONS
            .iter()
            .map(|row| row.operation)
            .filter(move |operation| self.contains(*operation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_and_group_has_its_set() {
        for row in OPERATIONS {
            assert_eq!(
                Operations::from_name(row.name),
                Some(Operations::default().with(row.operation))
            );
        }
        assert_eq!(Operations::ALL.iter().count(), OPERATIONS.len());
        let images = Operations::from_name("images").unwrap();
        assert_eq!(images.iter().count(), 3);
        assert!(!Operations::ALL.without(images).contains(Operation::ImageEdits));
        assert!(images.without(images).is_empty());
    }
}
