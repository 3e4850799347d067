//! `routing.reload_gate:` simulates a new configuration with recent traffic before it is in force.

use std::time::Duration;

use crate::syntax::setting::section;
use crate::syntax::values::{Positive, Share};

section! {
    /// Recent traffic is kept, and a new configuration is simulated with it before a reload.
    pub struct ReloadGateConfig {
        /// The time for which traffic is kept: at most 20,000 requests.
        pub window: Duration ["window" as Positive] = Duration::from_secs(900),
        /// A reload is refused that makes the 99th percentile of the time to the first token longer
        /// by more than this share.
        pub max_regression: f64 ["max_regression" as Share] = 0.25,
        /// Whether every reload is simulated; otherwise only POST /reload?simulate=TIME.
        pub always: bool = false,
    }
}
