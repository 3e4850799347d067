//! Names before candidates: aliases (at most three hops), patterns for whole families of names, and
//! fallback chains.

use std::collections::BTreeMap;

use ahash::HashMap;

use crate::config::{ALIAS_HOPS, ModelGlob};
use crate::fleet::Topology;

/// Aliases and fallbacks of one configuration, resolved when it loads.
#[derive(Debug, Default)]
pub struct Names {
    aliases: HashMap<Box<str>, Alias>,
    /// The most specific first.
    patterns: Vec<(ModelGlob, Alias)>,
    chains: HashMap<Box<str>, Box<[Box<str>]>>,
}

/// Where an alias leads: every name passed on the way, the last one is the model.
#[derive(Debug)]
struct Alias {
    hops: Box<[Box<str>]>,
}

impl Alias {
    /// The way from `first` along exact aliases.
    fn follow(first: &str, aliases: &BTreeMap<String, String>) -> Self {
        let mut hops: Vec<Box<str>> = vec![first.into()];
        while hops.len() < ALIAS_HOPS {
            let Some(next) = hops.last().and_then(|last| aliases.get(&**last)) else { break };
            hops.push(next.as_str().into());
        }
        Self { hops: hops.into() }
    }
}

impl Names {
    /// Resolves every alias once. A cycle (which configurations with one never get here with)
    /// ends at the third hop like any long chain.
    pub fn new(
        aliases: &BTreeMap<String, String>,
        fallbacks: &BTreeMap<String, Vec<String>>,
    ) -> Self {
        let mut names = Self::default();
        for (name, first) in aliases {
            let alias = Alias::follow(first, aliases);
            match ModelGlob::is_pattern(name) {
                true => names.patterns.push((ModelGlob::new(name), alias)),
                false => _ = names.aliases.insert(name.as_str().into(), alias),
            }
        }
        names.patterns.sort_by_key(|(glob, _)| std::cmp::Reverse(glob.specificity()));
        for (name, chain) in fallbacks.iter().filter(|(_, chain)| !chain.is_empty()) {
            let chain = chain.iter().map(|entry| Box::from(entry.as_str())).collect();
            names.chains.insert(name.as_str().into(), chain);
        }
        names
    }

    /// The model behind `name`: `name` itself unless it is an alias. An exact alias counts first, then
    /// the model of that name, then the most specific pattern.
    pub fn resolve<'a>(&'a self, name: &'a str, fleet: &Topology) -> &'a str {
        let alias = self.alias(name, fleet);
        alias.and_then(|alias| alias.hops.last()).map_or(name, |target| target)
    }

    fn alias(&self, name: &str, fleet: &Topology) -> Option<&Alias> {
        if let Some(exact) = self.aliases.get(name) {
            return Some(exact);
        }
        if self.patterns.is_empty() || fleet.model_id(name).is_some() {
            return None;
        }
        let (_, alias) = self.patterns.iter().find(|(glob, _)| glob.matches(name))?;
        Some(alias)
    }

    /// The fallbacks of a request for `name`: those of the model it resolves to, else those of the
    /// nearest name on the way back to `name` itself. Empty where none are configured.
    pub fn chain(&self, name: &str, fleet: &Topology) -> &[Box<str>] {
        if self.chains.is_empty() {
            return &[];
        }
        let hops = self.alias(name, fleet).map_or(&[][..], |alias| &alias.hops);
        let mut back = hops.iter().rev().map(|hop| &**hop).chain(std::iter::once(name));
        back.find_map(|hop| self.chains.get(hop)).map_or(&[], |chain| &**chain)
    }

    /// Every exact alias with the model it leads to, for lists of models.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.aliases.iter().filter_map(|(name, alias)| Some((&**name, &**alias.hops.last()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(aliases: &[(&str, &str)], fallbacks: &[(&str, &[&str])]) -> Names {
        let text = |(from, to): &(&str, &str)| ((*from).to_owned(), (*to).to_owned());
        let chain = |(from, to): &(&str, &[&str])| {
            ((*from).to_owned(), to.iter().map(|name| (*name).to_owned()).collect())
        };
        Names::new(&aliases.iter().map(text).collect(), &fallbacks.iter().map(chain).collect())
    }

    #[test]
    fn aliases_are_followed_three_hops() {
        let none = Topology::default();
        let names = names(&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")], &[]);
        assert_eq!(names.resolve("a", &none), "d", "three hops, then the name reached is used");
        assert_eq!(names.resolve("c", &none), "e");
        assert_eq!(names.resolve("x", &none), "x");
    }

    #[test]
    fn a_chain_is_looked_up_under_the_target_then_back_along_the_alias() {
        let none = Topology::default();
        let names = names(
            &[("claude-3-opus", "llama3:70b"), ("gpt-4", "qwen")],
            &[("claude-3-opus", &["mistral:7b"]), ("qwen", &["llama3:8b"]), ("empty", &[])],
        );
        assert_eq!(names.chain("claude-3-opus", &none)[0].as_ref(), "mistral:7b");
        assert_eq!(names.chain("gpt-4", &none)[0].as_ref(), "llama3:8b");
        assert!(names.chain("empty", &none).is_empty(), "an empty chain is no chain");
        assert!(
            names.chain("llama3:70b", &none).is_empty(),
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
            assert_eq!(names.resolve(name, &none), model, "{name}");
        }
        assert_eq!(names.chain("gpt-5", &none)[0].as_ref(), "mistral:7b");
        assert_eq!(names.aliases().count(), 2, "a pattern is never listed as a model");
    }

    proptest! {
        #[test]
        fn resolution_ends_for_any_aliases(
            pairs in proptest::collection::btree_map("[a-e]", "[a-e]", 0..6), name in "[a-e]"
        ) {
            let names = Names::new(&pairs, &BTreeMap::new());
            let mut slow = name.clone();
            for _ in 0..ALIAS_HOPS {
                let Some(next) = pairs.get(&slow) else { break };
                slow.clone_from(next);
            }
            prop_assert_eq!(names.resolve(&name, &Topology::default()), slow);
        }
    }
}
