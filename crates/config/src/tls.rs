//! TLS by rustls, for both sides: certificates and keys from PEM files, settings of listeners
//! and of connections to backends. Opens no sockets.

mod client;
mod pem;
mod server;

pub use client::{ClientTls, ClientTlsFiles, system_certificates};
pub use pem::read_certificates;
pub use server::{ClientAuth, ServerTls, ServerTlsFiles};

use std::path::PathBuf;
use std::sync::Arc;

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;

/// The ALPN name of HTTP/2 (RFC 9113 §3.2).
const ALPN_HTTP2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";
/// TLS 1.3 and 1.2; older versions are refused.
const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

/// The reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is not PEM: {source}", path.display())]
    NotPem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{} contains no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} contains an invalid certificate", path.display())]
    BadCertificate { path: PathBuf },
    #[error("{} contains no private key", path.display())]
    NoKey { path: PathBuf },
    #[error("the key in {} does not match the certificate: {source}", path.display())]
    KeyMismatch { path: PathBuf, source: rustls::Error },
    #[error("{} cannot be used to verify clients: {source}", path.display())]
    ClientCa { path: PathBuf, source: rustls::server::VerifierBuilderError },
    #[error("'{name}' is not a valid server name")]
    ServerName { name: String },
    #[error("the system's trust store is empty: set 'ca'")]
    NoSystemRoots,
    #[error("cannot set up TLS: {source}")]
    Setup { source: rustls::Error },
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn protocols(http2: bool) -> Vec<Vec<u8>> {
    if http2 { vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()] } else { vec![ALPN_HTTP1.to_vec()] }
}
