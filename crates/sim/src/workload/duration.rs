//! Durations of workload files, written with a unit as in the configuration.

use std::time::Duration;

use penstock_api::units::{parse_duration, to_micros};
use serde::{Deserialize, Deserializer};

/// A duration such as `250ms` or `10m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time(pub Duration);

impl Time {
    pub(super) fn micros(self) -> f64 {
        to_micros(self.0) as f64
    }

    pub(super) fn times(self, factor: u32) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(serde::de::Error::custom)
    }
}
