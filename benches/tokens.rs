//! The cost of a token of an identity provider: of the first request with it, which checks its
//! signature and claims, and of further ones, which find its verdict. `openssl` makes the RSA keys.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a bench's own data"
)]

#[path = "../tests/support/identity_provider/signing_key.rs"]
mod signing_key;

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use penstock::tokens::Tokens;
use penstock_config::{Config, Environment, KeyHash, UnixTime};
use serde_json::json;
use signing_key::{SigningKey, key_set};

const ISSUER: &str = "https://login.example.com/tenant";
const NOW: u64 = 1_800_000_000;
/// Tokens that take turns, so that not all of the cache lies in the caches of the processor.
const TURNS: usize = 4096;

fn tokens(file: &Path, cached: usize) -> Arc<Tokens> {
    let yaml = format!(
        "auth: {{ max_cached_tokens: {cached}, jwt: [{{ issuer: \"{ISSUER}\", jwks: {}, audience: a,
          claims: {{ team: team, models: models }} }}] }}\nbackends: [http://127.0.0.1:9]\n",
        file.display()
    );
    let environment = Environment::default();
    let config = Config::parse(&yaml, "bench", Path::new(""), &environment);
    let tokens = Arc::new(Tokens::new(&config.unwrap().auth));
    while tokens.figures()[0].keys == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    tokens
}

fn token(key: &SigningKey, number: usize) -> String {
    key.token(&json!({
        "iss": ISSUER, "sub": format!("3d9c1f0e-7a64-4a55-8c1e-{number:012}"), "aud": ["a", "b"],
        "exp": NOW + 3600, "iat": NOW, "nbf": NOW, "jti": format!("{number:032}"),
        "team": "research", "models": ["llama3:*", "qwen3:*"], "email": "alice@example.com",
        "scope": "openid profile email", "azp": "penstock-cli", "auth_time": NOW
    }))
}

fn verdicts(c: &mut Criterion) {
    let folder = std::env::temp_dir().join(format!("penstock-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("keys.json");
    let keys = [
        SigningKey::rsa("r", 2048),
        SigningKey::rsa("l", 4096),
        SigningKey::p256("e"),
        SigningKey::ed25519("d"),
    ];
    std::fs::write(&file, key_set(&keys.each_ref())).unwrap();
    let mut group = c.benchmark_group("tokens");
    let fresh = tokens(&file, 1);
    for (name, key) in ["rs256-2048", "rs256-4096", "es256", "eddsa"].iter().zip(&keys) {
        let both = [token(key, 1), token(key, 2)];
        let mut turns = both.iter().cycle();
        group.bench_function(BenchmarkId::new("verify", name), |bencher| {
            bencher.iter(|| {
                let token = black_box(turns.next().unwrap().as_bytes());
                fresh.find(&KeyHash::of(token), token, UnixTime(NOW)).unwrap().unwrap()
            });
        });
    }
    let cached = tokens(&file, 10_000);
    let all: Vec<String> = (0..TURNS).map(|number| token(&keys[3], number)).collect();
    let mut turns = all.iter().cycle();
    let find = |token: &String| {
        let token = black_box(token.as_bytes());
        cached.find(&KeyHash::of(token), token, UnixTime(NOW)).unwrap().unwrap()
    };
    all.iter().for_each(|token| drop(find(token)));
    group.bench_function("hit", |bencher| bencher.iter(|| find(turns.next().unwrap())));
    group.finish();
    std::fs::remove_dir_all(&folder).unwrap();
}

criterion_group!(benches, verdicts);
criterion_main!(benches);
