//! Under load, engines fail in many ways at once: recoverable faults stay hidden from clients, and
//! every response is right to the last byte.

use std::time::{Duration, Instant};

use penstock_mock::{Cut, Fault};
use serde_json::Value;

use crate::support::client::{Client, Response, chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Setup, name, reference};
use crate::support::pace::pause_until;

/// The responses a request may get when no engine fails.
struct Case {
    body: Value,
    responses: Vec<String>,
}

fn cases() -> Vec<Case> {
    let texts = ["hello", "how much water?", "…и ещё", "short"];
    let bodies = texts.iter().flat_map(|text| [chat("m", text), streaming_chat("m", text)]);
    let responses =
        |body: &Value| (0..3).map(|one| reference(&name(one), CHAT, body).text()).collect();
    bodies.map(|body| Case { responses: responses(&body), body }).collect()
}

const CLIENTS: u32 = 8;

/// Sends about 200 requests per second for 2.5 seconds; gives every response with its case.
fn drive<'a>(fleet: &Fleet, cases: &'a [Case]) -> Vec<(&'a Case, Response)> {
    let address = fleet.penstock.data;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|number| {
            scope.spawn(move || {
                let mut client = Client::connect(address);
                let mut responses = Vec::new();
                for (turn, case) in (0_u32..62).zip(cases.iter().cycle().skip(number as usize)) {
                    let due = Duration::from_millis(40) * turn + Duration::from_millis(5) * number;
                    pause_until(started, due);
                    client.send("POST", CHAT, &[], case.body.to_string().as_bytes());
                    let response = client.read_response().unwrap();
                    let has_error_event =
                        response.status == 200 && response.text().contains("\"error\"");
                    let is_last = response.header("connection") == Some("close");
                    if has_error_event || is_last || !response.is_whole {
                        client = Client::connect(address);
                    }
                    responses.push((case, response));
                }
                responses
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

const QUICK_REST: &str = "cooldown: { default: 20ms, min: 20ms }, \
     retry_budget: { ratio: 1.0, per_second: 100 }";

fn mixed_fleet() -> Fleet {
    Fleet::start(3, Setup { strategy: "round_robin", routing: QUICK_REST, ..Setup::default() })
}

#[test]
fn recoverable_faults_are_hidden_under_load() {
    let fleet = mixed_fleet();
    let cases = cases();
    let slow = Fault::SlowHead(Duration::from_millis(30));
    for (offset, engine) in fleet.engines.iter().enumerate() {
        let mut hidden = vec![
            Fault::Informational { count: 3 },
            Fault::CloseAfterResponse,
            Fault::status(503),
            Fault::BigHead { bytes: 4096 },
            slow.clone(),
            Fault::CloseDelimited,
            Fault::status_with_retry(429, "0"),
        ];
        // If all refused at the same time, that could not be hidden: one never does. A 429 is
        // retried on one other backend, so only one sends it.
        if offset == 2 {
            hidden.retain(|fault| !matches!(fault, Fault::Status { .. }));
        }
        if offset == 1 {
            hidden.retain(|fault| !matches!(fault, Fault::Status { status: 429, .. }));
        }
        let spaced = |fault: Fault| [Fault::Pass, fault, Fault::Pass, Fault::Pass];
        engine.script((0..6).flat_map(|_| hidden.clone()).flat_map(spaced));
    }
    let responses = drive(&fleet, &cases);
    let sent = fleet.requests();
    let visible: Vec<String> = responses
        .iter()
        .filter(|(_, response)| response.status != 200)
        .map(|(_, response)| format!("{} {}", response.status, response.text()))
        .collect();
    assert!(visible.len() <= 1, "{} of {}: {visible:?}", visible.len(), responses.len());
    for (case, response) in responses.iter().filter(|(_, response)| response.status == 200) {
        assert!(
            response.is_whole && case.responses.contains(&response.text()),
            "{}",
            response.text()
        );
    }
    assert!(sent * 4 <= responses.len() * 5, "{sent} requests for {}", responses.len());
    assert!(fleet.engines.iter().all(|engine| engine.faults_left() < 60), "the faults were met");
}

#[test]
fn responses_are_intact_under_faults() {
    let fleet = mixed_fleet();
    let cases = cases();
    for engine in &fleet.engines {
        let cut = |how| Fault::CutStream { after_events: 3, how };
        let mix = [
            cut(Cut::Fin),
            Fault::CloseUnread,
            cut(Cut::Reset),
            Fault::status(500),
            Fault::QueuedSecondResponse,
            Fault::CloseAfterRequest,
            cut(Cut::BadChunk),
            Fault::Garbage,
            Fault::status(503),
            Fault::TwoLengths,
            Fault::ErrorEventMidStream { after_events: 2 },
            Fault::CutResponse { how: Cut::ShortLength },
            Fault::ResetAfterRequest,
            Fault::CloseAfterResponse,
        ];
        let spaced = |fault: Fault| [fault, Fault::Pass, Fault::Pass];
        engine.script((0..4).flat_map(|_| mix.clone()).flat_map(spaced));
    }
    let responses = drive(&fleet, &cases);
    let mut good = 0;
    for (case, response) in &responses {
        let text = response.text();
        match response.status {
            200 if case.responses.contains(&text) => good += 1,
            200 => {
                let error_at = text.find("data: {\"error\"").unwrap_or(text.len());
                assert!(
                    error_at < text.len() || !response.is_whole,
                    "a cut response looks whole: {text}"
                );
                assert!(!text.contains("[DONE]"), "{text}");
                let sent = &text[..error_at];
                let is_prefix = case.responses.iter().any(|whole| whole.starts_with(sent));
                assert!(is_prefix, "bytes that no engine sent: {text}");
            }
            500 => assert_eq!(response.json()["error"]["message"], "scripted"),
            502 | 503 | 429 => assert!(response.json()["error"]["message"].is_string(), "{text}"),
            status => panic!("{status}: {text}"),
        }
    }
    assert!(good * 2 > responses.len(), "{good} of {} went well", responses.len());
    let malformed: usize = fleet.engines.iter().map(|engine| engine.malformed().len()).sum();
    assert_eq!(malformed, 0);
    fleet.wait_idle();
}
