//! Keys made at run time: in effect at once where they are made, within two seconds in every other
//! penstock of the host, and never lost or opened up by a file that fails.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use penstock_mock::MockEngine;
use serde_json::{Value, json};

use super::client_keys::{assert_refused, send};
use crate::support::client::{Response, request};
use crate::support::command::{Ran, run};
use crate::support::engines::{backend, engine};
use crate::support::eventually;
use crate::support::fleet::{find_metric, metric};
use crate::support::penstock::{Penstock, scratch};

pub const CHAT: &str = "/v1/chat/completions";
/// The time within which a change is in effect in another process, also on a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

pub fn config(store: &Path, engine: &MockEngine, rest: &str) -> String {
    let items = backend(engine, "models: [m, other]");
    format!("auth: {{ store: {}, {rest} }}\nbackends:\n{items}", store.display())
}

pub fn admin(penstock: &Penstock, method: &str, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let headers = [("content-type", "application/json")];
    request(penstock.admin, method, path, &headers, &body)
}

/// Makes a key by the admin port. Returns its id and its secret.
pub fn create(penstock: &Penstock, given: &Value) -> (String, String) {
    let made = admin(penstock, "POST", "/keys", given);
    assert_eq!(made.status, 201, "{}", made.text());
    ids(&made.json())
}

pub fn ids(made: &Value) -> (String, String) {
    (made["id"].as_str().unwrap().to_owned(), made["key"].as_str().unwrap().to_owned())
}

pub fn keys(store: &Path, arguments: &[&str]) -> Ran {
    let store = store.display().to_string();
    run(["keys"].iter().chain(arguments).chain(&["--store", &store]))
}

pub fn is_let_in(penstock: &Penstock, key: &str) -> bool {
    send(penstock, CHAT, key).status == 200
}

#[test]
fn store_without_keys_lets_no_request_in() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    assert_eq!(std::fs::metadata(&store).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(send(&penstock, CHAT, "sk-anything").status, 401);
    let bare = request(penstock.data, "GET", "/v1/models", &[], b"");
    assert_eq!((bare.status, bare.error_code().as_str()), (401, "invalid_api_key"));
    let (id, key) = create(&penstock, &json!({ "name": "team-a" }));
    assert!(id.starts_with("key_") && key.starts_with("sk-penstock-"), "{id}");
    assert_eq!(key.len(), "sk-penstock-".len() + 43, "256 bits");
    assert!(is_let_in(&penstock, &key), "in effect at once");
    assert_eq!(engine.counters().requests, 1);
    for file in ["keys.db", "keys.db-wal"] {
        let bytes = std::fs::read(store.with_file_name(file)).unwrap();
        let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!has(&key[12..]), "the secret is in {file}");
    }
    let shown = admin(&penstock, "GET", &format!("/keys/{id}"), &Value::Null).json();
    assert_eq!(shown["last_four"], key[key.len() - 4..]);
    assert!(shown.get("key").is_none() && !penstock.log().contains(&key[12..]));
}

#[test]
fn attributes_hold_and_changes_count_at_once() {
    let engine = engine("one", &["m", "other"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    let (id, key) = create(&penstock, &json!({ "name": "a", "models": ["other"] }));
    let refused = send(&penstock, CHAT, &key);
    assert_eq!((refused.status, refused.error_code().as_str()), (403, "model_not_allowed"));
    assert_refused(&penstock, &key, 403, "model_not_allowed", "'m'");
    let path = format!("/keys/{id}");
    let changed = admin(&penstock, "PATCH", &path, &json!({ "models": null, "team": "red" }));
    assert_eq!((changed.status, &changed.json()["team"]), (200, &json!("red")));
    assert!(is_let_in(&penstock, &key));
    let limited = json!({ "limits": { "requests_per_minute": 2 } });
    assert_eq!(admin(&penstock, "PATCH", &path, &limited).status, 200);
    let statuses: Vec<u16> = (0..3).map(|_| send(&penstock, CHAT, &key).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let past = json!({ "expires_at": "2024-01-01T00:00:00Z" });
    assert_eq!(admin(&penstock, "PATCH", &path, &past).status, 200);
    assert_refused(&penstock, &key, 401, "key_expired", "expired at 2024-01-01");
    let future = json!({ "expires_at": null, "not_before": "2999-01-01T00:00:00Z" });
    assert_eq!(admin(&penstock, "PATCH", &path, &future).status, 200);
    assert_refused(&penstock, &key, 401, "key_not_yet_valid", "valid from 2999-01-01");
    assert_eq!(admin(&penstock, "DELETE", &path, &Value::Null).status, 200);
    assert_refused(&penstock, &key, 401, "key_revoked", "was revoked");
    let page = request(penstock.admin, "GET", "/metrics", &[], b"").text();
    assert!(page.contains("penstock_key_failures_total{reason=\"revoked\"} 5"), "{page}");
}

#[test]
fn bad_descriptions_of_keys_are_refused() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, "max_keys: 1"));
    for given in [
        json!({}),
        json!({ "name": "a b" }),
        json!({ "name": "a", "modles": ["m"] }),
        json!({ "name": "a", "modles": null }),
        json!({ "name": "a", "weight": 0 }),
        json!({ "name": "a", "models": [] }),
        json!({ "name": "a", "zones": [] }),
        json!({ "name": "a", "limits": { "requests_per_minute": 0 } }),
        json!({ "name": "a", "expires_at": "tomorrow" }),
        json!({ "name": "a", "expires_at": "2024-01-01T00:00:00Z" }),
        json!(["name"]),
    ] {
        let response = admin(&penstock, "POST", "/keys", &given);
        assert_eq!(response.status, 400, "{given}: {}", response.text());
    }
    let (id, key) = create(&penstock, &json!({ "name": "a", "models": ["m"], "zones": null }));
    let path = format!("/keys/{id}");
    for given in [json!({ "name": "b" }), json!({ "modles": null }), json!({ "weight": "2" })] {
        assert_eq!(admin(&penstock, "PATCH", &path, &given).status, 400, "{given}");
    }
    // An empty list would allow nothing by its words.
    for attribute in ["models", "zones"] {
        let refused = admin(&penstock, "PATCH", &path, &json!({ attribute: [] }));
        assert_eq!((refused.status, &*refused.error_code()), (400, "invalid_request"));
        assert!(refused.text().contains("to allow all"), "{}", refused.text());
        let flag = format!("--{attribute}");
        let ran = keys(&store, &["set", &id, &flag, ""]);
        assert_eq!(ran.code, Some(2), "{attribute}: {}", ran.stderr);
    }
    let kept = admin(&penstock, "PATCH", &path, &json!({ "zones": null, "policies": null })).json();
    assert_eq!(kept["models"], json!(["m"]), "nothing has changed");
    let full = admin(&penstock, "POST", "/keys", &json!({ "name": "b" }));
    assert_eq!((full.status, full.error_code().as_str()), (409, "too_many_keys"));
    assert_eq!(admin(&penstock, "GET", "/keys/key_none", &Value::Null).status, 404);
    assert_eq!(admin(&penstock, "DELETE", &path, &Value::Null).status, 200);
    assert_eq!(admin(&penstock, "POST", &format!("{path}/rotate"), &Value::Null).status, 409);
    create(&penstock, &json!({ "name": "b" }));
    assert_refused(&penstock, &key, 401, "invalid_api_key", "not valid");
    let page = [("origin", "http://evil.example")];
    assert_eq!(request(penstock.admin, "POST", "/keys", &page, b"{\"name\":\"x\"}").status, 403);
}

#[test]
fn old_secret_stays_valid_for_the_overlap() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    let (id, first) = create(&penstock, &json!({ "name": "a" }));
    let path = format!("/keys/{id}/rotate");
    let (same, second) = ids(&admin(&penstock, "POST", &path, &json!({ "overlap": "1h" })).json());
    assert_eq!(same, id);
    assert!(is_let_in(&penstock, &first) && is_let_in(&penstock, &second));
    let (_, third) = ids(&admin(&penstock, "POST", &path, &json!({ "overlap": "0s" })).json());
    assert!(is_let_in(&penstock, &third));
    assert_refused(&penstock, &second, 401, "key_expired", "expired");
    assert_refused(&penstock, &first, 401, "invalid_api_key", "not valid");
    assert_eq!(admin(&penstock, "POST", &path, &json!({ "overlap": "1" })).status, 400);
    assert_eq!(admin(&penstock, "DELETE", &format!("/keys/{id}"), &Value::Null).status, 200);
    for key in [&third, &second] {
        assert_refused(&penstock, key, 401, "key_revoked", "was revoked");
    }
}

#[test]
fn key_made_again_under_an_old_name_inherits_nothing() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    let described = json!({ "name": "a", "limits": { "requests_per_minute": 1 } });
    let (old, key) = create(&penstock, &described);
    assert!(is_let_in(&penstock, &key));
    assert_eq!(send(&penstock, CHAT, &key).status, 429);
    assert_eq!(admin(&penstock, "DELETE", &format!("/keys/{old}"), &Value::Null).status, 200);
    let (new, key) = create(&penstock, &described);
    assert_ne!(old, new);
    assert!(is_let_in(&penstock, &key), "the limits of the old key are not its own");
}

#[test]
fn commands_are_seen_by_every_penstock_of_the_host() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let text = config(&store, &engine, "");
    let (one, two) = (Penstock::start(&text), Penstock::start(&text));
    let ran =
        keys(&store, &["create", "--name", "a", "--team", "red", "--expires", "90d", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let made: Value = serde_json::from_str(&ran.stdout).unwrap();
    let (id, key) = ids(&made);
    assert_eq!(keys(&store, &["create", "--name", "a", "--expires", "0d"]).code, Some(2));
    for penstock in [&one, &two] {
        eventually("the key is known", SOON, || is_let_in(penstock, &key));
    }
    let (other, second) = create(&one, &json!({ "name": "b" }));
    eventually("the other penstock knows it", SOON, || is_let_in(&two, &second));
    let listed = keys(&store, &["list"]).stdout;
    assert!(listed.contains(&id) && listed.contains(&other) && listed.contains("red"), "{listed}");
    assert!(!listed.contains(&key) && listed.contains(&format!("…{}", &key[key.len() - 4..])));
    let rotated = keys(&store, &["rotate", &id, "--overlap", "0s"]);
    assert!(rotated.stdout.contains("cannot be shown again"), "{}", rotated.stdout);
    assert_eq!(keys(&store, &["revoke", &other]).code, Some(0));
    for penstock in [&one, &two] {
        eventually("the old secret is out", SOON, || !is_let_in(penstock, &key));
        eventually("the key is revoked", SOON, || !is_let_in(penstock, &second));
    }
    assert!(keys(&store, &["show", &other]).stdout.contains("revoked"));
    assert_eq!(keys(&store, &["show", "key_none"]).code, Some(1));
    assert_eq!(keys(&store, &["create", "--name", "a b"]).code, Some(2));
}

#[test]
fn known_keys_go_on_when_the_file_fails() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    let (id, key) = create(&penstock, &json!({ "name": "a" }));
    let is_up = || {
        let page = request(penstock.admin, "GET", "/metrics", &[], b"").text();
        page.contains("\npenstock_key_store_up 1\n")
    };
    assert!(is_up());
    std::fs::rename(&store, store.with_extension("away")).unwrap();
    eventually("the failure shows", SOON, || !is_up());
    assert!(is_let_in(&penstock, &key));
    // An empty file in its place would end all keys.
    for arguments in [["list"].as_slice(), &["show", &id], &["revoke", &id], &["revoked-tokens"]] {
        let ran = keys(&store, arguments);
        assert_eq!((ran.code, store.exists()), (Some(1), false), "{arguments:?} {}", ran.stderr);
    }
    let refused = admin(&penstock, "POST", "/keys", &json!({ "name": "b" }));
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "key_store_unavailable"));
    let failures = || find_metric(&penstock, "penstock_key_store_failures_total").unwrap();
    let before = failures();
    eventually("it is looked for again", 2 * SOON, || failures() >= before + 3.0);
    let lines = penstock.log().matches("auth.store cannot be read").count();
    assert_eq!(lines, 1, "one line for a failure that lasts");
    std::fs::rename(store.with_extension("away"), &store).unwrap();
    eventually("the store is back", SOON, is_up);
    // Written over in place.
    let whole = std::fs::read(&store).unwrap();
    std::fs::write(&store, vec![b'x'; whole.len()]).unwrap();
    eventually("the failure shows", SOON, || !is_up());
    assert!(is_let_in(&penstock, &key));
    let revoked = admin(&penstock, "DELETE", &format!("/keys/{id}"), &Value::Null);
    assert_eq!(revoked.status, 503, "a revocation that would be lost is no success");
}

#[test]
fn damaged_rows_refuse_their_keys_alone() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let text = config(&store, &engine, "");
    let penstock = Penstock::start(&text);
    let made = ["a", "b", "c"].map(|name| create(&penstock, &json!({ "name": name })));
    let token = json!({ "jti": "t" });
    assert_eq!(admin(&penstock, "POST", "/revoked_tokens", &token).status, 201);
    let file = rusqlite::Connection::open(&store).unwrap();
    let damage = format!(
        "BEGIN; UPDATE client_keys SET created_at = 'yesterday' WHERE id = '{}';
         UPDATE client_keys SET attributes = '{{\"weight\": 0}}' WHERE id = '{}';
         UPDATE revoked_tokens SET revoked_at = 'today', expires_at = x'00', issuer = 7; COMMIT",
        made[0].0, made[1].0
    );
    file.execute_batch(&damage).unwrap();
    let refused = |penstock: &Penstock| {
        made[..2].iter().all(|(_, key)| !is_let_in(penstock, key))
            && is_let_in(penstock, &made[2].1)
    };
    eventually("both keys are refused, and no other", SOON, || refused(&penstock));
    assert_refused(&penstock, &made[0].1, 401, "invalid_api_key", "not valid");
    // Everything else goes on.
    let (_, later) = create(&penstock, &json!({ "name": "d" }));
    assert!(is_let_in(&penstock, &later));
    let path = format!("/keys/{}", made[2].0);
    assert_eq!(admin(&penstock, "PATCH", &path, &json!({ "team": "red" })).status, 200);
    let listed = admin(&penstock, "GET", "/keys", &Value::Null).json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2, "{listed}");
    let shown = admin(&penstock, "GET", &format!("/keys/{}", made[0].0), &Value::Null);
    assert_eq!((shown.status, &*shown.error_code()), (409, "key_damaged"));
    let ran = keys(&store, &["list"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("damaged: 2, the first is 'key_"), "{}", ran.stderr);
    let page = request(penstock.admin, "GET", "/metrics", &[], b"").text();
    assert!(page.contains("\npenstock_key_store_damaged_rows 2\n"), "{page}");
    assert!(page.contains("\npenstock_key_store_up 1\n"), "{page}");
    assert!(page.contains("\npenstock_revoked_tokens 1\n"), "a damaged revocation holds: {page}");
    let log = penstock.log();
    assert_eq!(log.matches("damaged rows are left out").count(), 1, "{log}");
    drop(penstock);
    let again = Penstock::start(&text);
    assert!(refused(&again) && is_let_in(&again, &later), "also after a restart");
}

#[test]
fn reload_that_takes_the_store_away_is_refused() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    let (_id, key) = create(&penstock, &json!({ "name": "a" }));
    let text = config(&store, &engine, "");
    let open = text.replace(&format!("store: {}, ", store.display()), "");
    assert_ne!(open, text);
    penstock.rewrite(&open);
    let response = penstock.reload();
    assert_eq!(response.status, 422, "{}", response.text());
    assert!(response.text().contains("keep it, or restart"), "{}", response.text());
    assert!(is_let_in(&penstock, &key));
    let received = engine.received();
    assert_eq!(received.last().unwrap().header("authorization"), None, "the key stays here");
}

#[test]
fn locked_file_refuses_changes_and_no_request() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    let (_, key) = create(&penstock, &json!({ "name": "a" }));
    let other = rusqlite::Connection::open(&store).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = admin(&penstock, "POST", "/keys", &json!({ "name": "b" }));
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "key_store_unavailable"));
    assert!(refused.text().contains("locked"), "{}", refused.text());
    assert!(is_let_in(&penstock, &key));
    other.execute_batch("ROLLBACK").unwrap();
    let (_, later) = create(&penstock, &json!({ "name": "b" }));
    assert!(is_let_in(&penstock, &later));
}

#[test]
fn full_disk_refuses_changes_and_no_request() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    // No file may be larger than 100 KiB, and a write beyond that is an error, as on a full disk.
    let limit = "trap '' XFSZ; ulimit -f 200";
    let penstock = Penstock::start_by_shell(limit, &config(&store, &engine, ""));
    let made =
        |number: usize| admin(&penstock, "POST", "/keys", &json!({ "name": format!("a{number}") }));
    let (_, key) = create(&penstock, &json!({ "name": "a" }));
    let refused = (0..200).map(made).find(|made| made.status != 201).unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "key_store_unavailable"));
    assert!(is_let_in(&penstock, &key));
    let listed = admin(&penstock, "GET", "/keys", &Value::Null).json();
    let count = listed["keys"].as_array().unwrap().len();
    assert!((2..200).contains(&count), "what was written is there: {count}");
    drop(penstock);
    let again = Penstock::start(&config(&store, &engine, ""));
    assert!(is_let_in(&again, &key));
    assert_eq!(admin(&again, "POST", "/keys", &json!({ "name": "b" })).status, 201);
}

#[test]
fn unusable_store_ends_the_start() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    std::fs::write(&store, "not a database, but long enough to be looked at as one".repeat(40))
        .unwrap();
    let path = scratch("penstock.yaml");
    std::fs::write(&path, config(&store, &engine, "")).unwrap();
    let path = path.display().to_string();
    for command in ["check", "serve"] {
        let ran = run([command, "--config", &path]);
        assert_eq!(ran.code, Some(1), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("auth.store: cannot use"), "{command}: {}", ran.stderr);
    }
    assert!(std::fs::read_to_string(&store).unwrap().starts_with("not a database"));
}

#[test]
fn addresses_that_try_keys_wait() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, "failures_per_minute: 3"));
    let (_, key) = create(&penstock, &json!({ "name": "a" }));
    let delayed = || metric(&penstock, "penstock_key_failures_delayed_total");
    for _ in 0..3 {
        assert_eq!(send(&penstock, CHAT, "sk-wrong").status, 401);
    }
    assert_eq!(delayed(), 0.0, "a few are not delayed");
    let (status, slow) = crate::support::client::timed(|| send(&penstock, CHAT, "sk-wrong").status);
    assert_eq!(status, 401);
    assert!(slow >= Duration::from_millis(900), "{slow:?}");
    assert!(is_let_in(&penstock, &key));
    let page = request(penstock.admin, "GET", "/metrics", &[], b"").text();
    assert!(page.contains("penstock_key_failures_total{reason=\"unknown\"} 4"), "{page}");
    assert_eq!(delayed(), 1.0, "a valid key does not wait");
    assert!(!penstock.log().contains("sk-wrong"));
}
