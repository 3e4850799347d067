//! Values by the names of models, found by any spelling of a name. Names that differ only in case
//! or in `:latest` are one model, so a value has to apply whatever spelling the file, a backend and
//! a client use.

use std::collections::BTreeMap;

use ahash::HashMap;
use penstock_api::{CanonicalName, canonical_name};

/// A value for each of several models, in the order of their names.
#[derive(Debug, Clone)]
pub struct ModelTable<T> {
    rows: Vec<(String, T)>,
    /// The positions of rows by their own spelling, and by their canonical name.
    positions: HashMap<Box<str>, usize>,
}

impl<T> ModelTable<T> {
    /// The value of a model, in its own spelling or else another one. The usual spelling takes one
    /// look-up by hash; none allocates.
    pub fn get(&self, model: &str) -> Option<&T> {
        self.row(model).map(|(_, value)| value)
    }

    /// The value of a model, with its spelling here.
    pub fn row(&self, model: &str) -> Option<(&str, &T)> {
        // The usual configuration has none.
        if self.rows.is_empty() {
            return None;
        }
        let exact = self.positions.get(model);
        let position =
            exact.or_else(|| self.positions.get(CanonicalName::new(model)?.as_str())).copied()?;
        self.rows.get(position).map(|(name, value)| (name.as_str(), value))
    }

    /// Returns whether a model has a value, in any spelling of its name.
    pub fn contains(&self, model: &str) -> bool {
        self.row(model).is_some()
    }

    /// Returns every model, as spelled here, with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> + Clone {
        self.rows.iter().map(|(name, value)| (name, value))
    }

    /// Returns the names of all models, as spelled here.
    pub fn names(&self) -> impl Iterator<Item = &String> + Clone {
        self.rows.iter().map(|(name, _)| name)
    }

    /// Returns the number of models.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether no model has a value.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl<T> Default for ModelTable<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), positions: HashMap::default() }
    }
}

/// Tables are equal by their rows: the positions follow from them.
impl<T: PartialEq> PartialEq for ModelTable<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl<T> FromIterator<(String, T)> for ModelTable<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(rows: I) -> Self {
        // One row for each spelling, in order.
        let rows: BTreeMap<String, T> = rows.into_iter().collect();
        let rows: Vec<(String, T)> = rows.into_iter().collect();
        let own = rows.iter().enumerate().map(|(at, (name, _))| (Box::from(name.as_str()), at));
        let mut positions: HashMap<Box<str>, usize> = own.collect();
        for (at, (name, _)) in rows.iter().enumerate() {
            // A row that is spelled canonically comes first, else the first of several.
            positions.entry(canonical_name(name)).or_insert(at);
        }
        Self { rows, positions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str]) -> ModelTable<usize> {
        names.iter().enumerate().map(|(at, name)| ((*name).to_owned(), at)).collect()
    }

    #[test]
    fn value_is_found_by_every_spelling_of_a_model() {
        for name in ["llama3", "LLAMA3", "llama3:latest", "Llama3:Latest"] {
            let table = table(&["qwen", name]);
            for asked in ["llama3", "LLAMA3", "llama3:latest", "Llama3:Latest", "lLaMa3"] {
                assert_eq!(table.row(asked), Some((name, &1)), "{asked}");
            }
            assert!(!table.contains("llama3:8b"));
            assert!(!table.contains("llama"));
        }
    }

    #[test]
    fn own_spelling_comes_first() {
        let table = table(&["M", "m:latest", "m"]);
        for (asked, value) in [("M", 0), ("m:latest", 1), ("m", 2), ("M:latest", 2)] {
            assert_eq!(table.get(asked), Some(&value), "{asked}");
        }
        let names: Vec<&String> = table.names().collect();
        assert_eq!(names, ["M", "m", "m:latest"], "in order");
    }

    #[test]
    fn empty_table_has_no_model() {
        assert!(!ModelTable::<usize>::default().contains("m"));
        assert!(!table(&["m"]).contains(&"m".repeat(1000)), "longer than a name may be");
    }
}
