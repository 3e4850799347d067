//! The arrivals of requests.

use std::str::FromStr;

use serde::Deserialize;

use super::{Time, Workload, rounded};
use crate::random::{Purpose, RandomStream, weibull_shape};

/// The arrival process of requests.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// The mean rate of requests (or sessions) per second.
    pub rate: f64,
    /// The distribution of gaps between arrivals.
    #[serde(default)]
    pub process: Process,
    /// The coefficient of variation of the gaps, for `gamma` and `weibull`.
    #[serde(default = "usual_variation")]
    pub variation: f64,
    /// A rate that varies with the time of day.
    #[serde(default)]
    pub daily: Option<Daily>,
    /// Periods with another rate.
    #[serde(default)]
    pub spikes: Vec<Spike>,
}

/// The distribution of gaps between arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// Independent arrivals: exponential gaps.
    #[default]
    Poisson,
    /// Bursts: gaps of a gamma distribution with the given variation.
    Gamma,
    /// Bursts with a heavier tail: gaps of a Weibull distribution.
    Weibull,
    Constant,
}

/// A rate that follows a cosine over time.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daily {
    /// The time from one peak to the next.
    pub period: Time,
    /// The time of the first peak.
    pub peak: Time,
    /// The highest rate divided by the lowest.
    pub peak_to_trough: f64,
}

/// A period with another rate.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spike {
    /// The start of the spike.
    pub at: Time,
    /// The duration of the spike.
    pub lasts: Time,
    /// The factor on the usual rate.
    pub times: f64,
}

fn usual_variation() -> f64 {
    2.0
}

impl Arrivals {
    pub(super) fn problem(&self) -> Option<&'static str> {
        let is_positive = |value: f64| value.is_finite() && value > 0.0;
        if !is_positive(self.rate) {
            return Some("the rate of arrivals must be greater than 0");
        }
        if !is_positive(self.variation) {
            return Some("the variation of arrivals must be greater than 0");
        }
        let is_wrong = |daily: Daily| daily.peak_to_trough < 1.0 || daily.period.micros() < 1.0;
        if self.daily.is_some_and(is_wrong) {
            return Some("daily needs a period and a peak_to_trough of at least 1");
        }
        let wrong = self.spikes.iter().any(|spike| !is_positive(spike.times));
        wrong.then_some("the times of a spike must be greater than 0")
    }

    /// Returns the rate at a time, relative to the mean rate.
    fn factor(&self, at: f64) -> f64 {
        let daily = self.daily.map_or(1.0, |daily| {
            // The factor is between 2/(r+1) and 2r/(r+1), with mean 1.
            let ratio = daily.peak_to_trough;
            let depth = (ratio - 1.0) / (ratio + 1.0);
            let turn = (at - daily.peak.micros()) / daily.period.micros();
            1.0 + depth * libm::cos(std::f64::consts::TAU * turn)
        });
        let is_in = |spike: &&Spike| {
            let start = spike.at.micros();
            (start..start + spike.lasts.micros()).contains(&at)
        };
        daily * self.spikes.iter().filter(is_in).map(|spike| spike.times).product::<f64>()
    }

    /// Returns an endless series of arrival times, in microseconds.
    pub(super) fn times(&self, mut stream: RandomStream) -> impl Iterator<Item = u64> + '_ {
        // The shape of a gamma distribution with mean 1 and this coefficient of variation.
        let gamma = 1.0 / (self.variation * self.variation);
        let weibull = weibull_shape(self.variation);
        let mut at = 0.0_f64;
        std::iter::repeat_with(move || {
            let gap = match self.process {
                Process::Poisson => stream.exponential(),
                Process::Gamma => stream.gamma(gamma),
                Process::Weibull => stream.weibull(weibull),
                Process::Constant => 1.0,
            };
            // By the rate at the last arrival: a gap is short beside a day or a spike.
            at += gap / (self.rate * self.factor(at)) * 1e6;
            rounded(at)
        })
    }
}

/// An arrival process and the variation of its gaps, as in `gamma:3`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArrivalProcess {
    process: Process,
    variation: f64,
}

/// The reason why a process cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}': write poisson, constant, gamma:VARIATION or weibull:VARIATION, as in gamma:3")]
pub struct ProcessError {
    given: String,
}

impl FromStr for ArrivalProcess {
    type Err = ProcessError;

    fn from_str(given: &str) -> Result<Self, ProcessError> {
        let (name, variation) = given.split_once(':').unzip();
        let variation: Option<f64> = variation.and_then(|text| text.parse().ok());
        let variation = variation.filter(|one| one.is_finite() && *one > 0.0);
        let found = match (name.unwrap_or(given), variation) {
            ("poisson", None) => Some((Process::Poisson, 1.0)),
            ("constant", None) => Some((Process::Constant, 1.0)),
            ("gamma", Some(variation)) => Some((Process::Gamma, variation)),
            ("weibull", Some(variation)) => Some((Process::Weibull, variation)),
            _ => None,
        };
        let (process, variation) = found.ok_or_else(|| ProcessError { given: given.to_owned() })?;
        Ok(Self { process, variation })
    }
}

impl Workload {
    /// Returns the same requests in the same order and at the same mean rate, with other gaps
    /// between requests that follow none.
    #[must_use]
    pub fn with_arrivals(mut self, arrivals: ArrivalProcess, seed: u64) -> Self {
        let roots = self.roots();
        let last = roots.last().and_then(|id| self.requests.get(*id as usize));
        let seconds = last.map_or(0.0, |last| last.arrives_at as f64 * 1e-6);
        // A single arrival, or all at once: there is no rate to keep.
        if seconds <= 0.0 {
            return self;
        }
        let ArrivalProcess { process, variation } = arrivals;
        let rate = roots.len() as f64 / seconds;
        let arrivals = Arrivals { rate, process, variation, daily: None, spikes: Vec::new() };
        // An id that no stream of a workload has, so that its draws are independent of theirs.
        let times = arrivals.times(RandomStream::new(seed, Purpose::Arrivals, u64::MAX));
        for (id, at) in roots.into_iter().zip(times) {
            if let Some(request) = self.requests.get_mut(id as usize) {
                request.arrives_at = at;
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Request;

    #[test]
    fn arrivals_change_and_requests_do_not() {
        let requests = (1..=4000).map(|n| Request {
            arrives_at: u64::from(n) * 500_000,
            input_tokens: n,
            ..Request::default()
        });
        let workload = Workload { requests: requests.collect(), ..Workload::default() };
        for (process, variation) in [("poisson", 1.0), ("gamma:3", 3.0), ("constant", 0.0)] {
            let other = workload.clone().with_arrivals(process.parse().unwrap(), 7);
            assert_eq!(other, workload.clone().with_arrivals(process.parse().unwrap(), 7));
            let times: Vec<f64> =
                other.requests.iter().map(|one| one.arrives_at as f64 * 1e-6).collect();
            let gaps: Vec<f64> = times.windows(2).map(|two| two[1] - two[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let squares = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
            let found = (squares / gaps.len() as f64).sqrt() / mean;
            assert!((mean / 0.5 - 1.0).abs() < 0.12, "{process}: {mean}");
            assert!((found - variation).abs() < 0.35, "{process}: {found}");
            assert!(other.requests.iter().zip(1..).all(|(one, n)| one.input_tokens == n));
        }
        for wrong in ["bursty", "gamma", "gamma:0", "gamma:x", "poisson:2", ""] {
            assert!(wrong.parse::<ArrivalProcess>().is_err(), "{wrong}");
        }
    }
}
