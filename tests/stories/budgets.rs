//! Teams and keys spend money within budgets. What a request may cost is reserved when it is
//! admitted and replaced by what it did cost; a budget without room refuses, keeps requests on what
//! costs nothing, or gives them a cheaper model. What was spent survives reloads and crashes.

use std::time::Duration;

use penstock_mock::{Cut, Fault, Gate, Pace};
use serde_json::{Value, json};

use crate::support::client::{Client, Response, chat, request, streaming_chat};
use crate::support::command::run;
use crate::support::fleet::{CHAT, FAULTS_FORGOTTEN, Fleet, Leave, SOON, Setup, read_until, yaml};
use crate::support::penstock::{Penstock, scratch};
use crate::support::{block_on, eventually};

/// A token of `m` costs 0.001.
const PRICES: &str = "models: { m: { price: { input: 1000, output: 1000 } }, m2: { price: { input: 1, output: 1 } } }\n";
const JSON: (&str, &str) = ("content-type", "application/json");

/// The sections of a configuration with budgets.
fn sections(budgets: &str, more: &str) -> String {
    let path = scratch("ledger.db");
    format!(
        "ledger: {{ path: {}, flush_interval: 50ms }}\n{PRICES}{more}\nbudgets: [{budgets}]",
        path.display()
    )
}

fn start(models: &[&str], budgets: &str, more: &str) -> Fleet {
    let sections = sections(budgets, more);
    let health = FAULTS_FORGOTTEN;
    Fleet::of(models, Setup { sections: &sections, health, ..Setup::default() })
}

fn keys() -> &'static str {
    "auth: { keys: [{ name: ann, key: sk-key-of-ann, team: red, sees_budget: true },\
     { name: bob, key: sk-key-of-bob, team: red }, { name: cat, key: sk-key-of-cat, team: blue }] }"
}

fn send(penstock: &Penstock, who: &str, path: &str, body: &Value) -> Response {
    let key = format!("Bearer sk-key-of-{who}");
    let headers = [("authorization", key.as_str()), JSON];
    request(penstock.data, "POST", path, &headers, body.to_string().as_bytes())
}

/// The row of a budget.
fn state(penstock: &Penstock, name: &str, subject: &str) -> Value {
    let page = penstock.admin("/budgets").json();
    let rows = page["budgets"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name && row["subject"] == subject);
    row.unwrap_or_else(|| panic!("no {name} of '{subject}': {page}")).clone()
}

fn spent(penstock: &Penstock, name: &str) -> f64 {
    state(penstock, name, "")["spent"].as_f64().unwrap()
}

fn assert_money(value: f64, expected: f64, what: &str) {
    assert!((value - expected).abs() < 1e-7, "{what}: {value}, not {expected}");
}

/// The cost of a response of `m` by its usage.
fn cost(response: &Response) -> f64 {
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["usage"]["total_tokens"].as_f64().unwrap() / 1000.0
}

fn short(model: &str) -> Value {
    let mut body = chat(model, "hello");
    body["max_tokens"] = json!(8);
    body
}

#[test]
fn spent_budget_refuses_in_every_dialect() {
    let fleet =
        start(&["m"], "{ name: all, amount: 0.1, every: day, time_zone: Europe/Berlin }", "");
    let penstock = &fleet.penstock;
    let mut sum = 0.0;
    let refused = loop {
        let response = penstock.post(CHAT, &short("m"));
        if response.status != 200 {
            break response;
        }
        sum += cost(&response);
        assert!(sum <= 0.1, "{sum}");
    };
    assert!(sum > 0.05, "{sum}");
    let before = fleet.requests();
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "budget_exceeded"));
    let text = refused.text();
    assert!(text.contains("budget 'all' has") && text.contains("of 0.1 left"), "{text}");
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "m", "max_tokens": 8, "messages": messages});
    for path in [CHAT, "/v1/messages", "/api/chat", "/v1/responses"] {
        let response = penstock.post(
            path,
            &match path {
                "/v1/responses" => json!({"model": "m", "max_output_tokens": 8, "input": "hello"}),
                "/api/chat" => {
                    json!({"model": "m", "messages": messages, "options": {"num_predict": 8}})
                }
                _ => body.clone(),
            },
        );
        assert_eq!(response.status, 429, "{path}: {}", response.text());
        let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=86_400).contains(&wait), "until midnight: {wait}");
        assert_eq!(response.header("x-should-retry"), Some("false"));
        let error = &response.json()["error"];
        match path {
            "/v1/messages" => assert_eq!(error["type"], "rate_limit_error", "{error}"),
            "/api/chat" => assert!(error.is_string(), "{error}"),
            _ => assert_eq!(error["code"], "budget_exceeded"),
        }
    }
    assert_eq!(fleet.requests(), before, "a refused request reached an engine");
    let row = state(penstock, "all", "");
    assert_money(row["spent"].as_f64().unwrap(), sum, "spent");
    assert_money(row["left"].as_f64().unwrap(), 0.1 - sum, "left");
    assert_eq!((&row["refused"], &row["reserved"]), (&json!(5), &json!(0.0)));
    assert_eq!(fleet.metric("penstock_budget_refused_total{budget=\"all\""), 5.0);
    assert_money(fleet.metric("penstock_budget_spent{budget=\"all\""), sum, "metric");
    assert_money(fleet.metric("penstock_budget_limit{budget=\"all\""), 0.1, "metric");
    let mut large = short("m");
    large["max_tokens"] = json!(1000);
    let response = penstock.post(CHAT, &large);
    assert_eq!((response.status, response.header("retry-after")), (429, None), "it never fits");
}

#[test]
fn teams_and_keys_spend_their_own() {
    let budgets = "{ name: team, amount: 1, per: team }, \
                   { name: key, amount: 0.5, per: key, keys: [ann] }";
    let fleet = start(&["m"], budgets, keys());
    let mut body = short("m");
    body["max_tokens"] = json!(400);
    let first = send(&fleet.penstock, "ann", CHAT, &body);
    let each = cost(&first);
    let shown = first.header("x-penstock-budget").unwrap();
    assert!(shown.starts_with("key;limit=0.5;spent=0.000000;reserved=0.4"), "{shown}");
    let other = send(&fleet.penstock, "bob", CHAT, &body);
    assert_eq!((other.status, other.header("x-penstock-budget")), (200, None), "may not see it");
    assert_money(
        state(&fleet.penstock, "team", "red")["spent"].as_f64().unwrap(),
        2.0 * each,
        "red",
    );
    assert_money(state(&fleet.penstock, "key", "ann")["spent"].as_f64().unwrap(), each, "ann");
    body["max_tokens"] = json!(700);
    for (who, by) in [("ann", Some("'key' of this API key")), ("bob", None), ("cat", None)] {
        let response = send(&fleet.penstock, who, CHAT, &body);
        match by {
            Some(by) => assert!(response.text().contains(by), "{who}: {}", response.text()),
            None => assert_eq!(response.status, 200, "{who}: {}", response.text()),
        }
    }
    body["max_tokens"] = json!(990);
    let response = send(&fleet.penstock, "bob", CHAT, &body);
    assert!(response.text().contains("'team' of team 'red'"), "{}", response.text());
    assert_money(state(&fleet.penstock, "team", "blue")["spent"].as_f64().unwrap(), each, "blue");
    let pages = [fleet.penstock.admin("/budgets?name=key"), fleet.penstock.admin("/budgets?n=1")];
    let counts = pages.map(|page| page.json()["budgets"].as_array().unwrap().len());
    assert_eq!(counts, [1, 1]);
    assert_eq!(fleet.penstock.admin("/budgets?n=1").json()["has_more"], true);
}

#[test]
fn zones_keep_requests_on_what_costs_nothing() {
    let free = "{ id: m, price: { input: 0, output: 0 } }";
    let budget = "{ name: all, amount: 0.015, every: 1h, zones: [local] }";
    let fleet = start(&["m", free], budget, "");
    let counts = || (fleet.a().counters().requests, fleet.b().counters().requests);
    assert_eq!(fleet.penstock.post(CHAT, &short("m")).status, 200);
    assert_eq!(counts(), (1, 0));
    for number in 1..4 {
        let response = fleet.penstock.post(CHAT, &short("m"));
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(counts(), (1, number), "only the free one");
    }
    fleet.b().script([Fault::status(503)]);
    assert_eq!(fleet.penstock.post(CHAT, &short("m")).status, 503, "no retry where it costs");
    assert_eq!(fleet.a().counters().requests, 1);
    let alone = start(&["m"], budget, "");
    assert_eq!(alone.penstock.post(CHAT, &short("m")).status, 200);
    let response = alone.penstock.post(CHAT, &short("m"));
    assert_eq!(response.error_code(), "budget_exceeded", "nothing is free: {}", response.text());
}

#[test]
fn cheaper_model_takes_what_the_budget_cannot() {
    let routing = "aliases: { dear: m, cheap: m2 }, default_model: dear";
    let sections = sections("{ name: all, amount: 0.015, model: cheap }", "");
    let models = ["m", "{ id: m2, upstream_id: m3 }"];
    let fleet = Fleet::of(&models, Setup { sections: &sections, routing, ..Setup::default() });
    let first = fleet.penstock.post(CHAT, &short("dear"));
    assert_eq!((first.status, first.header("x-penstock-budget-model")), (200, None));
    let mut unnamed = short("m");
    unnamed.as_object_mut().unwrap().remove("model");
    let messages = json!([{"role": "user", "content": "hello"}]);
    let bodies = [
        (CHAT, short("m")),
        (CHAT, short("dear")),
        (CHAT, unnamed),
        (CHAT, streaming_chat("m", "hello")),
        ("/v1/messages", json!({"model": "m", "max_tokens": 8, "messages": messages})),
        ("/api/chat", json!({"model": "m", "messages": messages, "stream": false})),
    ];
    for (number, (path, body)) in bodies.into_iter().enumerate() {
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
        assert_eq!(response.header("x-penstock-budget-model"), Some("cheap"), "{path}");
        assert_eq!(fleet.b().counters().requests, number + 1, "{path} {body}");
        let received = fleet.b().received();
        let sent = received.last().unwrap().body.clone().unwrap();
        let sent: Value = serde_json::from_slice(&sent).unwrap();
        assert_eq!(sent["model"], "m3", "its name there");
    }
    assert_eq!(fleet.a().counters().requests, 1);
    assert!(spent(&fleet.penstock, "all") < 0.03, "at the price of the cheaper model");
    let mut large = short("m");
    large["max_tokens"] = json!(100_000);
    let response = fleet.penstock.post(CHAT, &large);
    assert_eq!(response.error_code(), "budget_exceeded", "it does not suffice for that one, too");
}

#[test]
fn requests_settle_what_they_cost() {
    let fleet = start(&["m"], "{ name: all, amount: 1000, soft: 1% }", "");
    let penstock = &fleet.penstock;
    let mut sum = cost(&penstock.post(CHAT, &short("m")));
    assert_money(spent(penstock, "all"), sum, "whole");
    sum += cost(&penstock.post(CHAT, &short("m")));
    penstock.post(CHAT, &streaming_chat("m", "hello"));
    sum += cost(&penstock.post(CHAT, &short("m"))) * 2.0;
    assert_money(spent(penstock, "all"), sum, "a stream without usage for its client");
    let embeddings = penstock.post("/v1/embeddings", &json!({"model": "m", "input": "hello"}));
    sum += cost(&embeddings);
    assert_money(spent(penstock, "all"), sum, "no output");
    for fault in [Fault::status(500), Fault::status(400), Fault::status(429)] {
        fleet.a().script([fault]);
        assert_ne!(penstock.post(CHAT, &short("m")).status, 200);
        assert_money(spent(penstock, "all"), sum, "failed");
    }
    let body = r#"{"error": {"message": "boom", "type": "server_error"}}"#.to_owned();
    fleet.a().script([Fault::Status { status: 200, retry_after: None, body, headers: vec![] }]);
    penstock.post(CHAT, &short("m"));
    assert_money(spent(penstock, "all"), sum, "an error in place of a result");
    assert_eq!(penstock.post(CHAT, &short("unknown")).status, 404);
    assert_money(spent(penstock, "all"), sum, "no model");
    assert_eq!(state(penstock, "all", "")["reserved"], 0.0);
    let counted = penstock.post(
        "/v1/messages/count_tokens",
        &json!({"model": "m",
        "messages": [{"role": "user", "content": "hello"}]}),
    );
    assert_money(spent(penstock, "all"), sum, &format!("only counted: {}", counted.status));
    assert!(!penstock.log().contains("soft limit"));
    let mut large = chat("m", &"a word and another ".repeat(3000));
    large["max_tokens"] = json!(8);
    for _ in 0..3 {
        assert_eq!(penstock.post(CHAT, &large).status, 200);
    }
    eventually("the warning", SOON, || penstock.log().contains("soft limit"));
    assert_eq!(penstock.log().matches("soft limit").count(), 1, "once: {}", penstock.log());
    assert!(state(penstock, "all", "")["soft"].as_f64().unwrap() > 9.9);
}

#[test]
fn streams_that_end_early_settle_what_was_seen() {
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(20), tokens: 400 };
    let sections = sections("{ name: all, amount: 1000 }", "");
    let setup = Setup { sections: &sections, pace, health: FAULTS_FORGOTTEN, ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let mut body = streaming_chat("m", "one two three");
    body["max_tokens"] = json!(300);
    let mut last = 0.0;
    for (path, text) in [(CHAT, "\"content\":"), ("/v1/messages", "text_delta")] {
        for how in Leave::BOTH {
            let mut client = crate::support::fleet::begin(fleet.penstock.data, path, &body);
            let mut seen = String::new();
            while seen.matches(text).count() < 10 {
                seen += &read_until(&mut client, "data: ");
            }
            let row = state(&fleet.penstock, "all", "");
            assert!(row["reserved"].as_f64().unwrap() >= 0.3, "{row}");
            let _left = how.now(client);
            eventually("it is settled", SOON, || {
                state(&fleet.penstock, "all", "")["reserved"] == 0.0
            });
            let now = spent(&fleet.penstock, "all");
            let own = now - last;
            assert!((0.01..0.2).contains(&own), "{path} {how:?}: ten tokens and the prompt: {own}");
            last = now;
        }
        fleet.a().script([Fault::CutStream { after_events: 20, how: Cut::Fin }]);
        fleet.penstock.post(path, &body);
        fleet.wait_metric("penstock_budget_reserved", 0.0);
        fleet.wait_idle();
        let now = spent(&fleet.penstock, "all");
        let own = now - last;
        assert!((0.015..0.05).contains(&own), "{path}: the engine broke off: {own}");
        last = now;
    }
    fleet.wait_idle();
}

#[test]
fn client_that_leaves_before_the_response_pays_its_prompt() {
    let fleet = start(&["m"], "{ name: all, amount: 1000 }", "");
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let client = crate::support::fleet::begin(fleet.penstock.data, CHAT, &short("m"));
    block_on(gate.reached_by(1));
    drop(client);
    eventually("it is settled", SOON, || {
        state(&fleet.penstock, "all", "")["reserved"] == 0.0 && spent(&fleet.penstock, "all") > 0.0
    });
    gate.open();
    assert!(spent(&fleet.penstock, "all") < 0.05, "no output was seen");
    fleet.wait_idle();
}

#[test]
fn fallbacks_and_retries_reserve_the_dearest() {
    let routing = "fallbacks: { m2: [m] }";
    let sections = sections("{ name: all, amount: 0.5 }", "");
    let setup =
        Setup { sections: &sections, routing, health: FAULTS_FORGOTTEN, ..Setup::default() };
    let fleet = Fleet::of(&["m2", "m2", "m"], setup);
    let mut body = short("m2");
    body["max_tokens"] = json!(600);
    let refused = fleet.penstock.post(CHAT, &body);
    assert_eq!(refused.error_code(), "budget_exceeded", "the fallback could cost 0.6");
    fleet.a().script([Fault::CloseUnread]);
    let response = fleet.penstock.post(CHAT, &short("m2"));
    let retried = cost(&response) / 1000.0;
    assert_money(spent(&fleet.penstock, "all"), retried, "one attempt of two");
    fleet.a().script([Fault::status(503)]);
    fleet.b().script([Fault::status(503)]);
    let response = fleet.penstock.post(CHAT, &short("m2"));
    let fallback = cost(&response);
    assert_money(spent(&fleet.penstock, "all"), retried + fallback, "at the fallback's price");
}

#[test]
fn ensemble_pays_for_each_of_its_calls() {
    let fleet =
        start(&["m", "m", "m"], "{ name: all, amount: 100 }", "ensembles: { enabled: true }");
    let response = fleet.penstock.post(CHAT, &chat("moe-m", "hello"));
    let last = cost(&response);
    let parts = response.header("x-penstock-ensemble").unwrap();
    let part = |name: &str| {
        let of = parts.split(';').find_map(|part| part.strip_prefix(&format!("{name}=")));
        of.unwrap().parse::<f64>().unwrap()
    };
    let calls = (part("input_tokens") + part("output_tokens")) / 1000.0;
    assert!(calls > last);
    assert_money(spent(&fleet.penstock, "all"), last + calls, parts);
    assert_eq!(state(&fleet.penstock, "all", "")["reserved"], 0.0);
}

#[test]
fn parallel_requests_never_exceed_the_amount() {
    let fleet = start(&["m", "m"], "{ name: all, amount: 0.5 }", "");
    let gate = Gate::default();
    for engine in &fleet.engines {
        engine.script((0..64).map(|_| Fault::Gate(gate.clone())));
    }
    let begin = || fleet.begin(&short("m"));
    let clients: Vec<Client> = (0..64).map(|_| begin()).collect();
    let row = || state(&fleet.penstock, "all", "");
    eventually("all are admitted or refused", SOON, || {
        let reached = fleet.requests();
        reached + usize::try_from(row()["refused"].as_u64().unwrap()).unwrap() == 64
    });
    let reserved = row()["reserved"].as_f64().unwrap();
    assert!(reserved <= 0.5 && reserved > 0.4, "{reserved}");
    assert_eq!(row()["spent"], 0.0);
    let refused = fleet.penstock.post(CHAT, &short("m"));
    assert_eq!(refused.header("retry-after"), Some("1"), "those in flight may cost less");
    gate.open();
    let statuses: Vec<u16> =
        clients.into_iter().map(|mut client| client.read_response().unwrap().status).collect();
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200) && statuses.contains(&429));
    assert!(spent(&fleet.penstock, "all") <= 0.5);
    assert_eq!(row()["reserved"], 0.0);
}

#[test]
fn spending_survives_crashes_restarts_and_reloads() {
    let sections = sections("{ name: all, amount: 1 }", "");
    let setup = Setup { sections: &sections, ..Setup::default() };
    let mut fleet = Fleet::start(1, setup);
    let each = cost(&fleet.penstock.post(CHAT, &short("m")));
    let whole = std::fs::read_to_string(&fleet.penstock.config).unwrap();
    for amount in ["0.001", "2"] {
        let next = whole.replace("amount: 1 }", &format!("amount: {amount} }}"));
        std::fs::write(&fleet.penstock.config, next).unwrap();
        assert_eq!(fleet.penstock.reload().status, 200);
        assert_money(spent(&fleet.penstock, "all"), each, "kept");
        let is_open = fleet.penstock.post(CHAT, &short("m")).status == 200;
        assert_eq!(is_open, amount == "2");
    }
    let file = fleet.penstock.config.to_str().unwrap().to_owned();
    let shown = || {
        let ran = run(["usage", "--budgets", "--config", &file, "--format", "json"]);
        let rows: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
        rows[0]["spent"].as_f64().unwrap_or_default()
    };
    eventually("it is written", SOON, || (shown() - 2.0 * each).abs() < 1e-7);
    fleet.penstock.signal("KILL");
    fleet.penstock.wait_end(SOON);
    let table = run(["usage", "--budgets", "--config", &file]);
    assert!(table.stdout.starts_with("BUDGET  PER"), "{} {}", table.stdout, table.stderr);
    assert!(table.stdout.contains("(all)") && table.stdout.contains("2.0000"), "{}", table.stdout);
    let csv = run(["usage", "--budgets", "--config", &file, "--format", "csv"]).stdout;
    assert!(csv.starts_with("budget,per,") && csv.contains("\r\nall,everything,,2,0.0"), "{csv}");
    let next = yaml(&fleet.engines, &["m"], setup);
    let again = Penstock::start(&next);
    assert_money(spent(&again, "all"), 2.0 * each, "read at start");
    // Two processes with one ledger learn what the other spends.
    let other = Penstock::start(&next);
    assert_eq!(other.post(CHAT, &short("m")).status, 200);
    let spent_there = spent(&other, "all");
    eventually("the other knows", SOON, || {
        assert_eq!(again.admin("/budgets").status, 200);
        (spent(&again, "all") - spent_there).abs() < 1e-7
    });
}

#[test]
fn explanation_names_the_budgets_of_the_key() {
    let budgets = "{ name: team, amount: 0.5, per: team, model: m2 }, { name: all, amount: 10 }";
    let fleet = start(&["m", "m2"], budgets, keys());
    let mut body = short("m");
    body["max_tokens"] = json!(400);
    assert_eq!(send(&fleet.penstock, "ann", CHAT, &body).status, 200);
    body["max_tokens"] = json!(499);
    let headers = json!({"authorization": "Bearer sk-key-of-ann"});
    let sample = json!({"path": CHAT, "body": body.to_string(), "headers": headers}).to_string();
    let page = request(fleet.penstock.admin, "POST", "/explain", &[JSON], sample.as_bytes()).json();
    let [all, team] = [&page["budgets"][0], &page["budgets"][1]];
    assert_eq!((&all["name"], &all["fits"]), (&json!("all"), &json!(true)), "{page}");
    assert_eq!((&team["subject"], &team["fits"]), (&json!("red"), &json!(false)), "{page}");
    assert_eq!(team["at_limit"], "it gets the model 'm2'");
    assert!(team["estimate"].as_f64().unwrap() > team["left"].as_f64().unwrap(), "{page}");
    let file = crate::support::command::file("requests.jsonl", sample);
    let config = fleet.penstock.config.to_str().unwrap();
    let offline =
        run(["explain", "--requests", file.to_str().unwrap(), "--config", config]).json_lines();
    let team = &offline[0]["budgets"][1];
    assert_eq!((&team["left"], &team["limit"]), (&Value::Null, &json!(0.5)), "{offline:?}");
    let one = crate::support::command::file("request.json", body.to_string());
    let text = run([
        "explain",
        one.to_str().unwrap(),
        "--config",
        config,
        "-H",
        "authorization: Bearer sk-key-of-ann",
    ]);
    let line = "budget      team of red: the request may cost 0.50";
    assert!(text.stdout.contains(line), "{} {}", text.stdout, text.stderr);
    assert!(text.stdout.contains("what was spent is not known here"), "{}", text.stdout);
}

/// Adds what was spent of the budget `all` in a part of time to a ledger that is not in use.
fn add_spent(ledger: &std::path::Path, part: u64, amount: f64) {
    let file = rusqlite::Connection::open(ledger).unwrap();
    let insert = "INSERT INTO budget_spending
        VALUES ('all', '', CAST(?1 AS INTEGER), CAST(?2 AS INTEGER))";
    file.execute(insert, (part.to_string(), (amount * 1e9).to_string())).unwrap();
}

/// A configuration with one budget, and its ledger, which is there.
fn with_ledger(budget: &str) -> (Fleet, std::path::PathBuf, String) {
    let ledger = scratch("ledger.db");
    let sections = format!(
        "ledger: {{ path: {}, flush_interval: 50ms }}\n{PRICES}\nbudgets: [{budget}]",
        ledger.display()
    );
    let setup = Setup { sections: &sections, health: FAULTS_FORGOTTEN, ..Setup::default() };
    let fleet = Fleet::of(&["m"], setup);
    let yaml = yaml(&fleet.engines, &["m"], setup);
    (fleet, ledger, yaml)
}

#[test]
fn period_ends_while_penstock_runs() {
    let (fleet, ledger, yaml) = with_ledger("{ name: all, amount: 0.1, every: 1m }");
    let Fleet { penstock, engines } = fleet;
    drop(penstock);
    let part = penstock_clock::unix_seconds() - 55;
    add_spent(&ledger, part, 0.1);
    let mut penstock = Penstock::start(&yaml);
    assert_money(spent(&penstock, "all"), 0.1, "known after the start");
    let refused = penstock.post(CHAT, &short("m"));
    assert_eq!((refused.status, &*refused.error_code()), (429, "budget_exceeded"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=5).contains(&wait), "{wait}");
    assert_eq!(engines[0].counters().requests, 0);
    let mut admitted = refused;
    eventually("the period has ended", Duration::from_secs(wait) + SOON, || {
        admitted = penstock.post(CHAT, &short("m"));
        admitted.status == 200
    });
    assert_money(spent(&penstock, "all"), cost(&admitted), "the rest is forgotten");
    penstock.signal("TERM");
    assert_eq!(penstock.wait_end(SOON).code(), Some(0));
    let again = Penstock::start(&yaml);
    assert_money(spent(&again, "all"), cost(&admitted), "after a restart, too");
}

#[test]
fn trimming_the_ledger_gives_no_money_back() {
    let (fleet, ledger, yaml) = with_ledger("{ name: all, amount: 0.1, every: 30d }");
    let Fleet { penstock, engines: _engines } = fleet;
    drop(penstock);
    let old = penstock_clock::unix_seconds() - 10 * 86_400;
    add_spent(&ledger, old / 43_200 * 43_200, 0.1);
    let file = rusqlite::Connection::open(&ledger).unwrap();
    let insert =
        "INSERT INTO time_series VALUES ('http://h', 'm', 60, 30, 90, CAST(?1 AS INTEGER))";
    file.execute(insert, [(old / 60 * 60).to_string()]).unwrap();
    drop(file);
    let penstock = Penstock::start_listening(&[], "compat: nomyo", &yaml);
    let trim = json!({ "days": 1, "trim_old": true });
    let trimmed = penstock.post("/api/aggregate_time_series_days", &trim);
    assert_eq!((trimmed.status, &trimmed.json()["trimmed_rows"]), (200, &json!(1)));
    let is_spent = |penstock: &Penstock| {
        assert_money(spent(penstock, "all"), 0.1, "spent");
        assert_eq!(penstock.post(CHAT, &short("m")).error_code(), "budget_exceeded");
    };
    is_spent(&penstock);
    drop(penstock);
    is_spent(&Penstock::start(&yaml));
}

#[test]
fn rotated_keys_and_shortened_conversations_cannot_spend_more() {
    let auth = "auth: { keys: [{ name: ann, key: sk-old-key-of-ann }, { name: ann, key: sk-key-of-ann }] }";
    let fleet =
        start(&["{ id: m, context_length: 400 }"], "{ name: key, amount: 1.2, per: key }", auth);
    let old = |body: &Value| {
        let headers = [("authorization", "Bearer sk-old-key-of-ann"), JSON];
        request(fleet.penstock.data, "POST", CHAT, &headers, body.to_string().as_bytes())
    };
    let first = old(&short("m"));
    let second = send(&fleet.penstock, "ann", CHAT, &short("m"));
    let sum = cost(&first) + cost(&second);
    assert_money(
        state(&fleet.penstock, "key", "ann")["spent"].as_f64().unwrap(),
        sum,
        "one account",
    );
    // A limit above the context reserves the context: an engine cannot generate more.
    let mut large = short("m");
    large["max_tokens"] = json!(100_000);
    let response = send(&fleet.penstock, "ann", CHAT, &large);
    assert_eq!(response.status, 200, "{}", response.text());
    let page = fleet.penstock.admin("/metrics").text();
    assert!(page.contains("penstock_budget_spent{budget=\"key\",subject=\"ann\"}"), "{page}");
    assert!(!page.contains("sk-"), "{page}");
}
