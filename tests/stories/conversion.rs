//! Clients of one API on backends of another: requests and responses are converted, whole and
//! streamed, with tools, images, thinking and errors; what cannot be said is a clear error; and a
//! converted request is otherwise like any other: retried, counted, cancelled, bounded.

use std::time::Duration;

use penstock_mock::{Cut, Fault, Pace};
use serde_json::{Value, json};

use crate::support::client::{self, Response};
use crate::support::engines::last_body;
use crate::support::fleet::{Fleet, Leave, Setup, begin, read_until};

/// An API as a client uses it.
#[derive(Clone, Copy)]
struct Api {
    name: &'static str,
    path: &'static str,
    /// The `content-type` of its streams.
    stream: &'static str,
    /// The last bytes of a whole stream.
    end: &'static str,
}

const CHAT: Api =
    Api { name: "chat", path: "/v1/chat/completions", stream: EVENTS, end: "data: [DONE]\n\n" };
const MESSAGES: Api = Api {
    name: "messages",
    path: "/v1/messages",
    stream: EVENTS,
    end: "data: {\"type\":\"message_stop\"}\n\n",
};
const RESPONSES: Api =
    Api { name: "responses", path: "/v1/responses", stream: EVENTS, end: "response.completed" };
const OLLAMA_CHAT: Api =
    Api { name: "ollama_chat", path: "/api/chat", stream: LINES, end: "\"done\":true" };
const OLLAMA_GENERATE: Api =
    Api { name: "ollama_generate", path: "/api/generate", stream: LINES, end: "\"done\":true" };

const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";

/// Clients, and the backends' APIs that their requests are converted to.
const PAIRS: [(Api, Api); 11] = [
    (OLLAMA_CHAT, CHAT),
    (OLLAMA_CHAT, MESSAGES),
    (OLLAMA_GENERATE, CHAT),
    (OLLAMA_GENERATE, MESSAGES),
    (CHAT, MESSAGES),
    (CHAT, OLLAMA_CHAT),
    (MESSAGES, CHAT),
    (MESSAGES, OLLAMA_CHAT),
    (RESPONSES, CHAT),
    (RESPONSES, MESSAGES),
    (RESPONSES, OLLAMA_CHAT),
];

impl Api {
    fn body(self, stream: bool) -> Value {
        let messages = json!([{"role": "user", "content": "hello"}]);
        let (field, prompt) = match self.name {
            "responses" => ("input", messages),
            "ollama_generate" | "completions" => ("prompt", json!("hello")),
            _ => ("messages", messages),
        };
        let mut body = json!({"model": "m", "stream": stream, field: prompt});
        if self.name == "messages" {
            body["max_tokens"] = json!(100);
        }
        body
    }

    /// The text of a response, whole or streamed.
    fn text(self, response: &Response) -> String {
        let whole = response.header("content-type").is_some_and(|kind| kind.contains("/json"));
        if whole {
            let at = match self.name {
                "chat" => "/choices/0/message/content",
                "completions" => "/choices/0/text",
                "messages" => "/content/0/text",
                "responses" => "/output/0/content/0/text",
                "ollama_chat" => "/message/content",
                _ => "/response",
            };
            return string(&response.json(), at);
        }
        let at = match self.name {
            "chat" => "/choices/0/delta/content",
            "completions" => "/choices/0/text",
            "messages" => "/delta/text",
            "responses" => "/delta",
            "ollama_chat" => "/message/content",
            _ => "/response",
        };
        events(response).iter().map(|event| string(event, at)).collect()
    }

    /// The text of an error, whole or at the end of a stream.
    fn error(self, body: &Value) -> String {
        let at = match self.name {
            "ollama_chat" | "ollama_generate" => "/error",
            "responses" if body.get("response").is_some() => "/response/error/message",
            _ => "/error/message",
        };
        string(body, at)
    }
}

fn string(value: &Value, at: &str) -> String {
    value.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The JSON of each event or line.
fn events(response: &Response) -> Vec<Value> {
    let text = response.text();
    let data = text.lines().filter_map(|line| match line.strip_prefix("data: ") {
        Some("[DONE]") => None,
        Some(data) => Some(data),
        None => line.starts_with('{').then_some(line),
    });
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| panic!("{text}"))).collect()
}

/// Engines `a`, `b` … that serve only these operations.
fn serving(apis: &[Api], setup: Setup<'_>) -> Fleet {
    let models: Vec<String> =
        apis.iter().map(|api| format!("{{ id: m, operations: [{}] }}", api.name)).collect();
    let models: Vec<&str> = models.iter().map(String::as_str).collect();
    Fleet::of(&models, setup)
}

#[test]
fn every_client_api_works_on_every_backend_api() {
    for (client, backend) in PAIRS {
        let fleet = serving(&[backend], Setup::default());
        let expected = "a serving m: water finds its way to the wheel,";
        for stream in [false, true] {
            let case = format!("{} on {}, stream {stream}", client.name, backend.name);
            let response = fleet.penstock.post(client.path, &client.body(stream));
            assert_eq!(response.status, 200, "{case}: {}", response.text());
            assert_eq!(client.text(&response), expected, "{case}: {}", response.text());
            let kind = response.header("content-type").unwrap();
            let wanted = if stream { client.stream } else { "application/json" };
            assert!(kind.starts_with(wanted), "{case}: {kind}");
            let received = fleet.a().received().pop().unwrap();
            assert_eq!(received.path(), backend.path, "{case}");
            let (text, end) = (response.text(), client.end);
            assert_eq!(
                text.matches(end).count() > 0,
                stream || end.contains("done"),
                "{case}: {text}"
            );
            let model = events(&response).first().map(|event| event["model"].clone());
            if client.stream == LINES && stream {
                assert_eq!(model, Some(json!("m")), "{case}");
                assert_eq!(text.matches("\"done\":true").count(), 1, "{case}: {text}");
            }
        }
        fleet.wait_idle();
        let sample = format!(
            "penstock_requests_total{{model=\"m\",backend=\"a\",operation=\"{}\",status=\"200\"",
            client.name
        );
        fleet.wait_metric(&sample, 2.0);
        let output =
            fleet.metric("penstock_tokens_total{model=\"m\",backend=\"a\",type=\"output\"");
        assert!((output - 16.0).abs() < 0.5, "{}: {output} tokens", client.name);
    }
}

#[test]
fn embeddings_are_converted() {
    let vector = |value: &Value| value.as_array().map(Vec::len).unwrap_or_default();
    let embeddings = Api { name: "embeddings", path: "/v1/embeddings", ..CHAT };
    let fleet = serving(&[embeddings], Setup::default());
    let body = json!({"model": "m", "input": ["one", "two"]});
    let response = fleet.penstock.post("/api/embed", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let lists = response.json()["embeddings"].clone();
    let lengths: Vec<usize> = lists.as_array().unwrap().iter().map(vector).collect();
    assert_eq!(lengths, [16, 16], "one vector per input");
    let response = fleet.penstock.post("/api/embeddings", &json!({"model": "m", "prompt": "one"}));
    assert_eq!(vector(&response.json()["embedding"]), 16, "{}", response.text());
    assert!(fleet.a().received().iter().all(|received| received.path() == "/v1/embeddings"));
    let embed = Api { name: "ollama_embed", path: "/api/embed", ..OLLAMA_CHAT };
    let fleet = serving(&[embed], Setup::default());
    let response = fleet.penstock.post("/v1/embeddings", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    let data = response.json()["data"].clone();
    let lengths: Vec<usize> =
        data.as_array().unwrap().iter().map(|one| vector(&one["embedding"])).collect();
    assert_eq!(lengths, [16, 16], "{data}");
}

#[test]
fn empty_texts_have_no_vectors() {
    let embeddings = Api { name: "embeddings", path: "/v1/embeddings", ..CHAT };
    let fleet = serving(&[embeddings], Setup::default());
    for (path, body, expected) in [
        ("/api/embed", json!({"model": "m", "input": []}), json!({"model": "m", "embeddings": []})),
        ("/api/embed", json!({"model": "m", "input": ""}), json!({"model": "m", "embeddings": []})),
        ("/api/embeddings", json!({"model": "m", "prompt": ""}), json!({"embedding": []})),
    ] {
        let response = fleet.penstock.post(path, &body);
        assert_eq!((response.status, response.json()), (200, expected), "{path}");
    }
    assert_eq!(fleet.requests(), 0, "there is nothing to compute");
    fleet.wait_idle();
}

#[test]
fn requested_usage_is_removed_from_streams_that_lack_it() {
    let sections = "ledger: { request_usage: true }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let plain = Fleet::start(1, Setup::default());
    let mut asks = CHAT.body(true);
    for (path, body) in [
        (CHAT.path, CHAT.body(true)),
        ("/v1/completions", json!({"model": "m", "stream": true, "prompt": "hello"})),
    ] {
        let response = fleet.penstock.post(path, &body);
        let sent = String::from_utf8(last_body(fleet.a())).unwrap();
        assert!(sent.contains("\"stream_options\":{\"include_usage\":true}"), "{sent}");
        assert!(!response.text().contains("prompt_tokens"), "{}", response.text());
        assert!(response.text().ends_with("data: [DONE]\n\n"), "{}", response.text());
        let text =
            |response: &Response| events(response).iter().map(choice_text).collect::<String>();
        assert_eq!(text(&response), text(&plain.penstock.post(path, &body)));
    }
    fleet.wait_metric("penstock_tokens_total{model=\"m\",backend=\"a\",type=\"output\"", 16.0);
    asks["stream_options"] = json!({"include_usage": true});
    let response = fleet.penstock.post(CHAT.path, &asks);
    assert_eq!(last_body(fleet.a()), asks.to_string().into_bytes(), "untouched");
    assert!(response.text().contains("prompt_tokens"), "{}", response.text());
    fleet.penstock.post(CHAT.path, &CHAT.body(false));
    assert_eq!(last_body(fleet.a()), CHAT.body(false).to_string().into_bytes(), "no stream");
    fleet.a().script([Fault::CutStream { after_events: 3, how: Cut::Fin }]);
    let response = fleet.penstock.post(CHAT.path, &CHAT.body(true));
    assert!(!CHAT.error(&events(&response).pop().unwrap()).is_empty(), "{}", response.text());
}

fn choice_text(event: &Value) -> String {
    string(event, "/choices/0/delta/content") + &string(event, "/choices/0/text")
}

#[test]
fn tool_calls_are_converted() {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let function = json!({"name": "weather", "parameters": parameters});
    for (client, backend) in PAIRS {
        let tools = match client.name {
            "ollama_generate" => continue,
            "messages" => json!([{"name": "weather", "input_schema": parameters}]),
            "responses" => {
                json!([{"type": "function", "name": "weather", "parameters": parameters}])
            }
            _ => json!([{"type": "function", "function": function}]),
        };
        let fleet = serving(&[backend], Setup::default());
        for stream in [false, true] {
            let mut body = client.body(stream);
            body["tools"] = tools.clone();
            let response = fleet.penstock.post(client.path, &body);
            let text = response.text();
            let case = format!("{} on {}, stream {stream}: {text}", client.name, backend.name);
            assert_eq!(response.status, 200, "{case}");
            assert!(text.contains("weather"), "{case}");
            // Ollama's calls have no ids: they get one made of the request's.
            let made = format!("call_{}", response.header("x-request-id").unwrap());
            let has_engines_id = client.name.starts_with("ollama") || !text.contains(&made);
            assert!(has_engines_id || backend.name.starts_with("ollama"), "{case}");
            let calls: Vec<Value> = match client.name {
                "ollama_chat" => events(&response)
                    .iter()
                    .filter_map(|line| line.pointer("/message/tool_calls/0/function/arguments"))
                    .cloned()
                    .collect(),
                _ => continue,
            };
            assert_eq!(calls, [json!({"city": "a"})], "{case}");
        }
    }
}

#[test]
fn images_are_converted() {
    const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    for (client, backend) in PAIRS {
        let fleet = serving(&[backend], Setup::default());
        let mut body = client.body(false);
        let url = format!("data:image/png;base64,{PIXEL}");
        match client.name {
            "ollama_generate" => body["images"] = json!([PIXEL]),
            "ollama_chat" => body["messages"][0]["images"] = json!([PIXEL]),
            "chat" => {
                body["messages"][0]["content"] = json!([
                    {"type": "text", "text": "hello"},
                    {"type": "image_url", "image_url": {"url": url}},
                ]);
            }
            "messages" => {
                let source = json!({"type": "base64", "media_type": "image/png", "data": PIXEL});
                body["messages"][0]["content"] =
                    json!([{"type": "text", "text": "hello"}, {"type": "image", "source": source}]);
            }
            _ => {
                body["input"][0]["content"] = json!([
                    {"type": "input_text", "text": "hello"},
                    {"type": "input_image", "image_url": url},
                ]);
            }
        }
        let response = fleet.penstock.post(client.path, &body);
        let case = format!("{} on {}: {}", client.name, backend.name, response.text());
        assert!(
            client.text(&response).starts_with("a serving m sees an image and says:"),
            "{case}"
        );
    }
}

#[test]
fn errors_of_the_engine_keep_status_and_text() {
    for (client, backend) in PAIRS {
        let fleet = serving(&[backend], Setup::default());
        for (status, body) in [
            (400, r#"{"error":{"message":"the prompt is odd","type":"invalid_request_error"}}"#),
            (400, r#"{"error":"the prompt is odd"}"#),
            (404, r#"{"type":"error","error":{"type":"x","message":"the prompt is odd"}}"#),
            (422, r#"{"detail":"the prompt is odd"}"#),
            (500, "the prompt is odd"),
            (503, r#"{"error":"the prompt is odd"}"#),
        ] {
            let fault = Fault::Status {
                status,
                retry_after: None,
                body: body.to_owned(),
                headers: Vec::new(),
            };
            fleet.a().script([fault]);
            let response = fleet.penstock.post(client.path, &client.body(true));
            let case = format!("{} on {}: {}", client.name, backend.name, response.text());
            assert_eq!(response.status, status, "{case}");
            assert_eq!(client.error(&response.json()), "the prompt is odd", "{case}");
            let kind = response.header("content-type").unwrap();
            assert!(kind.starts_with("application/json"), "{case} {kind}");
        }
    }
}

#[test]
fn broken_streams_end_visibly() {
    for (client, backend) in PAIRS {
        let fleet = serving(&[backend], Setup::default());
        let faults = [
            Fault::CutStream { after_events: 0, how: Cut::Fin },
            Fault::CutStream { after_events: 4, how: Cut::Fin },
            Fault::CutStream { after_events: 4, how: Cut::Reset },
            Fault::CutStream { after_events: 4, how: Cut::BadChunk },
            Fault::ErrorEventMidStream { after_events: 4 },
        ];
        for fault in faults {
            let case = format!("{} on {} {fault:?}", client.name, backend.name);
            fleet.a().script([fault]);
            let response = fleet.penstock.post(client.path, &client.body(true));
            let text = response.text();
            assert_eq!(response.status, 200, "{case}: {text}");
            assert!(!text.contains(client.end), "{case} ends as if it were whole: {text}");
            let last = events(&response).pop().unwrap_or_else(|| panic!("{case}: nothing"));
            assert!(!client.error(&last).is_empty(), "{case}: no error: {text}");
        }
        let response = fleet.penstock.post(client.path, &client.body(true));
        assert!(response.text().contains(client.end), "after all that, all is well");
        fleet.wait_idle();
    }
}

#[test]
fn broken_whole_responses_become_errors() {
    let fleet = serving(&[CHAT], Setup::default());
    for fault in [
        Fault::CutResponse { how: Cut::Fin },
        Fault::CutResponse { how: Cut::Reset },
        Fault::Garbage,
    ] {
        let case = format!("{fault:?}");
        fleet.a().script([fault]);
        let response = fleet.penstock.post("/api/chat", &OLLAMA_CHAT.body(false));
        assert_eq!(response.status, 502, "{case}: {}", response.text());
        assert!(response.is_whole && response.json()["error"].is_string(), "{case}");
    }
    fleet.wait_idle();
}

#[test]
fn whole_responses_are_bounded() {
    let sections = "limits: { converted_response: 200B }";
    let fleet = serving(&[CHAT], Setup { sections, ..Setup::default() });
    let response = fleet.penstock.post("/api/chat", &OLLAMA_CHAT.body(false));
    assert_eq!(response.status, 502, "{}", response.text());
    let response = fleet.penstock.post("/api/chat", &OLLAMA_CHAT.body(true));
    assert_eq!(response.status, 200, "a stream is converted as it comes: {}", response.text());
}

#[test]
fn disconnect_frees_the_engine() {
    let pace = Pace { first_token: Duration::ZERO, per_token: Duration::from_secs(30), tokens: 4 };
    let fleet = serving(&[CHAT], Setup { pace, ..Setup::default() });
    for how in Leave::BOTH {
        for stream in [true, false] {
            let client = begin(fleet.penstock.data, "/api/chat", &OLLAMA_CHAT.body(stream));
            fleet.wait_fact("a", "in_flight", &json!(1));
            let left = how.now(client);
            fleet.wait_fact("a", "in_flight", &json!(0));
            drop(left);
        }
    }
    fleet.wait_idle();
    assert_eq!(fleet.fact("a", "breaker"), json!("closed"));
}

#[test]
fn failover_converts_for_each_backend() {
    for stream in [true, false] {
        let fleet = serving(&[CHAT, OLLAMA_CHAT, CHAT], Setup::default());
        fleet.a().script([Fault::status_with_retry(503, "0")]);
        fleet.b().script([Fault::status_with_retry(503, "0")]);
        let response = fleet.penstock.post("/api/chat", &OLLAMA_CHAT.body(stream));
        assert_eq!(response.status, 200, "{}", response.text());
        assert!(OLLAMA_CHAT.text(&response).starts_with("c serving m"), "{}", response.text());
        let last = |engine: &penstock_mock::MockEngine| engine.received().pop().unwrap();
        let (first, native, third) = (last(fleet.a()), last(fleet.b()), last(fleet.c()));
        assert_eq!((native.path(), first.path()), ("/api/chat", CHAT.path));
        assert_eq!(last_body(fleet.b()), OLLAMA_CHAT.body(stream).to_string().into_bytes());
        assert_eq!(first.body, third.body, "the conversion is the same");
        let fleet = serving(&[CHAT, MESSAGES], Setup::default());
        fleet.a().script([Fault::status_with_retry(503, "0")]);
        let response = fleet.penstock.post("/api/chat", &OLLAMA_CHAT.body(stream));
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(last(fleet.b()).path(), MESSAGES.path, "another API, another conversion");
        fleet.wait_idle();
        fleet.wait_metric("penstock_held_body_bytes", 0.0);
    }
}

#[test]
fn what_cannot_be_converted_names_the_field() {
    let fleet = serving(&[CHAT], Setup::default());
    let mut body = OLLAMA_GENERATE.body(false);
    body["template"] = json!("{{ .Prompt }}");
    let response = fleet.penstock.post("/api/generate", &body);
    assert_eq!(response.status, 400, "{}", response.text());
    assert!(OLLAMA_GENERATE.error(&response.json()).contains("template"), "{}", response.text());
    assert_eq!(fleet.requests(), 0);
    // A backend that speaks the client's API takes what others cannot.
    let fleet = serving(&[CHAT, OLLAMA_GENERATE], Setup::default());
    let response = fleet.penstock.post("/api/generate", &body);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!((fleet.a().counters().requests, fleet.b().counters().requests), (0, 1));
    fleet.wait_idle();
}

#[test]
fn models_are_loaded_and_unloaded_without_a_call() {
    let fleet = serving(&[CHAT], Setup::default());
    for (path, body, reason) in [
        ("/api/chat", json!({"model": "m"}), "load"),
        ("/api/chat", json!({"model": "m", "messages": [], "keep_alive": 0}), "unload"),
        ("/api/generate", json!({"model": "m", "prompt": "", "keep_alive": "10m"}), "load"),
        ("/api/generate", json!({"model": "m", "keep_alive": "0s"}), "unload"),
    ] {
        let response = fleet.penstock.post(path, &body);
        assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
        let json = response.json();
        assert_eq!((&json["done_reason"], &json["done"]), (&json!(reason), &json!(true)), "{body}");
        assert_eq!(json["model"], "m");
        let empty =
            if path == "/api/chat" { &json["message"]["content"] } else { &json["response"] };
        assert_eq!(empty, "", "{path}: {json}");
    }
    assert_eq!(fleet.requests(), 0, "the engine has its model loaded");
    fleet.wait_idle();
}

#[test]
fn tokens_are_counted_in_two_steps_where_a_backend_has_no_path_for_it() {
    let models = ["{ id: m, operations: [chat, apply_template, tokenize] }"];
    let fleet = Fleet::of(&models, Setup::default());
    fleet.a().set_page("/apply-template", Some(r#"{"prompt": "<s>hello"}"#));
    fleet.a().set_page("/tokenize", Some(r#"{"tokens": [1, 2, 3, 4, 5]}"#));
    let path = "/v1/messages/count_tokens";
    let body = json!({"model": "m", "system": "be brief", "messages": [{"role": "user", "content": "hello"}]});
    let counted = fleet.penstock.post(path, &body);
    assert_eq!((counted.status, counted.json()), (200, json!({"input_tokens": 5})));
    let sent: Vec<(String, Value)> = fleet
        .a()
        .received()
        .iter()
        .map(|one| {
            (one.path().to_owned(), serde_json::from_slice(one.body.as_ref().unwrap()).unwrap())
        })
        .collect();
    assert_eq!(sent[0].0, "/apply-template");
    let roles: Vec<_> =
        sent[0].1["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user"], "as chat");
    assert_eq!((sent[1].0.as_str(), &sent[1].1["content"]), ("/tokenize", &json!("<s>hello")));
    fleet.a().set_page("/tokenize", Some("{}"));
    let failed = fleet.penstock.post(path, &body);
    assert_eq!(
        (failed.status, failed.json()["type"].as_str()),
        (502, Some("error")),
        "{}",
        failed.text()
    );
    let bad = fleet.penstock.post(path, &json!({"model": "m", "messages": [{"role": "user"}]}));
    assert_eq!(bad.status, 400, "{}", bad.text());
    fleet.wait_idle();
}

#[test]
fn tokens_are_counted_by_a_tokenizer_that_takes_messages() {
    let fleet = Fleet::of(&["{ id: m, operations: [chat, tokenize] }"], Setup::default());
    let path = "/v1/messages/count_tokens";
    let tool = json!({"name": "look", "description": "looks", "input_schema": {"type": "object"}});
    let body = json!({
        "model": "m", "system": "be brief", "tools": [tool],
        "messages": [{"role": "user", "content": "hello ".repeat(40)}]
    });
    let counted = fleet.penstock.post(path, &body);
    assert_eq!(counted.status, 200, "{}", counted.text());
    let tokens = counted.json()["input_tokens"].as_u64().unwrap();
    assert!((60..90).contains(&tokens), "{tokens}");
    let received = fleet.a().received();
    assert_eq!((received.len(), received[0].path()), (1, "/tokenize"));
    let sent: Value = serde_json::from_slice(received[0].body.as_ref().unwrap()).unwrap();
    let roles: Vec<_> = sent["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user"], "as chat");
    assert_eq!(sent["tools"][0]["function"]["name"], "look");
    // An engine that takes text alone finds none in messages.
    fleet.a().set_page("/tokenize", Some(r#"{"tokens": []}"#));
    let failed = fleet.penstock.post(path, &body);
    assert_eq!(failed.status, 502, "never a count that is none: {}", failed.text());
    fleet.wait_idle();
}

#[test]
fn conversions_are_shown_and_counted() {
    let fleet = serving(&[CHAT], Setup { routing: "expose_decision: true", ..Setup::default() });
    let response = fleet.penstock.post("/api/chat", &OLLAMA_CHAT.body(true));
    let shown = response.header("x-penstock-decision").unwrap();
    assert!(shown.ends_with(";converted=chat"), "{shown}");
    let native = fleet.penstock.post(CHAT.path, &CHAT.body(true));
    assert!(!native.header("x-penstock-decision").unwrap().contains("converted"));
    fleet.wait_metric("penstock_conversions_total{from=\"ollama_chat\",to=\"chat\"}", 1.0);
    let decisions = fleet.penstock.admin("/decisions?n=2").json();
    let converted: Vec<&Value> =
        decisions["decisions"].as_array().unwrap().iter().map(|one| &one["converted_to"]).collect();
    assert!(
        converted.contains(&&json!("chat")) && converted.contains(&&Value::Null),
        "{decisions}"
    );
    let body = OLLAMA_CHAT.body(true).to_string();
    let request = json!({"path": "/api/chat", "body": body}).to_string();
    let explained =
        client::request(fleet.penstock.admin, "POST", "/explain", &[], request.as_bytes());
    assert!(
        explained.text().contains("\"converted_to\": \"chat\""),
        "{body}: {}",
        explained.text()
    );
}

#[test]
fn http10_clients_get_whole_streams() {
    let fleet = serving(&[CHAT], Setup::default());
    for stream in [true, false] {
        let body = OLLAMA_CHAT.body(stream).to_string();
        let mut client = client::Client::connect(fleet.penstock.data);
        let head = format!("POST /api/chat HTTP/1.0\r\ncontent-length: {}\r\n\r\n", body.len());
        client.send_bytes(head.as_bytes());
        client.send_bytes(body.as_bytes());
        let text = read_until(&mut client, "\"done\":true");
        assert!(!text.to_lowercase().contains("transfer-encoding"), "{text}");
    }
}

#[test]
fn keys_and_content_types_fit_the_backend() {
    let backend = "api_key: sk-backend, engine: anthropic";
    let fleet = serving(&[MESSAGES], Setup { backend, ..Setup::default() });
    let body = OLLAMA_CHAT.body(false).to_string();
    let fields = [("content-type", "application/x-www-form-urlencoded"), ("accept", "x/y")];
    let response =
        client::request(fleet.penstock.data, "POST", "/api/chat", &fields, body.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    let received = fleet.a().received().pop().unwrap();
    assert_eq!(received.header("x-api-key"), Some("sk-backend"));
    assert_eq!(received.header("authorization"), None);
    assert_eq!(received.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(received.header("content-type"), Some("application/json"));
    assert_eq!(received.header("accept"), None);
}
