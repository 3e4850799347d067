//! TLS as these clients speak it: version 1.3, one cipher and one key exchange, so that all proxies
//! do the same work; and no session is taken up again, as the SDKs take up none.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The settings of all connections.
pub(crate) struct Tls {
    connector: TlsConnector,
    protocol: &'static [u8],
}

impl Tls {
    /// TLS that trusts the certificate in a file and offers one protocol only.
    pub(crate) fn new(certificate: &str, protocol: &'static [u8]) -> Self {
        let provider = CryptoProvider {
            cipher_suites: vec![cipher_suite::TLS13_AES_256_GCM_SHA384],
            kx_groups: vec![kx_group::X25519],
            ..default_provider()
        };
        let trusted = CertificateDer::from_pem_file(certificate).expect("a certificate in PEM");
        let mut roots = RootCertStore::empty();
        roots.add(trusted).expect("a certificate that can be trusted");
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = builder.expect("a cipher of TLS 1.3").with_root_certificates(roots);
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Self { connector: TlsConnector::from(Arc::new(config)), protocol }
    }

    /// The handshake on a connection.
    pub(crate) async fn over(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from("localhost").expect("a name");
        let done = self.connector.connect(name, stream).await;
        let done = done.map_err(|_| "handshake".to_owned())?;
        if done.get_ref().1.alpn_protocol() != Some(self.protocol) {
            return Err("other-protocol".to_owned());
        }
        Ok(done)
    }
}
