//! The TLS of one port. Changed files are reloaded while it runs: the next handshake uses a new
//! certificate, the connections of a CA that was removed end, and invalid files change nothing.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use penstock_config::tls::{ServerTls, ServerTlsFiles, TlsError};
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

/// The reason why the files are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Periodic: files may be half written, so a change is loaded by the next check that finds them
    /// unchanged.
    Regular,
    /// On request (reload): the files are complete.
    Requested,
}

/// The result of checking the files.
#[derive(Debug)]
pub(crate) enum Refreshed {
    /// The files are unchanged, or have only just changed.
    Unchanged,
    /// The next handshake uses the new files.
    Replaced {
        /// True if a CA was removed, and with it the connections that it had signed for.
        ca_revoked: bool,
    },
    /// The new files are invalid; the previous ones stay in use.
    Failed(TlsError),
}

/// Modification time and size of each file.
type Stamp = [Option<(SystemTime, u64)>; 3];

/// The state of the files at the last check.
#[derive(Debug)]
struct SeenFiles {
    stamp: Stamp,
    is_read: bool,
}

#[derive(Debug)]
pub(crate) struct PortTls {
    files: ServerTlsFiles,
    http2: bool,
    seen: Mutex<SeenFiles>,
    // Replaced as a whole: a handshake by new settings must not hold the token that their arrival
    // cancels, nor one by older settings the token that follows.
    in_force: Mutex<InForce>,
}

#[derive(Debug)]
struct InForce {
    settings: ServerTls,
    ca_revoked: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct HandshakeTerms {
    pub(crate) config: Arc<ServerConfig>,
    /// Cancelled when a CA of client certificates is revoked that `config` trusts.
    pub(crate) ca_revoked: CancellationToken,
}

impl PortTls {
    /// Reads the files; `http2` offers HTTP/2 to clients.
    pub(crate) fn load(files: ServerTlsFiles, http2: bool) -> Result<Self, TlsError> {
        // Before the files are read: a change in between is seen as one by the next check.
        let seen = Mutex::new(SeenFiles { stamp: stamp_of(&files), is_read: true });
        let settings = ServerTls::load(&files, http2)?;
        let in_force = Mutex::new(InForce { settings, ca_revoked: CancellationToken::new() });
        Ok(Self { files, http2, seen, in_force })
    }

    /// The terms of the next handshake.
    pub(crate) fn for_handshake(&self) -> HandshakeTerms {
        let InForce { settings, ca_revoked } = &*self.in_force.lock();
        HandshakeTerms { config: settings.config(), ca_revoked: ca_revoked.clone() }
    }

    /// The expiry of the certificate, in seconds since 1970; `None` if unknown.
    pub(crate) fn expires_at(&self) -> Option<u64> {
        self.in_force.lock().settings.expires_at()
    }

    /// Reloads the files if they have changed, and ends the connections whose CA was revoked.
    pub(crate) fn refresh(&self, look: Look) -> Refreshed {
        let stamp = stamp_of(&self.files);
        let mut seen = self.seen.lock();
        let is_settled = seen.stamp == stamp;
        if is_settled && seen.is_read {
            return Refreshed::Unchanged;
        }
        // A half-written CA file must not close the connections of the CAs that it still lacks. A
        // failed load is retried at the next change.
        *seen = SeenFiles { stamp, is_read: is_settled || look == Look::Requested };
        if !seen.is_read {
            return Refreshed::Unchanged;
        }
        match ServerTls::load(&self.files, self.http2) {
            Ok(settings) => Refreshed::Replaced { ca_revoked: self.replace(settings) },
            Err(error) => Refreshed::Failed(error),
        }
    }

    /// Puts new settings in force; returns whether a CA was revoked.
    fn replace(&self, settings: ServerTls) -> bool {
        let mut in_force = self.in_force.lock();
        let ca_revoked = !settings.trusts_all(&in_force.settings);
        in_force.settings = settings;
        if ca_revoked {
            // After the new settings are in force: a client that reconnects at once must get them.
            std::mem::take(&mut in_force.ca_revoked).cancel();
        }
        ca_revoked
    }
}

fn stamp_of(files: &ServerTlsFiles) -> Stamp {
    let client_ca = files.client_ca.as_ref().map(|(path, _)| path);
    let paths = [Some(&files.cert), Some(&files.key), client_ca];
    paths.map(|path| {
        let about = std::fs::metadata(path?).ok()?;
        Some((about.modified().ok()?, about.len()))
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
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

    /// The certificate and the CAs of a port, in a folder that is removed with it.
    struct PortFiles(PathBuf);

    impl PortFiles {
        fn new(name: &str, signer: &CertifiedIssuer<'static, KeyPair>) -> Self {
            let folder = format!("penstock-{name}-{}", std::process::id());
            let files = Self(std::env::temp_dir().join(folder));
            std::fs::create_dir_all(&files.0).unwrap();
            std::fs::write(files.0.join("cert.pem"), signer.pem()).unwrap();
            std::fs::write(files.0.join("key.pem"), signer.key().serialize_pem()).unwrap();
            files
        }

        fn trust(&self, all: &[&CertifiedIssuer<'static, KeyPair>]) {
            let text: String = all.iter().map(|one| one.pem()).collect();
            std::fs::write(self.0.join("ca.pem"), text).unwrap();
        }

        fn load(&self) -> PortTls {
            let path = |name| self.0.join(name);
            let client_ca = Some((path("ca.pem"), ClientAuth::Required));
            let files = ServerTlsFiles { cert: path("cert.pem"), key: path("key.pem"), client_ca };
            PortTls::load(files, false).unwrap()
        }
    }

    impl Drop for PortFiles {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn half_written_ca_file_closes_no_connection() {
        let (first, second) = (authority(), authority());
        let files = PortFiles::new("half-written", &first);
        files.trust(&[&first, &second]);
        let tls = files.load();

        files.trust(&[&first]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        files.trust(&[&first, &second]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        let whole = tls.refresh(Look::Regular);
        assert!(matches!(whole, Refreshed::Replaced { ca_revoked: false }), "{whole:?}");

        files.trust(&[&second]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        let gone = tls.refresh(Look::Regular);
        assert!(matches!(gone, Refreshed::Replaced { ca_revoked: true }), "{gone:?}");

        files.trust(&[&first, &first]);
        let refreshed = tls.refresh(Look::Requested);
        assert!(matches!(refreshed, Refreshed::Replaced { ca_revoked: true }), "{refreshed:?}");
        assert!(matches!(tls.refresh(Look::Requested), Refreshed::Unchanged));
    }

    #[test]
    fn revocation_ends_handshakes_by_earlier_settings_alone() {
        let (first, second) = (authority(), authority());
        let files = PortFiles::new("revoked", &first);
        files.trust(&[&first]);
        let tls = files.load();
        // Often, since a handshake has to begin at the very moment at which the settings change.
        for round in 0..100 {
            let (old, new) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
            let HandshakeTerms { config: before, ca_revoked: earlier } = tls.for_handshake();
            files.trust(&[old, new, new]);
            let added = tls.refresh(Look::Requested);
            assert!(matches!(added, Refreshed::Replaced { ca_revoked: false }), "{added:?}");
            assert!(!earlier.is_cancelled(), "an additional CA ends nothing");
            let both = tls.for_handshake().config;
            assert!(!Arc::ptr_eq(&before, &both), "the settings are new");
            files.trust(&[new]);
            let token = thread::scope(|scope| {
                let waiting = scope.spawn(|| next_token(&tls, &both));
                let gone = tls.refresh(Look::Requested);
                assert!(matches!(gone, Refreshed::Replaced { ca_revoked: true }), "{gone:?}");
                waiting.join().unwrap()
            });
            assert!(earlier.is_cancelled(), "an older connection ends with the CA");
            assert!(!token.is_cancelled(), "round {round}: the new settings do not trust the CA");
        }
    }
}
