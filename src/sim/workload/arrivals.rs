//! When requests arrive.

use serde::Deserialize;

use super::duration::Time;
use super::rounded;
use crate::sim::random::{Stream, weibull_shape};

/// How requests arrive.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// Requests (or sessions) per second, on average.
    pub rate: f64,
    /// The gaps between them.
    #[serde(default)]
    pub process: Process,
    /// The coefficient of variation of the gaps, for `gamma` and `weibull`.
    #[serde(default = "usual_variation")]
    pub variation: f64,
    /// A rate that rises and falls with the time of day.
    #[serde(default)]
    pub daily: Option<Daily>,
    /// Times with another rate.
    #[serde(default)]
    pub spikes: Vec<Spike>,
}

/// The gaps between arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Process {
    /// Independent arrivals: exponential gaps.
    #[default]
    Poisson,
    /// Bursts, by their variation.
    Gamma,
    /// Bursts with a heavier tail.
    Weibull,
    /// Equal gaps.
    Constant,
}

/// A rate that follows a cosine.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daily {
    /// The time from one peak to the next.
    pub period: Time,
    /// When the first peak is.
    pub peak: Time,
    /// The highest rate in relation to the lowest.
    pub peak_to_trough: f64,
}

/// A time with another rate.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spike {
    /// When it starts.
    pub at: Time,
    /// How long it lasts.
    pub lasts: Time,
    /// How many times the usual rate.
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

    /// The rate at a time in relation to the usual one.
    fn factor(&self, at: f64) -> f64 {
        let daily = self.daily.map_or(1.0, |daily| {
            // Between 2/(r+1) and 2r/(r+1): 1 on average.
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

    /// An endless series of arrivals, in microseconds.
    pub(super) fn times(&self, mut stream: Stream) -> impl Iterator<Item = u64> + '_ {
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
            at += gap / (self.rate * self.factor(at)) * 1e6;
            rounded(at)
        })
    }
}
