//! Client connections closed without a response, counted by reason: neither the access log nor a
//! request metric shows them.

use std::sync::atomic::{AtomicU64, Ordering};

penstock_api::named! {
    /// The reason why a client connection was closed without a response.
    pub enum CloseReason {
        /// The TLS handshake failed.
        Tls = "tls",
        /// The PROXY header of a trusted proxy was missing or malformed.
        ProxyHeader = "proxy_header",
        /// No HTTP within `limits.header_timeout`.
        TooSlow = "too_slow",
        /// A violation of HTTP/2 or of `limits.http2`.
        Http2 = "http2",
        /// The client had presented a certificate, and a reload removed a CA from the listener's
        /// `client_ca`.
        CaRevoked = "ca_revoked",
    }
}

/// One counter per [`CloseReason`].
#[derive(Debug, Default)]
pub struct CloseReasons([AtomicU64; CloseReason::ALL.len()]);

impl CloseReasons {
    pub(crate) fn note(&self, reason: CloseReason) {
        if let Some(count) = self.0.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of connections closed for `reason`.
    pub fn count(&self, reason: CloseReason) -> u64 {
        self.0.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}
