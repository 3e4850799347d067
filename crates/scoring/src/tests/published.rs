//! Our 3 : 2 : 2 against the formulas llm-d publishes for its scorers, implemented here
//! independently: each of our choices is among their best, and both, run separately, spread the
//! same requests alike and find as much cached. Source: llm-d-inference-scheduler,
//! docs/architecture.md: prefix score = matched / all blocks, queue score = (most - waiting) /
//! (most - least), KV score = 1 - usage; the highest weighted sum, by chance if there are several.

use rand::Rng;

use super::*;

const BACKENDS: usize = 8;
const DECISIONS: usize = 10_000;
/// The duration of a request, in decisions.
const BUSY: usize = 40;

/// The best candidates by the published formulas.
fn published(candidates: &[Candidate]) -> Vec<usize> {
    let waiting: Vec<f64> = candidates.iter().map(|one| one.waiting.unwrap()).collect();
    let least = waiting.iter().copied().fold(f64::INFINITY, f64::min);
    let most = waiting.iter().copied().fold(0.0, f64::max);
    let total = |(one, waiting): (&Candidate, &f64)| {
        let prefix = f64::from(one.matched_blocks) / f64::from(one.prompt_blocks);
        let queue = if most > least { (most - waiting) / (most - least) } else { 1.0 };
        3.0 * prefix + 2.0 * queue + 2.0 * (1.0 - one.kv_utilization.unwrap())
    };
    let totals: Vec<f64> = candidates.iter().zip(&waiting).map(total).collect();
    let best = totals.iter().copied().fold(0.0, f64::max);
    // Sums of the same numbers in another order may differ in their last digits.
    (0..candidates.len()).filter(|index| totals[*index] > best - 1e-9).collect()
}

/// Blocks of a prompt, and the leading ones that the four prompts of a family share.
const BLOCKS: u32 = 64;
const SHARED: u32 = 32;

/// A fleet under 16 prompts of four families: each choice lengthens a queue, fills a cache and
/// leaves a prefix.
struct Fleet {
    busy: Vec<usize>,
    started: Vec<usize>,
    held: [[bool; 16]; BACKENDS],
    /// Blocks found cached, of all requests.
    cached: u32,
}

impl Fleet {
    fn idle() -> Self {
        Self {
            busy: vec![0; BACKENDS],
            started: Vec::new(),
            held: [[false; 16]; BACKENDS],
            cached: 0,
        }
    }

    fn matched(&self, index: usize, prompt: usize) -> u32 {
        let family = prompt / 4 * 4;
        match self.held[index] {
            held if held[prompt] => BLOCKS,
            held if held[family..family + 4].contains(&true) => SHARED,
            _ => 0,
        }
    }

    fn candidates(&self, prompt: usize) -> Vec<Candidate> {
        let of = |index: usize| {
            let waiting = f64::from(u32::try_from(self.busy[index]).unwrap());
            Candidate {
                row: u32::try_from(index).unwrap(),
                waiting: Some(waiting),
                running: Some(0.0),
                load: Some(waiting),
                kv_utilization: Some((waiting / 40.0).min(1.0)),
                matched_blocks: self.matched(index, prompt),
                prompt_blocks: BLOCKS,
                ..Candidate::new(&format!("backend-{index}"))
            }
        };
        (0..BACKENDS).map(of).collect()
    }

    fn take(&mut self, index: usize, prompt: usize) {
        self.cached += self.matched(index, prompt);
        self.busy[index] += 1;
        self.held[index][prompt] = true;
        self.started.push(index);
        if let Some(ended) = self.started.len().checked_sub(BUSY + 1) {
            self.busy[self.started[ended]] -= 1;
        }
    }

    /// The requests per backend, in order of size.
    fn counts(&self) -> Vec<usize> {
        let count = |index| self.started.iter().filter(|one| **one == index).count();
        let mut counts: Vec<usize> = (0..BACKENDS).map(count).collect();
        counts.sort_unstable();
        counts
    }

    fn cached_share(&self) -> f64 {
        f64::from(self.cached) / (DECISIONS as f64 * f64::from(BLOCKS))
    }
}

/// A fleet after the requests of a seed, each sent to the backend that `choose` returns.
fn run(seed: u64, mut choose: impl FnMut(usize, usize, &[Candidate]) -> usize) -> Fleet {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut fleet = Fleet::idle();
    for number in 0..DECISIONS {
        let prompt = rng.random_range(0..16);
        let chosen = choose(number, prompt, &fleet.candidates(prompt));
        fleet.take(chosen, prompt);
    }
    fleet
}

/// The default profile and the published rule decide about the same requests, each on its own
/// fleet.
#[test]
fn default_profile_decides_as_the_published_formulas() {
    let profile = profile("prefix-affinity:3,queue-depth:2,kv-utilization:2");
    for seed in 1..=5 {
        let ours = run(seed, |number, prompt, candidates| {
            let features = RequestFeatures {
                first_block: prompt as u64 / 4,
                last_block: number as u64,
                ..RequestFeatures::default()
            };
            let chosen = pick(&profile, &features, candidates, seed).unwrap();
            let best = published(candidates);
            assert!(best.contains(&chosen), "{chosen} of {best:?}: {candidates:?}");
            chosen
        });
        let mut draws = SmallRng::seed_from_u64(seed + 100);
        let theirs = run(seed, |_, _, candidates| {
            let best = published(candidates);
            best[draws.random_range(0..best.len())]
        });
        let off = (ours.cached_share() - theirs.cached_share()).abs();
        assert!(off < 0.02, "cached: {} and {}", ours.cached_share(), theirs.cached_share());
        for (our, their) in ours.counts().iter().zip(theirs.counts()) {
            let off = our.abs_diff(their) as f64 / DECISIONS as f64;
            assert!(off < 0.02, "seed {seed}: {:?} and {:?}", ours.counts(), theirs.counts());
        }
    }
}
