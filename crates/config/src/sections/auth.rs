//! `auth:` API keys of clients, and the limits of one client, which `limits.per_client` has, too.

use std::path::PathBuf;

use penstock_api::units::ByteSize;

use super::jwt::{CertificateName, JwtConfig};
use super::objectives::Priority;
use crate::syntax::collections::{List, Maybe, Never, Off, Or};
use crate::syntax::glob::ModelGlob;
use crate::syntax::key_hash::KeyHash;
use crate::syntax::secret::{InlineSecret, Needed, Secret, SecretFile};
use crate::syntax::setting::section;
use crate::syntax::unix_time::UnixTime;
use crate::syntax::values::{AtLeastOne, FilePath, Name, NonZeroSize};

section! {
    /// API keys of clients. Without keys, a store of keys and identity providers the data port is
    /// open.
    pub struct AuthConfig {
        /// The API keys that clients may use.
        pub keys: Vec<ClientKey> ["keys" as List<ClientKey>] = Vec::new(),
        /// The file of the keys that are made at run time (`penstock keys`), or off. With it the
        /// data port is never open, even without a key.
        pub store: Option<PathBuf> ["store" as Or<Off, FilePath>] = None,
        /// The maximum number of keys in the store. In a full one a new key takes the place of the
        /// key that was revoked first.
        pub max_keys: usize ["max_keys" as AtLeastOne<usize>] = 100_000,
        /// The identity providers whose tokens (JWT) are valid in place of a key. With one the data
        /// port is never open.
        pub jwt: Vec<JwtConfig> ["jwt" as List<JwtConfig>] = Vec::new(),
        /// The longest token, in bytes; a longer one is refused unread.
        pub max_token_size: ByteSize ["max_token_size" as NonZeroSize] = ByteSize::kib(16),
        /// The maximum number of tokens whose verdict is remembered until they expire, and of their
        /// clients whose use of limits is.
        pub max_cached_tokens: usize ["max_cached_tokens" as AtLeastOne<usize>] = 10_000,
        /// The maximum number of revoked tokens in the store.
        pub max_revoked_tokens: usize ["max_revoked_tokens" as AtLeastOne<usize>] = 100_000,
        /// The name in a client's certificate, which a listener with `client_ca` has verified, that
        /// is the name of its key: `subject`, `san` or `off`. The certificate takes the place of
        /// the key, and one that names no key is refused.
        pub client_certificates: CertificateName = CertificateName::Off,
        /// The number of refused keys per minute and address (of IPv6 its /64 network) whose
        /// response is sent at once; those of further ones wait a second. `none` delays none.
        pub failures_per_minute: Option<u32> ["failures_per_minute" as Or<Never, AtLeastOne<u32>>] =
            Some(10),
        /// The limits of each key without `limits`.
        pub limits: RateLimits = RateLimits::default(),
    }
}

section! {
    /// An API key of a client.
    pub struct ClientKey requires ["name"] {
        /// The client's name in logs and metrics. Two keys may share a name, for key rotation.
        pub name: String ["name" as Name] = String::new(),
        /// The key, sent as `Authorization: Bearer`, `x-api-key`, `api-key` or `x-goog-api-key`.
        /// `key_file` names a file with it.
        pub key: Secret ["key" as Needed<InlineSecret>, "key_file" as Needed<SecretFile>] =
            Secret::missing(),
        /// The SHA-256 hash of the key in place of the key itself: `sha256:` and 64 hexadecimal
        /// digits.
        pub hash: Option<KeyHash> ["hash" as Maybe<KeyHash>] = None,
        /// The team that the client belongs to.
        pub team: Option<String> ["team" as Maybe<Name>] = None,
        /// The models the key may use, with the wildcards * and ?. An empty list means all.
        pub models: Vec<ModelGlob> ["models" as List<ModelGlob>] = Vec::new(),
        /// The zones that its requests may go to. An empty list means all.
        pub zones: Vec<String> ["zones" as List<Name>] = Vec::new(),
        /// The policies that its requests may name to loosen those that apply to them.
        pub policies: Vec<String> ["policies" as List<Name>] = Vec::new(),
        /// Lets the key manage the models of Ollama backends: pull, create, copy, delete and push.
        pub manage_models: bool = false,
        /// Shows the budget with the least left in responses to the key, in `x-penstock-budget`.
        pub sees_budget: bool = false,
        /// A budget that counts the key's requests, whatever its own `teams` and `keys` say.
        pub budget: Option<String> ["budget" as Maybe<String>] = None,
        /// Shortens conversations of this key to fit a context. Default: as their model says.
        pub context_shift: Option<bool> ["context_shift" as Maybe<bool>] = None,
        /// The objective of its requests that name none: a name in `objectives`.
        pub objective: Option<String> ["objective" as Maybe<String>] = None,
        /// The highest priority that its requests have, whatever they ask for. Default: that of its
        /// objective, else 0, so that requests can lower their priority and not raise it.
        pub max_priority: Option<i32> ["max_priority" as Maybe<Priority>] = None,
        /// The key's share of what waits in a queue, in relation to those of the other keys.
        pub weight: u32 ["weight" as AtLeastOne<u32>] = 1,
        /// The maximum number of ensembles of the key at one time; 0 is none. Default:
        /// `ensembles.in_flight`.
        pub ensembles: Option<usize> ["ensembles" as Maybe<usize>] = None,
        /// The limits of the key, in place of `auth.limits`. Keys that share a name share what is
        /// used.
        pub limits: Option<RateLimits> ["limits" as Maybe<RateLimits>] = None,
        /// The time from which the key is valid, such as 2027-01-31T18:00:00Z.
        pub not_before: Option<UnixTime> ["not_before" as Maybe<UnixTime>] = None,
        /// The time at which the key expires.
        pub expires_at: Option<UnixTime> ["expires_at" as Maybe<UnixTime>] = None,
        /// A note for people.
        pub note: Option<String> ["note" as Maybe<String>] = None,
    }
}

impl AuthConfig {
    /// Returns whether clients need no key.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty()
            && self.store.is_none()
            && self.jwt.is_empty()
            && self.client_certificates == CertificateName::Off
    }

    /// Returns the keys with the limits of each.
    pub fn limited_keys(&self) -> impl Iterator<Item = (&ClientKey, &RateLimits)> {
        self.keys.iter().map(|key| (key, key.limits.as_ref().unwrap_or(&self.limits)))
    }
}

impl ClientKey {
    /// Returns the hash of the key, given or computed.
    pub fn to_hash(&self) -> KeyHash {
        self.hash.unwrap_or_else(|| KeyHash::of(self.key.reveal().as_bytes()))
    }
}

section! {
    /// The limits of one client; `none` is no limit.
    pub struct RateLimits {
        /// Requests per minute: a leaky bucket of that size, which drains evenly.
        pub requests_per_minute: Option<u32> ["requests_per_minute" as Or<Never, AtLeastOne<u32>>] = None,
        /// Tokens per minute, of prompts and responses: such a bucket, too.
        pub tokens_per_minute: Option<u32> ["tokens_per_minute" as Or<Never, AtLeastOne<u32>>] = None,
        /// Tokens per day (UTC), of prompts and responses.
        pub tokens_per_day: Option<usize> ["tokens_per_day" as Or<Never, AtLeastOne<usize>>] = None,
        /// Requests in flight at one time.
        pub in_flight: Option<u32> ["in_flight" as Or<Never, AtLeastOne<u32>>] = None,
    }
}

impl RateLimits {
    /// Returns whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.requests_per_minute.is_none() && self.in_flight.is_none() && !self.counts_tokens()
    }

    /// Returns whether tokens are limited.
    pub fn counts_tokens(&self) -> bool {
        self.tokens_per_minute.is_some() || self.tokens_per_day.is_some()
    }
}
