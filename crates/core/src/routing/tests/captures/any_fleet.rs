//! Fleets in any state, and every kind of routing.

use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_scoring::{PICKERS, PRESETS, Residency, SCORERS};
use proptest::prelude::*;

use super::{Fleet, NOW, backend};
use crate::fleet::{CooldownCause, CooldownScope, EngineSample, Health, LoadedModel, Serving};

/// Every strategy, every preset with every picker, and every scorer with another one.
pub(super) fn routings() -> Vec<String> {
    let mut all: Vec<String> = ["smart", "round_robin", "priority_only", "random", "deployment"]
        .map(|name| format!("strategy: {name}"))
        .into();
    for picker in PICKERS {
        for preset in PRESETS {
            all.push(format!("strategy: weighted, preset: {}, picker: {picker}", preset.name));
        }
    }
    for row in SCORERS {
        let scorers =
            format!("[{{ name: {}, weight: 0.7 }}, {{ name: priority, weight: 0.1 }}]", row.name);
        if row.name != "priority" {
            all.push(format!("strategy: weighted, scorers: {scorers}"));
        }
    }
    all.push("strategy: deployment, spill: true".to_owned());
    all.push("weights: { priority: 10, load: 20, latency: 70 }".to_owned());
    all.push("strategy: weighted, picker: { name: softmax, temperature: 0.37 }".to_owned());
    all
}

#[derive(Debug, Clone)]
pub(super) struct One {
    pub(super) priority: u32,
    pub(super) in_flight: u32,
    pub(super) limit: u32,
    pub(super) latency_ms: u64,
    pub(super) first_token_ms: u64,
    pub(super) can: u8,
    pub(super) health: u8,
    pub(super) is_in_slow_start: bool,
    pub(super) sample: Option<(f32, f32, f32, u64, bool)>,
    pub(super) knows: usize,
    pub(super) cooldown_ms: u64,
    /// The state of the model, requests for it, and the number that runs at a time.
    pub(super) model: (usize, u32, u32),
}

pub(super) fn one() -> impl Strategy<Value = One> {
    let sample = (0.0..50_f32, 0.0..50_f32, 0.0..1_f32, 0..4000_u64, any::<bool>());
    let load = (0..5_u32, 0..40_u32, 1..60_u32, 0..900_u64, 0..900_u64);
    let state = (0..5_u8, 0..12_u8, 0..8_u8, prop::option::of(sample), 0..9_usize, 0..6000_u64);
    let model = (0..4_usize, 0..4_u32, 1..4_u32);
    (load, state, model).prop_map(|(load, state, model)| {
        let (can, health, slow_start, sample, knows, cooldown) = state;
        One {
            priority: load.0,
            in_flight: load.1,
            limit: load.2,
            latency_ms: load.3,
            first_token_ms: load.4,
            can,
            health,
            is_in_slow_start: slow_start == 0,
            sample,
            knows,
            cooldown_ms: cooldown.saturating_sub(4000),
            model,
        }
    })
}

pub(super) fn fleet_of(routing: &str, all: &[One]) -> Fleet {
    let lines: String = all
        .iter()
        .enumerate()
        .map(|(index, one)| {
            let can =
                ["", ", capabilities: []", ", capabilities: [tools]"][usize::from(one.can % 3)];
            let (priority, limit, slots) = (one.priority, one.limit, one.model.2);
            let rest = format!(
                "priority: {priority}, max_in_flight: {limit}, num_parallel: {slots}, \
                 models: [{{ id: m{can} }}, other]"
            );
            backend(&format!("b{index}"), 8000 + index, &rest)
        })
        .collect();
    let routing = format!("routing: {{ {routing}, fallbacks: {{ ghost: [m] }} }}");
    let fleet = Fleet::of(&format!("{routing}\nbackends:\n{lines}"));
    let topology = fleet.live.topology();
    for (index, one) in all.iter().enumerate() {
        let state = fleet.state(&format!("b{index}"));
        if let Some((waiting, running, kv, ago, fails)) = one.sample {
            state.telemetry.publish(EngineSample {
                waiting: Some(waiting),
                running: Some(running),
                kv_utilization: Some(kv),
                in_flight: one.in_flight / 2,
                sent_at: NOW.before(Duration::from_millis(ago)),
                interval: Duration::from_millis(500),
            });
            if fails {
                state.telemetry.fail();
            }
        }
        state.load.set_in_flight(one.in_flight);
        state.set_check_latency(Duration::from_millis(one.latency_ms));
        if one.is_in_slow_start {
            state.begin_slow_start(NOW.before(Duration::from_secs(3)), Duration::from_secs(10));
        }
        if one.cooldown_ms > 0 {
            state.cooldowns.start(
                CooldownScope::BACKEND,
                NOW.after(Duration::from_millis(one.cooldown_ms)),
                CooldownCause::of_status(503),
                NOW,
            );
        }
        if one.health == 0 {
            state.health.set(Health::Unhealthy);
        }
        let row = &topology.models()[0].serving[index];
        place_model(&fleet, row, one);
        row.latency.learn_first_token(Duration::from_millis(one.first_token_ms), Timestamp(0));
    }
    fleet
}

/// Sets the residency of the model on a row, and whether another model is in memory beside it.
fn place_model(fleet: &Fleet, row: &Serving, one: &One) {
    let (residency, used, _) = one.model;
    let other = LoadedModel {
        name: "other".to_owned(),
        residency: Residency::Resident,
        ..LoadedModel::default()
    };
    fleet.live.learn_loaded(row.id, &[other][..one.knows % 2], Timestamp(1));
    row.model_state.set_residency(Residency::ALL[residency]);
    row.model_state.load.set_in_flight(used.min(one.in_flight));
}

pub(super) fn hashes(count: usize) -> Vec<u64> {
    (0..count as u64).map(|block| block.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1).collect()
}
