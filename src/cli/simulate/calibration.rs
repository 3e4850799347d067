//! `--yesterday`: learns the engines from an access log, and compares what is simulated with what was logged.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::arguments::SimulateArgs;
use super::error::SimulateError;
use super::setup::{Plan, read_text};
use super::table::seconds;
use crate::cli::engines::engine_of;
use crate::sim::engine::StepTime;
use crate::sim::fit::fit;
use crate::sim::run::{Run, Timing};
use crate::sim::statistics::Percentiles;
use crate::sim::workload::read_timings;
use crate::sim::world::Delays;

/// The largest error with which advice is given.
const MOST_ERROR: f64 = 0.25;

/// One figure, as it was logged and as it is simulated, in seconds.
struct Figure {
    name: &'static str,
    logged: f64,
    simulated: f64,
    /// Whether advice depends on it.
    counts: bool,
}

impl Figure {
    fn error(&self) -> f64 {
        if self.logged > 0.0 { self.simulated / self.logged - 1.0 } else { 0.0 }
    }
}

/// How well a simulation agrees with a log.
pub(super) struct Calibration {
    learned_from: String,
    streams: usize,
    step_time: StepTime,
    front_end: u64,
    figures: Vec<Figure>,
}

/// Learns the engines of the plan from the log, and compares.
pub(super) fn calibrate(
    args: &SimulateArgs,
    path: &Path,
    plan: &mut Plan,
) -> Result<Calibration, SimulateError> {
    let backends = read_timings(&read_text(path)?);
    let all: Vec<Timing> = backends.values().flatten().cloned().collect();
    let (name, most) =
        backends.into_iter().max_by_key(|(_, timings)| timings.len()).unwrap_or_default();
    let streams = most.len();
    let run =
        Run::of(most).map_err(|source| SimulateError::TooFew { path: path.to_owned(), source })?;
    let run = run.at_penstock();
    let given = args.engines.first().map(|given| given.rsplit('=').next().unwrap_or(given));
    let least = given.map(engine_of).transpose()?.map(|chosen| chosen.least).unwrap_or_default();
    let spec = plan.setting.engines.first().ok_or(SimulateError::NoVariant)?;
    let found = fit(&run, spec, &least)?;
    let step_time = found.step_time;
    plan.setting.engines.iter_mut().for_each(|engine| engine.step_time = step_time.into());
    plan.setting.delays = Delays::of_front_end(found.front_end);
    plan.engine_names.iter_mut().for_each(|name| *name = "learned from the log".to_owned());
    let variant = plan.variants.first().ok_or(SimulateError::NoVariant)?;
    let summary = plan.setting.run(variant, 0)?.1;
    let of = |figure: fn(&Timing) -> f64| Percentiles::of(all.iter().map(figure).collect());
    let first = of(|one| one.first_token - one.arrived);
    let total = of(|one| one.last_token - one.arrived);
    let per_token = of(|one| {
        (one.last_token - one.first_token) / f64::from(one.output_tokens.saturating_sub(1).max(1))
    });
    let figure = |name, logged, simulated, counts| Figure { name, logged, simulated, counts };
    Ok(Calibration {
        learned_from: name,
        streams,
        step_time,
        front_end: found.front_end,
        figures: vec![
            figure("TTFT mean", first.mean, summary.first_token.mean, true),
            figure("TTFT p99", first.p99, summary.first_token.p99, false),
            figure("TPOT mean", per_token.mean, summary.per_token.mean, true),
            figure("E2E mean", total.mean, summary.total.mean, true),
            figure("E2E p99", total.p99, summary.total.p99, false),
        ],
    })
}

impl Calibration {
    /// The largest error of a mean.
    fn error(&self) -> f64 {
        let counted = self.figures.iter().filter(|figure| figure.counts);
        counted.map(|figure| figure.error().abs()).fold(0.0, f64::max)
    }

    /// Whether advice may be given.
    pub(super) fn check(&self) -> Result<(), SimulateError> {
        let error = self.error();
        if error > MOST_ERROR {
            return Err(SimulateError::Uncalibrated { error: error * 100.0 });
        }
        Ok(())
    }

    pub(super) fn to_text(&self) -> String {
        let StepTime { base, per_token, per_decode, per_context, per_pair } = self.step_time;
        let mut text = format!(
            "Learned from {} streams of {}: {:.2} ms per step, {:.1} µs per prompt token, {:.1} µs per decoding request, \
             {:.1} µs per 1,000 tokens of context, {} µs per million attention pairs, {:.1} ms before the first step\n\n\
             {:<12} {:>10} {:>10} {:>9}\n",
            self.streams,
            self.learned_from,
            base as f64 / 1e9,
            per_token as f64 / 1e6,
            per_decode as f64 / 1e6,
            per_context as f64 / 1e3,
            per_pair,
            self.front_end as f64 / 1e9,
            "",
            "logged",
            "simulated",
            "error"
        );
        for figure in &self.figures {
            let Figure { name, logged, simulated, .. } = figure;
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
        json!({"calibration": {"backend": self.learned_from, "streams": self.streams, "figures": figures}})
    }
}
