//! TLS settings of a listener, read from its files.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
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

/// The TLS settings of a listener.
#[derive(Debug)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    expires_at: Option<u64>,
    /// The trusted CAs of client certificates.
    roots: Option<Arc<RootCertStore>>,
}

impl ServerTls {
    /// Reads the files; `http2` offers HTTP/2 to clients.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be read, or when the files do not fit together.
    pub fn load(files: &ServerTlsFiles, http2: bool) -> Result<Self, TlsError> {
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

    /// The settings of a handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// The expiry of the certificate, in seconds since 1970; `None` if unknown.
    pub fn expires_at(&self) -> Option<u64> {
        self.expires_at
    }

    /// Returns whether every CA of `before` is still trusted.
    pub fn trusts_all(&self, before: &Self) -> bool {
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
