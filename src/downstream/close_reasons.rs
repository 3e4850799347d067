//! Client connections closed without a response, counted by reason: neither the access log nor a
//! request metric shows them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reason why a client connection was closed without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The TLS handshake failed.
    Tls,
    /// The PROXY header of a trusted proxy was missing or malformed.
    ProxyHeader,
    /// No HTTP within `limits.header_timeout`.
    TooSlow,
    /// A violation of HTTP/2 or of `limits.http2`.
    Http2,
    /// The client had presented a certificate, and a reload removed a CA from the listener's
    /// `client_ca`.
    CaRevoked,
}

impl CloseReason {
    pub const ALL: [Self; 5] =
        [Self::Tls, Self::ProxyHeader, Self::TooSlow, Self::Http2, Self::CaRevoked];

    /// The label value in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::ProxyHeader => "proxy_header",
            Self::TooSlow => "too_slow",
            Self::Http2 => "http2",
            Self::CaRevoked => "ca_revoked",
        }
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
