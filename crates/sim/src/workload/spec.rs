//! Workload files.

use serde::Deserialize;

use super::Time;
use super::arrivals::Arrivals;
use super::lengths::Lengths;

/// The description of a workload, as in its file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    /// The maximum number of requests.
    #[serde(default)]
    pub requests: Option<u32>,
    /// The period in which new requests or sessions arrive.
    #[serde(default)]
    pub duration: Option<Time>,
    pub streams: Vec<StreamSpec>,
}

/// A stream of similar requests.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// The client that sends them: a key or an address.
    #[serde(default = "usual_client")]
    pub client: String,
    /// The requested model; without one, the model that every backend serves.
    #[serde(default)]
    pub model: Option<String>,
    /// The arrival process, independent of responses (open loop).
    #[serde(default)]
    pub arrivals: Option<Arrivals>,
    /// The number of users, each of which waits for a response before it sends again (closed loop).
    #[serde(default)]
    pub users: Option<u32>,
    /// The pause of a user or a session after a response.
    #[serde(default)]
    pub pause: Time,
    /// The new tokens of each prompt.
    pub input: Lengths,
    /// The tokens of each output.
    pub output: Lengths,
    /// The `max_tokens` of requests, if clients set it.
    #[serde(default)]
    pub max_tokens: u32,
    /// The prefixes that prompts share.
    #[serde(default)]
    pub prefix: Option<PrefixSpec>,
    /// The turns of a session; each prompt starts with everything before it.
    #[serde(default)]
    pub turns: Option<Lengths>,
    /// Sessions of agents, which send several requests at once and wait for all of them.
    #[serde(default)]
    pub agent: Option<AgentSpec>,
    /// The time that clients wait for the first token.
    #[serde(default)]
    pub patience: Time,
    /// The priority of its requests, from -100 to 100; below 0 they may be refused so that others
    /// meet their objectives.
    #[serde(default)]
    pub priority: i8,
    /// If set, responses are streamed.
    #[serde(default = "yes")]
    pub streamed: bool,
}

/// Prefixes that prompts share: system prompts, documents, tools.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixSpec {
    /// The number of prefixes.
    pub groups: u32,
    pub tokens: Lengths,
    /// The exponent of Zipf's law for their popularity; 0 for equal shares.
    #[serde(default)]
    pub popularity: f64,
    /// The share of requests that have a prefix.
    #[serde(default = "all")]
    pub share: f64,
}

/// An agent: each round is one request, then several concurrent ones that continue it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// The number of rounds per session.
    pub rounds: Lengths,
    /// The number of concurrent requests per round.
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

/// The reason why a workload file is refused.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file does not have the expected form.
    #[error("{0}")]
    Syntax(String),
    /// A value of a stream is invalid.
    #[error("stream {stream}: {problem}")]
    Stream {
        /// The number of the stream, from 1.
        stream: usize,
        problem: &'static str,
    },
    #[error("set requests or duration: without one the workload never ends")]
    Endless,
    /// The workload has no requests.
    #[error("there are no streams")]
    Empty,
}

/// The limit of a workload that does not set `requests`.
// A simulation keeps all of them in memory.
const MAX_REQUESTS: u32 = 10_000_000;

impl WorkloadSpec {
    /// Parses a workload file.
    ///
    /// # Errors
    /// [`WorkloadError`] for the first error in the file.
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

    /// Returns the maximum number of generated requests.
    pub(super) fn limit(&self) -> usize {
        self.requests.unwrap_or(MAX_REQUESTS).min(MAX_REQUESTS) as usize
    }

    /// Returns whether some requests wait endlessly for the responses before them, so that there is
    /// no arrival rate.
    pub fn is_closed(&self) -> bool {
        self.streams.iter().any(|stream| stream.users.is_some())
    }

    /// Returns the same workload for `factor` times as long, with as many times the requests.
    #[must_use]
    pub fn lengthened(mut self, factor: u32) -> Self {
        self.requests = self.requests.map(|requests| requests.saturating_mul(factor));
        self.duration = self.duration.map(|duration| duration.times(factor));
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
            // Their requests come at times that only the run shows.
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
