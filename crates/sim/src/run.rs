//! A recorded run of an engine: the times of each request's arrival, first token and last token.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::engine::{
    BLOCK_TOKENS, BatchingEngine, EngineEvent, EngineSpec, EventKind, SpecError, SubmittedRequest,
    picoseconds,
};

const PER_SECOND: f64 = 1e12;

/// A request of a run. Times are in seconds, on any clock.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Timing {
    /// The arrival of the request at the engine.
    #[serde(alias = "queued_ts")]
    pub arrived: f64,
    /// The time of its first token.
    #[serde(alias = "first_token_ts")]
    pub first_token: f64,
    /// The time of its last token.
    #[serde(alias = "last_token_ts")]
    pub last_token: f64,
    /// The number of prompt tokens.
    #[serde(alias = "input_toks")]
    pub input_tokens: u32,
    /// The number of output tokens.
    #[serde(alias = "output_toks")]
    pub output_tokens: u32,
    #[serde(skip)]
    pub model: Box<str>,
    /// The hashes of its prompt's whole blocks, if known: cached blocks are not computed again.
    #[serde(skip)]
    pub prefix: Vec<u64>,
    /// The tokens of each block.
    #[serde(skip)]
    pub prefix_tokens: u32,
    /// True if its engine also ran requests that the run lacks: those without first token.
    #[serde(skip)]
    pub lacks_others: bool,
}

/// The reason why a run cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A line is not a valid request.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The error in the line.
        reason: String,
    },
    /// The run has too few requests.
    #[error("{found} requests are too few: at least {least} are needed")]
    TooFew {
        /// The number of requests found.
        found: usize,
        /// The number of requests needed.
        least: usize,
    },
}

/// The minimum number of requests for a meaningful fit.
const MIN_REQUESTS: usize = 20;

/// The share of requests without first token up to which the others show the load of an engine.
const MAX_UNSEEN: f64 = 0.05;

/// The share of the busy time for which a number of requests at once counts. Less is an overlap:
/// the end of a stream is logged after its slot was free for the next request.
const MIN_HELD_SHARE: f64 = 0.01;

/// Marks the streams of an engine if it ran too many requests beside them, whose times do not show
/// it.
pub(super) fn mark_unseen(streams: &mut [Timing], unseen: usize) {
    let lacks_others = unseen as f64 > MAX_UNSEEN * streams.len() as f64;
    streams.iter_mut().for_each(|one| one.lacks_others = lacks_others);
}

/// The latencies of one request, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latencies {
    /// The time to the first token (TTFT).
    pub first_token: f64,
    /// The mean time between two tokens (TPOT); 0 for a single token.
    pub per_token: f64,
    /// The time to the last token.
    pub total: f64,
}

impl Latencies {
    fn new(arrived: f64, first: f64, last: f64, output_tokens: u32) -> Self {
        let gaps = f64::from(output_tokens.saturating_sub(1).max(1));
        Self {
            first_token: first - arrived,
            per_token: (last - first) / gaps,
            total: last - arrived,
        }
    }
}

/// The requests of a run in the order of arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedRun {
    requests: Vec<Timing>,
    /// If set, the run was measured at penstock: its times include the network and the engine's
    /// front end.
    is_at_penstock: bool,
}

impl RecordedRun {
    /// Reads a JSON object per line, with `arrived`, `first_token`, `last_token`, `input_tokens`
    /// and `output_tokens`, or the names `queued_ts`, `first_token_ts`, `last_token_ts`,
    /// `input_toks` and
    /// `output_toks` that vLLM benchmarks use.
    ///
    /// # Errors
    /// When a line has another form, times run backwards, or there are too few requests.
    pub fn parse(text: &str) -> Result<Self, RunError> {
        let mut requests = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let error = |reason: String| RunError::Line { line: index + 1, reason };
            let timing: Timing =
                serde_json::from_str(line).map_err(|wrong| error(wrong.to_string()))?;
            // It would enter a fit as a latency without any work.
            if timing.output_tokens == 0 || timing.input_tokens == 0 {
                return Err(error("a request needs at least one token in and one out".to_owned()));
            }
            if !(timing.arrived <= timing.first_token && timing.first_token <= timing.last_token) {
                return Err(error(
                    "arrived, first_token, last_token must not run backwards".to_owned(),
                ));
            }
            requests.push(timing);
        }
        Self::of(requests)
    }

    /// Creates a run from requests whose times do not run backwards.
    ///
    /// # Errors
    /// When there are too few requests.
    pub fn of(mut requests: Vec<Timing>) -> Result<Self, RunError> {
        if requests.len() < MIN_REQUESTS {
            return Err(RunError::TooFew { found: requests.len(), least: MIN_REQUESTS });
        }
        // Logs are written when requests end.
        requests.sort_by(|a, b| a.arrived.total_cmp(&b.arrived));
        Ok(Self { requests, is_at_penstock: false })
    }

    /// Marks the run as measured at penstock.
    #[must_use]
    pub fn at_penstock(self) -> Self {
        Self { is_at_penstock: true, ..self }
    }

    /// Returns whether its times include the network and the engine's front end.
    pub fn is_at_penstock(&self) -> bool {
        self.is_at_penstock
    }

    /// Returns the requests in the order of arrival.
    pub fn timings(&self) -> &[Timing] {
        &self.requests
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns whether the run has no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the measured latencies in the order of arrival.
    pub fn measured(&self) -> Vec<Latencies> {
        let of = |one: &Timing| {
            Latencies::new(one.arrived, one.first_token, one.last_token, one.output_tokens)
        };
        self.requests.iter().map(of).collect()
    }

    /// Returns whether the engine also ran requests that the run lacks.
    pub(crate) fn lacks_requests(&self) -> bool {
        self.requests.iter().any(|one| one.lacks_others)
    }

    /// Returns whether both runs have requests for the same model.
    pub(crate) fn has_model_of(&self, other: &Self) -> bool {
        let models: BTreeSet<&str> = self.requests.iter().map(|one| &*one.model).collect();
        other.requests.iter().any(|one| models.contains(&*one.model))
    }

    /// Returns the highest number of requests that were past their first token at once.
    pub(crate) fn max_streams(&self) -> u32 {
        self.max_at_once(|one| one.first_token)
    }

    /// Returns the highest number of requests in flight at once.
    pub(crate) fn max_in_flight(&self) -> u32 {
        self.max_at_once(|one| one.arrived)
    }

    /// Returns the highest number of requests at once, each from its `start` to its last token,
    /// that was reached for [`MIN_HELD_SHARE`] of the time with at least one.
    fn max_at_once(&self, start: fn(&Timing) -> f64) -> u32 {
        // A stream of one token is there for no time: its end would sort before its start.
        let there = || self.requests.iter().filter(|one| start(one) < one.last_token);
        let starts = there().map(|one| (start(one), true));
        let ends = there().map(|one| (one.last_token, false));
        let mut changes: Vec<(f64, bool)> = starts.chain(ends).collect();
        // At the same time ends come first, so that what only touches does not overlap.
        changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut held = vec![0.0; self.requests.len() + 1];
        let (mut count, mut since) = (0_usize, 0.0);
        for (at, is_start) in changes {
            if let Some(time) = held.get_mut(count) {
                *time += at - since;
            }
            count = if is_start { count + 1 } else { count.saturating_sub(1) };
            since = at;
        }
        let busy: f64 = held.iter().skip(1).sum();
        let mut reached = 0.0;
        let most = (1..held.len()).rev().find(|count| {
            reached += held.get(*count).copied().unwrap_or(0.0);
            reached > MIN_HELD_SHARE * busy
        });
        most.and_then(|most| u32::try_from(most).ok()).unwrap_or(0)
    }

    /// Simulates the latencies on an engine of that kind, in the order of arrival. Each request
    /// reaches the engine `front_end` picoseconds after it was sent.
    ///
    /// # Errors
    /// When the specification is invalid.
    pub fn simulated(
        &self,
        spec: &EngineSpec,
        front_end: u64,
    ) -> Result<Vec<Latencies>, SpecError> {
        let mut engine = BatchingEngine::new(spec.clone())?;
        let start = self.requests.first().map_or(0.0, |first| first.arrived);
        let mut events = Vec::new();
        for (id, request) in (0_u32..).zip(&self.requests) {
            let at = picoseconds(request.arrived - start).saturating_add(front_end);
            // Up to just before: an arrival takes part in the step that starts at the same time.
            engine.advance(at.saturating_sub(1), &mut events);
            engine.submit(
                at,
                &SubmittedRequest {
                    id,
                    input_tokens: request.input_tokens,
                    output_tokens: request.output_tokens,
                    // Its recorded length, so that the simulated response is as long.
                    max_tokens: Some(request.output_tokens),
                    prefix: &request.prefix,
                    // A run without prefixes has zero, by which nothing can be divided.
                    prefix_tokens: request.prefix_tokens.max(BLOCK_TOKENS),
                },
            );
        }
        engine.advance(u64::MAX, &mut events);
        Ok(self.collect(start, &events))
    }

    fn collect(&self, start: f64, events: &[EngineEvent]) -> Vec<Latencies> {
        let mut firsts = vec![0.0; self.requests.len()];
        let mut all = vec![Latencies::default(); self.requests.len()];
        for event in events {
            let (index, at) = (event.id as usize, start + event.at as f64 / PER_SECOND);
            match event.kind {
                EventKind::FirstToken { .. } => {
                    if let Some(first) = firsts.get_mut(index) {
                        *first = at;
                    }
                }
                EventKind::Finished { output_tokens } => {
                    let request = self.requests.get(index);
                    let first = firsts.get(index).copied();
                    if let (Some(request), Some(first), Some(one)) =
                        (request, first, all.get_mut(index))
                    {
                        *one = Latencies::new(request.arrived, first, at, output_tokens);
                    }
                }
                EventKind::Refused(_) => {}
            }
        }
        all
    }
}
