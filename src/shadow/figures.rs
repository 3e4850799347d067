//! What a shadow finds: how often it agrees, and what each side is expected to find cached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::units::{Timestamp, to_micros};

/// What no figure of a shadow can show.
const LIMIT: &str =
    "load and telemetry are the live ones: the shadow does not feel its own choices";

/// Counted by a shadow's thread; what is dropped, by who drops it.
#[derive(Debug, Default)]
pub(super) struct Counts {
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

impl Counts {
    pub(super) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave_out(&self) {
        self.not_sampled.fetch_add(1, Ordering::Relaxed);
    }

    /// The shadow had nobody to send a request to, or (`Some`) it had.
    pub(super) fn compare(&self, compared: Option<Compared>, lag: Duration) {
        self.lag_micros.fetch_add(to_micros(lag), Ordering::Relaxed);
        let Some(compared) = compared else {
            self.none.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.prompt_tokens.fetch_add(compared.prompt, Ordering::Relaxed);
        self.live_tokens.fetch_add(compared.live, Ordering::Relaxed);
        self.shadow_tokens.fetch_add(compared.shadow, Ordering::Relaxed);
        // Last, so that whoever waits for a decision finds its tokens.
        let count = if compared.is_same { &self.same } else { &self.other };
        count.fetch_add(1, Ordering::Release);
    }

    /// What was counted; the indexes have so many bytes, and may have so many.
    pub(super) fn figures(&self, (index_bytes, max_index_bytes): (usize, usize)) -> ShadowFigures {
        let read = |count: &AtomicU64| count.load(Ordering::Acquire);
        ShadowFigures {
            same: read(&self.same),
            other: read(&self.other),
            none: read(&self.none),
            not_sampled: read(&self.not_sampled),
            dropped: read(&self.dropped),
            prompt_tokens: read(&self.prompt_tokens),
            live_tokens: read(&self.live_tokens),
            shadow_tokens: read(&self.shadow_tokens),
            lag_micros: read(&self.lag_micros),
            index_bytes,
            max_index_bytes,
        }
    }
}

/// What a shadow has found since it began. Every first attempt is counted in one of the first five.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShadowFigures {
    /// Requests it would have sent to the same backend.
    pub same: u64,
    /// Those it would have sent elsewhere.
    pub other: u64,
    /// Those it had no backend for.
    pub none: u64,
    /// Those that are not in the sample.
    pub not_sampled: u64,
    /// Those it never saw, because too many waited.
    pub dropped: u64,
    /// Tokens of the prompts that were compared, in whole blocks.
    pub prompt_tokens: u64,
    /// Those of them that were expected to be cached where they were sent.
    pub live_tokens: u64,
    /// The same where the shadow would have sent them, had it always been asked.
    pub shadow_tokens: u64,
    /// How long after the live decisions the shadow's were made, all together, in microseconds.
    pub lag_micros: u64,
    /// Memory of the prefix indexes of both sides.
    pub index_bytes: usize,
    /// The most it may be.
    pub max_index_bytes: usize,
}

/// What does not change while a shadow runs.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) begun_at: Timestamp,
    pub(super) sample: f64,
    /// The names of both strategies, the live one's first.
    pub(super) sides: [&'static str; 2],
}

/// What a shadow has found, as `/shadow` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShadowReport {
    /// Since when: it begins anew with every change of `routing`.
    pub begun_s_ago: f64,
    /// The share of conversations that are compared.
    pub sample: f64,
    /// First attempts by what became of them here.
    pub decisions: ComparedDecisions,
    /// The share of the decisions that were the same; `null` before the first.
    pub agreement: Option<f64>,
    /// Tokens of the prompts that were compared, in whole blocks.
    pub prompt_tokens: u64,
    /// The strategy that is acted on.
    pub live: SideReport,
    /// The one that is tried out.
    pub shadow: SideReport,
    /// Memory of the prefix indexes of both sides, in bytes.
    pub index_bytes: usize,
    /// How long after the live decisions the shadow's were made, on average.
    pub lag_ms: Option<f64>,
    /// What this cannot show.
    pub limit: &'static str,
}

/// First attempts by what became of them.
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
    pub(super) fn of(figures: ShadowFigures, setting: &Setting, now: Timestamp) -> Self {
        let ShadowFigures { same, other, none, not_sampled, dropped, prompt_tokens, .. } = figures;
        let side = |strategy, expected_tokens| SideReport {
            strategy,
            expected_tokens,
            hit_rate: share(expected_tokens, prompt_tokens),
        };
        let [live, shadow] = setting.sides;
        Self {
            begun_s_ago: now.since(setting.begun_at).as_secs_f64(),
            sample: setting.sample,
            decisions: ComparedDecisions { same, other, none, not_sampled, dropped },
            agreement: share(same, same + other),
            prompt_tokens,
            live: side(live, figures.live_tokens),
            shadow: side(shadow, figures.shadow_tokens),
            index_bytes: figures.index_bytes,
            lag_ms: share(figures.lag_micros, 1000 * (same + other + none)),
            limit: LIMIT,
        }
    }
}

/// A part of a whole; none where there is nothing.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
