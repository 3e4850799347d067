//! Client connections closed without a response, counted by reason: neither the access log nor a
//! request metric shows them.

use penstock_api::KindCounters;

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
pub struct CloseReasons(KindCounters<{ CloseReason::ALL.len() }>);

impl CloseReasons {
    pub(crate) fn note(&self, reason: CloseReason) {
        self.0.count(reason as usize);
    }

    /// The number of connections closed for each reason.
    pub fn counts(&self) -> impl Iterator<Item = (CloseReason, u64)> {
        CloseReason::ALL.into_iter().zip(self.0.read())
    }
}
