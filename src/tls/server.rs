//! The TLS of a listener. Its files are looked at again while it runs: a new certificate serves the
//! next handshake, a broken one changes nothing.

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
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::FromDer;

use super::{TlsError, VERSIONS, pem, protocols, provider};

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// A handshake without one fails.
    Required,
    /// One that is shown must be good.
    Optional,
}

/// Where a listener's certificates are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTlsFiles {
    /// The certificate, and those between it and a root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs the certificates of clients, when they are asked for one.
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

/// When files were changed, and how long they are.
type Stamp = [Option<(SystemTime, u64)>; 3];

/// How the files were when they were looked at last.
struct Seen {
    stamp: Stamp,
    is_read: bool,
}

/// Why the files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It is time to: they may be half written, so that a change is read with the next look that
    /// finds them the same.
    Regular,
    /// Somebody asks for it, and knows that they are whole.
    Asked,
}

/// The TLS of a listener, as it is now.
pub struct ServerTls {
    files: ServerTlsFiles,
    http2: bool,
    now: ArcSwap<Loaded>,
    seen: Mutex<Seen>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    expires_at: Option<u64>,
    trust: Option<Trust>,
}

/// Whose certificates clients may show.
struct Trust {
    roots: Arc<RootCertStore>,
    /// Cancelled once one of them is not trusted any more.
    ended: CancellationToken,
}

impl Trust {
    /// Whether whoever was trusted by `before` still is.
    fn includes(&self, before: &Self) -> bool {
        before.roots.roots.iter().all(|root| self.roots.roots.contains(root))
    }
}

/// What came of looking at the files again.
#[derive(Debug)]
pub enum Refreshed {
    /// They are as they were, or changed only just now.
    Unchanged,
    /// The next handshake uses what they say.
    Replaced {
        /// Not every authority of before is among those of now: the connections end whose clients
        /// have shown a certificate.
        ca_revoked: bool,
    },
    /// They cannot be used; what was read before still is.
    Failed(TlsError),
}

impl ServerTls {
    /// Reads the files; `http2` offers HTTP/2 to clients.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be read, or they do not fit together.
    pub fn load(files: ServerTlsFiles, http2: bool) -> Result<Self, TlsError> {
        let seen = Mutex::new(Seen { stamp: files.stamp(), is_read: true });
        let now = ArcSwap::from_pointee(Loaded::read(&files, http2)?);
        Ok(Self { files, http2, now, seen })
    }

    /// The settings for the next handshake, and what is cancelled once a certificate that a client
    /// shows in it is worth nothing any more.
    pub fn config(&self) -> (Arc<ServerConfig>, Option<CancellationToken>) {
        let now = self.now.load();
        (Arc::clone(&now.config), now.trust.as_ref().map(|trust| trust.ended.clone()))
    }

    /// When the certificate expires, in seconds since 1970; `None` where it does not say.
    pub fn expires_at(&self) -> Option<u64> {
        self.now.load().expires_at
    }

    /// The certificate's file.
    pub fn certificate(&self) -> &std::path::Path {
        &self.files.cert
    }

    /// Reads the files again when they have changed.
    pub fn refresh(&self, look: Look) -> Refreshed {
        let stamp = self.files.stamp();
        let mut seen = self.seen.lock();
        let is_settled = seen.stamp == stamp;
        if is_settled && seen.is_read {
            return Refreshed::Unchanged;
        }
        // A list of authorities that is seen before its end must not end the connections of those
        // behind. What fails is tried again with the next change.
        *seen = Seen { stamp, is_read: is_settled || look == Look::Asked };
        if !seen.is_read {
            return Refreshed::Unchanged;
        }
        match Loaded::read(&self.files, self.http2) {
            Ok(loaded) => Refreshed::Replaced { ca_revoked: self.replace(loaded) },
            Err(error) => Refreshed::Failed(error),
        }
    }

    /// Returns whether an authority is not trusted any more.
    fn replace(&self, mut loaded: Loaded) -> bool {
        let before = self.now.load_full();
        let (Some(trust), Some(old)) = (&mut loaded.trust, &before.trust) else {
            self.now.store(Arc::new(loaded));
            return false;
        };
        let ca_revoked = !trust.includes(old);
        if !ca_revoked {
            trust.ended = old.ended.clone();
        }
        // First: who comes back at once is to find the new ones.
        self.now.store(Arc::new(loaded));
        if ca_revoked {
            old.ended.cancel();
        }
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
        let (builder, trust) = match &files.client_ca {
            None => (builder.with_no_client_auth(), None),
            Some((path, auth)) => {
                let roots = Arc::new(pem::read_roots(path)?);
                let verifier = client_verifier(path.clone(), Arc::clone(&roots), *auth)?;
                let trust = Trust { roots, ended: CancellationToken::new() };
                (builder.with_client_cert_verifier(verifier), Some(trust))
            }
        };
        let mut config = builder
            .with_single_cert(certificates, key)
            .map_err(|source| TlsError::KeyMismatch { path: files.key.clone(), source })?;
        config.alpn_protocols = protocols(http2);
        // Stateless resumption: a returning client is known without memory per client here.
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(setup)?;
        Ok(Self { config: Arc::new(config), expires_at, trust })
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
    fn a_list_of_authorities_that_is_half_written_ends_nothing() {
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
        let (_, ended) = tls.config();
        let is_ended = || ended.as_ref().unwrap().is_cancelled();

        list(&[&first]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        list(&[&first, &second]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        let whole = tls.refresh(Look::Regular);
        assert!(matches!(whole, Refreshed::Replaced { ca_revoked: false }), "{whole:?}");
        assert!(!is_ended());

        list(&[&second]);
        assert!(matches!(tls.refresh(Look::Regular), Refreshed::Unchanged));
        let gone = tls.refresh(Look::Regular);
        assert!(matches!(gone, Refreshed::Replaced { ca_revoked: true }), "{gone:?}");
        assert!(is_ended(), "it has stayed so");

        list(&[&first, &first]);
        let asked = tls.refresh(Look::Asked);
        assert!(matches!(asked, Refreshed::Replaced { ca_revoked: true }), "{asked:?}");
        assert!(matches!(tls.refresh(Look::Asked), Refreshed::Unchanged));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
