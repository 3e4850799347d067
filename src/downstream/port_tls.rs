//! The TLS of one port: its settings, which follow its files, and the end of the connections whose
//! CA was revoked.

use std::sync::Arc;

use parking_lot::Mutex;
use penstock_config::tls::{Look, Refreshed, ServerTls, ServerTlsFiles, TlsError};
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

/// The TLS of one port.
#[derive(Debug)]
pub(crate) struct PortTls {
    settings: ServerTls,
    /// Cancelled and replaced when a CA of client certificates is revoked.
    ca_revoked: Mutex<CancellationToken>,
}

impl PortTls {
    /// Reads the files; `http2` offers HTTP/2 to clients.
    pub(crate) fn load(files: ServerTlsFiles, http2: bool) -> Result<Self, TlsError> {
        let settings = ServerTls::load(files, http2)?;
        Ok(Self { settings, ca_revoked: Mutex::default() })
    }

    /// The settings for the next handshake, and a token that is cancelled when the CA of a client
    /// certificate is revoked.
    pub(crate) fn for_handshake(&self) -> (Arc<ServerConfig>, CancellationToken) {
        // The token first: a handshake by settings that trust a revoked CA must hold the token that
        // the revocation cancels. The other way round, it could get the next one.
        let ca_revoked = self.ca_revoked.lock().clone();
        (self.settings.config(), ca_revoked)
    }

    /// The expiry of the certificate, in seconds since 1970; `None` if unknown.
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.settings.expires_at()
    }

    /// Reloads the files if they have changed, and ends the connections whose CA was revoked.
    pub(crate) fn refresh(&self, look: Look) -> Refreshed {
        let refreshed = self.settings.refresh(look);
        if matches!(refreshed, Refreshed::Replaced { ca_revoked: true }) {
            // After the new settings are in force: a client that reconnects at once must get them.
            std::mem::take(&mut *self.ca_revoked.lock()).cancel();
        }
        refreshed
    }
}
