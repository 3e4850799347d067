//! Stopping and resuming, cancellation, counting.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::net::TcpStream;

use super::client::Client;
use super::{chat, chat_stream, engine, post_chat, slow_engine};
use crate::{EngineModel, Fault, MockEngine, MockSpec, Pace};

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn leaving_clients_are_noticed_at_once() {
    let engine = slow_engine().await;
    for (number, body) in (1..).zip([chat(), chat_stream(), chat(), chat_stream()]) {
        let mut client = Client::connect(&engine).await;
        client.post(PATH, &body).await;
        engine.wait_for(|counters| counters.complete == number).await.unwrap();
        if number > 2 {
            client.reset()
        } else {
            drop(client)
        }
        engine.wait_for(|counters| counters.cancelled == number).await.unwrap();
    }
    let cancelled = &engine.cancelled()[0];
    assert_eq!(cancelled.target, PATH);
    assert!(cancelled.after < Duration::from_secs(60), "{:?}", cancelled.after);
    assert_eq!(engine.open_requests(), 0);
}

#[tokio::test]
async fn leaving_within_the_body_is_no_cancel() {
    let engine = engine().await;
    let mut client = Client::connect(&engine).await;
    let head = format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf");
    client.send(head.as_bytes()).await;
    engine.wait_for(|counters| counters.open_requests == 1).await.unwrap();
    drop(client);
    let counters = engine.wait_for(|counters| counters.incomplete == 1).await.unwrap();
    assert_eq!((counters.complete, counters.cancelled, counters.open_requests), (0, 0, 0));
    let received = &engine.received()[0];
    assert!(!received.complete && received.body.is_none());
}

#[tokio::test]
async fn stalled_reader_holds_the_stream_up() {
    let spec =
        MockSpec { pace: Pace::at_once(u32::MAX), ..MockSpec::new("a", [EngineModel::new("m")]) };
    let engine = MockEngine::start_local(spec).await.unwrap();
    let mut client = Client::connect(&engine).await;
    client.post(PATH, &chat_stream()).await;
    engine.wait_for(|counters| counters.events > 100).await.unwrap();
    drop(client);
    engine.wait_for(|counters| counters.cancelled == 1).await.unwrap();
}

#[tokio::test]
async fn pace_is_kept() {
    let pace = Pace {
        first_token: Duration::from_millis(20),
        per_token: Duration::from_millis(5),
        tokens: 5,
    };
    let spec = MockSpec { pace, ..MockSpec::new("a", [EngineModel::new("m")]) };
    let engine = MockEngine::start_local(spec).await.unwrap();
    for body in [chat(), chat_stream()] {
        let before = penstock_clock::now();
        post_chat(&engine, &body).await;
        let took = penstock_clock::now().since(before);
        assert!(took >= Duration::from_millis(40), "{took:?}");
    }
}

#[tokio::test]
async fn killed_engine_refuses_and_returns_on_its_port() {
    let engine = slow_engine().await;
    let mut client = Client::connect(&engine).await;
    client.post(PATH, &chat()).await;
    engine.wait_for(|counters| counters.complete == 1).await.unwrap();
    engine.kill().await.unwrap();
    assert_eq!(client.rest().await.bytes, b"");
    let refused = TcpStream::connect(engine.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let counters = engine.counters();
    assert_eq!((counters.open_connections, counters.open_requests), (0, 0));
    assert_eq!(counters.cancelled, 0, "it was the engine that left");
    engine.resume().await.unwrap();
    engine.script([Fault::status(418)]);
    assert_eq!(post_chat(&engine, &chat()).await.status, 418);
}

#[tokio::test]
async fn open_connections_outlive_the_listener() {
    let engine = engine().await;
    let mut client = Client::connect(&engine).await;
    client.post(PATH, &chat()).await;
    client.response().await.unwrap();
    engine.stop_listening().await.unwrap();
    assert!(TcpStream::connect(engine.addr()).await.is_err());
    client.post(PATH, &chat()).await;
    assert_eq!(client.response().await.unwrap().status, 200);
}

#[tokio::test]
async fn dropped_engine_closes_everything() {
    let engine = slow_engine().await;
    let addr = engine.addr();
    let mut client = Client::connect(&engine).await;
    client.post(PATH, &chat()).await;
    engine.wait_for(|counters| counters.complete == 1).await.unwrap();
    drop(engine);
    assert_eq!(client.rest().await.bytes, b"");
    assert!(TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn fault_for_always_gives_way_to_the_queue() {
    let engine = engine().await;
    engine.always(Some(Fault::status_with_retry(503, "1")));
    engine.script([Fault::Pass, Fault::status(429)]);
    for status in [200, 429, 503, 503] {
        assert_eq!(post_chat(&engine, &chat()).await.status, status);
    }
    engine.always(None);
    assert_eq!(post_chat(&engine, &chat()).await.status, 200);
    engine.always_probes(Some(Fault::status(500)));
    let mut probe = Client::connect(&engine).await;
    probe.get("/v1/models").await;
    assert_eq!(probe.response().await.unwrap().status, 500);
}

#[tokio::test]
async fn memory_is_bounded_and_can_be_cleared() {
    let spec = MockSpec { keep_bodies: false, ..MockSpec::new("a", [EngineModel::new("m")]) };
    let engine = MockEngine::start_local(spec).await.unwrap();
    let mut client = Client::connect(&engine).await;
    for _ in 0..300 {
        client.post(PATH, &chat()).await;
        client.response().await.unwrap();
    }
    engine.wait_for(|counters| counters.responded == 300).await.unwrap();
    assert_eq!(engine.received().len(), 256);
    assert!(engine.received().iter().all(|request| request.complete && request.body.is_none()));
    engine.clear();
    assert_eq!(engine.received().len(), 0);
    assert_eq!((engine.counters().requests, engine.counters().open_connections), (0, 1));
}
