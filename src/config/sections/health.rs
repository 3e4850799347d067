//! `health:` when a backend counts as up, and when its breaker opens. Global, and per backend.

use std::time::Duration;

use crate::config::syntax::collections::Maybe;
use crate::config::syntax::document::Node;
use crate::config::syntax::dump::Dump;
use crate::config::syntax::reader::Reader;
use crate::config::syntax::setting::{Setting, section};
use crate::config::syntax::shape::Shape;
use crate::config::syntax::values::{AtLeastOne, Positive, Share};

section! {
    /// When a backend counts as up. Each key may be set again per backend.
    pub struct HealthConfig {
        /// Time between checks of a healthy backend.
        pub interval: Duration ["interval" as Positive] = Duration::from_secs(5),
        /// Time between checks of any other backend.
        pub unhealthy_interval: Duration ["unhealthy_interval" as Positive] =
            Duration::from_secs(1),
        /// The share by which the time between checks varies, so that they do not march in step.
        pub jitter: f64 ["jitter" as Share] = 0.2,
        /// How long a check may take.
        pub timeout: Duration ["timeout" as Positive] = Duration::from_secs(2),
        /// Good checks in a row until a backend is healthy.
        pub rise: u32 ["rise" as AtLeastOne<u32>] = 2,
        /// Bad checks in a row until it is not.
        pub fall: u32 ["fall" as AtLeastOne<u32>] = 3,
        /// How long a backend that comes back takes to get its whole share of the requests again; 0s
        /// gives it all at once.
        pub slow_start: Duration = Duration::from_secs(5),
        /// The path to ask; the engine's own unless set.
        pub path: Option<String> ["path" as Maybe<PagePath>] = None,
        /// When requests themselves tell that a backend is ill.
        pub breaker: BreakerConfig = BreakerConfig::default(),
    }
}

section! {
    /// When requests themselves tell that a backend is ill.
    pub struct BreakerConfig {
        /// Failed connections in a row that open the breaker.
        pub connect_failures: u32 ["connect_failures" as AtLeastOne<u32>] = 3,
        /// The share of failed answers that opens it.
        pub error_share: f64 ["error_share" as Share] = 0.5,
        /// The answers needed before that share means anything.
        pub min_responses: u32 ["min_responses" as AtLeastOne<u32>] = 20,
        /// How far back answers count.
        pub window: Duration ["window" as Positive] = Duration::from_secs(30),
        /// How long it stays open at first; doubled each time it opens again.
        pub open: Duration ["open" as Positive] = Duration::from_secs(2),
        /// The longest it stays open.
        pub max_open: Duration ["max_open" as Positive] = Duration::from_secs(30),
    }
}

/// The path of a page that a backend is asked for.
pub(crate) struct PagePath;

impl Setting for PagePath {
    type Value = String;

    fn read(node: &Node, reader: &mut Reader) -> Option<String> {
        const EXPECTED: &str = "a path such as /health";
        let text = reader.scalar(node, EXPECTED)?;
        if !text.starts_with('/') || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return reader.refuse_value(node, text, EXPECTED);
        }
        Some(text.to_owned())
    }

    fn dump(value: &String) -> Dump {
        Dump::text(value)
    }

    fn shape() -> Shape {
        Shape::pattern("^/")
    }
}
