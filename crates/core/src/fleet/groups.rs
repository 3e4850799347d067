//! Groups: a backend with `resolve: each` or `srv` represents one backend per address of its name.
//! The configuration keeps the group as written; a fleet is built from its members.
//!
//! A member is called `group@address:port`, which is its identity. State learned about an address
//! is kept as long as the name resolves to it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_config::{BackendConfig, Config, MAX_BACKENDS};

/// An address that the name of a group resolves to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupAddress {
    /// The address on which the backend listens.
    pub address: SocketAddr,
    /// Added to the group's priority: the distance of the SRV record's priority from the lowest.
    pub priority: u32,
    /// Multiplies the group's weight: the SRV record's weight relative to the others.
    pub weight: u32,
}

impl GroupAddress {
    /// An address without preference.
    pub fn plain(address: SocketAddr) -> Self {
        Self { address, priority: 0, weight: 1 }
    }
}

/// The lookups of a group's name. Shared by every generation that has the group.
#[derive(Debug, Default)]
pub struct GroupLookups {
    found: AtomicU64,
    failed: AtomicU64,
    is_failing: AtomicBool,
    /// The start of the wait for the first address, in microseconds; zero before the first lookup.
    awaited_since: AtomicU64,
}

impl GroupLookups {
    /// Counts a lookup that ended at `now`. Returns whether its result differs from the one before.
    pub fn record(&self, is_found: bool, now: Timestamp) -> bool {
        let count = if is_found { &self.found } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        let since = &self.awaited_since;
        if since.load(Ordering::Relaxed) == 0 {
            since.store(now.0.max(1), Ordering::Relaxed);
        }
        self.is_failing.swap(!is_found, Ordering::AcqRel) == is_found
    }

    /// The numbers of lookups that found addresses, and that failed.
    pub fn counts(&self) -> (u64, u64) {
        (self.found.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Returns whether the last lookup failed.
    pub fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }
}

/// A group and its members.
#[derive(Debug, Clone)]
pub struct Group {
    /// Its name in the configuration.
    pub name: Box<str>,
    /// The name to look up: `engines.example:8000`, or the name of SRV records.
    pub target: Box<str>,
    /// The addresses of its members.
    pub addresses: Vec<GroupAddress>,
    /// The number of addresses that are not used, because there are too many.
    pub unused: usize,
    /// The state of its lookups.
    pub lookups: Arc<GroupLookups>,
}

impl Group {
    /// Returns whether it may still get its first member within `give_up`.
    pub fn awaits_members(&self, now: Timestamp, give_up: Duration) -> bool {
        self.addresses.is_empty()
            && match self.lookups.awaited_since.load(Ordering::Relaxed) {
                0 => true,
                since => now.since(Timestamp(since)) < give_up,
            }
    }
}

/// The groups of one configuration, in its order.
#[derive(Debug, Clone, Default)]
pub struct Groups(Vec<Group>);

impl Groups {
    /// Returns the groups of `config`, with the addresses of the same names in `previous`.
    #[must_use]
    pub fn of(config: &Config, previous: &Self) -> Self {
        let groups = config.backends.iter().filter(|backend| backend.is_group()).map(|backend| {
            let target = target(backend);
            let known = previous.get(&backend.name).filter(|group| *group.target == *target);
            known.cloned().unwrap_or_else(|| Group {
                name: backend.name.as_str().into(),
                target: target.into(),
                addresses: Vec::new(),
                unused: 0,
                lookups: Arc::default(),
            })
        });
        Self(groups.collect()).fitted(config)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.0.iter()
    }

    /// Returns whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<&Group> {
        self.0.iter().find(|group| *group.name == *name)
    }

    /// Returns the same groups with new addresses. `found` returns those of a group, or `None` to
    /// keep them.
    #[must_use]
    pub fn with_addresses(
        &self,
        config: &Config,
        found: impl Fn(&Group) -> Option<Vec<GroupAddress>>,
    ) -> Self {
        let groups = self.0.iter().map(|group| match found(group) {
            Some(addresses) => Group { addresses, unused: 0, ..group.clone() },
            None => group.clone(),
        });
        Self(groups.collect()).fitted(config)
    }

    /// Returns whether the groups have the same members, with the same preferences.
    pub fn has_same_members(&self, other: &Self) -> bool {
        let members = |groups: &Self| -> Vec<(Box<str>, Vec<GroupAddress>)> {
            groups.iter().map(|group| (group.name.clone(), group.addresses.clone())).collect()
        };
        members(self) == members(other)
    }

    /// Returns the backends of `config`, with each group replaced by its members.
    pub fn expand(&self, config: &Config) -> Vec<BackendConfig> {
        let mut backends = Vec::with_capacity(config.backends.len());
        for backend in &config.backends {
            if !backend.is_group() {
                backends.push(backend.clone());
                continue;
            }
            let group = self.get(&backend.name);
            let addresses = group.into_iter().flat_map(|group| &group.addresses);
            backends.extend(addresses.map(|address| member(backend, *address)));
        }
        backends
    }

    /// Sorts the addresses, drops duplicates, and drops those above the limit of `config`.
    fn fitted(mut self, config: &Config) -> Self {
        let single = config.backends.iter().filter(|backend| !backend.is_group()).count();
        // The backends that are listed one by one have their place, whatever the names resolve to.
        let mut room = MAX_BACKENDS.saturating_sub(single);
        let limit = usize::try_from(config.discovery.max_addresses).unwrap_or(usize::MAX);
        for group in &mut self.0 {
            group.addresses.sort_unstable();
            // After the sort the first entry of an address is the one with the best priority.
            let mut seen = BTreeSet::new();
            group.addresses.retain(|one| seen.insert(one.address));
            let kept = group.addresses.len().min(limit).min(room);
            group.unused += group.addresses.len() - kept;
            group.addresses.truncate(kept);
            room -= kept;
        }
        self
    }
}

/// The name to look up for a group.
fn target(backend: &BackendConfig) -> String {
    backend.srv.as_ref().map_or_else(|| backend.url.authority(), |name| format!("SRV {name}"))
}

pub(super) fn member_name(group: &str, address: SocketAddr) -> String {
    format!("{group}@{address}")
}

/// Splits the name of a member into its group and address.
pub(super) fn split_member(name: &str) -> Option<(&str, SocketAddr)> {
    // From the right: the name of a group may contain the sign, an address never does.
    let (group, address) = name.rsplit_once('@')?;
    Some((group, address.parse().ok()?))
}

fn member(group: &BackendConfig, at: GroupAddress) -> BackendConfig {
    BackendConfig {
        name: member_name(&group.name, at.address),
        address: Some(at.address),
        priority: group.priority.saturating_add(at.priority),
        weight: group.weight.saturating_mul(at.weight),
        ..group.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use penstock_config::Environment;

    fn config(yaml: &str) -> Config {
        Config::parse(yaml, "x", Path::new("."), &Environment::default()).unwrap()
    }

    fn at(last: u8) -> GroupAddress {
        GroupAddress::plain(SocketAddr::from(([10, 0, 0, last], 8000)))
    }

    fn names(groups: &Groups, config: &Config) -> Vec<String> {
        groups.expand(config).into_iter().map(|backend| backend.name).collect()
    }

    const TWO: &str = "backends: [{ name: e, url: http://engines:8000, resolve: each, priority: 7, \
                       weight: 2 }, http://one:1]";

    #[test]
    fn each_address_is_a_backend_like_its_group() {
        let config = config(TWO);
        let none = Groups::of(&config, &Groups::default());
        assert_eq!(names(&none, &config), ["one:1"], "a group without addresses has no backend");
        let preferred = GroupAddress { priority: 3, weight: 5, ..at(1) };
        let groups = none.with_addresses(&config, |_| Some(vec![at(2), preferred, at(2)]));
        assert_eq!(names(&groups, &config), ["e@10.0.0.1:8000", "e@10.0.0.2:8000", "one:1"]);
        let backends = groups.expand(&config);
        assert_eq!((backends[0].priority, backends[0].weight), (10, 10));
        assert_eq!((backends[1].priority, backends[1].weight), (7, 2));
        assert_eq!(backends[1].url.host_field(), "engines:8000", "the Host header stays");
        assert!(!backends[1].is_group() && backends[1].address == Some(at(2).address));
        let name = backends[1].name.as_str();
        assert_eq!(split_member(name), Some(("e", at(2).address)));
    }

    #[test]
    fn same_name_keeps_its_addresses_and_another_starts_over() {
        let before = config(TWO);
        let groups = Groups::of(&before, &Groups::default());
        let groups = groups.with_addresses(&before, |_| Some(vec![at(1)]));
        let kept = Groups::of(&config(&TWO.replace("priority: 7", "priority: 8")), &groups);
        assert!(kept.has_same_members(&groups));
        let moved = Groups::of(&config(&TWO.replace("engines", "others")), &groups);
        assert!(moved.iter().all(|group| group.addresses.is_empty()));
    }

    #[test]
    fn addresses_over_the_limit_are_not_used() {
        let config = config(&format!("discovery: {{ max_addresses: 3 }}\n{TWO}"));
        let groups = Groups::of(&config, &Groups::default());
        let groups = groups.with_addresses(&config, |_| Some((1..=5).rev().map(at).collect()));
        let group = groups.get("e").unwrap();
        assert_eq!((group.addresses.clone(), group.unused), (vec![at(1), at(2), at(3)], 2));
        let again = Groups::of(&config, &groups);
        assert_eq!(again.get("e").unwrap().unused, 2, "they are counted once");
    }

    #[test]
    fn lookups_are_logged_when_their_result_changes() {
        let lookups = GroupLookups::default();
        let at = Timestamp(1);
        assert!(!lookups.record(true, at), "the first success is no change");
        assert!(lookups.record(false, at) && lookups.is_failing());
        assert!(!lookups.record(false, at), "logged once");
        assert!(lookups.record(true, at) && !lookups.is_failing());
        assert_eq!(lookups.counts(), (2, 2));
    }
}
