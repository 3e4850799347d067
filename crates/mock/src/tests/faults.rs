//! Each fault, as a client sees it.

use std::io::ErrorKind;
use std::time::Duration;

use serde_json::Value;

use super::client::{Broken, Client};
use super::{chat, chat_stream, engine, post_chat};
use crate::{Cut, Fault, Gate, MockEngine};

const PATH: &str = "/v1/chat/completions";

/// Sends a request that meets `fault`.
async fn meet(engine: &MockEngine, fault: Fault, body: &Value) -> Client {
    engine.script([fault]);
    let mut client = Client::connect(engine).await;
    client.post(PATH, body).await;
    client
}

async fn meet_and_break(fault: Fault, body: &Value) -> Broken {
    let engine = engine().await;
    let broken = meet(&engine, fault, body).await.rest().await;
    engine.wait_for(|counters| counters.open_requests == 0).await.unwrap();
    assert_eq!(engine.counters().responded, 0, "not a whole response");
    assert_eq!(engine.counters().faults, 1);
    assert_eq!(engine.faults_left(), 0);
    assert_eq!(post_chat(&engine, &chat()).await.status, 200, "the script is over");
    broken
}

fn text(broken: &Broken) -> String {
    String::from_utf8(broken.bytes.clone()).unwrap()
}

#[tokio::test]
async fn connections_are_refused_at_accept() {
    let engine = engine().await;
    engine.script([Fault::CloseOnAccept, Fault::ResetOnAccept]);
    let expected = [None, Some(ErrorKind::ConnectionReset)];
    for error in expected {
        assert_eq!(Client::connect(&engine).await.rest().await.error, error);
    }
    assert_eq!(post_chat(&engine, &chat()).await.status, 200);
    assert_eq!(engine.received().len(), 1);
}

#[tokio::test]
async fn unread_requests_end_in_a_reset() {
    let engine = engine().await;
    let mut client = Client::connect(&engine).await;
    client.post(PATH, &chat()).await;
    client.response().await.unwrap();
    engine.script([Fault::CloseUnread]);
    let mut probe = Client::connect(&engine).await;
    probe.get("/health").await;
    assert_eq!(probe.response().await.unwrap().status, 200, "probes take no fault");
    client.post(PATH, &chat()).await;
    assert_eq!(client.rest().await.error, Some(ErrorKind::ConnectionReset), "on a reused one too");
    assert_eq!(engine.received().len(), 1, "the second was never read");
}

#[tokio::test]
async fn read_requests_can_end_without_a_response() {
    for (fault, error) in [
        (Fault::CloseAfterRequest, None),
        (Fault::ResetAfterRequest, Some(ErrorKind::ConnectionReset)),
    ] {
        assert_eq!(meet_and_break(fault, &chat()).await, Broken { bytes: Vec::new(), error });
    }
}

#[tokio::test]
async fn status_carries_what_it_is_given() {
    let engine = engine().await;
    let body = r#"{"error":"busy"}"#.to_owned();
    let headers = vec![("X-Why".to_owned(), "full".to_owned())];
    let retry_after = Some("7".to_owned());
    let fault = Fault::Status { status: 503, retry_after, body: body.clone(), headers };
    let mut client = meet(&engine, fault, &chat_stream()).await;
    let response = client.response().await.unwrap();
    assert_eq!((response.status, response.text()), (503, body));
    assert!(response.has_header("retry-after: 7") && response.has_header("x-why: full"));
    client.post(PATH, &chat()).await;
    assert_eq!(client.response().await.unwrap().status, 200, "the connection lives on");
}

#[tokio::test]
async fn early_status_comes_before_the_body() {
    let engine = engine().await;
    engine.script([Fault::EarlyStatus(413)]);
    let mut client = Client::connect(&engine).await;
    client.send(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n").await;
    assert_eq!(client.response().await.unwrap().status, 413);
    assert_eq!(client.rest().await.error, None);
    assert!(!engine.received()[0].complete);
}

#[tokio::test]
async fn hangs_last_until_the_client_leaves() {
    let hangs = [
        (Fault::HangBeforeHead, 0),
        (Fault::HangAfterHead, 0),
        (Fault::RoleOnlyThenHang, 1),
        (Fault::HangMidStream { after_events: 3 }, 3),
    ];
    for (fault, events) in hangs {
        let engine = engine().await;
        let mut client = meet(&engine, fault.clone(), &chat_stream()).await;
        if !matches!(fault, Fault::HangBeforeHead) {
            client.until(b"\r\n\r\n").await.unwrap();
        }
        let is_there = engine.wait_for(|seen| seen.complete == 1 && seen.events == events);
        is_there.await.unwrap();
        assert_eq!(engine.open_requests(), 1, "{fault:?}");
        drop(client);
        engine.wait_for(|counters| counters.cancelled == 1).await.unwrap();
        assert_eq!(engine.cancelled()[0].events as usize, events, "{fault:?}");
        assert_eq!(engine.open_requests(), 0);
    }
}

#[tokio::test]
async fn streams_are_cut_in_four_ways() {
    let cut = |how| Fault::CutStream { after_events: 3, how };
    for (how, error) in [
        (Cut::Fin, None),
        (Cut::Reset, Some(ErrorKind::ConnectionReset)),
        (Cut::BadChunk, None),
        (Cut::ShortLength, None),
    ] {
        let broken = meet_and_break(cut(how), &chat_stream()).await;
        assert_eq!(broken.error, error, "{how:?}");
        // A reset may overtake bytes that the client had not read yet.
        if how != Cut::Reset {
            assert_eq!(text(&broken).matches("data: {").count(), 3, "{how:?}");
        }
        assert!(!text(&broken).contains("\r\n0\r\n"), "no clean end");
        assert_eq!(text(&broken).contains("\r\nnot a size\r\n"), how == Cut::BadChunk);
        assert_eq!(
            text(&broken).contains("Content-Length: 1099511627776"),
            how == Cut::ShortLength
        );
    }
    for (after_events, end) in
        [(0, "chunked\r\nCache-Control: no-cache\r\n\r\n"), (11, "[DONE]\n\n\r\n")]
    {
        let fault = Fault::CutStream { after_events, how: Cut::Fin };
        let broken = meet_and_break(fault, &chat_stream()).await;
        assert!(text(&broken).ends_with(end), "the head alone, and all but the last chunk");
    }
}

#[tokio::test]
async fn whole_responses_are_cut_in_half() {
    let whole = post_chat(&engine().await, &chat()).await.body;
    for how in [Cut::Fin, Cut::Reset, Cut::BadChunk, Cut::ShortLength] {
        let broken = meet_and_break(Fault::CutResponse { how }, &chat()).await;
        assert_eq!(broken.error.is_some(), how == Cut::Reset);
        if how != Cut::Reset {
            let half = std::str::from_utf8(&whole[..whole.len() / 2]).unwrap();
            assert!(text(&broken).contains(half), "{how:?}");
        }
        let end = std::str::from_utf8(&whole[whole.len() - 8..]).unwrap();
        assert!(!text(&broken).contains(end), "{how:?}");
    }
}

#[tokio::test]
async fn pings_do_not_end() {
    let engine = engine().await;
    let every = Duration::from_millis(1);
    let fault = Fault::PingsOnly { every, after_events: 2 };
    let mut client = meet(&engine, fault, &chat_stream()).await;
    let pings = b"8\r\n: ping\n\n\r\n".repeat(3);
    client.until(&pings).await.unwrap();
    drop(client);
    let counters = engine.wait_for(|counters| counters.cancelled == 1).await.unwrap();
    assert_eq!(counters.events, 2, "a ping is no event");
}

#[tokio::test]
async fn error_event_ends_the_stream_cleanly() {
    let engine = engine().await;
    let fault = Fault::ErrorEventMidStream { after_events: 2 };
    let stream = meet(&engine, fault.clone(), &chat_stream()).await.response().await.unwrap();
    assert_eq!(stream.events()[2]["error"]["code"], "engine_failed");
    assert!(!stream.text().contains("[DONE]"));
    engine.script([fault]);
    let stream = super::post(&engine, "/v1/messages", &chat_stream()).await;
    assert!(stream.text().contains("event: error\ndata: {"));
}

#[tokio::test]
async fn what_is_not_http_is_sent_as_it_is() {
    let garbage = meet_and_break(Fault::Garbage, &chat()).await;
    assert!(!garbage.bytes.starts_with(b"HTTP") && garbage.error.is_none());
    assert_eq!(text(&meet_and_break(Fault::Http09, &chat()).await), "a response without a head\n");
    let engine = engine().await;
    let mut client = meet(&engine, Fault::Switching101, &chat()).await;
    client.until(b"raw bytes of another protocol\xff").await.unwrap();
    drop(client);
    engine.wait_for(|counters| counters.cancelled == 1).await.unwrap();
}

#[tokio::test]
async fn unusual_framing_carries_the_same_response() {
    let engine = engine().await;
    let whole = post_chat(&engine, &chat()).await.body;
    let stream = post_chat(&engine, &chat_stream()).await.body;
    for fault in [
        Fault::TwoLengths,
        Fault::CloseDelimited,
        Fault::BigHead { bytes: 9000 },
        Fault::SlowHead(Duration::from_millis(2)),
        Fault::QueuedSecondResponse,
        Fault::CloseAfterResponse,
        Fault::Pass,
    ] {
        for (body, expected) in [(chat(), &whole), (chat_stream(), &stream)] {
            let response = meet(&engine, fault.clone(), &body).await.response().await.unwrap();
            assert_eq!(&response.body, expected, "{fault:?}");
            let has_both = response.head.contains("Content-Length")
                && response.has_header("Transfer-Encoding: chunked");
            assert_eq!(has_both, matches!(fault, Fault::TwoLengths));
            assert_eq!(response.head.len() > 9000, matches!(fault, Fault::BigHead { .. }));
            let closes = response.has_header("Connection: close");
            assert_eq!(closes, matches!(fault, Fault::CloseDelimited), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn second_response_follows_the_first() {
    let engine = engine().await;
    for body in [chat(), chat_stream()] {
        let mut client = meet(&engine, Fault::QueuedSecondResponse, &body).await;
        client.response().await.unwrap();
        assert_eq!(client.response().await.unwrap().text(), r#"{"poisoned":true}"#);
    }
}

#[tokio::test]
async fn early_hints_come_before_the_response() {
    let engine = engine().await;
    let mut client = meet(&engine, Fault::Informational { count: 3 }, &chat()).await;
    for _ in 0..3 {
        assert_eq!(client.response().await.unwrap().status, 103);
    }
    assert_eq!(client.response().await.unwrap().status, 200);
}

#[tokio::test]
async fn keep_alive_connection_is_closed_after_the_response() {
    let engine = engine().await;
    let mut client = meet(&engine, Fault::CloseAfterResponse, &chat()).await;
    let response = client.response().await.unwrap();
    assert!(!response.has_header("Connection: close"));
    assert_eq!(client.rest().await, Broken { bytes: Vec::new(), error: None });
    assert_eq!(engine.wait_for(|counters| counters.responded == 1).await.unwrap().cancelled, 0);
}

#[tokio::test]
async fn gate_holds_requests_until_it_opens() {
    let engine = engine().await;
    let gate = Gate::new();
    let mut held = meet(&engine, Fault::Gate(gate.clone()), &chat()).await;
    gate.reached_by(1).await;
    assert_eq!(post_chat(&engine, &chat()).await.status, 200, "others pass by");
    assert_eq!(engine.open_requests(), 1);
    gate.open();
    assert_eq!(held.response().await.unwrap().status, 200);
}
