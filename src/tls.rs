//! TLS by rustls, for both sides: certificates and keys out of PEM files, the settings of listeners
//! (read again while they run) and of connections to backends. Knows nothing of sockets.

mod client;
mod pem;
mod server;

pub(crate) use client::system_certificates;
pub use client::{ClientTls, ClientTlsFiles};
pub use server::{ClientAuth, Look, Refreshed, ServerTls, ServerTlsFiles};

use std::path::PathBuf;
use std::sync::Arc;

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;

/// What is negotiated for HTTP/2 (RFC 9113 §3.2).
const ALPN_HTTP2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";
/// Nothing older than TLS 1.2 is spoken.
const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
pub enum TlsError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is not PEM: {source}", path.display())]
    NotPem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{} holds no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} holds a certificate that cannot be read", path.display())]
    BadCertificate { path: PathBuf },
    #[error("{} holds no private key", path.display())]
    NoKey { path: PathBuf },
    #[error("the key in {} does not fit the certificate: {source}", path.display())]
    KeyMismatch { path: PathBuf, source: rustls::Error },
    #[error("{} cannot be used to verify clients: {source}", path.display())]
    ClientCa { path: PathBuf, source: rustls::server::VerifierBuilderError },
    #[error("'{name}' is not a name a certificate can have")]
    ServerName { name: String },
    #[error("this machine has no certificates of its own to trust: give a 'ca'")]
    NoSystemRoots,
    #[error("TLS cannot be set up: {source}")]
    Setup { source: rustls::Error },
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn protocols(http2: bool) -> Vec<Vec<u8>> {
    if http2 { vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()] } else { vec![ALPN_HTTP1.to_vec()] }
}
