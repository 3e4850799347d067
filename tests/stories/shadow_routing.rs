//! An operator tries another strategy on live traffic: it decides about every request and acts on
//! none; the metrics report how often it would have picked another backend and the prefix hits it
//! expects.

use serde_json::{Value, json};

use crate::support::client::{self, Client, Response};
use crate::support::command::run;
use crate::support::engines::shares;
use crate::support::eventually;
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, metric};

const DECISIONS: &str = "penstock_shadow_decisions_total";
const AFFINE: &str = "strategy: weighted, scorers: \"prefix-affinity:3,queue-depth:2\"";

fn fleet(strategy: &str, routing: &str) -> Fleet {
    Fleet::start(4, Setup { strategy, routing, ..Setup::default() })
}

/// The messages of a conversation after `turns` turns.
fn conversation(number: usize, turns: usize) -> Value {
    let system = format!("Conversation {number}. {}", "Be kind, be brief. ".repeat(40));
    let mut messages = vec![json!({"role": "system", "content": system})];
    for turn in 0..=turns {
        let question = format!("{turn}: {}", "word ".repeat(30));
        messages.push(json!({"role": "user", "content": question}));
    }
    json!({"model": "m", "messages": messages, "max_tokens": 2})
}

fn decided(fleet: &Fleet, result: &str) -> f64 {
    metric(&fleet.penstock, &format!("{DECISIONS}{{result=\"{result}\"}}"))
}

fn expected(fleet: &Fleet, side: &str) -> f64 {
    metric(&fleet.penstock, &format!("penstock_shadow_expected_tokens_total{{side=\"{side}\"}}"))
}

/// Runs `conversations` conversations of `turns` turns, one request at a time, and waits until the
/// shadow has looked at all of them.
fn converse(fleet: &Fleet, conversations: usize, turns: usize) {
    let before = metric(&fleet.penstock, DECISIONS);
    for turn in 0..turns {
        for number in 0..conversations {
            let response = fleet.penstock.post(CHAT, &conversation(number, turn));
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
    let all = u32::try_from(conversations * turns).unwrap();
    eventually("the shadow has seen all of it", SOON, || {
        metric(&fleet.penstock, DECISIONS) >= before + f64::from(all)
    });
}

#[test]
fn shadow_reports_expected_prefix_hits() {
    let fleet = fleet("round_robin", &format!("shadow: {{ {AFFINE} }}"));
    // 13 conversations over 4 engines in turn: the next turn of each is the next engine's.
    converse(&fleet, 13, 4);
    let engines: Vec<_> = fleet.engines.iter().collect();
    assert_eq!(shares(&engines), [13, 13, 13, 13], "they go on taking turns");
    assert_eq!((decided(&fleet, "none"), decided(&fleet, "dropped")), (0.0, 0.0));
    assert_eq!(decided(&fleet, "same") + decided(&fleet, "other"), 52.0);
    assert!(decided(&fleet, "other") > 20.0, "{}", decided(&fleet, "other"));
    let prompts = metric(&fleet.penstock, "penstock_shadow_prompt_tokens_total");
    let (live, shadow) = (expected(&fleet, "live"), expected(&fleet, "shadow"));
    assert_eq!(live, 0.0, "no engine is sent a conversation twice");
    assert!(shadow > 0.5 * prompts, "three turns of four are known: {shadow} of {prompts}");
    let report = fleet.penstock.admin("/shadow").json();
    assert_eq!(
        report["live"],
        json!({"strategy": "round_robin", "expected_tokens": 0, "hit_rate": 0.0})
    );
    assert_eq!(report["shadow"]["strategy"], "weighted");
    assert_eq!(report["shadow"]["hit_rate"].as_f64(), Some(shadow / prompts));
    assert!(report["agreement"].as_f64().unwrap() < 0.6, "{report}");
    assert!(report["limit"].as_str().unwrap().contains("does not feel its own choices"));
    assert!(metric(&fleet.penstock, "penstock_shadow_index_bytes") > 0.0);
    assert!(metric(&fleet.penstock, "penstock_shadow_lag_seconds_total") > 0.0);
    let admin = format!("http://{}", fleet.penstock.admin);
    let frame = run(["top", "--once", "--interval", "100ms", "--admin", &admin]).stdout;
    let line = frame.lines().find(|line| line.starts_with("shadow agrees")).unwrap_or(&frame);
    assert!(line.contains("cached: live 0.0 %   shadow "), "{line}");
    assert_eq!(
        metric(&fleet.penstock, "penstock_prefix_index_bytes"),
        0.0,
        "live has no use for one"
    );
}

#[test]
fn shadow_of_the_same_strategy_agrees() {
    let own = AFFINE.strip_prefix("strategy: weighted, ").unwrap();
    // A scrape may arrive between the two decisions and change only one of them.
    let setup = Setup {
        strategy: "weighted",
        routing: &format!("{own}, shadow: {{ {AFFINE} }}"),
        sections: "telemetry: { enabled: false }",
        ..Setup::default()
    };
    let fleet = Fleet::start(4, setup);
    // Each request is compared and over before the next one is sent, so that both decisions see the
    // same load: the request itself, which is in flight only for the second, is left out of it.
    for turn in 0..4 {
        for number in 0..15 {
            let response = fleet.penstock.post(CHAT, &conversation(number, turn));
            assert_eq!(response.status, 200, "{}", response.text());
            let all = f64::from(u32::try_from(turn * 15 + number + 1).unwrap());
            eventually("it is compared", SOON, || metric(&fleet.penstock, DECISIONS) == all);
            fleet.wait_idle();
        }
    }
    assert_eq!((decided(&fleet, "same"), decided(&fleet, "other")), (60.0, 0.0));
    let (live, shadow) = (expected(&fleet, "live"), expected(&fleet, "shadow"));
    assert!(live == shadow && live > 0.0, "{live} and {shadow}");
    let busy: Vec<_> = fleet.engines.iter().filter(|one| one.counters().requests > 0).collect();
    assert!(busy.len() >= 3, "strangers spread");
}

#[test]
fn shadow_reads_its_session_header() {
    let scorers = "[{ name: session-affinity, weight: 1, header: x-conversation }]";
    let fleet =
        fleet("round_robin", &format!("shadow: {{ strategy: weighted, scorers: {scorers} }}"));
    let body = client::chat("m", "hello").to_string();
    for _ in 0..8 {
        let mut client = Client::connect(fleet.penstock.data);
        client.send("POST", CHAT, &[("x-conversation", "one")], body.as_bytes());
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    eventually("all are compared", SOON, || metric(&fleet.penstock, DECISIONS) == 8.0);
    // The session's backend is picked twice.
    assert_eq!((decided(&fleet, "same"), decided(&fleet, "other")), (2.0, 6.0));
}

#[test]
fn reload_adds_keeps_and_removes_a_shadow() {
    let fleet = fleet("round_robin", "expose_decision: true");
    let plain = std::fs::read_to_string(&fleet.penstock.config).unwrap();
    let reload = |text: &str| {
        std::fs::write(&fleet.penstock.config, text).unwrap();
        let response = fleet.penstock.reload();
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    };
    let with = |shadow: &str| {
        let text =
            plain.replace("expose_decision: true", &format!("expose_decision: true, {shadow}"));
        assert_ne!(text, plain);
        text
    };
    let seen = || metric(&fleet.penstock, DECISIONS);
    let is_off =
        |response: Response| response.status == 404 && response.error_code() == "no_shadow";
    let shows_none = || !fleet.penstock.admin("/metrics").text().contains("penstock_shadow_");
    assert!(is_off(fleet.penstock.admin("/shadow")));
    assert_eq!(fleet.chat().status, 200);
    assert!(shows_none());
    let on = with(&format!("shadow: {{ {AFFINE} }}"));
    let report = reload(&on);
    assert_eq!(report["changed"][0]["setting"], "routing.shadow", "{report}");
    assert_eq!(seen(), 0.0);
    converse(&fleet, 3, 2);
    let known = expected(&fleet, "shadow");
    assert!(known > 0.0);
    reload(&on.replace("slow_start: 0s", "slow_start: 1s"));
    assert_eq!((seen(), expected(&fleet, "shadow")), (6.0, known), "the shadow keeps its state");
    converse(&fleet, 3, 1);
    assert!(expected(&fleet, "shadow") > known, "the index is kept");
    reload(&with("shadow: { strategy: weighted, preset: least-loaded }"));
    assert_eq!((seen(), expected(&fleet, "shadow")), (0.0, 0.0), "another shadow starts empty");
    converse(&fleet, 2, 1);
    reload(&plain);
    assert!(is_off(fleet.penstock.admin("/shadow")));
    assert_eq!(fleet.chat().status, 200);
    assert!(shows_none());
}
