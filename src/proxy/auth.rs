//! Who may call: client keys, compared in constant time, and the models each may use.

use http::HeaderMap;
use subtle::ConstantTimeEq;

use super::failure::OwnError;
use crate::api::{ErrorCode, bearer_token};
use crate::config::AuthConfig;
use crate::upstream::headers::API_KEY;

/// The position of the client's key, or `None` where no keys are configured.
///
/// # Errors
/// When the key is missing or unknown.
pub(crate) fn check_key(auth: &AuthConfig, headers: &HeaderMap) -> Result<Option<usize>, OwnError> {
    if auth.keys.is_empty() {
        return Ok(None);
    }
    let Some(given) = given_key(headers) else {
        let message = "No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
        return Err(OwnError::new(ErrorCode::InvalidApiKey, message).closing());
    };
    let mut found = None;
    // Every key is compared, so the time taken does not reveal which one came close.
    for (position, client) in auth.keys.iter().enumerate() {
        if bool::from(client.key.reveal().as_bytes().ct_eq(given)) {
            found = Some(position);
        }
    }
    let unknown = || OwnError::new(ErrorCode::InvalidApiKey, "The API key is not valid").closing();
    found.map(Some).ok_or_else(unknown)
}

fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    bearer_token(headers)
        .or_else(|| headers.get(API_KEY).map(|value| value.as_bytes().trim_ascii()))
}

/// Whether the key at `position` may use a model by that name.
pub(crate) fn may_use(auth: &AuthConfig, position: Option<usize>, model: &str) -> bool {
    let Some(client) = position.and_then(|position| auth.keys.get(position)) else { return true };
    client.models.is_empty() || client.models.iter().any(|glob| glob.matches(model))
}
