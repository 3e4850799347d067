//! Label values: each gets a number when it is first seen. Their count is bounded, so that no
//! client can grow the page. A lookup takes no lock.

use std::sync::Arc;

use ahash::HashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;

/// The label value of all names over the limit.
pub(super) const OTHER: &str = "other";

/// The number of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NameId(u16);

#[derive(Debug, Default, Clone)]
struct NameTable {
    by_name: HashMap<Arc<str>, NameId>,
    all: Vec<Arc<str>>,
}

/// A bounded set of label values. A name keeps its number for the life of the process.
#[derive(Debug)]
pub(super) struct BoundedNames {
    table: ArcSwap<NameTable>,
    limit: usize,
    writer: Mutex<()>,
}

impl BoundedNames {
    /// Creates a table of at most `limit` names in addition to `placeholder` (the label value for a
    /// missing name) and [`OTHER`].
    pub(super) fn new(limit: usize, placeholder: &str) -> Self {
        // For the two names below, which every table has.
        let limit = limit.saturating_add(2).min(usize::from(u16::MAX));
        let names = Self { table: ArcSwap::default(), limit, writer: Mutex::default() };
        names.learn(OTHER);
        names.learn(placeholder);
        names
    }

    /// All names over the limit.
    pub(super) const OTHER: NameId = NameId(0);
    /// The label value for a missing name.
    pub(super) const PLACEHOLDER: NameId = NameId(1);

    /// Returns the id of `name`; [`BoundedNames::OTHER`] for a new name once the table is full.
    pub(super) fn id(&self, name: &str) -> NameId {
        let table = self.table.load();
        match table.by_name.get(name) {
            Some(id) => *id,
            None if table.all.len() >= self.limit => Self::OTHER,
            None => self.learn(name),
        }
    }

    pub(super) fn name(&self, id: NameId) -> Arc<str> {
        let table = self.table.load();
        table.all.get(usize::from(id.0)).cloned().unwrap_or_else(|| Arc::from(OTHER))
    }

    fn learn(&self, name: &str) -> NameId {
        let _one_writer = self.writer.lock();
        let mut table = NameTable::clone(&self.table.load());
        // Another thread may have added it since the lookup without the lock.
        if let Some(id) = table.by_name.get(name) {
            return *id;
        }
        match u16::try_from(table.all.len()) {
            Ok(number) if table.all.len() < self.limit => {
                let name: Arc<str> = name.into();
                table.all.push(Arc::clone(&name));
                table.by_name.insert(name, NameId(number));
                self.table.store(Arc::new(table));
                NameId(number)
            }
            Ok(_) | Err(_) => Self::OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_over_the_limit_are_counted_as_other() {
        let names = BoundedNames::new(2, "unknown");
        let (a, b) = (names.id("a"), names.id("b"));
        assert_ne!(a, b);
        assert_eq!(names.id("a"), a, "a name keeps its number");
        assert_eq!(names.id("c"), BoundedNames::OTHER);
        assert_eq!(&*names.name(a), "a");
        assert_eq!(&*names.name(BoundedNames::OTHER), "other");
        assert_eq!(&*names.name(BoundedNames::PLACEHOLDER), "unknown");
    }

    #[test]
    fn model_named_like_a_placeholder_shares_its_number() {
        let names = BoundedNames::new(2, "unknown");
        assert_eq!(
            names.id("unknown"),
            BoundedNames::PLACEHOLDER,
            "two series may not have the same labels"
        );
        assert_eq!(names.id("other"), BoundedNames::OTHER);
    }
}
