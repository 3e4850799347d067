//! Objectives of requests: the ways to set them, the predictions, and the requests that would miss
//! theirs.

use std::time::Duration;

use penstock_mock::{Cut, Fault, MockEngine, Pace};
use serde_json::{Value, json};

use crate::support::client::{Response, chat, request, streaming_chat};
use crate::support::eventually;
use crate::support::fleet::{CHAT, Fleet, SOON, Setup, begin, engine, yaml};
use crate::support::penstock::{Penstock, scratch};

const JSON: (&str, &str) = ("content-type", "application/json");

fn send(penstock: &Penstock, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
    let headers = [headers, &[JSON]].concat();
    request(penstock.data, "POST", path, &headers, body.to_string().as_bytes())
}

fn pace(first_token: u64, per_token: u64, tokens: u32) -> Pace {
    let millis = Duration::from_millis;
    Pace { first_token: millis(first_token), per_token: millis(per_token), tokens }
}

#[test]
fn bad_values_are_refused_in_every_dialect() {
    let fleet = Fleet::start(1, Setup::default());
    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "m", "max_tokens": 8, "messages": messages});
    for (name, value) in [
        ("x-slo-ttft-ms", "-1"),
        ("x-slo-tpot-ms", "soon"),
        ("x-priority", "high"),
        ("x-gateway-inference-objective", "gold"),
    ] {
        for path in [CHAT, "/v1/messages", "/api/chat"] {
            let response = send(&fleet.penstock, path, &[(name, value)], &body);
            assert_eq!(response.status, 400, "{path} {name}");
            let text = response.text();
            assert!(text.contains(name) && text.contains(value), "{text}");
        }
    }
    assert_eq!(fleet.requests(), 0);
}

#[test]
fn engines_get_no_control_headers() {
    let fleet = Fleet::start(1, Setup::default());
    let headers = [
        ("x-slo-ttft-ms", "500"),
        ("x-slo-tpot-ms", "50.5"),
        ("x-priority", "-3"),
        ("x-gateway-inference-fairness-id", "team-a"),
        ("x-prediction-based-scheduling", "true"),
        ("x-prediction-based-scheduling-off", "true"),
        ("x-mine", "kept"),
    ];
    let response = send(&fleet.penstock, CHAT, &headers, &chat("m", "hello"));
    assert_eq!(response.status, 200, "{}", response.text());
    let head = String::from_utf8(fleet.a().received()[0].head.to_vec()).unwrap().to_lowercase();
    assert!(head.contains("x-mine: kept"));
    for gone in ["x-slo", "x-priority", "x-gateway", "x-prediction"] {
        assert!(!head.contains(gone), "{head}");
    }
}

#[test]
fn objectives_are_named_by_key_and_model() {
    let sections = "objectives: { chat: { ttft: 500ms, priority: 5 } }\n\
                    models: { m: { objective: chat } }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    let named = [("x-gateway-inference-objective", "chat")];
    assert_eq!(send(&fleet.penstock, CHAT, &named, &chat("m", "hello")).status, 200);
    let named = [("x-gateway-inference-objective", "chats")];
    let response = send(&fleet.penstock, CHAT, &named, &chat("m", "hello"));
    assert!(response.text().contains("there is no such objective (chat)"), "{}", response.text());
}

fn prediction(penstock: &Penstock, backend: &str) -> Value {
    penstock.backend(backend)["models"][0]["prediction"].clone()
}

/// A pause of this machine looks like a change of the engine: more has to be seen then.
fn learn_until_trusted(fleet: &Fleet) {
    for _ in 0..500 {
        if prediction(&fleet.penstock, "a")["trusted"] == json!(true) {
            return;
        }
        assert_eq!(fleet.stream().status, 200);
    }
    panic!("predictions are not trusted");
}

#[test]
fn predictions_are_learned_and_leave_nothing() {
    let setup = Setup { routing: "predict: true", pace: pace(30, 5, 12), ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    assert_eq!(prediction(&fleet.penstock, "a"), Value::Null, "nothing was sent yet");
    for _ in 0..25 {
        assert_eq!(fleet.stream().status, 200);
    }
    learn_until_trusted(&fleet);
    let cut = begin(fleet.penstock.data, CHAT, &streaming_chat("m", "hello"));
    drop(cut);
    fleet.wait_idle();
    let found = prediction(&fleet.penstock, "a");
    assert!(found["first_tokens"].as_f64().unwrap() >= 25.0, "{found}");
    assert_eq!((&found["waiting"], &found["streams"]), (&json!(0.0), &json!(0.0)), "{found}");
    assert_eq!(found["trusted"], true, "{found}");
    let step = found["step_ms"].as_f64().unwrap();
    assert!((3.0..15.0).contains(&step), "tokens come every 5 ms: {found}");
    assert!(found["error"].as_f64().unwrap() < 0.5, "{found}");
    assert_eq!(fleet.metric("penstock_prediction_trusted"), 1.0);
    let learned = ["step_base", "step_stream", "step_context_token", "prefill_token"];
    let [base, stream, context, prompt] =
        learned.map(|name| fleet.metric(&format!("penstock_predicted_{name}_seconds")));
    let parts = base + stream + context * 200.0;
    assert!((0.003..0.015).contains(&parts), "{base} + {stream} + 200 x {context}");
    assert!(prompt >= 0.0, "{prompt}");
}

#[test]
fn predictions_are_explained_and_logged_beside_the_truth() {
    let path = scratch("access.log");
    let sections = format!("access_log: {{ path: \"{}\" }}", path.display());
    let (routing, pace) = ("predict: true", pace(30, 5, 12));
    let fleet = Fleet::start(1, Setup { routing, sections: &sections, pace, ..Setup::default() });
    for _ in 0..25 {
        assert_eq!(fleet.stream().status, 200);
    }
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    eventually("25 lines", SOON, || lines().len() >= 25);
    let last = lines().pop().unwrap();
    let time = |key: &str| last[key].as_f64().unwrap_or_else(|| panic!("{key}: {last}"));
    assert!((10.0..200.0).contains(&time("predicted_ttft_ms")), "{last}");
    assert!(time("predicted_ttft_p90_ms") >= time("predicted_ttft_ms"), "{last}");
    assert!((2.0..20.0).contains(&time("predicted_tpot_ms")), "{last}");
    assert!((4.0..50.0).contains(&time("tpot_ms")), "{last}");
    let body = chat("m", "hello").to_string();
    let question = json!({ "body": body }).to_string();
    let explained = request(fleet.penstock.admin, "POST", "/explain", &[JSON], question.as_bytes());
    let candidate = &explained.json()["decision"]["candidates"][0];
    assert!(candidate["prediction"]["ttft_ms"].as_f64().unwrap() > 1.0, "{candidate}");
    let text = candidate["predicted"].as_str().unwrap();
    assert!(text.starts_with("backlog ") && text.contains(" + prefill "), "{text}");
    let explain = |fields: &Value| {
        let question = json!({ "body": body, "headers": fields }).to_string();
        request(fleet.penstock.admin, "POST", "/explain", &[JSON], question.as_bytes()).json()
    };
    let explained = explain(&json!({ "x-slo-ttft-ms": "5000", "x-priority": "3" }));
    let objectives = json!({ "ttft_ms": 5000.0, "tpot_ms": null, "priority": 3 });
    assert_eq!(explained["objectives"], objectives);
    let candidate = &explained["decision"]["candidates"][0];
    let headroom = candidate["headroom_ms"].as_f64().unwrap();
    assert!((1000.0..5000.0).contains(&headroom), "{candidate}");
    let text = candidate["predicted"].as_str().unwrap();
    let end = format!("headroom {headroom:.0} ms");
    assert!(text.contains("(objective 5000 ms)") && text.ends_with(&end), "{text}");
    let refused = explain(&json!({ "x-slo-ttft-ms": "soon" }));
    assert_eq!(refused["error"]["status"], 400, "{refused}");
}

fn unequal(setup: Setup<'_>) -> Fleet {
    let engines = vec![engine("a", pace(150, 10, 12)), engine("b", pace(20, 4, 12))];
    let yaml = yaml(&engines, &["m", "m"], setup);
    Fleet { penstock: Penstock::start(&yaml), engines }
}

#[test]
fn faster_backend_gets_requests_with_objectives() {
    let setup = Setup { strategy: "slo", routing: "expose_decision: true", ..Setup::default() };
    let fleet = unequal(setup);
    for _ in 0..30 {
        let response =
            send(&fleet.penstock, CHAT, &[("x-slo-ttft-ms", "90")], &streaming_chat("m", "hello"));
        assert_eq!(response.status, 200, "{}", response.text());
        let decision = response.header("x-penstock-decision").unwrap();
        assert!(decision.contains("ttft-p90-ms="), "{decision}");
    }
    let slow = fleet.a().counters().requests;
    assert!(slow <= 5, "{slow} of 30 went to the slow one");
}

#[test]
fn engine_that_stops_after_first_tokens_is_avoided() {
    let setup = Setup { strategy: "slo", pace: pace(20, 10, 12), ..Setup::default() };
    let fleet = Fleet::start(2, setup);
    fleet.a().always(Some(Fault::HangMidStream { after_events: 2 }));
    let clients: Vec<_> = (0..4).map(|_| fleet.begin(&streaming_chat("m", "hello"))).collect();
    let stall = || prediction(&fleet.penstock, "a")["stall_ms"].as_f64().unwrap_or_default();
    eventually("its silence counts", SOON, || stall() > 3000.0);
    drop(clients);
    fleet.wait_idle();
    let before = fleet.a().counters().requests;
    for _ in 0..5 {
        assert_eq!(fleet.stream().status, 200);
    }
    assert_eq!(fleet.a().counters().requests, before);
    // A stream that gets its tokens ends the silence; without the other backend it is sent there at
    // once.
    fleet.a().always(None);
    let drained = request(fleet.penstock.admin, "POST", "/backends/b/drain", &[], b"");
    assert_eq!(drained.status, 200);
    assert_eq!(fleet.stream().status, 200);
    eventually("it works again", SOON, || stall() <= 0.0);
    assert_eq!(fleet.a().counters().requests, before + 1);
}

#[test]
fn sheddable_request_is_refused_where_it_would_be_late() {
    let setup = Setup { strategy: "slo", pace: pace(500, 5, 12), ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let late = [("x-slo-ttft-ms", "20"), ("x-priority", "-1")];
    let body = streaming_chat("m", "hello");
    assert_eq!(send(&fleet.penstock, CHAT, &late, &body).status, 200, "nothing is known yet");
    for _ in 0..15 {
        assert_eq!(send(&fleet.penstock, CHAT, &[("x-slo-ttft-ms", "20")], &body).status, 200);
    }
    learn_until_trusted(&fleet);
    fleet.wait_idle();
    assert_eq!(send(&fleet.penstock, CHAT, &late, &body).status, 200, "an idle one refuses none");
    let beside_another = || {
        let before = fleet.requests();
        let other = fleet.begin(&body);
        eventually("it reaches the engine", SOON, || fleet.requests() > before);
        other
    };
    let other = beside_another();
    let before = fleet.requests();
    let response = send(&fleet.penstock, CHAT, &late, &body);
    assert_eq!((response.status, response.error_code().as_str()), (429, "objective_missed"));
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=120).contains(&wait), "an idle one takes it: {wait}");
    assert!(response.text().contains("even an idle one"), "{}", response.text());
    assert_eq!(fleet.requests(), before);
    drop(other);
    let question = json!({ "body": body.to_string(), "headers": late });
    let question = question.to_string();
    let _other = beside_another();
    let explained = request(fleet.penstock.admin, "POST", "/explain", &[JSON], question.as_bytes());
    assert_eq!(explained.json()["error"]["code"], "objective_missed", "{}", explained.text());
    assert_eq!(send(&fleet.penstock, CHAT, &[("x-slo-ttft-ms", "20")], &body).status, 200);
    let easy = [("x-slo-ttft-ms", "5000"), ("x-priority", "-1")];
    assert_eq!(send(&fleet.penstock, CHAT, &easy, &body).status, 200);
}

#[test]
fn quote_says_where_and_when() {
    let quote = |penstock: &Penstock, body: &str| {
        request(penstock.admin, "POST", "/quote", &[JSON], body.as_bytes())
    };
    let plain = Fleet::start(1, Setup::default());
    let refused = quote(&plain.penstock, r#"{"tokens": 10}"#);
    assert_eq!((refused.status, refused.error_code().as_str()), (404, "no_predictions"));
    let fleet = unequal(Setup { strategy: "slo", ..Setup::default() });
    for _ in 0..10 {
        assert_eq!(fleet.stream().status, 200);
    }
    fleet.wait_idle();
    let found = quote(&fleet.penstock, r#"{"model": "m", "tokens": 10, "ttft_ms": 60000}"#).json();
    assert_eq!((&found["feasible"], &found["of"]), (&json!(true), &json!(2)), "{found}");
    assert_eq!(found["retry_after_s"], Value::Null);
    let found = quote(&fleet.penstock, r#"{"model": "m", "tokens": 100000, "ttft_ms": 1}"#).json();
    assert_eq!(found["feasible"], false, "{found}");
    assert_eq!(
        found["retry_after_s"],
        Value::Null,
        "not even an idle engine is that fast: {found}"
    );
    assert!(found["backends"][0]["terms"].as_str().unwrap().contains("prefill"), "{found}");
    for wrong in ["", "{}", r#"{"tokens": 1, "ttft_ms": 0}"#, r#"{"tokens": 1, "model": "none"}"#] {
        assert_eq!(quote(&fleet.penstock, wrong).status, 400, "{wrong}");
    }
}

#[test]
fn another_engine_version_is_learned_again() {
    let setup = Setup {
        routing: "predict: true",
        sections: "discovery: { interval: 100ms }",
        backend: "engine: vllm",
        pace: pace(30, 5, 12),
        ..Setup::default()
    };
    let engines = vec![engine("a", setup.pace)];
    let report = |version: &str| {
        engines[0].set_page("/version", Some(&json!({ "version": version }).to_string()));
    };
    report("0.19.0");
    let penstock = Penstock::start(&yaml(&engines, &["m"], setup));
    let fleet = Fleet { penstock, engines: Vec::new() };
    learn_until_trusted(&fleet);
    let before = prediction(&fleet.penstock, "a");
    report("0.20.0");
    eventually("it is another version", SOON, || {
        let found = prediction(&fleet.penstock, "a");
        found["trusted"] == json!(false) && found["first_tokens"] == json!(0.0)
    });
    let after = prediction(&fleet.penstock, "a");
    let steps = [&before, &after].map(|one| one["step_ms"].as_f64().unwrap());
    assert!((steps[1] / steps[0] - 1.0).abs() < 0.3, "a first guess is what was known: {steps:?}");
    learn_until_trusted(&fleet);
}

#[test]
fn new_backend_starts_like_another_one_or_as_configured() {
    let engines = vec![engine("a", pace(30, 5, 12)), engine("b", pace(30, 5, 12))];
    let routing = "predict: true";
    let penstock =
        Penstock::start(&yaml(&engines, &["m", "m"], Setup { routing, ..Setup::default() }));
    let fleet = Fleet { penstock, engines };
    learn_until_trusted(&fleet);
    assert!(fleet.b().received().is_empty(), "all requests go to the first one");
    eventually("what is known of one is a guess for the other", SOON, || {
        let [one, other] = ["a", "b"].map(|name| prediction(&fleet.penstock, name));
        let (known, guessed) = (one["step_ms"].as_f64(), other["step_ms"].as_f64());
        known.zip(guessed).is_some_and(|(known, guessed)| (guessed / known - 1.0).abs() < 0.2)
            && other["trusted"] == json!(false)
    });
    let backend = "step_times: h100/qwen3-32b/tp2";
    let setup = Setup { routing, backend, ..Setup::default() };
    let configured = Fleet::start(1, setup);
    let quoted =
        request(configured.penstock.admin, "POST", "/quote", &[JSON], br#"{"tokens": 100}"#);
    let tpot = quoted.json()["backends"][0]["tpot_ms"].as_f64().unwrap();
    assert!((14.8..15.2).contains(&tpot), "a step of the row takes 14.9 ms: {tpot}");
}

/// The durations of a `server-timing` field, in milliseconds.
fn timing(response: &Response, name: &str) -> Option<f64> {
    let metrics = response.header("server-timing")?.split(", ");
    let of = |metric: &str| metric.strip_prefix(name)?.strip_prefix(";dur=")?.parse().ok();
    metrics.filter_map(of).next()
}

#[test]
fn timing_is_in_the_head_where_it_is_requested() {
    let routing = "predict: true, expose_decision: true";
    let setup = Setup { routing, pace: pace(60, 5, 12), ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let body = streaming_chat("m", "hello");
    let wanted = [("x-penstock-timing", "1")];
    let streamed = send(&fleet.penstock, CHAT, &wanted, &body);
    let ttft = timing(&streamed, "ttft").unwrap();
    assert!((60.0..1000.0).contains(&ttft), "{ttft}");
    for predicted in
        ["predicted-ttft", "predicted-ttft-p90", "predicted-tpot", "predicted-tpot-p90"]
    {
        assert!(timing(&streamed, predicted).unwrap() > 0.0, "{predicted}");
    }
    let decision = streamed.header("x-penstock-decision").unwrap();
    for predicted in [";ttft-ms=", ";ttft-p90-ms=", ";tpot-ms="] {
        assert!(decision.contains(predicted), "with any strategy: {decision}");
    }
    let plain = send(&fleet.penstock, CHAT, &[], &body);
    assert_eq!(plain.header("server-timing"), None);
    assert_eq!(streamed.body.len(), plain.body.len(), "nothing is lost of the stream");
    let whole = send(&fleet.penstock, CHAT, &wanted, &chat("m", "hello"));
    assert!(timing(&whole, "ttft").unwrap() >= 60.0);
    let kept = |engine: &MockEngine| {
        engine.received().iter().any(|one| one.header("x-penstock-timing").is_some())
    };
    assert!(!kept(fleet.a()), "it is no header for engines");
    // The role comes before the first token: the head is held with it when the stream breaks off.
    fleet.a().script([Fault::CutStream { after_events: 1, how: Cut::Fin }]);
    let cut = send(&fleet.penstock, CHAT, &wanted, &body);
    assert_eq!((cut.status, timing(&cut, "ttft")), (200, None), "{}", cut.text());
    assert!(
        cut.text().contains("assistant") && cut.text().contains("upstream_closed"),
        "{}",
        cut.text()
    );
    let hidden = Fleet::start(1, Setup { routing: "predict: true", ..setup });
    let hidden = send(&hidden.penstock, CHAT, &wanted, &body);
    assert_eq!(hidden.header("server-timing"), None, "decisions are not exposed");
}
