//! Certificates, keys and trusted CAs from PEM files.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// The certificates of a file, in its order.
///
/// # Errors
/// [`TlsError`] when there is none that can be read.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let certificates = certificates.map_err(|source| not_pem(path, source))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.to_owned() });
    }
    Ok(certificates)
}

/// The first private key of a file.
pub(super) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    match PrivateKeyDer::from_pem_slice(&read(path)?) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => Err(TlsError::NoKey { path: path.to_owned() }),
        Err(source) => Err(not_pem(path, source)),
    }
}

/// The trusted CAs of a file.
pub(super) fn read_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|_not_x509| TlsError::BadCertificate { path: path.to_owned() })?;
    }
    Ok(roots)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let text = std::fs::read(path);
    text.map_err(|source| TlsError::Unreadable { path: path.to_owned(), source })
}

fn not_pem(path: &Path, source: pem::Error) -> TlsError {
    TlsError::NotPem { path: path.to_owned(), source }
}
