//! The state that all client connections share: the listeners, the counters of connections and
//! requests, and the reasons why connections were closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use penstock_api::KindCounters;
use penstock_config::Listener;
use penstock_config::tls::TlsError;

use super::listener::Ports;
use super::port_tls::{Look, Refreshed};

/// The state that client connections share.
#[derive(Debug)]
pub struct Clients {
    pub(crate) ports: Ports,
    pub(crate) connections: Arc<AtomicUsize>,
    /// Requests, local responses included, and HTTP/2 connections that are being drained.
    pub(crate) in_flight: Arc<AtomicUsize>,
    /// Clients with a refused head that still send.
    pub(crate) refused_drains: Arc<AtomicUsize>,
    pub(crate) close_reasons: CloseReasons,
    certificate_failures: AtomicU64,
    /// The most connections that the limit of open files leaves room for.
    affordable: AtomicUsize,
}

impl Clients {
    /// Reads the certificates of `listeners`; nothing is bound here.
    ///
    /// # Errors
    /// [`TlsError`] when a certificate cannot be used.
    pub(crate) fn new(listeners: &[Listener]) -> Result<Self, TlsError> {
        Ok(Self {
            ports: Ports::open(listeners)?,
            connections: Arc::default(),
            in_flight: Arc::default(),
            refused_drains: Arc::default(),
            close_reasons: CloseReasons::default(),
            certificate_failures: AtomicU64::new(0),
            affordable: AtomicUsize::new(usize::MAX),
        })
    }

    /// Sets the number of client connections that the limit of open files leaves room for.
    pub(crate) fn set_affordable(&self, connections: usize) {
        self.affordable.store(connections, Ordering::Relaxed);
    }

    pub(crate) fn affordable(&self) -> usize {
        self.affordable.load(Ordering::Relaxed)
    }

    /// The number of open client connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The number of requests in flight, local responses included.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// The counters of client connections closed without a response, by reason.
    pub fn close_reasons(&self) -> &CloseReasons {
        &self.close_reasons
    }

    /// The expiry of each TLS listener's certificate, in seconds since 1970.
    pub fn certificates(&self) -> impl Iterator<Item = (String, u64)> {
        self.ports.tls().filter_map(|(address, tls)| Some((address.to_string(), tls.expires_at()?)))
    }

    /// The number of changed certificates that could not be used.
    pub fn certificate_failures(&self) -> u64 {
        self.certificate_failures.load(Ordering::Relaxed)
    }

    /// Reloads certificates whose files have changed.
    pub fn refresh_certificates(&self, look: Look) {
        for (listen, tls) in self.ports.tls() {
            match tls.refresh(look) {
                Refreshed::Unchanged => {}
                Refreshed::Replaced { ca_revoked } => {
                    tracing::info!(%listen, ca_revoked, "TLS certificate reloaded");
                }
                Refreshed::Failed(error) => {
                    self.certificate_failures.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%listen, %error, "TLS reload failed, keeping the old certificate");
                }
            }
        }
    }
}

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

/// One counter per [`CloseReason`]: neither the access log nor a request metric shows these
/// connections.
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
