//! The steps of a decision, one after the other: facts of the request, aliases, candidates, and the
//! first step that leaves nothing. `docs/routing/pipeline.md` lists every line and its story.

use serde_json::{Value, json};

use crate::support::client::{chat, request};
use crate::support::command::{file, run};
use crate::support::engines::{backend, engine};
use crate::support::fleet::CHAT;
use crate::support::penstock::Penstock;

/// The facts of a request, as `POST /explain` of the running program reports them.
fn report(penstock: &Penstock, body: &Value) -> Value {
    let line = json!({"path": CHAT, "body": body.to_string()}).to_string();
    let json = [("content-type", "application/json")];
    let response = request(penstock.admin, "POST", "/explain", &json, line.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn backends_of(report: &Value) -> Vec<&str> {
    let candidates = report["decision"]["candidates"].as_array().unwrap().iter();
    candidates.map(|one| one["backend"].as_str().unwrap()).collect()
}

fn user(content: Value) -> Value {
    json!([{"role": "user", "content": content}])
}

#[test]
fn facts_come_from_the_structure_of_a_request() {
    let one = engine("one", &["m"]);
    let penstock = Penstock::start(&format!("backends:\n{}", backend(&one, "models: [m]")));
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let text = |text: &str| json!({"type": "text", "text": text});
    // The changes of a plain request; tokens, vision, tools, JSON mode, stream.
    let cases = [
        (json!({}), (1, false, false, false, false), "five characters"),
        (json!({"messages": []}), (0, false, false, false, false), "no messages"),
        (
            json!({"messages": user(json!("image_url tools json_object \"stream\": true"))}),
            (10, false, false, false, false),
            "words in a text",
        ),
        (
            json!({"messages": user(json!([text("12345678"), image, image, text("1234")]))}),
            (3, true, false, false, false),
            "images count nothing, texts do",
        ),
        (
            json!({"messages": [{"role": "system", "content": "1234"}, user(json!([image]))[0]]}),
            (1, true, false, false, false),
            "the image of another message",
        ),
        (
            json!({"messages": user(json!("x".repeat(40_000)))}),
            (10_000, false, false, false, false),
            "long",
        ),
        (json!({"tools": []}), (1, false, true, false, false), "an empty list of tools"),
        (json!({"tools": null}), (1, false, false, false, false), "no tools"),
        (
            json!({"response_format": {"type": "json_object"}}),
            (1, false, false, true, false),
            "JSON",
        ),
        (json!({"response_format": {"type": "text"}}), (1, false, false, false, false), "text"),
        (json!({"stream": true}), (1, false, false, false, true), "a stream"),
        (json!({"stream": false}), (1, false, false, false, false), "no stream"),
        (json!({"stream": null}), (1, false, false, false, false), "no wish"),
    ];
    for (changes, (tokens, vision, tools, json_mode, stream), what) in cases {
        let mut body = chat("m", "hello");
        for (key, value) in changes.as_object().unwrap() {
            body[key] = value.clone();
        }
        let facts = report(&penstock, &body)["requirements"].clone();
        let expected = json!({
            "model": "m", "estimated_tokens": tokens, "prompt_tokens": facts["prompt_tokens"],
            "needs_vision": vision, "needs_tools": tools, "needs_json_mode": json_mode,
            "prefers_streaming": stream
        });
        assert_eq!(facts, expected, "{what}");
    }
}

#[test]
fn aliases_lead_over_three_names_and_not_in_a_circle() {
    let one = engine("one", &["m"]);
    let items = backend(&one, "models: [m]");
    let aliases = "d: c, c: b, b: a, a: m";
    let penstock =
        Penstock::start(&format!("routing: {{ aliases: {{ {aliases} }} }}\nbackends:\n{items}"));
    for (name, model) in [("m", "m"), ("a", "m"), ("b", "m"), ("c", "m")] {
        let report = report(&penstock, &chat(name, "hello"));
        assert_eq!(report["requirements"]["model"], name, "the facts have the requested name");
        assert_eq!(report["decision"]["model"], model, "{name}");
        assert_eq!(penstock.chat(name).status, 200, "{name}");
    }
    let fourth = penstock.chat("d");
    assert_eq!((fourth.status, fourth.error_code().as_str()), (404, "model_not_found"));
    assert!(fourth.text().contains("'d'"), "{}", fourth.text());
    let circle = format!("routing: {{ aliases: {{ a: b, b: a }} }}\nbackends:\n{items}");
    let ran = run(["check", "--config", file("circle.yaml", circle).to_str().unwrap()]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("a -> b -> a"), "{}", ran.stderr);
}

#[test]
fn candidates_are_the_backends_of_the_model() {
    let engines = ["a", "b", "c"].map(|name| engine(name, &["m", "n"]));
    let models = ["models: [m]", "models: [m, n]", "models: [n]"];
    let items: String = engines.iter().zip(models).map(|(one, rest)| backend(one, rest)).collect();
    let penstock =
        Penstock::start(&format!("routing: {{ aliases: {{ x: m }} }}\nbackends:\n{items}"));
    assert_eq!(backends_of(&report(&penstock, &chat("m", "hello"))), ["a", "b"]);
    assert_eq!(backends_of(&report(&penstock, &chat("x", "hello"))), ["a", "b"], "by the alias");
    assert_eq!(backends_of(&report(&penstock, &chat("n", "hello"))), ["b", "c"]);
}

#[test]
fn decisions_make_no_connection() {
    let one = engine("one", &["m"]);
    let items = backend(&one, "models: [m]");
    let config = file("penstock.yaml", format!("backends:\n{items}"));
    let request = file("request.json", chat("m", "hello").to_string());
    let ran = run(["explain", request.to_str().unwrap(), "--config", config.to_str().unwrap()]);
    assert!(ran.stdout.contains("decision    one with 'm'"), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(one.connections_accepted(), 0, "the same router as in the proxy");
}

/// Each request fails at a later step than the one before.
#[test]
fn errors_come_from_the_first_step_that_leaves_nothing() {
    let policy = "policies: [{ name: private, models: [m, n], zones: [home] }]\n";
    let blind = |id: &str| format!("{{ id: {id}, capabilities: [], context_length: 100 }}");
    let (near, far) = (engine("near", &["m", "p"]), engine("far", &["m", "n"]));
    let items = [
        backend(&near, &format!("zone: home, models: [{}, {}]", blind("m"), blind("p"))),
        backend(&far, "zone: away, models: [m, n]"),
    ];
    let penstock = Penstock::start(&format!("{policy}backends:\n{}", items.concat()));
    let with_tools = |model: &str| {
        let mut body = chat(model, "hello");
        body["tools"] = json!([]);
        body
    };
    let refusal = |body: &Value, status: u16, code: &str| {
        let response = penstock.post(CHAT, body);
        assert_eq!((response.status, response.error_code().as_str()), (status, code), "{body}");
        response.text()
    };
    refusal(&with_tools("o"), 404, "model_not_found");
    refusal(&with_tools("n"), 503, "no_backend_in_zone");
    let text = refusal(&with_tools("m"), 503, "no_backend_in_zone");
    assert!(text.contains("near") && text.contains("tools"), "why nothing inside takes it: {text}");
    refusal(&with_tools("p"), 400, "capability_mismatch");
    refusal(&chat("p", &"x".repeat(1000)), 400, "context_length_exceeded");
    assert_eq!(penstock.chat("p").status, 200);
    let drained = request(penstock.admin, "POST", "/backends/near/drain", &[], b"");
    assert_eq!(drained.status, 200);
    refusal(&chat("p", "hello"), 503, "no_healthy_backend");
    assert_eq!(far.counters().requests, 0, "nothing went outside");
}
