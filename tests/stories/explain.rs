//! An operator asks where requests would go and why, without a running penstock: for one request or
//! a file of them, for an idle fleet or one that is described.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::client;
use crate::support::command::{Ran, file, run, run_with};
use crate::support::engines::{backend, engine};
use crate::support::penstock::Penstock;

const FLEET: &str = "backends:
  - { name: plain, url: http://10.0.0.1:1, priority: 10, models: [{ id: m, context_length: 1000, capabilities: [] }] }
  - { name: sees, url: http://10.0.0.2:1, models: [{ id: m, upstream_id: org/m, context_length: 4096, capabilities: [vision] }] }
  - { name: silent, url: http://10.0.0.3:1, max_in_flight: 4 }
";

fn config(routing: &str) -> PathBuf {
    file("penstock.yaml", format!("routing: {{ {routing} }}\n{FLEET}"))
}

fn line(body: &Value) -> String {
    json!({"path": "/v1/chat/completions", "body": body.to_string()}).to_string()
}

fn explain(config: &Path, lines: &[String], more: &[&str]) -> Ran {
    let requests = file("requests.jsonl", lines.join("\n"));
    let arguments = ["explain", "--config"].map(Into::into).into_iter();
    let arguments =
        arguments.chain([config.into(), "--requests".into(), requests.into_os_string()]);
    run(arguments.chain(more.iter().map(Into::into)))
}

fn backends(ran: &Ran) -> Vec<String> {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let name = |response: Value| response["decision"]["backend"].as_str().unwrap_or("-").to_owned();
    ran.json_lines().into_iter().map(name).collect()
}

#[test]
fn explain_reads_lines_in_order_and_rotates() {
    let config = config("strategy: round_robin");
    let lines: Vec<String> = (0..5).map(|_| line(&client::chat("m", "hello"))).collect();
    let ran = explain(&config, &lines, &[]);
    assert_eq!(backends(&ran), ["plain", "sees", "plain", "sees", "plain"]);
    assert_eq!(ran.stderr, "");
}

#[test]
fn explain_prints_requirements_and_decisions() {
    let config = config("aliases: { gpt-4: m }, fallbacks: { ghost: [m] }");
    let text = "x".repeat(40);
    let parts = json!([{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": text}]);
    let message = json!({"role": "user", "content": parts});
    let image = json!({"model": "gpt-4", "stream": true, "messages": [message]});
    let encoded = "eyJtb2RlbCI6Im0iLCJpbnB1dCI6ImFiY2QifQ==";
    let lines = [
        line(&image),
        line(&client::chat("ghost", "hi")),
        json!({"path": "/v1/embeddings", "body_b64": encoded}).to_string(),
    ];
    let lines = explain(&config, &lines, &[]).json_lines();
    let wanted = json!({
        "model": "gpt-4", "estimated_tokens": 10, "prompt_tokens": 778, "needs_vision": true,
        "needs_tools": false, "needs_json_mode": false, "prefers_streaming": true
    });
    assert_eq!(lines[0]["requirements"], wanted);
    let of = |index: usize, key: &str| lines[index]["decision"][key].clone();
    assert_eq!((of(0, "backend"), of(0, "model")), (json!("sees"), json!("m")));
    assert_eq!((of(0, "upstream_model"), of(0, "fallback")), (json!("org/m"), json!(false)));
    let candidates = of(0, "candidates");
    let candidates = candidates.as_array().unwrap();
    let plain = candidates.iter().find(|one| one["backend"] == "plain").unwrap();
    assert_eq!(plain["excluded"], "capabilities");
    assert!(plain["reason"].as_str().unwrap().contains("vision"), "{plain}");
    assert!(candidates.iter().any(|one| one["score"].is_number()), "{candidates:?}");
    assert_eq!((of(1, "fallback"), of(1, "model")), (json!(true), json!("m")));
    assert_eq!(lines[2]["requirements"]["estimated_tokens"], 1, "base64 is taken as it decodes");
}

#[test]
fn explain_reports_refused_lines_in_order() {
    let config = config("strategy: smart");
    let raw = |line: Value| line.to_string();
    let tools = json!({"model": "m", "tools": [], "messages": []});
    let long = client::chat("m", &"x".repeat(4 * 4097));
    let zipped = json!({"Content-Encoding": "compress"});
    let cases = [
        (line(&tools), 400, "capability_mismatch", true),
        // A backend whose models are not discovered yet might serve it.
        (line(&client::chat("unserved", "hi")), 503, "discovery_pending", true),
        (line(&long), 400, "context_length_exceeded", true),
        (line(&client::chat("", "hi")), 400, "missing_model", false),
        (raw(json!({"body": "{\"model\":"})), 400, "invalid_json", false),
        (raw(json!({"path": "/nowhere", "body": "{}"})), 404, "unknown_path", false),
        (raw(json!({"body": "x", "headers": zipped})), 415, "unsupported_encoding", false),
        ("not a line".to_owned(), 400, "invalid_request", false),
    ];
    let lines: Vec<String> = cases.iter().map(|(line, ..)| line.clone()).collect();
    let ran = explain(&config, &lines, &[]);
    assert_eq!(ran.code, Some(0), "refused lines do not change the exit code: {}", ran.stderr);
    let lines = ran.json_lines();
    assert_eq!(lines.len(), cases.len(), "one line each, nothing else");
    for (lines, (line, status, code, is_scanned)) in lines.iter().zip(cases) {
        let error = &lines["error"];
        assert_eq!((&error["status"], &error["code"]), (&json!(status), &json!(code)), "{line}");
        assert_eq!(lines["requirements"].is_object(), is_scanned, "{line}");
    }
    let message = "No backend supports required capabilities for model 'm': [tools] \
                   (plain lacks tools; sees lacks tools)";
    assert_eq!(lines[0]["error"]["message"], message);
}

#[test]
fn explain_honours_the_token_estimate() {
    let lines = [line(&client::chat("m", &"\u{4e00}".repeat(400)))];
    for (estimate, tokens) in [("auto", 300), ("chars", 100), ("utf8", 300)] {
        let ran = explain(&config(&format!("token_estimate: {estimate}")), &lines, &[]);
        assert_eq!(ran.json_lines()[0]["requirements"]["estimated_tokens"], tokens, "{estimate}");
    }
}

#[test]
fn explain_applies_a_fleet_dump() {
    let config = config("strategy: smart");
    let requests = [line(&client::chat("m", "hi")), line(&client::chat("late", "hi"))];
    let overlay = |fleet: &Value| {
        let fleet = file("fleet.json", fleet.to_string());
        explain(&config, &requests, &["--fleet", fleet.to_str().unwrap()])
    };
    let ran = overlay(&json!({"backends": []}));
    assert_eq!(backends(&ran), ["plain", "-"]);
    let ran = overlay(&json!({"backends": [
        {"name": "plain", "health": "unhealthy"},
        {"name": "silent", "models": ["late", {"id": "m", "context_length": 10, "capabilities": []}]}
    ]}));
    assert_eq!(backends(&ran), ["sees", "silent"], "models of a dump count as discovered");
    let ran = overlay(&json!({"backends": [
        {"name": "plain", "health": "healthy", "in_flight": 90, "latency_ms": 900},
        {"name": "sees", "latency_ms": 5}, {"name": "silent", "in_flight": 4, "models": ["late"]}
    ]}));
    let lines = ran.json_lines();
    assert_eq!(lines[0]["decision"]["backend"], "sees");
    assert_eq!(lines[0]["decision"]["candidates"][0]["in_flight"], 90);
    assert_eq!(lines[1]["error"]["code"], "all_backends_busy");
    for health in ["unhealthy", "unknown", "draining"] {
        let backends: Vec<Value> = ["plain", "sees", "silent"]
            .iter()
            .map(|name| json!({"name": name, "health": health}))
            .collect();
        let ran = overlay(&json!({"backends": backends}));
        let error = &ran.json_lines()[0]["error"];
        assert_eq!(error["code"], "no_healthy_backend", "{health}");
        assert_eq!(error["message"], "No healthy backend available for model 'm'");
    }
}

#[test]
fn explain_refuses_an_invalid_fleet_dump() {
    let config = config("strategy: smart");
    for (fleet, reason) in [
        (
            "{\"backends\": [{\"name\": \"plian\"}]}",
            "'plian' is not in the configuration: did you mean 'plain'?",
        ),
        ("{\"backends\": [{\"name\": \"plain\", \"healthy\": true}]}", "healthy"),
        ("{\"backends\": [{\"name\": \"plain\", \"health\": \"ill\"}]}", "ill"),
        ("[]", "not an object"),
        ("{", "not JSON"),
    ] {
        let fleet = file("fleet.json", fleet);
        let ran = explain(&config, &[line(&json!({}))], &["--fleet", fleet.to_str().unwrap()]);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(reason), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn explain_with_a_seed_is_reproducible() {
    let config = config("strategy: random");
    let lines: Vec<String> = (0..40).map(|_| line(&client::chat("m", "hi"))).collect();
    let order = |seed: &str| backends(&explain(&config, &lines, &["--seed", seed]));
    let first = order("1");
    assert_eq!(first, order("1"));
    assert_ne!(first, order("2"));
    assert!(first.iter().any(|name| name == "plain") && first.iter().any(|name| name == "sees"));
}

#[test]
fn explain_prints_one_request_as_text() {
    let config = config("strategy: smart");
    let request = file("request.json", client::chat("m", "hello").to_string());
    let common = ["explain", request.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let ran = run(common);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["model       m", "plain", "sees", "score", "decision"] {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
    let ran = run(common.into_iter().chain(["--json"]));
    let value: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(value["decision"]["backend"], "plain");
    let arguments = [
        "explain",
        "-",
        "--path",
        "/v1/embeddings",
        "--json",
        "--config",
        config.to_str().unwrap(),
    ];
    let ran = run_with(arguments, br#"{"model":"m","input":"x"}"#, &[]);
    let value: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(value["decision"]["backend"], "plain", "from standard input");
}

#[test]
fn explain_says_how_to_get_unknown_models() {
    let config = file("penstock.yaml", "backends: [http://a:1, http://b:1]");
    let request = file("request.json", r#"{"model": "x", "messages": []}"#);
    let [config, request] = [&config, &request].map(|path| path.to_str().unwrap());
    let ran = run(["explain", request, "--config", config]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["note: the models of a:1, b:1 are unknown", "--admin", "--fleet", "`models`"] {
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
}

#[test]
fn explain_prints_warnings_to_stderr() {
    let config = config("strategy: fastest");
    let ran = explain(&config, &[line(&client::chat("m", "hi"))], &[]);
    assert_eq!(backends(&ran), ["plain"], "an unknown strategy is smart");
    assert!(ran.stderr.contains("UNKNOWN STRATEGY 'fastest'"), "{}", ran.stderr);
}

#[test]
fn explain_gives_the_reason_for_a_strategy_that_is_not_named() {
    let reason = |routing: &str, more: &[&str]| {
        let ran = explain(&config(routing), &[line(&client::chat("m", "hi"))], more);
        assert_eq!(backends(&ran).len(), 1);
        ran.json_lines()[0]["decision"]["strategy_reason"].clone()
    };
    assert_eq!(reason("preset: llm-d", &[]), "routing.preset is set");
    assert_eq!(reason("strategy: weighted, preset: llm-d", &[]), Value::Null);
    let flag = ["--strategy", "random"];
    assert_eq!(reason("preset: llm-d", &flag), Value::Null, "the flag names it");
}

#[test]
fn explain_stops_at_an_invalid_configuration() {
    let config = config("strateggy: smart");
    let ran = explain(&config, &[line(&client::chat("m", "hi"))], &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("did you mean 'strategy'?"), "{}", ran.stderr);
}

#[test]
fn explain_agrees_with_the_running_instance() {
    let (one, two) = (engine("one", &["m"]), engine("two", &["m"]));
    let yaml = format!(
        "routing: {{ strategy: round_robin }}\nbackends:\n{}{}",
        backend(&one, "models: [m]"),
        backend(&two, "")
    );
    let penstock = Penstock::start(&yaml);
    let request = file("request.json", client::chat("m", "hello").to_string());
    let admin = format!("http://{}", penstock.admin);
    let ask = || {
        let ran = run(["explain", request.to_str().unwrap(), "--admin", &admin, "--json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let value: Value = serde_json::from_str(&ran.stdout).unwrap();
        value["decision"]["backend"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (ask(), ask()),
        ("one".to_owned(), "one".to_owned()),
        "a dry run does not advance the rotation"
    );
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(ask(), "two", "a real request does");
    // The running instance's fleet, explained offline.
    let fleet = file("fleet.json", penstock.admin("/fleet").body);
    let config = file("penstock.yaml", yaml);
    let lines = [line(&client::chat("m", "hi")), line(&client::chat("m", "hi"))];
    let ran = explain(&config, &lines, &["--fleet", fleet.to_str().unwrap()]);
    assert_eq!(backends(&ran), ["one", "two"], "discovered models are in the dump");
    let unreachable = run(["explain", request.to_str().unwrap(), "--admin", "http://127.0.0.1:1"]);
    assert_eq!(unreachable.code, Some(1), "{}", unreachable.stderr);
    let asking = ["explain", request.to_str().unwrap(), "--admin", &admin];
    for [flag, value] in [
        ["--config", config.to_str().unwrap()],
        ["--listen", "127.0.0.1:0"],
        ["--admin-listen", "off"],
        ["--max-retries", "1"],
        ["--log-level", "info"],
        ["--strategy", "random"],
        ["--routing-policy", "random"],
    ] {
        let refused = run(asking.iter().copied().chain([flag, value]));
        assert_eq!(refused.code, Some(2), "{flag}: {}", refused.stderr);
        assert!(refused.stderr.contains(flag), "{flag}: {}", refused.stderr);
    }
    for [flag, value] in [
        ["--listen", "127.0.0.1:0"],
        ["--admin-listen", "off"],
        ["--max-retries", "1"],
        ["--log-level", "info"],
        ["--admin", &admin],
    ] {
        let refused = run(["explain", "--decision", "captured.json", flag, value]);
        assert_eq!(refused.code, Some(2), "{flag}: {}", refused.stderr);
        assert!(refused.stderr.contains(flag), "{flag}: {}", refused.stderr);
    }
    let ran = run_with(asking, b"", &[("PENSTOCK_CONFIG", config.to_str().unwrap())]);
    assert_eq!(ran.code, Some(0), "the environment speaks to other commands: {}", ran.stderr);
}

/// The decisions of each strategy about 250 requests over 12 backends in every state are those that
/// the program of commit a847925 printed, the last one before scorers came in. Since then images
/// count 1,000 tokens, which do not fit a context of 256.
#[test]
fn golden_decisions_are_unchanged() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let read = |name: &str| std::fs::read_to_string(golden.join(name)).unwrap();
    let of = |response: Value| match response["decision"].as_object() {
        Some(decision) => format!("{}/{}", text(&decision["backend"]), text(&decision["model"])),
        None => text(&response["error"]["code"]),
    };
    for recorded in read("decisions.txt").lines() {
        let (strategy, recorded) = recorded.split_once(": ").unwrap();
        let config = file("penstock.yaml", read("penstock.yaml").replace("STRATEGY", strategy));
        let arguments = ["explain", "--seed", "7", "--fleet"].map(OsString::from).into_iter();
        let files = [golden.join("fleet.json"), golden.join("requests.jsonl"), config];
        let [fleet, requests, config] = files.map(PathBuf::into_os_string);
        let more = ["--requests".into(), requests, "--config".into(), config];
        let ran = run(arguments.chain([fleet]).chain(more));
        let decided: Vec<String> = ran.json_lines().into_iter().map(of).collect();
        assert_eq!(decided.len(), 250, "{}", ran.stderr);
        assert_eq!(decided.join(" "), recorded, "{strategy}");
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}
