//! Keys over several hosts: each penstock has its own file, and a Redis server has the newest
//! version of every key. A change is in effect in the others within two seconds, whichever way it
//! is made; a server that is away or has lost everything neither brings a revoked key back nor
//! loses one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_mock::MockEngine;
use serde_json::{Value, json};

use super::key_store::{admin, create, ids, is_let_in, keys};
use crate::support::engines::{backend, engine};
use crate::support::eventually;
use crate::support::fleet::find_metric;
use crate::support::penstock::{Penstock, scratch};
use crate::support::redis::{Redis, UP};

/// The time within which a change is in effect in the other penstock, or a server is reached again.
const SOON: Duration = Duration::from_secs(10);
const UNSHARED: &str = "penstock_key_store_unshared";

fn config(redis: &Redis, store: &Path, engine: &MockEngine) -> String {
    let (items, shared) = (backend(engine, "models: [m, other]"), redis.section(""));
    format!("auth: {{ store: {} }}\n{shared}\nbackends:\n{items}", store.display())
}

/// Penstocks of two hosts.
struct Two {
    engine: MockEngine,
    files: [PathBuf; 2],
    one: Penstock,
    other: Penstock,
}

impl Two {
    fn start(redis: &Redis) -> Self {
        let engine = engine("one", &["m", "other"]);
        let files = [scratch("keys.db"), scratch("keys.db")];
        let [one, other] =
            [0, 1].map(|number| Penstock::start(&config(redis, &files[number], &engine)));
        let two = Self { engine, files, one, other };
        two.wait_up(1.0);
        two
    }

    fn wait_up(&self, value: f64) {
        for penstock in [&self.one, &self.other] {
            eventually("the server is reached, or not", SOON, || {
                find_metric(penstock, UP) == Some(value)
            });
        }
    }
}

/// Everything that the server holds, as text.
fn contents(redis: &Redis) -> String {
    let client = redis::Client::open(format!("redis://:a-password@{}/", redis.address)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let all: Vec<String> =
        redis::cmd("HVALS").arg("penstock:keys:all").query(&mut connection).unwrap();
    all.join("\n")
}

fn delete(penstock: &Penstock, id: &str) {
    assert_eq!(admin(penstock, "DELETE", &format!("/keys/{id}"), &Value::Null).status, 200);
}

#[test]
fn changes_are_in_effect_on_the_other_host() {
    let Some(redis) = Redis::start("shared_keys") else { return };
    let two = Two::start(&redis);
    let (id, key) = create(&two.one, &json!({ "name": "a", "models": ["m"] }));
    eventually("made by the admin port", SOON, || is_let_in(&two.other, &key));
    let ran = keys(&two.files[1], &["create", "--name", "b", "--json"]);
    let (second, second_key) = ids(&serde_json::from_str(&ran.stdout).unwrap());
    eventually("made by a command, the other way", SOON, || is_let_in(&two.one, &second_key));
    let path = format!("/keys/{id}");
    let changed = admin(&two.other, "PATCH", &path, &json!({ "models": ["other"] }));
    assert_eq!(changed.status, 200, "{}", changed.text());
    eventually("changed", SOON, || !is_let_in(&two.one, &key));
    assert_eq!(admin(&two.one, "PATCH", &path, &json!({ "models": null })).status, 200);
    eventually("changed back", SOON, || is_let_in(&two.other, &key));
    let rotate = format!("{path}/rotate");
    let (_, fresh) = ids(&admin(&two.one, "POST", &rotate, &json!({ "overlap": "0s" })).json());
    eventually("rotated", SOON, || is_let_in(&two.other, &fresh) && !is_let_in(&two.other, &key));
    assert_eq!(keys(&two.files[0], &["revoke", &second]).code, Some(0));
    eventually("revoked by a command", SOON, || !is_let_in(&two.other, &second_key));
    delete(&two.other, &id);
    eventually("revoked by the admin port", SOON, || !is_let_in(&two.one, &fresh));
    let shared = contents(&redis);
    for secret in [&key, &fresh, &second_key] {
        assert!(!shared.contains(&secret[12..]), "a secret is in the server: {shared}");
    }
    assert!(shared.contains("sha256:"), "{shared}");
    assert_eq!(find_metric(&two.one, UNSHARED), Some(0.0));
}

#[test]
fn keys_go_on_and_change_without_the_server() {
    let Some(redis) = Redis::start("shared_keys") else { return };
    let two = Two::start(&redis);
    let (id, key) = create(&two.one, &json!({ "name": "a" }));
    let (kept, kept_key) = create(&two.one, &json!({ "name": "kept" }));
    eventually("it is known", SOON, || is_let_in(&two.other, &kept_key));
    let address = redis.address;
    redis.signal("-KILL");
    two.wait_up(0.0);
    delete(&two.one, &id);
    let (_, late_key) = create(&two.other, &json!({ "name": "late" }));
    assert!(!is_let_in(&two.one, &key) && is_let_in(&two.other, &late_key), "at once, here");
    assert!(is_let_in(&two.one, &kept_key) && is_let_in(&two.other, &kept_key));
    eventually("it waits", SOON, || find_metric(&two.one, UNSHARED) == Some(1.0));
    for penstock in [&two.one, &two.other] {
        let log = penstock.log();
        assert_eq!(log.matches("shared state unreachable").count(), 1, "{log}");
    }
    drop(redis);
    let redis = Redis::start_at(address).unwrap();
    two.wait_up(1.0);
    eventually("it is revoked there, too", SOON, || !is_let_in(&two.other, &key));
    eventually("it is known there, too", SOON, || is_let_in(&two.one, &late_key));
    eventually("nothing waits", SOON, || find_metric(&two.one, UNSHARED) == Some(0.0));
    // An empty server was filled again.
    eventually("all three are there", SOON, || contents(&redis).lines().count() == 3);
    let shared = contents(&redis);
    assert!(shared.contains("\"kept\""), "{shared}");
    delete(&two.other, &kept);
    eventually("revoked", SOON, || !is_let_in(&two.one, &kept_key));
}

#[test]
fn revoked_key_never_comes_back() {
    let Some(redis) = Redis::start("shared_keys") else { return };
    let two = Two::start(&redis);
    let (id, key) = create(&two.one, &json!({ "name": "a" }));
    eventually("it is known", SOON, || is_let_in(&two.other, &key));
    let Two { engine, files, one, other } = two;
    drop(other);
    // Its host is restored from a backup in which the key is valid, with many later changes.
    for number in 0..5 {
        let note = json!({ "note": format!("change {number}") });
        let changed = Penstock::start(&config(&redis, &files[1], &engine));
        assert_eq!(admin(&changed, "PATCH", &format!("/keys/{id}"), &note).status, 200);
    }
    delete(&one, &id);
    assert!(!is_let_in(&one, &key));
    // The server restarts and is empty: both files are all that is left.
    let address = redis.address;
    drop(redis);
    let redis = Redis::start_at(address).unwrap();
    let other = Penstock::start(&config(&redis, &files[1], &engine));
    eventually("it is revoked there, too", SOON, || !is_let_in(&other, &key));
    assert!(!is_let_in(&one, &key));
    // Without the penstock that has revoked it, too.
    drop(one);
    let late = admin(&other, "PATCH", &format!("/keys/{id}"), &json!({ "note": "x" }));
    assert_eq!(late.status, 409, "{}", late.text());
    let fresh = Penstock::start(&config(&redis, &scratch("keys.db"), &engine));
    eventually("a new host has all keys", SOON, || {
        keys_of(&fresh).iter().any(|key| key["id"] == *id && key["state"] == "revoked")
    });
    assert!(!is_let_in(&fresh, &key));
}

fn keys_of(penstock: &Penstock) -> Vec<Value> {
    admin(penstock, "GET", "/keys", &Value::Null).json()["keys"].as_array().unwrap().clone()
}
