//! The strategy `deployment` over whole fleets: residency, limits per model, spilling, names.

use std::sync::Barrier;
use std::thread;

use penstock_api::units::Timestamp;
use penstock_scoring::Residency;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{Fleet, NOW, TestRequest, backend, plain_input};
use crate::fleet::{BackendSet, InflightGuard, LoadedModel, ModelState, PermitRequest, Serving};
use crate::routing::{Live, NoRecord, RouteError, RoutingDecision, Scratch};

/// `count` Ollamas that list `m` and `n`, none of which is in memory.
fn ollamas(count: usize, routing: &str, rest: &str) -> Fleet {
    let rest = format!("engine: ollama, models: [\"m:latest\", n], {rest}");
    let backends: String =
        (0..count).map(|index| backend(&format!("b{index}"), 8000 + index, &rest)).collect();
    let fleet = Fleet::of(&format!(
        "routing: {{ strategy: deployment, {routing} }}\nbackends:\n{backends}"
    ));
    for backend in &fleet.live.topology().backends {
        fleet.live.learn_loaded(backend.state.id, &[], Timestamp(1));
    }
    fleet
}

fn load(fleet: &Fleet, backend: &str, model: &str) {
    let loaded = LoadedModel {
        name: model.to_owned(),
        residency: Residency::Resident,
        ..LoadedModel::default()
    };
    fleet.live.learn_loaded(fleet.state(backend).id, &[loaded], Timestamp(1));
}

fn with_row<T>(fleet: &Fleet, model: &str, backend: &str, read: impl Fn(&Serving) -> T) -> T {
    let topology = fleet.live.topology();
    let model = topology.model(topology.model_id(model).unwrap()).unwrap();
    read(model.serving.iter().find(|row| *row.state.name == *backend).unwrap())
}

/// Decides and takes the permit of the decision.
fn take(fleet: &mut Fleet, model: &str) -> Result<(String, InflightGuard), RouteError> {
    let decision = fleet.route(TestRequest::of(model))?;
    let topology = fleet.live.topology();
    let row = decision.serving(&topology).unwrap();
    let permit = row.try_reserve(&wanted(&decision)).unwrap();
    Ok((row.state.name.to_string(), permit))
}

fn wanted(decision: &RoutingDecision) -> PermitRequest {
    PermitRequest { limits: decision.permit_limits(), ..PermitRequest::default() }
}

#[test]
fn requests_stay_where_their_model_is_in_memory() {
    let mut fleet = ollamas(2, "", "num_parallel: 4");
    load(&fleet, "b1", "m:latest");
    load(&fleet, "b0", "n");
    for _ in 0..4 {
        assert_eq!(take(&mut fleet, "m").unwrap().0, "b1");
        assert_eq!(take(&mut fleet, "n").unwrap().0, "b0");
    }
    let held: Vec<_> = (0..4).map(|_| take(&mut fleet, "m").unwrap()).collect();
    assert!(held.iter().all(|(name, _)| name == "b1"));
    assert_eq!(take(&mut fleet, "m").unwrap().0, "b0", "its slots are taken");
}

#[test]
fn unused_backend_loads_the_model_before_one_whose_model_is_in_use() {
    let mut fleet = ollamas(3, "", "num_parallel: 4");
    load(&fleet, "b0", "n");
    load(&fleet, "b1", "n");
    let _in_use = take(&mut fleet, "n").unwrap();
    let _in_use_too = take(&mut fleet, "n").unwrap();
    assert_eq!(take(&mut fleet, "m").unwrap().0, "b2", "nothing is in memory there");
    let (first, _loading) = take(&mut fleet, "m").unwrap();
    assert_eq!(take(&mut fleet, "m").unwrap().0, first, "it is being loaded there");
}

/// Sends a request for a model to a backend, without a decision.
fn send(fleet: &Fleet, model: &str, backend: &str, at: u64) -> InflightGuard {
    let request = PermitRequest { now: Timestamp(at), ..PermitRequest::default() };
    with_row(fleet, model, backend, |row| row.try_reserve(&request).unwrap())
}

fn residency(fleet: &Fleet, model: &str, backend: &str) -> Residency {
    with_row(fleet, model, backend, |row| row.residency(NOW))
}

/// Reports these models in the memory of `b0`, by a probe sent at `at`.
fn show(fleet: &Fleet, models: &[&str], at: u64) {
    let loaded: Vec<LoadedModel> = models
        .iter()
        .map(|model| LoadedModel {
            name: (*model).to_owned(),
            residency: Residency::Resident,
            ..LoadedModel::default()
        })
        .collect();
    fleet.live.learn_loaded(fleet.state("b0").id, &loaded, Timestamp(at));
}

#[test]
fn models_loaded_on_one_backend_at_once_spread_over_both() {
    let mut fleet = ollamas(2, "", "num_parallel: 4");
    let held = [send(&fleet, "m", "b0", 10), send(&fleet, "n", "b0", 11)];
    for _ in 0..3 {
        assert_eq!(take(&mut fleet, "n").unwrap().0, "b0", "its load came last");
        assert_eq!(take(&mut fleet, "m").unwrap().0, "b1");
    }
    drop(held);
    assert_eq!(residency(&fleet, "m", "b0"), Residency::Loadable, "its response is no proof");
    show(&fleet, &["m"], 12);
    let states = ["m", "n"].map(|model| residency(&fleet, model, "b0"));
    assert_eq!(states, [Residency::Resident, Residency::Loadable], "a probe is");
}

#[test]
fn load_makes_others_loadable_until_a_probe_shows_them() {
    let fleet = ollamas(1, "", "num_parallel: 4");
    show(&fleet, &["m"], 10);
    assert_eq!(residency(&fleet, "m", "b0"), Residency::Resident);
    let loading = send(&fleet, "n", "b0", 20);
    assert_eq!(residency(&fleet, "m", "b0"), Residency::Loadable, "n evicts it");
    assert_eq!(residency(&fleet, "n", "b0"), Residency::Resident, "it is being loaded");
    drop(loading);
    show(&fleet, &["m", "n"], 30);
    assert_eq!(residency(&fleet, "m", "b0"), Residency::Resident, "both fit");
    // From now on two are known to fit.
    show(&fleet, &["m"], 40);
    drop(send(&fleet, "n", "b0", 50));
    assert_eq!(residency(&fleet, "m", "b0"), Residency::Resident);
    fleet.live.forget_loaded(fleet.state("b0").id);
    show(&fleet, &["m"], 60);
    drop(send(&fleet, "n", "b0", 70));
    assert_eq!(residency(&fleet, "m", "b0"), Residency::Loadable, "a new process, new settings");
}

#[test]
fn model_that_returns_after_its_eviction_has_evicted_the_other() {
    let fleet = ollamas(1, "", "num_parallel: 4");
    let respond =
        |model, at| with_row(&fleet, model, "b0", |row| row.learn_response(Timestamp(at)));
    let states = || ["m", "n"].map(|model| residency(&fleet, model, "b0"));
    let _in_flight = [send(&fleet, "m", "b0", 10), send(&fleet, "n", "b0", 11)];
    show(&fleet, &["m"], 12);
    assert_eq!(states(), [Residency::Loadable, Residency::Resident], "n is still to be loaded");
    assert!(respond("n", 20));
    show(&fleet, &["m"], 19);
    assert_eq!(states(), [Residency::Loadable, Residency::Resident], "it was sent before");
    show(&fleet, &["n"], 30);
    assert_eq!(states(), [Residency::Loadable, Residency::Resident]);
    assert!(respond("m", 31), "loaded again for a request from before the probe");
    assert_eq!(states(), [Residency::Resident, Residency::Loadable], "one at a time");
    assert!(!respond("n", 32));
    assert_eq!(states(), [Residency::Resident, Residency::Loadable], "its response is no proof");
    show(&fleet, &["m", "n"], 40);
    assert_eq!(states(), [Residency::Resident; 2], "both fit");
}

#[test]
fn saturated_model_is_refused_unless_it_may_spill() {
    let mut fleet = ollamas(2, "", "");
    let held: Vec<_> = (0..2).map(|_| take(&mut fleet, "m").unwrap()).collect();
    assert_ne!(held[0].0, held[1].0, "Ollama runs one request of a model at a time");
    assert!(matches!(take(&mut fleet, "m"), Err(RouteError::Saturated { .. })));
    assert!(take(&mut fleet, "n").is_ok(), "limits are those of a model");
    drop(held);
    assert!(take(&mut fleet, "m").is_ok());

    let mut fleet = ollamas(2, "spill: true", "max_in_flight: 3");
    let mut held: Vec<_> = (0..6).map(|_| take(&mut fleet, "m").unwrap()).collect();
    let on = |held: &[(String, InflightGuard)], name| held.iter().filter(|it| it.0 == name).count();
    assert_eq!((on(&held, "b0"), on(&held, "b1")), (3, 3), "the least used first");
    assert!(fleet.route(TestRequest::of("m")).is_err(), "never over the limit of a backend");
    held.truncate(2);
    assert!(!fleet.route(TestRequest::of("m")).is_ok_and(|decision| !decision.spills));
}

#[test]
fn configured_limits_of_models_hold_for_every_strategy() {
    for strategy in ["smart", "round_robin", "priority_only", "random", "deployment", "weighted"] {
        let rest = "max_in_flight_per_model: 2, models: [{ id: m, max_in_flight: 1 }, n]";
        let mut fleet = Fleet::of(&format!(
            "routing: {{ strategy: {strategy} }}\nbackends:\n{}",
            backend("b0", 8000, rest)
        ));
        let _m = take(&mut fleet, "m").unwrap();
        assert!(matches!(take(&mut fleet, "m"), Err(RouteError::Saturated { .. })), "{strategy}");
        let _n: Vec<_> = (0..2).map(|_| take(&mut fleet, "n").unwrap()).collect();
        assert!(matches!(take(&mut fleet, "n"), Err(RouteError::Saturated { .. })), "{strategy}");
    }
}

#[test]
fn names_of_one_model_share_its_backends_and_its_count() {
    let yaml = "routing: { strategy: deployment }\nbackends:\n".to_owned()
        + &backend("ollama", 8000, "engine: ollama, models: [\"Qwen:latest\"]")
        + &backend("vllm", 8001, "engine: vllm, models: [qwen, { id: alias, upstream_id: qwen }]")
        + &backend("both", 8002, "models: [x, \"x:latest\"]");
    let mut fleet = Fleet::of(&yaml);
    let topology = fleet.live.topology();
    let model = topology.model(topology.model_id("QWEN").unwrap()).unwrap();
    assert_eq!((&*model.name, model.serving.len()), ("Qwen:latest", 2));
    assert_eq!(model.serving[1].upstream_id.as_deref(), Some("qwen"), "as vLLM knows it");
    for name in ["qwen", "qwen:latest", "Qwen:Latest", "Qwen:latest"] {
        assert!(fleet.route(TestRequest::of(name)).is_ok(), "{name}");
    }
    assert!(fleet.route(TestRequest::of("qwen:7b")).is_err());
    let _held = take(&mut fleet, "alias").unwrap();
    assert_eq!(with_row(&fleet, "qwen", "vllm", |row| row.model_state.load.in_flight()), 1);
    let ids = ["x", "x:latest"].map(|name| topology.model_id(name).unwrap());
    assert_ne!(ids[0], ids[1], "one backend distinguishes them");
    assert_eq!(topology.model_id("X"), Some(ids[0]));
    let yaml = "backends:\n".to_owned() + &backend("both", 8002, "models: [yy, Yy, \"Z:latest\"]");
    let fleet = Fleet::of(&yaml);
    let topology = fleet.live.topology();
    assert_ne!(topology.model_id("yy"), topology.model_id("Yy"));
    assert_eq!(topology.model_id("Yy:latest"), topology.model_id("Yy"));
    assert_eq!(topology.model_id("YY"), None, "two models fit");
    assert_eq!(topology.model_id("z"), topology.model_id("Z:latest"), "one model fits");
}

#[test]
fn model_state_survives_a_new_topology() {
    let mut fleet = ollamas(1, "", "");
    load(&fleet, "b0", "m:latest");
    let (_, held) = take(&mut fleet, "m").unwrap();
    let id = fleet.state("b0").id;
    let entry = |id: &str| penstock_config::ModelEntry { id: id.to_owned(), ..Default::default() };
    fleet.live.learn_models(id, &[entry("m:latest"), entry("n"), entry("o")]);
    let state = |row: &Serving| (row.model_state.load.in_flight(), row.model_state.residency(NOW));
    assert_eq!(with_row(&fleet, "m", "b0", state), (1, Residency::Resident));
    drop(held);
    assert_eq!(with_row(&fleet, "m", "b0", state), (0, Residency::Resident));
    fleet.live.forget_loaded(id);
    assert_eq!(with_row(&fleet, "m", "b0", state), (0, Residency::Unknown));
}

#[test]
fn slots_that_an_engine_reports_bound_its_models() {
    let yaml = "routing: { strategy: deployment }\nbackends:\n".to_owned()
        + &backend("cpp", 8000, "engine: llamacpp, models: [m]");
    let mut fleet = Fleet::of(&yaml);
    let state = fleet.state("cpp");
    assert_eq!(with_row(&fleet, "m", "cpp", |row| row.max_in_flight_of_model), u32::MAX);
    state.set_slots(2);
    let entry = penstock_config::ModelEntry { id: "m".to_owned(), ..Default::default() };
    assert!(fleet.live.learn_models(state.id, std::slice::from_ref(&entry)), "its slots are news");
    assert!(!fleet.live.learn_models(state.id, &[entry]));
    let _held: Vec<_> = (0..2).map(|_| take(&mut fleet, "m").unwrap()).collect();
    assert!(take(&mut fleet, "m").is_err());
}

#[test]
fn explanation_shows_what_was_read() {
    let mut fleet = ollamas(2, "", "num_parallel: 3");
    load(&fleet, "b1", "m");
    let _held = take(&mut fleet, "m").unwrap();
    let topology = fleet.live.topology();
    let profile = TestRequest::of("m").profile();
    let input = plain_input(&profile, &topology, &fleet.tried);
    let mut random = Live { topology: &topology, rng: &mut fleet.rng };
    let explained = fleet.router.explain(&input, &mut random);
    let shown = |index: usize| {
        let one = &explained.candidates[index];
        (one.residency.as_deref(), one.evicts.as_deref(), one.model_in_flight, one.slots)
    };
    assert_eq!(shown(0), (Some("loadable"), Some("nothing"), Some(0), Some(3)));
    assert_eq!(shown(1), (Some("resident"), Some("nothing"), Some(1), Some(3)));
    assert_eq!(explained.result.unwrap().row, 1);
}

/// Takes a permit as the proxy does: decides again if another thread took the last one first.
fn take_in_parallel(fleet: &Fleet, seed: u64) -> Option<InflightGuard> {
    let topology = fleet.live.topology();
    let profile = TestRequest::of("m").profile();
    let (mut scratch, tried) = (Scratch::default(), BackendSet::default());
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..64 {
        let mut random = Live { topology: &topology, rng: &mut rng };
        let input = plain_input(&profile, &topology, &tried);
        let decided = fleet.router.route(&input, &mut random, &mut scratch, &mut NoRecord);
        let decision = decided.ok()?;
        let row = decision.serving(&topology).unwrap();
        if let Some(permit) = row.try_reserve(&wanted(&decision)) {
            return Some(permit);
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// O7: no backend exceeds its limit while another has room, whether or not requests may spill.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
    fn parallel_picks_use_every_slot_before_any_limit_is_exceeded(
        (backends, limit, picks) in (1..5_usize, 1..4_u32, 1..16_u32),
        resident in prop::collection::vec(any::<bool>(), 5),
        spills in any::<bool>(),
    ) {
        let routing = format!("spill: {spills}");
        let fleet = ollamas(backends, &routing, &format!("num_parallel: {limit}"));
        for index in (0..backends).filter(|index| resident[*index]) {
            load(&fleet, &format!("b{index}"), "m");
        }
        let start = Barrier::new(picks as usize);
        let held: Vec<_> = thread::scope(|scope| {
            let (fleet, start) = (&fleet, &start);
            let all: Vec<_> = (0..picks)
                .map(|seed| scope.spawn(move || {
                    start.wait();
                    take_in_parallel(fleet, seed.into())
                }))
                .collect();
            all.into_iter().filter_map(|one| one.join().unwrap()).collect()
        });
        let room = u32::try_from(backends).unwrap() * limit;
        let expected = if spills { picks } else { picks.min(room) };
        prop_assert_eq!(held.len(), expected as usize);
        let topology = fleet.live.topology();
        let rows = &topology.models()[0].serving;
        let counts = |read: fn(&ModelState) -> u32| -> Vec<u32> {
            rows.iter().map(|row| read(&row.model_state)).collect()
        };
        let taken = counts(|state| state.load.in_flight());
        prop_assert_eq!(taken.iter().sum::<u32>(), expected);
        if picks <= room || !spills {
            prop_assert!(taken.iter().all(|count| *count <= limit), "{:?} over {}", taken, limit);
        } else {
            prop_assert!(taken.iter().all(|count| *count >= limit), "{:?} under {}", taken, limit);
        }
        drop(held);
        prop_assert!(counts(|state| state.load.in_flight()).iter().all(|count| *count == 0));
        prop_assert!(topology.backends.iter().all(|one| one.state.load.in_flight() == 0));
    }
}
