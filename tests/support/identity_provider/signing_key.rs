//! Keys that sign tokens. `openssl` makes those for RSA, so that no key lies in the repository.

use std::process::Command;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};

static RANDOM: LazyLock<SystemRandom> = LazyLock::new(SystemRandom::new);

/// Returns base64url of bytes, as tokens have it.
pub fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

enum Pair {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// A key that a provider signs with.
pub struct SigningKey {
    pub id: String,
    pair: Pair,
}

impl SigningKey {
    /// Makes an RSA key of a size in bits.
    pub fn rsa(id: &str, bits: u32) -> Self {
        let made = Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-outform", "DER"])
            .args(["-pkeyopt", &format!("rsa_keygen_bits:{bits}")])
            .output()
            .expect("openssl makes RSA keys");
        // PKCS #8 or PKCS #1, by the version of openssl.
        let pair = RsaKeyPair::from_pkcs8(&made.stdout);
        let pair = pair.or_else(|_other| RsaKeyPair::from_der(&made.stdout)).unwrap();
        Self { id: id.to_owned(), pair: Pair::Rsa(pair) }
    }

    pub fn p256(id: &str) -> Self {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &*RANDOM).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &*RANDOM).unwrap();
        Self { id: id.to_owned(), pair: Pair::P256(pair) }
    }

    pub fn ed25519(id: &str) -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&*RANDOM).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        Self { id: id.to_owned(), pair: Pair::Ed25519(pair) }
    }

    pub fn algorithm(&self) -> &'static str {
        match &self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    /// Returns the public key.
    pub fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Rsa(pair) => {
                let key = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                let (n, e) = (base64url(&key.n), base64url(&key.e));
                json!({ "kty": "RSA", "n": n, "e": e })
            }
            Pair::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": base64url(x), "y": base64url(y) })
            }
            Pair::Ed25519(pair) => {
                let x = base64url(pair.public_key().as_ref());
                json!({ "kty": "OKP", "crv": "Ed25519", "x": x })
            }
        };
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk["alg"] = json!(self.algorithm());
        jwk
    }

    /// Returns a token with these claims.
    pub fn token(&self, claims: &Value) -> String {
        let header = json!({ "alg": self.algorithm(), "kid": self.id, "typ": "JWT" });
        self.sign(&header.to_string(), &claims.to_string())
    }

    /// Signs a header and claims, whatever they are.
    pub fn sign(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", base64url(header.as_bytes()), base64url(claims.as_bytes()));
        let bytes = message.as_bytes();
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &*RANDOM, bytes, &mut signature).unwrap();
                signature
            }
            Pair::P256(pair) => pair.sign(&*RANDOM, bytes).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(bytes).as_ref().to_vec(),
        };
        format!("{message}.{}", base64url(&signature))
    }
}

/// Returns the document with these keys.
pub fn key_set(keys: &[&SigningKey]) -> String {
    let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
    json!({ "keys": keys }).to_string()
}
