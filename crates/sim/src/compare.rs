//! Paired comparisons: the same seeds in both arms, differences with intervals, and a verdict that
//! may be "cannot tell".

use super::statistics::{Interval, mean};
use super::summary::{Stationarity, Summary};

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
pub enum ComparisonVerdict {
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

impl ComparisonVerdict {
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
    pub verdict: ComparisonVerdict,
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
    let (first, second) = (values(figure, base), values(figure, other));
    // Paired by seed: both arms get the same workload, which cancels out most of the noise.
    let differences: Vec<f64> = first.iter().zip(&second).map(|(a, b)| b - a).collect();
    judged(figure, aim, base, other, Interval::of(&differences))
}

/// The runs of an arm, and their figures without each [block of requests].
///
/// [block of requests]: super::experiment::Experiment::run_in_blocks
#[derive(Debug, Clone, Copy)]
pub struct BlockedArm<'a> {
    pub runs: &'a [Summary],
    /// The figures without each block, by run.
    pub without: &'a [Vec<Summary>],
}

/// Compares two arms whose seeds all have the same requests. Their seeds differ by less than two
/// days do: the interval is that of the blocks.
pub fn difference_by_blocks(
    figure: &'static str,
    aim: Aim,
    base: BlockedArm<'_>,
    other: BlockedArm<'_>,
) -> Difference {
    let whole = |arm: BlockedArm<'_>| mean(&values(figure, arm.runs));
    let blocks = base.without.iter().chain(other.without).map(Vec::len).min().unwrap_or(0);
    let without = |arm: BlockedArm<'_>, block: usize| {
        let runs = arm.without.iter().filter_map(|run| run.get(block)?.figure(figure));
        mean(&runs.collect::<Vec<f64>>())
    };
    let differences: Vec<f64> =
        (0..blocks).map(|block| without(other, block) - without(base, block)).collect();
    let interval = Interval::jackknife(whole(other) - whole(base), &differences);
    judged(figure, aim, base.runs, other.runs, interval)
}

fn values(figure: &str, arm: &[Summary]) -> Vec<f64> {
    arm.iter().map(|one| one.figure(figure).unwrap_or_default()).collect()
}

/// Returns the difference of two arms, the base first, with the verdict on its interval.
fn judged(
    figure: &'static str,
    aim: Aim,
    base: &[Summary],
    other: &[Summary],
    interval: Interval,
) -> Difference {
    let saturated =
        |arm: &[Summary]| arm.iter().filter(|one| one.load == Stationarity::Saturated).count();
    // Goodput includes the cost of saturation; latencies of a growing queue depend on the length of
    // the run.
    let is_uneven = (saturated(base) == 0) != (saturated(other) == 0) && aim == Aim::Less;
    let verdict = match () {
        () if interval.margin.is_infinite() => ComparisonVerdict::CannotTell(Doubt::OneSeed),
        // Before the direction is looked at: most differences of a few seeds are chance.
        () if !interval.excludes_zero() => ComparisonVerdict::CannotTell(Doubt::Chance),
        () if is_uneven => ComparisonVerdict::CannotTell(Doubt::Saturation),
        () if (interval.mean < 0.0) == (aim == Aim::Less) => ComparisonVerdict::Better,
        () => ComparisonVerdict::Worse,
    };
    let (base, other) = (mean(&values(figure, base)), mean(&values(figure, other)));
    Difference { figure, base, other, interval, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of a run whose requests all took this long to the first token.
    fn run(ttft: f64) -> Summary {
        let mut summary = Summary::new(
            &crate::world::RunResult {
                start: 0,
                backends: Vec::new(),
                budgets: Vec::new(),
                requests: Vec::new(),
                believes_caches: false,
                picks: Vec::new(),
            },
            &crate::workload::Workload::default(),
            &crate::summary::Objective { first_token: 1.0, per_token: 1.0 },
        );
        summary.first_token.mean = ttft;
        summary
    }

    #[test]
    fn gain_of_one_block_is_chance_and_that_of_all_is_none() {
        let of = |whole: f64, without: Vec<f64>| {
            let (base, base_without) = ([run(1.0)], [vec![run(1.0); 10]]);
            let (other, other_without) = ([run(whole)], [without.into_iter().map(run).collect()]);
            difference_by_blocks(
                "ttft_mean",
                Aim::Less,
                BlockedArm { runs: &base, without: &base_without },
                BlockedArm { runs: &other, without: &other_without },
            )
        };
        // Without its block the gain of 1 s in ten is gone.
        let mut one = vec![8.0 / 9.0; 9];
        one.push(1.0);
        let found = of(0.9, one);
        assert_eq!(found.verdict, ComparisonVerdict::CannotTell(Doubt::Chance), "{found:?}");
        assert!(found.interval.margin > 0.1, "{found:?}");
        let all = of(0.9, vec![0.9; 10]);
        assert_eq!(all.verdict, ComparisonVerdict::Better, "{all:?}");
        assert_eq!(of(0.9, Vec::new()).verdict, ComparisonVerdict::CannotTell(Doubt::OneSeed));
    }
}
