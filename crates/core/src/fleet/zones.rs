//! The zones of one configuration, by number.

use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_api::{ZoneId, ZoneSet};
use penstock_config::Config;

/// The names of the zones of a configuration, in the order of the alphabet: configurations with the
/// same zones give them the same numbers, however their backends are ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zones(Arc<[Box<str>]>);

impl Zones {
    /// Returns the zones that the backends, keys and policies of a configuration name.
    pub fn of(config: &Config) -> Self {
        let names: BTreeSet<&str> = config.zone_names().collect();
        Self(names.into_iter().map(Box::from).collect())
    }

    /// Returns the number of the zone called `name`; unknown if the configuration has none by that
    /// name.
    pub fn id(&self, name: &str) -> ZoneId {
        self.0.iter().position(|known| **known == *name).map_or(ZoneId::UNKNOWN, ZoneId::at)
    }

    pub fn name(&self, id: ZoneId) -> &str {
        id.position().and_then(|position| self.0.get(position)).map_or("unknown", |name| name)
    }

    /// Returns the zones called `names`; names without a zone admit nothing.
    pub fn set<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> ZoneSet {
        names.into_iter().fold(ZoneSet::NONE, |set, name| set.with(self.id(name)))
    }

    /// Returns the names of the zones in `set`.
    pub fn names_in(&self, set: ZoneSet) -> impl Iterator<Item = &str> {
        let named = self.0.iter().enumerate();
        named
            .filter(move |(position, _)| set.contains(ZoneId::at(*position)))
            .map(|(_, name)| &**name)
    }
}
