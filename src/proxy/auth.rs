//! Client keys, compared in constant time, and the models that each may use.

use std::borrow::Cow;

use http::{HeaderMap, Uri};
use penstock_api::{ErrorCode, bearer_token, query_value, query_without};
use penstock_config::{AuthConfig, Compat, Config};
use pingora::http::RequestHeader;
use subtle::ConstantTimeEq;
use xxhash_rust::xxh3::xxh3_64;

use crate::proxy::failure::OwnError;
use crate::upstream::headers::{key_in_field, key_in_protocols};

/// The query parameter that clients of the NOMYO Router send their key in.
const QUERY_KEY: &str = "api_key";

/// The position of the client's key, or `None` if no keys are configured.
///
/// # Errors
/// When the key is missing or unknown.
pub(crate) fn check_key(config: &Config, head: &RequestHeader) -> Result<Option<usize>, OwnError> {
    let (auth, is_nomyo) = (&config.auth, config.server.compat == Compat::Nomyo);
    if auth.keys.is_empty() {
        return Ok(None);
    }
    let in_query = || query_value(head.uri.query().filter(|_| is_nomyo)?, QUERY_KEY);
    let given = given_key(&head.headers).map(Cow::Borrowed);
    let Some(given) = given.or_else(|| in_query().map(|key| Cow::Owned(key.into_bytes()))) else {
        let message = "No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
        return Err(OwnError::new(ErrorCode::InvalidApiKey, message).closing());
    };
    let mut found = None;
    // Every key is compared, so the time taken does not reveal which one came close.
    for (position, client) in auth.keys.iter().enumerate() {
        if bool::from(client.key.reveal().as_bytes().ct_eq(&given)) {
            found = Some(position);
        }
    }
    let code = if is_nomyo { ErrorCode::WrongApiKey } else { ErrorCode::InvalidApiKey };
    let unknown = || OwnError::new(code, "The API key is not valid").closing();
    found.map(Some).ok_or_else(unknown)
}

/// Removes the key from the query, so that no backend, log or trace gets it.
pub(crate) fn remove_query_key(head: &mut RequestHeader) {
    let Some(query) = head.uri.query() else { return };
    if query_value(query, QUERY_KEY).is_none() {
        return;
    }
    let target = match query_without(query, QUERY_KEY) {
        Some(query) => format!("{}?{query}", head.uri.path()),
        None => head.uri.path().to_owned(),
    };
    match Uri::builder().path_and_query(target).build() {
        Ok(uri) => head.set_uri(uri),
        Err(error) => debug_assert!(false, "a part of a query is one, too: {error}"),
    }
}

fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    bearer_token(headers).or_else(|| key_in_field(headers)).or_else(|| key_in_protocols(headers))
}

/// Returns whether the key at `position` may use a model by that name, an alias or an engine's
/// spelling.
pub(crate) fn may_use(auth: &AuthConfig, position: Option<usize>, model: &str) -> bool {
    let Some(client) = position.and_then(|position| auth.keys.get(position)) else { return true };
    client.models.is_empty() || client.models.iter().any(|glob| glob.matches(model))
}

/// The owner of a client's responses: a hash of its key's name. Without configured keys there is no
/// hash, and every client may read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyOwner(Option<u64>);

impl KeyOwner {
    pub(crate) const ANYONE: Self = Self(None);

    /// Returns the owner for clients whose key has that name: a new key under the same name reads
    /// what the old one made.
    pub(crate) fn of(key_name: &str) -> Self {
        Self(Some(xxh3_64(key_name.as_bytes())))
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
