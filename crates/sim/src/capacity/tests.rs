use std::path::Path;

use penstock_config::Environment;

use super::*;
use crate::engine::{EngineSpec, engine_rows};
use crate::summary::{Objective, Stationarity};
use crate::workload::{WorkloadSpec, generate};
use crate::world::Delays;

/// A setting with one engine that computes a prompt of 1,000 tokens in about 60 ms.
fn setting(workload: Workload) -> Experiment {
    let rows = engine_rows().unwrap();
    let row = rows.iter().find(|row| row.name() == "h100/qwen3-32b/tp2").unwrap();
    Experiment {
        workloads: vec![workload],
        engines: vec![EngineSpec::from(row)],
        balancers: 1,
        seed: 1,
        delays: Delays::default(),
        faults: Vec::new(),
        reports_cached: true,
        objective: Objective { first_token: 2.0, per_token: 0.1 },
        judges_sheds: false,
    }
}

fn variant(yaml: &str) -> Variant {
    let backends = "backends: [{ name: b, url: 'http://b:1', models: [m]";
    let yaml = match yaml.split_once("max_in_flight: 1") {
        Some((yaml, _)) => format!("{yaml}\n{backends}, max_in_flight: 1 }}]"),
        None => format!("{yaml}\n{backends} }}]"),
    };
    let config = Config::parse(&yaml, "t", Path::new(""), &Environment::default()).unwrap();
    Variant::new("t".to_owned(), config)
}

/// A workload of prompts of 4,000 tokens with one output token each: the engine acts as a plain
/// server with a queue.
fn prompts(requests: u32, rate: f64, more: &str) -> Workload {
    let yaml = format!(
        "requests: {requests}\nstreams:\n  - model: m\n    arrivals: {{ rate: {rate} }}\n    input: 4000\n    output: 1\n{more}"
    );
    generate(&WorkloadSpec::parse(&yaml).unwrap(), 1)
}

#[test]
fn capacity_is_the_rate_of_a_server_that_is_never_idle() {
    let workload = prompts(3000, 1.0, "");
    let setting = setting(workload.clone());
    let variant = variant("routing: { strategy: weighted }");
    let found = capacity(&setting, &variant, &workload).unwrap().unwrap().rate;
    // Each step of 8,192 tokens takes two prompts.
    let run = setting.run_workload(&variant, &workload.clone().at_speed(1000.0)).unwrap();
    let full = run.completed_rate();
    assert!((0.9..1.06).contains(&(found / full)), "{found} {full}");
    // The search finds the same capacity from a rate that is far too high or far too low.
    for speed in [0.01, 300.0] {
        let other = capacity(&setting, &variant, &workload.clone().at_speed(speed));
        let other = other.unwrap().unwrap().rate;
        assert!((0.9..1.1).contains(&(other / found)), "{speed}: {other} {found}");
    }
}

#[test]
fn refused_requests_do_not_change_the_capacity() {
    let workload = prompts(1500, 1.0, "    patience: 300ms\n    priority: -1\n");
    let setting = setting(workload.clone());
    let of = |yaml: &str| capacity(&setting, &variant(yaml), &workload).unwrap().unwrap();
    let plain = of("routing: { strategy: weighted }");
    for yaml in [
        "routing: { strategy: slo }",
        "routing: { strategy: round_robin }\nqueue: { size: 100 }\nmax_in_flight: 1",
    ] {
        assert_eq!(of(yaml), plain, "{yaml}");
    }
}

#[test]
fn run_beyond_the_capacity_is_saturated() {
    let workload = prompts(3000, 1.0, "");
    let setting = setting(workload.clone());
    let variant = variant("routing: { strategy: weighted }");
    let found = capacity(&setting, &variant, &workload).unwrap().unwrap().rate;
    for (load, expected) in [(0.8, Stationarity::Sustained), (1.15, Stationarity::Saturated)] {
        let speed = load * found / workload.rate();
        let workloads = vec![workload.clone().at_speed(speed)];
        let setting = Experiment { workloads, ..setting.clone() };
        assert_eq!(setting.run(&variant, 0).unwrap().1.load, expected, "{load}");
    }
}

#[test]
fn requests_that_all_arrive_at_once_have_no_capacity() {
    let workload = prompts(100, 1.0, "").at_speed(1e9);
    let setting = setting(workload.clone());
    let variant = variant("routing: { strategy: weighted }");
    assert_eq!(capacity(&setting, &variant, &workload), Ok(None));
}

/// A workload of sessions with ten turns each, 15 s apart.
fn sessions(requests: u32) -> Workload {
    let yaml = format!(
        "requests: {requests}\nstreams:\n  - model: m\n    arrivals: {{ rate: 0.5 }}\n    pause: 15s\n    turns: 10\n    input: 300\n    output: 100\n"
    );
    generate(&WorkloadSpec::parse(&yaml).unwrap(), 1)
}

#[test]
fn short_run_of_sessions_has_no_capacity_or_that_of_a_long_one() {
    let variant = variant("routing: { strategy: weighted }");
    let of =
        |workload: Workload| capacity(&setting(workload.clone()), &variant, &workload).unwrap();
    let long = of(sessions(20_000)).unwrap();
    assert_eq!(long.error, MODEL_ERROR, "{long:?}");
    for requests in [50, 100, 300, 1000, 3000] {
        // A session outlasts the arrivals of the shorter ones.
        if let Some(found) = of(sessions(requests)) {
            let least = long.rate * (1.0 - long.error);
            let most = long.rate * (1.0 + long.error);
            let is_within = found.rate * (1.0 + found.error) >= least
                && found.rate * (1.0 - found.error) <= most;
            assert!(is_within, "{requests}: {found:?}, and not {long:?}");
        }
    }
    assert_eq!(of(sessions(50)), None);
}

#[test]
fn short_run_far_beyond_the_capacity_is_saturated() {
    let workload = prompts(600, 1.0, "");
    let setting = setting(workload.clone());
    let variant = variant("routing: { strategy: weighted }");
    let found = capacity(&setting, &variant, &workload).unwrap().unwrap().rate;
    for load in [1.3, 2.0, 5.0, 20.0] {
        let speed = load * found / workload.rate();
        let workloads = vec![workload.clone().at_speed(speed)];
        let setting = Experiment { workloads, ..setting.clone() };
        assert_eq!(setting.run(&variant, 0).unwrap().1.load, Stationarity::Saturated, "{load}");
    }
}

#[test]
fn fleet_that_fills_up_or_is_busy_has_no_growing_queue() {
    let of = |requests: u32, seed: u64| {
        let yaml = format!(
            "requests: {requests}\nstreams:\n  - model: m\n    arrivals: {{ rate: 1 }}\n    input: 500\n    output: {{ distribution: lognormal, mean: 200, deviation: 200, max: 2000 }}\n"
        );
        generate(&WorkloadSpec::parse(&yaml).unwrap(), seed)
    };
    let variant = variant("routing: { strategy: weighted }");
    let long = of(6000, 1);
    let setting = setting(long.clone());
    let found = capacity(&setting, &variant, &long).unwrap().unwrap().rate;
    for (load, seed) in
        [0.6, 0.85].into_iter().flat_map(|load| (1..=4).map(move |seed| (load, seed)))
    {
        let workload = of(600, seed);
        let speed = load * found / workload.rate();
        let workloads = vec![workload.at_speed(speed)];
        let setting = Experiment { workloads, ..setting.clone() };
        let (_, summary) = setting.run(&variant, 0).unwrap();
        assert_ne!(
            summary.load,
            Stationarity::Saturated,
            "{load} {seed}: {:?}",
            summary.first_token
        );
    }
}
