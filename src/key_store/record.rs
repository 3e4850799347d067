//! One key of the store: its hash, what it allows, and the secret that is shown once.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_api::hex;
use penstock_config::{KeyHash, UnixTime};
use penstock_core::clients::{KeyTable, KnownKey, Validity};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};

use super::attributes::KeyAttributes;
use super::error::KeyStoreError;

const SECRET_PREFIX: &str = "sk-penstock-";
const ID_PREFIX: &str = "key_";
/// The number of letters of a secret that are shown later.
const SHOWN: usize = 4;

/// A key as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRecord {
    /// The id, which no other key ever has.
    pub id: String,
    /// The name, which other keys may have, too.
    pub name: String,
    pub secret: StoredSecret,
    /// The secret before the last rotation, and the time until which it is valid.
    pub previous: Option<(StoredSecret, UnixTime)>,
    pub attributes: KeyAttributes,
    pub created_at: UnixTime,
    pub revoked_at: Option<UnixTime>,
}

/// The kept parts of a secret.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSecret {
    pub hash: KeyHash,
    /// Its last letters, by which people tell keys apart.
    pub last_four: String,
}

/// A key with its secret, which nothing can show again.
pub struct MadeKey {
    pub record: KeyRecord,
    pub secret: String,
}

impl MadeKey {
    pub(super) fn new(
        name: String,
        attributes: KeyAttributes,
        created_at: UnixTime,
    ) -> Result<Self, KeyStoreError> {
        let mut digits = [0; 24];
        hex::write(&random::<12>()?, &mut digits);
        let id = format!("{ID_PREFIX}{}", String::from_utf8_lossy(&digits));
        let (text, secret) = new_secret()?;
        let record = KeyRecord {
            id,
            name,
            secret,
            previous: None,
            attributes,
            created_at,
            revoked_at: None,
        };
        Ok(Self { record, secret: text })
    }

    /// Returns the key as JSON, with its secret.
    pub fn to_json(&self, now: UnixTime) -> Value {
        let mut shown = self.record.to_json(now);
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("key".to_owned(), json!(self.secret));
        }
        shown
    }
}

fn random<const N: usize>() -> Result<[u8; N], KeyStoreError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_unspecified| KeyStoreError::NoRandomness)?;
    Ok(bytes)
}

fn new_secret() -> Result<(String, StoredSecret), KeyStoreError> {
    let text = format!("{SECRET_PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<32>()?));
    // Enough to recognise a key, and far too little to guess it.
    let last_four = text.chars().skip(text.len().saturating_sub(SHOWN)).collect();
    let secret = StoredSecret { hash: KeyHash::of(text.as_bytes()), last_four };
    Ok((text, secret))
}

impl KeyRecord {
    /// Returns the key with a new secret; the old one is valid until a time.
    pub(super) fn rotated(self, until: UnixTime) -> Result<MadeKey, KeyStoreError> {
        let (text, secret) = new_secret()?;
        let previous = Some((self.secret, until));
        Ok(MadeKey { record: Self { secret, previous, ..self }, secret: text })
    }

    /// Returns the key's state: `valid`, `expired`, `revoked` or `not_yet_valid`.
    pub fn state(&self, now: UnixTime) -> &'static str {
        let attributes = &self.attributes;
        match self.revoked_at {
            Some(_) => "revoked",
            None if attributes.expires_at.is_some_and(|until| now >= until) => "expired",
            None if attributes.not_before.is_some_and(|from| now < from) => "not_yet_valid",
            None => "valid",
        }
    }

    /// Returns the key as JSON, without its secret.
    pub fn to_json(&self, now: UnixTime) -> Value {
        let mut shown = json!({
            "id": self.id,
            "name": self.name,
            "state": self.state(now),
            "last_four": self.secret.last_four,
            "created_at": self.created_at,
        });
        let Some(fields) = shown.as_object_mut() else { return shown };
        if let Some(at) = self.revoked_at {
            fields.insert("revoked_at".to_owned(), json!(at));
        }
        if let Some((secret, until)) = &self.previous {
            let previous = json!({ "last_four": secret.last_four, "valid_until": until });
            fields.insert("previous".to_owned(), previous);
        }
        if let Value::Object(attributes) = json!(self.attributes) {
            fields.extend(attributes);
        }
        shown
    }
}

/// Returns the table that requests are checked against.
pub(super) fn to_table(records: &[KeyRecord]) -> KeyTable {
    let mut table = KeyTable::default();
    for record in records {
        let client = Arc::new(record.attributes.to_client(&record.id, &record.name));
        let validity = record.attributes.validity(record.revoked_at.is_some());
        if let Some((previous, until)) = &record.previous {
            // An old secret never outlives its key.
            let expires_at = validity.expires_at.map_or(*until, |own| own.min(*until));
            let validity = Validity { expires_at: Some(expires_at), ..validity };
            let client = Arc::clone(&client);
            // The same client: both secrets share its limits and budgets.
            table.insert(previous.hash, KnownKey { client, validity });
        }
        table.insert(record.secret.hash, KnownKey { client, validity });
    }
    table
}
