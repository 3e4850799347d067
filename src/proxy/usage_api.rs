//! Live usage as the data port serves it (`server.compat`). The implementation lies above the data
//! plane, which sees only this trait.

use async_trait::async_trait;
use bytes::Bytes;
use penstock_api::ErrorCode;
pub use penstock_api::UsageRequest;

/// Live usage, as the data port serves it.
#[async_trait]
pub trait UsageApi: Send + Sync {
    /// Responds to a request.
    ///
    /// # Errors
    /// [`UsageRefusal`] when there is nothing to respond with.
    async fn respond(&self, request: UsageRequest<'_>) -> Result<UsageResponse, UsageRefusal>;

    /// Returns whether any backend is healthy, and a page that reports it. The page has the URLs of
    /// the backends only if `has_details`.
    fn health(&self, has_details: bool) -> (bool, Vec<u8>);
}

/// The events of a stream.
#[async_trait]
pub trait EventSource: Send {
    /// The next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Bytes>;
}

pub enum UsageResponse {
    Page(Vec<u8>),
    Stream(Box<dyn EventSource>),
}

/// The reason why there is no response.
#[derive(Debug)]
pub struct UsageRefusal {
    pub code: ErrorCode,
    pub message: String,
}
