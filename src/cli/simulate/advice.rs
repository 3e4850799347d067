//! The points of a sweep with their results, and the advice that follows from them.

use std::fmt::Write;

use penstock_sim::compare::{
    Aim, BlockedArm, ComparisonVerdict, Difference, Doubt, difference, difference_by_blocks,
};
use penstock_sim::experiment::Variant;
use penstock_sim::statistics::mean;
use penstock_sim::summary::Summary;
use serde_json::{Value, json};

use super::error::SimulateError;
use super::formats::{difference_json, summary_json};
use super::sweep::{Sweep, SweepPoint};
use super::table::seconds;

/// The number of perturbed worlds in which advice is tried.
pub(super) const WORLDS: u64 = 10;
/// The number of worlds in which it must win.
pub(super) const MIN_WINS: usize = 8;
/// The minimum gain that justifies a reload. A reload loses a part of the learned state, and the
/// traffic of another day may reverse a smaller gain.
const MIN_GAIN: f64 = 0.01;
/// The figures shown in the table.
const SHOWN: &[&str] = &["goodput", "ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean"];

/// A point with its configuration and results.
pub(super) struct Tried {
    pub(super) point: SweepPoint,
    pub(super) variant: Variant,
    pub(super) summaries: Vec<Summary>,
    /// The figures without each block of requests, by run; empty where seeds have other requests.
    pub(super) without: Vec<Vec<Summary>>,
}

impl Tried {
    pub(super) fn new(point: SweepPoint, variant: Variant) -> Self {
        Self { point, variant, summaries: Vec::new(), without: Vec::new() }
    }

    fn blocks(&self) -> BlockedArm<'_> {
        BlockedArm { runs: &self.summaries, without: &self.without }
    }
}

/// The objective of a sweep.
pub(super) struct Goal {
    figure: &'static str,
    aim: Aim,
}

impl Goal {
    pub(super) fn parse(given: &str) -> Result<Self, SimulateError> {
        let known = penstock_sim::compare::COMPARED;
        let found = known.iter().find(|(figure, _)| *figure == given);
        let names = || known.iter().map(|(figure, _)| *figure).collect::<Vec<_>>().join(", ");
        let (figure, aim) = found.ok_or_else(|| SimulateError::Flag {
            flag: "--objective",
            reason: format!("no figure '{given}' (known: {})", names()),
        })?;
        Ok(Self { figure, aim: *aim })
    }

    /// Returns whether a difference exceeds the cost of a reload: a point of goodput, or a
    /// hundredth of another figure.
    pub(super) fn is_worth_a_reload(&self, difference: &Difference) -> bool {
        let whole = if self.figure == "goodput" { 1.0 } else { difference.base.abs() };
        difference.interval.mean.abs() >= MIN_GAIN * whole
    }

    /// Formats a difference with its interval.
    fn shown(&self, difference: &Difference) -> String {
        let Difference { base, interval, .. } = difference;
        let (unit, scale) = match self.figure {
            "goodput" => ("points", 100.0),
            _ => ("%", 100.0 / base.abs().max(f64::MIN_POSITIVE)),
        };
        let margin = match interval.margin.is_finite() {
            true => format!(" ± {:.1}", interval.margin * scale.abs()),
            false => String::new(),
        };
        let (figure, mean) = (self.figure, interval.mean * scale);
        format!("{figure} {mean:+.1}{margin} {unit}")
    }

    pub(super) fn value(&self, summaries: &[Summary]) -> f64 {
        let values = summaries.iter().filter_map(|one| one.figure(self.figure));
        let value = mean(&values.collect::<Vec<_>>());
        // From here on, less is better.
        if self.aim == Aim::Less { value } else { -value }
    }

    /// Returns the difference of a point to another one, with its interval.
    pub(super) fn difference(&self, base: &Tried, other: &Tried) -> Difference {
        if other.without.is_empty() {
            return difference(self.figure, self.aim, &base.summaries, &other.summaries);
        }
        difference_by_blocks(self.figure, self.aim, base.blocks(), other.blocks())
    }
}

/// The gain of the best point over the unchanged configuration, and the number of worlds in which
/// it wins.
pub(super) struct Vote {
    pub(super) best: usize,
    pub(super) difference: Difference,
    pub(super) is_better: bool,
    pub(super) wins: usize,
}

/// Returns whether no other point is better in all figures that users notice.
fn is_pareto(one: &Tried, tried: &[Tried]) -> bool {
    const FELT: [&str; 3] = ["ttft_mean", "tpot_mean", "e2e_p99"];
    let of = |one: &Tried| FELT.map(|figure| figure_of(one, figure));
    let own = of(one);
    !tried.iter().any(|other| {
        let other = of(other);
        let pairs = || other.iter().zip(&own);
        pairs().all(|(other, own)| other <= own) && pairs().any(|(other, own)| other < own)
    })
}

fn figure_of(one: &Tried, figure: &str) -> f64 {
    mean(&one.summaries.iter().filter_map(|one| one.figure(figure)).collect::<Vec<_>>())
}

fn shown(figure: &str, value: f64) -> String {
    if figure == "goodput" { format!("{:.1} %", value * 100.0) } else { seconds(value) }
}

/// Returns the table of a sweep, and the advice.
pub(super) fn render(
    goal: &Goal,
    sweeps: &[Sweep],
    tried: &[Tried],
    incumbent: &Tried,
    vote: Option<&Vote>,
) -> String {
    let best = vote.and_then(|vote| tried.get(vote.best));
    let names = tried.iter().map(|one| one.point.name());
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0).max(14);
    let mut text = format!("{:<width$}", "");
    for figure in SHOWN {
        _ = write!(text, "  {figure:>12}");
    }
    text.push('\n');
    let mut row = |name: &str, one: &Tried, marks: &str| {
        _ = write!(text, "{name:<width$}");
        for figure in SHOWN {
            _ = write!(text, "  {:>12}", shown(figure, figure_of(one, figure)));
        }
        _ = writeln!(text, "{}{marks}", if marks.is_empty() { "" } else { "  " });
    };
    row("as configured", incumbent, "");
    for one in tried {
        let marks = best.map_or_else(Vec::new, |best| marks(goal, one, best, tried));
        row(&one.point.name(), one, &marks.join(", "));
    }
    text.push_str(&sensitivity(goal, sweeps, tried));
    text.push_str(&advice(goal, best, vote));
    text
}

fn marks(goal: &Goal, one: &Tried, best: &Tried, tried: &[Tried]) -> Vec<&'static str> {
    let mut marks = Vec::new();
    if std::ptr::eq(one, best) {
        marks.push("best of the sweep");
    } else if goal.difference(best, one).verdict == ComparisonVerdict::CannotTell(Doubt::Chance) {
        marks.push("as good");
    }
    if is_pareto(one, tried) {
        marks.push("Pareto");
    }
    marks
}

/// Returns the average effect of one unit of each numeric setting: the slope of a least squares
/// line.
fn sensitivity(goal: &Goal, sweeps: &[Sweep], tried: &[Tried]) -> String {
    let mut text = String::new();
    for sweep in sweeps {
        let pairs: Vec<(f64, f64)> = tried
            .iter()
            .filter_map(|one| {
                let setting = one.point.settings.iter().find(|(key, _)| *key == sweep.key)?;
                Some((setting.1.parse().ok()?, figure_of(one, goal.figure)))
            })
            .collect();
        let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let (mean_x, mean_y) = (mean(&x), mean(&y));
        let spread: f64 = x.iter().map(|x| (x - mean_x) * (x - mean_x)).sum();
        // A setting with one value, or without numbers, has no slope.
        if spread > 0.0 {
            let slope =
                pairs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread;
            let sign = if slope < 0.0 { "-" } else { "+" };
            let size = shown(goal.figure, slope.abs());
            _ = writeln!(
                text,
                "\n{}: {sign}{size} of {} per unit on average",
                sweep.short(),
                goal.figure
            );
        }
    }
    text
}

fn advice(goal: &Goal, best: Option<&Tried>, vote: Option<&Vote>) -> String {
    let (Some(best), Some(vote)) = (best, vote) else { return String::new() };
    if vote.wins >= MIN_WINS {
        return format!(
            "\n{}: {}, and better in {} of {WORLDS} worlds with errors of the model in them:\n\n{}",
            best.point.name(),
            goal.shown(&vote.difference),
            vote.wins,
            best.point.patch(&best.variant.config)
        );
    }
    if vote.is_better && !goal.is_worth_a_reload(&vote.difference) {
        let (name, gain) = (best.point.name(), goal.shown(&vote.difference));
        return format!("\nNo advice: {name} changes {gain}, less than a reload is worth\n");
    }
    let reason = match vote.difference.verdict {
        ComparisonVerdict::CannotTell(Doubt::Chance) if vote.is_better => {
            let (name, gain) = (best.point.name(), goal.shown(&vote.difference));
            format!("{name} changes {gain}, which may be chance")
        }
        ComparisonVerdict::Better | ComparisonVerdict::CannotTell(Doubt::OneSeed)
            if vote.wins > 0 =>
        {
            format!(
                "{} is better only in {} of {WORLDS} worlds with errors of the model in them",
                best.point.name(),
                vote.wins
            )
        }
        ComparisonVerdict::Better | ComparisonVerdict::Worse | ComparisonVerdict::CannotTell(_) => {
            format!("no point has a better {} than the configuration as it is", goal.figure)
        }
    };
    format!("\nNo advice: {reason}\n")
}

pub(super) fn to_json(
    goal: &Goal,
    tried: &[Tried],
    incumbent: &Tried,
    vote: Option<&Vote>,
) -> Value {
    let one = |one: &Tried| {
        json!({
            "settings": one.point.settings.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "seeds": one.summaries.iter().map(summary_json).collect::<Vec<_>>(),
            "pareto": is_pareto(one, tried),
        })
    };
    let advice = vote.filter(|vote| vote.wins >= MIN_WINS).and_then(|vote| tried.get(vote.best));
    json!({
        "objective": goal.figure,
        "as_configured": one(incumbent),
        "points": tried.iter().map(one).collect::<Vec<_>>(),
        "best": vote.and_then(|vote| tried.get(vote.best)).map(|best| best.point.name()),
        "worlds": WORLDS,
        "wins": vote.map(|vote| vote.wins),
        "gain": vote.map(|vote| difference_json(&vote.difference)),
        "patch": advice.map(|best| best.point.patch(&best.variant.config)),
    })
}
