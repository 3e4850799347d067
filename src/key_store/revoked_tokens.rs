//! Tokens of identity providers that were revoked by their `jti`, with the time after which nothing
//! has to be remembered, because the token has expired. A revocation that was taken back is
//! remembered, too: penstocks that share revocations must not bring it back.

use std::sync::Arc;

use ahash::HashMap;
use penstock_config::{KeyHash, UnixTime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attributes::InvalidKey;

/// The longest `jti` or issuer, in bytes.
const MAX_TEXT: usize = 512;
/// The time for which an expired token is remembered: the leeway of its issuer is shorter.
pub(super) const LEEWAY: u64 = 3600;
/// The time for which a revocation that was taken back is remembered.
pub(super) const REMEMBERED: u64 = 30 * 24 * 3600;

/// A token that was revoked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevokedToken {
    pub jti: String,
    /// The issuer; `None` for the tokens of every issuer with that `jti`.
    pub issuer: Option<String>,
    pub revoked_at: UnixTime,
    /// The time at which the token expires and is forgotten; `None` if that is not known.
    pub expires_at: Option<UnixTime>,
    /// The time at which the revocation was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored_at: Option<UnixTime>,
}

/// A revoked token with the number of its changes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredToken {
    pub(super) token: RevokedToken,
    pub(super) version: u64,
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
    pub(super) fn new(all: &[StoredToken]) -> Self {
        let mut by_jti: HashMap<KeyHash, Vec<Option<Arc<str>>>> = HashMap::default();
        for StoredToken { token, .. } in all.iter().filter(|one| one.token.is_revoked()) {
            let issuers = by_jti.entry(KeyHash::of(token.jti.as_bytes())).or_default();
            issuers.push(token.issuer.as_deref().map(Arc::from));
        }
        Self { by_jti }
    }

    /// Returns whether the token of an issuer was revoked, by the hash of its `jti`.
    pub fn contains(&self, jti: &KeyHash, issuer: &str) -> bool {
        self.by_jti.get(jti).is_some_and(|issuers| {
            // Two issuers may use the same `jti`: it is unique to one of them only (RFC 7519
            // §4.1.7).
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
        if expires_at.is_some_and(|at| at < now) {
            let expected = "a time in the future: a token that has expired is refused anyway";
            return Err(InvalidKey::Value { attribute: "expires_at", expected });
        }
        Self { jti, issuer, revoked_at: now, expires_at, restored_at: None }.checked()
    }

    /// Returns the token if each of its texts has 1 to 512 bytes.
    pub(super) fn checked(self) -> Result<Self, InvalidKey> {
        let is_fit = |text: &String| (1..=MAX_TEXT).contains(&text.len());
        if !is_fit(&self.jti) || !self.issuer.iter().all(is_fit) {
            let expected = "a text of 1 to 512 bytes";
            return Err(InvalidKey::Value { attribute: "jti, issuer", expected });
        }
        Ok(self)
    }

    /// Returns whether the revocation is in force.
    pub(super) fn is_revoked(&self) -> bool {
        self.restored_at.is_none()
    }

    /// Returns the time after which the token need not be remembered; `None` if that is not known.
    pub(super) fn forgotten_at(&self) -> Option<UnixTime> {
        let expired = self.expires_at.map(|at| at.0.saturating_add(LEEWAY));
        let restored = self.restored_at.map(|at| at.0.saturating_add(REMEMBERED));
        expired.into_iter().chain(restored).min().map(UnixTime)
    }
}

impl StoredToken {
    /// Returns the token as another penstock, or a second command, has changed it. Of two
    /// revocations the longer one stays, as a further change.
    pub(super) fn replaced_by(&self, newer: Self) -> Self {
        let (held, given) = (&self.token, &newer.token);
        let expires_at = match (held.expires_at, given.expires_at) {
            _ if !held.is_revoked() || !given.is_revoked() => given.expires_at,
            (Some(one), Some(other)) => Some(one.max(other)),
            (None, _) | (_, None) => None,
        };
        if expires_at == given.expires_at {
            return newer;
        }
        let token = RevokedToken { expires_at, ..newer.token };
        Self { token, version: newer.version.saturating_add(1) }
    }
}
