//! Resolves names before candidates are considered: aliases (at most three hops), patterns for
//! families of names, and fallback chains.

use std::collections::BTreeMap;

use ahash::HashMap;
use penstock_config::{ALIAS_HOPS, AliasTargets, ModelGlob};

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
    chains: HashMap<Box<str>, Box<[Box<str>]>>,
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
        fallbacks: &BTreeMap<String, Vec<String>>,
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
        for (name, chain) in fallbacks.iter().filter(|(_, chain)| !chain.is_empty()) {
            let chain = chain.iter().map(|entry| Box::from(entry.as_str())).collect();
            names.chains.insert(name.as_str().into(), chain);
        }
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
        self.hops(name, fleet, point).last().map_or(name, |target| target)
    }

    /// Returns whether `name` is an exact alias.
    pub fn has(&self, name: &str) -> bool {
        self.aliases.contains_key(name) || self.splits.contains_key(name)
    }

    /// Returns the split of requests for `name`; `None` if all go to one model.
    pub fn split(&self, name: &str, fleet: &Topology) -> Option<Split<'_>> {
        let alias = match self.aliases.get(name) {
            Some(_) => None,
            None => self.split_or_pattern(name, fleet),
        };
        alias.filter(|alias| alias.branches.len() > 1).map(Alias::to_split)
    }

    /// Returns the names on the way from `name`, without it; empty for a model.
    pub(super) fn hops(&self, name: &str, fleet: &Topology, point: SplitPoint) -> &[Box<str>] {
        if let Some(hops) = self.aliases.get(name) {
            return hops;
        }
        let branch = self.split_or_pattern(name, fleet).and_then(|alias| alias.branch(point));
        branch.map_or(&[], |branch| &branch.hops)
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
        let mut back = hops.iter().rev().map(|hop| &**hop).chain(std::iter::once(name));
        // The name may differ in case from the model's, which has the fallbacks.
        let own = || fleet.model(fleet.model_id(name)?).map(|model| &*model.name);
        let chain = back.find_map(|hop| self.chains.get(hop));
        chain.or_else(|| self.chains.get(own()?)).map_or(&[], |chain| &**chain)
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
mod tests {
    use super::*;
    use penstock_config::AliasTarget;
    use proptest::prelude::*;

    const AT: SplitPoint = SplitPoint(0);

    fn names(aliases: &[(&str, &str)], fallbacks: &[(&str, &[&str])]) -> Names {
        let text = |(from, to): &(&str, &str)| ((*from).to_owned(), AliasTargets::from(*to));
        let chain = |(from, to): &(&str, &[&str])| {
            ((*from).to_owned(), to.iter().map(|name| (*name).to_owned()).collect())
        };
        Names::new(&aliases.iter().map(text).collect(), &fallbacks.iter().map(chain).collect())
    }

    #[test]
    fn aliases_are_followed_three_hops() {
        let none = Topology::default();
        let names = names(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")], &[]);
        assert_eq!(names.resolve("a", &none, AT), "d", "three hops, then the name reached is used");
        assert_eq!(names.resolve("c", &none, AT), "e");
        assert_eq!(names.resolve("x", &none, AT), "x");
    }

    #[test]
    fn a_chain_is_looked_up_under_the_target_then_back_along_the_alias() {
        let none = Topology::default();
        let names = names(
            &[("claude-3-opus", "llama3:70b"), ("gpt-4", "qwen")],
            &[("claude-3-opus", &["mistral:7b"]), ("qwen", &["llama3:8b"]), ("empty", &[])],
        );
        assert_eq!(names.chain("claude-3-opus", &none, AT)[0].as_ref(), "mistral:7b");
        assert_eq!(names.chain("gpt-4", &none, AT)[0].as_ref(), "llama3:8b");
        assert!(names.chain("empty", &none, AT).is_empty(), "an empty chain is no chain");
        assert!(
            names.chain("llama3:70b", &none, AT).is_empty(),
            "the model is requested by its own name"
        );
    }

    #[test]
    fn the_most_specific_pattern_counts_after_exact_aliases() {
        let none = Topology::default();
        let names = names(
            &[
                ("*", "tiny"),
                ("gpt-*", "llama3:70b"),
                ("gpt-4?", "qwen"),
                ("gpt-4o", "a"),
                ("a", "b"),
            ],
            &[("llama3:70b", &["mistral:7b"])],
        );
        for (name, model) in [
            ("gpt-4o", "b"),
            ("gpt-4x", "qwen"),
            ("gpt-4-turbo", "llama3:70b"),
            ("claude", "tiny"),
            ("tiny", "tiny"),
        ] {
            assert_eq!(names.resolve(name, &none, AT), model, "{name}");
        }
        assert_eq!(names.chain("gpt-5", &none, AT)[0].as_ref(), "mistral:7b");
        assert_eq!(names.aliases().count(), 2, "a pattern is never listed as a model");
    }

    #[test]
    fn split_leads_to_each_model_with_its_chain() {
        let target = |to: &str, weight| AliasTarget { to: to.to_owned(), weight };
        let split = AliasTargets(vec![target("a", 1), target("b", 1)]);
        let aliases = [
            ("gpt".to_owned(), split.clone()),
            ("old".to_owned(), AliasTargets::from("gpt")),
            ("b".to_owned(), AliasTargets::from("c")),
            ("o*".to_owned(), split),
        ];
        let fallbacks = [("c".to_owned(), vec!["d".to_owned()])].into_iter().collect();
        let (names, none) =
            (Names::new(&aliases.into_iter().collect(), &fallbacks), Topology::default());
        let mut seen = [0, 0];
        for point in (0..1000).map(SplitPoint) {
            let model = names.resolve("gpt", &none, point);
            assert_eq!(names.resolve("old", &none, point), model, "an alias of it splits alike");
            assert_eq!(names.chain("gpt", &none, point).is_empty(), model == "a");
            seen[usize::from(model == "c")] += 1;
        }
        assert!(seen.iter().all(|count| *count > 400), "{seen:?}");
        let branches = |name| names.split(name, &none).unwrap().branches().collect::<Vec<_>>();
        assert_eq!(branches("old"), [("a", 1), ("c", 1)]);
        assert_eq!(branches("o3-mini"), [("a", 1), ("c", 1)]);
        assert!(names.split("b", &none).is_none());
        assert_eq!((names.aliases().count(), names.splits().count()), (1, 2));
    }

    proptest! {
        #[test]
        fn resolution_ends_for_any_aliases(
            pairs in proptest::collection::btree_map("[a-e]", "[a-e]", 0..6), name in "[a-e]"
        ) {
            let aliases = pairs.iter().map(|(from, to)| (from.clone(), AliasTargets::from(&**to)));
            let names = Names::new(&aliases.collect(), &BTreeMap::new());
            let mut slow = name.clone();
            for _ in 0..ALIAS_HOPS {
                let Some(next) = pairs.get(&slow) else { break };
                slow.clone_from(next);
            }
            prop_assert_eq!(names.resolve(&name, &Topology::default(), AT), slow);
        }
    }
}
