//! The cost of a decision: each strategy over fleets of different sizes, alone and with the scan in
//! front of it, and that it allocates nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a bench's own data, and a report of percentiles"
)]

#[path = "support/percentiles.rs"]
mod percentiles;

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, Operation};
use penstock_config::{BackendConfig, Config, ModelEntry, ModelGlob, PolicyConfig, Strategy};
use penstock_core::fleet::{BackendSet, Health, Topology};
use penstock_core::routing::{
    Generation, Live, ModelAsked, NoRecord, PolicyClient, PolicyScope, PolicyWishes, RouteInput,
    Scratch, SplitPoint,
};
use penstock_scan::{RequestProfile, ScanOptions, scan};
use rand::SeedableRng;
use rand::rngs::SmallRng;

const BODY: &[u8] = br#"{"model":"model-7","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"What is the capital of France?"},{"role":"assistant","content":"Paris."},{"role":"user","content":"And of Italy?"},{"role":"user","content":"Reply in one word."}],"temperature":0.7,"max_tokens":64,"stream":true}"#;

/// A generation with `backends` backends, each of which serves `models` models.
fn generation(strategy: Strategy, backends: usize, models: usize) -> Generation {
    generation_of(strategy, backends, models, |_| Capabilities::ALL)
}

/// The same, with the capabilities of each backend.
fn generation_of(
    strategy: Strategy,
    backends: usize,
    models: usize,
    capabilities: impl Fn(usize) -> Capabilities,
) -> Generation {
    let mut config = Config::default();
    config.routing.strategy = strategy;
    for index in 0..backends {
        let entry = |model| ModelEntry {
            id: format!("model-{model}"),
            context_length: Some(32_768),
            capabilities: Some(capabilities(index)),
            ..ModelEntry::default()
        };
        config.backends.push(BackendConfig {
            name: format!("backend-{index}"),
            url: format!("http://127.0.0.1:{}", 10_000 + index).parse().unwrap(),
            priority: u32::try_from(index % 10).unwrap(),
            models: Some((0..models).map(entry).collect()),
            ..BackendConfig::default()
        });
    }
    healthy(config)
}

/// A generation whose backends are healthy and have some requests in flight.
fn healthy(config: Config) -> Generation {
    let generation = Generation::new(config);
    let fleet = generation.fleet.topology();
    for (index, backend) in fleet.backends.iter().enumerate() {
        backend.state.health.set(Health::Healthy);
        backend.state.load.set_in_flight(u32::try_from(index % 17).unwrap());
    }
    generation
}

struct Decider<'a> {
    generation: &'a Generation,
    fleet: std::sync::Arc<Topology>,
    /// Left to the end of the process: a copy for each decision would be measured along with it.
    profile: &'static RequestProfile,
    tried: BackendSet,
    rng: SmallRng,
    scratch: Scratch,
}

impl<'a> Decider<'a> {
    fn new(generation: &'a Generation) -> Self {
        Self {
            fleet: generation.fleet.topology(),
            profile: Box::leak(Box::new(
                scan(Operation::Chat, None, BODY, ScanOptions::default()).unwrap(),
            )),
            tried: BackendSet::default(),
            generation,
            rng: SmallRng::seed_from_u64(1),
            scratch: Scratch::default(),
        }
    }

    fn decide(&mut self) -> u16 {
        self.decide_for(self.profile, "model-7")
    }

    fn decide_for(&mut self, profile: &RequestProfile, model: &str) -> u16 {
        self.decide_under(PolicyScope::default(), profile, model)
    }

    fn decide_under(&mut self, policy: PolicyScope, profile: &RequestProfile, model: &str) -> u16 {
        let input = RouteInput {
            split: penstock_core::routing::SplitPoint::default(),
            request: profile,
            model,
            tokens: TokenCount(profile.prompt_tokens.0),
            fleet: &self.fleet,
            tried: &self.tried,
            may_probe: true,
            waited: None,
            now: Timestamp(1_000_000),
            prompt: None,
            session: None,
            requester: penstock_core::fleet::Requester::default(),
            objectives: penstock_scoring::Objectives::default(),
            policy,
        };
        let mut random = Live { topology: &self.fleet, rng: &mut self.rng };
        let routed =
            self.generation.router.route(&input, &mut random, &mut self.scratch, &mut NoRecord);
        routed.unwrap().backend.0
    }
}

fn route(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route");
    for strategy in
        [Strategy::Smart, Strategy::RoundRobin, Strategy::PriorityOnly, Strategy::Random]
    {
        let sizes = [(5, 8), (25, 8), (64, 8), (100, 8), (1000, 8), (25, 1000), (100, 1000)];
        for (backends, models) in sizes {
            let generation = generation(strategy, backends, models);
            let mut decider = Decider::new(&generation);
            decider.decide();
            let name = format!("{}/{backends} backends/{models} models", strategy.name());
            group.bench_function(name, |bencher| bencher.iter(|| black_box(decider.decide())));
            if backends == 25 && models == 8 {
                let name = format!("route/{}/25 backends", strategy.name());
                percentiles::report(&name, timed(|| decider.decide()));
            }
            let allocated = allocation_counter::measure(|| {
                for _ in 0..1000 {
                    black_box(decider.decide());
                }
            });
            assert_eq!(allocated.count_total, 0, "a decision allocates");
        }
    }
    group.finish();
}

/// The policies of 25 backends, of which every other one is in the zone that requests may reach.
fn with_policies(generation: Generation) -> Generation {
    let mut config = generation.config;
    for (index, backend) in config.backends.iter_mut().enumerate() {
        backend.zone = Some(if index % 2 == 0 { "home" } else { "away" }.to_owned());
    }
    for (name, model) in [("a", "none"), ("b", "model-1"), ("c", "model-7")] {
        config.policies.push(PolicyConfig {
            name: name.to_owned(),
            models: vec![ModelGlob::new(model)],
            zones: vec!["home".to_owned()],
            ..PolicyConfig::default()
        });
    }
    healthy(config)
}

/// The same decisions under the third of three policies, under none of them, and the look-up of a
/// request's policy.
fn route_under_policies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("policies");
    for strategy in [Strategy::Smart, Strategy::RoundRobin, Strategy::PriorityOnly] {
        let plain = generation(strategy, 25, 8);
        let generation = with_policies(self::generation(strategy, 25, 8));
        let name = strategy.name();
        let mut decider = Decider::new(&plain);
        let profile = decider.profile;
        group.bench_function(format!("{name}/none"), |bencher| {
            bencher.iter(|| black_box(decider.decide()));
        });
        percentiles::report(&format!("policies/{name}/none"), timed(|| decider.decide()));
        let mut decider = Decider::new(&generation);
        let fleet = generation.fleet.topology();
        let asked = ModelAsked { name: "model-7", fleet: &fleet, split: SplitPoint::default() };
        let (client, wishes) = (PolicyClient::default(), PolicyWishes::default());
        let admit = || generation.router.policy_of(&asked, &client, &wishes).unwrap();
        let scope = admit();
        assert!(decider.decide_under(scope, profile, "model-7").is_multiple_of(2));
        group.bench_function(format!("{name}/three"), |bencher| {
            bencher.iter(|| black_box(decider.decide_under(scope, profile, "model-7")));
        });
        group.bench_function(format!("{name}/three, with the look-up"), |bencher| {
            bencher.iter(|| black_box(decider.decide_under(admit(), profile, "model-7")));
        });
        let name = format!("policies/{name}/three");
        percentiles::report(&name, timed(|| decider.decide_under(scope, profile, "model-7")));
        let name = format!("{name}, with the look-up");
        percentiles::report(&name, timed(|| decider.decide_under(admit(), profile, "model-7")));
        let allocated = allocation_counter::measure(|| {
            for _ in 0..1000 {
                black_box(decider.decide_under(admit(), profile, "model-7"));
            }
        });
        assert_eq!(allocated.count_total, 0, "a decision under policies allocates");
    }
    group.finish();
}

/// Requests that need vision, which every other backend has.
fn route_by_capability(criterion: &mut Criterion) {
    let generation = generation_of(Strategy::Smart, 25, 8, |backend| {
        if backend % 2 == 0 { Capabilities::ALL } else { Capabilities::TOOLS }
    });
    let mut decider = Decider::new(&generation);
    let profile = RequestProfile { needs: Capabilities::VISION, ..*decider.profile };
    assert!((0..100).all(|_| decider.decide_for(&profile, "model-7").is_multiple_of(2)));
    criterion.bench_function("route/smart/25 backends/by capability", |bencher| {
        bencher.iter(|| black_box(decider.decide_for(&profile, "model-7")));
    });
}

fn scan_and_route(criterion: &mut Criterion) {
    let generation = generation(Strategy::Smart, 25, 8);
    let mut decider = Decider::new(&generation);
    criterion.bench_function("scan + route/25 backends", |bencher| {
        bencher.iter(|| {
            let profile =
                scan(Operation::Chat, None, black_box(BODY), ScanOptions::default()).unwrap();
            let model = profile.model_name(BODY);
            black_box(decider.decide_for(&profile, &model))
        });
    });
}

fn route_on_two_threads(criterion: &mut Criterion) {
    let generation = generation(Strategy::Smart, 25, 8);
    criterion.bench_function("route/smart/25 backends/2 threads", |bencher| {
        bencher.iter_custom(|rounds| {
            let started = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut decider = Decider::new(&generation);
                        for _ in 0..rounds {
                            black_box(decider.decide());
                        }
                    });
                }
            });
            started.elapsed()
        });
    });
}

/// 100 messages against 50 backends, with the percentiles of single requests, and of decisions
/// alone, which include reading the clock.
fn percentiles_of_requests(criterion: &mut Criterion) {
    let mut body = String::from(r#"{"model":"model-7","messages":["#);
    for index in 0..100 {
        let comma = if index == 0 { "" } else { "," };
        let text = "Say something about rivers, stones and light. ".repeat(4);
        write!(body, r#"{comma}{{"role":"user","content":"{text}"}}"#).unwrap();
    }
    body.push_str("]}");
    let generation = generation(Strategy::Smart, 50, 8);
    let mut decider = Decider::new(&generation);
    let mut once = || {
        let profile = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        let model = profile.model_name(body.as_bytes());
        decider.decide_for(&profile, &model)
    };
    percentiles::report("scan + route/100 messages/50 backends", timed(&mut once));
    criterion.bench_function("scan + route/100 messages/50 backends", |bencher| {
        bencher.iter(&mut once);
    });
}

/// The durations of single calls.
fn timed<T>(mut call: impl FnMut() -> T) -> Vec<Duration> {
    let time = |_| {
        let started = Instant::now();
        black_box(call());
        started.elapsed()
    };
    (0..20_000).map(time).collect()
}

criterion_group!(
    benches,
    route,
    route_by_capability,
    route_under_policies,
    scan_and_route,
    route_on_two_threads,
    percentiles_of_requests
);
criterion_main!(benches);
