//! Kinds of histograms, with their buckets. Series keep handles of their histograms: the lookup by
//! label values in the `prometheus` registry locks, and confuses `("ab", "c")` with `("a", "bc")`.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts};

/// Seconds, from a health check to a long batch job.
const DURATIONS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0,
    300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
];
/// Seconds to a first token: the bounds of OpenTelemetry's conventions, and larger ones.
const FIRST_TOKENS: [f64; 21] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];
/// Seconds per token: the bounds of OpenTelemetry's conventions.
const PER_TOKEN: [f64; 13] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
/// Tokens: powers of 4, as in OpenTelemetry's conventions.
const TOKENS: [f64; 14] = [
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// A kind of histogram; makes histograms of this kind.
#[derive(Debug)]
pub(super) struct Distribution {
    options: HistogramOpts,
    spare: Histogram,
}

impl Distribution {
    fn new(buckets: &[f64]) -> Result<Self, prometheus::Error> {
        // The page sets name and labels.
        let options = HistogramOpts::new("series", "series").buckets(buckets.to_vec());
        Ok(Self { spare: Histogram::with_opts(options.clone())?, options })
    }

    pub(super) fn make(&self) -> Histogram {
        let made = Histogram::with_opts(self.options.clone());
        debug_assert!(made.is_ok(), "the same options were accepted for `spare`");
        made.unwrap_or_else(|_impossible| self.spare.clone())
    }
}

#[derive(Debug)]
pub(super) struct Distributions {
    pub(super) durations: Distribution,
    pub(super) first_tokens: Distribution,
    pub(super) per_token: Distribution,
    pub(super) tokens: Distribution,
}

impl Distributions {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            durations: Distribution::new(&DURATIONS)?,
            first_tokens: Distribution::new(&FIRST_TOKENS)?,
            per_token: Distribution::new(&PER_TOKEN)?,
            tokens: Distribution::new(&TOKENS)?,
        })
    }
}

/// Records a duration in seconds.
pub(super) fn observe(histogram: &Histogram, took: Duration) {
    histogram.observe(took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_reach_two_hours_and_grow_by_powers_of_four() {
        assert_eq!(DURATIONS.last(), Some(&7200.0));
        for buckets in [&DURATIONS[..], &FIRST_TOKENS, &PER_TOKEN, &TOKENS] {
            assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "in order: {buckets:?}");
        }
        assert!(TOKENS.windows(2).all(|pair| pair[1] == 4.0 * pair[0]));
        assert!(Distributions::new().is_ok());
    }
}
