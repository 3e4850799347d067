//! Queries for the JSON pages of one backend.

use std::time::Duration;

use penstock_core::fleet::Backend;
use serde_json::Value;

use super::client::{DiscoveryClient, DiscoveryError, SmallRequest};

/// Queries one backend, each request for at most `timeout`.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    pub(super) client: &'a DiscoveryClient,
    pub(super) backend: &'a Backend,
    pub(super) timeout: Duration,
}

impl Queries<'_> {
    /// Returns the JSON of a page.
    ///
    /// # Errors
    /// If the page cannot be read, is no success or is not JSON.
    pub(super) async fn get(&self, path: &str) -> Result<Value, DiscoveryError> {
        self.send(path, None).await
    }

    /// Returns the JSON that responds to a body.
    ///
    /// # Errors
    /// The same as those of [`Queries::get`].
    pub(super) async fn send(
        &self,
        path: &str,
        body: Option<&str>,
    ) -> Result<Value, DiscoveryError> {
        let request = SmallRequest { path, body, timeout: self.timeout };
        let (status, body) = self.client.send(self.backend, request).await?;
        if !(200..300).contains(&status) {
            return Err(DiscoveryError::Status { path: path.to_owned(), status });
        }
        let read = serde_json::from_slice(&body);
        read.map_err(|_not_json| DiscoveryError::NotJson { path: path.to_owned() })
    }
}
