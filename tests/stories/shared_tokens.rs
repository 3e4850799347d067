//! Revoked tokens over several hosts: each penstock has its own file, and a Redis server has the
//! newest version of every revocation. One that is made or taken back is in effect in the others
//! within two seconds, whichever way that is done, and no outage undoes it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock::shared_state::{RecordExchange, SharedRecord, SharedState};
use penstock_config::{Config, Environment, UnixTime};
use penstock_mock::MockEngine;
use serde_json::{Value, json};

use super::client_keys::send;
use super::key_store::{CHAT, admin, keys};
use crate::support::engines::{backend, engine};
use crate::support::fleet::find_metric;
use crate::support::identity_provider::{Provider, SigningKey, unix};
use crate::support::penstock::{Penstock, scratch};
use crate::support::redis::{Redis, UP};
use crate::support::{eventually, eventually_async};

const ISSUER: &str = "https://login.example.com/tenant";
/// The time within which a change is in effect in the other penstock, also on a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// The time within which a server is reached again.
const LATER: Duration = Duration::from_secs(10);
const UNSHARED: &str = "penstock_key_store_unshared";

/// Penstocks of two hosts, and tokens that both let in.
struct Two {
    _engine: MockEngine,
    key: SigningKey,
    provider: Provider,
    files: [PathBuf; 2],
    one: Penstock,
    other: Penstock,
}

impl Two {
    fn start(redis: &Redis) -> Self {
        let engine = engine("one", &["m"]);
        let key = SigningKey::ed25519("k");
        let provider = Provider::start(ISSUER, &[&key]);
        let files = [scratch("keys.db"), scratch("keys.db")];
        let (jwt, shared) = (provider.yaml(""), redis.section(""));
        let [one, other] = [0, 1].map(|number| {
            Penstock::start(&format!(
                "auth: {{ store: {}, jwt: [{jwt}], failures_per_minute: none }}\n{shared}\n\
                 backends:\n{}",
                files[number].display(),
                backend(&engine, "models: [m]"),
            ))
        });
        let two = Self { _engine: engine, key, provider, files, one, other };
        two.wait_up(1.0);
        two
    }

    fn both(&self) -> [&Penstock; 2] {
        [&self.one, &self.other]
    }

    fn wait_up(&self, value: f64) {
        for penstock in self.both() {
            eventually("the server is reached, or not", LATER, || {
                find_metric(penstock, UP) == Some(value)
            });
        }
    }

    /// A token that both let in.
    fn token(&self, jti: &str) -> String {
        let mut claims = self.provider.claims("alice");
        claims["jti"] = json!(jti);
        let token = self.key.token(&claims);
        for penstock in self.both() {
            assert!(is_let_in(penstock, &token), "{jti}");
        }
        token
    }
}

fn is_let_in(penstock: &Penstock, token: &str) -> bool {
    send(penstock, CHAT, token).status == 200
}

fn revoke(penstock: &Penstock, given: &Value) {
    let made = admin(penstock, "POST", "/revoked_tokens", given);
    assert_eq!(made.status, 201, "{}", made.text());
}

fn restore(penstock: &Penstock, path: &str) {
    let taken = admin(penstock, "DELETE", &format!("/revoked_tokens/{path}"), &Value::Null);
    assert_eq!(taken.status, 200, "{}", taken.text());
    assert!(taken.json()["restored_at"].is_string(), "{}", taken.text());
}

fn contents(redis: &Redis, command: &str, key: &str) -> Vec<String> {
    let client = redis::Client::open(format!("redis://:a-password@{}/", redis.address)).unwrap();
    let mut connection = client.get_connection().unwrap();
    redis::cmd(command).arg(key).query(&mut connection).unwrap()
}

#[test]
fn revocations_are_in_effect_on_the_other_host() {
    let Some(redis) = Redis::start("shared_tokens") else { return };
    let two = Two::start(&redis);
    let (first, second) = (two.token("a/1"), two.token("b"));
    revoke(&two.one, &json!({ "jti": "a/1", "issuer": ISSUER }));
    assert!(!is_let_in(&two.one, &first), "at once, here");
    eventually("revoked by the admin port", SOON, || !is_let_in(&two.other, &first));
    assert_eq!(keys(&two.files[1], &["revoke-token", "--jti", "b"]).code, Some(0));
    eventually("revoked by a command", SOON, || !is_let_in(&two.one, &second));
    restore(&two.other, &format!("a%2F1?issuer={ISSUER}"));
    assert!(is_let_in(&two.other, &first), "at once, here");
    eventually("taken back by the admin port", SOON, || is_let_in(&two.one, &first));
    assert_eq!(keys(&two.files[0], &["restore-token", "--jti", "b"]).code, Some(0));
    eventually("taken back by a command", SOON, || is_let_in(&two.other, &second));
    revoke(&two.one, &json!({ "jti": "a/1", "issuer": ISSUER }));
    eventually("revoked again", SOON, || !is_let_in(&two.other, &first));
    eventually("nothing waits", SOON, || find_metric(&two.one, UNSHARED) == Some(0.0));
    assert_eq!(contents(&redis, "HKEYS", "penstock:revoked_tokens:all").len(), 2);
}

#[test]
fn outages_bring_no_token_back() {
    let Some(redis) = Redis::start("shared_tokens") else { return };
    let two = Two::start(&redis);
    let (revoked, restored, late) = (two.token("a"), two.token("b"), two.token("c"));
    for jti in ["a", "b"] {
        revoke(&two.one, &json!({ "jti": jti }));
    }
    eventually("both are known", SOON, || {
        !is_let_in(&two.other, &revoked) && !is_let_in(&two.other, &restored)
    });
    let address = redis.address;
    redis.signal("-KILL");
    two.wait_up(0.0);
    revoke(&two.one, &json!({ "jti": "c" }));
    restore(&two.other, "b");
    assert!(!is_let_in(&two.one, &late) && is_let_in(&two.other, &restored), "at once, here");
    eventually("it waits", SOON, || find_metric(&two.one, UNSHARED) == Some(1.0));
    drop(redis);
    // It is empty: the files are all that is left.
    let redis = Redis::start_at(address).unwrap();
    two.wait_up(1.0);
    eventually("revoked there, too", SOON, || !is_let_in(&two.other, &late));
    eventually("taken back there, too", SOON, || is_let_in(&two.one, &restored));
    let all = "penstock:revoked_tokens:all";
    eventually("all three are there", SOON, || contents(&redis, "HKEYS", all).len() == 3);
    for penstock in two.both() {
        assert!(!is_let_in(penstock, &revoked) && !is_let_in(penstock, &late));
        assert!(is_let_in(penstock, &restored));
    }
}

fn record(id: &str, ends_at: Option<u64>) -> SharedRecord {
    SharedRecord {
        id: id.to_owned(),
        is_final: false,
        version: 1,
        ends_at: ends_at.map(UnixTime),
        text: "x".to_owned(),
    }
}

/// Runs a test with an exchange of records, and the name of their hash on the server.
fn with_exchange(redis: &Redis, test: impl AsyncFnOnce(RecordExchange, &str)) {
    let yaml = format!("backends: [http://h:1]\n{}", redis.section("timeout: 5s"));
    let environment = Environment::default();
    let config = Config::parse(&yaml, "test.yaml", std::path::Path::new(""), &environment).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let state = SharedState::new(&config.shared_state, 1).unwrap();
        tokio::spawn(Arc::clone(&state).run());
        test(RecordExchange::new(state, "things"), "penstock:things:all").await;
    });
}

#[test]
fn server_gets_again_what_it_loses() {
    let Some(redis) = Redis::start("shared_tokens") else { return };
    let own = [record("a", None), record("b", None)];
    with_exchange(&redis, async |mut exchange, all| {
        let first = async || exchange.exchange(&own).await.is_some();
        eventually_async("the records are exchanged", SOON, first).await;
        let client = redis::Client::open(format!("redis://:a-password@{}/", redis.address));
        let mut connection = client.unwrap().get_connection().unwrap();
        // Many times within one second.
        for _ in 0..20 {
            assert_eq!(contents(&redis, "HKEYS", all).len(), 2);
            redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
            assert!(exchange.exchange(&own).await.is_some());
        }
    });
}

#[test]
fn server_forgets_records_at_their_end() {
    let Some(redis) = Redis::start("shared_tokens") else { return };
    let end = unix() + 2;
    let mut own =
        vec![record("kept", None), record("short", Some(end)), record("moved", Some(end))];
    with_exchange(&redis, async |mut exchange, all| {
        let first = async || exchange.exchange(&own).await.is_some();
        eventually_async("the records are exchanged", SOON, first).await;
        assert_eq!(contents(&redis, "HKEYS", all).len(), 3);
        // A newer version is kept for longer.
        own[2] = SharedRecord { version: 2, ends_at: None, ..own[2].clone() };
        let has_ended = async || {
            assert!(exchange.exchange(&own).await.is_some());
            unix() > end
        };
        eventually_async("the short one ends", 2 * SOON, has_ended).await;
        assert!(exchange.exchange(&own).await.is_some());
        let mut left = contents(&redis, "HKEYS", all);
        left.sort_unstable();
        assert_eq!(left, ["kept", "moved"]);
        assert!(own.iter().all(|record| exchange.has(record)), "nothing is sent again");
        let members = redis::Client::open(format!("redis://:a-password@{}/", redis.address));
        let mut connection = members.unwrap().get_connection().unwrap();
        for (key, count) in [("changes", 2), ("ends", 0)] {
            let key = format!("penstock:things:{key}");
            let left: usize = redis::cmd("ZCARD").arg(key).query(&mut connection).unwrap();
            assert_eq!(left, count);
        }
    });
}
