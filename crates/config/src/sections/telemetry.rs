//! `telemetry:` scraping the engines' metrics.

use std::time::Duration;

use penstock_api::choice;

use super::health::PagePath;
use crate::syntax::checked_text::Checked;
use crate::syntax::collections::Maybe;
use crate::syntax::setting::{choice_setting, section};
use crate::syntax::values::{AtLeastOne, Positive, Share};

choice! {
    /// The condition under which engines are scraped.
    pub enum TelemetryUse {
        /// If a strategy reads their metrics.
        Auto = "auto",
        /// Always, even when only our own metrics show the result.
        Always = "true",
        /// Never.
        Never = "false",
    }
}
choice_setting!(TelemetryUse);

section! {
    /// Engine telemetry: scrape the engines' metrics for queue lengths and KV cache usage.
    pub struct TelemetryConfig {
        /// true, false, or auto: when `routing.strategy` or the shadow's is weighted or auto, or
        /// latencies are predicted.
        pub enabled: TelemetryUse = TelemetryUse::Auto,
        /// Time between scrapes of an engine with requests in flight.
        pub interval: Duration ["interval" as Positive] = Duration::from_millis(100),
        /// Time between scrapes of an idle engine.
        pub idle_interval: Duration ["idle_interval" as Positive] = Duration::from_secs(1),
        /// Timeout of a scrape.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(1),
        /// CPU cores that all scrapes together may use; beyond it the intervals grow, up to 100x.
        pub max_cpu: f64 ["max_cpu" as Share] = 0.02,
    }
}

section! {
    /// The location of an engine's metrics.
    pub struct BackendTelemetry {
        /// Scrapes the engine.
        pub enabled: bool = true,
        /// The path of the metrics. Default: the engine's metrics path.
        pub path: Option<String> ["path" as Maybe<Checked<PagePath>>] = None,
        /// The port of the metrics, without TLS. Default: the URL's port.
        pub port: Option<u16> ["port" as Maybe<AtLeastOne<u16>>] = None,
    }
}
