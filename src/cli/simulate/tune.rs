//! Sweeps and searches: find the best settings and those as good, and check that the advice is
//! robust to the errors of the model.

use std::collections::BTreeSet;

use penstock_sim::compare::{ComparisonVerdict, Doubt};
use penstock_sim::experiment::{Experiment, Variant};
use penstock_sim::random::{Purpose, RandomStream};

use super::advice::{Goal, Tried, Vote, WORLDS, render, to_json};
use super::arguments::SimulateArgs;
use super::error::SimulateError;
use super::parallel::run_all;
use super::setup::{FleetSource, SimulationPlan};
use super::sweep::{Sweep, SweepPoint, grid};
use crate::cli::error::CliError;
use crate::cli::output::Output;

/// The part of a workload that the first rung of a search runs.
const FIRST_PART: f64 = 0.1;
/// Successive halving: each rung keeps 1/`ETA` of the candidates, and the next one runs `ETA`
/// times longer.
const ETA: usize = 3;
/// The settings to try if none is named.
const USUAL: [&str; 2] = [
    "routing.strategy=weighted",
    "routing.preset=balanced,llm-d,sglang,lmetric,sticky,least-loaded",
];
pub(super) fn run(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    goal: &Goal,
    output: &mut Output,
) -> Result<(), CliError> {
    let usual = USUAL.map(str::to_owned);
    // With a log and no sweep, the presets are what a reader may want to know about.
    let given = if args.sweep.is_empty() { &usual[..] } else { &args.sweep };
    let sweeps: Vec<Sweep> =
        given.iter().map(|given| Sweep::parse(given)).collect::<Result<_, _>>()?;
    let mut tried = candidates(args, plan, &sweeps, output)?;
    if args.search.is_some() {
        tried = halve(args, plan, goal, tried, output)?;
    }
    measure(args, &plan.setting, &mut tried, output)?;
    let incumbent = incumbent(args, plan, output)?;
    let vote = vote(args, plan, goal, &tried, &incumbent, output)?;
    if args.json {
        return output.line(to_json(goal, &tried, &incumbent, vote.as_ref()));
    }
    output.text(render(goal, &sweeps, &tried, &incumbent, vote.as_ref()))
}

fn candidates(
    args: &SimulateArgs,
    plan: &SimulationPlan,
    sweeps: &[Sweep],
    output: &mut Output,
) -> Result<Vec<Tried>, SimulateError> {
    let sources = FleetSource::all(args);
    let source = sources.first().ok_or(SimulateError::NoVariant)?;
    // Those of the file have been printed.
    let mut printed: BTreeSet<String> = plan.warnings().into_iter().collect();
    let mut tried = Vec::new();
    for point in grid(sweeps)? {
        let Some(mut variant) = point.variant(source, args)? else { continue };
        for warning in &variant.config.warnings {
            if printed.insert(warning.to_string()) {
                output.complain("warning", format_args!("{}: {warning}", variant.name));
            }
        }
        if let Some(workload) = plan.setting.workloads.first() {
            variant.declare_models(workload);
        }
        tried.push(Tried::new(point, variant));
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
    setting: &Experiment,
    tried: &mut [Tried],
    output: &mut Output,
) -> Result<(), SimulateError> {
    let seeds = setting.workloads.len();
    let jobs: Vec<(usize, usize)> =
        (0..tried.len()).flat_map(|index| (0..seeds).map(move |seed| (index, seed))).collect();
    let variants: Vec<&Variant> = tried.iter().map(|one| &one.variant).collect();
    let is_blocked = setting.has_same_requests();
    let results = run_all(&jobs, args.threads(), output, |(index, seed)| {
        let variant = variants.get(*index).ok_or(SimulateError::NoVariant)?;
        match is_blocked {
            true => Ok(setting.run_in_blocks(variant, *seed)?),
            false => Ok((setting.run(variant, *seed)?.1, Vec::new())),
        }
    })?;
    for (one, runs) in tried.iter_mut().zip(results.chunks(seeds.max(1))) {
        (one.summaries, one.without) = runs.iter().cloned().unzip();
        one.without.retain(|blocks| !blocks.is_empty());
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
    let mut tried = [Tried::new(SweepPoint { settings: Vec::new() }, variant)];
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
    let mut random = RandomStream::new(args.seed, Purpose::Perturbations, u64::MAX);
    while tried.len() > args.budget {
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
    let difference = goal.difference(incumbent, winner);
    // A single request has no interval, but the worlds may still agree.
    let is_open = matches!(
        difference.verdict,
        ComparisonVerdict::Better | ComparisonVerdict::CannotTell(Doubt::OneSeed)
    );
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
