//! The errors of scrapes.

use std::time::Duration;

use penstock_api::units::ByteSize;

/// The reason why a scrape failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScrapeError {
    #[error("no connection: {0}")]
    NoConnection(&'static str),
    /// No complete response in time.
    #[error("no response within {0:?}")]
    TimedOut(Duration),
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The response is larger than the limit.
    #[error("the response is larger than {0}")]
    TooLarge(ByteSize),
    /// A response that is no success.
    #[error("{path} returned {status}")]
    Status { path: String, status: u16 },
    /// A page without engine metrics.
    #[error("{path} has no metrics of an engine's load")]
    NoLoad { path: String },
}
