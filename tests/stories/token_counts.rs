//! Clients count tokens, as Claude Code does, on engines without a path for it. An engine that
//! refuses to count, or is lost while it counts, is treated as one that refuses a chat.

use penstock_mock::Fault;
use serde_json::{Value, json};

use crate::support::client::Response;
use crate::support::fleet::{FAULTS_FORGOTTEN, Fleet, Setup};

const PATH: &str = "/v1/messages/count_tokens";

fn fleet(count: usize, sections: &str) -> Fleet {
    let models = vec!["{ id: m, operations: [chat, tokenize] }"; count];
    let (health, backend) = (FAULTS_FORGOTTEN, "api_key: sk-own");
    Fleet::of(&models, Setup { sections, health, backend, ..Setup::default() })
}

fn count(fleet: &Fleet, text: &str) -> Response {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    fleet.penstock.post(PATH, &body)
}

/// The requests of the engines since the last call.
fn requests(fleet: &Fleet) -> Vec<usize> {
    let requests = fleet.engines.iter().map(|engine| engine.received().len()).collect();
    fleet.engines.iter().for_each(|engine| engine.clear());
    requests
}

/// Asserts that a response is an error in Anthropic's form.
fn assert_error(response: &Response, status: u16) -> Value {
    let json = response.json();
    assert_eq!((response.status, &json["type"]), (status, &json!("error")), "{}", response.text());
    json["error"].clone()
}

#[test]
fn refused_or_lost_count_is_made_elsewhere() {
    for (fault, cooldown) in [
        (Fault::status_with_retry(429, "30"), json!(429)),
        (Fault::status_with_retry(503, "30"), json!(503)),
        (Fault::status(529), json!(529)),
        (Fault::status(401), json!(401)),
        (Fault::CloseAfterRequest, Value::Null),
        (Fault::ResetAfterRequest, Value::Null),
    ] {
        let case = format!("{fault:?}");
        let fleet = fleet(2, "");
        fleet.a().script([fault]);
        let counted = count(&fleet, "hello");
        assert_eq!(counted.status, 200, "{case}: {}", counted.text());
        assert!(counted.json()["input_tokens"].as_u64().unwrap() > 0, "{case}");
        assert_eq!(requests(&fleet), [1, 1], "{case}");
        assert_eq!(fleet.fact("a", "cooldown_status"), cooldown, "{case}");
        fleet.wait_idle();
    }
}

#[test]
fn count_that_every_engine_refuses_ends_with_the_refusal() {
    let fleet = fleet(3, "");
    let busy = || Some(Fault::status_with_retry(429, "30"));
    fleet.engines.iter().for_each(|engine| engine.always(busy()));
    let refused = count(&fleet, "hello");
    assert_eq!(assert_error(&refused, 429)["message"], "scripted");
    assert_eq!(refused.header("retry-after"), Some("30"));
    assert_eq!(requests(&fleet), [1, 1, 0], "a rate limit is met on one other backend at most");
    fleet.wait_idle();
}

#[test]
fn errors_of_a_count_go_to_its_client() {
    let fleet = fleet(2, "timeouts: { response: 2s }");
    for (fault, status) in [
        (Fault::status(400), 400),
        (Fault::status(413), 413),
        (Fault::status(500), 502),
        (Fault::Garbage, 502),
        (Fault::CutResponse { how: penstock_mock::Cut::Fin }, 502),
        (Fault::HangBeforeHead, 504),
    ] {
        let case = format!("{fault:?}");
        fleet.a().script([fault]);
        let error = assert_error(&count(&fleet, &case), status);
        let message = error["message"].as_str().unwrap();
        assert_eq!(message == "scripted", status < 500, "{case}: {message}");
        assert_eq!(requests(&fleet), [1, 0], "{case}: nothing is sent twice");
    }
    // A prompt that has cost two engines their connections goes to no third one.
    fleet.engines.iter().for_each(|engine| engine.script([Fault::CloseAfterRequest]));
    let lost = count(&fleet, "lost");
    assert_error(&lost, 502);
    assert_eq!(lost.header("x-should-retry"), Some("false"));
    assert_eq!(requests(&fleet), [1, 1]);
    assert_eq!(count(&fleet, "hello").status, 200);
    fleet.wait_idle();
}
