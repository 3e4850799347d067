//! The sweep of prefix weights: a higher weight draws requests with a shared prefix together.
//! Engines report their load and the fill level of their caches, so that every scorer of the
//! profile decides. The tables are published in `docs/routing/weighted.md`.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use penstock_scan::RequestProfile;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::weighted::{decide, record};
use super::{Fleet, NOW, TestRequest, alike};
use crate::fleet::{EngineSample, SharedBackend};
use crate::prefix::Chain;
use crate::routing::RoutingDecision;

const PUBLISHED: &str = include_str!("../../../../../docs/routing/weighted.md");
const DECISIONS: u64 = 10_000;
/// The number of decisions in the comparison of nearly equal weights.
const COMPARED: usize = 3_000;
const BACKENDS: usize = 8;
const PREFIXES: u64 = 16;
/// Blocks of a prefix: 1,024 tokens.
const PREFIX_BLOCKS: u64 = 64;
/// The number of decisions that a request stays in flight for.
const IN_FLIGHT: usize = 50;
/// Requests in flight that fill an engine's KV cache.
const FULL: f32 = 20.0;

/// Returns the prompts of a seed, in order: a prefix of 64 blocks, shared in 70 %, then 1 to 32
/// unique blocks, so that the shared part differs from prompt to prompt.
fn traffic(seed: u64) -> Vec<Chain> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let prompts = (0..DECISIONS).map(|number| {
        let is_shared = rng.random_bool(0.7);
        let drawn = rng.random_range(0..PREFIXES);
        let more = rng.random_range(1..=PREFIX_BLOCKS / 2);
        let prefix = if is_shared { drawn } else { PREFIXES + number };
        let prefix = (0..PREFIX_BLOCKS).map(|block| hash(seed, prefix, block));
        let rest = (0..more).map(|block| hash(seed, number, u64::MAX - block));
        Chain::of(prefix.chain(rest).collect(), 16)
    });
    prompts.collect()
}

fn hash(seed: u64, prompt: u64, block: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&block.to_le_bytes(), seed << 32 | prompt)
}

/// Reports the load of an engine that works on everything in flight.
fn report(state: &SharedBackend) {
    let in_flight = state.load.in_flight();
    let running = f32::from(u16::try_from(in_flight).unwrap());
    state.telemetry.publish(EngineSample {
        waiting: Some(0.0),
        running: Some(running),
        kv_utilization: Some((running / FULL).min(1.0)),
        in_flight,
        sent_at: NOW,
        interval: Duration::from_millis(100),
    });
}

fn yaml(scorers: &str) -> String {
    let backends = alike(BACKENDS, "m");
    format!("routing: {{ strategy: weighted, scorers: \"{scorers}\" }}\n{backends}")
}

/// Returns the decisions about the prompts, each made in the state that the earlier ones left.
fn run(scorers: &str, traffic: &[Chain]) -> Vec<RoutingDecision> {
    run_beside(scorers, traffic, |_, _, _, _| {})
}

/// Runs the prompts; `beside` sees each decision before it is recorded.
fn run_beside(
    scorers: &str,
    traffic: &[Chain],
    mut beside: impl FnMut(&mut Fleet, &RequestProfile, &Chain, &RoutingDecision),
) -> Vec<RoutingDecision> {
    let mut fleet = Fleet::of(&yaml(scorers));
    let states: Vec<_> = (0..BACKENDS).map(|index| fleet.state(&format!("b{index}"))).collect();
    states.iter().for_each(report);
    let mut in_flight = VecDeque::new();
    let profile = TestRequest { tokens: 1040, ..TestRequest::of("m") }.profile();
    let decisions = traffic.iter().map(|chain| {
        let decision = decide(&mut fleet, (&profile, "m"), chain);
        beside(&mut fleet, &profile, chain, &decision);
        record(&fleet, &decision, chain);
        let row = decision.row as usize;
        in_flight.push_back(row);
        let ended = (in_flight.len() > IN_FLIGHT).then(|| in_flight.pop_front().unwrap());
        for (row, by) in [(Some(row), 1), (ended, -1)] {
            let Some(state) = row.map(|row| &states[row]) else { continue };
            state.load.set_in_flight(state.load.in_flight().saturating_add_signed(by));
            report(state);
        }
        decision
    });
    decisions.collect()
}

/// Returns the standard deviation of the requests per backend.
fn deviation(decisions: &[RoutingDecision]) -> f64 {
    let mean = decisions.len() as f64 / BACKENDS as f64;
    let count = |row| decisions.iter().filter(|one| one.row as usize == row).count() as f64;
    let squares: f64 = (0..BACKENDS).map(|row| (count(row) - mean).powi(2)).sum();
    (squares / BACKENDS as f64).sqrt()
}

/// Returns the deviations of a seed, for the weights 0 to 5.
fn sweep(seed: u64) -> Vec<f64> {
    let traffic = traffic(seed);
    let run = |weight: u32| {
        let prefix = format!("prefix-affinity:{weight},");
        let prefix = if weight == 0 { "" } else { &prefix };
        deviation(&run(&format!("{prefix}queue-depth:2,kv-utilization:2"), &traffic))
    };
    (0..=5).map(run).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test is about several threads")]
fn requests_concentrate_as_prefixes_count_more() {
    let rows: Vec<(u64, Vec<f64>)> = thread::scope(|scope| {
        let started: Vec<_> =
            (1..=5).map(|seed| (seed, scope.spawn(move || sweep(seed)))).collect();
        started.into_iter().map(|(seed, one)| (seed, one.join().unwrap())).collect()
    });
    let mut missing = Vec::new();
    for (seed, row) in &rows {
        let cells: Vec<String> = row.iter().map(|cell| format!("{cell:.1}")).collect();
        let line = format!("| {seed} | {} |", cells.join(" | "));
        missing.extend((!PUBLISHED.contains(&line)).then_some(line));
    }
    assert!(missing.is_empty(), "weighted.md lacks these rows:\n{}", missing.join("\n"));
    for (seed, row) in rows {
        let grows = row.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(grows, "seed {seed}: each weight has an effect: {row:?}");
    }
}

#[test]
fn same_seed_gives_the_same_decisions_and_scores() {
    let scorers = "prefix-affinity:3,queue-depth:2,kv-utilization:2";
    let first = run(scorers, &traffic(9)[..COMPARED]);
    assert!(first == run(scorers, &traffic(9)[..COMPARED]), "each decision, with all its scores");
    assert!(first != run(scorers, &traffic(10)[..COMPARED]));
}

/// Returns the number of decisions that another list of scorers makes differently in the states
/// that the first one leaves.
fn differing(scorers: &str, others: &str, traffic: &[Chain]) -> usize {
    let router = |scorers| Fleet::of(&yaml(scorers)).router;
    let mut other = router(others);
    let mut differing = 0;
    run_beside(scorers, traffic, |fleet, profile, chain, decision| {
        std::mem::swap(&mut fleet.router, &mut other);
        differing += usize::from(decide(fleet, (profile, "m"), chain).row != decision.row);
        std::mem::swap(&mut fleet.router, &mut other);
    });
    differing
}

#[test]
fn multiples_of_weights_decide_alike_and_rounded_ones_nearly() {
    let traffic = &traffic(1)[..COMPARED];
    let plain = "prefix-affinity:3,queue-depth:2,kv-utilization:2";
    let multiples = "prefix-affinity:6,queue-depth:4,kv-utilization:4";
    assert_eq!(differing(plain, multiples, traffic), 0, "only ratios count");
    let rounded = "prefix-affinity:0.43,queue-depth:0.29,kv-utilization:0.29";
    let line = format!("{} of {COMPARED} decisions", differing(plain, rounded, traffic));
    assert!(PUBLISHED.contains(&line), "weighted.md does not say '{line}'");
}
