//! No request under a policy leaves its zones, whatever the fleet and the configuration.

use penstock_api::{Capabilities, Operation};
use proptest::prelude::*;

use super::{Fleet, TestRequest};
use crate::fleet::Health;
use crate::routing::{PolicyClient, PolicyWishes};

const ZONES: [&str; 4] = ["local", "cloud", "eu", "us"];
const MODELS: [&str; 4] = ["a", "b", "c", "d"];
const NAMES: [&str; 7] = ["a", "B", "c:latest", "d", "x", "y-1", "z"];

/// The zones that each name may reach by the policies, worked out a second time and slowly.
fn admitted(policies: &[(usize, usize)], models: &[&str]) -> u8 {
    let first = policies.iter().find(|(model, _)| models.contains(&MODELS[*model]));
    first.map_or(0b1111, |(_, zones)| u8::try_from(*zones).unwrap())
}

fn list(zones: usize) -> String {
    let named = ZONES.iter().enumerate().filter(|(bit, _)| zones & 1 << bit != 0);
    named.map(|(_, zone)| *zone).collect::<Vec<_>>().join(", ")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_request_leaves_its_zones(
        backends in proptest::collection::vec((0..4_usize, 1..16_usize, 0..4_u8, 0..5_usize), 1..8),
        policies in proptest::collection::vec((0..4_usize, 1..16_usize), 1..4),
        fallbacks in proptest::collection::vec(0..4_usize, 4),
        targets in (0..4_usize, 0..4_usize),
        strategy in 0..5_usize,
        tried in proptest::collection::vec(0..8_usize, 0..3),
        wish in 0..5_usize,
    ) {
        let strategies = ["auto", "round_robin", "smart", "slo", "random"];
        let mut yaml = format!(
            "routing:\n  strategy: {}\n  fallback_on_saturation: true\n  aliases: {{ x: {}, \"y-*\": {}, z: x }}\n  \
             fallbacks: {{ {} }}\npolicies:\n",
            strategies[strategy], MODELS[targets.0], MODELS[targets.1],
            MODELS.iter().zip(&fallbacks).map(|(model, to)| format!("{model}: [{}]", MODELS[*to])).collect::<Vec<_>>().join(", "),
        );
        for (index, (model, zones)) in policies.iter().enumerate() {
            yaml += &format!("  - {{ name: p{index}, models: [{}], zones: [{}] }}\n", MODELS[*model], list(*zones));
        }
        yaml += "backends:\n";
        for (index, (zone, models, _, _)) in backends.iter().enumerate() {
            let served = MODELS.iter().enumerate().filter(|(bit, _)| models & 1 << bit != 0);
            let served = served.map(|(_, model)| *model).collect::<Vec<_>>().join(", ");
            yaml += &format!(
                "  - {{ name: b{index}, url: \"http://10.0.0.1:{}\", zone: {}, max_in_flight: 2, models: [{served}] }}\n",
                8000 + index, ZONES[*zone],
            );
        }
        let mut fleet = Fleet::of(&yaml);
        for (index, (_, _, load, health)) in backends.iter().enumerate() {
            let state = fleet.state(&format!("b{index}"));
            state.load.set_in_flight(u32::from(*load));
            let all = [Health::Healthy, Health::Healthy, Health::Unhealthy, Health::Draining, Health::Unknown];
            state.health.set(all[*health]);
        }
        for index in tried.iter().filter(|index| **index < backends.len()) {
            fleet.try_again(&format!("b{index}"));
        }
        for name in NAMES {
            let policy = policies.get(wish).map(|_| format!("p{wish}"));
            let wishes = PolicyWishes { policy: policy.as_deref(), ..PolicyWishes::default() };
            let own = match name {
                "x" | "z" => MODELS[targets.0],
                "y-1" => MODELS[targets.1],
                other => MODELS.into_iter().find(|model| other.to_lowercase().starts_with(model)).unwrap(),
            };
            let mut most = admitted(&policies, &[own]);
            if let Some((_, zones)) = policies.get(wish) {
                most &= u8::try_from(*zones).unwrap();
            }
            let ask = TestRequest { wishes, client: PolicyClient::default(), operation: Operation::Chat, needs: Capabilities::NONE, ..TestRequest::of(name) };
            let Ok((backend, model)) = fleet.taken(ask) else { continue };
            let index: usize = backend[1..].parse().unwrap();
            let bit = 1_u8 << backends[index].0;
            prop_assert!(most & bit != 0, "{name} went to {backend}\n{yaml}");
            let of_target = admitted(&policies, &[&*model]);
            prop_assert!(of_target & bit != 0, "{model} is served by {backend}\n{yaml}");
        }
    }
}
