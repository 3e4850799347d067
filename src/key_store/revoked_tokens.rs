//! Tokens of identity providers that were revoked by their `jti`, with the time after which nothing
//! has to be remembered, because the token has expired.

use std::sync::Arc;

use ahash::HashMap;
use penstock_config::{KeyHash, UnixTime};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attributes::InvalidKey;
use super::error::KeyStoreError;
use super::stored_time::{seconds, to_time};

pub(super) const SCHEMA: &str = "
    CREATE TABLE revoked_tokens (
        jti TEXT NOT NULL,
        issuer TEXT NOT NULL,
        revoked_at INTEGER NOT NULL,
        expires_at INTEGER,
        PRIMARY KEY (jti, issuer)
    )";
/// The longest `jti` or issuer, in bytes.
const MAX_TEXT: usize = 512;

/// A token that was revoked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RevokedToken {
    pub jti: String,
    /// The issuer; `None` for the tokens of every issuer with that `jti`.
    pub issuer: Option<String>,
    pub revoked_at: UnixTime,
    /// The time at which the token expires and is forgotten; `None` if that is not known.
    pub expires_at: Option<UnixTime>,
}

/// The description of a token to revoke.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    jti: String,
    #[serde(default)]
    issuer: Option<String>,
    #[serde(default)]
    expires_at: Option<UnixTime>,
}

/// The tokens that were revoked, as requests see them: issuers by the hash of a `jti`.
#[derive(Debug, Default)]
pub struct RevokedTokens {
    by_jti: HashMap<KeyHash, Vec<Option<Arc<str>>>>,
}

impl RevokedTokens {
    pub(super) fn new(all: &[RevokedToken]) -> Self {
        let mut by_jti: HashMap<KeyHash, Vec<Option<Arc<str>>>> = HashMap::default();
        for token in all {
            let issuers = by_jti.entry(KeyHash::of(token.jti.as_bytes())).or_default();
            issuers.push(token.issuer.as_deref().map(Arc::from));
        }
        Self { by_jti }
    }

    /// Returns whether the token of an issuer was revoked, by the hash of its `jti`.
    pub fn contains(&self, jti: &KeyHash, issuer: &str) -> bool {
        self.by_jti.get(jti).is_some_and(|issuers| {
            issuers.iter().any(|one| one.as_deref().is_none_or(|one| one == issuer))
        })
    }

    /// Returns the number of revoked tokens.
    pub fn len(&self) -> usize {
        self.by_jti.values().map(Vec::len).sum()
    }

    /// Returns whether no token was revoked.
    pub fn is_empty(&self) -> bool {
        self.by_jti.is_empty()
    }
}

impl RevokedToken {
    /// Reads `{"jti", "issuer"?, "expires_at"?}`.
    pub(super) fn read(given: Value, now: UnixTime) -> Result<Self, InvalidKey> {
        let Given { jti, issuer, expires_at } = serde_json::from_value(given)?;
        let is_fit = |text: &String| (1..=MAX_TEXT).contains(&text.len());
        if !is_fit(&jti) || !issuer.iter().all(is_fit) {
            let expected = "a text of 1 to 512 bytes";
            return Err(InvalidKey::Value { attribute: "jti, issuer", expected });
        }
        if expires_at.is_some_and(|at| at < now) {
            let expected = "a time in the future: a token that has expired is refused anyway";
            return Err(InvalidKey::Value { attribute: "expires_at", expected });
        }
        Ok(Self { jti, issuer, revoked_at: now, expires_at })
    }
}

/// Returns every revoked token, the newest first.
pub(super) fn all(connection: &Connection) -> Result<Vec<RevokedToken>, KeyStoreError> {
    let select = "SELECT jti, issuer, revoked_at, expires_at FROM revoked_tokens
        ORDER BY revoked_at DESC, jti";
    let mut select = connection.prepare(select)?;
    let rows = select.query_map([], |row| {
        let issuer: String = row.get(1)?;
        Ok(RevokedToken {
            jti: row.get(0)?,
            issuer: Some(issuer).filter(|issuer| !issuer.is_empty()),
            revoked_at: to_time(row.get(2)?),
            expires_at: row.get::<_, Option<i64>>(3)?.map(to_time),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Adds a token, and removes those that have expired by themselves.
pub(super) fn insert(
    connection: &Connection,
    token: &RevokedToken,
    limit: usize,
) -> Result<(), KeyStoreError> {
    // An hour later than they expire, for the leeway of their issuer.
    let past = seconds(token.revoked_at).saturating_sub(3600);
    connection.execute("DELETE FROM revoked_tokens WHERE expires_at < ?1", [past])?;
    let count: i64 =
        connection.query_row("SELECT count(*) FROM revoked_tokens", [], |row| row.get(0))?;
    let count = usize::try_from(count).unwrap_or_default();
    if count >= limit {
        return Err(KeyStoreError::TooManyRevoked { count });
    }
    let issuer = token.issuer.as_deref().unwrap_or_default();
    // What was revoked stays so for the longer of both times.
    connection.execute(
        "INSERT INTO revoked_tokens (jti, issuer, revoked_at, expires_at) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT (jti, issuer) DO UPDATE SET expires_at =
                CASE WHEN expires_at IS NULL OR excluded.expires_at IS NULL THEN NULL
                ELSE max(expires_at, excluded.expires_at) END",
        params![token.jti, issuer, seconds(token.revoked_at), token.expires_at.map(seconds)],
    )?;
    Ok(())
}
