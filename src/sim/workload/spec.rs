//! Workload files.

use serde::Deserialize;

use super::arrivals::Arrivals;
use super::duration::Time;
use super::lengths::Lengths;

/// What a workload file describes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// The most requests.
    #[serde(default)]
    pub requests: Option<u32>,
    /// How long new requests, or new sessions, arrive.
    #[serde(default)]
    pub duration: Option<Time>,
    /// Who sends requests, each in its own way.
    pub streams: Vec<StreamSpec>,
}

/// Requests that are alike.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// The client that sends them: its key or address.
    #[serde(default = "usual_client")]
    pub client: String,
    /// The model they name; without one, the model that every backend serves.
    #[serde(default)]
    pub model: Option<String>,
    /// When they arrive, whatever happens to those before (open loop).
    #[serde(default)]
    pub arrivals: Option<Arrivals>,
    /// So many users, each of which waits for its response before it sends again (closed loop).
    #[serde(default)]
    pub users: Option<u32>,
    /// How long a user, or a session, pauses after a response.
    #[serde(default)]
    pub pause: Time,
    /// New tokens of each prompt.
    pub input: Lengths,
    /// Tokens of each output.
    pub output: Lengths,
    /// `max_tokens`, where clients set it.
    #[serde(default)]
    pub max_tokens: u32,
    /// What prompts have in common.
    #[serde(default)]
    pub prefix: Option<PrefixSpec>,
    /// Turns of a session, each of which starts with all before it.
    #[serde(default)]
    pub turns: Option<Lengths>,
    /// Sessions of agents, which send several requests at once and wait for all of them.
    #[serde(default)]
    pub agent: Option<AgentSpec>,
    /// How long clients wait for the first token.
    #[serde(default)]
    pub patience: Time,
    /// How important its requests are, from -100 to 100; below 0 they may be refused so that others meet their
    /// objectives.
    #[serde(default)]
    pub priority: i8,
    /// Whether responses are streamed.
    #[serde(default = "yes")]
    pub streamed: bool,
}

/// Prefixes that prompts share: system prompts, documents, tools.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixSpec {
    /// How many there are.
    pub groups: u32,
    /// The tokens of each.
    pub tokens: Lengths,
    /// The exponent of Zipf's law for their popularity; 0 for equal shares.
    #[serde(default)]
    pub popularity: f64,
    /// The share of requests that have one.
    #[serde(default = "all")]
    pub share: f64,
}

/// An agent: in each round one request, then several at once that continue it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Rounds of a session.
    pub rounds: Lengths,
    /// Requests at once in each round.
    pub branches: Lengths,
}

fn usual_client() -> String {
    "client".to_owned()
}

fn yes() -> bool {
    true
}

fn all() -> f64 {
    1.0
}

/// Why a workload file is refused.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// It is not as described.
    #[error("{0}")]
    Syntax(String),
    /// A value is wrong.
    #[error("stream {stream}: {problem}")]
    Stream {
        /// Its number, from 1.
        stream: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// It never ends.
    #[error("set requests or duration: without one the workload never ends")]
    Endless,
    /// It has no requests.
    #[error("there are no streams")]
    Empty,
}

/// Requests of a workload without a number of them.
const MOST_REQUESTS: u32 = 10_000_000;

impl WorkloadSpec {
    /// Reads a file.
    ///
    /// # Errors
    /// [`WorkloadError`] for the first thing that is wrong with it.
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        let spec: Self = serde_saphyr::from_str(text)
            .map_err(|error| WorkloadError::Syntax(error.to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), WorkloadError> {
        if self.streams.is_empty() {
            return Err(WorkloadError::Empty);
        }
        if self.requests.is_none() && self.duration.is_none() {
            return Err(WorkloadError::Endless);
        }
        for (index, stream) in self.streams.iter().enumerate() {
            if let Some(problem) = stream.problem(self.requests.is_some()) {
                return Err(WorkloadError::Stream { stream: index + 1, problem });
            }
        }
        Ok(())
    }

    /// The most requests that are generated.
    pub(super) fn limit(&self) -> usize {
        self.requests.unwrap_or(MOST_REQUESTS).min(MOST_REQUESTS) as usize
    }

    /// Whether a part of the requests waits for the responses before them without end: there is no rate of arrivals.
    pub fn is_closed(&self) -> bool {
        self.streams.iter().any(|stream| stream.users.is_some())
    }

    /// The same for `factor` times as long, with as many times the requests.
    #[must_use]
    pub fn lengthened(mut self, factor: u32) -> Self {
        self.requests = self.requests.map(|requests| requests.saturating_mul(factor));
        self.duration = self.duration.map(|duration| duration.times(factor));
        self
    }

    /// The same with every rate and number of users `factor` times as high.
    #[must_use]
    pub fn at_rate(mut self, factor: f64) -> Self {
        for arrivals in self.streams.iter_mut().filter_map(|stream| stream.arrivals.as_mut()) {
            arrivals.rate *= factor;
        }
        self
    }
}

impl StreamSpec {
    fn problem(&self, is_counted: bool) -> Option<&'static str> {
        let lengths = [Some(&self.input), Some(&self.output), self.turns.as_ref()];
        let agent = self.agent.as_ref().map(|agent| [&agent.rounds, &agent.branches]);
        let prefix = self.prefix.as_ref().map(|prefix| &prefix.tokens);
        let mut lengths =
            lengths.into_iter().flatten().chain(agent.into_iter().flatten()).chain(prefix);
        match (&self.arrivals, self.users) {
            (None, None) => return Some("it needs arrivals or users"),
            (Some(_), Some(_)) => return Some("it has either arrivals or users"),
            (None, Some(0)) => return Some("users must be at least 1"),
            (None, Some(_)) if !is_counted => return Some("users need a number of requests"),
            (None, Some(_)) => {}
            (Some(arrivals), None) => {
                if let Some(problem) = arrivals.problem() {
                    return Some(problem);
                }
            }
        }
        if self.agent.is_some() && self.turns.is_some() {
            return Some("a session has either turns or an agent");
        }
        let is_share = |prefix: &PrefixSpec| (0.0..=1.0).contains(&prefix.share);
        if self.prefix.as_ref().is_some_and(|prefix| prefix.groups == 0 || !is_share(prefix)) {
            return Some("a prefix needs at least one group, and a share of 0 to 1");
        }
        lengths.find_map(Lengths::problem)
    }
}
