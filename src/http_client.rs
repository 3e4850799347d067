//! The blocking HTTP client of commands and exporters: `http://` and `https://`, no redirects, no
//! proxies from the environment, responses of bounded size. Never used on the path of a request.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// The timeouts of a connection attempt, and of each read and write of an established connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientTimeouts {
    pub(crate) connect: Duration,
    pub(crate) io: Duration,
}

/// Creates a client. With `https`, server certificates are verified against the system's root
/// certificates; `SSL_CERT_FILE` and `SSL_CERT_DIR` name others.
pub(crate) fn new_client(https: bool, timeouts: ClientTimeouts) -> Agent {
    let config = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_idle_connections(0)
        .timeout_connect(Some(timeouts.connect))
        .timeout_per_read(Some(timeouts.io))
        .timeout_per_write(Some(timeouts.io));
    let config = if https { config.tls_config(tls_config()) } else { config };
    config.build().new_agent()
}

/// Creates a client for the keys of an identity provider: TLS to a host that one of `roots`
/// vouches for, everything within `timeout`.
pub(crate) fn new_keys_client(roots: &[CertificateDer<'_>], timeout: Duration) -> Agent {
    Agent::config_builder()
        .proxy(None)
        .https_only(true)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_idle_connections(0)
        .timeout_global(Some(timeout))
        .tls_config(trusting(roots))
        .build()
        .new_agent()
}

fn tls_config() -> TlsConfig {
    trusting(&penstock_config::tls::system_certificates())
}

fn trusting(roots: &[CertificateDer<'_>]) -> TlsConfig {
    let roots = roots.iter().map(|root| Certificate::from_der(root).to_owned());
    TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}
