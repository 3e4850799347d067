//! Learns an engine's step time and slots from a run, and measures how well it predicts unseen
//! requests.

mod slots;

use super::engine::{EngineSpec, SpecError, StepTime, picoseconds};
use super::minimize::minimize;
use super::run::{Latencies, RecordedRun};
use super::workload::rounded;
use slots::shown_limit;
pub use slots::{ShownLimit, lent_limit};

/// The number of searches, each of which starts from the result of the last, and the rounds of
/// each: enough for the four coefficients to converge on the recorded runs.
const SEARCHES: usize = 3;
const ROUNDS: usize = 50;

/// The penalty of a coefficient that doubles or becomes 0, relative to the start of its search: a
/// weak prior. Coefficients that the run determines follow the run; the others keep their values. A
/// row may be far off, so the penalty is relative to the start of each search.
const PRIOR: f64 = 0.01;

/// The number of streams that cost as much as the rest of a step, where the second search starts.
/// From a row in which streams cost almost nothing, no small change reveals their cost.
const STREAMS_OF_A_BASE: u64 = 20;
/// The ratio of errors below which the result of a later search is preferred.
const SURELY_BETTER: f64 = 0.9;

/// The front-end time where the search starts, in picoseconds.
const FRONT_END: f64 = 4e9;

/// Relative prediction errors: predicted / measured - 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Errors {
    /// The error of the mean.
    pub mean: f64,
    /// The error of the 50th percentile.
    pub p50: f64,
    /// The error of the 99th percentile.
    pub p99: f64,
    /// The sum of absolute errors over the sum of measurements (WAPE).
    pub weighted: f64,
}

impl Errors {
    /// Compares predictions with measurements, request by request.
    pub fn of(predicted: &[f64], measured: &[f64]) -> Self {
        let ratio = |at: fn(&[f64]) -> f64| at(predicted) / at(measured) - 1.0;
        let off: f64 = predicted.iter().zip(measured).map(|(a, b)| (a - b).abs()).sum();
        Self {
            mean: ratio(mean),
            p50: ratio(|values| percentile(values, 0.5)),
            p99: ratio(|values| percentile(values, 0.99)),
            weighted: off / measured.iter().sum::<f64>(),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the percentile of sorted values, interpolated between the two nearest.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * sorted.len().saturating_sub(1) as f64;
    let part = place.fract();
    let mut above = sorted.iter().enumerate().filter(|(index, _)| *index as f64 >= place.floor());
    let (low, high) = (above.next(), above.next());
    let low = low.map_or(0.0, |(_, value)| *value);
    high.map_or(low, |(_, high)| low + part * (high - low))
}

/// The errors of all three latencies.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RunErrors {
    /// The errors of the time to the first token (TTFT).
    pub first_token: Errors,
    /// The errors of the time per further token (TPOT).
    pub per_token: Errors,
    /// The errors of the time to the last token.
    pub total: Errors,
}

impl RunErrors {
    /// Compares a simulated run with the measured one.
    pub fn of(predicted: &[Latencies], measured: &[Latencies]) -> Self {
        let errors = |field: fn(&Latencies) -> f64| {
            let all = |latencies: &[Latencies]| latencies.iter().map(field).collect::<Vec<_>>();
            Errors::of(&all(predicted), &all(measured))
        };
        Self {
            first_token: errors(|one| one.first_token),
            per_token: errors(|one| one.per_token),
            total: errors(|one| one.total),
        }
    }

    fn weighted(&self) -> f64 {
        self.first_token.weighted + self.per_token.weighted + self.total.weighted
    }
}

/// An engine learned from the first half of a run; its maximum number of requests at a time from
/// all of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineFit {
    pub step_time: StepTime,
    /// The maximum number of requests at a time; `None` if it is that of the start.
    pub max_requests: Option<u32>,
    /// The time between penstock and the first step of a request, in picoseconds: network, front
    /// end and tokenizer; 0 for runs that were measured at the engine.
    pub front_end: u64,
    /// The errors on the half it was learned from.
    pub learned: RunErrors,
    /// The errors on the other half.
    pub other: RunErrors,
}

impl EngineFit {
    /// Returns an engine with what was learned; everything else is that of `start`, and its limit
    /// of requests at a time if that is lower.
    pub fn engine(&self, start: &EngineSpec) -> EngineSpec {
        let spec = match self.max_requests {
            Some(count) if count < start.max_requests => start.clone().with_max_requests(count),
            Some(_) | None => start.clone(),
        };
        let (step_time, front_end) = (self.step_time.into(), Some(self.front_end));
        EngineSpec { step_time, front_end, ..spec }
    }

    /// Returns `other` if its errors are smaller by more than chance.
    fn or_surely_better(self, other: Self) -> Self {
        let is_better = other.learned.weighted() < SURELY_BETTER * self.learned.weighted();
        if is_better { other } else { self }
    }
}

/// Learns a step time from the first half of a run, on an engine with the limits of `start`, and
/// the number of requests at a time where the run shows a lower one. The search starts from the
/// step time of `start` and tries nothing below `least`, the limit of the hardware. The cost per
/// attention pair stays as it is: runs with prompts below some 4,000 tokens do not show it.
///
/// # Errors
/// When `start` describes no engine.
pub fn fit(
    run: &RecordedRun,
    start: &EngineSpec,
    least: &StepTime,
) -> Result<EngineFit, SpecError> {
    fit_first(run.len() / 2, run, start, least)
}

/// Learns a step time from the first `learned` requests of a run; the others only add load.
///
/// # Errors
/// When `start` describes no engine.
pub fn fit_first(
    learned: usize,
    run: &RecordedRun,
    start: &EngineSpec,
    least: &StepTime,
) -> Result<EngineFit, SpecError> {
    start.validate()?;
    let found = fit_steps(learned, run, start, least)?;
    let Some(count) = shown_limit(run, start) else { return Ok(found) };
    let spec = start.clone().with_max_requests(count);
    let limited = fit_steps(learned, run, &spec, least)?;
    let limited = EngineFit { max_requests: Some(count), ..limited };
    // Requests that wait for something else look alike: only the times of the run decide.
    Ok(found.or_surely_better(limited))
}

/// Learns a step time on an engine with the limits of `start`.
fn fit_steps(
    learned: usize,
    run: &RecordedRun,
    start: &EngineSpec,
    least: &StepTime,
) -> Result<EngineFit, SpecError> {
    let row = start.step_time.linear().ok_or(SpecError::Table)?;
    let from_row = fit_from(&row, learned, run, start, least)?;
    let other = StepTime { per_decode: row.base / STREAMS_OF_A_BASE, ..row };
    let from_other = fit_from(&other, learned, run, start, least)?;
    // The row is measured on this hardware: a slightly better fit is more likely chance.
    Ok(from_row.or_surely_better(from_other))
}

/// Learns a step time with a search that starts from `first`.
fn fit_from(
    first: &StepTime,
    learned: usize,
    run: &RecordedRun,
    start: &EngineSpec,
    least: &StepTime,
) -> Result<EngineFit, SpecError> {
    let measured = run.measured();
    // Errors on what was learned from would flatter the fit.
    let half = learned.min(measured.len());
    let with = |factors: &[f64; 5]| {
        let step_time = scaled(first, factors, least).into();
        let front_end = if run.is_at_penstock() { rounded(FRONT_END * factors[4]) } else { 0 };
        (EngineSpec { step_time, ..start.clone() }, front_end)
    };
    let errors = |spec: &EngineSpec, front_end| -> Result<(RunErrors, RunErrors), SpecError> {
        let predicted = run.simulated(spec, front_end)?;
        let (first, second) = predicted.split_at(half.min(predicted.len()));
        let (learned, other) = measured.split_at(half);
        Ok((RunErrors::of(first, learned), RunErrors::of(second, other)))
    };
    let off = |factors: &[f64; 5]| {
        let (spec, front_end) = with(factors);
        errors(&spec, front_end).map_or(f64::INFINITY, |(learned, _)| learned.weighted())
    };
    let best = if run.is_at_penstock() {
        search(off)
    } else {
        let [base, token, decode, context] =
            search(|&[base, token, decode, context]| off(&[base, token, decode, context, 1.0]));
        [base, token, decode, context, 1.0]
    };
    let (spec, front_end) = with(&best);
    let (learned, other) = errors(&spec, front_end)?;
    let step_time = scaled(first, &best, least);
    Ok(EngineFit { step_time, max_requests: None, front_end, learned, other })
}

/// Returns the factors that minimize `value`.
fn search<const N: usize>(value: impl Fn(&[f64; N]) -> f64) -> [f64; N] {
    let mut best = [1.0_f64; N];
    for _ in 0..SEARCHES {
        // The simplex method cannot start from 0.
        let start = best.map(|factor| factor.max(0.01));
        (best, _) = minimize(start, ROUNDS, |factors| {
            let moved = factors.iter().zip(&start).map(|(factor, start)| distance(factor / start));
            value(factors) + PRIOR * moved.sum::<f64>()
        });
    }
    best
}

/// Returns how far a coefficient has moved if `ratio` is its relative change: 1 at a ratio of 0,
/// and the squared number of doublings above 1.
fn distance(ratio: f64) -> f64 {
    if ratio > 1.0 { ratio.log2().powi(2) } else { (ratio - 1.0).powi(2) }
}

fn scaled(time: &StepTime, factors: &[f64; 5], least: &StepTime) -> StepTime {
    let [base, token, decode, context, _] = factors;
    let times = |value: u64, factor: &f64| picoseconds(value as f64 * factor * 1e-12);
    StepTime {
        // Never 0: steps without a duration would not advance time.
        base: times(time.base, base).max(least.base).max(1),
        per_token: times(time.per_token, token).max(least.per_token),
        per_decode: times(time.per_decode, decode),
        per_context: times(time.per_context, context),
        per_pair: time.per_pair,
    }
}
