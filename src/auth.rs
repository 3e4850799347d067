//! The client of a request, by its key, its token, or the certificate of its connection; and the
//! owner of what the client stores. Knows neither the way of a request nor its response.

mod client_keys;
mod key_owner;

pub use client_keys::ClientKeys;

pub(crate) use client_keys::{KeyFailure, restore_used};
pub(crate) use key_owner::KeyOwner;

use std::borrow::Cow;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, Uri};
use penstock_api::{bearer_token, query_value, query_without};
use penstock_config::Compat;
use penstock_core::clients::ClientIdentity;
use penstock_core::routing::Generation;

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
