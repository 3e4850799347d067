//! Attacks with tokens and on the keys of their issuer: none is let in, and none costs more than
//! its bound.

use std::time::{Duration, Instant};

use penstock_mock::MockEngine;
use ring::hmac;
use serde_json::{Value, json};

use super::client_keys::{assert_refused, send};
use super::tokens::config;
use crate::support::client::request;
use crate::support::engines::engine;
use crate::support::eventually;
use crate::support::identity_provider::{Provider, Reply, SigningKey, base64url, key_set, unix};
use crate::support::penstock::Penstock;

const CHAT: &str = "/v1/chat/completions";
const ISSUER: &str = "https://login.example.com";

struct Scene {
    engine: MockEngine,
    key: SigningKey,
    provider: Provider,
    penstock: Penstock,
}

impl Scene {
    fn start(key: SigningKey, rest: &str) -> Self {
        let engine = engine("one", &["m"]);
        let provider = Provider::start(ISSUER, &[&key]);
        let penstock = Penstock::start(&config(&engine, &provider.yaml(rest), ""));
        Self { engine, key, provider, penstock }
    }

    fn claims(&self) -> String {
        self.provider.claims("mallory").to_string()
    }

    /// Checks that a token is refused in every dialect, and reaches no engine.
    fn refuses(&self, token: &str, words: &str) {
        assert_refused(&self.penstock, token, 401, "invalid_api_key", words);
        assert_eq!(self.engine.counters().requests, 0, "{words}");
    }

    /// Checks that a token with these claims is refused.
    fn refuses_claims(&self, change: impl FnOnce(&mut Value), code: &str, words: &str) {
        let mut claims = self.provider.claims("mallory");
        change(&mut claims);
        assert_refused(&self.penstock, &self.key.token(&claims), 401, code, words);
    }
}

#[test]
fn algorithm_of_the_header_opens_nothing() {
    let scene = Scene::start(SigningKey::rsa("k", 2048), "algorithms: [RS256, ES256]");
    let unsigned = |alg: &str| {
        let header = json!({ "alg": alg, "kid": "k" }).to_string();
        format!("{}.{}.", base64url(header.as_bytes()), base64url(scene.claims().as_bytes()))
    };
    for alg in ["none", "NONE", "None", "nOnE", "", "RS1", "rs256"] {
        scene.refuses(&unsigned(alg), "algorithm is not allowed");
    }
    // The public key as the secret of a symmetric algorithm.
    let secrets = [scene.key.jwk().to_string(), scene.key.jwk()["n"].as_str().unwrap().to_owned()];
    for secret in secrets {
        for alg in ["HS256", "HS384", "HS512"] {
            let message = unsigned(alg);
            let message = message.trim_end_matches('.');
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
            let tag = hmac::sign(&key, message.as_bytes());
            let token = format!("{message}.{}", base64url(tag.as_ref()));
            scene.refuses(&token, "algorithm is not allowed for its issuer");
        }
    }
    // An allowed algorithm that its key is not for, one that is not allowed, and no signature.
    scene.refuses(&unsigned("ES256"), "key is for another algorithm");
    scene.refuses(&unsigned("PS256"), "algorithm is not allowed for its issuer");
    scene.refuses(&unsigned("EdDSA"), "algorithm is not allowed for its issuer");
    scene.refuses(&unsigned("RS256"), "signature is wrong");
    assert_eq!(
        send(&scene.penstock, CHAT, &scene.key.token(&scene.provider.claims("a"))).status,
        200
    );
}

#[test]
fn header_names_no_key_but_those_of_the_issuer() {
    let scene = Scene::start(SigningKey::ed25519("k"), "");
    let own = SigningKey::ed25519("k");
    let long = "k".repeat(10_000);
    for kid in ["../../../../dev/null", "/etc/passwd", "k' OR '1'='1", "k\0", "K", "", "*", &long] {
        let header = json!({ "alg": "EdDSA", "kid": kid }).to_string();
        scene.refuses(&own.sign(&header, &scene.claims()), "not one of its issuer's");
    }
    for header in [
        json!({ "alg": "EdDSA", "kid": "k", "jwk": own.jwk() }),
        json!({ "alg": "EdDSA", "jwk": own.jwk() }),
        json!({ "alg": "EdDSA", "kid": "k", "jku": "http://127.0.0.1:1/keys" }),
        json!({ "alg": "EdDSA", "kid": "k", "x5u": "http://127.0.0.1:1/keys" }),
    ] {
        scene.refuses(&own.sign(&header.to_string(), &scene.claims()), "signature is wrong");
    }
    for header in [
        json!({ "alg": "EdDSA", "kid": "k", "crit": ["exp"] }),
        json!({ "alg": "EdDSA", "kid": "k", "crit": ["b64"], "b64": false }),
        json!({ "alg": "EdDSA", "kid": "k", "crit": [] }),
    ] {
        scene.refuses(&scene.key.sign(&header.to_string(), &scene.claims()), "extension (crit)");
    }
    let twice = r#"{"alg":"EdDSA","kid":"x","kid":"k"}"#;
    scene.refuses(&scene.key.sign(twice, &scene.claims()), "header cannot be read");
    assert_eq!(scene.provider.fetches(), 1, "no header makes penstock fetch within the interval");
}

#[test]
fn tokens_are_valid_only_here_and_now() {
    let scene = Scene::start(SigningKey::ed25519("k"), "leeway: 0s");
    let now = unix();
    scene.refuses_claims(|all| all["exp"] = json!(now), "key_expired", "token expired at");
    scene.refuses_claims(|all| all["exp"] = json!(now - 1), "key_expired", "token expired at");
    scene.refuses_claims(|all| all["exp"] = json!(0), "key_expired", "1970-01-01T00:00:00Z");
    for claim in ["nbf", "iat"] {
        let code = "key_not_yet_valid";
        scene.refuses_claims(|all| all[claim] = json!(now + 60), code, "token is valid from");
    }
    let code = "invalid_api_key";
    for claim in ["exp", "nbf", "iat"] {
        for value in [json!("9999999999"), json!(-1), json!(1e300), json!([1]), json!(true)] {
            scene.refuses_claims(|all| all[claim] = value, code, "not a time");
        }
    }
    for claim in ["exp", "aud", "sub"] {
        let remove = |all: &mut Value| drop(all.as_object_mut().unwrap().remove(claim));
        scene.refuses_claims(remove, code, "lacks the claim");
    }
    for audience in [json!("other"), json!([]), json!(["a", "b"]), json!("penstock ")] {
        scene.refuses_claims(|all| all["aud"] = audience, code, "another audience");
    }
    for audience in [json!(5), json!({}), json!(["penstock", 1])] {
        scene.refuses_claims(|all| all["aud"] = audience, code, "claim for its aud is not a text");
    }
    let prefix = format!("{ISSUER}.evil.example");
    for issuer in [json!(prefix), json!("HTTPS://LOGIN.EXAMPLE.COM"), json!([ISSUER]), json!(null)]
    {
        scene.refuses_claims(|all| all["iss"] = issuer, code, "unknown issuer");
    }
    // One that expires while it is remembered.
    let mut claims = scene.provider.claims("alice");
    claims["exp"] = json!(unix() + 2);
    let token = scene.key.token(&claims);
    assert_eq!(send(&scene.penstock, CHAT, &token).status, 200);
    eventually("it expires", Duration::from_secs(10), || {
        send(&scene.penstock, CHAT, &token).status == 401
    });
}

#[test]
fn claims_that_are_there_twice_are_refused() {
    let scene = Scene::start(SigningKey::ed25519("k"), "claims: { models: models }");
    let header = json!({ "alg": "EdDSA", "kid": "k" }).to_string();
    let exp = unix() + 60;
    let rest = format!("\"aud\":\"penstock\",\"exp\":{exp}");
    for claims in [
        format!(r#"{{"iss":"{ISSUER}","sub":"a","sub":"b","models":["m"],{rest}}}"#),
        format!(r#"{{"iss":"{ISSUER}","sub":"a","models":["x"],"models":["m"],{rest}}}"#),
        format!(r#"{{"iss":"{ISSUER}","sub":"a","models":["m"],{rest},"exp":{exp}}}"#),
        format!(r#"{{"iss":"{ISSUER}","sub":"a","models":["m"],"o":{{"a":1,"a":2}},{rest}}}"#),
    ] {
        scene.refuses(&scene.key.sign(&header, &claims), "a claim twice");
    }
    let twice = format!(r#"{{"iss":"x","iss":"{ISSUER}","sub":"a","models":["m"],{rest}}}"#);
    scene.refuses(&scene.key.sign(&header, &twice), "unknown issuer");
}

#[test]
fn broken_and_huge_tokens_are_refused() {
    let scene = Scene::start(SigningKey::ed25519("k"), "");
    let good = scene.key.token(&scene.provider.claims("a"));
    let parts: Vec<&str> = good.split('.').collect();
    let (head, body, tail) = (parts[0], parts[1], parts[2]);
    let deep = format!("{}{}", "{\"iss\":".repeat(2000), "1");
    for token in [
        "..".to_owned(),
        "a.b.c".to_owned(),
        format!(".{body}.{tail}"),
        format!("{head}..{tail}"),
        format!("{head}.{body}."),
        format!("{head}.{body}.{tail}AAAA"),
        format!("{head}.{body}.!{tail}"),
        format!("{head}.{}.{tail}", base64url(b"[1]")),
        format!("{head}.{}.{tail}", base64url(&[0xff, 0xfe])),
        format!("{head}.{}.{tail}", base64url(deep.as_bytes())),
        format!("{}.{body}.{tail}", base64url(b"{}")),
        format!("{head}.{body}.{tail}").replace('e', "f"),
    ] {
        let response = send(&scene.penstock, CHAT, &token);
        assert_eq!(response.status, 401, "{}", response.text());
    }
    for token in [format!("{good}.x"), good.replace('.', ""), format!("{head}.{body}")] {
        assert_refused(&scene.penstock, &token, 401, "invalid_api_key", "not valid");
    }
    let huge = format!("{head}.{}.{tail}", "A".repeat(20_000));
    scene.refuses(&huge, "longer than 16384 bytes");
}

#[test]
fn guesses_are_slowed_down() {
    let key = SigningKey::ed25519("k");
    let engine = engine("one", &["m"]);
    let provider = Provider::start(ISSUER, &[&key]);
    let yaml = config(&engine, &provider.yaml(""), "").replace("minute: none", "minute: 3");
    let penstock = Penstock::start(&yaml);
    let forged = SigningKey::ed25519("k");
    let started = Instant::now();
    for number in 0..5 {
        let token = forged.token(&provider.claims(&number.to_string()));
        assert_eq!(send(&penstock, CHAT, &token).status, 401);
    }
    assert!(started.elapsed() >= Duration::from_secs(2), "the last two waited a second each");
    let page = request(penstock.admin, "GET", "/metrics", &[], b"").text();
    assert!(page.contains("penstock_key_failures_total{reason=\"invalid_token\"} 5"), "{page}");
    assert!(page.contains("penstock_key_failures_delayed_total 2"), "{page}");
    assert!(page.contains("penstock_cached_tokens 0"), "a refused token is not remembered: {page}");
}

/// Starts penstock with a provider that responds in one way. Returns its log after the first fetch.
fn log_of(key: &SigningKey, reply: &Reply, rest: &str) -> (Penstock, Provider, String) {
    let engine = engine("one", &["m"]);
    let provider = Provider::start(ISSUER, &[key]);
    provider.set(reply.clone());
    let penstock = Penstock::start(&config(&engine, &provider.yaml(rest), ""));
    eventually("a line in the log", Duration::from_secs(10), || {
        penstock.log().contains("auth.jwt")
    });
    let log = penstock.log();
    (penstock, provider, log)
}

#[test]
fn documents_that_are_too_much_are_not_used() {
    let key = SigningKey::ed25519("k");
    let good = key.jwk().to_string();
    let padding = " ".repeat(10 << 20);
    let many = format!("{},", good).repeat(100_000 / 16);
    let redirect = |to: &str| Reply::Status(302, to.to_owned());
    for (reply, words) in [
        (Reply::Document(format!("{{\"keys\": [{good}]{padding}}}")), "longer than 1MiB"),
        (Reply::Document(format!("{{\"keys\": [{many}{good}]}}")), "keys, more than 100"),
        (Reply::Document(format!("{{\"keys\": [{}1]}}", "1,".repeat(100_000))), "100001 keys"),
        (Reply::Document("[]".to_owned()), "not a JSON Web Key Set"),
        (Reply::Document("{\"keys\": {}}".to_owned()), "not a JSON Web Key Set"),
        (redirect("https://127.0.0.1:1/keys"), "redirects (status 302)"),
        (redirect("http://localhost/keys"), "redirects (status 302)"),
        (Reply::Silence, "timeout"),
        (Reply::Closed, "cannot be fetched"),
    ] {
        let (penstock, provider, log) = log_of(&key, &reply, "jwks_timeout: 1s");
        assert!(log.contains(words), "{words}: {log}");
        assert_eq!(provider.fetches(), 1);
        let refused = send(&penstock, CHAT, &key.token(&provider.claims("a")));
        assert_eq!((refused.status, &*refused.error_code()), (503, "token_keys_unavailable"));
    }
}

#[test]
fn keys_that_others_may_have_are_not_used() {
    let key = SigningKey::p256("k");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut jwk = key.jwk();
        change(&mut jwk);
        Reply::Document(json!({ "keys": [jwk] }).to_string())
    };
    let secret = base64url(b"a shared secret of 32 bytes, long");
    let symmetric = json!({ "kty": "oct", "k": secret, "kid": "k", "alg": "HS256" });
    for reply in [
        Reply::Document(json!({ "keys": [symmetric] }).to_string()),
        with(&|jwk| jwk["d"] = json!("AAAA")),
        with(&|jwk| jwk["use"] = json!("enc")),
        with(&|jwk| jwk["alg"] = json!("HS256")),
        with(&|jwk| jwk["alg"] = json!("ES384")),
        with(&|jwk| jwk["x"] = json!("AAAA")),
        with(&|jwk| jwk["crv"] = json!("secp256k1")),
        with(&|jwk| jwk["key_ops"] = json!(["sign"])),
        Reply::Document(
            json!({ "keys": [5, null, {}, { "kty": "RSA", "n": "AQAB", "e": "AQAB",
            "kid": "k" }] })
            .to_string(),
        ),
    ] {
        let (penstock, provider, log) = log_of(&key, &reply, "algorithms: [ES256, RS256]");
        assert!(log.contains("no public keys for signatures"), "{log}");
        let token = key.token(&provider.claims("a"));
        assert_refused(&penstock, &token, 401, "invalid_api_key", "not one of its issuer's");
    }
    // A provider whose certificate is another CA's is not believed.
    let engine = engine("one", &["m"]);
    let (one, two) = (Provider::start(ISSUER, &[&key]), Provider::start(ISSUER, &[&key]));
    let jwt = one.yaml("").replace(&one.url(), &two.url());
    let penstock = Penstock::start(&config(&engine, &jwt, ""));
    let token = key.token(&one.claims("a"));
    assert_eq!(send(&penstock, CHAT, &token).status, 503);
    assert!(penstock.log().contains("certificate"), "{}", penstock.log());
    assert_eq!(key_set(&[&key]).matches("kid").count(), 1);
}
