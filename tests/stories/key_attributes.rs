//! The attributes of keys in the store, and the commands that set them: names that the
//! configuration lacks, every attribute by a flag, explanations and metrics that know stored keys.

use serde_json::{Value, json};

use super::key_store::{CHAT, SOON, admin, config, create, ids, is_let_in, keys};
use crate::support::client::{chat, request};
use crate::support::command::{file, run};
use crate::support::engines::engine;
use crate::support::eventually;
use crate::support::penstock::{Penstock, scratch};

#[test]
fn names_that_the_configuration_lacks_are_refused() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let ledger = scratch("ledger.db");
    let more = format!(
        "policies: [{{ name: p }}]\nbudgets: [{{ name: b, amount: 1 }}]\nledger: {{ path: {} }}\n\
         objectives: {{ fast: {{ ttft: 1s }} }}\n",
        ledger.display()
    );
    let text = format!("{more}{}", config(&store, &engine, ""));
    let penstock = Penstock::start(&text);
    let known = json!({ "name": "a", "policies": ["p"], "budget": "b", "objective": "fast" });
    let (id, _) = create(&penstock, &known);
    for (attribute, value) in
        [("policies", json!(["p", "q"])), ("budget", json!("B")), ("objective", json!("slow"))]
    {
        let changes = json!({ attribute: value });
        let changed = admin(&penstock, "PATCH", &format!("/keys/{id}"), &changes);
        assert_eq!(changed.status, 400, "{changes}: {}", changed.text());
        assert!(changed.text().contains(attribute), "{}", changed.text());
        let described = json!({ "name": "b", attribute: value });
        assert_eq!(admin(&penstock, "POST", "/keys", &described).status, 400, "{described}");
    }
    // A command only warns: it may come before the configuration that has the name.
    let path = penstock.config.display().to_string();
    let ran = run(["keys", "set", &id, "--budget", "later", "--config", &path]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("'budget' names 'later'"), "{}", ran.stderr);
    drop(penstock);
    let again = Penstock::start(&text);
    assert!(again.log().contains("'budget' names 'later'"), "{}", again.log());
}

#[test]
fn command_sets_what_a_key_allows() {
    let engine = engine("one", &["m", "other"]);
    let store = scratch("keys.db");
    let penstock = Penstock::start(&config(&store, &engine, ""));
    let ran = keys(
        &store,
        &[
            "create",
            "--name",
            "a",
            "--models",
            "m",
            "--ensembles",
            "2",
            "--context-shift",
            "true",
            "--manage-models",
            "true",
            "--sees-budget",
            "false",
            "--tokens-per-day",
            "7",
            "--json",
        ],
    );
    let made: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
    let (id, key) = ids(&made);
    assert_eq!((&made["ensembles"], &made["context_shift"]), (&json!(2), &json!(true)));
    assert_eq!((&made["manage_models"], &made["sees_budget"]), (&json!(true), &json!(false)));
    eventually("it is known", SOON, || is_let_in(&penstock, &key));
    let set = |arguments: &[&str]| {
        let ran = keys(&store, &[&["set", &id, "--json"], arguments].concat());
        (ran.code, serde_json::from_str(&ran.stdout).unwrap_or(Value::Null))
    };
    let (_, shown) =
        set(&["--models", "other", "--in-flight", "3", "--unset", "ensembles,context_shift"]);
    assert_eq!(shown["limits"], json!({ "tokens_per_day": 7, "in_flight": 3 }), "one is added");
    assert_eq!((&shown["models"], shown.get("ensembles")), (&json!(["other"]), None));
    eventually("it is in effect", SOON, || !is_let_in(&penstock, &key));
    let (_, shown) = set(&["--unset", "models,limits"]);
    assert_eq!((shown.get("models"), shown.get("limits")), (None, None));
    eventually("it is in effect", SOON, || is_let_in(&penstock, &key));
    assert_eq!(set(&["--unset", "modles"]).0, Some(2));
    assert_eq!(set(&["--context-shift", "perhaps"]).0, Some(2));
}

#[test]
fn explanations_and_metrics_know_stored_keys() {
    let engine = engine("one", &["m"]);
    let store = scratch("keys.db");
    let more = "policies: [{ name: mars, keys: [\"a\"], zones: [mars] }]\n";
    let text = format!("{more}{}", config(&store, &engine, ""));
    let penstock = Penstock::start(&text);
    let (_, plain) = create(&penstock, &json!({ "name": "b" }));
    let limits = json!({ "name": "b", "limits": { "requests_per_minute": 1 } });
    let (limited, limited_key) = create(&penstock, &limits);
    let (_, mars) = create(&penstock, &json!({ "name": "a" }));
    assert!(is_let_in(&penstock, &limited_key) && !is_let_in(&penstock, &limited_key));
    let page = request(penstock.admin, "GET", "/metrics", &[], b"").text();
    let sample = format!(
        "penstock_rate_limited_total{{key=\"b/{limited}\",limit=\"requests_per_minute\"}} 1"
    );
    assert!(page.contains(&sample), "{page}");
    assert_eq!(page.matches("penstock_key_in_flight{").count(), 1, "only keys with limits: {page}");
    let body = chat("m", "hello").to_string();
    for (key, is_refused) in [(&plain, false), (&mars, true)] {
        let headers = json!({ "authorization": format!("Bearer {key}") });
        let asked = json!({ "path": CHAT, "headers": headers, "body": body });
        let explained = admin(&penstock, "POST", "/explain", &asked).text();
        assert_eq!(explained.contains("mars"), is_refused, "{explained}");
        let path = file("request.json", &body);
        let config = penstock.config.display().to_string();
        let header = format!("authorization: Bearer {key}");
        let path = path.display().to_string();
        let ran = run(["explain", &path, "--config", &config, "-H", &header]);
        assert_eq!(ran.stdout.contains("mars"), is_refused, "{}{}", ran.stdout, ran.stderr);
    }
}
