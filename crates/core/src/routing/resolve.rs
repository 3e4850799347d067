//! Resolves names before candidates are considered: aliases (at most three hops), patterns for
//! families of names, and fallback chains. A name at the end of an alias is resolved as if a client
//! had sent it: a pattern that covers it applies.

use std::collections::BTreeMap;

use ahash::HashMap;
use penstock_config::{ALIAS_HOPS, AliasTargets, ModelGlob, ModelTable};

use super::split::{SplitPoint, branch_of};
use crate::fleet::Topology;

/// Aliases and fallbacks of one configuration, resolved when it loads.
#[derive(Debug, Default)]
pub struct Names {
    /// The aliases of one model, with every name on the way: few bytes each.
    aliases: HashMap<Box<str>, Box<[Box<str>]>>,
    splits: HashMap<Box<str>, Alias>,
    /// The patterns, the most specific first.
    patterns: Vec<(ModelGlob, Alias)>,
    chains: ModelTable<Box<[Box<str>]>>,
}

/// The targets of an alias: one branch for each model that shares its requests.
#[derive(Debug)]
struct Alias {
    /// The alias that defines the list of models: this one, or one further on.
    split: Box<str>,
    branches: Box<[Branch]>,
}

/// Every name on the way; the last one is the model.
#[derive(Debug)]
struct Branch {
    weight: u32,
    hops: Box<[Box<str>]>,
}

impl Alias {
    /// Follows exact aliases from `name`, whose own targets are `targets`.
    fn follow(
        name: &str,
        targets: &AliasTargets,
        aliases: &BTreeMap<String, AliasTargets>,
    ) -> Self {
        let (mut split, mut targets) = (name, targets);
        let mut before: Vec<&str> = Vec::new();
        // Stops at the first list of several; configurations with a second one are refused.
        while let [one] = targets.0.as_slice()
            && let Some(next) = aliases.get(&one.to)
            && before.len() + 1 < ALIAS_HOPS
        {
            before.push(&one.to);
            (split, targets) = (&one.to, next);
        }
        let branches = targets.0.iter().map(|target| {
            let mut hops: Vec<Box<str>> = before.iter().map(|hop| Box::from(*hop)).collect();
            hops.push(target.to.as_str().into());
            while hops.len() < ALIAS_HOPS
                && let Some(next) = hops.last().and_then(|last| aliases.get(&**last))
                && let Some(first) = next.0.first()
            {
                hops.push(first.to.as_str().into());
            }
            Branch { weight: target.weight, hops: hops.into() }
        });
        Self { split: split.into(), branches: branches.collect() }
    }

    fn to_split(&self) -> Split<'_> {
        Split { alias: &self.split, branches: &self.branches }
    }

    fn branch(&self, point: SplitPoint) -> Option<&Branch> {
        match &*self.branches {
            [one] => Some(one),
            several => {
                let weights = several.iter().map(|branch| branch.weight);
                several.get(branch_of(&self.split, weights, point))
            }
        }
    }
}

/// The list of models that share the requests of an alias.
#[derive(Debug, Clone, Copy)]
pub struct Split<'a> {
    /// The alias with the list.
    pub alias: &'a str,
    branches: &'a [Branch],
}

impl<'a> Split<'a> {
    /// Returns each model, at the end of its aliases, with its weight.
    pub fn branches(&self) -> impl Iterator<Item = (&'a str, u32)> + use<'a> {
        self.branches.iter().filter_map(|one| Some((&**one.hops.last()?, one.weight)))
    }
}

/// The names on the way from a name to its model, without the first: along exact aliases, then
/// through a pattern, and so on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hops<'a> {
    parts: [&'a [Box<str>]; ALIAS_HOPS],
}

impl<'a> Hops<'a> {
    pub(super) fn iter(self) -> impl DoubleEndedIterator<Item = &'a str> + Clone {
        self.parts.into_iter().flatten().map(|hop| &**hop)
    }

    /// The name of the model; `None` without any hop.
    pub(super) fn last(self) -> Option<&'a str> {
        self.iter().next_back()
    }
}

/// The next part of the way from a name.
enum AliasStep<'a> {
    /// The names that exact aliases lead over.
    Exact(&'a [Box<str>]),
    /// A split or a pattern.
    Other(&'a Alias),
}

impl Names {
    /// Returns whether an alias shares its requests among several models.
    pub fn has_splits(&self) -> bool {
        let is_split = |alias: &Alias| alias.branches.len() > 1;
        !self.splits.is_empty() || self.patterns.iter().any(|(_, alias)| is_split(alias))
    }

    /// Resolves every alias once. A cycle would end at the third hop like any long chain;
    /// configurations with a cycle are refused before.
    pub fn new(
        aliases: &BTreeMap<String, AliasTargets>,
        fallbacks: &ModelTable<Vec<String>>,
    ) -> Self {
        let mut names = Self::default();
        for (name, targets) in aliases {
            let alias = Alias::follow(name, targets, aliases);
            match ModelGlob::is_pattern(name) {
                true => names.patterns.push((ModelGlob::new(name), alias)),
                false => names.add(name, alias),
            }
        }
        // The narrowest first: `llama3:*` must win over `*`, whatever their order in the file.
        names.patterns.sort_by_key(|(glob, _)| std::cmp::Reverse(glob.specificity()));
        let chains = fallbacks.iter().filter(|(_, chain)| !chain.is_empty());
        let boxed = |chain: &[String]| chain.iter().map(|entry| entry.as_str().into()).collect();
        names.chains = chains.map(|(name, chain)| (name.clone(), boxed(chain))).collect();
        names
    }

    fn add(&mut self, name: &str, alias: Alias) {
        if alias.branches.len() > 1 {
            self.splits.insert(name.into(), alias);
        } else if let Some(one) = alias.branches.into_iter().next() {
            self.aliases.insert(name.into(), one.hops);
        }
    }

    /// Returns the model behind `name`: `name` itself unless it is an alias. An exact alias comes
    /// first, then the model of that name, then the most specific pattern. `point` selects the
    /// model if an alias leads to several.
    #[inline]
    pub fn resolve<'a>(&'a self, name: &'a str, fleet: &Topology, point: SplitPoint) -> &'a str {
        if self.aliases.is_empty() && self.splits.is_empty() && self.patterns.is_empty() {
            return name;
        }
        self.hops(name, fleet, point).last().unwrap_or(name)
    }

    /// Returns whether `name` is an exact alias.
    pub fn has(&self, name: &str) -> bool {
        self.aliases.contains_key(name) || self.splits.contains_key(name)
    }

    /// Returns the split of requests for `name`; `None` if all go to one model.
    pub fn split<'a>(&'a self, name: &'a str, fleet: &Topology) -> Option<Split<'a>> {
        let mut name = name;
        for _ in 0..ALIAS_HOPS {
            let hops = match self.step(name, fleet)? {
                AliasStep::Exact(hops) => hops,
                AliasStep::Other(alias) => match &*alias.branches {
                    [one] => &one.hops,
                    _ => return Some(alias.to_split()),
                },
            };
            name = hops.last()?;
        }
        None
    }

    /// Returns the names on the way from `name`, without it; none for a model. A cycle through a
    /// pattern ends at the third hop.
    pub(super) fn hops<'a>(
        &'a self,
        name: &'a str,
        fleet: &Topology,
        point: SplitPoint,
    ) -> Hops<'a> {
        let (mut way, mut left, mut name) = (Hops::default(), ALIAS_HOPS, name);
        for part in &mut way.parts {
            let hops = match self.step(name, fleet) {
                Some(AliasStep::Exact(hops)) => hops,
                Some(AliasStep::Other(alias)) => {
                    alias.branch(point).map_or(&[][..], |one| &one.hops)
                }
                None => break,
            };
            let hops = hops.get(..left).unwrap_or(hops);
            let Some(last) = hops.last() else { break };
            (*part, name, left) = (hops, last, left - hops.len());
            // Without patterns an alias has been followed to its end.
            if left == 0 || self.patterns.is_empty() {
                break;
            }
        }
        way
    }

    fn step(&self, name: &str, fleet: &Topology) -> Option<AliasStep<'_>> {
        match self.aliases.get(name) {
            Some(hops) => Some(AliasStep::Exact(hops)),
            None => self.split_or_pattern(name, fleet).map(AliasStep::Other),
        }
    }

    fn split_or_pattern(&self, name: &str, fleet: &Topology) -> Option<&Alias> {
        if !self.splits.is_empty()
            && let Some(exact) = self.splits.get(name)
        {
            return Some(exact);
        }
        if self.patterns.is_empty() || fleet.model_id(name).is_some() {
            return None;
        }
        let (_, alias) = self.patterns.iter().find(|(glob, _)| glob.matches(name))?;
        Some(alias)
    }

    /// Returns the fallbacks of a request for `name`: those of the model it resolves to, else of
    /// the nearest name on the way back to `name` itself. Empty if none are configured.
    pub fn chain(&self, name: &str, fleet: &Topology, point: SplitPoint) -> &[Box<str>] {
        if self.chains.is_empty() {
            return &[];
        }
        let hops = self.hops(name, fleet, point);
        let mut back = hops.iter().rev().chain(std::iter::once(name));
        let target = back.next().unwrap_or(name);
        let of_target = self.chain_of(target, fleet);
        // A backend may know the model by another name as well.
        let own = || {
            let model = fleet.model_named(target).filter(|model| *model.name != *target)?;
            self.chain_of(&model.name, fleet)
        };
        let of_other = || back.find_map(|hop| self.chain_of(hop, fleet));
        of_target.or_else(own).or_else(of_other).unwrap_or(&[])
    }

    /// The fallbacks configured for a name, in this spelling or another one of the same model.
    fn chain_of(&self, name: &str, fleet: &Topology) -> Option<&[Box<str>]> {
        let (spelling, chain) = self.chains.row(name)?;
        // A backend may list two models that differ in spelling alone.
        let is_same = spelling == name || fleet.model_id(spelling) == fleet.model_id(name);
        is_same.then_some(&**chain)
    }

    /// Returns every exact alias of one model with that model, for lists of models.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.aliases.iter().filter_map(|(name, hops)| Some((&**name, &**hops.last()?)))
    }

    /// Returns every pattern with its models.
    pub fn patterns(&self) -> impl Iterator<Item = (&str, Split<'_>)> {
        self.patterns.iter().map(|(glob, alias)| (glob.as_str(), alias.to_split()))
    }

    /// Returns every exact alias that splits requests.
    pub fn splits(&self) -> impl Iterator<Item = (&str, Split<'_>)> {
        self.splits.iter().map(|(name, alias)| (&**name, alias.to_split()))
    }
}

#[cfg(test)]
mod tests;
