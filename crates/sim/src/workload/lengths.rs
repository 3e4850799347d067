//! Lengths in tokens.

use serde::Deserialize;

use super::rounded_u32;
use crate::random::RandomStream;

/// The distribution of lengths: a plain number is a constant.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Lengths {
    Constant(u32),
    Drawn(Drawn),
}

/// A distribution of lengths with its bounds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drawn {
    pub distribution: LengthShape,
    pub mean: f64,
    /// The standard deviation; for `exponential` and `uniform` it follows from the mean and the
    /// bounds.
    #[serde(default)]
    pub deviation: Option<f64>,
    #[serde(default = "one")]
    pub min: u32,
    #[serde(default = "any")]
    pub max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LengthShape {
    /// Symmetric around the mean.
    Normal,
    /// Mostly short lengths with a long tail.
    Lognormal,
    Exponential,
    /// Uniform between `min` and `max`.
    Uniform,
    /// A heavier tail than the lognormal one.
    Pareto,
}

fn one() -> u32 {
    1
}

fn any() -> u32 {
    u32::MAX
}

impl Lengths {
    /// Draws a length of at least 1.
    pub fn draw(&self, stream: &mut RandomStream) -> u32 {
        match self {
            Self::Constant(tokens) => (*tokens).max(1),
            Self::Drawn(drawn) => drawn.draw(stream),
        }
    }

    /// Returns the error in the parameters, if there is one.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let Self::Drawn(drawn) = self else { return None };
        match drawn {
            Drawn { mean, .. } if !mean.is_finite() || *mean <= 0.0 => {
                Some("the mean of a length must be greater than 0")
            }
            Drawn { deviation: Some(deviation), .. }
                if !deviation.is_finite() || *deviation < 0.0 =>
            {
                Some("the deviation of a length must not be negative")
            }
            Drawn { min, max, .. } if min > max => Some("min of a length must not exceed max"),
            Drawn { distribution: LengthShape::Uniform, max: u32::MAX, .. } => {
                Some("a uniform length needs max")
            }
            Drawn { .. } => None,
        }
    }
}

impl Drawn {
    fn draw(&self, stream: &mut RandomStream) -> u32 {
        let deviation = self.deviation.unwrap_or(self.mean / 2.0);
        let value = match self.distribution {
            LengthShape::Normal => self.mean + deviation * stream.normal(),
            LengthShape::Lognormal => {
                let ratio = deviation / self.mean;
                let variance = libm::log(1.0 + ratio * ratio);
                let middle = libm::log(self.mean) - variance / 2.0;
                libm::exp(middle + libm::sqrt(variance) * stream.normal())
            }
            LengthShape::Exponential => self.mean * stream.exponential(),
            LengthShape::Uniform => {
                let (min, max) = (f64::from(self.min), f64::from(self.max));
                min + (max - min) * stream.uniform()
            }
            LengthShape::Pareto => {
                // The shape with this deviation satisfies alpha (alpha - 2) = (mean / deviation)^2.
                let ratio = self.mean / deviation.max(f64::MIN_POSITIVE);
                let alpha = 1.0 + libm::sqrt(1.0 + ratio * ratio);
                let least = self.mean * (alpha - 1.0) / alpha;
                least / libm::pow(1.0 - stream.uniform(), 1.0 / alpha)
            }
        };
        rounded_u32(value).clamp(self.min.max(1), self.max.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    #[test]
    fn lengths_have_their_means_and_stay_within_bounds() {
        let mut stream = RandomStream::new(1, Purpose::Inputs, 0);
        for distribution in [
            LengthShape::Normal,
            LengthShape::Lognormal,
            LengthShape::Exponential,
            LengthShape::Pareto,
            LengthShape::Uniform,
        ] {
            let drawn = Drawn {
                distribution,
                mean: 1000.0,
                deviation: Some(250.0),
                min: 1,
                max: if distribution == LengthShape::Uniform { 1999 } else { 100_000 },
            };
            let lengths = Lengths::Drawn(drawn);
            assert_eq!(lengths.problem(), None);
            let sum: u64 = (0..100_000).map(|_| u64::from(lengths.draw(&mut stream))).sum();
            let mean = sum as f64 / 1e5;
            assert!((mean - 1000.0).abs() < 20.0, "{distribution:?}: {mean}");
        }
        let bounded = Drawn {
            distribution: LengthShape::Exponential,
            mean: 100.0,
            deviation: None,
            min: 90,
            max: 110,
        };
        assert!((0..1000).all(|_| (90..=110).contains(&bounded.draw(&mut stream))));
    }
}
