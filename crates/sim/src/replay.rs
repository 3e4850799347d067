//! Recent traffic under a new configuration: engines are learned from the traffic, the current
//! configuration shows the error of the simulation, and the new one is compared with it.

mod learned_engines;

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_api::units::{Timestamp, to_micros};
use penstock_config::{BackendConfig, Config};
use penstock_core::prefix::{most_replayed, unfold};
use penstock_core::routing::ReplayFields;
use serde::Serialize;

use super::compare::{Aim, ComparisonVerdict, Difference, compare, difference};
use super::engine::{EngineRow, EngineSpec, Slots, engine_rows};
use super::experiment::{Experiment, Variant};
use super::fit::{RunErrors, fit};
use super::run::{RecordedRun, RunError, Timing, mark_unseen};
use super::statistics::mean;
use super::summary::{Objective, Summary};
use super::workload::{Request, Workload, counted_block};
use super::world::{Delays, WorldError};
use learned_engines::{FittedRun, LearnedEngines};

/// The number of runs of each configuration, each with its own random numbers.
const SEEDS: usize = 3;
/// The maximum number of requests that an engine is learned from, and the total over all engines:
/// the search takes some hundred runs for each engine.
const MAX_LEARNED: usize = 400;
const MAX_LEARNED_OF_ALL: usize = 3200;
/// The minimum number of requests per engine, however many engines share the total.
const MIN_LEARNED: usize = 50;
/// The error of the current configuration beyond which a simulation shows nothing.
const MAX_ERROR: f64 = 0.25;

#[derive(Debug, Clone)]
pub struct ServedRequest {
    /// The end of the request.
    pub ended: Timestamp,
    /// The duration of the request.
    pub took: Duration,
    /// The time from arrival to the first token of a stream.
    pub first_token: Option<Duration>,
    /// The number of prompt tokens.
    pub input_tokens: u32,
    /// The number of prompt tokens as estimated from bytes, the unit of its blocks; 0 if unknown.
    pub estimated_tokens: u32,
    /// The number of response tokens.
    pub output_tokens: u32,
    pub model: Box<str>,
    /// The key or address of the client.
    pub client: Box<str>,
    /// The backend that responded.
    pub backend: Box<str>,
    /// The hashes of its prompt.
    pub fields: ReplayFields,
}

/// The reason why nothing can be compared.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The traffic is too little to learn an engine from.
    #[error("the recent traffic shows too little of the engines: {0}")]
    TooFew(#[from] RunError),
    /// The fleet cannot be simulated.
    #[error("{0}")]
    World(#[from] WorldError),
    /// No engine can be learned.
    #[error("no engine can be learned from the recent traffic")]
    NoEngine,
}

/// One figure under both configurations, in seconds or as a share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// The name of the figure.
    pub figure: &'static str,
    /// The value under the current configuration.
    pub now: f64,
    /// The value under the new configuration.
    pub then: f64,
    /// The verdict on the difference.
    pub verdict: &'static str,
}

/// The predicted effect of a new configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedEffect {
    /// The number of simulated requests.
    pub requests: usize,
    /// The number of requests that the new configuration would not serve.
    pub unserved: usize,
    /// The relative error of the simulated mean time to the first token, under the configuration
    /// that served most of the traffic.
    pub error: f64,
    /// True if the error is small enough to rely on the comparison.
    pub is_reliable: bool,
    pub figures: Vec<ComparedFigure>,
    /// The reason to refuse the new configuration, if there is one.
    pub regression: Option<String>,
}

/// The input of a comparison.
#[derive(Debug)]
pub struct ReplayInput<'a> {
    /// The current configuration, with the members of its groups as backends.
    pub current: Config,
    /// The time since which it is in force.
    pub current_since: Timestamp,
    /// The configuration before it.
    pub earlier: Option<EarlierConfig>,
    pub next: Config,
    pub served: &'a [ServedRequest],
    /// The number of KV-cache blocks, by the names of the backends whose engines report it.
    pub kv_blocks: BTreeMap<String, u32>,
    /// The regression beyond which the new configuration is refused.
    pub max_regression: f64,
}

/// A configuration that is no longer in force.
#[derive(Debug, Clone)]
pub struct EarlierConfig {
    pub config: Config,
    /// The time since which it was in force.
    pub since: Timestamp,
    /// The time at which it was replaced.
    pub until: Timestamp,
}

impl ReplayInput<'_> {
    /// Simulates both configurations and compares them.
    ///
    /// # Errors
    /// [`ReplayError`] if there is nothing to compare.
    pub fn compare(self) -> Result<PredictedEffect, ReplayError> {
        let workload = workload_of(self.served);
        let learned = self.learn_engines()?;
        let arm = |config: &Config, workload: &Workload| -> Result<Vec<Summary>, ReplayError> {
            let mut variant = Variant::new(String::new(), config.clone());
            variant.declare_models(workload);
            let setting = Experiment {
                // The same arrivals in each: only chance differs between the runs.
                workloads: vec![workload.clone(); SEEDS],
                engines: variant
                    .config
                    .backends
                    .iter()
                    .map(|one| learned.engine(&one.name, one.num_parallel))
                    .collect(),
                balancers: 1,
                seed: 1,
                delays: Delays::default(),
                faults: Vec::new(),
                reports_cached: true,
                objective: Objective { first_token: 2.0, per_token: 0.1 },
                judges_sheds: false,
            };
            (0..SEEDS).map(|seed| Ok(setting.run(&variant, seed)?.1)).collect()
        };
        let (now, then) = (arm(&self.current, &workload)?, arm(&self.next, &workload)?);
        let error = match self.served_by_one() {
            (None, part) if part.len() == self.served.len() => error_of(&now, part),
            (config, part) => {
                let config = config.unwrap_or(&self.current);
                error_of(&arm(config, &workload_of(part))?, part)
            }
        };
        Ok(self.report(&now, &then, error))
    }

    /// Returns the earlier configuration if it served most of the traffic, and the part that it or
    /// the current one served: only times that were measured under a configuration show the error
    /// of its simulation.
    fn served_by_one(&self) -> (Option<&Config>, &[ServedRequest]) {
        let first_of = |time: Timestamp| self.served.partition_point(|one| one.ended < time);
        let change = first_of(self.current_since);
        let (before, since) = self.served.split_at(change);
        let earlier = self.earlier.as_ref().map(|earlier| {
            let part = before.get(first_of(earlier.since)..first_of(earlier.until));
            (Some(&earlier.config), part.unwrap_or_default())
        });
        let earlier = earlier.filter(|(_, part)| part.len() > since.len());
        let (config, part) = earlier.unwrap_or((None, since));
        // After several reloads, the few requests of one configuration show nothing.
        if part.len() * 2 < self.served.len() { (None, self.served) } else { (config, part) }
    }

    fn report(&self, now: &[Summary], then: &[Summary], error: f64) -> PredictedEffect {
        let is_reliable = error.abs() <= MAX_ERROR;
        let figures = compare(now, then);
        let unserved = |arm: &[Summary]| {
            arm.first().map_or(0, |one| one.requests.saturating_sub(one.done + one.left))
        };
        let (before, after) = (unserved(now), unserved(then));
        let worse = difference("ttft_p99", Aim::Less, now, then);
        let regression = match () {
            // Whatever the error of the times: models and limits are exact in a simulation.
            () if after > before => Some(format!(
                "{} more of {} requests would not be served",
                after - before,
                self.served.len()
            )),
            () if is_reliable && is_beyond(&worse, self.max_regression) => Some(format!(
                "the 99th percentile of the time to the first token would be {:.2} s instead of {:.2} s",
                worse.other, worse.base
            )),
            () => None,
        };
        PredictedEffect {
            requests: self.served.len(),
            unserved: after,
            error,
            is_reliable,
            figures: figures
                .iter()
                .map(|one| ComparedFigure {
                    figure: one.figure,
                    now: one.base,
                    then: one.other,
                    verdict: one.verdict.text(),
                })
                .collect(),
            regression,
        }
    }

    /// Learns the engine of each backend with enough streams; the others get that of the backend
    /// with the most streams.
    fn learn_engines(&self) -> Result<LearnedEngines, ReplayError> {
        let block = block_tokens(self.served);
        let mut backends: BTreeMap<&str, Vec<Timing>> = BTreeMap::new();
        for one in self.served {
            backends.entry(&one.backend).or_default().extend(timing_of(one, block));
        }
        let most = backends.iter().max_by_key(|(_, timings)| timings.len());
        let most = most.map(|(name, _)| *name).unwrap_or_default();
        let count = MAX_LEARNED_OF_ALL / backends.len().max(1);
        let mut learned = Vec::new();
        for (name, mut timings) in backends {
            let all = self.served.iter().filter(|one| *one.backend == *name).count();
            let unseen = all - timings.len();
            mark_unseen(&mut timings, unseen);
            let skipped = timings.len().saturating_sub(count.clamp(MIN_LEARNED, MAX_LEARNED));
            match RecordedRun::of(timings.into_iter().skip(skipped).collect()) {
                Ok(run) => learned.push(self.learn_engine(name, run.at_penstock())?),
                Err(error) if name == most => return Err(error.into()),
                Err(_) => {}
            }
        }
        LearnedEngines::of(&learned, most).ok_or_else(|| {
            RecordedRun::of(Vec::new()).err().map_or(ReplayError::NoEngine, Into::into)
        })
    }

    /// Learns the engine that explains the streams of a backend best.
    fn learn_engine(&self, name: &str, run: RecordedRun) -> Result<FittedRun, ReplayError> {
        let backend = self.current.backends.iter().find(|backend| backend.name == name);
        let rows = engine_rows().unwrap_or_default();
        let error = |spec: &EngineSpec| {
            let simulated = run.simulated(spec, 0).ok()?;
            let errors = RunErrors::of(&simulated, &run.measured());
            Some(errors.first_token.weighted + errors.total.weighted)
        };
        let specs = rows.iter().map(|row| self.spec_of(row, backend));
        let specs = specs.filter_map(|spec| Some((error(&spec)?, spec)));
        let (_, start) =
            specs.min_by(|(a, _), (b, _)| a.total_cmp(b)).ok_or(ReplayError::NoEngine)?;
        let fit = fit(&run, &start, &super::engine::StepTime::default());
        let fit = fit.map_err(WorldError::Engine)?;
        let known = backend.filter(|backend| backend.num_parallel.is_none());
        let kind = known.map(|backend| backend.engine);
        Ok(FittedRun { name: name.to_owned(), kind, run, start, fit })
    }

    fn spec_of(&self, row: &EngineRow, backend: Option<&BackendConfig>) -> EngineSpec {
        let spec = EngineSpec::from(row);
        let reported = backend.and_then(|backend| self.kv_blocks.get(&backend.name)).copied();
        let spec = EngineSpec { kv_blocks: reported.unwrap_or(spec.kv_blocks), ..spec };
        let Some(backend) = backend else { return spec };
        let slots = Slots { count: backend.num_parallel, ..Slots::default() };
        spec.scheduled_as(backend.engine, &slots)
    }
}

/// Returns the relative error of the simulated mean time to the first token. Without streams there
/// is nothing to be wrong about, and only the unserved requests count.
fn error_of(simulated: &[Summary], measured: &[ServedRequest]) -> f64 {
    let times = measured.iter().filter_map(|one| one.first_token);
    let times: Vec<f64> = times.map(|time| time.as_secs_f64()).collect();
    let simulated: Vec<f64> = simulated.iter().map(|one| one.first_token.mean).collect();
    if times.is_empty() { 0.0 } else { mean(&simulated) / mean(&times) - 1.0 }
}

/// Returns whether a figure is worse by more than the bound.
fn is_beyond(difference: &Difference, most: f64) -> bool {
    difference.verdict == ComparisonVerdict::Worse
        && difference.other > difference.base * (1.0 + most)
}

fn arrival_of(one: &ServedRequest) -> u64 {
    one.ended.0.saturating_sub(to_micros(one.took))
}

fn timing_of(one: &ServedRequest, block_tokens: u32) -> Option<Timing> {
    let arrived = arrival_of(one) as f64 * 1e-6;
    let last_token = one.ended.0 as f64 * 1e-6;
    let first_token = arrived + one.first_token?.as_secs_f64();
    let (input_tokens, output_tokens) = (one.input_tokens, one.output_tokens);
    (first_token <= last_token).then_some(Timing {
        arrived,
        first_token,
        last_token,
        input_tokens,
        output_tokens,
        model: one.model.clone(),
        prefix: unfold(&one.fields.blocks).take(most_replayed(MAX_LEARNED)).collect(),
        prefix_tokens: block_tokens,
        lacks_others: false,
    })
}

/// Returns the tokens of a block, as the engine counts them.
fn block_tokens(served: &[ServedRequest]) -> u32 {
    let known = served.iter().filter(|one| one.estimated_tokens > 0);
    let pairs = known.map(|one| (one.input_tokens.into(), one.estimated_tokens.into()));
    counted_block(pairs)
}

/// Converts the traffic to a workload.
fn workload_of(served: &[ServedRequest]) -> Workload {
    let mut workload = Workload { block_tokens: block_tokens(served), ..Workload::default() };
    let start = served.iter().map(arrival_of).min().unwrap_or(0);
    let most = most_replayed(served.len());
    let number = |names: &mut Vec<String>, name: &str| {
        names.iter().position(|one| one == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        })
    };
    for one in served {
        let first = workload.hashes.len() as u64;
        workload.hashes.extend(unfold(&one.fields.blocks).take(most));
        let count = workload.hashes.len() as u64 - first;
        let model = number(&mut workload.models, &one.model);
        let client = number(&mut workload.clients, &one.client);
        workload.requests.push(Request {
            arrives_at: arrival_of(one) - start,
            model: u16::try_from(model).unwrap_or(0),
            client: u32::try_from(client).unwrap_or(0),
            input_tokens: one.input_tokens.max(1),
            output_tokens: one.output_tokens.max(1),
            max_tokens: one.fields.max_tokens.map_or(0, |most| most.0),
            // Never 0, which means no session.
            session: one.fields.session.map_or(0, |session| session | 1),
            prefix: (first, u32::try_from(count).unwrap_or(0)),
            is_streamed: one.first_token.is_some(),
            ..Request::default()
        });
    }
    workload.requests.sort_by_key(|request| request.arrives_at);
    workload
}

#[cfg(test)]
mod tests;
