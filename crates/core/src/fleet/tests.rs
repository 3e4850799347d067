//! Tests that identities, learned latencies, rotation and known models survive changes of the
//! topology.

mod evidence;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, Engine, Operations};
use penstock_config::{Config, Environment, ModelEntry};

use super::{
    BackendId, CheckOutcome, CheckResult, CooldownCause, CooldownScope, Fleet, Health,
    InflightGuard, LatencySample, LoadedModel, Model, Outcome, OutcomeSource, PermitRequest, Probe,
    Requester, Topology,
};

fn config(yaml: &str) -> Config {
    Config::parse(yaml, "test.yaml", Path::new(""), &Environment::default()).unwrap()
}

fn fleet_of(yaml: &str) -> Fleet {
    Fleet::new(&config(yaml))
}

fn model<'a>(fleet: &'a Topology, name: &str) -> &'a Model {
    fleet.model(fleet.model_id(name).unwrap()).unwrap()
}

fn entry(id: &str) -> ModelEntry {
    ModelEntry { id: id.to_owned(), ..ModelEntry::default() }
}

fn id_of(fleet: &Fleet, backend: &str) -> BackendId {
    fleet.topology().backend(backend).unwrap().state.id
}

#[test]
fn models_keep_the_order_of_the_configuration() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\", models: [m, n]}, {name: y, url: \"http://b\", models: [n, o]}]",
    );
    let fleet = fleet.topology();
    let names: Vec<&str> = fleet.models().iter().map(|model| &*model.name).collect();
    assert_eq!(names, ["m", "n", "o"]);
    let servers: Vec<&str> =
        model(&fleet, "n").serving.iter().map(|row| &*row.state.name).collect();
    assert_eq!(servers, ["x", "y"]);
    assert!(fleet.model_id("p").is_none());
    assert!(fleet.is_complete());
}

#[test]
fn topology_is_complete_once_all_models_are_known() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\"}, {name: y, url: \"http://b\", models: [n]}]",
    );
    assert!(!fleet.topology().is_complete());
    assert!(fleet.learn_models(id_of(&fleet, "x"), &[entry("m")]));
    assert!(fleet.topology().is_complete());
    assert!(!fleet.learn_models(id_of(&fleet, "x"), &[entry("m")]), "nothing new");
    assert!(!fleet.learn_models(BackendId(900), &[entry("m")]), "no backend has that id");
}

#[test]
fn topology_in_use_does_not_change() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\"}]");
    let before = fleet.topology();
    fleet.learn_models(id_of(&fleet, "x"), &[entry("m")]);
    assert!(before.model_id("m").is_none());
    assert!(fleet.topology().model_id("m").is_some());
}

#[test]
fn discovered_alias_is_another_name_of_its_model() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\"}, {name: y, url: \"http://b\"}, \
         {name: z, url: \"http://c\", models: [{id: own, upstream_id: big}, big]}]",
    );
    let alias = |id: &str, of: &str| ModelEntry { upstream_id: Some(of.to_owned()), ..entry(id) };
    let of_x = [entry("big"), alias("latest", "big"), alias("taken", "big"), alias("far", "none")];
    fleet.learn_models(id_of(&fleet, "x"), &of_x);
    fleet.learn_models(id_of(&fleet, "y"), &[entry("taken"), entry("big")]);
    let fleet = fleet.topology();
    assert_eq!(fleet.model_id("latest"), fleet.model_id("big"));
    assert_eq!(model(&fleet, "latest").serving.len(), 3, "every backend of the model");
    assert_eq!(&*model(&fleet, "taken").name, "taken", "a model's own name comes first");
    assert_eq!(model(&fleet, "taken").serving.len(), 1);
    assert_eq!(&*model(&fleet, "far").name, "far", "the backend lists no such model");
    assert_eq!(&*model(&fleet, "own").name, "own", "a declared model is no alias");
}

#[test]
fn declared_facts_win_over_discovered_ones() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\", models: \
         [{id: m, upstream_id: org/m, context_length: 100, tier: 4}, {id: n, capabilities: []}, o]}]",
    );
    let facts = ModelEntry {
        context_length: Some(8192),
        capabilities: Some(Capabilities::ALL),
        operations: Some(Operations::ALL),
        ..entry("org/m")
    };
    let others = ["n", "o", "p"].map(|id| ModelEntry { id: id.to_owned(), ..facts.clone() });
    let all: Vec<ModelEntry> = [facts].into_iter().chain(others).collect();
    assert!(fleet.learn_models(id_of(&fleet, "x"), &all));
    let fleet = fleet.topology();
    let row = |name: &str| &model(&fleet, name).serving[0];
    assert_eq!(row("m").context_length, Some(TokenCount(100)), "declared");
    assert_eq!(
        row("m").known,
        Capabilities::ALL,
        "left open, and discovered under the backend's name"
    );
    assert_eq!(row("m").upstream_id.as_deref(), Some("org/m"));
    assert_eq!(row("m").tier.number(), 4, "no engine reports a tier");
    assert_eq!(row("n").usable, Capabilities::NONE, "known to have none");
    assert_eq!(row("n").context_length, Some(TokenCount(8192)));
    assert_eq!(row("o").known, Capabilities::ALL);
    assert!(fleet.model_id("p").is_none(), "a declared list is the whole list");
    assert!(fleet.model_id("org/m").is_none(), "clients use the declared name");
}

#[test]
fn unknown_capabilities_are_assumed_or_denied() {
    let yaml = "backends: [{name: x, url: \"http://a\", models: [m]}]";
    let fleet = fleet_of(yaml).topology();
    let row = &model(&fleet, "m").serving[0];
    assert_eq!((row.known, row.usable), (Capabilities::NONE, Capabilities::ALL));
    assert_eq!(row.native_operations, Engine::Auto.operations());
    assert_eq!(row.usable_operations, Engine::Auto.operations().with_convertible());
    assert_eq!((row.max_in_flight, row.priority), (u32::MAX, 50));
    let fleet = fleet_of(&format!("routing: {{unknown_capability: deny}}\n{yaml}")).topology();
    assert_eq!(model(&fleet, "m").serving[0].usable, Capabilities::NONE);
}

#[test]
fn upstream_id_equal_to_the_id_is_dropped() {
    let yaml = "backends: [{name: x, url: \"http://a\", models: [{id: m, upstream_id: m}]}]";
    assert!(model(&fleet_of(yaml).topology(), "m").serving[0].upstream_id.is_none());
}

#[test]
fn model_listed_twice_is_served_once() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\"}]");
    fleet.learn_models(id_of(&fleet, "x"), &[entry("m"), entry("n"), entry("m")]);
    assert_eq!(model(&fleet.topology(), "m").serving.len(), 1);
}

#[test]
fn rotation_and_latencies_survive_a_new_topology() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\", models: [m]}, {name: y, url: \"http://b\"}]",
    );
    let before = fleet.topology();
    model(&before, "m").turn.store(41, Ordering::Relaxed);
    model(&before, "m").serving[0].latency.learn_response(Duration::from_millis(70), Timestamp(0));
    fleet.learn_models(id_of(&fleet, "y"), &[entry("m")]);
    let after = fleet.topology();
    assert_eq!(model(&after, "m").turn.load(Ordering::Relaxed), 41);
    let [old, new] = &*model(&after, "m").serving else { panic!("two backends serve it") };
    assert_eq!(old.latency.response(), Some(Duration::from_millis(70)));
    assert_eq!(new.latency.response(), None, "a new backend starts without measurements");
    assert_eq!(model(&after, "m").serving[0].latency.first_token(), None, "kept apart");
}

#[test]
fn models_and_state_of_an_unhealthy_backend_stay() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\"}]");
    let id = id_of(&fleet, "x");
    fleet.learn_models(id, &[entry("m")]);
    let state = Arc::clone(&fleet.topology().backends[0].state);
    state.health.set(Health::Unhealthy);
    let fleet = fleet.topology();
    assert!(fleet.model_id("m").is_some());
    assert!(Arc::ptr_eq(&state, &model(&fleet, "m").serving[0].state), "one state per backend");
}

#[test]
fn identity_is_name_url_and_engine() {
    let same = config("backends: [{name: x, url: \"http://a\"}]");
    let fleet = Fleet::new(&same);
    let known = Arc::clone(&fleet.topology().backends[0].state);
    assert!(Arc::ptr_eq(&fleet.adopt(&same.backends[0]), &known), "the same backend");
    let moved = config("backends: [{name: x, url: \"http://b\"}]");
    let other = fleet.adopt(&moved.backends[0]);
    assert!(!Arc::ptr_eq(&other, &known));
    assert_ne!(other.id, known.id, "two lives, two numbers");
    let renamed = config("backends: [{name: y, url: \"http://a\"}]");
    assert_ne!(fleet.adopt(&renamed.backends[0]).id, known.id);
    let engine = config("backends: [{name: x, url: \"http://a\", engine: vllm}]");
    assert_ne!(fleet.adopt(&engine.backends[0]).id, known.id);
    let number = other.id;
    drop(other);
    assert_eq!(fleet.adopt(&renamed.backends[0]).id, number, "free once its last trace is gone");
}

#[test]
fn latency_averages_start_at_the_first_sample() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\", models: [m]}]").topology();
    let latency = &model(&fleet, "m").serving[0].latency;
    latency.learn_first_token(Duration::from_millis(100), Timestamp(0));
    assert_eq!(latency.first_token(), Some(Duration::from_millis(100)));
    latency.learn_first_token(Duration::from_millis(200), Timestamp(0));
    assert_eq!(latency.first_token(), Some(Duration::from_millis(120)));
    latency.learn_response(Duration::ZERO, Timestamp(0));
    assert!(latency.response().is_some(), "too short to measure is still measured");
}

fn source(at: Timestamp, requester: Requester) -> OutcomeSource {
    let (scope, probe) = (CooldownScope::BACKEND, Probe::None);
    OutcomeSource { at, started: at, requester, scope, probe }
}

#[test]
fn permit_is_released_exactly_once() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\", models: [m]}]").topology();
    let state = &fleet.backends[0].state;
    let first = InflightGuard::try_reserve(state, 2, &PermitRequest::default()).unwrap();
    let second = InflightGuard::try_reserve(state, 2, &PermitRequest::default()).unwrap();
    assert!(InflightGuard::try_reserve(state, 2, &PermitRequest::default()).is_none(), "full");
    assert_eq!((state.load.in_flight(), state.dispatched()), (2, 2));
    drop(first);
    assert_eq!(state.load.in_flight(), 1);
    drop(second);
    assert_eq!((state.load.in_flight(), state.dispatched()), (0, 2));
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let _place = InflightGuard::try_reserve(state, 2, &PermitRequest::default()).unwrap();
        panic!("an attempt went wrong");
    }));
    assert!(panicked.is_err());
    assert_eq!(state.load.in_flight(), 0, "a panic gives it back, too");
}

#[test]
fn probe_slot_is_exclusive_and_freed_on_drop() {
    let fleet = fleet_of(
        "backends: [{name: x, url: \"http://a\", models: [m]}, {name: y, url: \"http://b\", models: [m]}]",
    );
    let fleet = fleet.topology();
    let row = &model(&fleet, "m").serving[0];
    let (scope, client, now) = (CooldownScope::BACKEND, 7, Timestamp(1));
    row.state.cooldowns.start(scope, Timestamp(9_000_000), CooldownCause::of_status(429), now);
    let fault = source(now, Requester { client, ..Requester::default() });
    let health = &fleet.backends[0].config.health;
    for _ in 0..3 {
        row.learn_attempt(Outcome::Fault, fault, LatencySample::None, health);
    }
    let open = now.after(health.breaker.open);
    for probe in [Probe::Breaker, Probe::Cooldown, Probe::Evidence] {
        let probe = PermitRequest { probe, scope, client, now: open, ..PermitRequest::default() };
        let held = row.try_reserve(&probe).unwrap();
        assert!(row.try_reserve(&probe).is_none(), "{probe:?} is taken");
        drop(held);
        assert!(InflightGuard::try_reserve(&row.state, 0, &probe).is_none(), "no place left");
        let again = row.try_reserve(&probe);
        assert!(again.is_some(), "{probe:?} is not lost to a full backend");
    }
}

#[test]
fn refusal_starts_a_cooldown_and_not_the_breaker() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\", models: [m]}]").topology();
    let state = &fleet.backends[0].state;
    let from = source(Timestamp(1_000_000), Requester::default());
    let busy = Outcome::Busy { cooldown: Duration::from_secs(7), status: 429 };
    state.learn_outcome(busy, from, &fleet.backends[0].config.health.breaker);
    let now = Timestamp(1_000_001);
    let cooldown = state.cooldowns.covering(CooldownScope::BACKEND, now).unwrap();
    assert_eq!((cooldown.ends_at(), cooldown.status()), (Timestamp(8_000_000), 429));
    assert!(state.breaker.is_closed());
    state.cooldowns.clear(CooldownScope::BACKEND);
    assert!(!state.cooldowns.is_active(now));
}

#[test]
fn passed_check_half_opens_the_breaker() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\", models: [m]}]").topology();
    let backend = &fleet.backends[0];
    let state = &backend.state;
    let at = Timestamp(1_000_000);
    assert_eq!(state.checked_at(), None);
    let health = &backend.config.health;
    let failed = CheckResult { at, outcome: CheckOutcome::Failed };
    assert_eq!(state.learn_check(failed, health).health, Some(Health::Unhealthy));
    let from = source(at, Requester::default());
    for _ in 0..3 {
        state.learn_outcome(Outcome::Unreachable, from, &backend.config.health.breaker);
    }
    assert_eq!(state.breaker.state(at), super::BreakerState::Open);
    let outcome = CheckOutcome::Passed(Duration::from_millis(3));
    let passed = CheckResult { at, outcome };
    assert_eq!(state.learn_check(passed, health).health, None);
    assert_eq!(state.learn_check(passed, health).health, Some(Health::Healthy));
    assert_eq!(state.breaker.state(at), super::BreakerState::HalfOpen);
    assert_eq!(state.check_latency(), Duration::from_millis(3));
    assert_eq!(state.checked_at(), Some(at));
}

#[test]
fn draining_hides_the_health_verdict() {
    let fleet = fleet_of("backends: [{name: x, url: \"http://a\", models: [m]}]").topology();
    let state = &fleet.backends[0].state;
    state.health.set(Health::Healthy);
    state.set_draining(true);
    assert_eq!(state.status(), Health::Draining);
    assert_eq!(state.health.status(), Health::Healthy, "it comes back as it was");
}

#[test]
fn configured_context_makes_ollamas_own_api_the_only_one() {
    use penstock_api::Operation::{
        Chat, Completions, Messages, OllamaChat, OllamaGenerate, Responses,
    };
    let fleet = fleet_of(
        "models: { m: { num_ctx: 8192 } }\nbackends: [{name: x, url: \"http://a\", engine: ollama, \
         models: [{id: m, context_length: 131072}, n]}, {name: y, url: \"http://b\", engine: vllm, \
         models: [{id: m, context_length: 131072}]}]",
    );
    let fleet = fleet.topology();
    let [ollama, vllm] = &model(&fleet, "m").serving[..] else { panic!("two backends") };
    for (operation, target) in [
        (Chat, Some(OllamaChat)),
        (Messages, Some(OllamaChat)),
        (Responses, Some(OllamaChat)),
        (Completions, Some(OllamaGenerate)),
        (OllamaChat, None),
    ] {
        assert_eq!(ollama.conversion(operation), target, "{}", operation.name());
    }
    assert_eq!(
        (ollama.num_ctx, ollama.context_length),
        (Some(TokenCount(8192)), Some(TokenCount(8192)))
    );
    assert_eq!((vllm.num_ctx, vllm.conversion(Chat)), (None, None));
    assert_eq!(vllm.context_length, Some(TokenCount(131_072)));
    assert_eq!(model(&fleet, "n").serving[0].conversion(Chat), None);
}

#[test]
fn settings_of_a_model_apply_in_any_spelling() {
    for (written, listed) in [("M", "m:latest"), ("m", "M"), ("m:latest", "m"), ("m", "m")] {
        let fleet = fleet_of(&format!(
            "models: {{ \"{written}\": {{ num_ctx: 8192, timeouts: {{ response: 7s }} }} }}\n\
             backends: [{{name: x, url: \"http://a\", engine: ollama, models: [\"{listed}\", n]}}]"
        ));
        let fleet = fleet.topology();
        let row = &model(&fleet, "m").serving[0];
        assert_eq!(row.num_ctx, Some(TokenCount(8192)), "{written} for {listed}");
        assert_eq!(row.timeouts.response, Duration::from_secs(7), "{written} for {listed}");
        assert_ne!(model(&fleet, "n").serving[0].timeouts.response, Duration::from_secs(7));
    }
}

#[test]
fn model_loaded_with_too_short_a_context_is_loadable() {
    use penstock_scoring::Residency;
    let fleet = fleet_of(
        "models: { m: { num_ctx: 8192 } }\n\
         backends: [{name: x, url: \"http://a\", engine: ollama, models: [m]}]",
    );
    let fleet = fleet.topology();
    let row = &model(&fleet, "m").serving[0];
    let now = Timestamp(1_000_000);
    let loaded = |length: u32| LoadedModel {
        residency: Residency::Resident,
        context_length: Some(TokenCount(length)),
        ..LoadedModel::default()
    };
    row.model_state.learn_probe(Some(&loaded(4096)), now);
    assert_eq!(row.residency(now), Residency::Loadable, "the engine would load it again");
    row.model_state.learn_probe(Some(&loaded(8192)), now);
    assert_eq!(row.residency(now), Residency::Resident);
    row.model_state.learn_probe(Some(&loaded(131_072)), now);
    assert_eq!(row.residency(now), Residency::Resident, "more than enough");
}
