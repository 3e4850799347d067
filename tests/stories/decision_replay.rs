//! An operator wonders about yesterday's decisions: all they read is captured on demand, decides
//! the same when it is replayed, and shows where requests would have gone by other rules.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use penstock_mock::{Fault, Pace};
use serde_json::{Value, json};

use crate::support::client::{self, Client, chat};
use crate::support::collect_keys;
use crate::support::command::{Ran, file, run, run_with};
use crate::support::fleet::{CHAT, Fleet, Setup, yaml};

const SECTIONS: &str = "telemetry: { interval: 10ms, idle_interval: 20ms, max_cpu: 1 }";
const SCORERS: &str = "prefix-affinity:3,queue-depth:2,kv-utilization:2,latency:1";

fn setup<'a>(strategy: &'a str, routing: &'a str) -> Setup<'a> {
    let pace = Pace {
        first_token: Duration::from_millis(3),
        per_token: Duration::from_millis(1),
        tokens: 3,
    };
    Setup {
        strategy,
        routing,
        pace,
        sections: SECTIONS,
        backend: "engine: vllm",
        ..Setup::default()
    }
}

/// A metrics page whose load is different every time.
fn page(number: usize) -> String {
    let share = (number * 37 % 100) as f64 / 99.0;
    format!(
        "vllm:num_requests_running {}\nvllm:num_requests_waiting {}\nvllm:kv_cache_usage_perc {share}\n",
        number * 7 % 11,
        number * 5 % 6,
    )
}

fn conversation(number: usize, turns: usize) -> Value {
    let mut messages = vec![
        json!({"role": "system", "content": format!("No {number}. {}", "Be brief. ".repeat(60))}),
    ];
    for turn in 0..turns {
        let text = format!("{turn}: {}", "word ".repeat(20));
        messages.push(json!({"role": "user", "content": text}));
    }
    json!({"model": "m", "messages": messages, "stream": number.is_multiple_of(2)})
}

/// Sends `count` requests each from eight concurrent clients while engine telemetry changes.
fn send(fleet: &Fleet, count: usize) {
    thread::scope(|scope| {
        for who in 0..8 {
            scope.spawn(move || {
                let mut client = Client::connect(fleet.penstock.data);
                for number in 0..count {
                    let engine = &fleet.engines[(who + number) % fleet.engines.len()];
                    engine.set_page("/metrics", Some(&page(who * count + number)));
                    let body = conversation(who + 8 * (number / 5), number % 5 + 1).to_string();
                    client.send("POST", CHAT, &[], body.as_bytes());
                    assert_eq!(client.read_response().unwrap().status, 200);
                }
            });
        }
    });
}

fn begin(fleet: &Fleet) {
    assert_eq!(fleet.penstock.admin("/decisions?capture=false").status, 200);
    assert_eq!(fleet.penstock.admin("/decisions?capture=true").json()["captured"], 0);
}

fn captured(fleet: &Fleet) -> String {
    let response = fleet.penstock.admin("/decisions?capture=true");
    assert_eq!(response.status, 200);
    response.text()
}

fn replay(text: &str, more: &[&str]) -> Ran {
    let file = file("captured.json", text);
    run(["explain", "--decision", file.to_str().unwrap()].iter().chain(more))
}

fn last_line(ran: &Ran) -> &str {
    ran.stdout.lines().last().unwrap_or_default()
}

/// Decides by these rules under load, and replays it.
fn assert_identical(fleet: &Fleet, (strategy, routing): (&str, &str), each: usize) -> String {
    fleet.penstock.rewrite(&yaml(&fleet.engines, &["m"; 4], setup(strategy, routing)));
    assert_eq!(fleet.penstock.reload().status, 200);
    begin(fleet);
    send(fleet, each);
    let text = captured(fleet);
    let ran = replay(&text, &[]);
    let all = each * 8;
    assert_eq!(ran.code, Some(0), "{strategy}, {routing}: {}", ran.stderr);
    assert_eq!(last_line(&ran), format!("{all} decisions, {all} identical"), "{routing}");
    let picked: Value = serde_json::from_str(&text).unwrap();
    let decisions = picked["decisions"].as_array().unwrap();
    let backends: BTreeSet<&str> =
        decisions.iter().map(|one| one["decision"]["backend"].as_str().unwrap()).collect();
    assert!(backends.len() > 1, "{strategy}, {routing}: {backends:?}");
    text
}

#[test]
fn captures_of_1024_decisions_replay_identically() {
    let scorers = format!("scorers: \"{SCORERS}\"");
    let fleet = Fleet::start(4, setup("weighted", &scorers));
    let text = assert_identical(&fleet, ("weighted", &scorers), 128);
    let all: Value = serde_json::from_str(&text).unwrap();
    let candidates = || {
        let decisions = all["decisions"].as_array().unwrap().iter();
        decisions.flat_map(|one| one["candidates"].as_array().unwrap())
    };
    let distinct =
        |key: &str| candidates().map(|one| one[key].to_string()).collect::<BTreeSet<_>>();
    for key in ["in_flight", "load", "kv_utilization", "telemetry_age_ms", "matched_blocks"] {
        assert!(distinct(key).len() > 3, "{key} hardly changed: {:?}", distinct(key));
    }
    // Random picks replay from the seed of each decision.
    let drawn = format!("{scorers}, picker: weighted_random");
    assert_identical(&fleet, ("weighted", &drawn), 128);
}

#[test]
fn every_strategy_replays_identically() {
    let fleet = Fleet::start(4, setup("smart", ""));
    for (strategy, routing) in [
        ("smart", "weights: { priority: 0, load: 80, latency: 20 }"),
        ("random", ""),
        ("round_robin", ""),
        ("weighted", "preset: resident"),
        ("weighted", "preset: least-loaded"),
        ("weighted", "preset: lmetric, picker: power-of-two"),
        ("weighted", "picker: { name: softmax, temperature: 0.3 }"),
    ] {
        assert_identical(&fleet, (strategy, routing), 16);
    }
}

#[test]
fn replay_reports_a_changed_reading() {
    let routing = format!("scorers: \"{SCORERS}\"");
    let fleet = Fleet::start(4, setup("weighted", &routing));
    let text = assert_identical(&fleet, ("weighted", &routing), 8);
    let weight = "\"name\":\"prefix-affinity\",\"weight\":";
    let changed = text.replace(&format!("{weight}3.0"), &format!("{weight}0.01"));
    assert_ne!(changed, text);
    let ran = replay(&changed, &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stderr.contains(" of 64 decisions differ"), "{}", ran.stderr);
    assert!(ran.stdout.contains(": NOT identical\n"), "{}", ran.stdout);
    let lines = replay(&changed, &["--json"]).json_lines();
    let went = |side: &str, one: &Value| one[side]["backend"].clone();
    let elsewhere = lines.iter().filter(|one| went("recorded", one) != went("replayed", one));
    assert!(elsewhere.count() > 0, "a weight decides");
}

#[test]
fn replay_with_other_settings_is_a_what_if() {
    let fleet = Fleet::start(4, setup("round_robin", ""));
    let text = assert_identical(&fleet, ("round_robin", ""), 8);
    let moved = |more: &[&str]| {
        let ran = replay(&text, more);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let (all, rest) = last_line(&ran).split_once(" decisions, ").unwrap();
        assert_eq!(all, "64");
        rest.strip_suffix(" would have gone elsewhere").unwrap().parse::<usize>().unwrap()
    };
    assert_eq!(moved(&["--routing-policy", "round_robin"]), 0);
    assert_eq!(moved(&["--strategy", "round_robin"]), 0);
    assert!(moved(&["--routing-scorers", "load-balance:1"]) > 0);
    let named = ["--routing-scorers", "load-balance:1", "--strategy", "round_robin"];
    assert_eq!(moved(&named), 0, "a strategy that is named is kept");
    let warning = replay(&text, &named).stderr;
    assert!(warning.contains("'routing.scorers' has no effect"), "{warning}");
    assert!(moved(&["--routing-policy", "least-loaded"]) > 0);
    // By priority alone all of them would go to the first one.
    let config = file(
        "penstock.yaml",
        "routing: { weights: { priority: 100, load: 0, latency: 0 } }\nbackends: [http://10.0.0.1:1]\n",
    );
    assert_eq!(moved(&["--config", config.to_str().unwrap()]), 48);
    // Written out, it counts even if the environment says the same; in the environment alone it
    // does not.
    let captured = file("captured.json", &text);
    let configured = |more: &[&str]| {
        let arguments = ["explain", "--decision", captured.to_str().unwrap()];
        let environment = [("PENSTOCK_CONFIG", config.to_str().unwrap())];
        run_with(arguments.iter().chain(more), b"", &environment)
    };
    let ran = configured(&["--config", config.to_str().unwrap()]);
    assert_eq!(last_line(&ran), "64 decisions, 48 would have gone elsewhere", "{}", ran.stderr);
    assert_eq!(last_line(&configured(&[])), "64 decisions, 64 identical");
    for flag in ["--strategy", "--routing-policy"] {
        let ran = replay(&text, &[flag, "nope"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
        assert!(ran.stderr.contains(&format!("{flag}: unknown 'nope'")), "{}", ran.stderr);
    }
    let lines = replay(&text, &["--routing-policy", "random", "--json"]).json_lines();
    let (summary, lines) = lines.split_last().unwrap();
    let counted = lines.iter().filter(|one| one["moved"] == true).count();
    assert_eq!(*summary, json!({"summary": {"decisions": 64, "moved": counted}}));
    // Each line of the response is one decision.
    let line = text.lines().nth(1).unwrap().trim_end_matches(',');
    let ran = run_with(["explain", "--decision", "-"], line.as_bytes(), &[]);
    assert_eq!(last_line(&ran), "1 decision, 1 identical", "{}", ran.stderr);
    for part in
        ["decision    ", "candidates\n", "  * ", "recorded    ", " by round_robin: identical"]
    {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
}

#[test]
fn replay_lists_rejected_backends() {
    let fleet = Fleet::start(3, Setup { strategy: "smart", ..Setup::default() });
    assert_eq!(
        client::request(fleet.penstock.admin, "POST", "/backends/b/drain", &[], b"").status,
        200
    );
    begin(&fleet);
    fleet.a().script([Fault::status(503)]);
    assert_eq!(fleet.chat().status, 200);
    let text = captured(&fleet);
    let all: Value = serde_json::from_str(&text).unwrap();
    let [second, first] = all["decisions"].as_array().unwrap().as_slice() else { panic!("{text}") };
    let rejected = |one: &Value| {
        let pair = |one: &Value| format!("{} {}", one["backend"], one["excluded"]).replace('"', "");
        one["rejected"].as_array().unwrap().iter().map(pair).collect::<Vec<_>>()
    };
    assert_eq!((&first["attempt"], &second["attempt"]), (&json!(1), &json!(2)));
    assert_eq!(first["request_id"], second["request_id"]);
    assert_eq!(rejected(first), ["b draining"]);
    assert_eq!(rejected(second), ["a tried", "b draining"]);
    assert_eq!(second["decision"]["backend"], "c");
    let ran = replay(&text, &[]);
    assert_eq!(last_line(&ran), "2 decisions, 2 identical");
    assert!(ran.stdout.contains("rejected (draining): is draining"), "{}", ran.stdout);
}

#[test]
fn capture_is_off_by_default() {
    let fleet = Fleet::start(2, Setup { strategy: "random", ..Setup::default() });
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(fleet.penstock.admin("/decisions").json()["total"], 1);
    begin(&fleet);
    for _ in 0..3 {
        assert_eq!(fleet.chat().status, 200);
    }
    let all = fleet.penstock.admin("/decisions?capture=true&n=2").json();
    assert_eq!((&all["captured"], &all["kept"]), (&json!(3), &json!(1024)));
    let numbers: Vec<&Value> =
        all["decisions"].as_array().unwrap().iter().map(|one| &one["number"]).collect();
    assert_eq!(numbers, [&json!(3), &json!(2)], "the newest first");
    assert_eq!(fleet.penstock.admin("/decisions?capture=false").json()["total"], 4);
    assert_eq!(fleet.chat().status, 200);
    assert_eq!(fleet.penstock.admin("/decisions?capture=true").json()["captured"], 0);
    assert_eq!(fleet.penstock.admin("/decisions?capture=maybe").status, 400);
    // Only the last ones are kept.
    send(&fleet, 150);
    let all = fleet.penstock.admin("/decisions?capture=true").json();
    assert_eq!(all["captured"], 1200);
    assert_eq!(all["decisions"].as_array().unwrap().len(), 1024);
}

#[test]
fn captures_hold_no_prompts_and_their_keys_are_documented() {
    let routing = "scorers: [{ name: session-affinity, weight: 1, header: x-who }, \
                   { name: prefix-affinity, weight: 2 }, { name: lora-affinity, weight: 1 }], \
                   picker: { name: softmax, temperature: 0.5 }";
    let fleet = Fleet::start(2, setup("weighted", routing));
    begin(&fleet);
    let body = chat("m", &"Keep this private. ".repeat(40)).to_string();
    let headers = [("authorization", "Bearer hush-hush"), ("x-who", "somebody")];
    let response = client::request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes());
    assert_eq!(response.status, 200);
    let text = captured(&fleet);
    for secret in ["Keep this private", "hush", "somebody"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert_eq!(last_line(&replay(&text, &[])), "1 decision, 1 identical");
    let pages = [
        include_str!("../../docs/reference/explain.md"),
        include_str!("../../docs/reference/admin-api.md"),
        include_str!("../../docs/routing/weighted.md"),
    ];
    let prose: String = pages.iter().flat_map(|page| page.split("\n```").step_by(2)).collect();
    let documented: BTreeSet<&str> = prose.split('`').skip(1).step_by(2).collect();
    let mut keys = BTreeSet::new();
    collect_keys(&serde_json::from_str(&text).unwrap(), &mut keys);
    collect_keys(&fleet.penstock.admin("/decisions").json(), &mut keys);
    let lines = replay(&text, &["--json"]).json_lines();
    lines.iter().for_each(|one| collect_keys(one, &mut keys));
    let unknown: Vec<_> = keys.iter().filter(|key| !documented.contains(key.as_str())).collect();
    assert!(unknown.is_empty(), "no page explains {unknown:?}");
}

#[test]
fn replay_refuses_files_without_decisions() {
    let fleet = Fleet::start(1, Setup::default());
    assert_eq!(fleet.chat().status, 200);
    let listed = fleet.penstock.admin("/decisions").text();
    for (text, reason) in [
        (listed.as_str(), "was not captured, only listed"),
        ("", "holds no decision"),
        ("{\"decisions\": []}", "holds no decision"),
        ("decisions", "not JSON"),
        ("{\"version\": 7}", "version 7"),
        ("{\"version\": 2}", "missing field"),
    ] {
        let ran = replay(text, &[]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{}", ran.stderr);
    }
    let ran = run(["explain", "--decision", "/nowhere/at/all.json"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("cannot read"), "{}", ran.stderr);
    let ran = run(["explain", "--decision", "-", "--admin", "http://127.0.0.1:1"]);
    assert_eq!(ran.code, Some(2), "one or the other");
}
