//! Merges the ids that backends list into models. Ids that differ only in case or in `:latest` are
//! one model. If a single backend lists two such ids, they are two models everywhere.

use ahash::{HashMap, HashSet};
use penstock_api::canonical_name;
use penstock_config::ModelEntry;

/// The ids that name different models although they look alike.
#[derive(Debug, Default)]
pub(super) struct ModelNames(HashSet<Box<str>>);

impl ModelNames {
    /// Returns the names in `lists`, one list of each backend.
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

    /// The common key of all ids of a model: its canonical name, or the id itself if that name fits
    /// several models.
    pub(super) fn key(&self, id: &str) -> Box<str> {
        let canonical = canonical_name(id);
        if self.0.contains(&canonical) { id.into() } else { canonical }
    }
}
