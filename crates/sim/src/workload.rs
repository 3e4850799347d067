//! The requests of clients, generated in full before a run starts: two configurations meet the same
//! requests.
//!
//! A request arrives at a given time or after others. The next turn of a session follows the
//! previous response; the last call of an agent follows all requests it waits for.

mod arrivals;
mod generate;
mod lengths;
mod presets;
mod sessions;
mod spec;
mod traces;

use std::time::Duration;

use penstock_api::units::{parse_duration, to_micros};
use penstock_core::prefix::FOLDED_TOKENS;
use serde::{Deserialize, Deserializer};

use crate::engine::BLOCK_TOKENS;

pub use arrivals::{ArrivalProcess, ProcessError};
pub use generate::generate;
pub use presets::{WorkloadPreset, presets};
pub use spec::{WorkloadError, WorkloadSpec};
pub use traces::{TraceError, TraceFormat, read_timings, read_trace};

/// The maximum size of a logged block, in blocks of an engine.
const MAX_UNITS: f64 = 64.0;

/// A request as a client sends it. Times are in microseconds since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The earliest arrival time.
    pub arrives_at: u64,
    /// The pause after the end of the last request that it follows.
    pub pause: u32,
    /// The number of requests that it follows.
    pub follows: u16,
    /// The model, as an index into [`Workload::models`].
    pub model: u16,
    /// The number of prompt tokens.
    pub input_tokens: u32,
    /// The number of tokens that the engine will emit. No decision reads it.
    pub output_tokens: u32,
    /// The output limit; 0 if the client sets none.
    pub max_tokens: u32,
    /// The client, as an index into [`Workload::clients`].
    pub client: u32,
    /// The session id; 0 without a session.
    pub session: u64,
    /// The hashes of its prompt's whole blocks: their start in [`Workload::hashes`] and their
    /// number.
    pub prefix: (u64, u32),
    /// The time that the client waits for the first token, in milliseconds; 0 for no limit.
    pub patience_ms: u32,
    /// True if the response is streamed.
    pub is_streamed: bool,
    /// The priority; higher is more important.
    pub priority: i8,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            arrives_at: 0,
            pause: 0,
            follows: 0,
            model: 0,
            input_tokens: 1,
            output_tokens: 1,
            max_tokens: 0,
            client: 0,
            session: 0,
            prefix: (0, 0),
            patience_ms: 0,
            is_streamed: true,
            priority: 0,
        }
    }
}

/// The requests of a run; those without a predecessor are in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// The names of models; an empty name stands for the model that every backend serves.
    pub models: Vec<String>,
    pub clients: Vec<String>,
    pub requests: Vec<Request>,
    /// The hashes of all prompts' blocks; each includes everything before it.
    pub hashes: Vec<u64>,
    pub block_tokens: u32,
    /// The pairs of a request and its follower, sorted.
    pub edges: Vec<(u32, u32)>,
}

impl Workload {
    /// Returns the hashes of a request's prompt.
    pub fn prefix_of(&self, request: &Request) -> &[u64] {
        let (start, count) = request.prefix;
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        self.hashes.get(start..start.saturating_add(count as usize)).unwrap_or_default()
    }

    /// Returns the requests that follow `request`.
    pub fn followers_of(&self, request: u32) -> impl Iterator<Item = u32> + '_ {
        let start = self.edges.partition_point(|(before, _)| *before < request);
        let edges = self.edges.get(start..).unwrap_or_default();
        edges.iter().take_while(move |(before, _)| *before == request).map(|(_, after)| *after)
    }

    /// Returns the requests that follow none, in the order of arrival.
    pub fn roots(&self) -> Vec<u32> {
        let mut roots: Vec<u32> = (0_u32..)
            .zip(&self.requests)
            .filter(|(_, request)| request.follows == 0)
            .map(|(id, _)| id)
            .collect();
        // By their numbers among equals, so that the same workload gives the same bytes.
        roots.sort_by_key(|id| {
            let request = self.requests.get(*id as usize);
            (request.map_or(0, |request| request.arrives_at), *id)
        });
        roots
    }

    /// Returns the requests per second: their number over the time of the last arrival; 0 if all
    /// arrive at once.
    pub fn rate(&self) -> f64 {
        let last = self.requests.iter().map(|request| request.arrives_at).max().unwrap_or(0);
        if last == 0 { 0.0 } else { self.requests.len() as f64 / (last as f64 * 1e-6) }
    }

    /// Returns the same workload with time running `speed` times as fast: 2 halves every gap
    /// between arrivals.
    #[must_use]
    pub fn at_speed(mut self, speed: f64) -> Self {
        for request in &mut self.requests {
            // Pauses stay: more users do not make one of them think faster.
            request.arrives_at = scaled(request.arrives_at, speed);
        }
        self
    }

    /// Returns the first `share` of the requests, with the edges among them.
    #[must_use]
    pub fn first_part(&self, share: f64) -> Self {
        let all = self.requests.len() as f64;
        let count = rounded(all * share.clamp(0.0, 1.0)).max(1);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.requests.len());
        let kept = u32::try_from(count).unwrap_or(u32::MAX);
        let edges = self.edges.iter().filter(|(before, after)| *before < kept && *after < kept);
        Self {
            requests: self.requests.iter().take(count).copied().collect(),
            edges: edges.copied().collect(),
            ..self.clone()
        }
    }
}

/// Returns the tokens of a logged block as the engine counts them; the log estimates them from
/// bytes. Takes pairs of counted and estimated prompt tokens. The result is a multiple of the
/// engine's block size.
pub(crate) fn counted_block(prompts: impl Iterator<Item = (u64, u64)>) -> u32 {
    let (counted, estimated) =
        prompts.fold((0, 0), |(a, b), (counted, estimated)| (a + counted, b + estimated));
    let ratio = if estimated > 0 { counted as f64 / estimated as f64 } else { 1.0 };
    let units = ratio * f64::from(FOLDED_TOKENS / BLOCK_TOKENS);
    rounded_u32(units.clamp(1.0, MAX_UNITS)) * BLOCK_TOKENS
}

fn scaled(time: u64, speed: f64) -> u64 {
    rounded(time as f64 / speed)
}

/// Rounds to the nearest integer; negative values become 0.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and negative numbers become 0"
)]
pub(crate) fn rounded(value: f64) -> u64 {
    value.round() as u64
}

/// Rounds to a `u32`; see [`rounded`].
pub(crate) fn rounded_u32(value: f64) -> u32 {
    u32::try_from(rounded(value)).unwrap_or(u32::MAX)
}

/// Rounds to an index; see [`rounded`].
pub fn rounded_index(value: f64) -> usize {
    usize::try_from(rounded(value)).unwrap_or(usize::MAX)
}

/// A duration of a workload file, with a unit as in the configuration, such as `250ms` or `10m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time(pub Duration);

impl Time {
    fn micros(self) -> f64 {
        to_micros(self.0) as f64
    }

    fn times(self, factor: u32) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(serde::de::Error::custom)
    }
}
