//! Our 3 : 2 : 2 against the formulas llm-d publishes for its scorers, written down here a second
//! time: the same sequence of requests goes to the same backends as often.
//! Source: llm-d-inference-scheduler, docs/architecture.md: prefix score = matched / all blocks, queue
//! score = (most - waiting) / (most - least), KV score = 1 - usage; the highest weighted sum, by chance
//! where there are several.

use rand::Rng;

use super::*;

const BACKENDS: usize = 8;
const DECISIONS: usize = 10_000;
/// How long a request takes, in decisions.
const BUSY: usize = 40;

/// The best of them, by the published formulas.
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

/// A fleet under 16 shared prompts: each choice lengthens a queue, fills a cache and leaves a prefix.
struct Fleet {
    busy: Vec<usize>,
    started: Vec<usize>,
    held: [[u32; 16]; BACKENDS],
}

impl Fleet {
    fn candidates(&self, prompt: usize) -> Vec<Candidate> {
        let of = |index: usize| {
            let waiting = f64::from(u32::try_from(self.busy[index]).unwrap());
            Candidate {
                waiting: Some(waiting),
                running: Some(0.0),
                load: Some(waiting),
                kv_utilization: Some((waiting / 40.0).min(1.0)),
                matched_blocks: self.held[index][prompt],
                prompt_blocks: 64,
                ..Candidate::new(&format!("backend-{index}"))
            }
        };
        (0..BACKENDS).map(of).collect()
    }

    fn take(&mut self, index: usize, prompt: usize) {
        self.busy[index] += 1;
        self.held[index][prompt] = 64;
        self.started.push(index);
        if let Some(ended) = self.started.len().checked_sub(BUSY + 1) {
            self.busy[self.started[ended]] -= 1;
        }
    }

    fn idle() -> Self {
        Self { busy: vec![0; BACKENDS], started: Vec::new(), held: [[0; 16]; BACKENDS] }
    }

    fn counts(&self) -> [usize; BACKENDS] {
        std::array::from_fn(|index| self.started.iter().filter(|one| **one == index).count())
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "the figures beside the published ones")]
fn three_to_two_to_two_spreads_as_the_published_formulas_do() {
    let ours = profile("prefix-affinity:3,waiting-queue:2,kv-utilization:2");
    for seed in 1..=5 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut fleet = Fleet::idle();
        // Where the published rule sends the same requests on average, its draws among equals and all.
        let (mut theirs, mut drawn) = ([0.0; BACKENDS], 0);
        for number in 0..DECISIONS {
            let prompt = rng.random_range(0..16);
            let candidates = fleet.candidates(prompt);
            let features = RequestFeatures {
                first_block: prompt as u64,
                last_block: number as u64,
                ..RequestFeatures::default()
            };
            let chosen = pick(&ours, &features, &candidates, seed).unwrap();
            let best = published(&candidates);
            assert!(best.contains(&chosen), "{chosen} of {best:?}: {candidates:?}");
            for index in &best {
                theirs[*index] += 1.0 / best.len() as f64;
            }
            drawn += usize::from(best.len() > 1);
            fleet.take(chosen, prompt);
        }
        let ours = fleet.counts();
        println!("seed {seed}: ours {ours:?}, published {theirs:.0?}, {drawn} among equals");
        for (ours, theirs) in ours.iter().zip(theirs) {
            let off = (*ours as f64 - theirs).abs() / DECISIONS as f64;
            assert!(off < 0.02, "{ours} and {theirs}");
        }
    }
}
