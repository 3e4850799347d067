//! The sweep of prefix weights: the more they count, the more a shared prefix draws requests
//! together. The table it prints is the README's.

use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::weighted::route_chain;
use super::{Ask, Fleet, alike};
use crate::scoring::prefix::Chain;

const DECISIONS: u64 = 10_000;
const BACKENDS: usize = 8;
const PREFIXES: u64 = 16;
/// Blocks of a prefix: 1,024 tokens.
const PREFIX_BLOCKS: u64 = 64;
/// Decisions a request stays in flight for.
const IN_FLIGHT: usize = 50;

/// A prompt: the blocks of its prefix, and one of its own.
fn prompt(prefix: u64, own: u64) -> Chain {
    let hash =
        |parts: [u64; 2]| xxhash_rust::xxh3::xxh3_64_with_seed(&parts[0].to_le_bytes(), parts[1]);
    let blocks = (0..PREFIX_BLOCKS).map(|block| hash([block, prefix]));
    Chain::of(blocks.chain([hash([own, u64::MAX])]).collect(), 16)
}

/// How many requests each backend got.
fn run(prefix_weight: u32, seed: u64) -> Vec<u32> {
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
    let mut rng = SmallRng::seed_from_u64(seed);
    let states: Vec<_> = (0..BACKENDS).map(|index| fleet.state(&format!("b{index}"))).collect();
    let mut counts = vec![0_u32; BACKENDS];
    let mut in_flight = VecDeque::new();
    let profile = Ask { tokens: 1040, ..Ask::of("m") }.profile();
    for number in 0..DECISIONS {
        let is_shared = rng.random_bool(0.7);
        let drawn = rng.random_range(0..PREFIXES);
        let prefix = if is_shared { drawn } else { PREFIXES + number };
        let chain = prompt(seed << 32 | prefix, seed << 32 | number);
        let decision = route_chain(&mut fleet, (&profile, "m"), &chain);
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

#[test]
#[allow(clippy::print_stdout, reason = "the table of the README")]
fn requests_concentrate_as_prefixes_count_more() {
    println!("| seed | absent | 1 | 2 | 3 | 4 | 5 |\n|---|---|---|---|---|---|---|");
    for seed in 1..=5 {
        let row: Vec<f64> = (0..=5).map(|weight| deviation(&run(weight, seed))).collect();
        let cells: Vec<String> = row.iter().map(|cell| format!("{cell:.1}")).collect();
        println!("| {seed} | {} |", cells.join(" | "));
        assert!(row.is_sorted(), "seed {seed}: {row:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_decisions() {
    assert_eq!(run(3, 9), run(3, 9));
    assert_ne!(run(3, 9), run(3, 10));
}
