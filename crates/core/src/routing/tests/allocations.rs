//! The memory use of a decision and of a name.

use std::collections::BTreeMap;
use std::hint::black_box;

use penstock_config::{AliasTargets, ModelTable};

use super::{Fleet, TestRequest, alike, plain_input};
use crate::routing::{Live, Names, NoRecord, RouteInput};

#[test]
fn decisions_allocate_nothing() {
    for strategy in ["smart", "round_robin", "priority_only", "random", "deployment", "weighted"] {
        let routing = format!(
            "routing: {{ strategy: {strategy}, aliases: {{ gpt-4: m, old: gpt-4 }}, fallbacks: {{ ghost: [m] }} }}"
        );
        let mut fleet = Fleet::of(&format!("{routing}\n{}", alike(100, "m")));
        let snapshot = fleet.live.topology();
        let request = TestRequest::of("m").profile();
        let mut route = |model: &str| {
            let input = RouteInput { model, ..plain_input(&request, &snapshot, &fleet.tried) };
            let mut random = Live { topology: &snapshot, rng: &mut fleet.rng };
            fleet.router.route(&input, &mut random, &mut fleet.scratch, &mut NoRecord).is_ok()
        };
        assert!(route("m"), "warms the scratch space up");
        let counted = allocation_counter::measure(|| {
            for _ in 0..100 {
                assert!(black_box(route("m")) && black_box(route("old")));
                assert!(black_box(route("M:latest")), "another spelling");
            }
        });
        assert_eq!(counted.count_total, 0, "{strategy}");
    }
}

#[test]
fn decisions_under_policies_allocate_nothing() {
    let policies = "policies:\n  - { name: a, models: [none], zones: [local] }\n  \
                    - { name: b, models: [m], keys: [k], zones: [local] }\n  \
                    - { name: c, models: ['m*'], zones: [local], min_tier: 1, \
                    quality: { max_error_share: 0.1 } }\n";
    let routing =
        "routing: { strategy: smart, aliases: { gpt-4: m }, fallbacks: { ghost: [m] } }\n";
    let mut fleet = Fleet::of(&format!("{routing}{policies}{}", alike(25, "m")));
    let snapshot = fleet.live.topology();
    let mut route = |model: &str| {
        let ask = TestRequest::of(model);
        let profile = ask.profile();
        let input = super::input_of(&profile, ask, &fleet.router, &fleet.tried, &snapshot);
        let mut random = Live { topology: &snapshot, rng: &mut fleet.rng };
        fleet.router.route(&input, &mut random, &mut fleet.scratch, &mut NoRecord).is_ok()
    };
    assert!(route("m"), "warms the scratch space up");
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert!(black_box(route("m")) && black_box(route("gpt-4")));
            assert!(black_box(route("M:latest")));
        }
    });
    assert_eq!(counted.count_total, 0, "neither the look-up nor the decision");
}

/// Returns the bytes per entry that stay allocated for the result of `make`.
fn bytes_each<T>(entries: usize, make: impl FnOnce() -> T) -> u64 {
    let mut kept = None;
    let counted = allocation_counter::measure(|| kept = Some(make()));
    let bytes = u64::try_from(counted.bytes_current).unwrap();
    drop(kept);
    bytes / u64::try_from(entries).unwrap()
}

/// N51. A hash table doubles, so an entry costs more in a table that has just grown than in a full
/// one: the mean over many sizes is held to the target, the worst to a little more.
#[test]
fn aliases_and_chains_are_small() {
    let name = |kind: &str, index: usize| format!("{kind}-{index:04}");
    let (no_aliases, no_chains) = (BTreeMap::new(), ModelTable::default());
    let counts = (500..1000).step_by(20);
    let (mut all, mut most) = ([0, 0], [0, 0]);
    for count in counts.clone() {
        let target = |index| AliasTargets::from(name("model", index).as_str());
        let aliases: BTreeMap<String, AliasTargets> =
            (0..count).map(|index| (name("alias", index), target(index))).collect();
        let chains: ModelTable<Vec<String>> = (0..count)
            .map(|index| (name("model", index), vec![name("spare", index), name("other", index)]))
            .collect();
        let alias = bytes_each(count, || Names::new(&aliases, &no_chains));
        let chain = bytes_each(count, || Names::new(&no_aliases, &chains));
        for (number, bytes) in [alias, chain].into_iter().enumerate() {
            all[number] += bytes;
            most[number] = most[number].max(bytes);
        }
    }
    let sizes = counts.len() as u64;
    let mean = all.map(|all| all / sizes);
    assert!(
        mean[0] > 20 && mean[0] <= 100,
        "{mean:?} bytes per alias of ten letters, {most:?} at most"
    );
    assert!(mean[1] > 20 && mean[1] <= 200, "{mean:?} bytes per chain of two, {most:?} at most");
    assert!(most[0] <= 125 && most[1] <= 200, "{most:?}");
}
