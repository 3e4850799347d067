//! Clients and engines that would get more out of a budget than it has: several responses for one
//! limit, limits that engines do not read, engines that count nothing or too much, requests that
//! are not read. And configurations whose budgets would count nothing.

use std::io::{Read, Write};

use penstock_mock::{Fault, Gate};
use serde_json::{Value, json};

use crate::support::client::{Client, chat, request, streaming_chat};
use crate::support::command::{file, run};
use crate::support::eventually;
use crate::support::fleet::{CHAT, FAULTS_FORGOTTEN, Fleet, SOON, Setup};
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::{Penstock, scratch};
use crate::support::raw_engine::{RawEngine, Respond, chunked, whole};

/// A token costs 0.001.
const PRICE: &str = "price: { input: 1000, output: 1000 }";

fn sections(amount: &str) -> String {
    let path = scratch("ledger.db");
    format!(
        "ledger: {{ path: {} }}\nmodels: {{ m: {{ {PRICE} }} }}\n\
         budgets: [{{ name: all, amount: {amount} }}]\n",
        path.display()
    )
}

fn start(amount: &str, more: &str) -> Fleet {
    let sections = sections(amount) + more;
    let health = FAULTS_FORGOTTEN;
    Fleet::start(1, Setup { sections: &sections, health, ..Setup::default() })
}

fn state(penstock: &Penstock, key: &str) -> f64 {
    penstock.admin("/budgets").json()["budgets"][0][key].as_f64().unwrap()
}

/// The money that a request reserves.
fn reserved_by(fleet: &Fleet, path: &str, body: &Value) -> f64 {
    let gate = Gate::default();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut client = crate::support::fleet::begin(fleet.penstock.data, path, body);
    let mut reserved = 0.0;
    eventually(&format!("{body} is in flight"), SOON, || {
        reserved = state(&fleet.penstock, "reserved");
        reserved > 0.0
    });
    gate.open();
    let response = client.read_response().unwrap();
    assert_eq!(response.status, 200, "{body}: {}", response.text());
    eventually("it is settled", SOON, || state(&fleet.penstock, "reserved") == 0.0);
    reserved
}

#[test]
fn reservation_covers_all_that_a_request_may_generate() {
    let fleet = start("100000000", "");
    let with = |more: Value| {
        let mut body = chat("m", "hello");
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let prompt = reserved_by(&fleet, CHAT, &with(json!({"max_tokens": 1}))) - 0.001;
    assert!((0.0..0.05).contains(&prompt), "{prompt}");
    for (more, tokens) in [
        (json!({"max_tokens": 100}), 100.0),
        (json!({"max_completion_tokens": 100, "max_tokens": 5}), 100.0),
        (json!({"max_tokens": 100, "n": 1}), 100.0),
        (json!({"max_tokens": 4_000_000_000_u32}), 4e9),
        (json!({"n_predict": 70}), 70.0),
        (json!({"max_tokens": "70"}), 70.0),
        (json!({"max_tokens": 69.5}), 70.0),
        // No limit that every engine reads: what the model's responses usually have.
        (json!({}), 1024.0),
        (json!({"max_tokens": 0}), 1024.0),
        (json!({"max_tokens": -1}), 1024.0),
        (json!({"max_tokens": null}), 1024.0),
    ] {
        let own = reserved_by(&fleet, CHAT, &with(more.clone())) - prompt;
        assert!((own - tokens / 1000.0).abs() < 1e-5, "{more}: {own}");
    }
    let refused = start("1", "");
    let completions = "/v1/completions";
    let list = |prompt: Value| json!({"model": "m", "prompt": prompt, "max_tokens": 150});
    for (path, body) in [
        (CHAT, with(json!({"max_tokens": 150, "n": 8}))),
        (CHAT, with(json!({"n": 8}))),
        // Lenient engines read these as numbers.
        (CHAT, with(json!({"max_tokens": 150, "n": "8"}))),
        (CHAT, with(json!({"max_tokens": 150, "n": 8.0}))),
        (CHAT, with(json!({"max_tokens": 150, "n": "\n8"}))),
        (CHAT, with(json!({"max_tokens": 1, "max_completion_tokens": "2000"}))),
        (CHAT, with(json!({"max_tokens": 2e3}))),
        (completions, json!({"model": "m", "prompt": "hi", "max_tokens": 150, "best_of": 8})),
        (completions, list(json!(["a", "b", "c", "d", "e", "f", "g", "h"]))),
        (completions, list(json!([[1], [2], [3], [4], [5], [6], [7], [8]]))),
        (CHAT, chat("m", &"many words and ".repeat(1000))),
        ("/api/generate", json!({"model": "m", "prompt": "hi", "options": {"num_predict": -1}})),
        ("/api/generate", json!({"model": "m", "prompt": "hi", "options": {"num_predict": 2000}})),
        ("/v1/responses", json!({"model": "m", "input": "hi", "max_output_tokens": 2000})),
    ] {
        let response = refused.penstock.post(path, &body);
        assert_eq!(response.status, 429, "{body}: {}", response.text());
    }
    assert_eq!(refused.requests(), 0);
    assert_eq!(refused.penstock.post(completions, &list(json!([1, 2, 3]))).status, 200, "one");
}

fn penstock_of(engine: &RawEngine, price: &str) -> Penstock {
    let path = scratch("ledger.db");
    let item = engine.item(&format!("engine: other, models: [{{ id: m, price: {{ {price} }} }}]"));
    Penstock::start(&format!(
        "ledger: {{ path: {} }}\nmodels: {{ m: {{ {PRICE} }} }}\n\
         budgets: [{{ name: all, amount: 100000 }}]\nbackends:\n{item}",
        path.display()
    ))
}

const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"}}]}\n\n";

fn stream(usage: &str) -> Vec<u8> {
    let end = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n");
    chunked("text/event-stream", &(EVENT.repeat(20) + &end))
}

fn response(usage: &str) -> Vec<u8> {
    let body = format!(
        r#"{{"object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"word"}},"finish_reason":"stop"}}]{usage}}}"#
    );
    whole(200, "application/json", &body)
}

fn response_with_cached(tokens: u32) -> Vec<u8> {
    response(&format!(
        r#","usage":{{"prompt_tokens":40,"completion_tokens":10,"prompt_tokens_details":{{"cached_tokens":{tokens}}}}}"#
    ))
}

#[test]
fn counts_of_engines_are_taken_if_they_can_be() {
    let price = "input: 1000, cached_input: 100, output: 2000, per_request: 5";
    let cases: [(&str, Respond, bool, std::ops::RangeInclusive<f64>); 7] = [
        (
            "no output is counted",
            |_, _| stream(r#"{"prompt_tokens":4,"completion_tokens":0}"#),
            true,
            5.044..=5.044,
        ),
        ("nothing is counted", |_, _| stream("null"), true, 5.04..=5.06),
        (
            "more than the limit",
            |_, _| stream(r#"{"prompt_tokens":4,"completion_tokens":4000000000}"#),
            true,
            5.204..=5.204,
        ),
        ("cached", |_, _| response_with_cached(30), false, 5.033..=5.033),
        ("more cached than there are", |_, _| response_with_cached(4000), false, 5.024..=5.024),
        ("no usage: all that was reserved", |_, _| response(""), false, 5.2..=5.23),
        (
            "a count that is no number: the same",
            |_, _| response(r#","usage":{"prompt_tokens":4,"completion_tokens":"10"}"#),
            false,
            5.2..=5.23,
        ),
    ];
    for (what, respond, streams, expected) in cases {
        let engine = RawEngine::start("a", respond);
        let penstock = penstock_of(&engine, price);
        let mut body = if streams { streaming_chat("m", "hello") } else { chat("m", "hello") };
        body["max_tokens"] = json!(100);
        assert_eq!(penstock.post(CHAT, &body).status, 200, "{what}");
        let spent = state(&penstock, "spent");
        let (least, most) = (expected.start() - 1e-7, expected.end() + 1e-7);
        assert!((least..=most).contains(&spent), "{what}: {spent}, not {expected:?}");
        assert_eq!(state(&penstock, "reserved"), 0.0, "{what}");
    }
}

#[test]
fn requests_that_are_not_read_pass_until_the_budget_is_spent() {
    let engine = OpenEngine::start("one");
    let free = OpenEngine::start("two");
    let routing = "routing: { passthrough: { \"/x/*\": by-model, \"/v1/files*\": one, \"/ws\": one,\
                   \"/free/*\": two } }\n";
    let items =
        engine.item("engine: other, models: [m]") + &free.item("engine: other, models: [f]");
    let penstock = Penstock::start(&format!("{}{routing}backends:\n{items}", sections("1e-8")));
    let get = |path: &str| request(penstock.data, "GET", path, &[], b"").status;
    assert_eq!([get("/v1/files"), get("/free/x")], [200, 200]);
    assert_eq!(state(&penstock, "spent"), 0.0, "not counted");
    let by_model = penstock.post("/x/y", &json!({"model": "m"}));
    assert_eq!(by_model.status, 200, "{}", by_model.text());
    for _ in 0..12 {
        penstock.post("/x/y", &json!({"model": "m"}));
    }
    assert!(state(&penstock, "left") < 1e-9, "each spends the least amount");
    let refused = penstock.post("/x/y", &json!({"model": "m"}));
    assert_eq!(refused.error_code(), "budget_exceeded", "{}", refused.text());
    assert_eq!([get("/v1/files"), get("/free/x")], [429, 200], "what costs nothing passes");
    engine.take_requests();
    let mut client = Client::connect(penstock.data);
    let fields = "host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                  sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    client.stream.write_all(format!("GET /ws HTTP/1.1\r\n{fields}\r\n").as_bytes()).unwrap();
    let mut start = [0; 12];
    client.stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 429", "a tunnel");
    assert_eq!(engine.take_requests(), Vec::<String>::new());
}

#[test]
fn waiting_requests_hold_their_money_and_give_it_back() {
    let more = "queue: { size: 10, timeout: 3s }\n";
    let sections = sections("10") + more;
    let setup = Setup { sections: &sections, backend: "max_in_flight: 1", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let gate = Gate::default();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut body = chat("m", "hello");
    body["max_tokens"] = json!(1000);
    let mut first = fleet.begin(&body);
    eventually("it is in flight", SOON, || fleet.requests() == 1);
    let mut second = fleet.begin(&body);
    eventually("both reserve", SOON, || state(&fleet.penstock, "reserved") > 2.0);
    assert_eq!(second.read_response().unwrap().status, 504, "it waits in vain");
    eventually("one reserves", SOON, || state(&fleet.penstock, "reserved") < 1.1);
    assert_eq!(state(&fleet.penstock, "spent"), 0.0);
    gate.open();
    assert_eq!(first.read_response().unwrap().status, 200);
    eventually("none reserves", SOON, || state(&fleet.penstock, "reserved") == 0.0);
    assert!(state(&fleet.penstock, "spent") > 0.0);
}

#[test]
fn check_finds_budgets_that_would_count_nothing() {
    let check = |yaml: &str| {
        let path = file(
            "penstock.yaml",
            format!("backends: [{{ url: http://h:1, models: [m] }}]\n{yaml}"),
        );
        let ran = run(["check".as_ref(), "--config".as_ref(), path.as_os_str()]);
        (ran.code, ran.stderr)
    };
    let ledger = "ledger: { path: /tmp/l.db }\nmodels: { m: { price: { input: 1, output: 1 } } }\n";
    let two = "models: { m: { price: { input: 1, output: 1, currency: EUR } }, \
               n: { price: { input: 1, output: 1, currency: USD } } }";
    for (yaml, text) in [
        ("budgets: [{ name: a, amount: 1 }]".to_owned(), "requires 'ledger.path'"),
        (
            format!("{ledger}budgets: [{{ name: a, amount: 1 }}, {{ name: a, amount: 2 }}]"),
            "two budgets are called 'a'",
        ),
        (
            format!("{ledger}budgets: [{{ name: a, amount: 1, zones: [x], model: m }}]"),
            "set one of them",
        ),
        (format!("{ledger}budgets: [{{ name: a, amount: 1, every: year }}]"), "day, week, month"),
        (format!("{ledger}budgets: [{{ name: a, amount: 1, time_zone: Mars }}]"), "a time zone"),
        (format!("{ledger}budgets: [{{ name: a, amount: 1, soft: 175% }}]"), "a share"),
        (format!("{ledger}budgets: [{{ name: a, amount: -1 }}]"), "0 or more"),
        (
            format!(
                "{ledger}auth: {{ keys: [{{ name: k, key: sk-a-key-of-a-test, budget: b }}] }}"
            ),
            "budget",
        ),
        (two.to_owned(), "prices in EUR and in USD"),
    ] {
        let (code, stderr) = check(&yaml);
        assert!(code != Some(0) && stderr.contains(text), "{yaml}: {stderr}");
    }
    let budget = |more: &str| format!("{ledger}budgets: [{{ name: a, amount: 1, {more} }}]");
    for (yaml, text) in [
        (
            "ledger: { path: /tmp/l.db }\nbudgets: [{ name: a, amount: 1 }]".to_owned(),
            "no model has a price",
        ),
        (budget("per: team"), "is per team, and no client key has one"),
        (budget("per: key"), "is per key, and no client key has one"),
        (budget("model: unknown"), "the model 'unknown', which no backend serves"),
        (budget("zones: [local]"), "zones in which there is no backend"),
        (budget("") + "\nrouting: { passthrough: { /v1/files: by-model } }", "are not read"),
    ] {
        let (code, stderr) = check(&yaml);
        assert!(code == Some(0) && stderr.contains(text), "{yaml}: {stderr}");
    }
    let (code, stderr) = check(&budget("every: 720h, soft: 80%, model: m"));
    assert!(code == Some(0) && !stderr.contains("budget"), "{stderr}");
}
