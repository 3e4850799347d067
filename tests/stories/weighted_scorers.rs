//! Weighted strategy: prompts go where their prefix is cached, sessions are sticky, load
//! is spread, and every decision lists its scores.

use std::collections::BTreeSet;
use std::thread;

use penstock_mock::{Fault, Gate};
use serde_json::{Value, json};

use crate::support::client::{self, Client, Response};
use crate::support::command::{Ran, file, run, run_with};
use crate::support::fleet::{CHAT, Fleet, SOON, Setup};
use crate::support::{block_on, eventually};

pub fn weighted(scorers: &str) -> Fleet {
    let routing = format!("scorers: \"{scorers}\", expose_decision: true");
    Fleet::start(4, Setup { strategy: "weighted", routing: &routing, ..Setup::default() })
}

pub fn conversation(number: usize, turns: usize) -> Value {
    let system = format!("Conversation {number}. {}", "Be kind, be brief. ".repeat(40));
    let mut messages = vec![json!({"role": "system", "content": system})];
    for turn in 0..turns {
        messages
            .push(json!({"role": "user", "content": format!("{turn}: {}", "word ".repeat(30))}));
        messages.push(json!({"role": "assistant", "content": "yes. ".repeat(30)}));
    }
    messages.push(json!({"role": "user", "content": "go on"}));
    json!({"model": "m", "messages": messages, "max_tokens": 2})
}

pub fn backend_of(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    response.header("x-penstock-backend").unwrap().to_owned()
}

#[test]
fn conversation_stays_with_its_backend() {
    let fleet = weighted("prefix-affinity:3,load-balance:1");
    let mut homes = BTreeSet::new();
    for number in 0..12 {
        let home = backend_of(&fleet.penstock.post(CHAT, &conversation(number, 0)));
        for turns in 1..4 {
            let response = fleet.penstock.post(CHAT, &conversation(number, turns));
            assert_eq!(backend_of(&response), home, "conversation {number}, turn {turns}");
            let decision = response.header("x-penstock-decision").unwrap();
            // Without an index the backend would be the same: the beginning breaks the tie.
            assert!(!decision.contains(";blocks=0/"), "turn {turns}: {decision}");
        }
        homes.insert(home);
    }
    assert!(homes.len() >= 3, "strangers spread: {homes:?}");
}

#[test]
fn burst_of_equal_prompts_sees_the_first_decision() {
    // Load alone would spread the burst over all four: only the first decision keeps it together.
    let fleet = weighted("prefix-affinity:3,load-balance:1");
    let gate = Gate::new();
    for engine in &fleet.engines {
        engine.script((0..40).map(|_| Fault::Gate(gate.clone())));
    }
    let body = conversation(1, 2);
    let first = fleet.begin(&body);
    block_on(gate.reached_by(1));
    // The first has no response yet when the others arrive.
    let rest = (0..29).map(|_| fleet.begin(&body));
    let mut waiting: Vec<Client> = std::iter::once(first).chain(rest).collect();
    block_on(gate.reached_by(30));
    gate.open();
    let homes: BTreeSet<String> =
        waiting.iter_mut().map(|client| backend_of(&client.read_response().unwrap())).collect();
    assert_eq!(homes.len(), 1, "{homes:?}");
}

#[test]
fn load_scorer_alone_finds_the_least_loaded() {
    let fleet = weighted("load-balance:1");
    let gate = Gate::new();
    for engine in &fleet.engines {
        engine.script((0..40).map(|_| Fault::Gate(gate.clone())));
    }
    let body = conversation(1, 0);
    let waiting: Vec<Client> = (0..20)
        .map(|count| {
            let client = fleet.begin(&body);
            block_on(gate.reached_by(count + 1));
            client
        })
        .collect();
    let shares: Vec<usize> = fleet.engines.iter().map(|one| one.counters().requests).collect();
    assert_eq!(shares, [5, 5, 5, 5], "the same prompt, spread by load");
    gate.open();
    drop(waiting);
}

#[test]
fn sessions_are_sticky_by_header_and_cookie() {
    for (params, header, other) in [
        ("header: x-conversation", "x-conversation", "x-request-kind"),
        ("cookie: sid", "cookie", "x-request-kind"),
    ] {
        let routing = format!(
            "expose_decision: true, scorers: [{{ name: session-affinity, weight: 5, {params} }}, {{ name: load-balance, weight: 1 }}]"
        );
        let setup = Setup { strategy: "weighted", routing: &routing, ..Setup::default() };
        let fleet = Fleet::start(4, setup);
        let ask = |header: &str, session: &str| {
            let value =
                if header == "cookie" { format!("a=b; sid={session}") } else { session.to_owned() };
            let mut client = Client::connect(fleet.penstock.data);
            let body = client::chat("m", "hello").to_string();
            client.send("POST", CHAT, &[(header, &value)], body.as_bytes());
            backend_of(&client.read_response().unwrap())
        };
        let mut homes = BTreeSet::new();
        for session in 0..12 {
            let session = format!("session-{session}");
            let home = ask(header, &session);
            assert!((0..4).all(|_| ask(header, &session) == home), "{session} by {header}");
            homes.insert(home);
        }
        assert!(homes.len() >= 3, "{homes:?}");
        let unnamed: BTreeSet<String> = (0..8).map(|_| ask(other, "session-1")).collect();
        assert_eq!(unnamed.len(), 4, "without a session equals take turns");
    }
}

#[test]
fn decision_header_lists_each_scorer() {
    let fleet = weighted("prefix-affinity:3,load-balance:1");
    let first = fleet.penstock.post(CHAT, &conversation(1, 1));
    let home = backend_of(&first);
    let second = fleet.penstock.post(CHAT, &conversation(1, 2));
    let header = second.header("x-penstock-decision").unwrap();
    assert!(header.starts_with("weighted;candidates=4;attempt=1;total=0."), "{header}");
    let fact = |name: &str| {
        let found = header.split(';').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("{name} in {header}")).to_owned()
    };
    let (matched, all) =
        fact("blocks").split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let (matched, all): (f64, f64) = (matched.parse().unwrap(), all.parse().unwrap());
    assert!(matched > 10.0 && matched < all, "{header}");
    let affinity: f64 = fact("prefix-affinity").parse().unwrap();
    assert!((affinity - matched / all).abs() < 0.001, "{header}");
    let decisions = fleet.penstock.admin("/decisions").json();
    let newest = &decisions["decisions"][0];
    assert_eq!(newest["scoring"]["matched_blocks"].as_f64(), Some(matched), "{newest}");
    assert_eq!(newest["scoring"]["scores"]["load-balance"], 1.0);
    assert_eq!(
        newest["scoring"]["weights"],
        json!({"prefix-affinity": 0.75, "load-balance": 0.25})
    );
    assert_eq!(fact("prefix-affinity-weight") + &fact("load-balance-weight"), "0.7500.250");
    let question = json!({"path": CHAT, "body": conversation(1, 2).to_string()});
    let explained = client::post(fleet.penstock.admin, "/explain", &question).json();
    let decision = &explained["decision"];
    assert_eq!(decision["backend"], *home);
    assert_eq!(decision["weights"], json!({"prefix-affinity": 0.75, "load-balance": 0.25}));
    let candidates = decision["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 4);
    for candidate in candidates {
        let is_home = candidate["backend"] == *home;
        assert_eq!(candidate["matched_blocks"].as_u64() > Some(0), is_home, "{candidate}");
        assert!(
            candidate["scores"]["prefix-affinity"].is_number() && candidate["total"].is_number()
        );
    }
}

#[test]
fn decision_reports_the_age_of_telemetry() {
    let setup = Setup {
        strategy: "weighted",
        routing: "scorers: \"queue-depth:1\", expose_decision: true",
        sections: "telemetry: { interval: 20ms, idle_interval: 50ms, max_cpu: 1 }",
        backend: "engine: vllm",
        ..Setup::default()
    };
    let fleet = Fleet::start(2, setup);
    let page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n";
    fleet.a().set_page("/metrics", Some(page));
    let question = json!({"path": CHAT, "body": conversation(1, 0).to_string()});
    let explained = || client::post(fleet.penstock.admin, "/explain", &question).json();
    let candidates = || explained()["decision"]["candidates"].clone();
    eventually("the engine was scraped", SOON, || candidates()[0]["telemetry"] == "fresh");
    let output = candidates();
    let age = output[0]["telemetry_age_ms"].as_f64().unwrap();
    assert!((0.0..1000.0).contains(&age), "{output}");
    assert_eq!(output[1]["telemetry"], "unknown", "it has no metrics");
    assert_eq!(output[1]["telemetry_age_ms"], Value::Null);
    let question = file("request.json", conversation(1, 0).to_string());
    let admin = format!("http://{}", fleet.penstock.admin);
    let ran = run(["explain", question.to_str().unwrap(), "--admin", &admin]);
    assert!(ran.stdout.contains(", telemetry fresh, "), "{}", ran.stdout);
    assert!(ran.stdout.contains(", telemetry unknown\n"), "{}", ran.stdout);
    fleet.b().set_page("/metrics", Some(page));
    eventually("the other engine was scraped", SOON, || candidates()[1]["telemetry"] == "fresh");
    let response = fleet.penstock.post(CHAT, &conversation(1, 0));
    let header = response.header("x-penstock-decision").unwrap();
    assert!(header.contains(";telemetry-age-ms="), "{header}");
    let newest = fleet.penstock.admin("/decisions").json()["decisions"][0].clone();
    assert_eq!(newest["scoring"]["telemetry"], "fresh");
    assert!(newest["scoring"]["telemetry_age_ms"].as_f64() < Some(1000.0), "{newest}");
}

const THREE: &str = "backends:
  - { name: a, url: http://10.0.0.1:1, models: [m] }
  - { name: b, url: http://10.0.0.2:1, models: [m] }
  - { name: c, url: http://10.0.0.3:1, models: [m] }
";

fn explain(flags: &[&str]) -> Ran {
    let config = file("penstock.yaml", THREE);
    let request = file("request.json", conversation(1, 1).to_string());
    let arguments = ["explain".into(), request.into_os_string(), "--config".into(), config.into()];
    run(arguments.into_iter().chain(flags.iter().map(Into::into)))
}

#[test]
fn flags_and_policy_files_choose_the_scorers() {
    let output = |flags: &[&str]| {
        let ran = explain(flags);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    let both =
        ["--routing-policy", "weighted", "--routing-scorers", "prefix_affinity:3,queue-depth:2"];
    let text = output(&both);
    assert!(text.contains("total 0.400 (prefix-affinity 0.00 with 0/"), "{text}");
    let text = output(&["--routing-policy", "least-loaded"]);
    assert!(text.contains("total 1.000 (load-balance 1.00)"), "{text}");
    let policy = file(
        "policy.yaml",
        "routing-policy: weighted\nrouting-scorers:\n  - { name: queue-depth, weight: 2 }\n",
    );
    let text = output(&["--policy-config", policy.to_str().unwrap()]);
    assert!(text.contains("total 1.000 (queue-depth 1.00)"), "{text}");
    let check = file("penstock.yaml", THREE);
    let ran = run([
        "check".as_ref(),
        "--config".as_ref(),
        check.as_os_str(),
        "--routing-policy".as_ref(),
        "lmetric".as_ref(),
    ]);
    assert!(
        ran.stdout.contains("weighted, preset lmetric (new-prefill-batch 1; max-score)"),
        "{}",
        ran.stdout
    );
}

#[test]
fn scorers_on_the_command_line_ask_for_weighted() {
    let check = |text: &str, flags: &[&str]| {
        let config = file("penstock.yaml", format!("{text}\n{THREE}"));
        let arguments = ["check", "--config", config.to_str().unwrap()];
        let ran = run(arguments.iter().chain(flags));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let line = ran.stdout.lines().find(|line| line.starts_with("strategy ")).unwrap();
        (line.split_once("    ").unwrap().1.to_owned(), ran.stderr)
    };
    let scorers = ["--routing-scorers", "prefix_affinity:3,queue_depth:2"];
    let reason = "because routing.scorers is set";
    let expected = format!("weighted (prefix-affinity 3, queue-depth 2; max-score), {reason}");
    assert_eq!(check("", &scorers), (expected.clone(), String::new()));
    let (strategy, warning) = check("routing: { strategy: round_robin }", &scorers);
    assert_eq!(strategy, expected);
    assert!(warning.ends_with("instead of 'round_robin'\n"), "{warning}");
    let policy = file("policy.yaml", "routing-scorers: [{ name: load_balance, weight: 1 }]");
    let policy = ["--policy-config", policy.to_str().unwrap()];
    assert_eq!(check("", &policy).0, format!("weighted (load-balance 1; max-score), {reason}"));
    for named in [["--strategy", "random"], ["--routing-policy", "random"]] {
        let (strategy, warning) = check("", &[named, scorers].concat());
        assert_eq!(strategy, "random");
        assert!(warning.contains("'routing.scorers' has no effect"), "{warning}");
    }
}

#[test]
fn lines_are_scored_in_order() {
    let backends = json!([{"name": "a", "waiting": 0, "running": 1, "kv_utilization": 0.5},
        {"name": "b", "waiting": 4, "running": 9, "kv_utilization": 0.1}]);
    let request = json!({"path": CHAT, "body": conversation(1, 1).to_string()});
    let lines = [
        json!({"backends": backends}),
        json!({"backends": []}),
        json!({"scorers": "kv-utilization:1", "backends": backends, "request": request}),
        json!({"preset": "prefix-affinity", "backends": backends, "request": request}),
    ];
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let ran = run_with(["score"], input.as_bytes(), &[]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let responses = ran.json_lines();
    assert_eq!(responses.len(), 4);
    assert_eq!((&responses[0]["winner"], &responses[2]["winner"]), (&json!("a"), &json!("b")));
    assert_eq!(responses[1]["error"]["message"], "there are no backends");
    assert_eq!(responses[3]["winner"], "b", "it was sent the prompt one line before");
    let (matched, total) =
        (&responses[3]["prefix"]["b"]["matched"], &responses[3]["prefix"]["b"]["total"]);
    assert!(matched == total && matched.as_u64() > Some(10), "{}", responses[3]);
    let flagged = run_with(["score", "--routing-scorers", "load-balance:1"], input.as_bytes(), &[]);
    assert_eq!(flagged.json_lines()[0]["weights"], json!({"load-balance": 1.0}));
    let schema = run(["score", "--schema"]);
    let schema: Value = serde_json::from_str(&schema.stdout).unwrap();
    assert!(schema["$defs"]["line"]["properties"]["backends"].is_object());
}

#[test]
fn reload_changes_the_strategy() {
    let fleet = weighted("prefix-affinity:1");
    let home = backend_of(&fleet.penstock.post(CHAT, &conversation(1, 1)));
    assert_eq!(backend_of(&fleet.penstock.post(CHAT, &conversation(1, 2))), home);
    let text = std::fs::read_to_string(&fleet.penstock.config).unwrap();
    let spread = text.replace("prefix-affinity:1", "load-balance:1");
    assert_ne!(spread, text);
    std::fs::write(&fleet.penstock.config, spread).unwrap();
    assert_eq!(fleet.penstock.reload().status, 200);
    let homes: BTreeSet<String> = thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| backend_of(&fleet.penstock.post(CHAT, &conversation(1, 2)))))
            .collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(homes.len() > 1, "{homes:?}");
    std::fs::write(&fleet.penstock.config, text).unwrap();
    assert_eq!(fleet.penstock.reload().status, 200);
    let matched = fleet.penstock.post(CHAT, &conversation(1, 2));
    let header = matched.header("x-penstock-decision").unwrap();
    assert!(!header.contains("blocks=0/"), "the prefix index survives: {header}");
}
