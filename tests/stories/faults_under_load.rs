//! Users of a busy fleet notice little when engines fail in many ways at once, and whatever they get
//! is right to the last byte.

use std::time::{Duration, Instant};

use penstock::mock::{Cut, Fault};
use serde_json::Value;

use crate::support::client::{Answer, Client, chat, streaming_chat};
use crate::support::fleet::{CHAT, Fleet, Setup, name, reference};
use crate::support::pace::pause_until;

crate::trials![
    faults_that_can_be_hidden_are_hidden_under_load,
    every_byte_is_right_whatever_fails_under_load,
];

/// What a request may be answered with when all is well.
struct Case {
    body: Value,
    answers: Vec<String>,
}

fn cases() -> Vec<Case> {
    let texts = ["hello", "how much water?", "…и ещё", "short"];
    let bodies = texts.iter().flat_map(|text| [chat("m", text), streaming_chat("m", text)]);
    let answers =
        |body: &Value| (0..3).map(|one| reference(&name(one), CHAT, body).text()).collect();
    bodies.map(|body| Case { answers: answers(&body), body }).collect()
}

const CLIENTS: u32 = 8;

/// Sends about 200 requests per second for 2.5 seconds; gives every answer with its case.
fn drive<'a>(fleet: &Fleet, cases: &'a [Case]) -> Vec<(&'a Case, Answer)> {
    let address = fleet.penstock.data;
    let started = Instant::now();
    std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|number| {
            scope.spawn(move || {
                let mut client = Client::connect(address);
                let mut answers = Vec::new();
                for (turn, case) in (0_u32..62).zip(cases.iter().cycle().skip(number as usize)) {
                    let due = Duration::from_millis(40) * turn + Duration::from_millis(5) * number;
                    pause_until(started, due);
                    client.send("POST", CHAT, &[], case.body.to_string().as_bytes());
                    let answer = client.read_answer().unwrap();
                    let is_told = answer.status == 200 && answer.text().contains("\"error\"");
                    let is_last = answer.header("connection") == Some("close");
                    if is_told || is_last || !answer.is_whole {
                        client = Client::connect(address);
                    }
                    answers.push((case, answer));
                }
                answers
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

fn faults_that_can_be_hidden_are_hidden_under_load() {
    let fleet = mixed_fleet();
    let cases = cases();
    let slow = Fault::SlowHead(Duration::from_millis(30));
    for (offset, engine) in fleet.engines.iter().enumerate() {
        let mut hidden = vec![
            Fault::Informational { count: 3 },
            Fault::CloseAfterAnswer,
            Fault::status(503),
            Fault::BigHead { bytes: 4096 },
            slow.clone(),
            Fault::CloseDelimited,
            Fault::status_with_retry(429, "0"),
        ];
        // When all refuse at the same time, that cannot be hidden: one never does.
        if offset == 2 {
            hidden.retain(|fault| !matches!(fault, Fault::Status { .. }));
        }
        let spaced = |fault: Fault| [Fault::Pass, fault, Fault::Pass, Fault::Pass];
        engine.script((0..6).flat_map(|_| hidden.clone()).flat_map(spaced));
    }
    let answers = drive(&fleet, &cases);
    let sent = fleet.requests();
    let visible: Vec<String> = answers
        .iter()
        .filter(|(_, answer)| answer.status != 200)
        .map(|(_, answer)| format!("{} {}", answer.status, answer.text()))
        .collect();
    assert!(visible.len() <= 1, "{} of {}: {visible:?}", visible.len(), answers.len());
    for (case, answer) in answers.iter().filter(|(_, answer)| answer.status == 200) {
        assert!(answer.is_whole && case.answers.contains(&answer.text()), "{}", answer.text());
    }
    assert!(sent * 4 <= answers.len() * 5, "{sent} requests for {}", answers.len());
    assert!(fleet.engines.iter().all(|engine| engine.faults_left() < 60), "the faults were met");
}

fn every_byte_is_right_whatever_fails_under_load() {
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
            Fault::CutAnswer { how: Cut::ShortLength },
            Fault::ResetAfterRequest,
            Fault::CloseAfterAnswer,
        ];
        let spaced = |fault: Fault| [fault, Fault::Pass, Fault::Pass];
        engine.script((0..4).flat_map(|_| mix.clone()).flat_map(spaced));
    }
    let answers = drive(&fleet, &cases);
    let mut good = 0;
    for (case, answer) in &answers {
        let text = answer.text();
        match answer.status {
            200 if case.answers.contains(&text) => good += 1,
            200 => {
                let told = text.find("data: {\"error\"").unwrap_or(text.len());
                assert!(told < text.len() || !answer.is_whole, "a cut answer looks whole: {text}");
                assert!(!text.contains("[DONE]"), "{text}");
                let begun = &text[..told];
                let is_prefix = case.answers.iter().any(|whole| whole.starts_with(begun));
                assert!(is_prefix, "bytes nobody sent: {text}");
            }
            500 => assert_eq!(answer.json()["error"]["message"], "scripted"),
            502 | 503 | 429 => assert!(answer.json()["error"]["message"].is_string(), "{text}"),
            status => panic!("{status}: {text}"),
        }
    }
    assert!(good * 2 > answers.len(), "{good} of {} went well", answers.len());
    let malformed: usize = fleet.engines.iter().map(|engine| engine.malformed().len()).sum();
    assert_eq!(malformed, 0);
    fleet.wait_idle();
}
