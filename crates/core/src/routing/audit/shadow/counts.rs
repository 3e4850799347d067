//! What a shadow counts: how often it agrees, and what each side is expected to find cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use penstock_api::units::{Timestamp, to_micros};

/// What the counts cannot show.
const LIMIT: &str =
    "load and telemetry are the live ones: the shadow does not feel its own choices";

/// The counters of a shadow, written by its thread; drops by the thread that drops.
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

/// What a comparison came to, in tokens of whole blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compared {
    pub(super) is_same: bool,
    pub(super) prompt: u64,
    /// What each side is expected to find cached.
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

    /// The shadow had no backend for a request, or (`Some`) it had.
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

    /// What was counted, with the memory of the indexes and its limit.
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

/// What a shadow has counted since it started. Every first attempt is in one of the first five.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowCounts {
    /// Requests it would have sent to the same backend.
    pub same: u64,
    /// Those it would have sent elsewhere.
    pub other: u64,
    /// Those it had no backend for.
    pub none: u64,
    /// Those that are not in the sample.
    pub not_sampled: u64,
    /// Those it never saw, because its queue was full.
    pub dropped: u64,
    /// Tokens of the prompts that were compared, in whole blocks.
    pub prompt_tokens: u64,
    /// Those of them that were expected to be cached where they were sent.
    pub live_tokens: u64,
    /// The same where the shadow would have sent them, had it always decided.
    pub shadow_tokens: u64,
    /// The sum of the delays between live decisions and the shadow's, in microseconds.
    pub lag_micros: u64,
    /// Memory of the prefix indexes of both sides.
    pub index_bytes: usize,
    /// The most it may be.
    pub max_index_bytes: usize,
}

/// What does not change while a shadow runs.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) started_at: Timestamp,
    pub(super) sample: f64,
    /// The names of both strategies, the live one's first.
    pub(super) sides: [&'static str; 2],
}

/// What a shadow has counted, as `/shadow` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShadowReport {
    /// How long it has run: it starts again with every change of `routing`.
    pub started_s_ago: f64,
    /// The share of conversations that are compared.
    pub sample: f64,
    /// First attempts by result.
    pub decisions: ComparedDecisions,
    /// The share of the decisions that were the same; `null` before the first.
    pub agreement: Option<f64>,
    /// Tokens of the prompts that were compared, in whole blocks.
    pub prompt_tokens: u64,
    /// The live strategy.
    pub live: SideReport,
    /// The shadow strategy.
    pub shadow: SideReport,
    /// Memory of the prefix indexes of both sides, in bytes.
    pub index_bytes: usize,
    /// The average delay between a live decision and the shadow's.
    pub lag_ms: Option<f64>,
    /// What the counts cannot show.
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
    /// Its strategy.
    pub strategy: &'static str,
    /// Tokens it is expected to have found cached.
    pub expected_tokens: u64,
    /// The share they are of all tokens; `null` before the first.
    pub hit_rate: Option<f64>,
}

impl ShadowReport {
    pub(super) fn of(counts: ShadowCounts, setting: &Setting, now: Timestamp) -> Self {
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
            limit: LIMIT,
        }
    }
}

/// A part of a whole; none where there is nothing.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
