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
    // Replaced as a whole: a handshake by new settings must not hold the token that their arrival
    // cancels, nor one by older settings the token that follows.
    next: Mutex<HandshakeTerms>,
}

/// The terms of a handshake.
#[derive(Debug, Clone)]
pub(crate) struct HandshakeTerms {
    pub(crate) config: Arc<ServerConfig>,
    /// Cancelled when a CA of client certificates is revoked that `config` trusts.
    pub(crate) ca_revoked: CancellationToken,
}

impl PortTls {
    /// Reads the files; `http2` offers HTTP/2 to clients.
    pub(crate) fn load(files: ServerTlsFiles, http2: bool) -> Result<Self, TlsError> {
        let settings = ServerTls::load(files, http2)?;
        let (config, ca_revoked) = (settings.config(), CancellationToken::new());
        Ok(Self { settings, next: Mutex::new(HandshakeTerms { config, ca_revoked }) })
    }

    /// The terms of the next handshake.
    pub(crate) fn for_handshake(&self) -> HandshakeTerms {
        self.next.lock().clone()
    }

    /// The expiry of the certificate, in seconds since 1970; `None` if unknown.
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.settings.expires_at()
    }

    /// Reloads the files if they have changed, and ends the connections whose CA was revoked.
    pub(crate) fn refresh(&self, look: Look) -> Refreshed {
        let refreshed = self.settings.refresh(look);
        if let Refreshed::Replaced { ca_revoked } = refreshed {
            let mut next = self.next.lock();
            next.config = self.settings.config();
            if ca_revoked {
                // After the new settings are in force: a client that reconnects at once must get
                // them.
                std::mem::take(&mut next.ca_revoked).cancel();
            }
        }
        refreshed
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use penstock_config::tls::ClientAuth;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    /// Returns the token of the first handshake by other settings than `before`.
    fn next_token(tls: &PortTls, before: &Arc<ServerConfig>) -> CancellationToken {
        loop {
            let next = tls.for_handshake();
            if !Arc::ptr_eq(&next.config, before) {
                return next.ca_revoked;
            }
        }
    }

    #[test]
    fn revocation_ends_handshakes_by_earlier_settings_alone() {
        let folder = std::env::temp_dir().join(format!("penstock-port-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name| folder.join(name);
        let (first, second) = (authority(), authority());
        std::fs::write(path("cert.pem"), first.pem()).unwrap();
        std::fs::write(path("key.pem"), first.key().serialize_pem()).unwrap();
        let trust = |all: &[&CertifiedIssuer<'static, KeyPair>]| {
            let text: String = all.iter().map(|one| one.pem()).collect();
            std::fs::write(path("ca.pem"), text).unwrap();
        };
        trust(&[&first]);
        let client_ca = Some((path("ca.pem"), ClientAuth::Required));
        let files = ServerTlsFiles { cert: path("cert.pem"), key: path("key.pem"), client_ca };
        let tls = PortTls::load(files, false).unwrap();
        // Often, since a handshake has to begin at the very moment at which the settings change.
        for round in 0..100 {
            let (old, new) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
            let HandshakeTerms { config: before, ca_revoked: earlier } = tls.for_handshake();
            trust(&[old, new, new]);
            let added = tls.refresh(Look::Requested);
            assert!(matches!(added, Refreshed::Replaced { ca_revoked: false }), "{added:?}");
            assert!(!earlier.is_cancelled(), "an additional CA ends nothing");
            let both = tls.for_handshake().config;
            assert!(!Arc::ptr_eq(&before, &both), "the settings are new");
            trust(&[new]);
            let token = thread::scope(|scope| {
                let waiting = scope.spawn(|| next_token(&tls, &both));
                let gone = tls.refresh(Look::Requested);
                assert!(matches!(gone, Refreshed::Replaced { ca_revoked: true }), "{gone:?}");
                waiting.join().unwrap()
            });
            assert!(earlier.is_cancelled(), "an older connection ends with the CA");
            assert!(!token.is_cancelled(), "round {round}: the new settings do not trust the CA");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
