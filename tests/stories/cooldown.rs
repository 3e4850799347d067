//! Cooldown and saturation: overloaded engines get the pause they request, users get Retry-After at
//! once, and neither permits nor memory leak.

use std::time::Duration;

use penstock_mock::{Cut, Fault, Gate};
use serde_json::{Value, json};

use crate::support::client::{Client, Response, chat, streaming_chat, timed};
use crate::support::fleet::{CHAT, Fleet, Leave, SOON, Setup, read_until, reference};
use crate::support::penstock::scratch;
use crate::support::{block_on, eventually};

fn refusal(status: u16, retry_after: &str) -> Fault {
    Fault::Status {
        status,
        retry_after: Some(retry_after.to_owned()),
        body: format!(r#"{{"error":{{"message":"come back in {retry_after}","code":"busy"}}}}"#),
        headers: vec![("x-ratelimit-remaining".to_owned(), "0".to_owned())],
    }
}

fn assert_refused(response: &Response, status: u16, retry_after: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.header("retry-after"), Some(retry_after));
    assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    let expected =
        format!(r#"{{"error":{{"message":"come back in {retry_after}","code":"busy"}}}}"#);
    assert_eq!(response.text(), expected);
}

#[test]
fn last_refusal_is_relayed_unchanged() {
    for (first, last) in [(503, 429), (429, 503)] {
        let fleet = Fleet::start(2, Setup::default());
        fleet.a().script([refusal(first, "17")]);
        fleet.b().script([refusal(last, "23")]);
        assert_refused(&fleet.chat(), last, "23");
        assert_eq!(fleet.requests(), 2);
    }
    let date = "Fri, 31 Dec 2100 23:59:59 GMT";
    let fleet = Fleet::start(1, Setup::default());
    fleet.a().script([refusal(429, date)]);
    assert_refused(&fleet.stream(), 429, date);
}

#[test]
fn relayed_refusal_counts_as_busy_of_its_backend() {
    for status in [429, 503] {
        let path = scratch("access.log");
        let sections = format!("access_log: {{ path: {} }}", path.display());
        let fleet = Fleet::start(2, Setup { sections: &sections, ..Setup::default() });
        fleet.a().script([refusal(status, "17")]);
        fleet.b().script([refusal(status, "23")]);
        assert_refused(&fleet.chat(), status, "23");
        eventually("the request is counted", SOON, || {
            let page = fleet.penstock.admin("/metrics").text();
            let mut rows = page.lines().filter(|line| line.starts_with("penstock_requests_total{"));
            rows.any(|row| {
                row.contains("backend=\"b\"")
                    && row.contains("outcome=\"busy\"")
                    && row.contains(&format!("status=\"{status}\""))
                    && row.ends_with(" 1")
            })
        });
        let code = if status == 429 { "backends_cooling_down" } else { "all_backends_busy" };
        let page = fleet.penstock.admin("/metrics").text();
        let mut attempts = page.lines().filter(|line| line.starts_with("penstock_attempts_total{"));
        let label = format!("code=\"{code}\"");
        assert!(attempts.all(|row| row.contains(&label)), "{label} in {page}");
        let mut line = String::new();
        eventually("the request is logged", SOON, || {
            line = std::fs::read_to_string(&path).unwrap_or_default();
            line.ends_with('\n')
        });
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["backend"], &line["outcome"]), (&json!("b"), &json!("busy")), "{line}");
        assert_eq!((&line["status"], &line["error"]), (&json!(status), &Value::Null), "{line}");
    }
}

#[test]
fn clients_do_not_retry_what_every_backend_refused() {
    let with_own = |value: &str| Fault::Status {
        status: 429,
        retry_after: Some("60".to_owned()),
        body: "{}".to_owned(),
        headers: vec![("x-should-retry".to_owned(), value.to_owned())],
    };
    for (routing, refusals, expected) in [
        ("", [refusal(429, "17"), refusal(503, "60")], Some("false")),
        ("", [refusal(429, "17"), Fault::status(429)], None),
        ("", [refusal(429, "17"), refusal(429, "10")], None),
        ("", [refusal(429, "17"), with_own("true")], Some("true")),
        ("max_retries: 1", [refusal(429, "17"), refusal(503, "60")], Some("false")),
        ("max_retries: 0", [refusal(429, "60"), Fault::Pass], None),
    ] {
        let fleet = Fleet::start(2, Setup { routing, ..Setup::default() });
        let case = format!("{routing:?} {refusals:?}");
        let [a, b] = refusals;
        fleet.a().script([a]);
        fleet.b().script([b]);
        let response = fleet.chat();
        assert!(matches!(response.status, 429 | 503), "{case}: {}", response.status);
        assert_eq!(response.header("x-should-retry"), expected, "{case}");
    }
}

#[test]
fn one_probe_goes_to_the_first_cooldown_to_expire() {
    for (second, status, code) in
        [(429, 429, "backends_cooling_down"), (503, 503, "all_backends_busy")]
    {
        let fleet = Fleet::start(3, Setup::default());
        let gate = Gate::new();
        fleet.a().script([refusal(429, "40")]);
        fleet.b().script([refusal(second, "15"), Fault::Gate(gate.clone())]);
        fleet.c().script([refusal(429, "50")]);
        assert_refused(&fleet.chat(), second, "15");
        assert_refused(&fleet.chat(), 429, "50");
        let mut probe = fleet.begin(&chat("m", "hello"));
        block_on(gate.reached_by(1));
        for body in [chat("m", "hello"), streaming_chat("m", "hello"), chat("m", "hello")] {
            let response = fleet.penstock.post(CHAT, &body);
            assert_eq!((response.status, response.error_code().as_str()), (status, code));
            let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
            assert!(
                (8..=17).contains(&wait),
                "expected the shortest cooldown plus up to a tenth, got {wait}"
            );
        }
        assert_eq!(
            fleet.requests(),
            4,
            "one request probes the backend whose cooldown expires first"
        );
        gate.open();
        assert_eq!(probe.read_response().unwrap().status, 200);
        fleet.wait_fact("b", "cooldown_remaining_s", &Value::Null);
        for _ in 0..3 {
            assert_eq!(fleet.chat().status, 200, "the backend is used after its cooldown");
        }
        assert_eq!(fleet.b().counters().complete, 5);
        assert_eq!(fleet.requests(), 7, "the others stay in cooldown");
    }
}

#[test]
fn cooldown_probe_slot_is_always_freed() {
    let sections = "timeouts: { response: 2s }";
    let fleet = Fleet::start(1, Setup { sections, ..Setup::default() });
    fleet.a().script([refusal(429, "50")]);
    assert_refused(&fleet.chat(), 429, "50");
    let outcomes = [
        (refusal(429, "40"), 429),
        (refusal(503, "30"), 503),
        (Fault::status(500), 500),
        (Fault::status(400), 400),
        (Fault::CloseAfterRequest, 502),
        (Fault::Garbage, 502),
        (Fault::HangBeforeHead, 504),
    ];
    for (fault, status) in outcomes {
        fleet.wait_fact("a", "in_flight", &json!(0));
        // A failure on an idle connection would be retried.
        block_on(fleet.a().close_connections());
        fleet.a().script([fault.clone()]);
        assert_eq!(fleet.chat().status, status, "{fault:?}");
        assert_eq!(fleet.a().faults_left(), 0);
    }
    fleet.wait_fact("a", "in_flight", &json!(0));
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let client = fleet.begin(&streaming_chat("m", "hello"));
    block_on(gate.reached_by(1));
    drop(Leave::Reset.now(client));
    fleet.wait_fact("a", "in_flight", &json!(0));
    assert_eq!(fleet.chat().status, 200, "the cooldown is over");
    assert_eq!(fleet.fact("a", "cooldown_remaining_s"), Value::Null);
}

#[test]
fn cooldown_expires() {
    let fleet = Fleet::start(2, Setup::default());
    fleet.a().script([refusal(503, "1")]);
    let (_, took) = timed(|| {
        eventually("it is used again", SOON, || {
            assert_eq!(fleet.chat().status, 200);
            fleet.a().counters().requests > 1
        });
    });
    assert!(
        took >= Duration::from_millis(900),
        "Retry-After was one second, the cooldown {took:?}"
    );
}

#[test]
fn saturated_backends_reject_at_once() {
    let fleet = Fleet::start(2, Setup { backend: "max_in_flight: 2", ..Setup::default() });
    let gate = Gate::new();
    for engine in &fleet.engines {
        engine.always(Some(Fault::Gate(gate.clone())));
    }
    let mut waiting: Vec<Client> = (0..4).map(|_| fleet.begin(&chat("m", "hello"))).collect();
    block_on(gate.reached_by(4));
    for _ in 0..3 {
        let response = fleet.chat();
        assert_eq!((response.status, response.error_code().as_str()), (503, "all_backends_busy"));
        assert!(response.header("retry-after").is_some());
    }
    assert_eq!(fleet.requests(), 4, "no backend exceeds max_in_flight");
    gate.open();
    for client in &mut waiting {
        assert_eq!(client.read_response().unwrap().status, 200);
    }
    fleet.wait_idle();
    assert_eq!(fleet.chat().status, 200);
}

#[test]
fn sequential_requests_always_get_the_only_permit() {
    let fleet = Fleet::start(1, Setup { backend: "max_in_flight: 1", ..Setup::default() });
    for turn in 0..100 {
        let response = if turn % 2 == 0 { fleet.chat() } else { fleet.stream() };
        assert_eq!(response.status, 200, "turn {turn}: {}", response.text());
    }
}

#[test]
fn saturation_falls_back_only_if_configured() {
    for (enabled, status) in [(false, 503), (true, 200)] {
        let routing = format!("fallbacks: {{ m: [m2] }}, fallback_on_saturation: {enabled}");
        let setup = Setup { routing: &routing, backend: "max_in_flight: 1", ..Setup::default() };
        let fleet = Fleet::of(&["m", "m2"], setup);
        let gate = Gate::new();
        fleet.a().script([Fault::Gate(gate.clone())]);
        let mut first = fleet.begin(&chat("m", "hello"));
        block_on(gate.reached_by(1));
        assert_eq!(fleet.chat().status, status, "fallback_on_saturation: {enabled}");
        gate.open();
        assert_eq!(first.read_response().unwrap().status, 200);
    }
}

#[test]
fn all_unhealthy_is_rejected_at_once() {
    let health = "interval: 200ms, unhealthy_interval: 200ms, fall: 2";
    let fleet = Fleet::start(3, Setup { health, ..Setup::default() });
    for engine in &fleet.engines {
        block_on(engine.kill()).unwrap();
    }
    let ask = |fleet: &Fleet| {
        let response = fleet.chat();
        assert_eq!(response.status, 503, "{}", response.text());
        assert!(
            response.header("retry-after").is_some(),
            "{} {}",
            response.status,
            response.text()
        );
        response.error_code()
    };
    for _ in 0..3 {
        ask(&fleet);
    }
    eventually("every backend is unhealthy", SOON, || ask(&fleet) == "no_healthy_backend");
    assert_eq!(fleet.penstock.get("/health").status, 200, "penstock itself is healthy");
    for engine in &fleet.engines {
        block_on(engine.resume()).unwrap();
    }
    eventually("requests succeed again", SOON, || fleet.chat().status == 200);
}

#[test]
fn every_outcome_releases_its_permit() {
    let setup = Setup {
        routing: "cooldown: { default: 1ms, min: 1ms }",
        health: "interval: 60s, fast_interval: 60s, breaker: { connect_failures: 1000 }",
        sections: "timeouts: { first_token: 400ms, between_tokens: 400ms, response: 400ms }",
        // A single permit: a leaked one blocks every later request.
        backend: "max_in_flight: 1",
        ..Setup::default()
    };
    let fleet = Fleet::start(1, setup);
    let faults = [
        Fault::Pass,
        Fault::CloseUnread,
        Fault::CloseAfterRequest,
        Fault::ResetAfterRequest,
        Fault::status(400),
        Fault::status(429),
        Fault::status(500),
        Fault::status(503),
        Fault::EarlyStatus(413),
        Fault::HangBeforeHead,
        Fault::HangAfterHead,
        Fault::RoleOnlyThenHang,
        Fault::HangMidStream { after_events: 3 },
        Fault::CutStream { after_events: 2, how: Cut::Fin },
        Fault::CutStream { after_events: 2, how: Cut::Reset },
        Fault::CutStream { after_events: 2, how: Cut::BadChunk },
        Fault::CutResponse { how: Cut::ShortLength },
        Fault::ErrorEventMidStream { after_events: 2 },
        Fault::Garbage,
        Fault::Switching101,
        Fault::CloseDelimited,
    ];
    for fault in faults {
        for body in [chat("m", "hello"), streaming_chat("m", "hello")] {
            fleet.a().script([fault.clone()]);
            drop(fleet.penstock.post(CHAT, &body));
            let what = format!("the permit is free after {fault:?}");
            eventually(&what, SOON, || fleet.chat().status == 200);
        }
    }
    for how in Leave::BOTH {
        fleet.a().script([Fault::HangMidStream { after_events: 3 }]);
        let mut client = fleet.begin(&streaming_chat("m", "hello"));
        read_until(&mut client, "a serving m:");
        let left = how.now(client);
        eventually("the permit is free", SOON, || fleet.chat().status == 200);
        drop(left);
    }
    for body in [json!({"model": ""}), json!({"model": "unknown", "messages": []}), json!([])] {
        assert!(fleet.penstock.post(CHAT, &body).status >= 400);
    }
    block_on(fleet.a().kill()).unwrap();
    assert_eq!(fleet.chat().error_code(), "connect_failed");
    block_on(fleet.a().resume()).unwrap();
    assert_eq!(fleet.chat().status, 200);
    fleet.wait_idle();
    fleet.wait_metric("penstock_backend_in_flight", 0.0);
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
}

const SMALL: &str = "limits: { max_body_size: 1MiB, buffered_bodies: 1MiB }";

fn large(text: &str) -> Value {
    let mut body = chat("m", text);
    body["padding"] = json!("x".repeat(700 << 10));
    body
}

#[test]
fn buffered_bodies_are_bounded_before_reading() {
    let fleet = Fleet::start(1, Setup { sections: SMALL, ..Setup::default() });
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let mut holder = fleet.begin(&large("first"));
    block_on(gate.reached_by(1));
    let held = fleet.metric("penstock_held_body_bytes");
    assert!((700_000.0..=1_048_576.0).contains(&held), "{held}");
    // Only the head is sent: the response does not wait for the body.
    let mut second = Client::connect(fleet.penstock.data);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: 700000\r\n\r\n");
    second.send_bytes(head.as_bytes());
    let response = second.read_response().unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (503, "body_memory_full"));
    assert!(response.header("retry-after").is_some());
    // A body of unknown length is rejected once it exceeds the remaining budget.
    let mut third = Client::connect(fleet.penstock.data);
    let part = "x".repeat(64 << 10);
    let mut bytes =
        format!("POST {CHAT} HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n");
    bytes += &format!("{:x}\r\n{part}\r\n", part.len()).repeat(8);
    third.send_bytes(bytes.as_bytes());
    let response = third.read_response().unwrap();
    assert_eq!((response.status, response.error_code().as_str()), (503, "body_memory_full"));
    drop((second, third));
    fleet.wait_metric("penstock_errors_total{code=\"body_memory_full\"", 2.0);
    // Small bodies still fit.
    assert_eq!(fleet.chat().status, 200);
    gate.open();
    assert_eq!(holder.read_response().unwrap().status, 200);
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
    assert_eq!(fleet.penstock.post(CHAT, &large("second")).status, 200);
    assert_eq!(fleet.a().counters().requests, 3);
}

#[test]
fn body_is_released_at_the_first_response_byte() {
    let fleet = Fleet::start(1, Setup { sections: SMALL, ..Setup::default() });
    fleet.a().script([Fault::HangMidStream { after_events: 3 }]);
    let mut body = large("hello");
    body["stream"] = json!(true);
    let mut stream = fleet.begin(&body);
    read_until(&mut stream, "a serving m:");
    fleet.wait_metric("penstock_held_body_bytes", 0.0);
    let response = fleet.penstock.post(CHAT, &large("hello"));
    assert_eq!(response.text(), reference("a", CHAT, &large("hello")).text());
    drop(Leave::Reset.now(stream));
    fleet.wait_idle();
}
