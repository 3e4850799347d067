//! `/keys`: the client keys of `auth.store`. A secret is in the response that makes it and nowhere
//! else, the log included.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use penstock_api::query_value;
use penstock_api::units::parse_duration;
use penstock_clock::unix_seconds;
use penstock_config::UnixTime;
use serde_json::{Value, json};

use super::response::{AdminRefusal, AdminResponse, PendingResponse};
use super::{Admin, AdminCall};
use crate::key_store::{InvalidKey, KeyStore, KeyStoreError, unknown_names};

/// The time that the old secret of a rotated key stays valid, unless the request names another.
const OVERLAP: Duration = Duration::from_secs(24 * 3600);

/// `GET /keys`
pub(super) fn list(admin: &Admin, _call: &AdminCall<'_>) -> PendingResponse {
    with_store(admin, |store| {
        let keys: Vec<Value> = store.list()?.iter().map(|key| key.to_json(now())).collect();
        Ok(AdminResponse::json(&json!({ "keys": keys })))
    })
}

/// `POST /keys`
pub(super) fn create(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let body = described(call);
    with_store(admin, |store| {
        let made = store.create(body?, now())?;
        tracing::info!(id = made.record.id, name = made.record.name, "key made via admin API");
        Ok(AdminResponse::json(&made.to_json(now())).with_status(StatusCode::CREATED))
    })
}

/// `GET /keys/{id}`
pub(super) fn show(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let id = call.name.to_owned();
    with_store(admin, move |store| Ok(AdminResponse::json(&store.show(&id)?.to_json(now()))))
}

/// `PATCH /keys/{id}`
pub(super) fn change(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let (id, body) = (call.name.to_owned(), described(call));
    with_store(admin, move |store| {
        let record = store.change(&id, &body?)?;
        tracing::info!(id, name = record.name, "key changed via admin API");
        Ok(AdminResponse::json(&record.to_json(now())))
    })
}

/// `DELETE /keys/{id}`
pub(super) fn revoke(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let id = call.name.to_owned();
    with_store(admin, move |store| {
        let record = store.revoke(&id, now())?;
        tracing::info!(id, name = record.name, "key revoked via admin API");
        Ok(AdminResponse::json(&record.to_json(now())))
    })
}

/// `POST /keys/{id}/rotate`
pub(super) fn rotate(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let (id, overlap) = (call.name.to_owned(), overlap(call.body));
    with_store(admin, move |store| {
        let made = store.rotate(&id, overlap?, now())?;
        tracing::info!(id, name = made.record.name, "key rotated via admin API");
        Ok(AdminResponse::json(&made.to_json(now())))
    })
}

/// `GET /revoked_tokens`
pub(super) fn revoked_tokens(admin: &Admin, _call: &AdminCall<'_>) -> PendingResponse {
    with_store(admin, |store| {
        Ok(AdminResponse::json(&json!({ "revoked_tokens": store.revoked_tokens()? })))
    })
}

/// `POST /revoked_tokens`
pub(super) fn revoke_token(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let body = parse(call.body);
    let unknown = body.as_ref().map(|body| unknown_names(body, &call.generation.config));
    let unknown = unknown.ok().and_then(|names| names.into_iter().next());
    with_store(admin, move |store| {
        let token = store.revoke_token(body?, now())?;
        tracing::info!(jti = token.jti, issuer = token.issuer, "token revoked via admin API");
        let mut shown = json!(token);
        // No error: the configuration may be about to get the issuer.
        if let (Some(name), Some(fields)) = (unknown, shown.as_object_mut()) {
            fields.insert("warning".to_owned(), json!(name.to_string()));
        }
        Ok(AdminResponse::json(&shown).with_status(StatusCode::CREATED))
    })
}

/// `DELETE /revoked_tokens/{jti}`: takes back the revocation for the issuer in the query, or the
/// one for every issuer.
pub(super) fn restore_token(admin: &Admin, call: &AdminCall<'_>) -> PendingResponse {
    let (jti, issuer) = (call.name.to_owned(), query_value(call.query, "issuer"));
    with_store(admin, move |store| {
        let token = store.restore_token(&jti, issuer.as_deref(), now())?;
        tracing::info!(jti, issuer, "revocation of a token taken back via admin API");
        Ok(AdminResponse::json(&json!(token)))
    })
}

/// Does something with the store, on a thread that may wait for the lock of its file.
fn with_store(
    admin: &Admin,
    work: impl FnOnce(&KeyStore) -> Result<AdminResponse, AdminRefusal> + Send + 'static,
) -> PendingResponse {
    let store = admin.proxy.keys.store().map(Arc::clone);
    Box::pin(async move {
        let store = store.ok_or(AdminRefusal::NoKeyStore)?;
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        // The task is lost if it panics, and while the process stops.
        done.map_err(|_stopping| AdminRefusal::Keys(KeyStoreError::Replaced))?
    })
}

fn now() -> UnixTime {
    UnixTime(unix_seconds())
}

/// Reads the description of a key; the configuration must have the names in it.
fn described(call: &AdminCall<'_>) -> Result<Value, AdminRefusal> {
    let described = parse(call.body)?;
    match unknown_names(&described, &call.generation.config).into_iter().next() {
        Some(name) => Err(KeyStoreError::Invalid(InvalidKey::UnknownName(name)).into()),
        None => Ok(described),
    }
}

fn parse(body: &[u8]) -> Result<Value, AdminRefusal> {
    serde_json::from_slice(body).map_err(AdminRefusal::NotJson)
}

/// Reads `{"overlap": "24h"}`; an empty body leaves the default.
fn overlap(body: &[u8]) -> Result<Duration, AdminRefusal> {
    if body.is_empty() {
        return Ok(OVERLAP);
    }
    let Value::Object(fields) = parse(body)? else { return Err(AdminRefusal::NotAnOverlap) };
    match (fields.len(), fields.get("overlap").and_then(Value::as_str)) {
        (0, None) => Ok(OVERLAP),
        (1, Some(text)) => parse_duration(text).map_err(|_unit| AdminRefusal::NotAnOverlap),
        _ => Err(AdminRefusal::NotAnOverlap),
    }
}
