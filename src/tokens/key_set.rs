//! The keys of an identity provider (JWKS, RFC 7517), as far as they check signatures of tokens. A
//! key that is no public key for signatures is left out; the others stay.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::refusal::TokenRefusal;

/// The sizes of an RSA modulus in bytes: 2048 to 4096 bits. A larger one takes longer than a
/// request on the event loop may.
const RSA_SIZES: std::ops::RangeInclusive<usize> = 256..=512;

/// The keys of one provider.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<VerificationKey>,
    /// The number of keys that were left out.
    pub(super) unused: usize,
}

/// A key that signatures are checked with.
#[derive(Debug)]
pub(super) struct VerificationKey {
    id: Option<String>,
    /// The algorithms that it fits, by its type and, if it names one, its `alg`.
    algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// The reason why a document has no keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeySetError {
    #[error("it is not a JSON Web Key Set: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("it has {count} keys, more than {limit} (max_jwks_keys)")]
    TooMany { count: usize, limit: usize },
    #[error("it has no keys")]
    Empty,
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

impl KeySet {
    /// Reads the keys of a document.
    pub(super) fn parse(document: &[u8], limit: usize) -> Result<Self, KeySetError> {
        let Document { keys: items } = serde_json::from_slice(document)?;
        // A provider without keys is broken: it has not withdrawn all tokens.
        if items.is_empty() {
            return Err(KeySetError::Empty);
        }
        if items.len() > limit {
            return Err(KeySetError::TooMany { count: items.len(), limit });
        }
        let keys: Vec<_> = items.iter().filter_map(|item| read(item.get())).collect();
        Ok(Self { unused: items.len().saturating_sub(keys.len()), keys })
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the key of a token by its `kid`; without one, the only key that fits.
    pub(super) fn find(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        issuer: usize,
    ) -> Result<&VerificationKey, TokenRefusal> {
        let has_id = |key: &&VerificationKey| id.is_none() || key.id.as_deref() == id;
        let fits = |key: &&VerificationKey| key.algorithms.contains(&algorithm);
        let mut fitting = self.keys.iter().filter(has_id).filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(_), Some(_)) if id.is_none() => Err(TokenRefusal::NoKeyId),
            (Some(key), _) => Ok(key),
            (None, _) if self.keys.iter().any(|key| has_id(&key)) => {
                Err(TokenRefusal::KeyAlgorithm)
            }
            (None, _) => Err(TokenRefusal::UnknownKey { issuer }),
        }
    }
}

/// Returns the key of an item; `None` if signatures must not be checked with it.
fn read(item: &str) -> Option<VerificationKey> {
    let fields: Value = serde_json::from_str(item).ok()?;
    // `k` is a shared secret, `d` the half that signs: every reader of the document could sign.
    if ["k", "d", "p", "q"].iter().any(|secret| fields.get(secret).is_some()) {
        return None;
    }
    let jwk: Jwk = serde_json::from_value(fields).ok()?;
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let operations = jwk.common.key_operations.as_ref();
    if operations.is_some_and(|allowed| !allowed.contains(&KeyOperations::Verify)) {
        return None;
    }
    let mut algorithms = algorithms(&jwk.algorithm)?.to_vec();
    if let Some(named) = jwk.common.key_algorithm {
        let named = Algorithm::try_from(named).ok()?;
        algorithms.retain(|one| *one == named);
    }
    if algorithms.is_empty() {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    Some(VerificationKey { id: jwk.common.key_id, algorithms, key })
}

/// Returns the algorithms that a key of this type fits.
fn algorithms(parameters: &AlgorithmParameters) -> Option<&'static [Algorithm]> {
    const RSA: &[Algorithm] = &[
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
    ];
    let length = |text: &str| URL_SAFE_NO_PAD.decode(text).map(|bytes| bytes.len()).ok();
    match parameters {
        AlgorithmParameters::RSA(key) => {
            let is_fit = RSA_SIZES.contains(&length(&key.n)?) && length(&key.e)? <= 4;
            is_fit.then_some(RSA)
        }
        AlgorithmParameters::EllipticCurve(key) => {
            let (size, fitting): (_, &[Algorithm]) = match key.curve {
                EllipticCurve::P256 => (32, &[Algorithm::ES256]),
                EllipticCurve::P384 => (48, &[Algorithm::ES384]),
                _ => return None,
            };
            (length(&key.x)? == size && length(&key.y)? == size).then_some(fitting)
        }
        AlgorithmParameters::OctetKeyPair(key) => {
            let is_fit = key.curve == EllipticCurve::Ed25519 && length(&key.x)? == 32;
            is_fit.then_some(&[Algorithm::EdDSA])
        }
        // Shared secrets, and types that are not known.
        _ => None,
    }
}
