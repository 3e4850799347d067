//! The sweep of prefix weights: the more they count, the more a shared prefix draws requests
//! together. The table it prints is published in `docs/routing/weighted.md`.

use std::collections::VecDeque;
use std::thread;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::weighted::route_chain;
use super::{Fleet, TestRequest, alike};
use crate::prefix::Chain;

const PUBLISHED: &str = include_str!("../../../docs/routing/weighted.md");
const DECISIONS: u64 = 10_000;
const BACKENDS: usize = 8;
const PREFIXES: u64 = 16;
/// Blocks of a prefix: 1,024 tokens.
const PREFIX_BLOCKS: u64 = 64;
/// Decisions a request stays in flight for.
const IN_FLIGHT: usize = 50;

/// The prompts of a seed, in order: the blocks of a prefix, and one unique block. An unshared prefix is
/// one block long, because none of its blocks is ever found again.
fn traffic(seed: u64) -> Vec<Chain> {
    let hash =
        |parts: [u64; 2]| xxhash_rust::xxh3::xxh3_64_with_seed(&parts[0].to_le_bytes(), parts[1]);
    let prefix = |number: u64, blocks: u64| -> Vec<u64> {
        (0..blocks).map(|block| hash([block, seed << 32 | number])).collect()
    };
    let shared: Vec<_> = (0..PREFIXES).map(|number| prefix(number, PREFIX_BLOCKS)).collect();
    let mut rng = SmallRng::seed_from_u64(seed);
    let prompts = (0..DECISIONS).map(|number| {
        let is_shared = rng.random_bool(0.7);
        let drawn = rng.random_range(0..shared.len());
        let mut blocks =
            if is_shared { shared[drawn].clone() } else { prefix(PREFIXES + number, 1) };
        blocks.push(hash([seed << 32 | number, u64::MAX]));
        Chain::of(blocks, 16)
    });
    prompts.collect()
}

/// How many requests each backend got.
fn run(prefix_weight: u32, traffic: &[Chain]) -> Vec<u32> {
    let own = if prefix_weight == 0 {
        String::new()
    } else {
        format!("prefix-affinity:{prefix_weight},")
    };
    let scorers = format!("{own}queue-depth:2,kv-utilization:2");
    let yaml = format!(
        "routing: {{ strategy: weighted, scorers: \"{scorers}\" }}\n{}",
        alike(BACKENDS, "m")
    );
    let mut fleet = Fleet::of(&yaml);
    let states: Vec<_> = (0..BACKENDS).map(|index| fleet.state(&format!("b{index}"))).collect();
    let mut counts = vec![0_u32; BACKENDS];
    let mut in_flight = VecDeque::new();
    let profile = TestRequest { tokens: 1040, ..TestRequest::of("m") }.profile();
    for chain in traffic {
        let decision = route_chain(&mut fleet, (&profile, "m"), chain);
        let row = decision.row as usize;
        counts[row] += 1;
        in_flight.push_back(row);
        let left = (in_flight.len() > IN_FLIGHT).then(|| in_flight.pop_front().unwrap());
        for (row, by) in [(Some(row), 1), (left, -1)] {
            let Some(state) = row.map(|row| &states[row]) else { continue };
            state.load.set_in_flight(state.load.in_flight().saturating_add_signed(by));
        }
    }
    counts
}

fn deviation(counts: &[u32]) -> f64 {
    let mean = DECISIONS as f64 / BACKENDS as f64;
    let squares: f64 = counts.iter().map(|count| (f64::from(*count) - mean).powi(2)).sum();
    (squares / BACKENDS as f64).sqrt()
}

/// The deviations of a seed, over the weights 0 to 5.
fn sweep(seed: u64) -> Vec<f64> {
    let traffic = traffic(seed);
    (0..=5).map(|weight| deviation(&run(weight, &traffic))).collect()
}

#[test]
#[allow(clippy::print_stdout, reason = "the published table")]
fn requests_concentrate_as_prefixes_count_more() {
    let rows: Vec<(u64, Vec<f64>)> = thread::scope(|scope| {
        let started: Vec<_> =
            (1..=5).map(|seed| (seed, scope.spawn(move || sweep(seed)))).collect();
        started.into_iter().map(|(seed, one)| (seed, one.join().unwrap())).collect()
    });
    println!("| seed | absent | 1 | 2 | 3 | 4 | 5 |\n|---|---|---|---|---|---|---|");
    for (seed, row) in rows {
        let cells: Vec<String> = row.iter().map(|cell| format!("{cell:.1}")).collect();
        let line = format!("| {seed} | {} |", cells.join(" | "));
        println!("{line}");
        assert!(row.is_sorted(), "seed {seed}: {row:?}");
        assert!(PUBLISHED.contains(&line), "weighted.md has another row for seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_decisions() {
    let first = run(3, &traffic(9));
    assert_eq!(first, run(3, &traffic(9)));
    assert_ne!(first, run(3, &traffic(10)));
}
