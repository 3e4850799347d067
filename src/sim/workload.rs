//! What clients send, in full before a run starts: two configurations meet the very same requests.
//!
//! Requests either arrive at a time that is given, or after others: the next turn of a session follows the
//! response to the one before, the last call of an agent follows all that it waits for.

mod arrivals;
mod duration;
mod generate;
mod lengths;
mod presets;
mod sessions;
mod spec;
mod traces;

use crate::prefix::FOLDED_TOKENS;
use crate::sim::engine::BLOCK_TOKENS;

pub use arrivals::{ArrivalProcess, ProcessError};
pub use generate::generate;
pub use presets::{WorkloadPreset, presets};
pub use spec::{WorkloadError, WorkloadSpec};
pub use traces::{TraceError, TraceFormat, read_timings, read_trace};

/// The most that a block of a log is taken for, in blocks of an engine.
const MOST_UNITS: f64 = 64.0;

/// One request, as a client sends it. Times in microseconds since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it arrives at the earliest.
    pub arrives_at: u64,
    /// How long after the end of the last one that it follows.
    pub pause: u32,
    /// How many requests it follows.
    pub follows: u16,
    /// Its model, as an index into [`Workload::models`].
    pub model: u16,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens that the engine will emit. No decision reads it.
    pub output_tokens: u32,
    /// The most that it may emit; 0 where the client sets no limit.
    pub max_tokens: u32,
    /// Who sends it.
    pub client: u32,
    /// Its session; 0 for none.
    pub session: u64,
    /// The hashes of its prompt's whole blocks: where they start in [`Workload::hashes`], and how many.
    pub prefix: (u64, u32),
    /// How long the client waits for the first token, in milliseconds; 0 for as long as it takes.
    pub patience_ms: u32,
    /// Whether it is streamed.
    pub is_streamed: bool,
    /// How important it is.
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

/// All requests of a run, those without a predecessor in the order of their arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// The names of models; empty for the one that every backend serves.
    pub models: Vec<String>,
    /// The names of clients.
    pub clients: Vec<String>,
    /// The requests.
    pub requests: Vec<Request>,
    /// The hashes of all prompts' blocks, each with all before it.
    pub hashes: Vec<u64>,
    /// Tokens of each of these blocks.
    pub block_tokens: u32,
    /// Which request is followed by which, sorted.
    pub edges: Vec<(u32, u32)>,
}

impl Workload {
    /// The hashes of a request's prompt.
    pub fn prefix_of(&self, request: &Request) -> &[u64] {
        let (start, count) = request.prefix;
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        self.hashes.get(start..start.saturating_add(count as usize)).unwrap_or_default()
    }

    /// The requests that follow one.
    pub fn followers_of(&self, request: u32) -> impl Iterator<Item = u32> + '_ {
        let start = self.edges.partition_point(|(before, _)| *before < request);
        let edges = self.edges.get(start..).unwrap_or_default();
        edges.iter().take_while(move |(before, _)| *before == request).map(|(_, after)| *after)
    }

    /// The requests that follow none, in the order of arrival.
    pub fn roots(&self) -> Vec<u32> {
        let mut roots: Vec<u32> = (0_u32..)
            .zip(&self.requests)
            .filter(|(_, request)| request.follows == 0)
            .map(|(id, _)| id)
            .collect();
        roots.sort_by_key(|id| {
            let request = self.requests.get(*id as usize);
            (request.map_or(0, |request| request.arrives_at), *id)
        });
        roots
    }

    /// Requests per second: their number by the time of the last arrival; 0 where all arrive at once.
    pub fn rate(&self) -> f64 {
        let last = self.requests.iter().map(|request| request.arrives_at).max().unwrap_or(0);
        if last == 0 { 0.0 } else { self.requests.len() as f64 / (last as f64 * 1e-6) }
    }

    /// The same, with time running `speed` times as fast: 2 halves every gap between arrivals.
    #[must_use]
    pub fn at_speed(mut self, speed: f64) -> Self {
        for request in &mut self.requests {
            request.arrives_at = scaled(request.arrives_at, speed);
        }
        self
    }

    /// The first requests, as many as make up `share` of all, with what they follow.
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

/// Tokens of a block in a log, as the engine counts them: the log's are estimated from bytes. From pairs of both
/// counts of prompts; a multiple of what engines keep their caches in.
pub(in crate::sim) fn counted_block(prompts: impl Iterator<Item = (u64, u64)>) -> u32 {
    let (counted, estimated) =
        prompts.fold((0, 0), |(a, b), (counted, estimated)| (a + counted, b + estimated));
    let ratio = if estimated > 0 { counted as f64 / estimated as f64 } else { 1.0 };
    let units = ratio * f64::from(FOLDED_TOKENS / BLOCK_TOKENS);
    rounded_u32(units.clamp(1.0, MOST_UNITS)) * BLOCK_TOKENS
}

fn scaled(time: u64, speed: f64) -> u64 {
    rounded(time as f64 / speed)
}

/// The nearest whole number; 0 for what is less.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and negative numbers become 0"
)]
pub(in crate::sim) fn rounded(value: f64) -> u64 {
    value.round() as u64
}

/// The same as 32 bits.
pub(in crate::sim) fn rounded_u32(value: f64) -> u32 {
    u32::try_from(rounded(value)).unwrap_or(u32::MAX)
}

/// The same as an index.
pub(crate) fn rounded_index(value: f64) -> usize {
    usize::try_from(rounded(value)).unwrap_or(usize::MAX)
}
