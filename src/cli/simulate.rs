//! `penstock simulate`: the effect of a configuration on a workload, computed by the router of the
//! proxy over simulated engines.

mod advice;
mod arguments;
mod assertion;
mod calibration;
mod engine_choice;
mod error;
mod formats;
mod overload;
mod parallel;
mod plot;
mod regrets;
mod setup;
mod sweep;
mod table;
mod template;
mod tune;

use serde_json::{Value, json};

use super::error::CliError;
use super::output::Output;
use advice::Goal;
pub(super) use arguments::SimulateArgs;
use error::SimulateError;
use formats::{difference_json, summary_json};
use parallel::run_all;
use penstock_sim::compare::compare;
use penstock_sim::experiment::Variant;
use penstock_sim::summary::Summary;
use setup::SimulationPlan;

/// The maximum width of a column's name.
const MAX_WIDTH: usize = 22;

/// The results of one configuration.
struct Arm<'a> {
    variant: &'a Variant,
    summaries: Vec<Summary>,
}

pub(super) fn run(args: &SimulateArgs, output: &mut Output) -> Result<(), CliError> {
    if args.list {
        return output.text(setup::list());
    }
    let oracles = if args.oracle { 2 } else { 0 };
    let assertions = assertion::read_all(&args.assertions, args.configs.len().max(1) + oracles)?;
    // Before anything runs, even without a sweep: a misspelled name must not pass for a known one.
    let goal = Goal::parse(&args.objective)?;
    let mut plan = SimulationPlan::new(args)?;
    for note in plan.notes.drain(..) {
        output.complain("note", note);
    }
    for warning in plan.warnings() {
        output.complain("warning", warning);
    }
    let calibration = match &args.yesterday {
        Some(path) => Some(calibration::calibrate(args, path, &mut plan, output)?),
        None => None,
    };
    if let Some(calibration) = &calibration {
        let is_json = args.json;
        let text =
            if is_json { format!("{}\n", calibration.to_json()) } else { calibration.to_text() };
        output.text(text)?;
        calibration.check(&args.objective)?;
    }
    let has_one = args.configs.len() <= 1;
    if !args.sweep.is_empty() || (calibration.is_some() && has_one) {
        return tune::run(args, &plan, &goal, output);
    }
    plan.find_capacity()?;
    let arms = measure(args, &plan, output)?;
    if let Some(path) = &args.requests {
        formats::write_requests(path, &plan)?;
    }
    if let Some(path) = &args.plot {
        plot::write(path, &plan)?;
    }
    let text = if args.json {
        format!("{}\n", to_json(&plan, &arms))
    } else {
        table::render(&plan, &arms)
    };
    output.text(text)?;
    if let Some(count) = args.regret {
        let report = regrets::report(args, &plan, count, output)?;
        output.text(report)?;
    }
    // Last, so that a failed assertion hides no result.
    assertion::check_all(&assertions, &arms).map_err(CliError::from)
}

/// Runs every configuration with every seed.
fn measure<'a>(
    args: &SimulateArgs,
    plan: &'a SimulationPlan,
    output: &mut Output,
) -> Result<Vec<Arm<'a>>, SimulateError> {
    let seeds = plan.setting.workloads.len();
    let variants = 0..plan.variants.len();
    // The seeds of a configuration lie next to each other, as `chunks` expects below.
    let jobs: Vec<(usize, usize)> =
        variants.flat_map(|variant| (0..seeds).map(move |seed| (variant, seed))).collect();
    let results = run_all(&jobs, args.threads(), output, |(index, seed)| {
        let variant = plan.variants.get(*index).ok_or(SimulateError::NoVariant)?;
        Ok(plan.setting.run(variant, *seed)?.1)
    })?;
    let arms = plan.variants.iter().zip(results.chunks(seeds));
    Ok(arms.map(|(variant, results)| Arm { variant, summaries: results.to_vec() }).collect())
}

fn to_json(plan: &SimulationPlan, arms: &[Arm<'_>]) -> Value {
    let base = arms.first();
    let configurations: Vec<Value> = arms
        .iter()
        .map(|arm| {
            let summaries = arm.summaries.iter().map(summary_json);
            let differences = base.filter(|base| !std::ptr::eq(*base, arm)).map(|base| {
                let differences = compare(&base.summaries, &arm.summaries);
                differences.iter().map(difference_json).collect::<Vec<_>>()
            });
            json!({
                "name": arm.variant.name,
                "config_hash": template::hash_of(&format!("{:?}", arm.variant.config)),
                "capacity": plan.capacity.map(|capacity| capacity.rate),
                "load": plan.load().map(|load| load.share),
                "load_error": plan.load().map(|load| load.error),
                "seeds": summaries.collect::<Vec<_>>(),
                "against_first": differences,
            })
        })
        .collect();
    json!({
        "penstock": env!("CARGO_PKG_VERSION"),
        "workload": plan.workload_name,
        "workload_hash": plan.workload_hash,
        "requests": plan.setting.workloads.first().map_or(0, |one| one.requests.len()),
        "rate": (!plan.is_closed_loop()).then_some(plan.rate),
        "engines": plan.engine_names,
        "seed": plan.setting.seed,
        "configurations": configurations,
    })
}

/// Shortens a name to its end, the most distinctive part.
fn short(name: &str) -> String {
    let count = name.chars().count();
    if count <= MAX_WIDTH {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count - MAX_WIDTH + 1).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests;
