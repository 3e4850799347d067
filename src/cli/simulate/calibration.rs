//! `--yesterday`: learns the engines from an access log, and compares the simulation with the log.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use penstock_sim::engine::StepTime;
use penstock_sim::fit::{EngineFit, ShownLimit, fit, lent_limit};
use penstock_sim::run::{RecordedRun, Timing};
use penstock_sim::statistics::Percentiles;
use penstock_sim::workload::read_timings;
use serde_json::{Value, json};

use super::arguments::SimulateArgs;
use super::error::SimulateError;
use super::parallel::run_all;
use super::setup::SimulationPlan;
use super::table::seconds;
use super::template::read_text;
use crate::cli::output::Output;

/// The maximum error up to which advice is given.
// Beyond it, a difference between configurations says more about the model than about them.
const MAX_ERROR: f64 = 0.25;

/// One figure, logged and simulated, in seconds.
struct CalibrationFigure {
    name: &'static str,
    logged: f64,
    simulated: f64,
    /// The objective of a sweep whose advice depends on it; `None` if all advice does.
    objective: Option<&'static str>,
}

impl CalibrationFigure {
    fn error(&self) -> f64 {
        if self.logged > 0.0 { self.simulated / self.logged - 1.0 } else { 0.0 }
    }
}

/// The agreement of a simulation with a log.
pub(super) struct Calibration {
    learned: Vec<LearnedEngine>,
    borrowed: Vec<BorrowedEngine>,
    figures: Vec<CalibrationFigure>,
}

/// A backend with too few streams, which gets the engine of another one.
struct BorrowedEngine {
    backend: String,
    streams: usize,
    from: String,
}

/// An engine learned from the streams of a backend.
struct LearnedEngine {
    backend: String,
    streams: usize,
    fit: EngineFit,
    /// True if another backend showed the maximum number of requests at a time.
    is_limit_lent: bool,
}

impl LearnedEngine {
    /// Makes it the engine of the backend at `index`. A configured limit of requests at a time
    /// holds against one that another backend showed.
    fn apply_to(&self, plan: &mut SimulationPlan, index: usize) {
        let backends = plan.variants.first().map_or(&[][..], |first| &first.config.backends);
        let backend = backends.get(index);
        let keeps_limit =
            backend.is_some_and(|one| one.name != self.backend && one.num_parallel.is_some());
        let max_requests = self.fit.max_requests.filter(|_| !keeps_limit);
        if let Some(engine) = plan.setting.engines.get_mut(index) {
            *engine = EngineFit { max_requests, ..self.fit }.engine(engine);
        }
        if let Some(name) = plan.engine_names.get_mut(index) {
            *name = format!("learned from {}", self.backend);
        }
    }
}

/// Learns the engine of every backend that has enough streams in the log. The other backends get
/// the engine of the backend with the most streams; those that a flag names keep the engine of the
/// flag.
fn learn_engines(
    args: &SimulateArgs,
    path: &Path,
    plan: &mut SimulationPlan,
    mut logged: BTreeMap<String, Vec<Timing>>,
    output: &mut Output,
) -> Result<(Vec<LearnedEngine>, Vec<BorrowedEngine>), SimulateError> {
    let first = plan.variants.first().ok_or(SimulateError::NoVariant)?;
    let names: Vec<String> =
        first.config.backends.iter().map(|backend| backend.name.clone()).collect();
    let open: Vec<usize> = (0..names.len())
        .filter(|index| plan.choices.get(*index).is_some_and(|choice| !choice.is_given))
        .collect();
    let Some(first_open) = open.first().copied() else { return Ok(Default::default()) };
    let counts: BTreeMap<String, usize> =
        logged.iter().map(|(name, timings)| (name.clone(), timings.len())).collect();
    // If the log knows none of the names, one engine is used for all.
    let most = logged.iter().max_by_key(|(_, timings)| timings.len());
    let most = most.map(|(name, _)| name.clone()).unwrap_or_default();
    let mut jobs: Vec<(usize, String, RecordedRun)> = Vec::new();
    for index in open.iter().copied().filter(|index| names.get(*index) != Some(&most)) {
        let Some(name) = names.get(index) else { continue };
        let run = logged.remove(name).and_then(|timings| RecordedRun::of(timings).ok());
        // A backend with too few streams is left out: it gets the engine of the busiest one.
        jobs.extend(run.map(|run| (index, name.clone(), run.at_penstock())));
    }
    let index = open.iter().copied().find(|index| names.get(*index) == Some(&most));
    let run = RecordedRun::of(logged.remove(&most).unwrap_or_default())
        .map_err(|source| SimulateError::TooFew { path: path.to_owned(), source })?;
    jobs.push((index.unwrap_or(first_open), most, run.at_penstock()));
    let (engines, choices) = (&plan.setting.engines, &plan.choices);
    let mut learned = run_all(&jobs, args.threads(), output, |(index, name, run)| {
        let spec = engines.get(*index).ok_or(SimulateError::NoVariant)?;
        let choice = choices.get(*index).ok_or(SimulateError::NoVariant)?;
        let fit = fit(run, spec, &choice.least)?;
        let (backend, streams) = (name.clone(), run.len());
        Ok(LearnedEngine { backend, streams, fit, is_limit_lent: false })
    })?;
    lend_limits(plan, &jobs, &mut learned);
    let mut borrowed = Vec::new();
    for index in open {
        let Some(name) = names.get(index) else { continue };
        let own = learned.iter().find(|one| *name == one.backend);
        // The last of the jobs was that of the busiest backend.
        let Some(engine) = own.or_else(|| learned.last()) else { continue };
        engine.apply_to(plan, index);
        if own.is_none() {
            let (backend, from) = (name.clone(), engine.backend.clone());
            let streams = counts.get(name).copied().unwrap_or(0);
            borrowed.push(BorrowedEngine { backend, streams, from });
        }
    }
    Ok((learned, borrowed))
}

/// Gives the engines that show no limit of requests at a time that of an engine of their kind.
fn lend_limits(
    plan: &SimulationPlan,
    jobs: &[(usize, String, RecordedRun)],
    learned: &mut [LearnedEngine],
) {
    let backends = plan.variants.first().map_or(&[][..], |first| &first.config.backends);
    let shown = jobs.iter().zip(&*learned).map(|((index, _, run), one)| {
        let backend = backends.get(*index).filter(|backend| backend.num_parallel.is_none());
        let assumed = plan.setting.engines.get(*index).map_or(0, |engine| engine.max_requests);
        let kind = backend.map(|backend| backend.engine);
        ShownLimit { kind, assumed, learned: one.fit.max_requests, run }
    });
    let shown: Vec<ShownLimit<'_>> = shown.collect();
    for (one, limit) in learned.iter_mut().zip(&shown) {
        let lent = lent_limit(limit, &shown);
        one.is_limit_lent = lent.is_some();
        one.fit.max_requests = one.fit.max_requests.or(lent);
    }
}

/// Learns the engines of the plan from the log, and compares simulation and log.
pub(super) fn calibrate(
    args: &SimulateArgs,
    path: &Path,
    plan: &mut SimulationPlan,
    output: &mut Output,
) -> Result<Calibration, SimulateError> {
    let logged = read_timings(&read_text(path)?);
    let all: Vec<Timing> = logged.values().flatten().cloned().collect();
    let (learned, borrowed) = learn_engines(args, path, plan, logged, output)?;
    let variant = plan.variants.first().ok_or(SimulateError::NoVariant)?;
    let summary = plan.setting.run(variant, 0)?.1;
    let of = |figure: fn(&Timing) -> f64| Percentiles::of(all.iter().map(figure).collect());
    let first = of(|one| one.first_token - one.arrived);
    let total = of(|one| one.last_token - one.arrived);
    // A single token has no time per further token, as in the summary of a simulation.
    let gaps = |one: &Timing| f64::from(one.output_tokens.saturating_sub(1));
    let several = all.iter().filter(|one| gaps(one) > 0.0);
    let per_token = Percentiles::of(
        several.map(|one| (one.last_token - one.first_token) / gaps(one)).collect(),
    );
    let figure =
        |name, logged, simulated| CalibrationFigure { name, logged, simulated, objective: None };
    // The tail of one day is chance: it is shown, and stops only advice about it.
    let tail = |name, logged, simulated, objective| CalibrationFigure {
        objective: Some(objective),
        ..figure(name, logged, simulated)
    };
    Ok(Calibration {
        learned,
        borrowed,
        figures: vec![
            figure("TTFT mean", first.mean, summary.first_token.mean),
            tail("TTFT p99", first.p99, summary.first_token.p99, "ttft_p99"),
            figure("TPOT mean", per_token.mean, summary.per_token.mean),
            tail("TPOT p99", per_token.p99, summary.per_token.p99, "tpot_p99"),
            figure("E2E mean", total.mean, summary.total.mean),
            tail("E2E p99", total.p99, summary.total.p99, "e2e_p99"),
        ],
    })
}

impl Calibration {
    /// Checks that advice may be given about a figure.
    pub(super) fn check(&self, objective: &str) -> Result<(), SimulateError> {
        let counted =
            self.figures.iter().filter(|one| one.objective.is_none_or(|one| one == objective));
        let worst = counted.max_by(|a, b| a.error().abs().total_cmp(&b.error().abs()));
        match worst.map(|figure| (figure.name, figure.error().abs())) {
            Some((figure, error)) if error > MAX_ERROR => {
                Err(SimulateError::Uncalibrated { figure, error: error * 100.0 })
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        for LearnedEngine { backend, streams, fit, is_limit_lent } in &self.learned {
            let EngineFit { step_time, max_requests, front_end, .. } = *fit;
            let StepTime { base, per_token, per_decode, per_context, per_pair } = step_time;
            _ = write!(
                text,
                "Learned from {streams} streams of {backend}: {:.2} ms per step, {:.1} µs per prompt token, {:.1} µs per \
                 decoding request, {:.1} µs per 1,000 tokens of context, {per_pair} µs per million attention pairs, \
                 {:.1} ms before the first step",
                base as f64 / 1e9,
                per_token as f64 / 1e6,
                per_decode as f64 / 1e6,
                per_context as f64 / 1e3,
                front_end as f64 / 1e9,
            );
            if let Some(count) = max_requests {
                _ = write!(text, ", at most {count} requests at a time");
            }
            text.push_str(if *is_limit_lent { ", as another backend shows\n" } else { "\n" });
        }
        for BorrowedEngine { backend, streams, from } in &self.borrowed {
            _ = writeln!(
                text,
                "{backend} has too few streams to learn from ({streams}), and gets the engine of {from}"
            );
        }
        _ = writeln!(text, "\n{:<12} {:>10} {:>10} {:>9}", "", "logged", "simulated", "error");
        for figure in &self.figures {
            let CalibrationFigure { name, logged, simulated, .. } = figure;
            let error = figure.error() * 100.0;
            let (logged, simulated) = (seconds(*logged), seconds(*simulated));
            _ = writeln!(text, "{name:<12} {logged:>10} {simulated:>10} {error:>+7.1} %");
        }
        text.push('\n');
        text
    }

    pub(super) fn to_json(&self) -> Value {
        let figures: Vec<Value> = self
            .figures
            .iter()
            .map(|one| {
                json!({"figure": one.name, "logged": one.logged, "simulated": one.simulated, "error": one.error()})
            })
            .collect();
        let engines: Vec<Value> = self
            .learned
            .iter()
            .map(|one| {
                let max_requests = one.fit.max_requests;
                json!({
                    "backend": one.backend, "streams": one.streams, "max_requests": max_requests,
                    "is_limit_lent": one.is_limit_lent,
                })
            })
            .collect();
        let borrowed: Vec<Value> = self
            .borrowed
            .iter()
            .map(|one| json!({"backend": one.backend, "streams": one.streams, "from": one.from}))
            .collect();
        json!({"calibration": {"engines": engines, "borrowed": borrowed, "figures": figures}})
    }
}
