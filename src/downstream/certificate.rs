//! The names in a client's certificate, which the listener has verified. They are read once for a
//! connection.

use std::sync::Arc;

use pingora::protocols::Ssl;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The most names that are read.
const MAX_NAMES: usize = 16;
/// The longest name, in bytes.
const MAX_NAME: usize = 256;

/// The names of a verified certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CertificateNames {
    /// The common names of the subject.
    pub(crate) subject: Vec<Box<str>>,
    /// DNS names, e-mail addresses and URIs among the subject alternative names.
    pub(crate) alternative: Vec<Box<str>>,
}

impl CertificateNames {
    /// Returns the names of the certificate that the client of a connection has shown.
    pub(crate) fn of(stream: &(impl Ssl + ?Sized)) -> Option<Arc<Self>> {
        let certificate = stream.get_ssl()?.peer_certificate_der()?;
        Some(Arc::new(Self::read(certificate)))
    }

    fn read(certificate: &[u8]) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            // rustls has verified it; without names it opens nothing.
            return Self::default();
        };
        let subject = certificate.subject().iter_common_name();
        let subject = subject.filter_map(|name| name.as_str().ok());
        let alternative = certificate.subject_alternative_name().ok().flatten();
        let alternative = alternative.iter().flat_map(|all| &all.value.general_names);
        let alternative = alternative.filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some(*name)
            }
            _ => None,
        });
        Self { subject: bounded(subject), alternative: bounded(alternative) }
    }
}

fn bounded<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Box<str>> {
    let fit = names.filter(|name| (1..=MAX_NAME).contains(&name.len()));
    fit.take(MAX_NAMES).map(Box::from).collect()
}
