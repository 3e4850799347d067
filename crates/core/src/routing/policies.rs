//! Policies: the places that the requests of a model and a key may reach. They are looked up once
//! for a request, when it is admitted, and once for each other model that it may go to.

mod restriction;

pub use restriction::Restriction;

use http::header::HeaderName;
use penstock_api::{POLICY, STRICT, Tier, ZoneSet};
use penstock_config::{Config, ModelGlob, PolicyConfig, TierMode};

use super::resolve::Names;
use super::split::SplitPoint;
use crate::clients::ClientIdentity;
use crate::fleet::{ModelPolicies, QualityRuleId, Topology, Zones};

/// The policies that a request is under, fixed when it is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyScope {
    /// The places that the request may reach by its own model.
    pub restriction: Restriction,
    /// The position of the policy that applies; `None` without one.
    pub policy: Option<u8>,
    /// True if the request wishes that every tier is strict, also that of another model.
    pub(super) is_strict: bool,
    /// The policies whose key the request has, as a bit mask of positions: one of them applies to
    /// each other model that the request may go to.
    pub(super) of_key: u64,
}

/// The client that a request comes from, as policies see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct PolicyClient<'a> {
    /// The name of its key.
    pub key: Option<&'a str>,
    /// The team that it belongs to.
    pub team: Option<&'a str>,
    /// The policies that it may choose even if they allow more.
    pub may_choose: &'a [Box<str>],
    /// The zones that the key itself is limited to; empty for none.
    pub zones: &'a [Box<str>],
}

impl<'a> PolicyClient<'a> {
    /// Returns a client as policies see it.
    pub fn of(client: Option<&'a ClientIdentity>) -> Self {
        client.map_or(Self::default(), |client| Self {
            key: Some(&client.name),
            team: client.team.as_deref(),
            may_choose: &client.policies,
            zones: &client.zones,
        })
    }
}

/// The wishes of a request, from its headers.
#[derive(Debug, Clone, Copy, Default)]
pub struct PolicyWishes<'a> {
    /// The policy that it names.
    pub policy: Option<&'a str>,
    /// True if backends below a tier must not take it; `None` leaves it to the policy.
    pub is_strict: Option<bool>,
}

/// The reason why the wishes of a request about policies cannot be met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("The header {POLICY} names '{}': there is no such policy", .name.escape_debug())]
    Unknown { name: String },
    #[error("The header {STRICT} is 'false', and this key may not relax the tier of its policy")]
    NotRelaxed,
    #[error("The header {field} must be {expected}")]
    Value { field: HeaderName, expected: &'static str },
}

impl<'a> PolicyWishes<'a> {
    /// Reads the wishes of a request. `field` returns the values of a header field.
    ///
    /// # Errors
    /// [`PolicyError`] when a field has an invalid value, or more than one.
    pub fn read<V: Iterator<Item = &'a [u8]>>(
        field: impl Fn(&HeaderName) -> V,
    ) -> Result<Self, PolicyError> {
        let text = |name: HeaderName, expected| {
            let mut values = field(&name);
            let Some(value) = values.next() else { return Ok(None) };
            let text = std::str::from_utf8(value).ok().map(str::trim);
            let text = text.filter(|text| !text.is_empty() && values.next().is_none());
            text.map(Some).ok_or(PolicyError::Value { field: name, expected })
        };
        let is_strict = match text(STRICT, "true or false")? {
            None => None,
            Some(given) => Some(given.parse().map_err(|_other| PolicyError::Value {
                field: STRICT,
                expected: "true or false",
            })?),
        };
        Ok(Self { policy: text(POLICY, "the name of a policy, once")?, is_strict })
    }
}

/// The policies of a configuration.
#[derive(Debug, Default)]
pub struct Policies {
    entries: Box<[Policy]>,
    models: ModelPolicies,
    /// The policies for all keys, as a bit mask of positions.
    of_all_keys: u64,
    zones: Zones,
}

#[derive(Debug)]
struct Policy {
    name: Box<str>,
    /// Empty, as the teams, for all keys and for requests without one.
    keys: Box<[ModelGlob]>,
    teams: Box<[ModelGlob]>,
    restriction: Restriction,
}

impl Policy {
    fn new(position: usize, config: &PolicyConfig, zones: &Zones) -> Self {
        let wanted = config.min_tier.unwrap_or_default();
        let is_strict = config.tier_mode == TierMode::Strict;
        Self {
            name: config.name.as_str().into(),
            keys: config.keys.clone().into(),
            teams: config.teams.clone().into(),
            restriction: Restriction {
                zones: match config.zones.is_empty() {
                    // Also backends in no zone. A zone without backends admits nothing instead.
                    true => ZoneSet::ALL,
                    false => zones.set(config.zones.iter().map(String::as_str)),
                },
                tier: if is_strict { wanted } else { Tier::LOWEST },
                preferred_tier: wanted,
                quality: config.quality.as_ref().and_then(|_| QualityRuleId::at(position)),
                is_free_only: false,
            },
        }
    }

    fn is_for_all_keys(&self) -> bool {
        self.keys.is_empty() && self.teams.is_empty()
    }

    /// Returns whether its keys or teams name a client.
    fn names(&self, client: &PolicyClient<'_>) -> bool {
        let fits = |globs: &[ModelGlob], name: Option<&str>| {
            name.is_some_and(|name| globs.iter().any(|glob| glob.matches(name)))
        };
        fits(&self.keys, client.key) || fits(&self.teams, client.team)
    }
}

impl Policies {
    /// Returns the policies of a configuration.
    pub fn new(config: &Config) -> Self {
        let zones = Zones::of(config);
        let entries = config.policies.iter().enumerate();
        let entries: Box<[Policy]> =
            entries.map(|(position, one)| Policy::new(position, one, &zones)).collect();
        let models = ModelPolicies::of(config);
        let of_all_keys = mask(&entries, Policy::is_for_all_keys);
        Self { entries, models, of_all_keys, zones }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the name of the policy at a position.
    pub fn name(&self, position: u8) -> Option<&str> {
        self.entries.get(usize::from(position)).map(|policy| &*policy.name)
    }

    /// Returns the policies of a request: the first that matches its model and its key, and the one
    /// that the request names. A key that may choose that one has it in place of the first;
    /// otherwise both hold.
    ///
    /// # Errors
    /// [`PolicyError`] if the request wishes what its key may not have.
    pub(super) fn admit(
        &self,
        names: RequestedNames<'_>,
        client: &PolicyClient<'_>,
        wishes: &PolicyWishes<'_>,
    ) -> Result<PolicyScope, PolicyError> {
        let of_key = self.of_key(client);
        let first = self.first(names, of_key);
        let chosen = wishes.policy.map(|name| self.position(name)).transpose()?;
        let may_choose = |position| self.may_choose(client, position);
        let (position, allowed) = match chosen {
            Some(_) if may_choose(chosen) => (chosen, self.restriction(chosen)),
            // Without permission a wish only narrows: no client escapes its policy by naming one.
            Some(_) => (chosen, self.restriction(first).and(self.restriction(chosen))),
            None => (first, self.restriction(first)),
        };
        let allowed = match wishes.is_strict {
            None => allowed,
            // Needs no permission: it only excludes more.
            Some(true) => allowed.strict(),
            // Nothing is strict, so nothing is relaxed.
            Some(false) if allowed.tier == Tier::LOWEST => allowed,
            Some(false) if may_choose(position) && (chosen.is_none() || may_choose(chosen)) => {
                Restriction { tier: Tier::LOWEST, ..allowed }
            }
            Some(false) => return Err(PolicyError::NotRelaxed),
        };
        // Whatever policy applies: a chosen one cannot lead a key out of its zones.
        let zones = allowed.zones.and(self.zones_of(client));
        let restriction = Restriction { zones, ..allowed };
        let policy = position.and_then(|position| u8::try_from(position).ok());
        Ok(PolicyScope { restriction, policy, is_strict: wishes.is_strict == Some(true), of_key })
    }

    /// Returns what a request without a model that can be read may reach: what every policy of
    /// its key allows, because it may be for any model, and the one that it names itself.
    ///
    /// # Errors
    /// [`PolicyError`] if the request wishes what its key may not have.
    pub fn of_unread(
        &self,
        client: &PolicyClient<'_>,
        wishes: &PolicyWishes<'_>,
    ) -> Result<PolicyScope, PolicyError> {
        let of_key = self.of_key(client);
        let chosen = wishes.policy.map(|name| self.position(name)).transpose()?;
        let mut scope = PolicyScope { of_key, ..PolicyScope::default() };
        // One that the client may choose takes the place of the others.
        let applies = |position: usize| match chosen {
            Some(_) if self.may_choose(client, chosen) => chosen == Some(position),
            _ => of_key & 1 << position != 0 || chosen == Some(position),
        };
        for position in (0..self.entries.len()).filter(|position| applies(*position)) {
            scope.restriction = scope.restriction.and(self.restriction(Some(position)));
            scope.policy = scope.policy.or(u8::try_from(position).ok());
        }
        scope.restriction.zones = scope.restriction.zones.and(self.zones_of(client));
        Ok(scope)
    }

    /// Returns the policies of a request for another model: its own, and that of the model.
    pub(super) fn also_under(&self, scope: &PolicyScope, names: RequestedNames<'_>) -> PolicyScope {
        let Some(own) = self.first(names, scope.of_key) else { return *scope };
        let both = scope.restriction.and(self.restriction(Some(own)));
        PolicyScope {
            restriction: if scope.is_strict { both.strict() } else { both },
            policy: scope.policy.or(u8::try_from(own).ok()),
            ..*scope
        }
    }

    /// Returns whether a client may have a policy in place of the first that matches.
    fn may_choose(&self, client: &PolicyClient<'_>, position: Option<usize>) -> bool {
        let policy = position.and_then(|position| self.entries.get(position));
        policy.is_some_and(|policy| client.may_choose.iter().any(|name| **name == *policy.name))
    }

    fn restriction(&self, position: Option<usize>) -> Restriction {
        let policy = position.and_then(|position| self.entries.get(position));
        policy.map(|policy| policy.restriction).unwrap_or_default()
    }

    /// Returns the zones that a client is limited to, whatever its requests are for.
    fn zones_of(&self, client: &PolicyClient<'_>) -> ZoneSet {
        match client.zones.is_empty() {
            true => ZoneSet::ALL,
            false => self.zones.set(client.zones.iter().map(|name| &**name)),
        }
    }

    fn position(&self, name: &str) -> Result<usize, PolicyError> {
        let found = self.entries.iter().position(|policy| *policy.name == *name);
        // Cut: the name is the client's, and the message is sent and logged.
        found.ok_or_else(|| PolicyError::Unknown { name: name.chars().take(64).collect() })
    }

    /// Returns the policies for a client, as a bit mask of positions.
    // A bit per policy: the configuration has 64 at most.
    fn of_key(&self, client: &PolicyClient<'_>) -> u64 {
        let has_name = client.key.is_some() || client.team.is_some();
        match has_name && self.of_all_keys.count_ones() as usize != self.entries.len() {
            true => self.of_all_keys | mask(&self.entries, |policy| policy.names(client)),
            false => self.of_all_keys,
        }
    }

    fn first(&self, names: RequestedNames<'_>, of_key: u64) -> Option<usize> {
        let both = names.policies(&self.models) & of_key;
        (both != 0).then_some(both.trailing_zeros() as usize)
    }
}

fn mask(entries: &[Policy], is_in: impl Fn(&Policy) -> bool) -> u64 {
    let found = (0..u64::BITS).zip(entries).filter(|(_, policy)| is_in(policy));
    found.fold(0, |set, (position, _)| set | 1 << position)
}

/// The model that a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct ModelAsked<'a> {
    /// Its name in the request.
    pub name: &'a str,
    /// The fleet that serves it.
    pub fleet: &'a Topology,
    /// The point that selects the model of an alias with several.
    pub split: SplitPoint,
}

/// The names of the model that a request gets: the requested one, the aliases on the way, and the
/// model as its backends list it. No spelling escapes a policy.
#[derive(Clone, Copy)]
pub(super) struct RequestedNames<'a> {
    pub(super) requested: &'a str,
    pub(super) names: &'a Names,
    pub(super) fleet: &'a Topology,
    pub(super) split: SplitPoint,
}

impl RequestedNames<'_> {
    /// Returns the policies that are for one of the names, as a bit mask of positions.
    fn policies(&self, all: &ModelPolicies) -> u64 {
        let Self { requested, names, fleet, split } = *self;
        let hops = names.hops(requested, fleet, split);
        let target = hops.last().unwrap_or(requested);
        let model = fleet.model_named(target);
        let given = std::iter::once(requested).chain(hops.iter());
        match model {
            // A reload may have given the fleet other policies than this request has.
            Some(model) if fleet.policies == all.version() => {
                let is_own = hops.last().is_none() && *requested == *model.name;
                if is_own { model.policies } else { model.policies | all.matching(given) }
            }
            Some(model) => all.matching(given.chain(model.listed_names())),
            None => all.matching(given),
        }
    }
}
