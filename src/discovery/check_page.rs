//! The page that health checks query, and the meaning of its status. An engine's health page says
//! whether it can take requests, so it must be a success. A refused list of models still shows a
//! server: hosted APIs require a key for it, limit its rate, or have none; others refuse it for the
//! state of an account or the place of the caller.

use penstock_config::BackendConfig;

use super::client::DiscoveryError;
use super::engines::facts;

/// A status that passes a check without being a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) status: u16,
}

impl Remark {
    /// Returns its meaning, for the log and `doctor`.
    pub(super) fn meaning(self) -> &'static str {
        match self.status {
            300..=399 => "the list of models is elsewhere",
            401 | 403 => "the API key is missing or wrong",
            402 => "the account is out of credit",
            404 | 405 => "the path is not known there",
            429 => "the rate is limited",
            _ => "the list of models is refused",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CheckPage<'a> {
    pub(super) path: &'a str,
}

impl<'a> CheckPage<'a> {
    pub(super) fn of(config: &'a BackendConfig) -> Self {
        let path = config.health.path.as_deref();
        Self { path: path.unwrap_or_else(|| facts(config.engine).health_path) }
    }

    /// Returns whether it is a list of models instead of a page about the engine's health.
    pub(super) fn is_list(self) -> bool {
        self.path.trim_end_matches('/').ends_with("/models")
    }

    /// Judges the status of a response.
    ///
    /// # Errors
    /// If it shows no server that could take requests.
    pub(super) fn judge(self, status: u16) -> Result<Option<Remark>, DiscoveryError> {
        match status {
            200..=299 => Ok(None),
            // A server that waits in vain for a request that was sent whole does not work.
            300..=407 | 409..=499 if self.is_list() => Ok(Some(Remark { status })),
            _ => Err(DiscoveryError::Status { path: self.path.to_owned(), status }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_list_shows_a_server_and_a_refused_health_page_does_not() {
        let (list, page) = (CheckPage { path: "/v1/models" }, CheckPage { path: "/health" });
        for status in [301, 307, 400, 401, 402, 403, 404, 405, 418, 422, 429, 451] {
            assert_eq!(list.judge(status).unwrap(), Some(Remark { status }));
            assert!(page.judge(status).is_err(), "{status}");
        }
        for status in [200, 204] {
            assert_eq!((list.judge(status).unwrap(), page.judge(status).unwrap()), (None, None));
        }
        for status in [0, 101, 408, 500, 502, 503, 529] {
            assert!(list.judge(status).is_err() && page.judge(status).is_err(), "{status}");
        }
        assert!(CheckPage { path: "/api/v1/models/" }.is_list());
    }
}
