//! Complete runs of simulated fleets.

mod budgets;
mod oracle;
mod sharing;
mod waiting;

use std::path::Path;

use penstock_config::Environment;
use penstock_scoring::Objectives;

use super::lookahead::Future;
use super::*;
use crate::engine::{OnDemand, Slots, engine_rows};
use crate::summary::{Objective, Summary};
use crate::workload::{WorkloadSpec, generate, read_trace};

fn config(routing: &str, backends: usize) -> Config {
    let lines: String = (0..backends)
        .map(|n| {
            format!(
                "  - {{ name: b{n}, url: 'http://10.0.0.1:{}', engine: vllm, models: [m] }}\n",
                8000 + n
            )
        })
        .collect();
    let yaml = format!("routing: {{ {routing} }}\nbackends:\n{lines}");
    Config::parse(&yaml, "test.yaml", Path::new(""), &Environment::default()).unwrap()
}

fn world(routing: &str, backends: usize) -> WorldSpec {
    let rows = engine_rows().unwrap();
    let row = rows.iter().find(|row| row.name() == "h100/qwen3-32b/tp2").unwrap();
    WorldSpec {
        config: config(routing, backends),
        engines: vec![EngineSpec::from(row); backends],
        balancers: 1,
        seed: 1,
        delays: Delays::default(),
        faults: Vec::new(),
        objectives: Objectives::default(),
        reports_cached: true,
        examined: None,
        oracle: None,
        judges_sheds: false,
    }
}

fn chat(requests: u32, rate: f64) -> Workload {
    let yaml = format!(
        "requests: {requests}\nstreams:\n  - model: m\n    arrivals: {{ rate: {rate} }}\n    input: {{ distribution: \
         lognormal, mean: 800, deviation: 800 }}\n    output: {{ distribution: lognormal, mean: 200, deviation: 150 }}\n"
    );
    generate(&WorkloadSpec::parse(&yaml).unwrap(), 1)
}

fn count(result: &RunResult, status: Status) -> usize {
    result.requests.iter().filter(|request| request.status == status).count()
}

#[test]
fn every_request_ends_once_and_time_runs_forwards() {
    let workload = chat(2000, 20.0);
    for routing in ["strategy: round_robin", "strategy: smart", "strategy: weighted"] {
        let result = simulate(&world(routing, 4), &workload).unwrap();
        assert_eq!(count(&result, Status::Done), 2000, "{routing}");
        for (request, sent) in result.requests.iter().zip(&workload.requests) {
            assert!(request.arrived < request.first_token && request.first_token <= request.ended);
            assert_eq!(request.output_tokens, sent.output_tokens);
        }
        let busy: u64 = result.backends.iter().map(|backend| backend.counters.output_tokens).sum();
        assert_eq!(
            busy,
            workload.requests.iter().map(|one| u64::from(one.output_tokens)).sum::<u64>()
        );
    }
}

#[test]
fn two_runs_are_equal_and_a_seed_changes_only_chance() {
    let workload = chat(500, 20.0);
    let spec = world("strategy: random", 4);
    assert_eq!(simulate(&spec, &workload), simulate(&spec, &workload));
    let other = WorldSpec { seed: 2, ..spec.clone() };
    assert_ne!(simulate(&spec, &workload), simulate(&other, &workload));
}

#[test]
fn down_backend_loses_its_requests_and_gets_none() {
    let workload = chat(2000, 20.0);
    let mut spec = world("strategy: smart", 4);
    spec.faults = vec!["at 30s backend b1 down 40s".parse().unwrap()];
    let result = simulate(&spec, &workload).unwrap();
    let lost = count(&result, Status::Failed(FailReason::Cut))
        + count(&result, Status::Failed(FailReason::NoResponse));
    assert!((10..400).contains(&lost), "{lost} were in flight");
    assert_eq!(count(&result, Status::Done) + lost, 2000, "all others went elsewhere");
    let retried = result.requests.iter().filter(|request| request.attempts > 1).count();
    assert!(retried <= 10, "{retried}: what was lost opened the breaker");
    let during = result.requests.iter().filter(|request| {
        let at = request.arrived - result.start;
        (32_000_000..70_000_000).contains(&at) && request.backend == 1
    });
    assert_eq!(during.count(), 0);
    let after = result
        .requests
        .iter()
        .filter(|request| request.arrived - result.start > 80_000_000 && request.backend == 1);
    assert!(after.count() > 50, "it is used again");
}

/// Ollama loads a model in ten seconds, so routing by the models in memory shortens waits.
#[test]
fn models_in_memory_are_preferred_where_loading_takes_time() {
    let stream = |model: &str| {
        format!("  - {{ model: {model}, arrivals: {{ rate: 0.1 }}, input: 500, output: 50 }}\n")
    };
    let yaml = format!("requests: 400\nstreams:\n{}{}", stream("a"), stream("b"));
    let workload = generate(&WorkloadSpec::parse(&yaml).unwrap(), 1);
    let run = |strategy: &str| {
        let yaml = format!(
            "routing: {{ strategy: {strategy} }}\nbackends:\n  - {{ name: x, url: 'http://10.0.0.1:1', engine: ollama, \
             models: [a, b] }}\n  - {{ name: y, url: 'http://10.0.0.1:2', engine: ollama, models: [a, b] }}\n"
        );
        let environment = Environment::default();
        let config = Config::parse(&yaml, "test.yaml", Path::new(""), &environment).unwrap();
        let spec = world("strategy: smart", 2);
        let on_demand = OnDemand { most: 1, load_time: 10_000_000_000_000 };
        let slots = Slots { on_demand, ..Slots::default() };
        let engines = spec.engines.iter().cloned();
        let engines =
            engines.map(|engine| engine.scheduled_as(penstock_api::Engine::Ollama, &slots));
        let spec = WorldSpec { config, engines: engines.collect(), ..spec };
        let result = simulate(&spec, &workload).unwrap();
        let shed = count(&result, Status::Shed(ShedReason::Saturated));
        assert_eq!(count(&result, Status::Done) + shed, 400);
        assert!(shed < 100, "{shed}: deployment never has more in flight than run at a time");
        result.backends.iter().map(|backend| backend.counters.loads).sum::<u64>()
    };
    let (blind, aware) = (run("round_robin"), run("deployment"));
    assert!(blind > 150, "{blind}");
    assert!((2..blind * 3 / 5).contains(&aware), "{aware} of {blind}");
}

#[test]
fn disconnects_free_the_engine() {
    let yaml = "requests: 3000\nstreams:\n  - model: m\n    arrivals: { rate: 24 }\n    input: 2000\n    output: 100\n    \
                patience: 2s\n";
    let workload = generate(&WorkloadSpec::parse(yaml).unwrap(), 1);
    let result = simulate(&world("strategy: smart", 2), &workload).unwrap();
    let left = count(&result, Status::Left);
    assert!((500..2900).contains(&left), "{left}");
    assert_eq!(left + count(&result, Status::Done), 3000);
}

#[test]
fn refusals_are_retried_once_elsewhere_and_limits_shed() {
    let workload = chat(1000, 20.0);
    let mut spec = world("strategy: smart", 3);
    spec.faults = vec!["at 10s backend b0 429 10s".parse().unwrap()];
    let result = simulate(&spec, &workload).unwrap();
    assert_eq!(count(&result, Status::Done), 1000);
    assert!(result.requests.iter().any(|request| request.attempts == 2));
    for backend in &mut spec.config.backends {
        backend.max_in_flight = Some(1);
    }
    let result = simulate(&spec, &workload).unwrap();
    assert!(count(&result, Status::Shed(ShedReason::Saturated)) > 500);
}

#[test]
fn sessions_end_with_their_first_failure() {
    let yaml = "requests: 600\nstreams:\n  - model: m\n    arrivals: { rate: 4 }\n    pause: 1s\n    turns: 3\n    \
                input: 500\n    output: 100\n";
    let workload = generate(&WorkloadSpec::parse(yaml).unwrap(), 1);
    let mut spec = world("strategy: smart", 1);
    spec.faults = vec!["at 20s backend b0 down 10s".parse().unwrap()];
    let result = simulate(&spec, &workload).unwrap();
    assert!(count(&result, Status::Abandoned) > 20);
    for (before, after) in &workload.edges {
        let [before, after] = [before, after].map(|id| &result.requests[*id as usize]);
        match before.status {
            Status::Done => assert!(after.arrived >= before.ended + 1_000_000),
            _ => assert_eq!(after.status, Status::Abandoned),
        }
    }
}

#[test]
fn longest_match_collapses_where_all_share_a_block() {
    let head = include_str!("../../../../tests/data/mooncake-conversation.head120.jsonl");
    let mut workload = read_trace(head, 1).unwrap();
    workload.models = vec!["m".to_owned()];
    let run = |routing: &str| {
        let result = simulate(&world(routing, 8), &workload).unwrap();
        let mut counts = [0_usize; 8];
        result.requests.iter().for_each(|request| counts[usize::from(request.backend)] += 1);
        let cached: u64 =
            result.requests.iter().map(|request| u64::from(request.cached_tokens)).sum();
        (*counts.iter().max().unwrap(), cached)
    };
    let (most, _) = run("strategy: weighted, preset: prefix-affinity");
    assert!(most >= 110, "{most} of 120 on one backend");
    let (most, _) = run("strategy: round_robin");
    assert_eq!(most, 15);
    let (most, cached) = run("strategy: weighted, preset: llm-d");
    assert!(most < 60 && cached > 0, "{most}");
}

#[test]
fn balancers_share_the_clients_and_the_engines() {
    let workload = chat(1000, 20.0);
    let spec = WorldSpec { balancers: 3, ..world("strategy: weighted", 4) };
    let result = simulate(&spec, &workload).unwrap();
    assert_eq!(count(&result, Status::Done), 1000);
    assert_ne!(result, simulate(&world("strategy: weighted", 4), &workload).unwrap());
}

#[test]
fn wrong_worlds_are_refused() {
    let mut spec = world("strategy: smart", 2);
    spec.faults = vec!["at 10s backend x down 10s".parse().unwrap()];
    let error = simulate(&spec, &chat(1, 1.0)).unwrap_err().to_string();
    assert!(error.contains("names the backend 'x'"), "{error}");
    spec.engines.pop();
    assert_eq!(
        simulate(&spec, &chat(1, 1.0)),
        Err(WorldError::Engines { engines: 1, backends: 2 })
    );
}

/// Runs a profile of scorers with these weights.
fn run_weights(weights: [f64; 3], workload: &Workload) -> RunResult {
    let names = ["prefix-affinity", "queue-depth", "kv-utilization"];
    let scorers = names.iter().zip(weights).filter(|(_, weight)| *weight > 0.0);
    let scorers: Vec<String> =
        scorers.map(|(name, weight)| format!("{{ name: {name}, weight: {weight} }}")).collect();
    let routing = format!("strategy: weighted, scorers: [{}]", scorers.join(", "));
    simulate(&world(&routing, 4), workload).unwrap()
}

/// Seed 002: only the ratios of weights matter.
#[test]
fn equal_relations_of_weights_give_equal_runs() {
    let workload = shared_prefix();
    let [one, two] =
        [[3.0, 2.0, 2.0], [6.0, 4.0, 4.0]].map(|weights| run_weights(weights, &workload));
    assert_eq!(one, two);
    assert_ne!(one, run_weights([2.0, 3.0, 2.0], &workload));
}

/// A workload in which 70 % of the requests share one prefix.
fn shared_prefix() -> Workload {
    let yaml = "requests: 1500\nstreams:\n  - model: m\n    arrivals: { rate: 16 }\n    prefix: { groups: 1, tokens: 2000, \
                share: 0.7 }\n    input: { distribution: lognormal, mean: 400, deviation: 300 }\n    output: { \
                distribution: lognormal, mean: 200, deviation: 100 }\n";
    generate(&WorkloadSpec::parse(yaml).unwrap(), 1)
}

/// Seed 002: the higher the weight of the prefix, the more of the requests that share it go to one
/// backend.
#[test]
fn weight_of_the_prefix_concentrates_what_shares_it() {
    let workload = shared_prefix();
    let shared = workload.requests.iter().map(|one| one.input_tokens > 2000).collect::<Vec<bool>>();
    let mut before = 0.0;
    for weight in 0..=5 {
        let run = run_weights([f64::from(weight), 2.0, 2.0], &workload);
        let mut counts = [0_u32; 4];
        for (request, _) in run.requests.iter().zip(&shared).filter(|(_, shares)| **shares) {
            counts[usize::from(request.backend)] += 1;
        }
        let most = f64::from(*counts.iter().max().unwrap()) / f64::from(counts.iter().sum::<u32>());
        assert!(most > before - 0.02, "weight {weight}: {most} after {before}");
        before = most;
    }
    assert!(before > 0.5, "{before}: with 5 of 9 most meet on one backend");
}

/// Pairs of a load, relative to the capacity of the engines, and the maximum mean error of TTFT
/// predictions. In bursts, requests that wait together are computed together, and later ones still
/// lengthen the same step.
#[test]
fn first_tokens_are_predicted_at_any_load() {
    for (rate, variation, most) in [(32.0, 1.0, 0.12), (49.0, 1.0, 0.16), (40.0, 3.0, 0.25)] {
        let workload = mixed(3000, rate, variation);
        let routing = "strategy: round_robin, predict: true";
        let result = simulate(&world(routing, 4), &workload).unwrap();
        let objective = Objective { first_token: 1.0, per_token: 1.0 };
        let found = Summary::new(&result, &workload, &objective).prediction.unwrap();
        assert!(found.mean_error <= most, "{rate}/s, {variation}: {found:?}");
        assert!((0.86..=0.94).contains(&found.coverage), "{rate}/s, {variation}: {found:?}");
    }
}

/// An engine becomes twice as slow: ten seconds later its predictions are off by less than 20 %.
#[test]
fn engine_that_slows_down_is_followed() {
    let (mut off, mut count) = (0.0, 0_u32);
    for seed in 1..=8 {
        let workload = mixed_of(3000, 25.0, 1.0, seed);
        let mut spec = world("strategy: smart, predict: true", 4);
        spec.faults = vec!["at 60s backend b1 slow x2 10m".parse().unwrap()];
        let result = simulate(&spec, &workload).unwrap();
        let is_seen = |one: &&RequestResult| {
            let seconds = one.arrived.saturating_sub(result.start) / 1_000_000;
            one.status == Status::Done && one.backend == 1 && (70..90).contains(&seconds)
        };
        for one in result.requests.iter().filter(is_seen) {
            let actual = (one.first_token - one.decided) as f64;
            off += (f64::from(one.predicted) / actual - 1.0).abs();
            count += 1;
        }
    }
    let error = off / f64::from(count);
    assert!(count > 300 && error < 0.2, "{error} of {count}");
}

/// Requests that are late on every backend go where all are late, and leave the other backends to
/// requests that can be in time.
#[test]
fn more_requests_are_in_time_in_an_overload() {
    let good = |routing: &str| {
        let shares = (1..=4).map(|seed| {
            let workload = mixed_of(3000, 54.0, 3.0, seed);
            let mut spec = world(routing, 4);
            spec.objectives = Objectives { ttft_ms: Some(500.0), ..Objectives::default() };
            let result = simulate(&spec, &workload).unwrap();
            let objective = Objective { first_token: 0.5, per_token: 1.0 };
            Summary::new(&result, &workload, &objective).goodput
        });
        shares.sum::<f64>() / 4.0
    };
    let (slo, balanced) = (good("strategy: slo"), good("strategy: weighted, preset: balanced"));
    let lmetric = good("strategy: weighted, preset: lmetric");
    assert!(slo > lmetric + 0.04 && slo > balanced + 0.01, "{slo} {balanced} {lmetric}");
}

fn mixed(requests: u32, rate: f64, variation: f64) -> Workload {
    mixed_of(requests, rate, variation, 1)
}

fn mixed_of(requests: u32, rate: f64, variation: f64, seed: u64) -> Workload {
    let yaml = format!(
        "requests: {requests}\nstreams:\n  - model: m\n    arrivals: {{ rate: {rate}, process: gamma, variation: {variation} }}\n    \
         input: {{ distribution: lognormal, mean: 900, deviation: 1400, min: 20, max: 12000 }}\n    output: {{ \
         distribution: lognormal, mean: 220, deviation: 250, min: 2, max: 2000 }}\n"
    );
    generate(&WorkloadSpec::parse(&yaml).unwrap(), seed)
}
