//! Fetches the keys of an identity provider: from a file, or over TLS from the host of the URL and
//! no other, since a redirect is an error.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use penstock_api::units::ByteSize;
use penstock_config::tls::{TlsError, read_certificates, system_certificates};
use penstock_config::{JwksSource, JwtConfig};

use super::key_set::KeySetError;
use crate::http_client::new_keys_client;

/// The reason why keys cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("cannot read it: {0}")]
    File(#[from] io::Error),
    #[error("jwks_ca: {0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Http(#[from] ureq::Error),
    #[error("it redirects (status {status}); only its own URL is trusted")]
    Redirect { status: u16 },
    #[error("its status is {status}")]
    Status { status: u16 },
    #[error("it is longer than {limit} (max_jwks_size)")]
    TooLong { limit: ByteSize },
    #[error("{0}")]
    Keys(#[from] KeySetError),
}

/// Fetches the document with the keys of an issuer.
pub(super) fn fetch(config: &JwtConfig) -> Result<Vec<u8>, FetchError> {
    match &config.jwks {
        JwksSource::File(path) => read(path, config.max_jwks_size),
        JwksSource::Https(url) => get(url, config),
    }
}

fn read(path: &Path, limit: ByteSize) -> Result<Vec<u8>, FetchError> {
    let mut document = Vec::new();
    // One byte more than allowed shows that the file is too long.
    File::open(path)?.take(limit.0.saturating_add(1)).read_to_end(&mut document)?;
    if document.len() > limit.to_usize() {
        return Err(FetchError::TooLong { limit });
    }
    Ok(document)
}

fn get(url: &str, config: &JwtConfig) -> Result<Vec<u8>, FetchError> {
    // Read each time: a renewed CA counts without a restart.
    let roots = match &config.jwks_ca {
        Some(path) => read_certificates(path)?,
        None => system_certificates(),
    };
    let client = new_keys_client(&roots, config.jwks_timeout);
    let mut response = client.get(url).header("accept", "application/json").call()?;
    match response.status().as_u16() {
        200 => {}
        // Another host could serve keys that sign for this issuer.
        status @ 300..400 => return Err(FetchError::Redirect { status }),
        status => return Err(FetchError::Status { status }),
    }
    let limit = config.max_jwks_size;
    let body = response.body_mut().with_config().limit(limit.0);
    body.read_to_vec().map_err(|error| match error {
        ureq::Error::BodyExceedsLimit(_) => FetchError::TooLong { limit },
        other => FetchError::Http(other),
    })
}
