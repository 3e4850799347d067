//! An operator says where the data of a model may go. Whatever a client sends, and whatever fails,
//! no backend outside sees a request: each story has one there that would be preferred.

use std::time::Duration;

use penstock_mock::{EngineModel, Fault, Gate, MockEngine, MockSpec, Pace};
use serde_json::{Value, json};

use crate::support::client::{Client, Response, chat, request, streaming_chat};
use crate::support::engines::{backend, serving_all, start};
use crate::support::fleet::{CHAT, FAULTS_FORGOTTEN, Fleet, SOON, Setup, begin, find_metric};
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

pub const SECRET: &str = "the secret";
/// Requests for `m` stay at home.
pub const PRIVATE: &str = "policies: [{ name: private, models: [m], zones: [home] }]\n";

/// An engine in the zone `home`, and one in the zone `away` that is tried first. Both serve `m` and
/// `n`.
pub struct Zones {
    pub near: MockEngine,
    pub far: MockEngine,
    pub penstock: Penstock,
}

impl Zones {
    pub fn start(sections: &str) -> Self {
        Self::with(sections, "", "")
    }

    /// The same with further keys of both backends.
    pub fn with(sections: &str, of_near: &str, of_far: &str) -> Self {
        let (near, far) = (engine("near"), engine("far"));
        let penstock = Penstock::start(&Self::yaml([&near, &far], sections, of_near, of_far));
        Self { near, far, penstock }
    }

    fn yaml(engines: [&MockEngine; 2], sections: &str, of_near: &str, of_far: &str) -> String {
        let models = format!("models: [{}, {}]", serving_all("m"), serving_all("n"));
        let near = format!("zone: home, priority: 90, {models}, {of_near}");
        let far = format!("zone: away, priority: 1, {models}, {of_far}");
        let [near, far] = [backend(engines[0], &near), backend(engines[1], &far)];
        format!("health: {{ {FAULTS_FORGOTTEN} }}\n{sections}backends:\n{near}{far}")
    }

    pub fn send(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        let json = [("content-type", "application/json")];
        let headers = [&json, headers].concat();
        request(self.penstock.data, "POST", path, &headers, body.to_string().as_bytes())
    }

    pub fn chat(&self, model: &str, headers: &[(&str, &str)]) -> Response {
        self.send(CHAT, headers, &chat(model, SECRET))
    }

    /// Nothing of a client has come to the backend outside.
    pub fn far_saw_nothing(&self, why: &str) {
        saw_nothing(&self.far, why);
    }
}

pub fn engine(name: &str) -> MockEngine {
    start(MockSpec::new(name, ["m", "n"].map(EngineModel::new)))
}

pub fn saw_nothing(engine: &MockEngine, why: &str) {
    let work = engine.received();
    let names: Vec<String> =
        work.iter().map(|one| format!("{} {}", one.method, one.path())).collect();
    assert!(names.is_empty(), "{why}: {names:?}");
    let has_secret = |body: &[u8]| body.windows(SECRET.len()).any(|at| at == SECRET.as_bytes());
    let leaks = engine
        .probes()
        .into_iter()
        .filter(|one| one.body.as_ref().is_some_and(|body| has_secret(body)));
    assert_eq!(leaks.count(), 0, "{why}");
}

/// A request with the secret for each operation that has a prompt.
fn with_prompt(model: &str) -> [(&'static str, Value); 11] {
    let messages = json!([{"role": "user", "content": SECRET}]);
    [
        (CHAT, json!({"model": model, "messages": messages})),
        ("/v1/completions", json!({"model": model, "prompt": SECRET})),
        ("/v1/responses", json!({"model": model, "input": SECRET})),
        ("/v1/responses/input_tokens", json!({"model": model, "input": SECRET})),
        ("/v1/embeddings", json!({"model": model, "input": SECRET})),
        ("/v1/rerank", json!({"model": model, "query": SECRET, "documents": [SECRET]})),
        ("/v1/messages", json!({"model": model, "max_tokens": 9, "messages": messages})),
        ("/v1/messages/count_tokens", json!({"model": model, "messages": messages})),
        ("/api/chat", json!({"model": model, "messages": messages, "stream": false})),
        ("/api/generate", json!({"model": model, "prompt": SECRET, "stream": false})),
        ("/api/embed", json!({"model": model, "input": SECRET})),
    ]
}

#[test]
fn every_operation_and_spelling_stays_in_the_zone() {
    let aliases = "routing: { strategy: priority_only, aliases: { fast: m, \"gpt-*\": m, both: [{ to: m }, { to: fast }] } }\n";
    let zones = Zones::start(&format!("{aliases}{PRIVATE}"));
    for (count, (path, body)) in (1..).zip(with_prompt("m")) {
        zones.send(path, &[], &body);
        zones.far_saw_nothing(path);
        assert_eq!(zones.near.received().len(), count, "{path} was served at home");
    }
    for name in ["M", "m:latest", "M:LATEST", "fast", "gpt-4", "both"] {
        assert_eq!(zones.chat(name, &[]).status, 200, "{name}");
        zones.far_saw_nothing(name);
    }
    for name in ["m ", " m", "m\u{200b}", "ｍ", "m:8b", "./m", "m\0", "library/m", "%6d"] {
        assert_eq!(zones.chat(name, &[]).status, 404, "{name:?} is no name of the model");
        zones.far_saw_nothing(name);
    }
    assert_eq!(zones.chat("n", &[]).status, 200);
    assert_eq!(zones.far.received().len(), 1, "no policy is about n");
}

#[test]
fn bodies_with_two_models_do_not_leave_the_zone() {
    // Of two fields with the same name the last one counts, for penstock as for engines.
    let zones = Zones::start(&format!("routing: {{ strategy: priority_only }}\n{PRIVATE}"));
    let messages = r#""messages":[{"role":"user","content":"the secret"}]"#;
    for body in [
        format!(r#"{{"model":"n","model":"m",{messages}}}"#),
        format!(r#"{{"Model":"n","model":"m",{messages}}}"#),
        format!(r#"{{"model":"\u006d",{messages}}}"#),
        format!(r#"{{"model":["n","m"],{messages}}}"#),
        format!(r#"{{"model":"m","models":["n"],"metadata":{{"model":"n"}},{messages}}}"#),
    ] {
        for path in [CHAT, "/v1/chat/completions?model=n"] {
            request(zones.penstock.data, "POST", path, &[], body.as_bytes());
            zones.far_saw_nothing(&body);
        }
    }
}

#[test]
fn failures_do_not_leave_the_zone() {
    let routing = "routing: { strategy: priority_only, retry_5xx: true, retry_unanswered: always, max_retries: 5, \
                   fallback_on_saturation: true, panic_threshold: 1.0, fallbacks: { m: [n, free], n: [m] }, aliases: { free: n } }\n";
    let zones = Zones::start(&format!(
        "{routing}policies: [{{ name: private, models: [m, n], zones: [home] }}]\n"
    ));
    for fault in [
        Fault::status(500),
        Fault::status(503),
        Fault::status_with_retry(429, "1"),
        Fault::CloseAfterRequest,
        Fault::ResetAfterRequest,
    ] {
        let name = format!("{fault:?}");
        zones.near.script([fault]);
        let response = zones.chat("m", &[]);
        assert_ne!(response.status, 200, "{name}: there is no other backend at home");
        zones.far_saw_nothing(&name);
    }
    block_on(zones.near.kill()).unwrap();
    for model in ["m", "n", "free"] {
        assert_ne!(zones.chat(model, &[]).status, 200);
        zones.far_saw_nothing("the only one at home is down");
    }
}

#[test]
fn fallback_to_a_model_of_another_zone_is_not_used() {
    let near = engine("near");
    let [far, also] = ["far", "also"].map(engine);
    let yaml = format!(
        "routing: {{ fallbacks: {{ m: [n, x] }}, aliases: {{ x: n }} }}\nhealth: {{ {FAULTS_FORGOTTEN} }}\n\
         {PRIVATE}backends:\n{}{}{}",
        backend(&near, "zone: home, models: [m]"),
        backend(&far, "zone: away, models: [n]"),
        backend(&also, "models: [n]"),
    );
    let penstock = Penstock::start(&yaml);
    block_on(near.kill()).unwrap();
    let response = penstock.post(CHAT, &chat("m", SECRET));
    assert_ne!(response.status, 200, "{}", response.text());
    for engine in [&far, &also] {
        saw_nothing(engine, "a fallback");
    }
    assert_eq!(penstock.chat("n").status, 200, "requests for it are served");
}

#[test]
fn waiting_stream_does_not_move_out_of_its_zone() {
    let pace = Pace {
        first_token: Duration::from_millis(20),
        per_token: Duration::from_millis(3),
        tokens: 12,
    };
    let setup = Setup {
        strategy: "round_robin",
        routing: "predict: true, move_waiting: true",
        sections: "timeouts: { first_token: 2s, response: 2s }\n\
                   policies: [{ name: private, models: [none], zones: [home] }, { name: a, models: [none], zones: [a] }]",
        backend: "zone: home",
        pace,
        ..Setup::default()
    };
    let fleet = Fleet::start(2, setup);
    let prediction = |name: &str| {
        fleet.penstock.backend(name)["models"][0]["prediction"]["trusted"] == json!(true)
    };
    for sent in 0.. {
        assert!(sent < 600, "predictions are not trusted");
        if sent >= 60 && prediction("a") && prediction("b") {
            break;
        }
        assert_eq!(fleet.stream().status, 200);
    }
    // `b` moves to another zone; what is known of it stays.
    let yaml = crate::support::fleet::yaml(&fleet.engines, &["m", "m"], setup);
    let (start, end) = yaml.rsplit_once("zone: home").unwrap();
    fleet.penstock.rewrite(&format!("{start}zone: away{end}"));
    assert_eq!(fleet.penstock.reload().status, 200);
    let before = fleet.b().counters().requests;
    fleet.a().script([Fault::HangBeforeHead]);
    let headers = [("content-type", "application/json"), ("x-penstock-policy", "private")];
    let body = streaming_chat("m", SECRET).to_string();
    let response = request(fleet.penstock.data, "POST", CHAT, &headers, body.as_bytes());
    assert_eq!(response.error_code(), "first_token_timeout", "{}", response.text());
    assert_eq!(fleet.b().counters().requests, before);
    fleet.a().script([Fault::HangBeforeHead]);
    assert_eq!([fleet.stream().status, fleet.stream().status], [200, 200], "others move");
}

/// A request at home that is held until the gate opens, and one that waits behind it.
fn line_up(zones: &Zones) -> (Gate, Client, Client) {
    let gate = Gate::new();
    zones.near.script([Fault::Gate(gate.clone())]);
    let first = begin(zones.penstock.data, CHAT, &chat("m", SECRET));
    block_on(gate.reached_by(1));
    let second = begin(zones.penstock.data, CHAT, &chat("m", SECRET));
    let waiting = "penstock_queue_requests{model=\"m\"";
    eventually("one waits", SOON, || find_metric(&zones.penstock, waiting) == Some(1.0));
    (gate, first, second)
}

const QUEUE: &str = "queue: { size: 10, timeout: 20s }\n";

#[test]
fn full_zone_is_waited_for() {
    let zones = Zones::with(&format!("{QUEUE}{PRIVATE}"), "max_in_flight: 1", "");
    let (gate, mut first, mut second) = line_up(&zones);
    gate.open();
    for client in [&mut first, &mut second] {
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    zones.far_saw_nothing("it was idle");
}

#[test]
fn reload_sends_no_waiting_request_out_of_its_zones() {
    let models = format!("models: [{}]", serving_all("m"));
    for (of_far, of_near, policy, why) in [
        ("away", "home", PRIVATE, "the same zones in another order"),
        ("zoo", "home", PRIVATE, "another zone in place of away"),
        ("a", "b", PRIVATE, "other zones"),
        ("home", "away", PRIVATE, "they change places"),
        ("away", "home", "", "no policies any more"),
        (
            "away",
            "home",
            "policies: [{ name: private, models: [m], zones: [away] }]\n",
            "the opposite",
        ),
    ] {
        let zones = Zones::with(&format!("{QUEUE}{PRIVATE}"), "max_in_flight: 1", "");
        let (gate, mut first, mut second) = line_up(&zones);
        let far = backend(&zones.far, &format!("zone: {of_far}, priority: 1, {models}"));
        let near = backend(&zones.near, &format!("zone: {of_near}, max_in_flight: 1, {models}"));
        zones.penstock.rewrite(&format!("{QUEUE}{policy}backends:\n{far}{near}"));
        assert_eq!(zones.penstock.reload().status, 200, "{why}");
        if of_far != "home" {
            gate.open();
            assert_eq!(second.read_response().unwrap().status, 200, "{why}");
            zones.far_saw_nothing(why);
        } else {
            // Where the name of the zone has gone, the request may go.
            assert_eq!(second.read_response().unwrap().status, 200, "{why}");
            assert_eq!(zones.far.received().len(), 1, "{why}");
            gate.open();
        }
        assert_eq!(first.read_response().unwrap().status, 200);
    }
}

#[test]
fn ensembles_stay_in_the_zone_of_their_model() {
    let near = engine("near");
    let far = engine("far");
    let sections = "ensembles: { enabled: true }\nmodels: { m: { ensemble: [m, n] } }\n";
    let items =
        backend(&near, "zone: home, models: [m]") + &backend(&far, "zone: away, models: [n]");
    for policy in [PRIVATE, "policies: [{ name: private, models: [\"moe-*\"], zones: [home] }]\n"] {
        let penstock = Penstock::start(&format!("{sections}{policy}backends:\n{items}"));
        let response = penstock.post(CHAT, &chat("moe-m", SECRET));
        assert_eq!(response.status, 200, "{}", response.text());
        let parts = response.header("x-penstock-ensemble").unwrap().to_owned();
        assert!(parts.starts_with("drafts=2;"), "{parts}: the draft of n is left out");
        saw_nothing(&far, policy);
        let body = json!({"path": CHAT, "body": chat("moe-m", SECRET).to_string()}).to_string();
        let explained = request(
            penstock.admin,
            "POST",
            "/explain",
            &[("content-type", "application/json")],
            body.as_bytes(),
        );
        let text = explained.text();
        assert!(
            text.contains("private") && text.contains("may only reach the zone home"),
            "{text}"
        );
    }
}

#[test]
fn shadow_and_captures_send_nothing() {
    let routing = "routing: { strategy: priority_only, shadow: { strategy: weighted, scorers: \"queue-depth:1\" } }\n";
    let zones = Zones::start(&format!("{routing}{PRIVATE}"));
    assert_eq!(zones.penstock.admin("/decisions?capture=true").status, 200);
    for _ in 0..5 {
        assert_eq!(zones.chat("m", &[]).status, 200);
    }
    let decided = "penstock_shadow_decisions_total";
    eventually("the shadow decided", SOON, || find_metric(&zones.penstock, decided) >= Some(5.0));
    zones.far_saw_nothing("a shadow");
}

#[test]
fn default_model_is_under_its_policy() {
    let routing = "routing: { strategy: priority_only, default_model: m }\n";
    let zones = Zones::start(&format!("{routing}{PRIVATE}"));
    let body = json!({"messages": [{"role": "user", "content": SECRET}]});
    assert_eq!(zones.send(CHAT, &[], &body).status, 200);
    zones.far_saw_nothing("no model is named");
}
