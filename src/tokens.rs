//! Tokens of identity providers (JWT, RFC 7519) in place of keys. A token is verified once; its
//! verdict is remembered until it expires. The keys of the providers come by threads, so that no
//! request fetches anything. Takes no lock on the path of a request.

mod cache;
mod claims;
mod fetch;
mod issuer;
mod key_set;
mod refusal;
mod signatures;
mod strict_json;

pub use issuer::IssuerFigures;
pub use refusal::{ClaimProblem, TokenRefusal};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_clock::now;
use penstock_config::{AuthConfig, JwtConfig, KeyHash, UnixTime};
use penstock_core::clients::ClientIdentity;
use serde::Deserialize;

use cache::Cache;
use issuer::Issuer;

/// The time that a request waits for the keys of its issuer, if they are being fetched.
const PATIENCE: Duration = Duration::from_secs(5);

/// A token that was verified.
#[derive(Debug)]
pub struct VerifiedToken {
    pub client: Arc<ClientIdentity>,
    /// The issuer of the token.
    pub issuer: Arc<str>,
    /// The hash of its `jti`, by which it can be revoked.
    pub jti: Option<KeyHash>,
    hash: KeyHash,
    /// The end of its validity, leeway included.
    expires_at: UnixTime,
    /// The position of the issuer, and the version of the keys that the signature was checked with.
    verified_by: (usize, u64),
}

/// The tokens of every identity provider.
#[derive(Debug)]
pub struct Tokens {
    state: ArcSwap<IssuerSet>,
    was_configured: AtomicBool,
    verified: AtomicU64,
    evicted: AtomicU64,
}

#[derive(Debug)]
struct IssuerSet {
    issuers: Vec<Arc<Issuer>>,
    cache: Cache,
    max_size: usize,
}

/// The part of a token that names its issuer, before anything is verified.
#[derive(Deserialize)]
struct UnverifiedClaims {
    iss: String,
}

impl Tokens {
    /// Starts to fetch the keys of the identity providers in a configuration.
    pub fn new(auth: &AuthConfig) -> Self {
        signatures::install();
        Self {
            state: ArcSwap::from_pointee(IssuerSet::new(auth, &[])),
            was_configured: AtomicBool::new(!auth.jwt.is_empty()),
            verified: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Adopts another configuration. Issuers that it keeps keep their keys; if nothing else has
    /// changed, the verdicts stay, too.
    pub fn adopt(&self, auth: &AuthConfig) {
        let state = self.state.load();
        let is_same = state.issuers.iter().map(|issuer| &issuer.config).eq(&auth.jwt)
            && state.max_size == auth.max_token_size.to_usize()
            && state.cache.capacity() == auth.max_cached_tokens;
        if is_same {
            // A reload reads the files again.
            state.issuers.iter().for_each(|issuer| issuer.reread());
            return;
        }
        self.state.store(Arc::new(IssuerSet::new(auth, &state.issuers)));
        self.was_configured.fetch_or(!auth.jwt.is_empty(), Ordering::Relaxed);
    }

    /// Returns whether tokens were ever valid in this process: a reload that takes the issuers away
    /// does not open the data port.
    pub fn was_configured(&self) -> bool {
        self.was_configured.load(Ordering::Relaxed)
    }

    /// Returns the longest token; `None` without an issuer.
    pub fn max_size(&self) -> Option<usize> {
        let state = self.state.load();
        (!state.issuers.is_empty()).then_some(state.max_size)
    }

    /// Returns the verdict on a token with that hash; `None` for a text that is no token.
    ///
    /// # Errors
    /// [`TokenRefusal`] if it is not valid now.
    pub fn find(
        &self,
        hash: &KeyHash,
        token: &[u8],
        now: UnixTime,
    ) -> Option<Result<Arc<VerifiedToken>, TokenRefusal>> {
        let state = self.state.load();
        // A JWT has three parts: any other text is a key, and costs no decoding.
        if state.issuers.is_empty() || token.iter().filter(|byte| **byte == b'.').count() != 2 {
            return None;
        }
        if let Some(verdict) = state.cache.find(hash)
            && now < verdict.expires_at
            && state.is_current(&verdict)
        {
            return Some(Ok(verdict));
        }
        let verdict = state.verify(hash, token, now);
        // Only valid ones: forged tokens would otherwise evict them.
        if let Ok(verdict) = &verdict {
            self.verified.fetch_add(1, Ordering::Relaxed);
            if state.cache.insert(Arc::clone(verdict), now) {
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
        }
        Some(verdict)
    }

    /// Waits while the keys of an issuer are being fetched because a token needs them. Returns
    /// whether they have been: a second look may find the key.
    pub async fn wait_for_keys(&self, issuer: usize) -> bool {
        let issuer = self.state.load().issuers.get(issuer).map(Arc::clone);
        let Some(mut fetched) = issuer.and_then(|issuer| issuer.request_keys(now())) else {
            return false;
        };
        tokio::time::timeout(PATIENCE, fetched.changed()).await.is_ok_and(|done| done.is_ok())
    }

    /// Returns the clients whose tokens are remembered.
    pub fn clients(&self) -> Vec<Arc<ClientIdentity>> {
        self.state.load().cache.iter().map(|verdict| Arc::clone(&verdict.client)).collect()
    }

    /// Returns the figures of each issuer.
    pub fn figures(&self) -> Vec<IssuerFigures> {
        self.state.load().issuers.iter().map(|issuer| issuer.figures()).collect()
    }

    /// Returns the number of verdicts that are remembered, and the maximum.
    pub fn cached(&self) -> (usize, usize) {
        let state = self.state.load();
        (state.cache.iter().count(), state.cache.capacity())
    }

    /// Returns the number of tokens that were verified, and of verdicts that were evicted.
    pub fn counts(&self) -> (u64, u64) {
        (self.verified.load(Ordering::Relaxed), self.evicted.load(Ordering::Relaxed))
    }
}

impl IssuerSet {
    fn new(auth: &AuthConfig, known: &[Arc<Issuer>]) -> Self {
        let issuer = |config: &JwtConfig| {
            // Keeps its keys and its thread: a reload must not refuse the tokens of an unchanged
            // issuer.
            let same = known.iter().find(|issuer| issuer.config == *config);
            same.map_or_else(|| Issuer::start(config, known), Arc::clone)
        };
        Self {
            issuers: auth.jwt.iter().map(issuer).collect(),
            cache: Cache::new(auth.max_cached_tokens),
            max_size: auth.max_token_size.to_usize(),
        }
    }

    /// Returns whether the issuer of a verdict still has the keys that verified it: a withdrawn key
    /// ends the tokens that it signed.
    fn is_current(&self, verdict: &VerifiedToken) -> bool {
        let (position, version) = verdict.verified_by;
        self.issuers.get(position).is_some_and(|issuer| issuer.version() == version)
    }

    fn verify(
        &self,
        hash: &KeyHash,
        token: &[u8],
        now: UnixTime,
    ) -> Result<Arc<VerifiedToken>, TokenRefusal> {
        if token.len() > self.max_size {
            return Err(TokenRefusal::TooLong { limit: self.max_size });
        }
        let header =
            jsonwebtoken::decode_header(token).map_err(|_unreadable| TokenRefusal::Header)?;
        // RFC 7515 §4.1.11: an extension that is not understood must not be skipped.
        if header.crit.is_some() {
            return Err(TokenRefusal::Critical);
        }
        // Unverified, and only to find the keys: the signature is checked before any claim counts.
        let issuer = issuer_of(token)?;
        let found = self.issuers.iter().enumerate();
        let found = found.into_iter().find(|(_, one)| *one.config.issuer == issuer);
        let (position, issuer) = found.ok_or(TokenRefusal::Issuer)?;
        // By the configuration and never by the token, which could choose a weaker one.
        if !issuer.algorithms.contains(&header.alg) {
            return Err(TokenRefusal::Algorithm);
        }
        let (version, keys) = issuer.keys().ok_or(TokenRefusal::NoKeys { issuer: position })?;
        let key = keys.find(header.kid.as_deref(), header.alg, position)?;
        let claims = signatures::verified_claims(token, key, header.alg)?;
        let content = claims::read(&issuer.config, &claims, now)?;
        Ok(Arc::new(VerifiedToken {
            client: content.client,
            issuer: Arc::clone(&issuer.id),
            jti: content.jti,
            hash: *hash,
            expires_at: content.expires_at,
            verified_by: (position, version),
        }))
    }
}

/// Returns the issuer that a token claims to come from.
fn issuer_of(token: &[u8]) -> Result<String, TokenRefusal> {
    let payload = token.split(|byte| *byte == b'.').nth(1).unwrap_or_default();
    let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_not_base64| TokenRefusal::Claims)?;
    let claims: UnverifiedClaims =
        serde_json::from_slice(&payload).map_err(|_no_issuer| TokenRefusal::Issuer)?;
    Ok(claims.iss)
}

#[cfg(test)]
mod tests;
