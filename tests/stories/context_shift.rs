//! Conversations that no engine has room for: where their model or key allows it, they lose their
//! oldest messages instead of being refused; never where a backend has room, and never more than is
//! needed.

use penstock_mock::Fault;
use serde_json::{Value, json};

use crate::support::client::{self, Response};
use crate::support::engines::last_body;
use crate::support::fleet::{Fleet, Setup};

const ON: &str = "models: { m: { context_shift: true } }";

/// The error of llama.cpp.
fn refusal(prompt: u32, limit: u32) -> Fault {
    let message = format!(
        "request ({prompt} tokens) exceeds the available context size ({limit} tokens), try increasing it"
    );
    let body = json!({"error": {
        "code": 400, "message": message, "type": "exceed_context_size_error",
        "n_prompt_tokens": prompt, "n_ctx": limit,
    }});
    Fault::Status { status: 400, retry_after: None, body: body.to_string(), headers: Vec::new() }
}

/// Eight messages of 100 tokens each, the first of them with the word by which engines refuse.
fn list() -> Vec<Value> {
    let text = |index: usize| {
        let word = if index == 0 { "oldest" } else { "newer" };
        format!("{index} {word} {}", "word ".repeat(80))
    };
    (0..8)
        .map(|index| {
            let role = if index % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": text(index)})
        })
        .chain([json!({"role": "user", "content": "and last"})])
        .collect()
}

fn body(path: &str) -> Value {
    let field = if path == "/v1/responses" { "input" } else { "messages" };
    json!({"model": "m", "max_tokens": 16, "stream": false, field: list(), "user": "kept"})
}

fn received(fleet: &Fleet) -> Value {
    serde_json::from_slice(&last_body(fleet.a())).unwrap()
}

fn shift_of(response: &Response) -> Option<&str> {
    response.header("x-penstock-context-shift")
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn refused_conversation_is_shortened_in_every_dialect() {
    for (path, operation) in [
        (CHAT, "chat"),
        ("/v1/messages", "messages"),
        ("/api/chat", "ollama_chat"),
        ("/v1/responses", "responses"),
    ] {
        let model = format!("{{ id: m, operations: [{operation}] }}");
        let fleet = Fleet::of(&[&model], Setup { sections: ON, ..Setup::default() });
        fleet.a().fail_on("oldest", refusal(1000, 512));
        let body = body(path);
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert_eq!(shift_of(&response), Some("dropped=6"), "{path}");
        assert_eq!(fleet.requests(), 2, "{path}: refused once, shortened once");
        let first = received(&fleet);
        let field = if path == "/v1/responses" { "input" } else { "messages" };
        assert_eq!(first[field], json!(list()[6..]), "{path}");
        assert_eq!(first["user"], "kept", "{path}");
        fleet.wait_idle();
        fleet.wait_metric("penstock_context_shifts_total", 1.0);
        fleet.wait_metric("penstock_context_shift_dropped_messages_total", 6.0);
        let decisions = fleet.penstock.admin("/decisions?n=1").json();
        assert_eq!(decisions["decisions"][0]["dropped_messages"], 6, "{decisions}");
        // The engine's context is known now: the next one is not refused, and keeps as much.
        let response = fleet.penstock.post(path, &body);
        assert_eq!((response.status, shift_of(&response)), (200, Some("dropped=6")), "{path}");
        assert_eq!(fleet.requests(), 3, "{path}: shortened before it was sent");
        assert_eq!(received(&fleet), first, "{path}");
        // And a short one is not touched.
        let mut short = body;
        short[field] = json!([list()[8]]);
        let response = fleet.penstock.post(path, &short);
        assert_eq!((response.status, shift_of(&response)), (200, None), "{path}");
    }
}

#[test]
fn converted_conversation_is_shortened() {
    let models = ["{ id: m, operations: [chat] }"];
    let fleet = Fleet::of(&models, Setup { sections: ON, ..Setup::default() });
    fleet.a().fail_on("oldest", refusal(1000, 512));
    for stream in [false, true] {
        let mut body = body("/api/chat");
        body["stream"] = json!(stream);
        let response = fleet.penstock.post("/api/chat", &body);
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(shift_of(&response), Some("dropped=6"), "stream {stream}");
        assert_eq!(received(&fleet)["messages"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn refusals_pass_where_nothing_allows_a_shift() {
    let fleet = Fleet::start(1, Setup::default());
    fleet.a().fail_on("oldest", refusal(1000, 512));
    let response = fleet.penstock.post(CHAT, &body(CHAT));
    assert_eq!((response.status, shift_of(&response)), (400, None));
    assert_eq!(response.json()["error"]["n_ctx"], 512, "as the engine sent it");
    assert_eq!(fleet.requests(), 1);
    let fleet = Fleet::start(1, Setup { sections: ON, ..Setup::default() });
    fleet.a().fail_on("oldest", refusal(1000, 512));
    for (field, value) in
        [("truncate", json!(false)), ("shift", json!(false)), ("truncation", json!("disabled"))]
    {
        let mut body = body(CHAT);
        body[field] = value;
        let response = fleet.penstock.post(CHAT, &body);
        assert_eq!((response.status, shift_of(&response)), (400, None), "{field}");
    }
}

#[test]
fn context_shift_keeps_instructions() {
    let fleet = Fleet::start(1, Setup { sections: ON, ..Setup::default() });
    fleet.a().fail_on("oldest", refusal(1000, 512));
    let instructions = json!({"role": "system", "content": "always be brief"});
    let mut body = body(CHAT);
    body["messages"].as_array_mut().unwrap().insert(0, instructions.clone());
    let response = fleet.penstock.post(CHAT, &body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(shift_of(&response).is_some());
    assert_eq!(received(&fleet)["messages"][0], instructions, "although they are the oldest");
}

#[test]
fn key_and_request_decide_before_the_model() {
    let keys = "auth: { keys: [{ name: on, key: sk-on, context_shift: true }, \
                { name: off, key: sk-off, context_shift: false }, { name: any, key: sk-any }] }";
    for (sections, key, header, status) in [
        (keys.to_owned(), "sk-on", None, 200),
        (keys.to_owned(), "sk-any", None, 400),
        (format!("{keys}\n{ON}"), "sk-off", None, 400),
        (format!("{keys}\n{ON}"), "sk-any", None, 200),
        (format!("{keys}\n{ON}"), "sk-any", Some("off"), 400),
    ] {
        let fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
        fleet.a().fail_on("oldest", refusal(1000, 512));
        let credential = format!("Bearer {key}");
        let mut headers =
            vec![("content-type", "application/json"), ("authorization", credential.as_str())];
        headers.extend(header.map(|value| ("x-penstock-context-shift", value)));
        let bytes = body(CHAT).to_string();
        let response =
            client::request(fleet.penstock.data, "POST", CHAT, &headers, bytes.as_bytes());
        assert_eq!(response.status, status, "{sections} {key} {header:?}: {}", response.text());
    }
}

#[test]
fn backend_with_room_comes_first() {
    let fleet = Fleet::start(2, Setup { sections: ON, ..Setup::default() });
    fleet.a().fail_on("oldest", refusal(1000, 512));
    for requests in [2, 3] {
        let response = fleet.penstock.post(CHAT, &body(CHAT));
        assert_eq!((response.status, shift_of(&response)), (200, None), "{}", response.text());
        let whole: Value = serde_json::from_slice(&last_body(fleet.b())).unwrap();
        assert_eq!(whole["messages"], json!(list()));
        assert_eq!(fleet.requests(), requests, "the engine that is too small gets one request");
    }
    // The one with room drains: the other one gets a shorter conversation.
    let drained = client::request(fleet.penstock.admin, "POST", "/backends/b/drain", &[], b"");
    assert_eq!(drained.status, 200, "{}", drained.text());
    let response = fleet.penstock.post(CHAT, &body(CHAT));
    assert_eq!((response.status, shift_of(&response)), (200, Some("dropped=6")));
}

#[test]
fn conversation_is_shortened_for_the_roomiest_backend() {
    let fleet = Fleet::start(2, Setup { sections: ON, ..Setup::default() });
    fleet.a().fail_on("oldest", refusal(1000, 128));
    fleet.b().fail_on("oldest", refusal(1000, 512));
    let response = fleet.penstock.post(CHAT, &body(CHAT));
    assert_eq!((response.status, shift_of(&response)), (200, Some("dropped=6")));
    let kept: Value = serde_json::from_slice(&last_body(fleet.b())).unwrap();
    assert_eq!(kept["messages"], json!(list()[6..]));
    assert_eq!(fleet.requests(), 3, "each refused once");
}

#[test]
fn second_refusal_drops_the_tools_and_a_third_is_passed_on() {
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "words"}}]);
    for (drops, attempts) in [(true, 3), (false, 3)] {
        let sections = format!(
            "models: {{ m: {{ context_shift: true, context_shift_drops_tools: {drops} }} }}"
        );
        let fleet = Fleet::start(1, Setup { sections: &sections, ..Setup::default() });
        fleet.a().always(Some(refusal(1000, 512)));
        let mut body = body(CHAT);
        body["tools"] = tools.clone();
        body["tool_choice"] = json!("auto");
        let response = fleet.penstock.post(CHAT, &body);
        assert_eq!(response.status, 400, "{}", response.text());
        assert_eq!(response.json()["error"]["n_ctx"], 512);
        assert_eq!(fleet.requests(), attempts, "drops tools: {drops}");
        let last = received(&fleet);
        assert_eq!(last.get("tools").is_none(), drops);
        assert_eq!(last.get("tool_choice").is_none(), drops);
        let first: Value =
            serde_json::from_slice(fleet.a().received()[1].body.as_ref().unwrap()).unwrap();
        assert_eq!(first["tools"], tools, "the first retry keeps them");
        fleet.wait_idle();
    }
    // However much could still be dropped.
    let fleet = Fleet::start(1, Setup { sections: ON, ..Setup::default() });
    fleet.a().always(Some(refusal(1000, 900)));
    let mut body = body(CHAT);
    body["messages"] = json!([list(), list(), list(), list(), list()].concat());
    assert_eq!(fleet.penstock.post(CHAT, &body).status, 400);
    assert_eq!(fleet.requests(), 3);
}

#[test]
fn conversation_that_cannot_be_shortened_gets_the_engines_error() {
    let models = ["{ id: m, operations: [chat] }"];
    let fleet = Fleet::of(&models, Setup { sections: ON, ..Setup::default() });
    fleet.a().fail_on("oldest", refusal(1000, 512));
    let one = json!({"model": "m", "messages": [list()[0]]});
    for requests in [1, 2] {
        let response = fleet.penstock.post(CHAT, &one);
        assert_eq!((response.status, shift_of(&response)), (400, None));
        assert_eq!(response.json()["error"]["type"], "exceed_context_size_error");
        assert_eq!(fleet.requests(), requests, "known to be too small, and tried all the same");
    }
    let response = fleet.penstock.post("/api/chat", &one);
    assert_eq!(response.status, 400);
    let text = response.json()["error"].as_str().unwrap().to_owned();
    assert!(text.contains("exceeds the available context size"), "{text}");
    // Other errors are as they were.
    fleet.a().script([Fault::status(400)]);
    let response = fleet.penstock.post(CHAT, &body(CHAT));
    assert_eq!(
        (response.status, response.json()["error"]["message"].as_str()),
        (400, Some("scripted"))
    );
}

#[test]
fn declared_context_shortens_before_an_engine_refuses() {
    let models = ["{ id: m, context_length: 512 }"];
    let fleet = Fleet::of(&models, Setup { sections: ON, ..Setup::default() });
    let response = fleet.penstock.post(CHAT, &body(CHAT));
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(shift_of(&response).is_some_and(|shift| shift.starts_with("dropped=")));
    assert_eq!(fleet.requests(), 1);
    let kept = received(&fleet)["messages"].as_array().unwrap().len();
    assert!((3..=5).contains(&kept), "three quarters of 512 tokens are 3 messages of 100: {kept}");
    let plain = Fleet::of(&models, Setup::default());
    let response = plain.penstock.post(CHAT, &body(CHAT));
    assert_eq!(response.error_code(), "context_length_exceeded");
}

#[test]
fn context_is_learned_from_a_response_that_fills_it() {
    let fleet = Fleet::start(1, Setup { sections: ON, ..Setup::default() });
    let filled = |prompt: u32, output: u32, finish: &str| {
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": output});
        let message = json!({"role": "assistant", "content": "and so on"});
        let choice = json!({"index": 0, "message": message, "finish_reason": finish});
        let body = json!({"choices": [choice], "usage": usage}).to_string();
        Fault::Status { status: 200, retry_after: None, body, headers: Vec::new() }
    };
    let long = |count: usize| {
        let mut body = body(CHAT);
        body.as_object_mut().unwrap().remove("max_tokens");
        body["messages"] = json!(vec![list(); count].concat());
        body
    };
    let limited = {
        let mut body = long(2);
        body["max_tokens"] = json!(9000);
        body
    };
    let shift = |body: &Value| {
        let response = fleet.penstock.post(CHAT, body);
        assert_eq!(response.status, 200, "{}", response.text());
        shift_of(&response).is_some()
    };
    // The mock engine has no limit, and would report a longer context.
    let end = |body: &Value, prompt, output, finish| {
        fleet.a().script([filled(prompt, output, finish)]);
        assert!(!shift(body), "{prompt} and {output}, {finish}");
    };
    end(&limited, 1800, 2296, "length");
    end(&long(3), 2700, 1396, "stop");
    // The engine's own limit of the output.
    end(&long(1), 900, 100, "length");
    end(&long(3), 2700, 100, "length");
    end(&long(6), 1, 1, "stop");
    end(&long(2), 1800, 2296, "length");
    // Once may be chance.
    end(&long(6), 1, 1, "stop");
    end(&long(3), 2700, 1396, "length");
    let before = fleet.requests();
    assert!(shift(&long(6)), "4096 tokens are the whole context");
    assert_eq!(fleet.requests(), before + 1, "shortened before an engine refuses");
    let known = fleet.penstock.backend("a")["models"][0].clone();
    assert_eq!(known["learned_context_length"], 4096, "{known}");
    fleet.a().script([filled(5000, 40, "stop")]);
    assert!(shift(&long(6)));
    assert!(!shift(&long(6)), "more than 4096 tokens were held");
}

fn explain(fleet: &Fleet, line: &str) -> Value {
    client::request(fleet.penstock.admin, "POST", "/explain", &[], line.as_bytes()).json()
}

#[test]
fn explain_shows_the_plan() {
    let models = ["{ id: m, context_length: 512 }"];
    let fleet = Fleet::of(&models, Setup { sections: ON, ..Setup::default() });
    let line = json!({"path": CHAT, "body": body(CHAT).to_string()}).to_string();
    let explained = explain(&fleet, &line);
    let response = fleet.penstock.post(CHAT, &body(CHAT));
    let dropped = &explained["context_shift"]["dropped_messages"];
    assert_eq!(shift_of(&response), Some(format!("dropped={dropped}").as_str()), "as it happens");
    assert_eq!(explained["decision"]["backend"], "a", "{explained}");
    let whole = explained["context_shift"]["whole_prompt_tokens"].as_u64().unwrap();
    let left = explained["requirements"]["estimated_tokens"].as_u64().unwrap();
    assert!(whole > 512 && left < 512, "{whole} and {left}");
    let headers = json!({"x-penstock-context-shift": "off"});
    let line = json!({"path": CHAT, "body": body(CHAT).to_string(), "headers": headers});
    let refused = explain(&fleet, &line.to_string());
    assert_eq!(refused["error"]["code"], "context_length_exceeded", "{refused}");
    assert_eq!(fleet.requests(), 1, "explaining sends nothing");
}
