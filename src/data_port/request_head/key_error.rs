//! The errors of requests whose keys are refused.

use penstock_api::ErrorCode;
use penstock_config::Compat;

use crate::auth::KeyFailure;
use crate::proxy::failure::OwnError;
use crate::tokens::TokenRefusal;

/// The error of a request that is not let in.
pub(super) fn key_error(failure: KeyFailure, compat: Compat) -> OwnError {
    const MISSING: &str = "No API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'";
    let (code, message) = match failure {
        KeyFailure::Missing => (ErrorCode::InvalidApiKey, MISSING.to_owned()),
        KeyFailure::Unknown if compat == Compat::Nomyo => {
            (ErrorCode::WrongApiKey, "The API key is not valid".to_owned())
        }
        KeyFailure::Unknown => (ErrorCode::InvalidApiKey, "The API key is not valid".to_owned()),
        KeyFailure::Revoked => (ErrorCode::KeyRevoked, "The API key was revoked".to_owned()),
        KeyFailure::NotYetValid(from) => {
            (ErrorCode::KeyNotYetValid, format!("The API key is valid from {from}"))
        }
        KeyFailure::Expired(at) => (ErrorCode::KeyExpired, format!("The API key expired at {at}")),
        KeyFailure::Token(refusal) => (token_code(refusal), refusal.to_string()),
        KeyFailure::Certificate => {
            (ErrorCode::InvalidApiKey, "The client certificate names no API key".to_owned())
        }
    };
    OwnError::new(code, message).closing()
}

fn token_code(refusal: TokenRefusal) -> ErrorCode {
    match refusal {
        TokenRefusal::Expired(_) => ErrorCode::KeyExpired,
        TokenRefusal::NotYetValid(_) => ErrorCode::KeyNotYetValid,
        TokenRefusal::Revoked => ErrorCode::KeyRevoked,
        TokenRefusal::NoKeys { .. } => ErrorCode::TokenKeysUnavailable,
        _ => ErrorCode::InvalidApiKey,
    }
}
