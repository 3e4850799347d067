//! TLS settings of connections to one backend: trusted CAs, client certificate, server name.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::{TlsError, VERSIONS, pem, protocols, provider};

/// The files and options of a backend's TLS settings.
#[derive(Debug, Clone, Copy)]
pub struct ClientTlsFiles<'a> {
    /// The trusted CAs. Default: the system's trust store.
    pub ca: Option<&'a PathBuf>,
    /// The client certificate and its key.
    pub identity: Option<(&'a PathBuf, &'a PathBuf)>,
    /// The name the backend's certificate must have; sent as SNI.
    pub server_name: &'a str,
    /// True to verify the backend's certificate.
    pub verify: bool,
    pub http2: bool,
}

/// The TLS settings of connections to one backend. Holds the session cache, so resumption lasts as
/// long as this value.
#[derive(Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    server_name: String,
}

/// Read once: a system has some hundred root certificates.
static SYSTEM_ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    let (added, ignored) = roots.add_parsable_certificates(system_certificates());
    tracing::debug!(added, ignored, "loaded the system's root certificates");
    Arc::new(roots)
});

/// The system's root certificates, in DER; none if they cannot be read.
pub fn system_certificates() -> Vec<CertificateDer<'static>> {
    let loaded = rustls_native_certs::load_native_certs();
    loaded
        .inspect_err(|error| tracing::warn!(%error, "cannot read the system's root certificates"))
        // No failure: a backend with `ca`, or without TLS, needs none of them.
        .unwrap_or_else(|_logged| Vec::new())
}

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] when a file cannot be read, or when the files do not fit together.
    pub fn load(files: ClientTlsFiles<'_>) -> Result<Self, TlsError> {
        let name = files.server_name;
        // Parsed only to be checked: a connection would fail by it, and only later.
        ServerName::try_from(name)
            .map_err(|_invalid| TlsError::ServerName { name: name.to_owned() })?;
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_protocol_versions(VERSIONS)
            .map_err(|source| TlsError::Setup { source })?;
        let builder = if files.verify {
            let roots = match files.ca {
                Some(path) => Arc::new(pem::read_roots(path)?),
                None if SYSTEM_ROOTS.is_empty() => return Err(TlsError::NoSystemRoots),
                None => Arc::clone(&SYSTEM_ROOTS),
            };
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|_no_roots| TlsError::NoSystemRoots)?;
            builder.with_webpki_verifier(verifier)
        } else {
            // Signatures are still checked: the other side at least has the key of its certificate.
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider)))
        };
        let mut config = match files.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => builder
                .with_client_auth_cert(pem::read_certificates(cert)?, pem::read_key(key)?)
                .map_err(|source| TlsError::KeyMismatch { path: key.clone(), source })?,
        };
        config.alpn_protocols = protocols(files.http2);
        if files.http2 {
            // `http2: true` without HTTP/2 on the other side is a misconfiguration, so there is no
            // fallback.
            config.alpn_protocols.truncate(1);
        }
        Ok(Self { config: Arc::new(config), server_name: name.to_owned() })
    }

    /// The settings of the next connection.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// The name the backend's certificate must have.
    pub fn server_name(&self) -> &str {
        &self.server_name
    }
}

/// Accepts any certificate (`verify: false`). Handshake signatures are still verified.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
