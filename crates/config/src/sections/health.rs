//! `health:` health checks, slow start and the circuit breaker. Global, and per backend.

use std::time::Duration;

use crate::syntax::checked_text::{Checked, TextRule};
use crate::syntax::collections::Maybe;
use crate::syntax::setting::section;
use crate::syntax::shape::Shape;
use crate::syntax::values::{AtLeastOne, Positive, Share};

section! {
    /// Health checks, slow start and circuit breaker. Each key can be set per backend, too.
    pub struct HealthConfig {
        /// Time between checks of a healthy backend.
        pub interval: Duration ["interval" as Positive] = Duration::from_secs(5),
        /// Time between checks of a backend that is not healthy.
        pub unhealthy_interval: Duration ["unhealthy_interval" as Positive] =
            Duration::from_secs(1),
        /// Time between checks of a healthy backend after a failed check or request. One with
        /// requests in flight that sends nothing for three times as long is checked, too.
        pub fast_interval: Duration ["fast_interval" as Positive] = Duration::from_millis(250),
        /// Random share of the interval, so that checks do not synchronize.
        pub jitter: f64 ["jitter" as Share] = 0.2,
        /// Timeout of a check.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(2),
        /// Successful checks in a row until a backend is healthy.
        pub rise: u32 ["rise" as AtLeastOne<u32>] = 2,
        /// Failed checks in a row until a backend is unhealthy.
        pub fall: u32 ["fall" as AtLeastOne<u32>] = 3,
        /// Time without any progress of requests that should have made some, after which other
        /// backends are preferred, whatever the checks say; 0s is off.
        pub frozen_after: Duration = Duration::from_secs(10),
        /// Slow start: time in which a recovered backend ramps up to its full share of requests; 0s
        /// is off.
        pub slow_start: Duration = Duration::from_secs(5),
        /// The path of the health check. Default: the engine's health path.
        pub path: Option<String> ["path" as Maybe<Checked<PagePath>>] = None,
        /// The circuit breaker.
        pub breaker: BreakerConfig = BreakerConfig::default(),
    }
}

section! {
    /// The circuit breaker: live requests take a failing backend out of rotation.
    pub struct BreakerConfig {
        /// Connection failures in a row that open the breaker.
        pub connect_failures: u32 ["connect_failures" as AtLeastOne<u32>] = 3,
        /// The difference to the model's other backends in the share of failed responses from which
        /// a backend is avoided, 0 to 1. Three or four failures in a row suffice where others work.
        pub error_share: f64 ["error_share" as Share] = 0.3,
        /// The number of responses required before that share counts.
        pub min_responses: u32 ["min_responses" as AtLeastOne<u32>] = 20,
        /// The window in which responses count.
        pub window: Duration ["window" as Positive] = Duration::from_secs(30),
        /// Time the breaker stays open at first. Doubles each time (exponential backoff).
        pub open: Duration ["open" as Positive] = Duration::from_secs(2),
        /// The longest time the breaker stays open.
        pub max_open: Duration ["max_open" as Positive] = Duration::from_secs(4),
    }
}

/// The path of a page on a backend.
pub(crate) struct PagePath;

impl TextRule for PagePath {
    const EXPECTED: &'static str = "a path such as /health";

    fn accepts(text: &str) -> bool {
        text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    fn shape() -> Shape {
        Shape::pattern("^/")
    }
}
