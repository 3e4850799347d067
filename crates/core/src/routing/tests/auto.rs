//! The strategy `auto`: the strategy of each model, and its changes.

use std::time::Duration;

use penstock_api::Engine;
use penstock_config::Strategy;

use super::{Fleet, NOW, TestRequest, backend};
use crate::fleet::EngineSample;

fn strategy(fleet: &mut Fleet, model: &str) -> Strategy {
    let strategy = fleet.route(TestRequest::of(model)).unwrap().strategy;
    let topology = fleet.live.topology();
    let model = topology.model(topology.model_id(model).unwrap()).unwrap();
    let chosen = fleet.router.chosen_strategy(model, NOW);
    assert_eq!(chosen.strategy, strategy, "what is shown is what decides");
    strategy
}

/// Two backends that serve `m`, with these settings.
fn fleet(first: &str, second: &str) -> Fleet {
    let line = |name, port, rest: &str| backend(name, port, &format!("models: [m], {rest}"));
    Fleet::of(&format!("backends:\n{}{}", line("a", 1, first), line("b", 2, second)))
}

#[test]
fn each_model_has_the_strategy_that_fits_its_backends() {
    for (first, second, expected) in [
        ("engine: vllm", "engine: vllm", Strategy::Weighted),
        ("engine: vllm", "engine: llamacpp", Strategy::Weighted),
        ("engine: vllm, priority: 1", "engine: vllm, priority: 2", Strategy::Smart),
        ("engine: ollama", "engine: lmstudio", Strategy::Deployment),
        ("engine: ollama", "engine: vllm", Strategy::Smart),
        ("engine: other", "engine: vllm", Strategy::Smart),
        ("weight: 1", "weight: 2", Strategy::Smart),
    ] {
        assert_eq!(strategy(&mut fleet(first, second), "m"), expected, "{first} {second}");
    }
}

#[test]
fn models_of_one_fleet_have_different_strategies() {
    let mut fleet = Fleet::of(&format!(
        "backends:\n{}{}",
        backend("gpu", 1, "engine: vllm, models: [large]"),
        backend("desk", 2, "engine: ollama, models: [small]")
    ));
    assert_eq!(strategy(&mut fleet, "large"), Strategy::Weighted);
    assert_eq!(strategy(&mut fleet, "small"), Strategy::Deployment);
}

#[test]
fn strategy_follows_what_is_learned_of_engines() {
    let mut fleet = fleet("", "engine: other");
    assert_eq!(strategy(&mut fleet, "m"), Strategy::Smart);
    fleet.state("a").detect_engine(Engine::Sglang);
    assert_eq!(strategy(&mut fleet, "m"), Strategy::Smart, "nothing is known of the other one");
    fleet.state("b").telemetry.publish(EngineSample {
        waiting: Some(0.0),
        running: Some(0.0),
        kv_utilization: None,
        in_flight: 0,
        sent_at: NOW,
        interval: Duration::from_secs(1),
    });
    assert_eq!(strategy(&mut fleet, "m"), Strategy::Weighted);
}

#[test]
fn settings_of_a_strategy_name_it() {
    const AUTO: Option<&str> =
        Some("not all of its engines are known to keep prefixes of prompts or report their load");
    for (settings, expected, reason) in [
        ("", Strategy::Auto, AUTO),
        ("picker: softmax", Strategy::Auto, AUTO),
        ("scorers: []", Strategy::Auto, AUTO),
        ("preset: lmetric", Strategy::Weighted, Some("routing.preset is set")),
        (
            "scorers: [{ name: queue-depth, weight: 1 }]",
            Strategy::Weighted,
            Some("routing.scorers is set"),
        ),
        (
            "weights: { priority: 50, load: 30, latency: 20 }",
            Strategy::Smart,
            Some("only routing.weights is set"),
        ),
        ("strategy: random, weights: { priority: 40, load: 40 }", Strategy::Random, None),
        ("strategy: weighted, preset: lmetric", Strategy::Weighted, None),
    ] {
        let routing = format!("routing: {{ {settings} }}\n");
        let fleet = Fleet::of(&format!("{routing}backends:\n{}", backend("a", 1, "models: [m]")));
        assert_eq!(fleet.router.strategy(), expected, "{routing}");
        let topology = fleet.live.topology();
        let model = topology.model(topology.model_id("m").unwrap()).unwrap();
        assert_eq!(fleet.router.chosen_strategy(model, NOW).reason, reason, "{routing}");
    }
}
