//! TLS settings of a listener. Changed files are reloaded while it runs: the next handshake uses a
//! new certificate; invalid files change nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::FromDer;

use super::{TlsError, VERSIONS, pem, protocols, provider};

/// The requirement of a client certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// A handshake without one fails.
    Required,
    /// A certificate is optional, but an invalid one fails the handshake.
    Optional,
}

/// The certificate files of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// The certificate chain, leaf first.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The CAs of client certificates (mutual TLS).
    pub client_ca: Option<(PathBuf, ClientAuth)>,
}

impl ServerTlsFiles {
    fn stamp(&self) -> Stamp {
        let client_ca = self.client_ca.as_ref().map(|(path, _)| path);
        let paths = [Some(&self.cert), Some(&self.key), client_ca];
        paths.map(|path| {
            let about = std::fs::metadata(path?).ok()?;
            Some((about.modified().ok()?, about.len()))
        })
    }
}

/// Modification time and size of each file.
type Stamp = [Option<(SystemTime, u64)>; 3];

/// The state of the files at the last check.
struct Seen {
    stamp: Stamp,
    is_read: bool,
}

/// The reason why the files are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Periodic: files may be half written, so a change is loaded by the next check that finds them
    /// unchanged.
    Regular,
    /// On request (reload): the files are complete.
    Requested,
}

/// The current TLS settings of a listener.
pub struct ServerTls {
    files: ServerTlsFiles,
    http2: bool,
    now: ArcSwap<Loaded>,
    seen: Mutex<Seen>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    expires_at: Option<u64>,
    /// The trusted CAs of client certificates.
    roots: Option<Arc<RootCertStore>>,
}

/// The result of checking the files.
#[derive(Debug)]
pub enum Refreshed {
    /// The files are unchanged, or have only just changed.
    Unchanged,
    /// The next handshake uses the new files.
    Replaced {
        /// True if a CA was removed: the connections with a client certificate must be closed.
        ca_revoked: bool,
    },
    /// The new files are invalid; the previous ones stay in use.
    Failed(TlsError),
}

impl ServerTls {
    /// Reads the files; `http2` offers HTTP/2 to clients.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be read, or when the files do not fit together.
    pub fn load(files: ServerTlsFiles, http2: bool) -> Result<Self, TlsError> {
        let seen = Mutex::new(Seen { stamp: files.stamp(), is_read: true });
        let now = ArcSwap::from_pointee(Loaded::read(&files, http2)?);
        Ok(Self { files, http2, now, seen })
    }

    /// The settings for the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.now.load().config)
    }

    /// The expiry of the certificate, in seconds since 1970; `None` if unknown.
    pub fn expires_at(&self) -> Option<u64> {
        self.now.load().expires_at
    }

    pub fn certificate(&self) -> &std::path::Path {
        &self.files.cert
    }

    /// Reloads the files if they have changed.
    pub fn refresh(&self, look: Look) -> Refreshed {
        let stamp = self.files.stamp();
        let mut seen = self.seen.lock();
        let is_settled = seen.stamp == stamp;
        if is_settled && seen.is_read {
            return Refreshed::Unchanged;
        }
        // A half-written CA file must not close the connections of the CAs that it still lacks. A
        // failed load is retried at the next change.
        *seen = Seen { stamp, is_read: is_settled || look == Look::Requested };
        if !seen.is_read {
            return Refreshed::Unchanged;
        }
        match Loaded::read(&self.files, self.http2) {
            Ok(loaded) => Refreshed::Replaced { ca_revoked: self.replace(loaded) },
            Err(error) => Refreshed::Failed(error),
        }
    }

    /// Publishes the new files; returns whether a CA was revoked.
    fn replace(&self, loaded: Loaded) -> bool {
        let ca_revoked = !loaded.trusts_all(&self.now.load());
        self.now.store(Arc::new(loaded));
        ca_revoked
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Loaded {
    fn read(files: &ServerTlsFiles, http2: bool) -> Result<Self, TlsError> {
        let certificates = pem::read_certificates(&files.cert)?;
        let expires_at = certificates.first().and_then(expiry);
        let key = pem::read_key(&files.key)?;
        let setup = |source| TlsError::Setup { source };
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(VERSIONS).map_err(setup)?;
        let (builder, roots) = match &files.client_ca {
            None => (builder.with_no_client_auth(), None),
            Some((path, auth)) => {
                let roots = Arc::new(pem::read_roots(path)?);
                let verifier = client_verifier(path.clone(), Arc::clone(&roots), *auth)?;
                (builder.with_client_cert_verifier(verifier), Some(roots))
            }
        };
        let mut config = builder
            .with_single_cert(certificates, key)
            .map_err(|source| TlsError::KeyMismatch { path: files.key.clone(), source })?;
        config.alpn_protocols = protocols(http2);
        // Stateless resumption by tickets: no memory per client.
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(setup)?;
        Ok(Self { config: Arc::new(config), expires_at, roots })
    }

    /// Returns whether every CA of `before` is still trusted.
    fn trusts_all(&self, before: &Self) -> bool {
        let trusts = |root| self.roots.iter().any(|own| own.roots.contains(root));
        before.roots.iter().flat_map(|old| &old.roots).all(trusts)
    }
}

fn client_verifier(
    path: PathBuf,
    roots: Arc<RootCertStore>,
    auth: ClientAuth,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let builder = match auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional => builder.allow_unauthenticated(),
    };
    builder.build().map_err(|source| TlsError::ClientCa { path, source })
}

fn expiry(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_rest, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
    u64::try_from(parsed.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;

    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn half_written_ca_file_closes_no_connection() {
        let folder = std::env::temp_dir().join(format!("penstock-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name| folder.join(name);
        let (first, second) = (authority(), authority());
        std::fs::write(path("cert.pem"), first.pem()).unwrap();
        std::fs::write(path("key.pem"), first.key().serialize_pem()).unwrap();
        let list = |all: &[&CertifiedIssuer<'static, KeyPair>]| {
            let text: String = all.iter().map(|one| one.pem()).collect();
            std::fs::write(path("ca.pem"), text).unwrap();
        };
        list(&[&first, &second]);
        let client_ca = Some((path("ca.pem"), ClientAuth::Required));
        let files = ServerTlsFiles { cert: path("cert.pem"), key: path("key.pem"), client_ca };
        let tls = ServerTls::load(files, false).unwrap();

        list(&[&first]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        list(&[&first, &second]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        let whole = tls.refresh(Look::Regular);
        assert!(matches!(whole, Refreshed::Replaced { ca_revoked: false }), "{whole:?}");

        list(&[&second]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        let gone = tls.refresh(Look::Regular);
        assert!(matches!(gone, Refreshed::Replaced { ca_revoked: true }), "{gone:?}");

        list(&[&first, &first]);
        let refreshed = tls.refresh(Look::Requested);
        assert!(matches!(refreshed, Refreshed::Replaced { ca_revoked: true }), "{refreshed:?}");
        assert!(matches!(tls.refresh(Look::Requested), Refreshed::Unchanged));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
