//! The counts of a shadow: its agreement, and the tokens that each side is expected to find cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_api::units::{Timestamp, to_micros};
use serde::Serialize;

/// The limit of the method, as reports state it.
const METHOD_LIMIT: &str =
    "load and telemetry are the live ones: the shadow does not feel its own choices";

/// The counters of a shadow. Its thread writes them, except for drops.
#[derive(Debug, Default)]
pub(super) struct Counters {
    same: AtomicU64,
    other: AtomicU64,
    none: AtomicU64,
    not_sampled: AtomicU64,
    dropped: AtomicU64,
    prompt_tokens: AtomicU64,
    live_tokens: AtomicU64,
    shadow_tokens: AtomicU64,
    lag_micros: AtomicU64,
}

/// The result of a comparison, in tokens of whole blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compared {
    pub(super) is_same: bool,
    pub(super) prompt: u64,
    /// The tokens that each side is expected to find cached.
    pub(super) live: u64,
    pub(super) shadow: u64,
}

impl Counters {
    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_not_sampled(&self) {
        self.not_sampled.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a decision; `None` if the shadow had no backend for the request.
    pub(super) fn count(&self, compared: Option<Compared>, lag: Duration) {
        self.lag_micros.fetch_add(to_micros(lag), Ordering::Relaxed);
        let Some(compared) = compared else {
            self.none.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.prompt_tokens.fetch_add(compared.prompt, Ordering::Relaxed);
        self.live_tokens.fetch_add(compared.live, Ordering::Relaxed);
        self.shadow_tokens.fetch_add(compared.shadow, Ordering::Relaxed);
        // Last, so that a reader who sees the decision sees its tokens.
        let count = if compared.is_same { &self.same } else { &self.other };
        count.fetch_add(1, Ordering::Release);
    }

    /// Returns the counts, with the memory of the indexes and its limit.
    pub(super) fn read(&self, index_bytes: usize, max_index_bytes: usize) -> ShadowCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        ShadowCounts {
            same: load(&self.same),
            other: load(&self.other),
            none: load(&self.none),
            not_sampled: load(&self.not_sampled),
            dropped: load(&self.dropped),
            prompt_tokens: load(&self.prompt_tokens),
            live_tokens: load(&self.live_tokens),
            shadow_tokens: load(&self.shadow_tokens),
            lag_micros: load(&self.lag_micros),
            index_bytes,
            max_index_bytes,
        }
    }
}

/// The counts of a shadow since it started. The first five add up to all first attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowCounts {
    /// Requests that the shadow would have sent to the same backend.
    pub same: u64,
    /// Requests that it would have sent elsewhere.
    pub other: u64,
    /// Requests that it had no backend for.
    pub none: u64,
    /// Requests that are not in the sample.
    pub not_sampled: u64,
    /// Requests that were dropped because its queue was full.
    pub dropped: u64,
    /// Tokens of the prompts that were compared, in whole blocks.
    pub prompt_tokens: u64,
    /// Tokens of these prompts that were expected to be cached on the actual backends.
    pub live_tokens: u64,
    /// Tokens that were expected to be cached on the shadow's backends, had it always decided.
    pub shadow_tokens: u64,
    /// The sum of the delays from live decisions to the shadow's, in microseconds.
    pub lag_micros: u64,
    /// Memory of the prefix indexes of both sides.
    pub index_bytes: usize,
    /// The limit of that memory.
    pub max_index_bytes: usize,
}

/// The constants of a running shadow.
#[derive(Debug)]
pub(super) struct ShadowSetting {
    pub(super) started_at: Timestamp,
    pub(super) sample: f64,
    /// The names of both strategies, the live one first.
    pub(super) sides: [&'static str; 2],
}

/// The counts of a shadow, as `/shadow` shows them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShadowReport {
    /// The seconds since it started; every change of `routing` restarts it.
    pub started_s_ago: f64,
    /// The share of conversations that are compared.
    pub sample: f64,
    /// First attempts by result.
    pub decisions: ComparedDecisions,
    /// The share of decisions that were the same; `null` before the first.
    pub agreement: Option<f64>,
    /// Tokens of the prompts that were compared, in whole blocks.
    pub prompt_tokens: u64,
    pub live: SideReport,
    pub shadow: SideReport,
    /// Memory of the prefix indexes of both sides, in bytes.
    pub index_bytes: usize,
    /// The average delay from a live decision to the shadow's.
    pub lag_ms: Option<f64>,
    /// The limit of the method.
    pub limit: &'static str,
}

/// First attempts by result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ComparedDecisions {
    pub same: u64,
    pub other: u64,
    pub none: u64,
    pub not_sampled: u64,
    pub dropped: u64,
}

/// One of the two sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SideReport {
    pub strategy: &'static str,
    /// The tokens that it is expected to have found cached.
    pub expected_tokens: u64,
    /// The share of these tokens in all; `null` before the first.
    pub hit_rate: Option<f64>,
}

impl ShadowReport {
    pub(super) fn of(counts: ShadowCounts, setting: &ShadowSetting, now: Timestamp) -> Self {
        let ShadowCounts { same, other, none, not_sampled, dropped, prompt_tokens, .. } = counts;
        let side = |strategy, expected_tokens| SideReport {
            strategy,
            expected_tokens,
            hit_rate: share(expected_tokens, prompt_tokens),
        };
        let [live, shadow] = setting.sides;
        Self {
            started_s_ago: now.since(setting.started_at).as_secs_f64(),
            sample: setting.sample,
            decisions: ComparedDecisions { same, other, none, not_sampled, dropped },
            agreement: share(same, same + other),
            prompt_tokens,
            live: side(live, counts.live_tokens),
            shadow: side(shadow, counts.shadow_tokens),
            index_bytes: counts.index_bytes,
            lag_ms: share(counts.lag_micros, 1000 * (same + other + none)),
            limit: METHOD_LIMIT,
        }
    }
}

/// Returns a part of a whole; `None` if the whole is 0.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
