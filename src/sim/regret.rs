//! True regret: what a decision cost its request, against the best backend it could have gone to. The same run is
//! repeated up to the decision and goes on with each backend in turn (the same random numbers, so all else is equal),
//! until the request has ended.

use super::experiment::{Setting, Variant};
use super::summary::first_token;
use super::world::{Examined, RequestResult, Status, WorldError};

/// One decision that was looked at. Times in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The request, as an index into the workload.
    pub request: u32,
    /// Time to the end as it was decided.
    pub decided: f64,
    /// The same by backend; `None` where the request did not complete.
    pub by_backend: Vec<Option<f64>>,
    /// Where each scorer alone would have sent it.
    pub picks: Vec<(String, usize)>,
}

impl Decision {
    /// The least that was possible.
    pub fn best(&self) -> f64 {
        self.by_backend.iter().flatten().copied().fold(self.decided, f64::min)
    }

    /// What the decision cost.
    pub fn regret(&self) -> f64 {
        self.decided - self.best()
    }

    /// What a random pick costs on average.
    pub fn random_regret(&self) -> f64 {
        let known: Vec<f64> = self.by_backend.iter().flatten().copied().collect();
        super::statistics::mean(&known) - self.best()
    }

    /// What the pick of a scorer alone costs; `None` without one that completes.
    pub fn regret_of(&self, scorer: &str) -> Option<f64> {
        let (_, backend) = self.picks.iter().find(|(name, _)| name == scorer)?;
        self.by_backend.get(*backend).copied().flatten().map(|time| time - self.best())
    }
}

/// The requests that are looked at: so many, evenly over the workload.
pub fn sampled(requests: usize, count: usize) -> Vec<u32> {
    let count = count.min(requests);
    let at = |number: usize| u32::try_from((2 * number + 1) * requests / (2 * count.max(1)));
    (0..count).filter_map(|number| at(number).ok()).collect()
}

/// Looks at the decision about one request; `None` where it did not complete.
///
/// # Errors
/// [`WorldError`] when the fleet cannot be built.
pub fn examine(
    setting: &Setting,
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
