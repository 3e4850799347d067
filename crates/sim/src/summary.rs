//! The figures of a run.

mod priorities;
mod sheds;

pub use priorities::PriorityFigures;
use priorities::by_priority;
pub use sheds::ShedFigures;

pub use super::stationarity::Stationarity;
use super::stationarity::Trend;
use super::statistics::{Percentiles, jain, variation};
use super::workload::Workload;
use super::world::{BudgetResult, FailReason, RequestResult, RunResult, ShedReason, Status};

const MICRO: f64 = 1e-6;

/// The objective of a good request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// The maximum time to the first token, in seconds.
    pub first_token: f64,
    /// The maximum time per further token, in seconds.
    pub per_token: f64,
}

impl Objective {
    /// Returns whether a request is good; false if it did not complete.
    pub fn is_reached(&self, request: &RequestResult) -> bool {
        request.status == Status::Done
            && first_token(request) <= self.first_token
            && per_token(request).is_none_or(|time| time <= self.per_token)
    }
}

/// The figures of a run. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The number of requests that arrived.
    pub requests: usize,
    /// The number of requests whose response is complete.
    pub done: usize,
    /// The number of requests that were not sent, by reason.
    pub shed: Vec<(ShedReason, usize)>,
    /// The figures of refusals; `None` if no request was refused.
    pub sheds: Option<ShedFigures>,
    /// The number of requests that failed, by reason.
    pub failed: Vec<(FailReason, usize)>,
    /// The number of requests whose client left.
    pub left: usize,
    /// The number of requests that never arrived, because a request that they follow failed.
    pub abandoned: usize,
    /// The number of attempts after the first ones.
    pub retries: usize,
    /// The time to the first token (TTFT).
    pub first_token: Percentiles,
    /// The time between two tokens (TPOT), of requests with several tokens.
    pub per_token: Percentiles,
    /// The time to the last token (E2E).
    pub total: Percentiles,
    /// The share of all requests that reached the objective; incomplete requests are misses.
    pub goodput: f64,
    /// The output tokens per second of requests that reached the objective.
    pub good_tokens: f64,
    /// The output tokens per second of all complete requests.
    pub tokens_per_second: f64,
    /// The share of prompt tokens that the engines had cached.
    pub hit_rate: f64,
    /// The share of prompt tokens that the balancer believed to be cached; `None` if its decisions
    /// do not consider caches.
    pub believed_rate: Option<f64>,
    /// The coefficient of variation of tokens per backend.
    pub imbalance: f64,
    /// The highest number of requests per backend, divided by the mean.
    pub concentration: f64,
    /// The number of preemptions: requests that lost their blocks.
    pub preemptions: u64,
    /// The number of models loaded on demand.
    pub loads: u64,
    /// The share of time in which engines computed, regardless of batch size.
    pub utilization: f64,
    /// The share of the KV caches that requests held.
    pub kv_use: f64,
    /// The accuracy of TTFT predictions, if any were made.
    pub prediction: Option<PredictionFigures>,
    /// The time in the balancer's queue, of complete requests.
    pub queued: Percentiles,
    /// The figures by priority, highest first; empty if all requests have the same.
    pub priorities: Vec<PriorityFigures>,
    /// The use of each budget.
    pub budgets: Vec<BudgetResult>,
    /// Jain's index over clients, of the share of their requests that reached the objective.
    pub fairness: f64,
    /// The load of the run.
    pub load: Stationarity,
    /// The time from the start of the run to the last end.
    pub duration: f64,
    /// The number of steps of all engines.
    pub steps: u64,
}

/// The accuracy of TTFT predictions, over complete requests that have one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictionFigures {
    /// The mean of |predicted - actual| / actual (MAPE).
    pub mean_error: f64,
    /// The sum of errors over the sum of times (WAPE).
    pub weighted_error: f64,
    /// The share of first tokens that came within the predicted p90.
    pub coverage: f64,
}

/// The divisor of the request count that gives the learning phase; predictions in it are left out.
const LEARNING: usize = 10;

impl PredictionFigures {
    fn of(done: &[(&RequestResult, usize)]) -> Option<Self> {
        let skipped = done.len() / LEARNING;
        let (mut count, mut relative, mut off, mut sum, mut covered) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (one, _) in done.iter().skip(skipped).filter(|(one, _)| one.predicted > 0.0) {
            // From the decision: the wait in a queue was over, and is predicted by no engine.
            let actual = one.first_token.saturating_sub(one.decided).max(1) as f64;
            let error = (f64::from(one.predicted) - actual).abs();
            count += 1.0;
            relative += error / actual;
            off += error;
            sum += actual;
            covered += f64::from(u8::from(actual <= f64::from(one.predicted_p90)));
        }
        (count > 0.0).then(|| Self {
            mean_error: relative / count,
            weighted_error: off / sum,
            coverage: covered / count,
        })
    }
}

impl Summary {
    /// Computes the figures of a run of `workload`.
    pub fn new(run: &RunResult, workload: &Workload, objective: &Objective) -> Self {
        let done: Vec<(&RequestResult, usize)> = run
            .requests
            .iter()
            .zip(0..)
            .filter(|(request, _)| request.status == Status::Done)
            .collect();
        let of = |figure: fn(&RequestResult) -> Option<f64>| {
            Percentiles::of(done.iter().filter_map(|(one, _)| figure(one)).collect())
        };
        let good: Vec<&RequestResult> =
            run.requests.iter().filter(|one| objective.is_reached(one)).collect();
        let abandoned = count(run, Status::Abandoned);
        // What was never sent is the result of an earlier failure, and would count it twice.
        let requests = run.requests.len() - abandoned;
        let last = run.requests.iter().map(|request| request.ended).max().unwrap_or(run.start);
        let duration = seconds(run.start, last).max(MICRO);
        let prompts = PromptTokens::of(&done, workload);
        let (imbalance, concentration) = balance(run);
        // Engines count in picoseconds.
        let busy: f64 = run.backends.iter().map(|one| one.counters.busy as f64 * 1e-12).sum();
        Self {
            requests,
            done: done.len(),
            shed: tally(run, Status::shed_reason),
            sheds: ShedFigures::of(run, workload, objective),
            failed: tally(run, Status::fail_reason),
            left: count(run, Status::Left),
            abandoned,
            retries: run
                .requests
                .iter()
                .map(|one| usize::from(one.attempts.saturating_sub(1)))
                .sum(),
            first_token: of(|one| Some(first_token(one))),
            per_token: of(per_token),
            total: of(|one| Some(seconds(one.arrived, one.ended))),
            goodput: good.len() as f64 / (requests.max(1)) as f64,
            good_tokens: tokens(good.iter().copied()) / duration,
            tokens_per_second: tokens(done.iter().map(|(one, _)| *one)) / duration,
            hit_rate: prompts.cached / prompts.all.max(1.0),
            believed_rate: run.believes_caches.then(|| prompts.believed / prompts.all.max(1.0)),
            imbalance,
            concentration,
            preemptions: run.backends.iter().map(|one| one.counters.preemptions).sum(),
            loads: run.backends.iter().map(|one| one.counters.loads).sum(),
            utilization: busy / (duration * run.backends.len().max(1) as f64),
            kv_use: kv_use(run, duration),
            prediction: PredictionFigures::of(&done),
            queued: of(|one| Some(seconds(one.arrived, one.decided))),
            priorities: by_priority(run, workload, objective),
            budgets: run.budgets.clone(),
            fairness: fairness(run, workload, objective),
            load: Trend::of(run, workload).load,
            duration,
            steps: run.backends.iter().map(|one| one.counters.steps).sum(),
        }
    }

    pub fn figure(&self, name: &str) -> Option<f64> {
        FIGURES.iter().find_map(|(one, of)| (*one == name).then(|| of(self)))
    }
}

/// A figure's name, and the function that reads it.
pub type Figure = (&'static str, fn(&Summary) -> f64);

/// The figures that comparisons and assertions use.
pub const FIGURES: &[Figure] = &[
    ("ttft_mean", |one| one.first_token.mean),
    ("ttft_p50", |one| one.first_token.p50),
    ("ttft_p90", |one| one.first_token.p90),
    ("ttft_p95", |one| one.first_token.p95),
    ("ttft_p99", |one| one.first_token.p99),
    ("tpot_mean", |one| one.per_token.mean),
    ("tpot_p50", |one| one.per_token.p50),
    ("tpot_p90", |one| one.per_token.p90),
    ("tpot_p99", |one| one.per_token.p99),
    ("e2e_mean", |one| one.total.mean),
    ("e2e_p50", |one| one.total.p50),
    ("e2e_p90", |one| one.total.p90),
    ("e2e_p99", |one| one.total.p99),
    ("goodput", |one| one.goodput),
    ("good_tokens", |one| one.good_tokens),
    ("tokens_per_second", |one| one.tokens_per_second),
    ("hit_rate", |one| one.hit_rate),
    ("imbalance", |one| one.imbalance),
    ("preemptions", |one| one.preemptions as f64),
    ("model_loads", |one| one.loads as f64),
    ("utilization", |one| one.utilization),
    ("kv_use", |one| one.kv_use),
    ("fairness", |one| one.fairness),
    ("shed", |one| one.shed.iter().map(|(_, count)| *count as f64).sum()),
];

/// The prompt tokens of a run.
#[derive(Default)]
struct PromptTokens {
    all: f64,
    cached: f64,
    believed: f64,
}

impl PromptTokens {
    fn of(done: &[(&RequestResult, usize)], workload: &Workload) -> Self {
        let mut sums = Self::default();
        for (result, id) in done {
            let tokens = workload.requests.get(*id).map_or(0, |request| request.input_tokens);
            sums.all += f64::from(tokens);
            sums.cached += f64::from(result.cached_tokens);
            // Blocks are whole: the last one may reach beyond the prompt.
            sums.believed += f64::from(result.believed_tokens.min(tokens));
        }
        sums
    }
}

fn count(run: &RunResult, status: Status) -> usize {
    run.requests.iter().filter(|one| one.status == status).count()
}

fn tokens<'a>(requests: impl Iterator<Item = &'a RequestResult>) -> f64 {
    requests.map(|request| f64::from(request.output_tokens)).sum()
}

fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 * MICRO
}

/// Returns the time to the first token, in seconds.
pub fn first_token(request: &RequestResult) -> f64 {
    seconds(request.arrived, request.first_token)
}

/// Returns the seconds per token after the first; `None` for a single token.
pub fn per_token(request: &RequestResult) -> Option<f64> {
    let gaps = request.output_tokens.saturating_sub(1);
    (gaps > 0).then(|| seconds(request.first_token, request.ended) / f64::from(gaps))
}

fn tally<T: Ord + Copy>(run: &RunResult, reason: impl Fn(Status) -> Option<T>) -> Vec<(T, usize)> {
    let mut reasons: Vec<T> = run.requests.iter().filter_map(|one| reason(one.status)).collect();
    reasons.sort_unstable();
    let groups = reasons.chunk_by(|a, b| a == b);
    groups.filter_map(|group| Some((*group.first()?, group.len()))).collect()
}

/// Returns the mean share of the KV caches that requests held.
fn kv_use(run: &RunResult, duration: f64) -> f64 {
    let held: f64 = run.backends.iter().map(|one| one.counters.held_blocks as f64 * MICRO).sum();
    let blocks: f64 = run.backends.iter().map(|one| f64::from(one.kv_blocks)).sum();
    if blocks > 0.0 { held / (duration * blocks) } else { 0.0 }
}

/// Returns the imbalance of backends: the variation of their tokens, and the highest number of
/// requests over the mean.
fn balance(run: &RunResult) -> (f64, f64) {
    let counters = run.backends.iter().map(|one| one.counters);
    let tokens: Vec<f64> =
        counters.map(|one| (one.prompt_tokens + one.output_tokens) as f64).collect();
    let mut counts = vec![0.0_f64; run.backends.len()];
    // A request that was refused went to no backend.
    for request in run.requests.iter().filter(|request| request.attempts > 0) {
        if let Some(count) = counts.get_mut(usize::from(request.backend)) {
            *count += 1.0;
        }
    }
    let most = counts.iter().copied().fold(0.0, f64::max);
    let mean = counts.iter().sum::<f64>() / counts.len().max(1) as f64;
    (variation(&tokens), if mean > 0.0 { most / mean } else { 0.0 })
}

fn fairness(run: &RunResult, workload: &Workload, objective: &Objective) -> f64 {
    let mut clients = vec![(0.0_f64, 0.0_f64); workload.clients.len()];
    for (result, request) in run.requests.iter().zip(&workload.requests) {
        if let Some((good, all)) = clients.get_mut(request.client as usize) {
            *all += 1.0;
            *good += f64::from(u8::from(objective.is_reached(result)));
        }
    }
    // A client without requests was treated neither well nor badly.
    let shares = clients.iter().filter(|(_, all)| *all > 0.0).map(|(good, all)| good / all);
    jain(&shares.collect::<Vec<f64>>())
}
