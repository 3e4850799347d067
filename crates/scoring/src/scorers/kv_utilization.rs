//! `kv-utilization`: prefers backends with a free KV cache.

use super::{Scorer, ScorerRow, each};
use crate::reading_values::Standing;
use crate::readings::Candidate;
use crate::request::RequestFeatures;

pub(super) const ROW: ScorerRow = ScorerRow {
    name: "kv-utilization",
    formula: "1 - the part of the KV cache in use",
    source: "BLIS, llm-d",
    unknown: "0; a stale engine gets the median of the others",
    params: &[],
    build: |_| Ok(Box::new(KvUtilization)),
};

#[derive(Debug)]
struct KvUtilization;

impl Scorer for KvUtilization {
    fn score(&self, _: &RequestFeatures, candidates: &[Candidate], scores: &mut [f64]) {
        // Stale is not unknown: an engine whose metrics are late is probably as full as the others,
        // and a score of 0 would empty it.
        let median = if candidates.iter().any(is_stale) { median(candidates) } else { None };
        each(candidates, scores, |one| {
            let used = if is_stale(one) { median } else { one.kv_utilization };
            Some(1.0 - used?)
        });
    }
}

fn is_stale(one: &Candidate) -> bool {
    matches!(one.telemetry, Standing::Stale | Standing::Failing)
}

/// The median of the known KV utilizations; for an even number the mean of both in the middle.
fn median(candidates: &[Candidate]) -> Option<f64> {
    let known = candidates.iter().filter(|one| !is_stale(one)).filter_map(|one| one.kv_utilization);
    let count = known.clone().count();
    let low = at_rank(known.clone(), count.saturating_sub(1) / 2)?;
    let high = at_rank(known, count / 2)?;
    Some(f64::midpoint(low, high))
}

/// The value with exactly `rank` smaller ones, in order of size.
// Candidates are few: counting how many are below each one needs no sorting and no allocation.
fn at_rank(values: impl Iterator<Item = f64> + Clone, rank: usize) -> Option<f64> {
    let others = values.clone();
    let reached =
        values.filter(|value| others.clone().filter(|other| other < value).count() <= rank);
    reached.reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(given: &[(Option<f64>, Standing)]) -> Vec<f64> {
        let with = |(kv_utilization, telemetry): &(Option<f64>, Standing)| Candidate {
            kv_utilization: *kv_utilization,
            telemetry: *telemetry,
            ..Candidate::default()
        };
        let all: Vec<Candidate> = given.iter().map(with).collect();
        let mut scores = vec![f64::NAN; all.len()];
        KvUtilization.score(&RequestFeatures::default(), &all, &mut scores);
        scores
    }

    #[test]
    fn stale_utilization_counts_as_the_median_of_the_others() {
        let fresh = |part| (Some(part), Standing::Fresh);
        let stale = (None, Standing::Stale);
        let five = scores(&[fresh(0.9), stale, fresh(0.1), (None, Standing::Fresh), fresh(0.5)]);
        assert_eq!((five[1], five[3].is_nan()), (0.5, true));
        assert_eq!(scores(&[stale, fresh(0.25), fresh(0.75)])[0], 0.5);
        assert!(scores(&[stale, (None, Standing::Unknown), stale]).iter().all(|one| one.is_nan()));
        assert_eq!(scores(&[fresh(0.7), fresh(0.7), stale])[2], 1.0 - 0.7);
    }
}
