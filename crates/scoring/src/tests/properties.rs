//! Invariants of any profile over any candidates.

use proptest::prelude::*;

use super::*;

/// Returns the scores it was made with.
#[derive(Debug)]
struct Given(Vec<f64>);

impl Scorer for Given {
    fn score(&self, _ask: &RequestFeatures, _candidates: &[Candidate], scores: &mut [f64]) {
        scores.copy_from_slice(&self.0[..scores.len()]);
    }
}

fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let reading = || prop::option::of(0.0_f64..1e6);
    let one = (reading(), reading(), reading(), 0.0_f64..100.0, 0_u32..50, 0_u32..40, any::<u32>());
    let one =
        one.prop_map(|(waiting, running, kv, in_flight, matched, blocks, priority)| Candidate {
            waiting,
            running,
            load: waiting.zip(running).map(|(waiting, running)| waiting + running),
            kv_utilization: kv,
            in_flight,
            tokens_in_flight: in_flight * 1e5,
            prefill_tokens: in_flight * 100.0,
            matched_blocks: matched,
            prompt_blocks: blocks,
            priority,
            first_token_ms: kv,
            ..Candidate::new(&priority.to_string())
        });
    prop::collection::vec(one, 1..20)
}

proptest! {
    /// INV-1 and INV-2: whatever a scorer returns, every candidate's score is in 0..=1.
    #[test]
    fn every_score_of_every_scorer_is_in_range(candidates in candidates()) {
        let features = RequestFeatures { block_tokens: 16, prompt_tokens: 500, ..RequestFeatures::default() };
        let all: Vec<_> = SCORERS.iter().map(|row| ScorerSpec::new(row.name, 1.0)).collect();
        let mut matrix = ScoreMatrix::default();
        Profile::new(&all, Picker::MaxScore).unwrap().score(&features, &candidates, &mut matrix);
        for index in 0..SCORERS.len() {
            prop_assert_eq!(matrix.scores(index).len(), candidates.len());
            prop_assert!(matrix.scores(index).iter().all(|score| (0.0..=1.0).contains(score)));
        }
        prop_assert!(matrix.totals().iter().all(|total| (0.0..=1.0 + 1e-9).contains(total)));
    }

    #[test]
    fn outliers_are_clamped_before_they_are_weighted(
        given in prop::collection::vec(prop::num::f64::ANY, 3), weight in 0.001_f64..1000.0
    ) {
        let fleet = ["a", "b", "c"].map(Candidate::new);
        let scorers: Vec<(&'static str, Box<dyn Scorer>, f64)> = vec![
            ("given", Box::new(Given(given.clone())), weight),
            ("half", Box::new(Given(vec![0.5; 3])), 1.0),
        ];
        let profile = Profile::of(scorers, Picker::MaxScore).unwrap();
        let mut matrix = ScoreMatrix::default();
        profile.score(&RequestFeatures::default(), &fleet, &mut matrix);
        for (total, given) in matrix.totals().iter().zip(&given) {
            let clamped = if given.is_nan() { 0.0 } else { given.clamp(0.0, 1.0) };
            let expected = (clamped * weight + 0.5) / (weight + 1.0);
            prop_assert!((total - expected).abs() < 1e-9);
        }
    }

    /// INV-3: equal input gives an equal decision, and the order of the fleet does not matter.
    #[test]
    fn decisions_are_the_same_every_time(candidates in candidates(), seed: u64) {
        let profile = profile("prefix-affinity:3,queue-depth:2,kv-utilization:2");
        let features = RequestFeatures { first_block: seed, ..RequestFeatures::default() };
        let first = pick(&profile, &features, &candidates, seed);
        prop_assert_eq!(pick(&profile, &features, &candidates, seed), first);
        let mut turned = candidates.clone();
        turned.reverse();
        let again = pick(&profile, &features, &turned, seed).map(|index| turned[index]);
        let first = first.map(|index| candidates[index]);
        prop_assert_eq!(again.map(|one| one.key), first.map(|one| one.key));
    }

    /// INV-6: weights count relative to each other. Whole multiples of whole weights are exact.
    #[test]
    fn whole_multiples_of_all_weights_change_nothing(candidates in candidates(), by in 1_u32..1_000_000) {
        let multiples = multiplied(f64::from(by));
        let plain = multiplied(1.0);
        let features = RequestFeatures::default();
        prop_assert_eq!(pick(&multiples, &features, &candidates, 0), pick(&plain, &features, &candidates, 0));
        let powers = multiplied(2.0_f64.powi(i32::try_from(by % 40).unwrap() - 20));
        prop_assert_eq!(pick(&powers, &features, &candidates, 0), pick(&plain, &features, &candidates, 0));
    }

    /// The same for any factor: the totals differ by rounding, so only tied candidates may change.
    #[test]
    fn any_multiple_of_all_weights_changes_no_total(candidates in candidates(), by in 1e-6_f64..1e6) {
        let features = RequestFeatures::default();
        let [plain, scaled] = [1.0, by].map(|by| {
            let mut matrix = ScoreMatrix::default();
            multiplied(by).score(&features, &candidates, &mut matrix);
            matrix.totals().to_vec()
        });
        for (one, other) in plain.iter().zip(&scaled) {
            prop_assert!((one - other).abs() < 1e-12, "{one} and {other}");
        }
        let chosen = pick(&multiplied(by), &features, &candidates, 0).unwrap();
        let best = plain.iter().copied().fold(0.0, f64::max);
        prop_assert!(plain[chosen] > best - 1e-12, "{} of {best}", plain[chosen]);
    }
}

/// The default profile with all weights times `by`.
fn multiplied(by: f64) -> Profile {
    let specs = specs("prefix-affinity:3,queue-depth:2,kv-utilization:2");
    let scaled = specs.into_iter().map(|spec| ScorerSpec { weight: spec.weight * by, ..spec });
    Profile::new(&scaled.collect::<Vec<_>>(), Picker::MaxScore).unwrap()
}
