//! The client of a request: the keys of the configuration and those of the store, tokens, and
//! certificates that name a key; what happens to refused ones, and how often.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use penstock_api::KindCounters;
use penstock_clock::{now, unix_seconds};
use penstock_config::{CertificateName, Config, KeyHash, RateLimits, UnixTime};
use penstock_core::admission::rate_limits::{AddressKey, Caller, KeyUse, LimitTime, RateLimiter};
use penstock_core::clients::{ClientIdentity, KeyRefusal, KnownKey};
use penstock_core::routing::Generation;

use crate::downstream::certificate::CertificateNames;
use crate::key_store::KeyStore;
use crate::tokens::{TokenRefusal, Tokens};

/// The time that a refused key waits for its response once its address has had too many.
const DELAY: Duration = Duration::from_secs(1);
/// The maximum number of refused keys that wait; further ones get their response at once.
const MAX_WAITING: usize = 1024;

/// The reason why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyFailure {
    /// It has no key.
    Missing,
    /// There is no such key.
    Unknown,
    Expired(UnixTime),
    NotYetValid(UnixTime),
    Revoked,
    /// It is a token of an identity provider.
    Token(TokenRefusal),
    /// Its certificate names no key.
    Certificate,
}

impl KeyFailure {
    /// The labels of the metric.
    const NAMES: [&'static str; 8] = [
        "missing",
        "unknown",
        "expired",
        "not_yet_valid",
        "revoked",
        "invalid_token",
        "no_token_keys",
        "certificate",
    ];

    fn position(self) -> usize {
        match self {
            Self::Missing => 0,
            Self::Unknown => 1,
            Self::Expired(_) | Self::Token(TokenRefusal::Expired(_)) => 2,
            Self::NotYetValid(_) | Self::Token(TokenRefusal::NotYetValid(_)) => 3,
            Self::Revoked | Self::Token(TokenRefusal::Revoked) => 4,
            Self::Token(TokenRefusal::NoKeys { .. }) => 6,
            Self::Token(_) => 5,
            Self::Certificate => 7,
        }
    }

    /// Returns whether further ones of the same address are slowed down: not without a key, and not
    /// where penstock itself lacks the keys to check it.
    pub(crate) fn is_a_guess(self) -> bool {
        !matches!(self, Self::Missing | Self::Token(TokenRefusal::NoKeys { .. }))
    }
}

impl From<KeyRefusal> for KeyFailure {
    fn from(refusal: KeyRefusal) -> Self {
        match refusal {
            KeyRefusal::Revoked => Self::Revoked,
            KeyRefusal::NotYetValid(from) => Self::NotYetValid(from),
            KeyRefusal::Expired(at) => Self::Expired(at),
        }
    }
}

pub struct ClientKeys {
    store: Option<Arc<KeyStore>>,
    tokens: Tokens,
    named_by_certificate: AtomicBool,
    failures: KindCounters<{ KeyFailure::NAMES.len() }>,
    /// Refused keys by address.
    by_address: RateLimiter,
    waiting: AtomicUsize,
    delayed: AtomicU64,
}

impl ClientKeys {
    pub(crate) fn new(config: &Config, store: Option<Arc<KeyStore>>) -> Self {
        if let Some(store) = &store {
            store.warn_of_unknown_names(config);
        }
        Self {
            store,
            tokens: Tokens::new(&config.auth),
            named_by_certificate: AtomicBool::new(are_named(config)),
            failures: KindCounters::default(),
            by_address: RateLimiter::new(config),
            waiting: AtomicUsize::new(0),
            delayed: AtomicU64::new(0),
        }
    }

    /// The store of the keys that are made at run time, if there is one.
    pub fn store(&self) -> Option<&Arc<KeyStore>> {
        self.store.as_ref()
    }

    /// The tokens of identity providers.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Returns whether requests need no key. A store, an issuer or names in certificates that a
    /// reload takes away keep the port closed until the restart: it must not open by itself.
    pub(crate) fn is_open(&self, config: &Config) -> bool {
        config.auth.is_open()
            && self.store.is_none()
            && !self.tokens.was_configured()
            && !self.named_by_certificate.load(Ordering::Relaxed)
    }

    /// Returns the client whose key this is.
    ///
    /// # Errors
    /// When there is none, or the key is not valid now.
    pub(crate) fn find(
        &self,
        generation: &Generation,
        key: &[u8],
    ) -> Result<Arc<ClientIdentity>, KeyFailure> {
        // Before the hash, whose time grows with the length.
        if self.tokens.max_size().is_some_and(|limit| key.len() > limit) {
            let limit = generation.config.auth.max_token_size.to_usize();
            return Err(KeyFailure::Token(TokenRefusal::TooLong { limit }));
        }
        // No client can choose the hash of its key, so the time of a look-up reveals nothing.
        let hash = KeyHash::of(key);
        if let Some(key) = generation.keys.find(&hash) {
            return checked(key);
        }
        let stored = self.store.as_ref().map(|store| store.table());
        if let Some(stored) = stored.as_ref().and_then(|table| table.find(&hash)) {
            return checked(stored);
        }
        self.find_token(&hash, key)
    }

    fn find_token(&self, hash: &KeyHash, key: &[u8]) -> Result<Arc<ClientIdentity>, KeyFailure> {
        let verdict = self.tokens.find(hash, key, UnixTime(unix_seconds()));
        let verdict = verdict.ok_or(KeyFailure::Unknown)?.map_err(KeyFailure::Token)?;
        // Not a part of the verdict, which is remembered: a revocation counts at once.
        if let (Some(store), Some(jti)) = (&self.store, &verdict.jti)
            && store.revoked().contains(jti, &verdict.issuer)
        {
            return Err(KeyFailure::Token(TokenRefusal::Revoked));
        }
        Ok(Arc::clone(&verdict.client))
    }

    /// Returns the client of the key that a verified certificate names; `None` if certificates
    /// name none here.
    ///
    /// # Errors
    /// [`KeyFailure`] if it names no key, or none that is valid now.
    pub(crate) fn find_named(
        &self,
        generation: &Generation,
        certificate: &CertificateNames,
    ) -> Option<Result<Arc<ClientIdentity>, KeyFailure>> {
        let names = match generation.config.auth.client_certificates {
            CertificateName::Off => return None,
            CertificateName::Subject => &certificate.subject,
            CertificateName::San => &certificate.alternative,
        };
        let now = UnixTime(unix_seconds());
        let stored = self.store.as_ref().map(|store| store.table());
        let mut found = names.iter().filter_map(|name| {
            let of_file = generation.keys.find_named(name, now);
            let key = of_file.or_else(|| stored.as_ref()?.find_named(name, now))?;
            Some(key.map(Arc::clone).map_err(KeyFailure::from))
        });
        Some(found.next().unwrap_or(Err(KeyFailure::Certificate)))
    }

    pub(crate) fn count(&self, failure: KeyFailure) {
        self.failures.count(failure.position());
    }

    /// Makes the client of a refused key wait if its address has sent many of them: the others pay
    /// nothing for it, and a list of keys takes long to try.
    pub(crate) async fn slow_down(&self, config: &Config, address: Option<IpAddr>) {
        let (Some(address), Some(_)) = (address, config.auth.failures_per_minute) else { return };
        let limits = RateLimits {
            requests_per_minute: config.auth.failures_per_minute,
            ..RateLimits::default()
        };
        let caller = Caller { key: None, address: Some((AddressKey::from(address), &limits)) };
        let moment = LimitTime { at: now(), unix: unix_seconds() };
        if self.by_address.admit(&caller, 0, moment).is_ok() {
            return;
        }
        // Requests that wait cost memory: a list of keys must not be able to fill it.
        let grow = |count: usize| (count < MAX_WAITING).then_some(count + 1);
        if self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, grow).is_ok() {
            let _waiting = KeyWait(&self.waiting);
            self.delayed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(DELAY).await;
        }
    }

    pub(crate) fn adopt(&self, config: &Config) {
        self.by_address.adopt(config, std::iter::empty());
        if let Some(store) = &self.store {
            store.warn_of_unknown_names(config);
        }
        self.tokens.adopt(&config.auth);
        self.named_by_certificate.fetch_or(are_named(config), Ordering::Relaxed);
    }

    /// Returns the refused requests by their reason.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KeyFailure::NAMES.into_iter().zip(self.failures.read())
    }

    /// Returns the number of refused requests that had to wait.
    pub fn delayed(&self) -> u64 {
        self.delayed.load(Ordering::Relaxed)
    }

    /// Returns the clients of the store, and those of the tokens that are remembered.
    pub(crate) fn stored(&self) -> Vec<Arc<ClientIdentity>> {
        let table = self.store.as_ref().map(|store| store.table());
        let keys = table.iter().flat_map(|table| table.iter());
        keys.map(|key| Arc::clone(&key.client)).chain(self.tokens.clients()).collect()
    }
}

/// A place among the refused keys that wait.
struct KeyWait<'a>(&'a AtomicUsize);

impl Drop for KeyWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn are_named(config: &Config) -> bool {
    config.auth.client_certificates != CertificateName::Off
}

fn checked(key: &KnownKey) -> Result<Arc<ClientIdentity>, KeyFailure> {
    key.validity.check(|| UnixTime(unix_seconds()))?;
    Ok(Arc::clone(&key.client))
}

/// Takes over the limits that another process has counted.
pub(crate) fn restore_used(
    rates: &RateLimiter,
    keys: &ClientKeys,
    used: &[KeyUse],
    now: LimitTime,
) -> usize {
    let stored = keys.stored();
    let stored: ahash::HashSet<&str> = stored.iter().map(|client| &*client.id).collect();
    rates.restore_used(used, &|id| stored.contains(id), now)
}
