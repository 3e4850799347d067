//! Which of the ids that backends list are one model: those that differ in case or in `:latest` alone. Where a
//! single backend lists two such ids, they are two models everywhere.

use ahash::{HashMap, HashSet};

use crate::api::canonical_name;
use crate::config::ModelEntry;

/// The ids that name different models although they look alike.
#[derive(Debug, Default)]
pub(super) struct ModelNames(HashSet<Box<str>>);

impl ModelNames {
    /// The names in `lists`, one list of each backend.
    pub(super) fn of<'a>(lists: impl Iterator<Item = &'a [ModelEntry]>) -> Self {
        let mut ambiguous = HashSet::default();
        for list in lists {
            let mut seen: HashMap<Box<str>, &str> = HashMap::default();
            for entry in list {
                let canonical = canonical_name(&entry.id);
                match seen.get(&canonical) {
                    Some(id) if *id != entry.id => _ = ambiguous.insert(canonical),
                    Some(_) => {}
                    None => _ = seen.insert(canonical, &entry.id),
                }
            }
        }
        Self(ambiguous)
    }

    /// What all ids of a model have in common: its canonical name, or the id itself where that names several
    /// models.
    pub(super) fn key(&self, id: &str) -> Box<str> {
        let canonical = canonical_name(id);
        if self.0.contains(&canonical) { id.into() } else { canonical }
    }
}
