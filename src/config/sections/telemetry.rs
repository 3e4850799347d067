//! `telemetry:` asking engines how busy they are.

use std::time::Duration;

use super::health::PagePath;
use crate::config::syntax::collections::Maybe;
use crate::config::syntax::setting::{choice, section};
use crate::config::syntax::values::{AtLeastOne, Positive, Share};

choice! {
    /// Whether engines are asked.
    pub enum TelemetryUse {
        /// When the strategy reads what they tell.
        Auto = "auto",
        /// Always: for the metrics alone, too.
        Always = "true",
        /// Never.
        Never = "false",
    }
}
choice!(@setting TelemetryUse);

section! {
    /// Asking engines how busy they are, by the metrics they show.
    pub struct TelemetryConfig {
        /// true, false, or auto: where `routing.strategy` or that of its shadow is weighted.
        pub enabled: TelemetryUse = TelemetryUse::Auto,
        /// Time between two questions to an engine that has requests of ours.
        pub interval: Duration ["interval" as Positive] = Duration::from_millis(100),
        /// The same for one that has none.
        pub idle_interval: Duration ["idle_interval" as Positive] = Duration::from_secs(1),
        /// How long an answer may take.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(1),
        /// The most of one core that all of it may take; beyond that the intervals stretch.
        pub max_cpu: f64 ["max_cpu" as Share] = 0.02,
    }
}

section! {
    /// Where one engine's metrics are.
    pub struct BackendTelemetry {
        /// Whether it is asked at all.
        pub enabled: bool = true,
        /// The path of its metrics; the engine's own unless set.
        pub path: Option<String> ["path" as Maybe<PagePath>] = None,
        /// Their port, spoken to without TLS; the URL's own unless set.
        pub port: Option<u16> ["port" as Maybe<AtLeastOne<u16>>] = None,
    }
}
