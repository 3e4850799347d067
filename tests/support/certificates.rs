//! Certificates made for a test: an authority, and leaf certificates it signs.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa};
use rcgen::{ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::penstock::scratch;

/// The party that signs.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Its own certificate as a file.
    pub file: PathBuf,
}

/// A certificate and its key, as files.
#[derive(Clone)]
pub struct Issued {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // What strict clients, such as Python's, want of an authority and, below, of its signature.
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = scratch("ca.pem");
        std::fs::write(&file, issuer.pem()).unwrap();
        Self { issuer, file }
    }

    /// A certificate for a name or an address.
    pub fn issue(&self, name: &str) -> Issued {
        let cert = scratch("cert.pem");
        let issued = Issued { key: cert.with_file_name("key.pem"), cert };
        self.issue_into(name, &issued);
        issued
    }

    /// The same, written over another one's files.
    pub fn issue_into(&self, name: &str, files: &Issued) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
    }

    /// A client that trusts this authority, offers `protocols`, and shows `own`.
    pub fn client(&self, protocols: &[&str], own: Option<&Issued>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.file).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder.with_client_auth_cert(vec![own.cert()], own.key()).unwrap(),
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

impl Issued {
    fn cert(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.cert).unwrap()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).unwrap()
    }

    /// A server that shows this certificate, offers `protocols`, and wants clients to show one of
    /// `clients`.
    pub fn server(&self, protocols: &[&str], clients: Option<&Authority>) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_file(&authority.file).unwrap()).unwrap();
                let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
                    Arc::new(roots),
                    provider(),
                );
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(vec![self.cert()], self.key()).unwrap();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// `tls:` of a listener.
    pub fn yaml(&self) -> String {
        format!("cert: {}, key: {}", self.cert.display(), self.key.display())
    }
}

/// A blocking connection over TLS.
pub type Secured = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// Connects to `localhost` at an address, and greets.
pub fn secure(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Secured> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(Arc::clone(config), name).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut stream = rustls::StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
