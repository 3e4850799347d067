//! Paired comparisons: the same seeds in both arms, differences with intervals, and a verdict that may be
//! "cannot tell".

use super::statistics::{Interval, mean};
use super::summary::{Load, Summary};

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// Less.
    Less,
    /// More.
    More,
}

/// The figures that are compared.
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

/// What a comparison shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The other arm is better than the base.
    Better,
    /// It is worse.
    Worse,
    /// The difference may be chance, or the model's error.
    CannotTell(Doubt),
}

/// Why a comparison shows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// One seed shows no variation.
    OneSeed,
    /// The interval has both signs in it.
    Chance,
    /// One arm kept up with the load and the other did not: the error of the model decides which.
    Saturation,
}

impl Verdict {
    /// In words.
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
    /// Which figure.
    pub figure: &'static str,
    /// Its mean in the base arm.
    pub base: f64,
    /// Its mean in the other.
    pub other: f64,
    /// The other less the base, with its interval.
    pub interval: Interval,
    /// What that shows.
    pub verdict: Verdict,
}

/// Compares two arms, seed by seed.
pub fn compare(base: &[Summary], other: &[Summary]) -> Vec<Difference> {
    COMPARED.iter().map(|(figure, aim)| difference(figure, *aim, base, other)).collect()
}

/// Compares one figure.
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
    let differences: Vec<f64> = first.iter().zip(&second).map(|(a, b)| b - a).collect();
    let interval = Interval::of(&differences);
    let saturated = |arm: &[Summary]| arm.iter().filter(|one| one.load == Load::Saturated).count();
    // Goodput counts what saturation costs; latencies of a growing queue depend on how long the run was.
    let is_uneven = (saturated(base) == 0) != (saturated(other) == 0) && aim == Aim::Less;
    let verdict = match () {
        () if differences.len() < 2 => Verdict::CannotTell(Doubt::OneSeed),
        () if !interval.excludes_zero() => Verdict::CannotTell(Doubt::Chance),
        () if is_uneven => Verdict::CannotTell(Doubt::Saturation),
        () if (interval.mean < 0.0) == (aim == Aim::Less) => Verdict::Better,
        () => Verdict::Worse,
    };
    Difference { figure, base: mean(&first), other: mean(&second), interval, verdict }
}
