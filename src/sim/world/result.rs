//! What came of a run.

use crate::sim::engine::EngineCounters;

/// Why a request was not sent to any backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShedReason {
    /// Every backend had as many requests as it may.
    Saturated,
    /// Every backend was in cooldown.
    CoolingDown,
    /// Its objectives would have been missed.
    ObjectiveMissed,
    /// As many requests waited as may, and none was less important.
    QueueFull,
    /// It waited for too long.
    QueueTimeout,
    /// No backend was healthy.
    Unhealthy,
    /// No backend serves it.
    Unserved,
}

/// Why a request failed that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailReason {
    /// No connection.
    NotSent,
    /// The engine refused it.
    Refused,
    /// The engine was lost before the first token.
    NoResponse,
    /// The engine was lost after it.
    Cut,
    /// Its prompt was longer than the engine takes.
    TooLong,
}

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// It has not ended.
    #[default]
    Open,
    /// Its response is complete.
    Done,
    /// It was not sent.
    Shed(ShedReason),
    /// It failed.
    Failed(FailReason),
    /// Its client left before the first token.
    Left,
    /// It never arrived: what it follows failed.
    Abandoned,
}

impl Status {
    /// Why it was not sent, if it was not.
    pub fn shed_reason(self) -> Option<ShedReason> {
        if let Self::Shed(reason) = self { Some(reason) } else { None }
    }

    /// Why it failed, if it did.
    pub fn fail_reason(self) -> Option<FailReason> {
        if let Self::Failed(reason) = self { Some(reason) } else { None }
    }
}

/// What the engines could have done at the moment of a refusal, by their true state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verdict {
    /// It was not looked at.
    #[default]
    None,
    /// The request would have been late on every backend.
    Late,
    /// It would have reached its objectives, and have made others late.
    Harmful,
    /// It would have reached its objectives, and have made none late.
    Wrong,
}

/// One request. Times in microseconds; 0 for what never happened.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestResult {
    /// When it arrived.
    pub arrived: u64,
    /// When it was decided where its last attempt goes.
    pub decided: u64,
    /// When its first token came.
    pub first_token: u64,
    /// When it ended.
    pub ended: u64,
    /// Tokens that were found in a cache.
    pub cached_tokens: u32,
    /// Tokens that were believed to be in it.
    pub believed_tokens: u32,
    /// Tokens that were emitted.
    pub output_tokens: u32,
    /// The time to the first token that was predicted for the last attempt, and its 90th percentile; 0 where
    /// none was.
    pub predicted: f32,
    /// See `predicted`.
    pub predicted_p90: f32,
    /// The backend of the last attempt.
    pub backend: u16,
    /// Attempts.
    pub attempts: u16,
    /// How it ended.
    pub status: Status,
    /// Where it was refused, whether that was right.
    pub verdict: Verdict,
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendResult {
    /// Its name.
    pub name: String,
    /// What its engine did.
    pub counters: EngineCounters,
    /// Blocks of its KV cache.
    pub kv_blocks: u32,
}

impl RunResult {
    /// Requests per second that were completed, from the start to the last end.
    pub fn completed_rate(&self) -> f64 {
        let done = self.requests.iter().filter(|one| one.status == Status::Done);
        let (count, last) =
            done.fold((0_u32, 0), |(count, last), one| (count + 1, one.ended.max(last)));
        f64::from(count) * 1e6 / last.saturating_sub(self.start).max(1) as f64
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// When it started, in microseconds.
    pub start: u64,
    /// In the order of the configuration.
    pub backends: Vec<BackendResult>,
    /// In the order of the workload.
    pub requests: Vec<RequestResult>,
    /// Where each scorer alone would have sent the request that is looked at: an index into the backends.
    pub picks: Vec<(String, usize)>,
}
