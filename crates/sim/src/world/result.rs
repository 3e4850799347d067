//! The result of a run.

use penstock_core::admission::budgets::Money;

use crate::engine::EngineCounters;

penstock_api::named! {
    /// The reason why a request was not sent to any backend.
    #[derive(PartialOrd, Ord)]
    pub enum ShedReason {
        /// Every backend was at its limit of requests.
        Saturated = "saturated",
        /// Every backend was in cooldown.
        CoolingDown = "cooling_down",
        /// The request would have missed its objectives.
        ObjectiveMissed = "objective_missed",
        /// The queue was full, and no waiting request was less important.
        QueueFull = "queue_full",
        /// The request reached the queue timeout.
        QueueTimeout = "queue_timeout",
        /// No backend was healthy.
        Unhealthy = "unhealthy",
        /// No backend serves the request.
        Unserved = "unserved",
        /// A budget of the client had no room for it.
        BudgetExceeded = "budget_exceeded",
    }
}

penstock_api::named! {
    /// The reason why a sent request failed.
    #[derive(PartialOrd, Ord)]
    pub enum FailReason {
        /// The backend could not be reached.
        NotSent = "not_sent",
        /// The engine refused the request.
        Refused = "refused",
        /// The engine was lost before the first token.
        NoResponse = "no_response",
        /// The engine was lost after the first token.
        Cut = "cut",
        /// The prompt was longer than the engine takes.
        TooLong = "too_long",
    }
}

/// The status of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// The request has not ended.
    #[default]
    Open,
    Done,
    /// The request was not sent.
    Shed(ShedReason),
    Failed(FailReason),
    /// The client left before the first token.
    Left,
    /// The request never arrived, because a request that it follows failed.
    Abandoned,
}

impl Status {
    /// Returns the reason why the request was not sent, if it was not.
    pub fn shed_reason(self) -> Option<ShedReason> {
        if let Self::Shed(reason) = self { Some(reason) } else { None }
    }

    /// Returns the reason why the request failed, if it did.
    pub fn fail_reason(self) -> Option<FailReason> {
        if let Self::Failed(reason) = self { Some(reason) } else { None }
    }
}

/// The verdict on a refusal: what the engines could have done at that moment, by their true state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum RefusalVerdict {
    /// The refusal was not judged.
    #[default]
    None,
    /// The request would have been late on every backend.
    Late,
    /// The request would have reached its objectives, but made others late.
    Harmful,
    /// The request would have reached its objectives without making another late.
    Wrong,
}

/// The result of one request. Times are in microseconds; 0 stands for events that never happened.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestResult {
    /// The time of its arrival.
    pub arrived: u64,
    /// The time of the decision about its last attempt.
    pub decided: u64,
    /// The time of its first token.
    pub first_token: u64,
    /// The time of its end.
    pub ended: u64,
    /// The number of tokens found in a cache.
    pub cached_tokens: u32,
    /// The number of tokens believed to be cached.
    pub believed_tokens: u32,
    /// The number of tokens emitted.
    pub output_tokens: u32,
    /// The predicted time to the first token of the last attempt; 0 without a prediction.
    pub predicted: f32,
    /// The 90th percentile of that prediction.
    pub predicted_p90: f32,
    /// The backend of the last attempt.
    pub backend: u16,
    pub attempts: u16,
    pub status: Status,
    /// The verdict on its refusal.
    pub verdict: RefusalVerdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendResult {
    /// The name of the backend.
    pub name: String,
    pub counters: EngineCounters,
    /// The number of blocks in its KV cache.
    pub kv_blocks: u32,
}

/// The use of a budget in a run, over all its teams or keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetResult {
    /// The name of the budget.
    pub name: String,
    /// The money that was spent.
    pub spent: Money,
    /// The number of requests that it refused.
    pub refused: usize,
    /// The number of requests that it gave another model or other zones.
    pub changed: usize,
}

impl BudgetResult {
    /// Returns a budget from which nothing was taken.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), spent: Money::ZERO, refused: 0, changed: 0 }
    }
}

impl RunResult {
    /// Returns the completed requests per second, from the start to the last end.
    pub fn completed_rate(&self) -> f64 {
        let done = self.requests.iter().filter(|one| one.status == Status::Done);
        let (count, last) =
            done.fold((0_u32, 0), |(count, last), one| (count + 1, one.ended.max(last)));
        f64::from(count) * 1e6 / last.saturating_sub(self.start).max(1) as f64
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// The start of the run, in microseconds.
    pub start: u64,
    /// The backends, in the order of the configuration.
    pub backends: Vec<BackendResult>,
    /// The budgets, in the order of the configuration.
    pub budgets: Vec<BudgetResult>,
    /// The requests, in the order of the workload.
    pub requests: Vec<RequestResult>,
    /// True if decisions considered which prompts the backends have cached.
    pub believes_caches: bool,
    /// The backend, as an index, that each scorer alone would have chosen for the examined request.
    pub picks: Vec<(String, usize)>,
}
