//! A backend's list of models, cleaned: its ids become metric labels, log lines and file names of
//! operators, so they are short, printable and different from each other. Beside it, the reading of
//! values from the JSON of engines.

use ahash::HashSet;
use penstock_api::units::ByteSize;
use penstock_api::{MAX_NAME, is_unprintable};
use penstock_config::ModelEntry;
use penstock_core::fleet::DroppedModels;
use serde_json::Value;

/// The largest number of models taken from one backend.
pub(super) const MAX_MODELS: usize = 10_000;

/// The models a backend lists.
#[derive(Debug, Default)]
pub struct ListedModels {
    /// The usable models, in the order of the list.
    pub models: Vec<ModelEntry>,
    /// The numbers of models that are not used.
    pub dropped: DroppedModels,
    /// Their sizes, if the engine reports them.
    pub sizes: Vec<(String, ByteSize)>,
    /// The engine's version, if it reports it.
    pub version: Option<String>,
}

impl ListedModels {
    /// Keeps each usable id once.
    pub(super) fn new(listed: impl Iterator<Item = ModelEntry>) -> Self {
        let mut list = Self::default();
        let mut seen: HashSet<String> = HashSet::default();
        for entry in listed {
            let dropped = &mut list.dropped;
            let id = entry.id.as_str();
            let count = match () {
                () if id.len() > MAX_NAME => &mut dropped.too_long,
                () if id.is_empty() || id.contains(is_unprintable) => &mut dropped.unprintable,
                () if seen.contains(id) => &mut dropped.duplicate,
                () if list.models.len() >= MAX_MODELS => &mut dropped.over_limit,
                () => {
                    seen.insert(id.to_owned());
                    list.models.push(entry);
                    continue;
                }
            };
            *count = count.saturating_add(1);
        }
        list
    }

    /// Adds the sizes in a list, whose items have their name and their size at these pointers.
    pub(super) fn add_sizes(&mut self, items: &[Value], name: &str, size: &str) {
        let sizes = items.iter().filter_map(|item| {
            Some((text(item, name)?.to_owned(), ByteSize(item.pointer(size)?.as_u64()?)))
        });
        self.sizes.extend(sizes);
    }
}

/// Returns the text at a JSON pointer.
pub(super) fn text<'a>(value: &'a Value, at: &str) -> Option<&'a str> {
    value.pointer(at)?.as_str()
}

/// Returns a positive number of tokens.
pub(super) fn to_tokens(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|tokens| u32::try_from(tokens).ok()).filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<'a>(ids: impl Iterator<Item = &'a str>) -> ListedModels {
        let entry = |id: &str| ModelEntry { id: id.to_owned(), ..ModelEntry::default() };
        ListedModels::new(ids.map(entry))
    }

    #[test]
    fn ids_are_short_printable_and_unique() {
        let (longest, too_long) = ("m".repeat(MAX_NAME), "m".repeat(MAX_NAME + 1));
        let ids = ["a", &too_long, "b\r", "a", "", "b\u{1b}[2J", &longest, "a", "\u{e9}"];
        let list = list(ids.into_iter());
        let kept: Vec<&str> = list.models.iter().map(|model| model.id.as_str()).collect();
        assert_eq!(kept, ["a", longest.as_str(), "\u{e9}"]);
        let expected = DroppedModels { too_long: 1, unprintable: 3, duplicate: 2, over_limit: 0 };
        assert_eq!(list.dropped, expected);
    }

    #[test]
    fn list_is_bounded() {
        let ids: Vec<String> = (0..MAX_MODELS + 3).map(|number| number.to_string()).collect();
        let list = list(ids.iter().map(String::as_str));
        assert_eq!((list.models.len(), list.dropped.over_limit), (MAX_MODELS, 3));
    }
}
