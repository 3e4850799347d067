//! Connections closed before, or instead of, answering: counted by why, because no request tells.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a client's connection was closed without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedFor {
    /// The TLS handshake failed.
    Tls,
    /// It should have begun with a PROXY header of a trusted proxy.
    ProxyHeader,
    /// It took longer than `limits.header_timeout` to say how it will speak.
    TooSlow,
    /// It broke the rules of HTTP/2, or one of the limits in `limits.http2`.
    Http2,
    /// Its client showed a certificate under authorities of which one is not trusted any more.
    Distrusted,
}

impl ClosedFor {
    /// Every reason.
    pub const ALL: [Self; 5] =
        [Self::Tls, Self::ProxyHeader, Self::TooSlow, Self::Http2, Self::Distrusted];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::ProxyHeader => "proxy_header",
            Self::TooSlow => "too_slow",
            Self::Http2 => "http2",
            Self::Distrusted => "distrusted",
        }
    }
}

/// How often each happened.
#[derive(Debug, Default)]
pub struct Closings([AtomicU64; ClosedFor::ALL.len()]);

impl Closings {
    pub(crate) fn note(&self, reason: ClosedFor) {
        if let Some(count) = self.0.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often connections were closed for that reason.
    pub fn count(&self, reason: ClosedFor) -> u64 {
        self.0.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}
