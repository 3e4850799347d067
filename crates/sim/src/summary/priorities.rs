//! Figures of the requests of one priority.

use super::{Objective, first_token};
use crate::statistics::Percentiles;
use crate::workload::Workload;
use crate::world::{RequestResult, RunResult, Status};

/// The requests of one priority.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PriorityFigures {
    pub priority: i8,
    /// The number of requests that arrived.
    pub requests: usize,
    /// The number of requests that were not sent.
    pub shed: usize,
    /// The time to the first token of complete requests, in seconds.
    pub first_token: Percentiles,
    /// The share of all its requests that reached the objective.
    pub goodput: f64,
}

/// Computes the figures of each priority, highest first; empty if all requests have the same.
pub(super) fn by_priority(
    run: &RunResult,
    workload: &Workload,
    objective: &Objective,
) -> Vec<PriorityFigures> {
    let mut all: Vec<(i8, &RequestResult)> = workload
        .requests
        .iter()
        .zip(&run.requests)
        .filter(|(_, result)| result.status != Status::Abandoned)
        .map(|(request, result)| (request.priority, result))
        .collect();
    all.sort_by_key(|(priority, _)| -i16::from(*priority));
    let groups = all.chunk_by(|(one, _), (other, _)| one == other);
    let found: Vec<PriorityFigures> = groups
        .filter_map(|group| {
            let (priority, _) = group.first()?;
            Some(PriorityFigures::of(*priority, group, objective))
        })
        .collect();
    if found.len() > 1 { found } else { Vec::new() }
}

impl PriorityFigures {
    fn of(priority: i8, group: &[(i8, &RequestResult)], objective: &Objective) -> Self {
        let results = || group.iter().map(|(_, result)| *result);
        let done = results().filter(|one| one.status == Status::Done);
        let good = results().filter(|one| objective.is_reached(one)).count();
        Self {
            priority,
            requests: group.len(),
            shed: results().filter(|one| one.status.shed_reason().is_some()).count(),
            first_token: Percentiles::of(done.map(first_token).collect()),
            goodput: good as f64 / group.len().max(1) as f64,
        }
    }
}
