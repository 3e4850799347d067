//! Paired comparisons: the same seeds in both arms, differences with intervals, and a verdict that
//! may be "cannot tell".

use super::statistics::{Interval, mean};
use super::summary::{Load, Summary};

/// The direction in which a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// A lower figure is better.
    Less,
    /// A higher figure is better.
    More,
}

/// The figures that are compared, each with its better direction.
pub const COMPARED: &[(&str, Aim)] = &[
    ("ttft_mean", Aim::Less),
    ("ttft_p50", Aim::Less),
    ("ttft_p99", Aim::Less),
    ("tpot_mean", Aim::Less),
    ("tpot_p99", Aim::Less),
    ("e2e_mean", Aim::Less),
    ("e2e_p99", Aim::Less),
    ("goodput", Aim::More),
];

/// The result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The other arm is better than the base.
    Better,
    /// The other arm is worse than the base.
    Worse,
    /// The difference may be chance or an error of the model.
    CannotTell(Doubt),
}

/// The reason why a comparison is inconclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// A single seed shows no variation.
    OneSeed,
    /// The interval contains zero.
    Chance,
    /// One arm kept up with the load and the other did not, so the error of the model decides the
    /// result.
    Saturation,
}

impl Verdict {
    /// Returns the verdict in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::CannotTell(Doubt::OneSeed) => "cannot tell (one seed)",
            Self::CannotTell(Doubt::Chance) => "cannot tell",
            Self::CannotTell(Doubt::Saturation) => "cannot tell (saturation)",
        }
    }
}

/// The difference of one figure between two arms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The name of the figure.
    pub figure: &'static str,
    /// Its mean in the base arm.
    pub base: f64,
    /// Its mean in the other arm.
    pub other: f64,
    /// The other arm minus the base, with its interval.
    pub interval: Interval,
    /// The verdict on the difference.
    pub verdict: Verdict,
}

/// Compares two arms, seed by seed.
pub fn compare(base: &[Summary], other: &[Summary]) -> Vec<Difference> {
    COMPARED.iter().map(|(figure, aim)| difference(figure, *aim, base, other)).collect()
}

pub fn difference(
    figure: &'static str,
    aim: Aim,
    base: &[Summary],
    other: &[Summary],
) -> Difference {
    let values = |arm: &[Summary]| -> Vec<f64> {
        arm.iter().map(|one| one.figure(figure).unwrap_or_default()).collect()
    };
    let (first, second) = (values(base), values(other));
    // Paired by seed: both arms get the same workload, which cancels out most of the noise.
    let differences: Vec<f64> = first.iter().zip(&second).map(|(a, b)| b - a).collect();
    let interval = Interval::of(&differences);
    let saturated = |arm: &[Summary]| arm.iter().filter(|one| one.load == Load::Saturated).count();
    // Goodput includes the cost of saturation; latencies of a growing queue depend on the length of
    // the run.
    let is_uneven = (saturated(base) == 0) != (saturated(other) == 0) && aim == Aim::Less;
    let verdict = match () {
        () if differences.len() < 2 => Verdict::CannotTell(Doubt::OneSeed),
        // Before the direction is looked at: most differences of a few seeds are chance.
        () if !interval.excludes_zero() => Verdict::CannotTell(Doubt::Chance),
        () if is_uneven => Verdict::CannotTell(Doubt::Saturation),
        () if (interval.mean < 0.0) == (aim == Aim::Less) => Verdict::Better,
        () => Verdict::Worse,
    };
    Difference { figure, base: mean(&first), other: mean(&second), interval, verdict }
}
