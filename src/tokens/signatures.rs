//! Signatures of tokens: `jsonwebtoken` reads tokens and picks the algorithm, `ring` checks the
//! signature, as it does for TLS. There is no code here that could sign, and none for HMAC.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{Error as SignatureError, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::{Map, Value};

use super::key_set::VerificationKey;
use super::refusal::TokenRefusal;
use super::strict_json::StrictObject;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `ring` the only one that checks signatures in this process.
pub(super) fn install() {
    if PROVIDER.install_default().is_err() {
        tracing::trace!("the signatures of tokens have their provider already");
    }
}

fn no_signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let checks = match algorithm {
        Algorithm::RS256 => Checks::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Checks::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Checks::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Checks::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Checks::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Checks::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Checks::Curve(&signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Checks::Curve(&signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Checks::Curve(&signature::ED25519),
        // The enum may grow; what is not listed is refused.
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    Ok(Box::new(RingVerifier { algorithm: *algorithm, checks, key: key.clone() }))
}

/// The way to check a signature.
enum Checks {
    Rsa(&'static signature::RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

struct RingVerifier {
    algorithm: Algorithm,
    checks: Checks,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> Result<(), SignatureError> {
        let checked = match (&self.checks, self.key.kind()) {
            (Checks::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, given)
            }
            (Checks::Curve(algorithm), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(*algorithm, point).verify(message, given)
            }
            (Checks::Rsa(_), DecodingKeyKind::SecretOrDer(_))
            | (Checks::Curve(_), DecodingKeyKind::RsaModulusExponent { .. }) => {
                return Err(SignatureError::new());
            }
        };
        checked.map_err(|_unspecified| SignatureError::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Returns the claims of a token whose signature is right.
pub(super) fn verified_claims(
    token: &[u8],
    key: &VerificationKey,
    algorithm: Algorithm,
) -> Result<Map<String, Value>, TokenRefusal> {
    let token = std::str::from_utf8(token).map_err(|_not_text| TokenRefusal::Header)?;
    let (message, signature) = token.rsplit_once('.').ok_or(TokenRefusal::Header)?;
    let is_right = jsonwebtoken::crypto::verify(signature, message.as_bytes(), &key.key, algorithm);
    if !is_right.is_ok_and(|is_right| is_right) {
        return Err(TokenRefusal::Signature);
    }
    let (_, payload) = message.split_once('.').ok_or(TokenRefusal::Header)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_not_base64| TokenRefusal::Claims)?;
    // The crate would check claims, too, but by the system's clock and without their types.
    serde_json::from_slice::<StrictObject>(&payload).map(|claims| claims.0).map_err(|error| {
        if error.is_data() { TokenRefusal::DuplicateClaim } else { TokenRefusal::Claims }
    })
}
