//! Sweeps and searches: find the best settings and those as good, and check that the advice is
//! robust to the errors of the model.

use std::fmt::Write;

use penstock_sim::compare::{Aim, Difference, Doubt, Verdict, difference};
use penstock_sim::experiment::{Setting, Variant};
use penstock_sim::random::{Purpose, Stream};
use penstock_sim::statistics::mean;
use penstock_sim::summary::Summary;
use serde_json::{Value, json};

use super::arguments::SimulateArgs;
use super::error::SimulateError;
use super::formats::{difference_json, summary_json};
use super::parallel::run_all;
use super::setup::{SimulationPlan, Source};
use super::sweep::{Point, Sweep, grid};
use super::table::seconds;
use crate::cli::error::CliError;
use crate::cli::output::Output;

/// The number of perturbed worlds in which advice is tried.
const WORLDS: u64 = 10;
/// The number of worlds in which it must win.
const WINS: usize = 8;
/// The part of a workload that the first rung of a search runs.
const FIRST_PART: f64 = 0.1;
/// Successive halving: each rung keeps 1/`ETA` of the candidates, and the next one runs `ETA`
/// times longer.
const ETA: usize = 3;
/// The minimum gain that justifies a reload. A reload loses a part of the learned state, and the
/// traffic of another day may reverse a smaller gain.
const WORTH_A_RELOAD: f64 = 0.01;
/// The settings to try if none is named.
const USUAL: [&str; 2] = [
    "routing.strategy=weighted",
    "routing.preset=balanced,llm-d,sglang,lmetric,sticky,least-loaded",
];
/// The figures shown in the table.
const SHOWN: &[&str] = &["goodput", "ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean"];

/// A point with its configuration and results.
struct Tried {
    point: Point,
    variant: Variant,
    summaries: Vec<Summary>,
}

/// The objective of a sweep.
struct Goal {
    figure: &'static str,
    aim: Aim,
}

impl Goal {
    fn parse(given: &str) -> Result<Self, SimulateError> {
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
    fn is_worth_a_reload(&self, difference: &Difference) -> bool {
        let whole = if self.figure == "goodput" { 1.0 } else { difference.base.abs() };
        difference.interval.mean.abs() >= WORTH_A_RELOAD * whole
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

    fn value(&self, summaries: &[Summary]) -> f64 {
        let values = summaries.iter().filter_map(|one| one.figure(self.figure));
        let value = mean(&values.collect::<Vec<_>>());
        // From here on, less is better.
        if self.aim == Aim::Less { value } else { -value }
    }
}

pub(super) fn run(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    output: &mut Output,
) -> Result<(), CliError> {
    let goal = Goal::parse(&args.objective)?;
    let usual = USUAL.map(str::to_owned);
    // With a log and no sweep, the presets are what a reader may want to know about.
    let given = if args.sweep.is_empty() { &usual[..] } else { &args.sweep };
    let sweeps: Vec<Sweep> =
        given.iter().map(|given| Sweep::parse(given)).collect::<Result<_, _>>()?;
    let mut tried = candidates(args, plan, &sweeps)?;
    if args.search.is_some() {
        tried = halve(args, plan, &goal, tried, output)?;
    }
    measure(args, &plan.setting, &mut tried, output)?;
    let incumbent = incumbent(args, plan, output)?;
    let vote = vote(args, plan, &goal, &tried, &incumbent, output)?;
    if args.json {
        return output.line(to_json(&goal, &tried, &incumbent, vote.as_ref()));
    }
    output.text(render(&goal, &sweeps, &tried, &incumbent, vote.as_ref()))
}

fn candidates(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    sweeps: &[Sweep],
) -> Result<Vec<Tried>, SimulateError> {
    let sources = Source::all(args);
    let source = sources.first().ok_or(SimulateError::NoVariant)?;
    let mut tried = Vec::new();
    for point in grid(sweeps)? {
        let Some(mut variant) = point.variant(source, args)? else { continue };
        if let Some(workload) = plan.setting.workloads.first() {
            variant.declare_models(workload);
        }
        tried.push(Tried { point, variant, summaries: Vec::new() });
    }
    if tried.is_empty() {
        let reason = "no scorer is left at any point".to_owned();
        return Err(SimulateError::Flag { flag: "--sweep", reason });
    }
    Ok(tried)
}

/// Runs every candidate with every seed.
fn measure(
    args: &SimulateArgs,
    setting: &Setting,
    tried: &mut [Tried],
    output: &mut Output,
) -> Result<(), SimulateError> {
    let seeds = setting.workloads.len();
    let jobs: Vec<(usize, usize)> =
        (0..tried.len()).flat_map(|index| (0..seeds).map(move |seed| (index, seed))).collect();
    let variants: Vec<&Variant> = tried.iter().map(|one| &one.variant).collect();
    let results = run_all(&jobs, args.threads(), output, |(index, seed)| {
        let variant = variants.get(*index).ok_or(SimulateError::NoVariant)?;
        Ok(setting.run(variant, *seed)?.1)
    })?;
    for (one, summaries) in tried.iter_mut().zip(results.chunks(seeds.max(1))) {
        one.summaries = summaries.to_vec();
    }
    Ok(())
}

/// Runs the unchanged configuration.
fn incumbent(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    output: &mut Output,
) -> Result<Tried, SimulateError> {
    let variant = plan.variants.first().ok_or(SimulateError::NoVariant)?.clone();
    let mut tried =
        [Tried { point: Point { settings: Vec::new() }, variant, summaries: Vec::new() }];
    measure(args, &plan.setting, &mut tried, output)?;
    let [incumbent] = tried;
    Ok(incumbent)
}

/// Successive halving: short runs of all candidates, longer ones of the best third, and so on.
fn halve(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    goal: &Goal,
    mut tried: Vec<Tried>,
    output: &mut Output,
) -> Result<Vec<Tried>, SimulateError> {
    // If the grid is larger than the budget, a sample of it is used.
    let mut random = Stream::new(args.seed, Purpose::Perturbations, u64::MAX);
    while tried.len() > args.budget.max(1) {
        let at = usize::try_from(random.below(tried.len() as u64)).unwrap_or(0);
        tried.swap_remove(at);
    }
    let mut part = FIRST_PART;
    while tried.len() > ETA && part < 1.0 {
        let mut setting = plan.setting.clone();
        setting.workloads =
            // One seed: in the early rounds breadth is worth more than certainty.
            plan.setting.workloads.iter().take(1).map(|one| one.first_part(part)).collect();
        measure(args, &setting, &mut tried, output)?;
        tried.sort_by(|a, b| goal.value(&a.summaries).total_cmp(&goal.value(&b.summaries)));
        tried.truncate(tried.len().div_ceil(ETA).max(ETA));
        part *= ETA as f64;
    }
    Ok(tried)
}

/// The gain of the best point over the unchanged configuration, and the number of worlds in which
/// it wins.
struct Vote {
    best: usize,
    difference: Difference,
    is_better: bool,
    wins: usize,
}

fn vote(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    goal: &Goal,
    tried: &[Tried],
    incumbent: &Tried,
    output: &mut Output,
) -> Result<Option<Vote>, SimulateError> {
    let value = |one: &Tried| goal.value(&one.summaries);
    let ranked = tried.iter().enumerate().min_by(|(_, a), (_, b)| value(a).total_cmp(&value(b)));
    let Some((best, winner)) = ranked else { return Ok(None) };
    let difference = difference(goal.figure, goal.aim, &incumbent.summaries, &winner.summaries);
    // A single seed has no interval, but the worlds may still agree.
    let is_open =
        matches!(difference.verdict, Verdict::Better | Verdict::CannotTell(Doubt::OneSeed));
    let is_better = value(winner) < value(incumbent);
    let mut vote = Vote { best, difference, is_better, wins: 0 };
    // Ten more pairs of runs would change nothing about the advice.
    if !is_open || !is_better || !goal.is_worth_a_reload(&vote.difference) {
        return Ok(Some(vote));
    }
    let names: Vec<String> =
        incumbent.variant.config.backends.iter().map(|backend| backend.name.clone()).collect();
    let worlds: Vec<u64> = (0..WORLDS).collect();
    let results = run_all(&worlds, args.threads(), output, |world| {
        let setting = plan.setting.perturbed(*world, &names);
        let of = |variant: &Variant| -> Result<f64, SimulateError> {
            Ok(goal.value(&[setting.run(variant, 0)?.1]))
        };
        Ok(of(&winner.variant)? < of(&incumbent.variant)?)
    })?;
    vote.wins = results.into_iter().filter(|won| *won).count();
    Ok(Some(vote))
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

fn render(
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
        marks.push("best");
    } else if one.summaries.len() > 1
        && matches!(
            difference(goal.figure, goal.aim, &best.summaries, &one.summaries).verdict,
            Verdict::CannotTell(Doubt::Chance)
        )
    {
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
    if vote.wins >= WINS {
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
        Verdict::Better | Verdict::CannotTell(Doubt::OneSeed) if vote.wins > 0 => format!(
            "{} is better only in {} of {WORLDS} worlds with errors of the model in them",
            best.point.name(),
            vote.wins
        ),
        Verdict::Better | Verdict::Worse | Verdict::CannotTell(_) => {
            format!("no point has a better {} than the configuration as it is", goal.figure)
        }
    };
    format!("\nNo advice: {reason}\n")
}

fn to_json(goal: &Goal, tried: &[Tried], incumbent: &Tried, vote: Option<&Vote>) -> Value {
    let one = |one: &Tried| {
        json!({
            "settings": one.point.settings.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
            "seeds": one.summaries.iter().map(summary_json).collect::<Vec<_>>(),
            "pareto": is_pareto(one, tried),
        })
    };
    let advice = vote.filter(|vote| vote.wins >= WINS).and_then(|vote| tried.get(vote.best));
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
