//! A recorded run of an engine: when each request arrived, and when its first and its last token came.

use serde::Deserialize;

use super::engine::{
    BLOCK_TOKENS, Engine, EngineEvent, EngineRequest, EngineSpec, EventKind, SpecError, picoseconds,
};

/// Picoseconds per second.
const PER_SECOND: f64 = 1e12;

/// One request of a run. Times in seconds, on any clock.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Timing {
    /// When it reached the engine.
    #[serde(alias = "queued_ts")]
    pub arrived: f64,
    /// When its first token came.
    #[serde(alias = "first_token_ts")]
    pub first_token: f64,
    /// When its last token came.
    #[serde(alias = "last_token_ts")]
    pub last_token: f64,
    /// Tokens of its prompt.
    #[serde(alias = "input_toks")]
    pub input_tokens: u32,
    /// Tokens of its output.
    #[serde(alias = "output_toks")]
    pub output_tokens: u32,
    /// The hashes of its prompt's whole blocks, where they are known: what is cached is not computed again.
    #[serde(skip)]
    pub prefix: Vec<u64>,
    /// The tokens of each of these blocks.
    #[serde(skip)]
    pub prefix_tokens: u32,
}

/// Why a run cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A line is no request.
    #[error("line {line}: {reason}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Too few requests.
    #[error("{found} requests are too few: at least {least} are needed")]
    TooFew {
        /// How many there are.
        found: usize,
        /// How many are needed.
        least: usize,
    },
}

/// The fewest requests that tell anything.
const LEAST: usize = 20;

/// Latencies of one request, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Latencies {
    /// To the first token (TTFT).
    pub first_token: f64,
    /// Between two tokens, on average (TPOT); 0 for a single token.
    pub per_token: f64,
    /// To the last token.
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
pub struct Run {
    requests: Vec<Timing>,
    /// Whether it was measured at penstock, so that its times have the network and the engine's front end in them.
    is_at_penstock: bool,
}

impl Run {
    /// Reads a JSON object per line, with `arrived`, `first_token`, `last_token`, `input_tokens` and
    /// `output_tokens`, or the names `queued_ts`, `first_token_ts`, `last_token_ts`, `input_toks` and
    /// `output_toks` that vLLM benchmarks use.
    ///
    /// # Errors
    /// When a line is something else, times run backwards, or there are too few requests.
    pub fn parse(text: &str) -> Result<Self, RunError> {
        let mut requests = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let error = |reason: String| RunError::Line { line: index + 1, reason };
            let timing: Timing =
                serde_json::from_str(line).map_err(|wrong| error(wrong.to_string()))?;
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

    /// A run of these requests, whose times do not run backwards.
    ///
    /// # Errors
    /// When there are too few.
    pub fn of(mut requests: Vec<Timing>) -> Result<Self, RunError> {
        if requests.len() < LEAST {
            return Err(RunError::TooFew { found: requests.len(), least: LEAST });
        }
        requests.sort_by(|a, b| a.arrived.total_cmp(&b.arrived));
        Ok(Self { requests, is_at_penstock: false })
    }

    /// The same, measured at penstock.
    #[must_use]
    pub fn at_penstock(self) -> Self {
        Self { is_at_penstock: true, ..self }
    }

    /// Whether its times have the network and the engine's front end in them.
    pub fn is_at_penstock(&self) -> bool {
        self.is_at_penstock
    }

    /// The requests in the order of arrival.
    pub fn timings(&self) -> &[Timing] {
        &self.requests
    }

    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// What was measured, in the order of arrival.
    pub fn measured(&self) -> Vec<Latencies> {
        let of = |one: &Timing| {
            Latencies::new(one.arrived, one.first_token, one.last_token, one.output_tokens)
        };
        self.requests.iter().map(of).collect()
    }

    /// What an engine of that kind would have measured, in the same order, if each request reached it `front_end`
    /// picoseconds after it was sent.
    ///
    /// # Errors
    /// When the specification describes no engine.
    pub fn simulated(
        &self,
        spec: &EngineSpec,
        front_end: u64,
    ) -> Result<Vec<Latencies>, SpecError> {
        let mut engine = Engine::new(spec.clone())?;
        let start = self.requests.first().map_or(0.0, |first| first.arrived);
        let mut events = Vec::new();
        for (id, request) in (0_u32..).zip(&self.requests) {
            let at = picoseconds(request.arrived - start).saturating_add(front_end);
            engine.advance(at.saturating_sub(1), &mut events);
            engine.submit(
                at,
                &EngineRequest {
                    id,
                    input_tokens: request.input_tokens,
                    output_tokens: request.output_tokens,
                    max_tokens: Some(request.output_tokens),
                    prefix: &request.prefix,
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
