//! A coding agent sends its requests as it does: its sessions stay at one backend without
//! configuration, its changing first line hides no shared prompt, and its tools count in the length
//! of a prompt.

use std::collections::BTreeSet;

use penstock_mock::{Fault, Gate};
use serde_json::{Value, json};

use crate::support::block_on;
use crate::support::client::{self, Client, Response};
use crate::support::command::{file, run};
use crate::support::engines::last_body;
use crate::support::fleet::{CHAT, Fleet, Setup};
use crate::weighted_scorers::backend_of;

/// The instructions of Claude Code: the first line is another one in each request.
fn instructions(nonce: &str, text: &str) -> Value {
    let line = format!(
        "x-anthropic-billing-header: cc_version=2.1.30.{nonce}; cc_entrypoint=cli; cch={nonce};"
    );
    json!([{"type": "text", "text": line}, {"type": "text", "text": text}])
}

fn message(nonce: &str, system: &str, text: &str) -> Value {
    json!({
        "model": "m", "max_tokens": 16, "system": instructions(nonce, system),
        "messages": [{"role": "user", "content": text}]
    })
}

#[test]
fn changing_first_line_hides_no_shared_prompt() {
    for preset in ["prefix-affinity", "sticky", "llm-d"] {
        let routing = format!("preset: {preset}, expose_decision: true");
        let setup = Setup { strategy: "weighted", routing: &routing, ..Setup::default() };
        let fleet = Fleet::start(3, setup);
        let text = "One of many instructions. ".repeat(400);
        let homes: BTreeSet<String> = (0..8)
            .map(|number| {
                let body = message(&format!("{number}a1"), &text, &format!("question {number}"));
                backend_of(&fleet.penstock.post("/v1/messages", &body))
            })
            .collect();
        assert_eq!(homes.len(), 1, "{preset}: {homes:?}");
    }
}

#[test]
fn changing_first_line_reaches_no_converted_prompt() {
    let models = ["{ id: m, operations: [chat] }"];
    let fleet = Fleet::of(&models, Setup::default());
    let prompts: Vec<Value> = ["a1b2c", "00ff1"]
        .iter()
        .map(|nonce| {
            let response = fleet.penstock.post("/v1/messages", &message(nonce, "Be brief.", "hi"));
            assert_eq!(response.status, 200, "{}", response.text());
            serde_json::from_slice::<Value>(&last_body(fleet.a())).unwrap()["messages"].clone()
        })
        .collect();
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(prompts[0][0], json!({"role": "system", "content": "Be brief."}));
    let native = Fleet::start(1, Setup::default());
    let body = message("a1b2c", "Be brief.", "hi");
    assert_eq!(native.penstock.post("/v1/messages", &body).status, 200);
    let sent: Value = serde_json::from_slice(&last_body(native.a())).unwrap();
    assert_eq!(sent["system"], body["system"], "unconverted bodies keep their bytes");
}

fn tools() -> Value {
    let tool = |number: usize| {
        json!({"type": "function", "function": {
            "name": format!("tool_{number}"), "description": "word ".repeat(600),
            "parameters": {"type": "object", "properties": {"c": {"type": "string"}}}
        }})
    };
    (0..27).map(tool).collect()
}

#[test]
fn tools_keep_a_prompt_from_a_short_context() {
    let models = [
        "{ id: m, context_length: 8192, capabilities: [tools, json_mode] }",
        "{ id: m, context_length: 200000, capabilities: [tools, json_mode] }",
    ];
    let setup = Setup { routing: "expose_decision: true", ..Setup::default() };
    let fleet = Fleet::of(&models, setup);
    let short = client::chat("m", "hi");
    assert_eq!(backend_of(&fleet.penstock.post(CHAT, &short)), "a");
    let mut long = short;
    long["tools"] = tools();
    assert_eq!(backend_of(&fleet.penstock.post(CHAT, &long)), "b");
    let mut schema = client::chat("m", "hi");
    schema["response_format"] = json!({"type": "json_schema", "json_schema": {"schema": tools()}});
    assert_eq!(backend_of(&fleet.penstock.post(CHAT, &schema)), "b");
    let decisions = fleet.penstock.admin("/decisions").json();
    let shown = &decisions["decisions"][0]["requirements"];
    assert_eq!(shown["estimated_tokens"], 0, "{decisions}");
    assert!(shown["prompt_tokens"].as_u64().unwrap() > 20_000, "{decisions}");
    let fits = client::chat("m", &"x".repeat(4 * 8192));
    assert_eq!(backend_of(&fleet.penstock.post(CHAT, &fits)), "a", "nothing is added to text");
}

#[test]
fn every_api_counts_the_same_conversation() {
    let text = "word ".repeat(8000);
    let arguments = json!({"x": text}).to_string();
    let cases = [
        (CHAT, json!({"messages": [{"role": "tool", "tool_call_id": "c", "content": text}]})),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}]}]}),
        ),
        (
            "/v1/responses",
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": text}]}),
        ),
        (
            "/v1/responses",
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": text}]}]}),
        ),
        (
            "/v1/responses",
            json!({"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": text}]}),
        ),
        (
            CHAT,
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "w", "arguments": arguments}}]}]}),
        ),
        (
            "/v1/messages",
            json!({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "w", "input": {"x": text}}]}]}),
        ),
        (
            "/v1/responses",
            json!({"input": [{"type": "function_call", "call_id": "c", "name": "w", "arguments": arguments}]}),
        ),
    ];
    let requests: String = cases
        .iter()
        .map(|(path, body)| {
            let mut body = body.clone();
            body["model"] = json!("m");
            format!("{}\n", json!({"path": path, "body": body.to_string()}))
        })
        .collect();
    let config = "backends: [ { name: a, url: 'http://127.0.0.1:9', engine: other, models: [ { id: m, context_length: 1000000, capabilities: [tools] } ] } ]";
    let (config, requests) = (file("agent.yaml", config), file("agent.jsonl", requests));
    let ran = run([
        "explain",
        "--requests",
        requests.to_str().unwrap(),
        "--config",
        config.to_str().unwrap(),
    ]);
    let lines = ran.json_lines();
    assert_eq!(lines.len(), cases.len(), "{}", ran.stderr);
    for ((path, _), line) in cases.iter().zip(lines) {
        for figure in ["estimated_tokens", "prompt_tokens"] {
            let tokens = line["requirements"][figure].as_u64().unwrap();
            assert!((10_000..10_030).contains(&tokens), "{path}: {line}");
        }
    }
}

#[test]
fn limits_count_what_tools_returned() {
    let sections =
        "auth: { keys: [ { name: k, key: sk-k, limits: { tokens_per_minute: 5000 } } ] }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let text = "word ".repeat(8000);
    for (path, body) in [
        (
            CHAT,
            json!({"model": "m", "messages": [{"role": "tool", "tool_call_id": "c", "content": text}]}),
        ),
        (
            "/v1/responses",
            json!({"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": text}]}),
        ),
        (CHAT, json!({"model": "m", "messages": [], "tools": tools()})),
    ] {
        let response = ask(&fleet, path, &[("authorization", "Bearer sk-k")], &body);
        assert_eq!(response.status, 400, "{path}: {}", response.text());
    }
    assert_eq!(fleet.requests(), 0);
}

fn ask(fleet: &Fleet, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
    let mut client = Client::connect(fleet.penstock.data);
    client.send("POST", path, headers, body.to_string().as_bytes());
    client.read_response().unwrap()
}

/// A fleet of equals, among which requests without a session take turns.
fn equals(count: usize, strategy: &str, sections: &str, backend: &str) -> Fleet {
    let scorers = if strategy == "weighted" { "preset: least-loaded, " } else { "" };
    let routing = format!("{scorers}expose_decision: true");
    Fleet::start(
        count,
        Setup { strategy, routing: &routing, sections, backend, ..Setup::default() },
    )
}

fn served_by(fleet: &Fleet, headers: &[(&str, &str)]) -> String {
    backend_of(&ask(fleet, CHAT, headers, &client::chat("m", "hello")))
}

#[test]
fn sessions_of_agents_have_one_home() {
    for strategy in ["weighted", "slo"] {
        let fleet = equals(3, strategy, "", "");
        for header in [
            "x-session-id",
            "x-claude-code-session-id",
            "session_id",
            "session-id",
            "x-session-affinity",
            "x-litellm-session-id",
        ] {
            let name = format!("by {header}");
            let home = served_by(&fleet, &[(header, &name)]);
            for _ in 0..5 {
                served_by(&fleet, &[]);
                assert_eq!(served_by(&fleet, &[(header, &name)]), home, "{strategy}: {header}");
            }
        }
        for (path, member) in [
            (CHAT, json!({"prompt_cache_key": "b1"})),
            ("/v1/responses", json!({"prompt_cache_key": "b2"})),
            ("/v1/responses", json!({"conversation": "b3"})),
            ("/v1/responses", json!({"conversation": {"id": "b4"}})),
        ] {
            let mut body = if path == CHAT {
                client::chat("m", "hello")
            } else {
                json!({"model": "m", "input": "hello"})
            };
            body.as_object_mut().unwrap().extend(member.as_object().unwrap().clone());
            let home = backend_of(&ask(&fleet, path, &[], &body));
            for _ in 0..5 {
                served_by(&fleet, &[]);
                assert_eq!(
                    backend_of(&ask(&fleet, path, &[], &body)),
                    home,
                    "{strategy}: {member}"
                );
            }
        }
        assert_eq!(fleet.metric("penstock_session_homes"), 10.0);
        assert_eq!(fleet.metric("penstock_session_homes_evicted_total"), 0.0);
    }
}

#[test]
fn session_comes_home_after_a_spill() {
    let fleet = equals(2, "weighted", "", "max_in_flight: 1");
    let session = [("x-claude-code-session-id", "s")];
    let home = served_by(&fleet, &session);
    let engine = &fleet.engines[usize::from(home == "b")];
    let gate = Gate::new();
    engine.script([Fault::Gate(gate.clone())]);
    let mut busy = Client::connect(fleet.penstock.data);
    busy.send("POST", CHAT, &session, client::chat("m", "hello").to_string().as_bytes());
    block_on(gate.reached_by(1));
    assert_ne!(served_by(&fleet, &session), home, "it is full");
    gate.open();
    assert_eq!(backend_of(&busy.read_response().unwrap()), home);
    fleet.wait_idle();
    for _ in 0..4 {
        assert_eq!(served_by(&fleet, &session), home, "the spill was short");
    }
}

#[test]
fn session_has_one_home_over_its_models() {
    let routing = "preset: least-loaded, expose_decision: true, \
                   aliases: { \"m(high)\": m, \"m(low)\": m2 }";
    let setup = Setup { strategy: "weighted", routing, ..Setup::default() };
    let fleet = Fleet::of(&["m, m2"; 3], setup);
    for number in 0..6 {
        let session = format!("s{number}");
        let served = |model: &str| {
            let headers = [("session_id", session.as_str())];
            backend_of(&ask(&fleet, CHAT, &headers, &client::chat(model, "hello")))
        };
        let home = served("m(high)");
        for model in ["m(low)", "m2", "m", "m(high)"] {
            assert_eq!(served(model), home, "{session}: {model}");
        }
    }
}

#[test]
fn sub_agent_starts_at_the_home_of_its_parent() {
    let fleet = equals(3, "weighted", "", "");
    let mut homes = BTreeSet::new();
    for number in 0..6 {
        let session = format!("s{number}");
        let main = ("x-claude-code-session-id", session.as_str());
        let home = served_by(&fleet, &[main]);
        let (agent, below) = (("x-claude-code-agent-id", "a"), ("x-claude-code-agent-id", "b"));
        assert_eq!(served_by(&fleet, &[main, agent]), home);
        let parent = ("x-claude-code-parent-agent-id", "a");
        assert_eq!(served_by(&fleet, &[main, below, parent]), home);
        let child = format!("child of {session}");
        let other = [("x-session-affinity", child.as_str()), ("x-parent-session-id", &session)];
        assert_eq!(served_by(&fleet, &other), home, "in the way of other agents");
        homes.insert(home);
        served_by(&fleet, &[]);
    }
    assert!(homes.len() > 1, "sessions spread: {homes:?}");
}

#[test]
fn sessions_belong_to_their_key() {
    let keys: String = (0..20).map(|key| format!("{{ name: k{key}, key: sk-{key} }}, ")).collect();
    let sections = format!("auth: {{ keys: [{keys}] }}");
    let routing = "scorers: session-affinity, expose_decision: true";
    let routing = routing.replace("session-affinity", "\"session-affinity:1\"");
    let setup =
        Setup { strategy: "weighted", routing: &routing, sections: &sections, ..Setup::default() };
    let fleet = Fleet::start(2, setup);
    let homes: BTreeSet<String> = (0..20)
        .map(|key| {
            let bearer = format!("Bearer sk-{key}");
            let headers = [("authorization", bearer.as_str()), ("x-session-id", "one")];
            let home = served_by(&fleet, &headers);
            assert_eq!(served_by(&fleet, &headers), home);
            home
        })
        .collect();
    assert_eq!(homes.len(), 2, "one name under twenty keys is twenty sessions");
}

#[test]
fn other_strategies_ignore_sessions() {
    for strategy in ["round_robin", "smart", "random", "priority_only"] {
        let fleet = equals(2, strategy, "", "");
        let session = [("x-session-id", "s"), ("x-claude-code-session-id", "s")];
        let mut shares = [0, 0];
        for _ in 0..20 {
            shares[usize::from(served_by(&fleet, &session) == "b")] += 1;
        }
        assert_eq!(fleet.metric("penstock_session_homes"), 0.0, "{strategy}");
        if strategy == "round_robin" {
            assert_eq!(shares, [10, 10]);
        }
    }
}

#[test]
fn session_homes_can_be_turned_off() {
    let fleet = equals(3, "weighted", "limits: { session_homes: 0 }", "");
    let session = [("x-session-id", "s")];
    let served: BTreeSet<String> = (0..9).map(|_| served_by(&fleet, &session)).collect();
    assert_eq!(served.len(), 3, "equals take turns");
    assert_eq!(fleet.metric("penstock_session_homes"), 0.0);
}

#[test]
fn explain_shows_the_home_of_a_session() {
    let fleet = equals(3, "weighted", "", "");
    let explained = |session: &str| {
        let line = json!({
            "path": CHAT, "body": client::chat("m", "hello").to_string(),
            "headers": [["x-session-id", session]],
        });
        let body = line.to_string();
        client::request(fleet.penstock.admin, "POST", "/explain", &[], body.as_bytes()).json()
    };
    let home = served_by(&fleet, &[("x-session-id", "s")]);
    for _ in 0..3 {
        let known = explained("s");
        assert_eq!(known["session"]["home"], home, "{known}");
        assert_eq!(known["decision"]["backend"], home, "{known}");
    }
    assert_eq!(explained("other")["session"], json!({"home": null}));
    let request = file("home.json", client::chat("m", "hello").to_string());
    let admin = format!("http://{}", fleet.penstock.admin);
    let explain = ["explain", request.to_str().unwrap(), "--admin", &admin];
    let shown = run(explain.into_iter().chain(["-H", "x-session-id: s"])).stdout;
    assert!(shown.contains(&format!("session     at home on {home}")), "{shown}");
    let shown = run(explain).stdout;
    assert!(!shown.contains("session"), "none is named: {shown}");
}
