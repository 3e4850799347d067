//! The client of a request, by its key, its token, or the certificate of its connection; and the
//! owner of what the client stores. Knows neither the way of a request nor its response.

mod client_keys;

pub use client_keys::ClientKeys;

pub(crate) use client_keys::{KeyFailure, restore_used};

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Uri};
use penstock_api::{bearer_token, query_value, query_without};
use penstock_config::Compat;
use penstock_core::clients::ClientIdentity;
use penstock_core::routing::Generation;
use xxhash_rust::xxh3::xxh3_64;

use crate::downstream::certificate::CertificateNames;
use crate::upstream::headers::{key_in_field, key_in_protocols};

/// The query parameter that clients of the NOMYO Router send their key in.
const QUERY_KEY: &str = "api_key";

/// Returns the client that the key of a request names, or the certificate of its connection; `None`
/// if no keys are needed.
///
/// # Errors
/// When the key is missing, unknown or not valid now.
pub(crate) fn identify_client(
    keys: &ClientKeys,
    generation: &Generation,
    head: &Parts,
    certificate: Option<&CertificateNames>,
) -> Result<Option<Arc<ClientIdentity>>, KeyFailure> {
    if keys.is_open(&generation.config) {
        return Ok(None);
    }
    if let Some(found) = certificate.and_then(|names| keys.find_named(generation, names)) {
        return found.map(Some);
    }
    let is_nomyo = generation.config.server.compat == Compat::Nomyo;
    let in_query = || query_value(head.uri.query().filter(|_| is_nomyo)?, QUERY_KEY);
    let given = given_key(&head.headers).map(Cow::Borrowed);
    let given = given.or_else(|| in_query().map(|key| Cow::Owned(key.into_bytes())));
    keys.find(generation, &given.ok_or(KeyFailure::Missing)?).map(Some)
}

/// A target without the key in its query, which no backend, log or trace is to get; `None` if there
/// is no key in it.
pub(crate) fn without_query_key(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    query_value(query, QUERY_KEY)?;
    let target = match query_without(query, QUERY_KEY) {
        Some(query) => format!("{}?{query}", uri.path()),
        None => uri.path().to_owned(),
    };
    let rest = Uri::builder().path_and_query(target).build();
    debug_assert!(rest.is_ok(), "a part of a query is one, too: {rest:?}");
    rest.ok()
}

fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    bearer_token(headers).or_else(|| key_in_field(headers)).or_else(|| key_in_protocols(headers))
}

/// The owner of a client's responses: a hash of its id. Without configured keys there is no hash,
/// and every client may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyOwner(Option<u64>);

impl KeyOwner {
    pub(crate) const ANYONE: Self = Self(None);

    /// Returns the owner for clients with that id. That of a key in the file is its name: a new key
    /// under the same name reads what the old one made.
    pub(crate) fn of(client_id: &str) -> Self {
        Self(Some(xxh3_64(client_id.as_bytes())))
    }

    /// Returns the owner with that hash, as written by another process.
    pub(crate) fn from_hash(hash: Option<u64>) -> Self {
        Self(hash)
    }

    /// Returns the hash that identifies the owner in another process as well.
    pub(crate) fn to_hash(self) -> Option<u64> {
        self.0
    }

    /// Returns whether these clients may read what was made for `made_by`.
    pub(crate) fn may_read(self, made_by: Self) -> bool {
        made_by == Self::ANYONE || self == made_by
    }
}
