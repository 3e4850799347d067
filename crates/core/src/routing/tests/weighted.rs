//! The weighted strategy over real fleets: prompts go where they were before, else load decides.

use penstock_api::Operation;
use penstock_scan::{RequestProfile, ScanOptions, scan};
use proptest::prelude::*;

use super::{Fleet, NOW, TestRequest, alike, backend, plain_input};
use crate::fleet::{BackendSet, EngineDetails, Groups, Health};
use crate::prefix::{Chain, prompt_chain};
use crate::routing::{Live, NoRecord, RouteError, RouteInput, RoutingDecision, Waited};

pub(super) fn route(fleet: &mut Fleet, body: &str) -> (String, RoutingDecision) {
    route_to(fleet, Operation::Chat, body)
}

fn route_to(fleet: &mut Fleet, operation: Operation, body: &str) -> (String, RoutingDecision) {
    let (profile, model, chain) = scanned(fleet, operation, body);
    let decision = route_chain(fleet, (&profile, &model), &chain);
    let snapshot = fleet.live.topology();
    (decision.serving(&snapshot).unwrap().state.name.to_string(), decision)
}

/// Returns the profile of a body, its model and its prompt.
fn scanned(fleet: &Fleet, operation: Operation, body: &str) -> (RequestProfile, String, Chain) {
    let profile = scan(operation, None, body.as_bytes(), ScanOptions::default()).unwrap();
    let model = profile.model_name(body.as_bytes()).into_owned();
    let terms = fleet.router.weighted().unwrap().prefix_params(&fleet.live.topology(), &model);
    let mut chain = Chain::default();
    prompt_chain(&profile, body.as_bytes(), &model, terms, &mut chain);
    (profile, model, chain)
}

/// Decides about a chat with the system prompt of `family`; recorded if there is a decision.
pub(super) fn try_chat(fleet: &mut Fleet, family: usize) -> Result<RoutingDecision, RouteError> {
    try_chat_after(fleet, family, None)
}

/// Decides about a chat that has waited.
pub(super) fn try_chat_after(
    fleet: &mut Fleet,
    family: usize,
    waited: Option<Waited>,
) -> Result<RoutingDecision, RouteError> {
    let body = chat("m", &prompt(family), "hello");
    let (profile, model, chain) = scanned(fleet, Operation::Chat, &body);
    let decision = try_decide(fleet, (&profile, &model), &chain, waited)?;
    record(fleet, &decision, &chain);
    Ok(decision)
}

/// Returns the backends that a chat waits for after a turn without room.
pub(super) fn awaited(fleet: &Fleet, family: usize, waited: Option<Waited>) -> BackendSet {
    let body = chat("m", &prompt(family), "hello");
    let (profile, _, chain) = scanned(fleet, Operation::Chat, &body);
    let snapshot = fleet.live.topology();
    let input = RouteInput {
        prompt: Some(&chain),
        waited,
        ..plain_input(&profile, &snapshot, &fleet.tried)
    };
    fleet.router.awaited(&input).unwrap().backends
}

/// Decides about a prompt, and records it as the proxy does.
pub(super) fn route_chain(
    fleet: &mut Fleet,
    asked: (&RequestProfile, &str),
    chain: &Chain,
) -> RoutingDecision {
    let decision = decide(fleet, asked, chain);
    record(fleet, &decision, chain);
    decision
}

/// Records a decision as the proxy does.
pub(super) fn record(fleet: &Fleet, decision: &RoutingDecision, chain: &Chain) {
    fleet.router.weighted().unwrap().record(&fleet.live.topology(), decision, chain);
}

/// Decides about a prompt without recording it.
pub(super) fn decide(
    fleet: &mut Fleet,
    asked: (&RequestProfile, &str),
    chain: &Chain,
) -> RoutingDecision {
    try_decide(fleet, asked, chain, None).unwrap()
}

fn try_decide(
    fleet: &mut Fleet,
    (profile, model): (&RequestProfile, &str),
    chain: &Chain,
    waited: Option<Waited>,
) -> Result<RoutingDecision, RouteError> {
    let snapshot = fleet.live.topology();
    let input = RouteInput {
        model,
        tokens: fleet.router.tokens_to_fit(profile),
        prompt: Some(chain),
        waited,
        ..plain_input(profile, &snapshot, &fleet.tried)
    };
    let mut random = Live { topology: &snapshot, rng: &mut fleet.rng };
    fleet.router.route(&input, &mut random, &mut fleet.scratch, &mut NoRecord)
}

pub(super) fn chat(model: &str, system: &str, user: &str) -> String {
    serde_json::json!({"model": model, "messages": [
        {"role": "system", "content": system}, {"role": "user", "content": user}]})
    .to_string()
}

pub(super) fn prompt(family: usize) -> String {
    format!("Family {family}: {}", "be kind and brief. ".repeat(60))
}

pub(super) const PREFIX: &str =
    "routing: { strategy: weighted, scorers: \"prefix-affinity:3,load-balance:1\" }\n";

#[test]
fn prompt_follows_its_prefix() {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(8, "m")));
    for family in 0..20 {
        let (home, _) = route(&mut fleet, &chat("m", &prompt(family), "first"));
        // Only the record keeps the prompt there: its beginning breaks ties, too.
        fleet.state(&home).load.set_in_flight(1);
        for turn in 0..5 {
            let body = chat("m", &prompt(family), &format!("turn {turn}"));
            assert_eq!(route(&mut fleet, &body).0, home, "family {family}");
        }
        fleet.state(&home).load.set_in_flight(0);
    }
}

/// Returns the number of backends that a burst of one prompt reaches; all requests stay in flight.
fn backends_of_a_burst(backends: usize, burst: usize, blocks: u64, is_recorded: bool) -> usize {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(backends, "m")));
    let profile = TestRequest::of("m").profile();
    let chain = Chain::of((1..=blocks).collect(), 16);
    let decide = if is_recorded { route_chain } else { decide };
    let homes = (0..burst).map(|_| {
        let decision = decide(&mut fleet, (&profile, "m"), &chain);
        let state = fleet.state(&format!("b{}", decision.row));
        state.load.set_in_flight(state.load.in_flight() + 1);
        decision.row
    });
    homes.collect::<std::collections::BTreeSet<u32>>().len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// INV-4: a decision is recorded before the next one is made, the first one included.
    #[test]
    fn burst_sees_its_own_first_decision(
        backends in 2_usize..12, burst in 2_usize..40, blocks in 1_u64..300
    ) {
        prop_assert_eq!(backends_of_a_burst(backends, burst, blocks, true), 1);
        let spread = backends_of_a_burst(backends, burst, blocks, false);
        prop_assert_eq!(spread, backends.min(burst), "load alone spreads them");
    }
}

#[test]
fn prompts_shorter_than_a_block_are_spread() {
    let yaml = format!("{PREFIX}{}", alike(4, "m"));
    let mut fleet = Fleet::of(&yaml);
    let say = |text: &str| serde_json::json!({"model": "m", "prompt": text}).to_string();
    let hi = |number: usize| say(&format!("Hi {number}"));
    let mut homes = vec![String::new(); 32];
    for (number, home) in homes.iter_mut().enumerate() {
        *home = route_to(&mut fleet, Operation::Completions, &hi(number)).0;
        let again = route_to(&mut fleet, Operation::Completions, &hi(number)).0;
        assert_eq!(*home, again, "the same goes to the same");
    }
    assert_eq!(homes.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    let body = serde_json::json!({"model": "m", "input": "text"}).to_string();
    let turns: std::collections::BTreeSet<_> =
        (0..4).map(|_| route_to(&mut fleet, Operation::Embeddings, &body).0).collect();
    assert_eq!(turns.len(), 4, "without a prompt, each has its turn");
}

#[test]
fn strangers_spread_and_every_process_agrees_where_to() {
    let yaml = format!("{PREFIX}{}", alike(8, "m"));
    let (mut one, mut other) = (Fleet::of(&yaml), Fleet::of(&yaml));
    let mut homes = std::collections::BTreeMap::new();
    for family in 0..200 {
        let body = chat("m", &prompt(family), "hello");
        let home = route(&mut one, &body).0;
        assert_eq!(route(&mut other, &body).0, home);
        *homes.entry(home).or_insert(0) += 1;
    }
    assert!(homes.len() == 8 && homes.values().all(|count| (10..=45).contains(count)), "{homes:?}");
}

#[test]
fn load_moves_a_prompt_that_its_home_has_no_room_for() {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(4, "m")));
    let (home, _) = route(&mut fleet, &chat("m", &prompt(1), "first"));
    fleet.set_health(&home, Health::Unhealthy);
    let (next, decision) = route(&mut fleet, &chat("m", &prompt(1), "second"));
    assert_ne!(next, home);
    assert_eq!(decision.candidates, 3);
    fleet.set_health(&home, Health::Healthy);
    let balanced = "routing: { strategy: weighted, scorers: \"load-balance:1\" }\n";
    let mut fleet = Fleet::of(&format!("{balanced}{}", alike(4, "m")));
    for (index, load) in [3, 0, 2, 5].into_iter().enumerate() {
        fleet.state(&format!("b{index}")).load.set_in_flight(load);
    }
    assert_eq!(route(&mut fleet, &chat("m", &prompt(1), "x")).0, "b1", "the least loaded");
}

#[test]
fn models_share_no_prefixes() {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(8, "m, n")));
    let same = (0..40).filter(|family| {
        let first = route(&mut fleet, &chat("m", &prompt(*family), "x")).0;
        first == route(&mut fleet, &chat("n", &prompt(*family), "x")).0
    });
    assert!(same.count() < 20, "where a model's prompts went says nothing of another's");
}

#[test]
fn filters_come_before_scores() {
    let mut yaml = PREFIX.to_owned() + "backends:\n";
    yaml += &backend("small", 1, "models: [{ id: m, context_length: 100 }]");
    yaml += &backend("large", 2, "models: [{ id: m, context_length: 100000 }]");
    let mut fleet = Fleet::of(&yaml);
    fleet.state("large").load.set_in_flight(50);
    assert_eq!(route(&mut fleet, &chat("m", &prompt(3), "x")).0, "large");
    assert_eq!(fleet.backend_for(TestRequest { tokens: 5, ..TestRequest::of("m") }), "small");
}

#[test]
fn a_backend_that_left_and_came_back_has_forgotten() {
    let mut fleet = Fleet::of(&format!("{PREFIX}{}", alike(2, "m")));
    let body = chat("m", &prompt(1), "x");
    let home = route(&mut fleet, &body).0;
    let held = |fleet: &Fleet| {
        let snapshot = fleet.live.topology();
        let model = snapshot.model(snapshot.model_id("m").unwrap()).unwrap();
        let row = model.serving.iter().find(|row| *row.state.name == *home);
        row.map(|row| model.prefixes.held(row.slot))
    };
    assert!(held(&fleet).unwrap() > 10);
    assert!(fleet.live.prefix_memory().used() > 0);
    let parse = |yaml: &str| {
        let environment = penstock_config::Environment::default();
        penstock_config::Config::parse(yaml, "t", std::path::Path::new(""), &environment).unwrap()
    };
    let other = if home == "b0" { 1 } else { 0 };
    let without = backend(&format!("b{other}"), 8000 + other, "models: [m]");
    let smaller = fleet
        .live
        .succeeded_by(&parse(&format!("{PREFIX}backends:\n{without}")), Groups::default());
    fleet.live = smaller;
    assert_eq!(held(&fleet), None);
    assert_eq!(fleet.live.prefix_memory().used(), 0, "unused memory is returned");
    fleet.live =
        fleet.live.succeeded_by(&parse(&format!("{PREFIX}{}", alike(2, "m"))), Groups::default());
    assert_eq!(held(&fleet), Some(0));
}

#[test]
fn decisions_over_prompts_allocate_nothing() {
    let mut fleet = Fleet::of(&format!("routing: {{ strategy: weighted }}\n{}", alike(64, "m")));
    let body = chat("m", &"a long \"system\" prompt\n".repeat(700), "hello");
    route(&mut fleet, &body);
    let snapshot = fleet.live.topology();
    let Fleet { router, rng, scratch, tried, .. } = &mut fleet;
    let weighted = router.weighted().unwrap();
    let profile = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
    let mut chain = Chain::default();
    let mut decide = || {
        let terms = weighted.prefix_params(&snapshot, "m");
        prompt_chain(&profile, body.as_bytes(), "m", terms, &mut chain);
        let input = RouteInput { prompt: Some(&chain), ..plain_input(&profile, &snapshot, tried) };
        let mut random = Live { topology: &snapshot, rng };
        let decision = router.route(&input, &mut random, scratch, &mut NoRecord).unwrap();
        weighted.record(&snapshot, &decision, &chain);
        chain.blocks()
    };
    assert!(decide() > 200);
    let counted = allocation_counter::measure(|| {
        for _ in 0..10 {
            assert!(std::hint::black_box(decide()) > 200);
        }
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn engine_samples_decide() {
    use std::time::Duration;

    use crate::fleet::EngineSample;

    let scorers = "routing: { strategy: weighted, scorers: \"queue-depth:1,kv-utilization:1\" }\n";
    let mut fleet = Fleet::of(&format!("{scorers}{}", alike(3, "m")));
    let tell = |fleet: &Fleet, name: &str, (waiting, running, kv), ago: u64| {
        fleet.state(name).telemetry.publish(EngineSample {
            waiting: Some(waiting),
            running: Some(running),
            kv_utilization: Some(kv),
            in_flight: 0,
            sent_at: penstock_api::units::Timestamp(NOW.0 - ago * 1000),
            interval: Duration::from_millis(100),
        });
    };
    tell(&fleet, "b0", (9.0, 9.0, 0.9), 50);
    tell(&fleet, "b1", (0.0, 1.0, 0.2), 50);
    tell(&fleet, "b2", (3.0, 4.0, 0.4), 50);
    let body = chat("m", &prompt(1), "x");
    assert_eq!(route(&mut fleet, &body).0, "b1");
    fleet.state("b1").load.set_in_flight(30);
    assert_eq!(route(&mut fleet, &body).0, "b2", "what was sent since counts");
    fleet.state("b1").load.set_in_flight(0);
    // Failing telemetry excludes a backend while another's is fresh.
    let idle = (0.0, 0.0, 0.0);
    tell(&fleet, "b0", idle, 3000);
    assert_eq!(route(&mut fleet, &body).1.candidates, 3, "stale alone is no reason");
    fleet.state("b0").telemetry.fail();
    assert_eq!(route(&mut fleet, &body).1.candidates, 2);
    for name in ["b1", "b2"] {
        tell(&fleet, name, idle, 3000);
        fleet.state(name).telemetry.fail();
    }
    assert_eq!(route(&mut fleet, &body).1.candidates, 3, "all alike: by what we know ourselves");
}

#[test]
fn blocks_are_as_large_as_the_engines_unless_the_size_is_given() {
    let terms = |scorers: &str| {
        let yaml = format!("routing: {{ strategy: weighted{scorers} }}\n{}", alike(3, "m"));
        let fleet = Fleet::of(&yaml);
        let terms = || {
            let topology = &fleet.live.topology();
            fleet.router.weighted().unwrap().prefix_params(topology, "m").block_tokens
        };
        let before = terms();
        for (name, block_size) in [("b0", 32), ("b1", 64)] {
            let state = fleet.state(name);
            let details =
                EngineDetails { block_size: Some(block_size), ..EngineDetails::default() };
            fleet.live.learn_details(&state, &details);
        }
        (before, terms())
    };
    assert_eq!(terms(""), (16, 64), "the largest, for no engine keeps less than a block");
    assert_eq!(terms(", scorers: [{ name: prefix-affinity, weight: 1, block-size: 8 }]"), (8, 8));
}

#[test]
fn engines_that_keep_no_prompts_are_expected_to_have_none() {
    for (prefix_caching, expected) in [(Some(false), false), (Some(true), true), (None, true)] {
        let yaml = format!("routing: {{ strategy: weighted }}\n{}", alike(1, "m"));
        let mut fleet = Fleet::of(&yaml);
        let body = chat("m", &prompt(1), "hello");
        route(&mut fleet, &body);
        let details = EngineDetails { prefix_caching, ..EngineDetails::default() };
        fleet.live.learn_details(&fleet.state("b0"), &details);
        route(&mut fleet, &body);
        let again = route(&mut fleet, &body).1;
        let matched = again.scores.unwrap().matched_blocks;
        assert_eq!(matched > 0, expected, "{prefix_caching:?}");
    }
}
