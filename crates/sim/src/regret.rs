//! True regret: the cost of a decision to its request, compared with the best backend available.
//! The run is repeated up to the decision and continued with each backend in turn until the request
//! ends. Random numbers are the same, so all else is equal.

use super::experiment::{Experiment, Variant};
use super::summary::first_token;
use super::world::{Examined, RequestResult, Status, WorldError};

/// A decision under examination. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The request, as an index into the workload.
    pub request: u32,
    /// The time to the end of the request with the actual decision.
    pub decided: f64,
    /// The time to the end of the request, by backend; `None` if it did not complete.
    pub by_backend: Vec<Option<f64>>,
    /// The backend that each scorer alone would have chosen.
    pub picks: Vec<(String, usize)>,
}

impl Decision {
    /// Returns the shortest possible time.
    pub fn best(&self) -> f64 {
        // The decision is one of those that were possible, so that no regret is negative.
        self.by_backend.iter().flatten().copied().fold(self.decided, f64::min)
    }

    /// Returns the regret of the decision.
    pub fn regret(&self) -> f64 {
        self.decided - self.best()
    }

    /// Returns the average regret of a random pick.
    pub fn random_regret(&self) -> f64 {
        let known: Vec<f64> = self.by_backend.iter().flatten().copied().collect();
        super::statistics::mean(&known) - self.best()
    }

    /// Returns the regret of a scorer's own pick; `None` if that does not complete.
    pub fn regret_of(&self, scorer: &str) -> Option<f64> {
        let (_, backend) = self.picks.iter().find(|(name, _)| name == scorer)?;
        self.by_backend.get(*backend).copied().flatten().map(|time| time - self.best())
    }
}

/// Returns the requests to examine: `count` of them, evenly spread over the workload.
pub fn sampled(requests: usize, count: usize) -> Vec<u32> {
    let count = count.min(requests);
    // The middle of each of `count` equal parts: the first request of a run meets idle engines and
    // shows nothing.
    let at = |number: usize| u32::try_from((2 * number + 1) * requests / (2 * count.max(1)));
    (0..count).filter_map(|number| at(number).ok()).collect()
}

/// Examines the decision about one request; returns `None` if it did not complete.
///
/// # Errors
/// [`WorldError`] when the fleet cannot be built.
pub fn examine(
    setting: &Experiment,
    variant: &Variant,
    request: u32,
) -> Result<Option<Decision>, WorldError> {
    let time = |result: Option<&RequestResult>| {
        let result = result.filter(|result| result.status == Status::Done)?;
        let rest = result.ended.saturating_sub(result.first_token) as f64 * 1e-6;
        Some(first_token(result) + rest)
    };
    let run = |backend| {
        let run = setting.examine(variant, Examined { request, backend })?;
        let time = time(run.requests.get(request as usize));
        Ok::<_, WorldError>((time, run.picks))
    };
    let (decided, picks) = run(None)?;
    let Some(decided) = decided else { return Ok(None) };
    let mut by_backend = Vec::new();
    for backend in 0..variant.config.backends.len() {
        by_backend.push(run(Some(backend))?.0);
    }
    Ok(Some(Decision { request, decided, by_backend, picks }))
}
