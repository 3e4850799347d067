use std::path::Path;
use std::sync::Arc;

use penstock_config::{AliasTarget, Config, Environment};
use proptest::prelude::*;

use super::*;
use crate::fleet::Fleet;

const AT: SplitPoint = SplitPoint(0);

fn names(aliases: &[(&str, &str)], fallbacks: &[(&str, &[&str])]) -> Names {
    let text = |(from, to): &(&str, &str)| ((*from).to_owned(), AliasTargets::from(*to));
    let chain = |(from, to): &(&str, &[&str])| {
        ((*from).to_owned(), to.iter().map(|name| (*name).to_owned()).collect())
    };
    Names::new(&aliases.iter().map(text).collect(), &fallbacks.iter().map(chain).collect())
}

/// The topology of a backend with these models.
fn serving(models: &[&str]) -> Arc<Topology> {
    let yaml = format!("backends: [{{ url: \"http://a\", models: {models:?} }}]");
    let config = Config::parse(&yaml, "test.yaml", Path::new(""), &Environment::default());
    Fleet::new(&config.unwrap()).topology()
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
fn chain_is_found_by_every_spelling_of_a_model() {
    let fleet = serving(&["llama3:latest", "qwen"]);
    for key in ["llama3", "LLAMA3", "llama3:latest"] {
        let names = names(&[("gpt", "Llama3")], &[(key, &["qwen"])]);
        for fleet in [&*fleet, &Topology::default()] {
            for asked in ["llama3", "Llama3:latest", "LLAMA3", "llama3:latest", "gpt"] {
                assert_eq!(names.chain(asked, fleet, AT).len(), 1, "{key} for {asked}");
            }
            assert!(names.chain("llama3:8b", fleet, AT).is_empty());
        }
    }
    let two = serving(&["M", "m"]);
    let names = names(&[], &[("m", &["M"])]);
    assert_eq!(names.chain("m", &two, AT).len(), 1);
    assert!(names.chain("M", &two, AT).is_empty(), "one backend lists them as two models");
}

#[test]
fn the_most_specific_pattern_counts_after_exact_aliases() {
    let fleet = serving(&["b", "qwen", "llama3:70b", "tiny"]);
    let names = names(
        &[("*", "tiny"), ("gpt-*", "llama3:70b"), ("gpt-4?", "qwen"), ("gpt-4o", "a"), ("a", "b")],
        &[("llama3:70b", &["mistral:7b"])],
    );
    for (name, model) in [
        ("gpt-4o", "b"),
        ("gpt-4x", "qwen"),
        ("gpt-4-turbo", "llama3:70b"),
        ("claude", "tiny"),
        ("tiny", "tiny"),
    ] {
        assert_eq!(names.resolve(name, &fleet, AT), model, "{name}");
    }
    assert_eq!(names.chain("gpt-5", &fleet, AT)[0].as_ref(), "mistral:7b");
    assert_eq!(names.aliases().count(), 2, "a pattern is never listed as a model");
}

#[test]
fn pattern_applies_to_the_name_that_an_alias_leads_to() {
    let none = Topology::default();
    let names = names(
        &[
            ("best", "gpt-4o-mini"),
            ("gpt-4o*", "large"),
            ("old", "older"),
            ("older", "best"),
            ("loop", "loop-1"),
            ("loop-?", "loop"),
        ],
        &[("gpt-4o-mini", &["small"]), ("large-2", &["other"])],
    );
    for (name, model) in [
        ("gpt-4o-mini", "large"),
        ("best", "large"),
        ("older", "large"),
        ("old", "gpt-4o-mini"),
        ("large", "large"),
        ("loop", "loop-1"),
    ] {
        assert_eq!(names.resolve(name, &none, AT), model, "{name}");
    }
    assert_eq!(names.chain("best", &none, AT)[0].as_ref(), "small", "on the way back");
    assert!(names.hops("loop", &none, AT).iter().count() <= ALIAS_HOPS);
    assert_eq!(names.hops("best", &none, AT).iter().collect::<Vec<_>>(), ["gpt-4o-mini", "large"]);
    assert!(names.hops("large", &none, AT).last().is_none());
    assert!(names.split("best", &none).is_none());
}

#[test]
fn alias_leads_to_the_split_of_a_pattern() {
    let target = |to: &str| AliasTarget { to: to.to_owned(), weight: 1 };
    let aliases = [
        ("best".to_owned(), AliasTargets::from("gpt-4o")),
        ("gpt-*".to_owned(), AliasTargets(vec![target("a"), target("b")])),
    ];
    let (names, none) =
        (Names::new(&aliases.into_iter().collect(), &ModelTable::default()), Topology::default());
    let split = names.split("best", &none).unwrap();
    assert_eq!(split.branches().collect::<Vec<_>>(), [("a", 1), ("b", 1)]);
    for point in (0..20).map(SplitPoint) {
        let model = names.resolve("best", &none, point);
        assert_eq!(model, names.resolve("gpt-4o", &none, point));
        assert!(["a", "b"].contains(&model));
    }
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
        let names = Names::new(&aliases.collect(), &ModelTable::default());
        let mut slow = name.clone();
        for _ in 0..ALIAS_HOPS {
            let Some(next) = pairs.get(&slow) else { break };
            slow.clone_from(next);
        }
        prop_assert_eq!(names.resolve(&name, &Topology::default(), AT), slow);
    }
}
