//! A client of OpenAI's Responses API reads, cancels and deletes the response it made, and
//! continues it, although another backend may serve its next request.

use serde_json::{Value, json};

use crate::support::block_on;
use crate::support::client::{Response, post, request};
use crate::support::engines::{backend, engine};
use crate::support::fleet::metric;
use crate::support::open_engine::OpenEngine;
use crate::support::penstock::Penstock;

struct Fleet {
    engines: [OpenEngine; 3],
    penstock: Penstock,
}

impl Fleet {
    fn start(more: &str) -> Self {
        let engines = ["a", "b", "c"].map(OpenEngine::start);
        let items: String = engines.iter().map(|engine| engine.item("models: [m]")).collect();
        let routing = "routing: { strategy: round_robin }\n";
        let penstock = Penstock::start(&format!("{routing}{more}backends:\n{items}"));
        engines.iter().for_each(|engine| _ = engine.take_requests());
        Self { engines, penstock }
    }

    fn make(&self) -> (String, String) {
        let made = post(self.penstock.data, "/v1/responses", &json!({"model": "m", "input": "x"}));
        let id = made.json()["id"].as_str().unwrap().to_owned();
        (id.clone(), id["resp_".len()..][..1].to_owned())
    }

    fn send(&self, method: &str, path: &str) -> Response {
        request(self.penstock.data, method, path, &[], b"")
    }

    fn sent(&self) -> Vec<(String, Vec<String>)> {
        let of = |engine: &OpenEngine| (engine.name.clone(), engine.take_requests());
        self.engines.iter().map(of).filter(|(_, requests)| !requests.is_empty()).collect()
    }
}

#[test]
fn stored_responses_are_served_by_the_backend_that_made_them() {
    let fleet = Fleet::start("");
    for _ in 0..3 {
        let (id, owner) = fleet.make();
        fleet.sent();
        for (method, path) in [
            ("GET", format!("/v1/responses/{id}?include[]=x")),
            ("GET", format!("/v1/responses/{id}/input_items?limit=2")),
            ("POST", format!("/v1/responses/{id}/cancel")),
            ("DELETE", format!("/v1/responses/{id}")),
        ] {
            let response = fleet.send(method, &path);
            assert_eq!(response.status, 200, "{method} {path}: {}", response.text());
            assert_eq!(response.json()["served_by"], owner.as_str());
            let expected = vec![(owner.clone(), vec![format!("{method} {path}")])];
            assert_eq!(fleet.sent(), expected, "one request, unchanged");
        }
    }
    let response = fleet.send("PUT", "/v1/responses/resp_x");
    assert_eq!((response.status, response.header("allow")), (405, Some("GET, DELETE")));
    assert_eq!(metric(&fleet.penstock, "penstock_response_ids"), 3.0);
}

#[test]
fn unknown_ids_are_found_on_any_backend() {
    let fleet = Fleet::start("");
    let (id, owner) = fleet.make();
    let other = Penstock::start(&format!(
        "backends:\n{}",
        fleet.engines.iter().map(|engine| engine.item("models: [m]")).collect::<String>()
    ));
    let response = request(other.data, "GET", &format!("/v1/responses/{id}"), &[], b"");
    assert_eq!(response.json()["served_by"], owner.as_str(), "a restart loses no response");
    fleet.sent();
    let response = fleet.send("GET", "/v1/responses/resp_none");
    assert_eq!(response.status, 404);
    assert!(response.text().contains("has no resp_none"), "the engine's own error");
    assert_eq!(fleet.sent().len(), 3, "every backend was queried");
}

#[test]
fn ids_of_streams_are_known_before_they_end() {
    let engine = engine("one", &["m"]);
    let items = backend(&engine, "models: [m]");
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    let body = json!({"model": "m", "input": "x", "stream": true});
    let response = post(penstock.data, "/v1/responses", &body);
    assert!(response.text().contains("response.completed"));
    assert_eq!(metric(&penstock, "penstock_response_ids"), 1.0);
    post(penstock.data, "/v1/chat/completions", &crate::support::client::chat("m", "x"));
    assert_eq!(metric(&penstock, "penstock_response_ids"), 1.0, "only responses are stored");
}

#[test]
fn continued_responses_prefer_the_backend_that_made_them() {
    let fleet = Fleet::start("");
    let (id, owner) = fleet.make();
    fleet.sent();
    for _ in 0..4 {
        let body: Value = json!({"model": "m", "input": "x", "previous_response_id": id});
        assert_eq!(post(fleet.penstock.data, "/v1/responses", &body).status, 200);
    }
    let sent = fleet.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!((sent[0].0.as_str(), sent[0].1.len()), (owner.as_str(), 4));
    let drained =
        request(fleet.penstock.admin, "POST", &format!("/backends/{owner}/drain"), &[], b"");
    assert_eq!(drained.status, 200, "{}", drained.text());
    let body = json!({"model": "m", "input": "x", "previous_response_id": id});
    assert_eq!(post(fleet.penstock.data, "/v1/responses", &body).status, 200, "a preference only");
}

#[test]
fn failure_of_the_owner_is_no_404() {
    let engines = ["a", "b"].map(|name| engine(name, &["m"]));
    let items: String = engines.iter().map(|one| backend(one, "models: [m]")).collect();
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    let made = post(penstock.data, "/v1/responses", &json!({"model": "m", "input": "x"}));
    let path = format!("/v1/responses/{}", made.json()["id"].as_str().unwrap());
    let owner = engines.iter().find(|one| one.counters().requests == 1).unwrap();
    block_on(owner.kill()).unwrap();
    let response = request(penstock.data, "GET", &path, &[], b"");
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(response.error_code(), "connect_failed");
}

#[test]
fn remembered_ids_are_bounded() {
    let fleet = Fleet::start("limits: { response_ids: 2 }\n");
    let (first, _) = fleet.make();
    fleet.make();
    fleet.make();
    assert_eq!(metric(&fleet.penstock, "penstock_response_ids"), 2.0);
    assert_eq!(metric(&fleet.penstock, "penstock_response_ids_evicted_total"), 1.0);
    let response = fleet.send("GET", &format!("/v1/responses/{first}"));
    assert_eq!(response.status, 200, "still found: {}", response.text());
}

#[test]
fn responses_belong_to_the_key_that_made_them() {
    let (of_a, of_b) = ("Bearer 0123456789abcdef000a", "Bearer 0123456789abcdef000b");
    let keys = "auth: { keys: [{ name: a, key: 0123456789abcdef000a }, \
                { name: b, key: 0123456789abcdef000b }] }\n";
    let fleet = Fleet::start(keys);
    let send = |key: &str, method: &str, path: &str, body: &str| {
        let fields = [("content-type", "application/json"), ("authorization", key)];
        request(fleet.penstock.data, method, path, &fields, body.as_bytes())
    };
    let made = send(of_a, "POST", "/v1/responses", r#"{"model":"m","input":"x"}"#);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    fleet.sent();
    for (method, path) in [
        ("GET", format!("/v1/responses/{id}")),
        ("GET", format!("/v1/responses/{id}/input_items")),
        ("POST", format!("/v1/responses/{id}/cancel")),
        ("DELETE", format!("/v1/responses/{id}")),
    ] {
        let refused = send(of_b, method, &path, "");
        assert_eq!((refused.status, refused.error_code().as_str()), (404, "response_not_found"));
        assert_eq!(fleet.sent(), [], "no engine is queried");
        assert_eq!(send(of_a, method, &path, "").status, 200, "{method} {path}");
        fleet.sent();
    }
    let next = format!(r#"{{"model":"m","input":"x","previous_response_id":"{id}"}}"#);
    let refused = send(of_b, "POST", "/v1/responses", &next);
    assert_eq!((refused.status, refused.error_code().as_str()), (404, "response_not_found"));
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    assert_eq!(send(of_a, "POST", "/v1/responses", &next).status, 200);
}

#[test]
fn forgotten_responses_are_served_to_no_key() {
    let (of_a, of_b) = ("Bearer 0123456789abcdef000a", "Bearer 0123456789abcdef000b");
    let keys = "auth: { keys: [{ name: a, key: 0123456789abcdef000a }, \
                { name: b, key: 0123456789abcdef000b }] }\nlimits: { response_ids: 1 }\n";
    let fleet = Fleet::start(keys);
    let send = |key: &str, method: &str, path: &str, body: &str| {
        let fields = [("content-type", "application/json"), ("authorization", key)];
        request(fleet.penstock.data, method, path, &fields, body.as_bytes())
    };
    let make = || {
        let made = send(of_a, "POST", "/v1/responses", r#"{"model":"m","input":"x"}"#);
        made.json()["id"].as_str().unwrap().to_owned()
    };
    let (forgotten, known) = (make(), make());
    fleet.sent();
    for key in [of_a, of_b] {
        let refused = send(key, "GET", &format!("/v1/responses/{forgotten}"), "");
        assert_eq!((refused.status, refused.error_code().as_str()), (404, "response_not_found"));
        let next = format!(r#"{{"model":"m","input":"x","previous_response_id":"{forgotten}"}}"#);
        let refused = send(key, "POST", "/v1/responses", &next);
        assert_eq!((refused.status, refused.error_code().as_str()), (404, "response_not_found"));
    }
    assert_eq!(fleet.sent(), [], "no engine is queried");
    assert_eq!(send(of_a, "GET", &format!("/v1/responses/{known}"), "").status, 200);
}

#[test]
fn conversations_belong_to_the_key_that_used_them() {
    let keys = "auth: { keys: [{ name: a, key: k1 }, { name: b, key: k2 }] }\n";
    let engine = OpenEngine::start("a");
    let routing = "routing: { passthrough: { \"/v1/conversations*\": a, \"/v1/responses/*\": a, \"/x/*\": by-model } }\n";
    let items = engine.item("models: [m]");
    let penstock = Penstock::start(&format!("{keys}{routing}backends:\n{items}"));
    let send = |key: &str, method: &str, path: &str, body: &str| {
        let key = format!("Bearer {key}");
        let fields = [("content-type", "application/json"), ("authorization", key.as_str())];
        request(penstock.data, method, path, &fields, body.as_bytes()).status
    };
    let with = |id: &str| format!(r#"{{"model":"m","input":"x","conversation":{id}}}"#);
    assert_eq!(send("k1", "POST", "/v1/responses", &with(r#""conv_1""#)), 200);
    engine.take_requests();
    for (method, path, body) in [
        ("POST", "/v1/responses", with(r#""conv_1""#)),
        ("POST", "/v1/responses", with(r#"{"id":"conv_1"}"#)),
        ("POST", "/v1/responses/input_tokens", with(r#""conv_1""#)),
        ("POST", "/v1/responses/compact", with(r#""conv_1""#)),
        ("POST", "/x/a", with(r#""conv_1""#)),
        ("GET", "/v1/conversations/conv_1", String::new()),
        ("GET", "/v1/conversations/conv%5F1/items", String::new()),
        ("DELETE", "/v1/conversations/conv_1", String::new()),
    ] {
        assert_eq!(send("k2", method, path, &body), 404, "{method} {path} {body}");
    }
    assert_eq!(
        send("k2", "POST", "/v1/responses", r#"{"model":"m","Conversation":"conv_1"}"#),
        400
    );
    assert_eq!(send("k2", "POST", "/v1/responses/compact", r#"{"Conversation":"conv_1"}"#), 400);
    assert!(engine.take_requests().is_empty(), "nothing reaches the engine");
    assert_eq!(send("k1", "POST", "/v1/responses", &with(r#"{"id":"conv_1"}"#)), 200);
    assert_eq!(send("k1", "GET", "/v1/conversations/conv_1", ""), 200);
    assert_eq!(send("k2", "POST", "/v1/responses", &with(r#""conv_2""#)), 200, "its own");
}

#[test]
fn values_that_are_no_plain_ids_pass_no_check_of_the_owner() {
    let values = [
        r#""previous_response_id":5"#,
        r#""previous_response_id":["resp_1"]"#,
        r#""previous_response_id":"resp\u005f1""#,
        r#""conversation":["conv_1"]"#,
        r#""conversation":"conv\u005f1""#,
        r#""conversation":{"id":"c\u006fnv_1"}"#,
    ];
    let routing = "routing: { passthrough: { \"/v1/responses/*\": a } }\n";
    let keys = "auth: { keys: [{ name: a, key: k1 }, { name: b, key: k2 }] }\n";
    for (auth, is_refused) in [(keys, true), ("", false)] {
        let engine = OpenEngine::start("a");
        let items = engine.item("models: [m]");
        let penstock = Penstock::start(&format!("{auth}{routing}backends:\n{items}"));
        let send = |key: &str, path: &str, value: &str| {
            let key = format!("Bearer {key}");
            let fields = [("content-type", "application/json"), ("authorization", key.as_str())];
            let body = format!(r#"{{"model":"m","input":"x",{value}}}"#);
            request(penstock.data, "POST", path, &fields, body.as_bytes())
        };
        assert_eq!(send("k1", "/v1/responses", r#""conversation":"conv_1""#).status, 200);
        engine.take_requests();
        for value in values {
            for path in ["/v1/responses", "/v1/responses/compact"] {
                let response = send("k2", path, value);
                let text = response.text();
                assert_eq!(response.status == 400, is_refused, "{path} {value}: {text}");
                if is_refused {
                    let error = response.json()["error"].clone();
                    assert_eq!(error["code"], "invalid_type", "{error}");
                    assert!(
                        value.contains(error["param"].as_str().unwrap().split('.').next().unwrap())
                    );
                }
            }
        }
        assert_eq!(engine.take_requests().is_empty(), is_refused, "nothing reaches the engine");
        assert_eq!(send("k1", "/v1/responses", r#""previous_response_id":null"#).status, 200);
    }
}

#[test]
fn response_that_no_backend_can_have_is_a_404() {
    let engine = OpenEngine::start("a");
    let items = engine.item("engine: other, models: [{ id: m, operations: [chat] }]");
    let penstock = Penstock::start(&format!("backends:\n{items}"));
    for (method, path) in [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ] {
        let response = request(penstock.data, method, path, &[], b"");
        assert_eq!((response.status, response.error_code().as_str()), (404, "response_not_found"));
        assert_eq!(response.header("x-should-retry"), Some("false"));
    }
}
