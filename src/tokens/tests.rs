use std::sync::Arc;

use penstock_config::{JwtConfig, KeyHash, UnixTime};
use penstock_core::clients::ClientIdentity;
use serde_json::{Value, json};

use super::cache::Cache;
use super::key_set::{KeySet, KeySetError};
use super::{TokenRefusal, VerifiedToken, claims};

fn verdict(number: u64, expires_at: u64) -> Arc<VerifiedToken> {
    Arc::new(VerifiedToken {
        client: Arc::new(ClientIdentity::new("id", "name")),
        issuer: "issuer".into(),
        jti: None,
        hash: KeyHash::of(&number.to_le_bytes()),
        expires_at: UnixTime(expires_at),
        verified_by: (0, 0),
    })
}

#[test]
fn cache_is_bounded_and_evicts_what_expires_first() {
    let cache = Cache::new(1000);
    assert_eq!(cache.capacity(), 1000);
    let evicted =
        (0..10_000).filter(|number| cache.insert(verdict(*number, 10 + number), UnixTime(0)));
    assert_eq!(evicted.count(), 10_000 - cache.iter().count());
    assert_eq!(cache.iter().count(), 1000, "every slot is used");
    let last = cache.find(&KeyHash::of(&9_999_u64.to_le_bytes()));
    assert_eq!(last.map(|verdict| verdict.expires_at), Some(UnixTime(10_009)));
    let oldest = cache.iter().map(|verdict| verdict.expires_at.0).min().unwrap();
    assert!(oldest > 5_000, "{oldest}: later ones stay");
    assert!(!cache.insert(verdict(9_999, 99_999), UnixTime(0)), "the same token again");
    assert!(!cache.insert(verdict(20_000, 30_000), UnixTime(20_000)), "all others have expired");
}

#[test]
fn smallest_cache_has_one_slot() {
    let cache = Cache::new(1);
    for number in 0..10 {
        cache.insert(verdict(number, 100), UnixTime(0));
        assert!(cache.find(&KeyHash::of(&number.to_le_bytes())).is_some());
        assert_eq!(cache.iter().count(), 1);
    }
}

fn read(
    config: &JwtConfig,
    claims: &Value,
    now: u64,
) -> Result<claims::TokenContent, TokenRefusal> {
    claims::read(config, claims.as_object().unwrap(), UnixTime(now))
}

#[test]
fn tokens_expire_with_the_leeway() {
    let config = JwtConfig {
        issuer: "https://a.example/x".to_owned(),
        audience: vec!["us".to_owned()],
        ..JwtConfig::default()
    };
    let claims = json!({ "sub": "s", "aud": "us", "exp": 1000.9, "nbf": 500, "iat": 500 });
    assert!(read(&config, &claims, 1059).is_ok());
    let expired = TokenRefusal::Expired(UnixTime(1000));
    assert_eq!(read(&config, &claims, 1060).unwrap_err(), expired);
    assert!(read(&config, &claims, 440).is_ok());
    let early = TokenRefusal::NotYetValid(UnixTime(500));
    assert_eq!(read(&config, &claims, 439).unwrap_err(), early);
    let content = read(&config, &claims, 900).unwrap();
    assert_eq!((&*content.client.name, content.expires_at), ("a.example/s", UnixTime(1060)));
}

#[test]
fn documents_have_a_maximum_of_keys() {
    let document = |count: usize| format!("{{\"keys\": [{}]}}", vec!["{}"; count].join(","));
    let read = |count| KeySet::parse(document(count).as_bytes(), 3);
    assert_eq!(read(3).unwrap().unused, 3);
    assert!(matches!(read(4), Err(KeySetError::TooMany { count: 4, limit: 3 })));
    assert!(matches!(KeySet::parse(b"nonsense", 3), Err(KeySetError::NotJson(_))));
}
