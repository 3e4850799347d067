//! The predicted prefix caches follow the engines: a prediction ends when the engine restarts, and
//! a backend that did not serve a prompt is not predicted to have it.

use penstock_mock::Fault;
use serde_json::json;

use crate::support::fleet::{CHAT, Fleet, SOON, Setup, name};
use crate::support::{block_on, client, eventually};
use crate::weighted_scorers::{backend_of, conversation, weighted};

#[test]
fn engine_restart_clears_its_prefix_index() {
    let setup = Setup {
        strategy: "weighted",
        routing: "shadow: { strategy: weighted }",
        sections: "telemetry: { interval: 20ms, idle_interval: 50ms, max_cpu: 1 }",
        backend: "engine: vllm",
        ..Setup::default()
    };
    let fleet = Fleet::start(1, setup);
    let page = |started: u32| {
        let text = format!("vllm:num_requests_running 0\nprocess_start_time_seconds {started}\n");
        fleet.a().set_page("/metrics", Some(&text));
    };
    page(100);
    eventually("its metrics were scraped", SOON, || {
        fleet.fact("a", "telemetry")["standing"] == "fresh"
    });
    let prompt = conversation(1, 3);
    let question = json!({"path": CHAT, "body": prompt.to_string()});
    let explained = || client::post(fleet.penstock.admin, "/explain", &question).json();
    let matched = || explained()["decision"]["candidates"][0]["matched_blocks"].as_u64().unwrap();
    let shadowed = |count: f64| {
        let name = "penstock_shadow_decisions_total{result=\"same\"}";
        eventually("the shadow has seen it", SOON, || fleet.metric(name) == count);
        fleet.metric("penstock_shadow_expected_tokens_total{side=\"shadow\"}")
    };
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert!(matched() > 10, "{}", explained());
    assert_eq!(shadowed(1.0), 0.0);
    page(200);
    fleet.wait_metric("penstock_backend_restarts_total{backend=\"a\"}", 1.0);
    assert_eq!(matched(), 0, "it is known before the next request");
    assert_eq!(fleet.metric("penstock_backend_prefix_blocks{backend=\"a\"}"), 0.0);
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert_eq!(shadowed(2.0), 0.0, "the shadow knows it as well");
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert!(matched() > 10 && shadowed(3.0) > 160.0);
    assert_eq!(fleet.metric("penstock_decisions_without_telemetry_total"), 0.0);
    fleet.a().set_page("/metrics", None);
    eventually("it is silent", SOON, || fleet.fact("a", "telemetry")["standing"] != "fresh");
    assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
    assert_eq!(fleet.metric("penstock_decisions_without_telemetry_total"), 1.0);
}

#[test]
fn failed_request_is_not_recorded_as_cached() {
    let fleet = weighted("prefix-affinity:1");
    let prompt = conversation(1, 3);
    let question = json!({"path": CHAT, "body": prompt.to_string()});
    let explained = || client::post(fleet.penstock.admin, "/explain", &question).json();
    let home = explained()["decision"]["backend"].as_str().unwrap().to_owned();
    let index = (0..fleet.engines.len()).find(|index| name(*index) == home).unwrap();
    block_on(fleet.engines[index].kill()).unwrap();
    let served = backend_of(&fleet.penstock.post(CHAT, &prompt));
    assert_ne!(served, home);
    for candidate in explained()["decision"]["candidates"].as_array().unwrap() {
        let matched = candidate["matched_blocks"].as_u64().unwrap();
        assert_eq!(matched > 0, candidate["backend"] == *served, "{candidate}");
    }
}

#[test]
fn reported_cached_tokens_correct_the_prediction() {
    let setup = Setup { strategy: "weighted", ..Setup::default() };
    let fleet = Fleet::start(1, setup);
    let prompt = conversation(1, 3);
    let question = json!({"path": CHAT, "body": prompt.to_string()});
    let matched = || {
        let explained = client::post(fleet.penstock.admin, "/explain", &question).json();
        explained["decision"]["candidates"][0]["matched_blocks"].as_u64().unwrap()
    };
    // An engine that reports how much of the prompt it had cached.
    let ask = |cached: u32| {
        let usage = json!({
            "prompt_tokens": 400, "completion_tokens": 1, "total_tokens": 401,
            "prompt_tokens_details": {"cached_tokens": cached}
        });
        let body = json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
            "choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": "yes"}}]
        });
        let whole = Fault::Status {
            status: 200,
            retry_after: None,
            body: body.to_string(),
            headers: Vec::new(),
        };
        fleet.a().script([whole]);
        assert_eq!(fleet.penstock.post(CHAT, &prompt).status, 200);
        fleet.wait_idle();
    };
    let tokens = |kind: &str| {
        let series = format!("penstock_tokens_total{{model=\"m\",backend=\"a\",type=\"{kind}\"}}");
        assert!(fleet.penstock.admin("/metrics").text().contains(&series), "no {series}");
        fleet.metric(&series)
    };
    ask(0);
    let predicted = matched();
    assert!(predicted > 10, "nothing was predicted, so a count of 0 corrects nothing");
    ask(320);
    assert_eq!(matched(), predicted, "enough was cached");
    let expected = tokens("expected");
    assert!(expected >= 160.0, "{expected}");
    assert_eq!(tokens("cached"), 320.0);
    ask(0);
    assert_eq!(matched(), 0, "the engine had evicted it");
    assert_eq!((tokens("cached"), tokens("expected")), (320.0, 2.0 * expected));
}
