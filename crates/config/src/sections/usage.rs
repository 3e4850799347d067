//! `usage:` live usage: requests in flight and tokens per backend and model.

use std::time::Duration;

use crate::syntax::setting::section;
use crate::syntax::values::{AtLeastOne, Positive};

section! {
    /// Live usage: requests in flight and tokens per backend and model.
    pub struct UsageConfig {
        /// The shortest time between two events of a usage stream. It is 1 ms per open stream if
        /// that is longer.
        pub interval: Duration ["interval" as Positive] = Duration::from_millis(100),
        /// The maximum number of open usage streams.
        pub streams: usize ["streams" as AtLeastOne<usize>] = 1024,
    }
}
