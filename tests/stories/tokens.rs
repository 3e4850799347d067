//! Tokens of an identity provider in place of keys: what they allow, how their provider changes its
//! keys and goes down, and how they are revoked.

use std::time::Duration;

use penstock_mock::MockEngine;
use serde_json::{Value, json};

use super::client_keys::{assert_refused, send};
use super::key_store::SOON;
use crate::support::client::{Response, request};
use crate::support::command::run;
use crate::support::engines::{backend, engine};
use crate::support::eventually;
use crate::support::identity_provider::{Provider, Reply, SigningKey, key_set, unix};
use crate::support::penstock::{Penstock, scratch};

const CHAT: &str = "/v1/chat/completions";
const ISSUER: &str = "https://login.example.com/tenant";
/// The time within which a change of keys is in effect, and a bit more.
const KEYS_SOON: Duration = Duration::from_secs(15);

/// Returns a configuration with these items of `auth.jwt`, and further keys of `auth`.
pub fn config(engine: &MockEngine, jwt: &str, rest: &str) -> String {
    let items = backend(engine, "models: [m, other]");
    format!("auth: {{ jwt: [{jwt}], failures_per_minute: none, {rest} }}\nbackends:\n{items}")
}

fn status(penstock: &Penstock, token: &str) -> u16 {
    send(penstock, CHAT, token).status
}

fn metric(penstock: &Penstock, line: &str) -> bool {
    request(penstock.admin, "GET", "/metrics", &[], b"").text().lines().any(|one| one == line)
}

#[test]
fn tokens_of_every_algorithm_are_let_in() {
    let keys = [SigningKey::rsa("r", 2048), SigningKey::p256("e"), SigningKey::ed25519("d")];
    let engine = engine("one", &["m", "other"]);
    let provider = Provider::start(ISSUER, &[&keys[0], &keys[1], &keys[2]]);
    let penstock = Penstock::start(&config(&engine, &provider.yaml(""), ""));
    for key in &keys {
        let token = key.token(&provider.claims("alice"));
        let response = send(&penstock, CHAT, &token);
        assert_eq!(response.status, 200, "{}: {}", key.algorithm(), response.text());
        let header = [("x-api-key", &*token)];
        let models = request(penstock.data, "GET", "/v1/models", &header, b"");
        assert_eq!(models.status, 200, "{}", models.text());
    }
    assert!(metric(&penstock, "penstock_tokens_verified_total 3"), "each one was verified once");
    assert!(metric(&penstock, "penstock_jwks_keys{issuer=\"login.example.com\"} 3"));
    let bare = request(penstock.data, "GET", "/v1/models", &[], b"");
    assert_eq!(bare.status, 401, "the port is not open");
    assert_eq!(status(&penstock, "sk-anything"), 401);
    for received in engine.received() {
        let fields = ["authorization", "x-api-key"].map(|name| received.header(name).is_some());
        assert_eq!(fields, [false, false], "a backend got a token");
    }
}

#[test]
fn claims_become_what_the_client_may_do() {
    let key = SigningKey::ed25519("k");
    let engine = engine("one", &["m", "other"]);
    let provider = Provider::start(ISSUER, &[&key]);
    let claims = "name: corp, claims: { name: email, team: team, models: /penstock/models,
        priority: prio }";
    let log = scratch("access.log");
    let rest = format!("\naccess_log: {{ path: {} }}", log.display());
    let penstock = Penstock::start(&(config(&engine, &provider.yaml(claims), "") + &rest));
    let with = |change: &dyn Fn(&mut Value)| {
        let mut claims = provider.claims("u-1");
        claims["email"] = json!("alice@example.com");
        claims["team"] = json!("red");
        claims["penstock"] = json!({ "models": ["other", "m*"] });
        change(&mut claims);
        key.token(&claims)
    };
    let token = with(&|_| {});
    assert_eq!(status(&penstock, &token), 200);
    assert_eq!(status(&penstock, &with(&|all| all["penstock"] = json!({"models": "x m"}))), 200);
    let narrow = with(&|all| all["penstock"]["models"] = json!(["other"]));
    assert_refused(&penstock, &narrow, 403, "model_not_allowed", "'m'");
    for (change, words) in [
        (json!(["email", null]), "lacks the claim for its name"),
        (json!(["email", 5]), "for its name is not a text"),
        (json!(["email", "a b"]), "for its name is not a text"),
        (json!(["sub", null]), "lacks the claim for its id"),
        (json!(["sub", ["a"]]), "for its id is not a text"),
        (json!(["team", null]), "lacks the claim for its team"),
        (json!(["team", {"a": 1}]), "for its team is not a text"),
        (json!(["penstock", {"models": []}]), "for its models is not a list"),
        (json!(["penstock", {"models": [1]}]), "for its models is not a list"),
        (json!(["penstock", {}]), "lacks the claim for its models"),
        (json!(["prio", 101]), "for its priority is not a whole number"),
        (json!(["prio", "high"]), "for its priority is not a whole number"),
    ] {
        let (claim, value) = (change[0].as_str().unwrap(), change[1].clone());
        let token = with(&|all| all[claim] = value.clone());
        assert_refused(&penstock, &token, 401, "invalid_api_key", words);
    }
    eventually("the log has the name", Duration::from_secs(5), || {
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(!log.contains(&token[..40]) && !log.contains("eyJ"), "{log}");
        log.contains("corp/alice@example.com")
    });
    assert!(!penstock.log().contains("eyJ"));
}

#[test]
fn policies_and_zones_hold_for_tokens() {
    let key = SigningKey::ed25519("k");
    let engine = engine("one", &["m", "other"]);
    let provider = Provider::start(ISSUER, &[&key]);
    let jwt = provider.yaml("name: corp, claims: { zones: zones }");
    let keys = "keys: [{ name: bob, key: sk-bob-key-1 }]";
    let policies = "\npolicies: [{ name: away, keys: [\"corp/bob\"], zones: [cloud] }]";
    let penstock = Penstock::start(&(config(&engine, &jwt, keys) + policies));
    let token = |subject: &str, zones: Value| {
        let mut claims = provider.claims(subject);
        claims["zones"] = zones;
        key.token(&claims)
    };
    assert_eq!(status(&penstock, &token("alice", json!(["local"]))), 200);
    assert_eq!(status(&penstock, &token("alice", json!("local cloud"))), 200);
    assert_eq!(status(&penstock, "sk-bob-key-1"), 200, "another bob");
    let requests = engine.counters().requests;
    let explained = |token: &str| {
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        let headers = json!({ "authorization": format!("Bearer {token}") });
        let line = json!({ "body": body.to_string(), "headers": headers }).to_string();
        let page = request(penstock.admin, "POST", "/explain", &[], line.as_bytes()).text();
        assert!(!page.contains(token), "{page}");
        page
    };
    let refused = explained(&token("bob", json!(["local"])));
    assert!(refused.contains("no_backend_in_zone"), "{refused}");
    assert!(!explained(&token("alice", json!(["local"]))).contains("no_backend_in_zone"));
    for token in [token("bob", json!(["local"])), token("alice", json!(["cloud"]))] {
        let refused = send(&penstock, CHAT, &token);
        assert_eq!(refused.error_code(), "no_backend_in_zone", "{}", refused.text());
    }
    assert_refused_once(&penstock, &token("alice", json!([])), "for its zones is not a list");
    assert_refused_once(&penstock, &key.token(&provider.claims("alice")), "for its zones");
    assert_eq!(engine.counters().requests, requests);
}

#[test]
fn rotated_keys_are_fetched_for_their_first_token() {
    let (old, new) = (SigningKey::p256("2026-10"), SigningKey::p256("2026-11"));
    let engine = engine("one", &["m"]);
    let provider = Provider::start(ISSUER, &[&old]);
    let penstock = Penstock::start(&config(&engine, &provider.yaml(""), ""));
    let before = old.token(&provider.claims("alice"));
    assert_eq!(status(&penstock, &before), 200);
    provider.set_keys(&[&old, &new]);
    let after = new.token(&provider.claims("bob"));
    eventually("the new key is known", KEYS_SOON, || status(&penstock, &after) == 200);
    assert_eq!(provider.fetches(), 2, "the first token made penstock fetch, once");
    // Within the interval nothing makes penstock fetch again.
    let unknown = SigningKey::p256("unknown");
    for number in 0..50 {
        let token = unknown.token(&provider.claims(&format!("u-{number}")));
        assert_refused_once(&penstock, &token, "not one of its issuer's");
    }
    assert_eq!(provider.fetches(), 2);
    // A withdrawn key ends the tokens that it signed, those that are remembered, too.
    provider.set_keys(&[&new]);
    eventually("the old key is gone", KEYS_SOON, || status(&penstock, &before) == 401);
    assert_eq!(status(&penstock, &after), 200);
}

fn assert_refused_once(penstock: &Penstock, token: &str, words: &str) {
    let response = send(penstock, CHAT, token);
    assert_eq!(response.status, 401, "{}", response.text());
    assert!(response.text().contains(words), "{}", response.text());
}

#[test]
fn provider_that_is_down_stops_nothing_that_is_known() {
    let key = SigningKey::ed25519("k");
    let engine = engine("one", &["m"]);
    let provider = Provider::start(ISSUER, &[&key]);
    provider.set(Reply::Closed);
    let jwt = provider.yaml("refresh: 10s");
    let keys = "keys: [{ name: own, key: sk-own-key-1 }]";
    let penstock = Penstock::start(&config(&engine, &jwt, keys));
    let token = key.token(&provider.claims("alice"));
    let refused = send(&penstock, CHAT, &token);
    assert_eq!((refused.status, &*refused.error_code()), (503, "token_keys_unavailable"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(status(&penstock, "sk-own-key-1"), 200, "keys of the file need no provider");
    let lines = penstock.log().matches("keys cannot be fetched").count();
    assert_eq!(lines, 1, "{}", penstock.log());
    provider.set_keys(&[&key]);
    eventually("the provider is back", KEYS_SOON, || status(&penstock, &token) == 200);
    provider.set(Reply::Status(500, String::new()));
    let fetches = provider.fetches();
    eventually("it is down again", KEYS_SOON, || provider.fetches() > fetches);
    assert_eq!(status(&penstock, &token), 200);
    let fresh = key.token(&provider.claims("bob"));
    assert_eq!(status(&penstock, &fresh), 200, "a fresh token is checked with the last keys");
    let page = request(penstock.admin, "GET", "/metrics", &[], b"").text();
    let failed = "penstock_jwks_fetches_total{issuer=\"login.example.com\",result=\"failed\"} ";
    assert!(page.contains(failed) && !page.contains(&format!("{failed}0")), "{page}");
}

#[test]
fn issuers_share_no_client() {
    let keys = [SigningKey::ed25519("same"), SigningKey::ed25519("same")];
    let engine = engine("one", &["m"]);
    let one = Provider::start("https://one.example", &[&keys[0]]);
    let two = Provider::start("https://two.example", &[&keys[1]]);
    let jwt = format!("{}, {}", one.yaml(""), two.yaml(""));
    let limits = "limits: { requests_per_minute: 1 }";
    let penstock = Penstock::start(&config(&engine, &jwt, limits));
    let own = keys[0].token(&one.claims("alice"));
    assert_eq!([status(&penstock, &own), status(&penstock, &own)], [200, 429]);
    let other = keys[1].token(&two.claims("alice"));
    assert_eq!(status(&penstock, &other), 200, "another alice");
    let second = keys[0].token(&json!({ "iss": "https://one.example", "sub": "alice",
        "aud": ["x", "penstock"], "exp": unix() + 60 }));
    assert_eq!(status(&penstock, &second), 429, "another token of the same client");
    let forged = keys[1].token(&one.claims("mallory"));
    assert_refused(&penstock, &forged, 401, "invalid_api_key", "signature is wrong");
}

#[test]
fn revoked_tokens_end_at_once_here_and_soon_elsewhere() {
    let key = SigningKey::ed25519("k");
    let engine = engine("one", &["m"]);
    let provider = Provider::start(ISSUER, &[&key]);
    let store = scratch("keys.db");
    let store_key = format!("store: {}", store.display());
    let yaml = config(&engine, &provider.yaml(""), &store_key);
    let (penstock, other) = (Penstock::start(&yaml), Penstock::start(&yaml));
    let with_id = |id: &str| {
        let mut claims = provider.claims("alice");
        claims["jti"] = json!(id);
        key.token(&claims)
    };
    let (first, second, third) = (with_id("a"), with_id("b"), with_id("c"));
    for token in [&first, &second, &third] {
        assert_eq!((status(&penstock, token), status(&other, token)), (200, 200));
    }
    let revoke = |given: Value| -> Response {
        let headers = [("content-type", "application/json")];
        let body = given.to_string();
        request(penstock.admin, "POST", "/revoked_tokens", &headers, body.as_bytes())
    };
    let expires = "2999-01-01T00:00:00Z";
    let made = revoke(json!({ "jti": "a", "issuer": ISSUER, "expires_at": expires }));
    assert_eq!((made.status, &made.json()["expires_at"]), (201, &json!(expires)));
    assert_refused(&penstock, &first, 401, "key_revoked", "token was revoked");
    eventually("the other one knows", SOON, || status(&other, &first) == 401);
    let made = revoke(json!({ "jti": "b", "issuer": "https://other.example" }));
    let warning = made.json()["warning"].as_str().unwrap_or_default().to_owned();
    assert!(warning.contains("'issuer' names 'https://other.example'"), "{warning}");
    assert_eq!(status(&penstock, &second), 200, "the jti of another issuer");
    for given in
        [json!({}), json!({ "jti": "" }), json!({ "jti": 5 }), json!({ "jti": "x", "y": 1 })]
    {
        assert_eq!(revoke(given.clone()).status, 400, "{given}");
    }
    let path = store.display().to_string();
    let ran =
        run(["keys", "revoke-token", "--jti", "c", "--expires", "1h", "--store", &path].iter());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    eventually("the command counts", SOON, || status(&penstock, &third) == 401);
    let listed = run(["keys", "revoked-tokens", "--json", "--store", &path].iter());
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let listed = listed["revoked_tokens"].as_array().unwrap();
    let mut ids: Vec<&str> = listed.iter().map(|one| one["jti"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b", "c"]);
    assert!(metric(&penstock, "penstock_revoked_tokens 3"));
    // No later revocation makes an earlier one shorter.
    let again = |more: Value| {
        let mut given = json!({ "jti": "a", "issuer": ISSUER });
        given.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        revoke(given).status
    };
    assert_eq!(again(json!({})), 201);
    assert_eq!(again(json!({ "expires_at": expires })), 201);
    assert_eq!(again(json!({ "expires_at": "2001-01-01T00:00:00Z" })), 400, "it is over");
    let listed = request(penstock.admin, "GET", "/revoked_tokens", &[], b"").json();
    let all = listed["revoked_tokens"].as_array().unwrap();
    let one = all.iter().find(|one| one["jti"] == "a").unwrap();
    assert_eq!(one["expires_at"], Value::Null, "{one}");
    assert_refused(&penstock, &first, 401, "key_revoked", "token was revoked");
}

#[test]
fn revocations_are_taken_back() {
    let key = SigningKey::ed25519("k");
    let engine = engine("one", &["m"]);
    let provider = Provider::start(ISSUER, &[&key]);
    let store = scratch("keys.db");
    let store_key = format!("store: {}", store.display());
    let penstock = Penstock::start(&config(&engine, &provider.yaml(""), &store_key));
    let path = penstock.config.display().to_string();
    let mut claims = provider.claims("alice");
    claims["jti"] = json!("a b/c");
    let token = key.token(&claims);
    let command = |arguments: &[&str]| {
        let ran = run([&["keys"], arguments, &["--config", &path]].concat().iter());
        (ran.code, ran.stderr)
    };
    let (code, said) = command(&["revoke-token", "--jti", "a b/c", "--issuer", "https://typo"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("'issuer' names 'https://typo'"), "{said}");
    assert_eq!(status(&penstock, &token), 200, "the jti of another issuer");
    let (code, said) = command(&["revoke-token", "--jti", "a b/c", "--issuer", ISSUER]);
    assert_eq!((code, &*said), (Some(0), ""));
    eventually("it is revoked", SOON, || status(&penstock, &token) == 401);
    // It was not revoked for every issuer.
    let (code, said) = command(&["restore-token", "--jti", "a b/c"]);
    assert!(code == Some(1) && said.contains("for every issuer"), "{said}");
    let restore = |path: &str| request(penstock.admin, "DELETE", path, &[], b"");
    let refused = restore("/revoked_tokens/a%20b%2Fc");
    assert_eq!((refused.status, &*refused.error_code()), (404, "unknown_token"));
    assert_eq!(status(&penstock, &token), 401);
    let taken = restore(&format!("/revoked_tokens/a%20b%2Fc?issuer={ISSUER}"));
    assert_eq!(taken.status, 200, "{}", taken.text());
    assert_eq!(status(&penstock, &token), 200, "at once");
    assert_eq!(restore(&format!("/revoked_tokens/a%20b%2Fc?issuer={ISSUER}")).status, 404);
    let listed = request(penstock.admin, "GET", "/revoked_tokens", &[], b"").json();
    assert_eq!(listed["revoked_tokens"].as_array().unwrap().len(), 1, "{listed}");
    assert!(metric(&penstock, "penstock_revoked_tokens 1"));
    let (code, said) = command(&["restore-token", "--jti", "a b/c", "--issuer", "https://typo"]);
    assert_eq!(code, Some(0), "{said}");
    eventually("none is left", SOON, || metric(&penstock, "penstock_revoked_tokens 0"));
}

#[test]
fn file_of_keys_is_read_again() {
    let (old, new) = (SigningKey::ed25519("old"), SigningKey::ed25519("new"));
    let engine = engine("one", &["m"]);
    let file = scratch("jwks.json");
    std::fs::write(&file, key_set(&[&old])).unwrap();
    let jwt = |claims: &str| {
        let file = file.display();
        format!("{{ issuer: corp, jwks: {file}, audience: [x, penstock], {claims} }}")
    };
    let penstock = Penstock::start(&config(&engine, &jwt(""), ""));
    let claims = json!({ "iss": "corp", "sub": "a", "aud": "penstock", "exp": unix() + 60 });
    assert_eq!(status(&penstock, &old.token(&claims)), 200);
    std::fs::write(&file, key_set(&[&new])).unwrap();
    let token = new.token(&claims);
    eventually("the file is read", KEYS_SOON, || status(&penstock, &token) == 200);
    std::fs::write(&file, "half a docu").unwrap();
    eventually("the half is refused", KEYS_SOON, || {
        penstock.log().contains("the provider's keys cannot be fetched, the last ones stay")
    });
    assert_eq!(status(&penstock, &token), 200, "the last keys stay");
    assert_eq!(status(&penstock, &old.token(&claims)), 401);
    // A reload with other claims counts for tokens that are remembered, too, and loses no key.
    penstock.rewrite(&config(&engine, &jwt("claims: { team: team }"), ""));
    assert_eq!(penstock.reload().status, 200);
    assert_refused_once(&penstock, &token, "lacks the claim for its team");
    // One that takes the issuers away does not open the port.
    let items = backend(&engine, "models: [m]");
    penstock.rewrite(&format!("backends:\n{items}"));
    assert_eq!(penstock.reload().status, 200);
    let bare = request(penstock.data, "GET", "/v1/models", &[], b"");
    assert_eq!(bare.status, 401);
}

#[test]
fn configurations_that_trust_too_much_are_refused() {
    let file = scratch("jwks.json");
    std::fs::write(&file, "{\"keys\": []}").unwrap();
    let file = file.display();
    for (jwt, words) in [
        ("issuer: a, jwks: FILE, audience: x, algorithms: [HS256]", "RS256"),
        ("issuer: a, jwks: FILE, audience: x, algorithms: [none]", "RS256"),
        ("issuer: a, jwks: FILE, audience: x, algorithms: []", "at least one"),
        ("issuer: a, jwks: FILE", "missing key 'audience'"),
        ("issuer: a, jwks: \"http://idp.example/keys\", audience: x", "https://"),
        ("issuer: a, jwks: \"https://u:secret@idp.example/keys\", audience: x", "https://"),
        ("issuer: \"a#b\", jwks: FILE, audience: x", "without spaces or #"),
        ("issuer: a, jwks: FILE, audience: x, jwks_ca: FILE", "its 'jwks' is a file"),
        ("issuer: a, jwks: \"https://idp/\", audience: x, jwks_ca: /none", "cannot read"),
        ("issuer: a, jwks: FILE, audience: x }, { issuer: a, jwks: FILE, audience: y", "same"),
        (
            "issuer: https://h/a, jwks: FILE, audience: x }, { issuer: https://h/b, jwks: FILE,
          audience: y",
            "give one issuer a 'name'",
        ),
    ] {
        let jwt = jwt.replace("FILE", &file.to_string());
        let path = scratch("penstock.yaml");
        std::fs::write(
            &path,
            format!("auth: {{ jwt: [{{ {jwt} }}] }}\nbackends: [http://127.0.0.1:9]\n"),
        )
        .unwrap();
        let ran = run(["check", "--config", &path.display().to_string()].iter());
        let said = &ran.stderr;
        assert_eq!(ran.code, Some(2), "{jwt}: {said}");
        assert!(said.contains(words) && !said.contains("secret"), "{jwt}: {said}");
    }
}
