//! The strict parsing of requests, and the records of malformed input.

use super::client::Client;
use super::{chat, engine, post_chat};

#[tokio::test]
async fn head_and_body_are_kept_byte_for_byte() {
    let engine = engine().await;
    let body = format!(" {} ", chat());
    let mut client = Client::connect(&engine).await;
    let path = "/v1/chat/completions?x=1";
    client.post_with(path, "X-One: a\r\nx-one:b \r\n", body.as_bytes()).await;
    assert_eq!(client.response().await.unwrap().status, 200);
    let received = engine.received().remove(0);
    assert_eq!((received.method.as_str(), received.target.as_str()), ("POST", path));
    assert_eq!(received.path(), "/v1/chat/completions");
    assert!(received.head.starts_with(b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: x\r\n"));
    assert!(received.head.ends_with(b"\r\n\r\n"));
    assert_eq!(received.headers[2], ("x-one".to_owned(), "b".to_owned()));
    assert_eq!(received.header("X-ONE"), Some("a"));
    assert_eq!(received.body.as_deref(), Some(body.as_bytes()));
    assert!(received.complete);
}

#[tokio::test]
async fn chunked_bodies_are_joined() {
    let engine = engine().await;
    let body = chat().to_string();
    let (one, two) = body.split_at(7);
    let mut client = Client::connect(&engine).await;
    client
        .send(
            format!(
                "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {:x}\r\n{one}\r\n{:X}\r\n{two}\r\n0\r\n\r\n",
                one.len(),
                two.len()
            )
            .as_bytes(),
        )
        .await;
    assert_eq!(client.response().await.unwrap().status, 200);
    assert_eq!(engine.received()[0].body.as_deref(), Some(body.as_bytes()));
}

#[tokio::test]
async fn keep_alive_connections_are_counted_separately() {
    let engine = engine().await;
    let mut client = Client::connect(&engine).await;
    for _ in 0..2 {
        client.post("/v1/chat/completions", &chat()).await;
        assert_eq!(client.response().await.unwrap().status, 200);
    }
    post_chat(&engine, &chat()).await;
    let connections: Vec<u64> =
        engine.received().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [1, 1, 2]);
    assert_eq!(engine.connections_accepted(), 2);
}

#[tokio::test]
async fn bodies_of_many_megabytes_arrive_whole() {
    let engine = engine().await;
    let body = vec![b'x'; 40 << 20];
    let mut client = Client::connect(&engine).await;
    client.post_with("/v1/chat/completions", "", &body).await;
    assert_eq!(client.response().await.unwrap().status, 400, "not JSON, but read");
    assert_eq!(engine.received()[0].body.as_ref().unwrap().len(), 40 << 20);
}

#[tokio::test]
async fn expectation_is_met_before_the_body() {
    let engine = engine().await;
    let body = chat().to_string();
    let mut client = Client::connect(&engine).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send(head.as_bytes()).await;
    assert_eq!(client.response().await.unwrap().status, 100);
    client.send(body.as_bytes()).await;
    assert_eq!(client.response().await.unwrap().status, 200);
}

#[tokio::test]
async fn requests_that_need_lenience_are_reported() {
    let engine = engine().await;
    let post = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n";
    let given = [
        "POST /v1 HTTP/1.1\nHost: x\n\n".to_owned(),
        "POST /v1 HTTP/2.0\r\nHost: x\r\n\r\n".to_owned(),
        "POST  /v1 HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
        "POST /v1 HTTP/1.1\r\n\r\n".to_owned(),
        "POST /v1 HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n".to_owned(),
        format!("{post}A: b\r\n folded\r\n\r\n"),
        format!("{post}A : b\r\n\r\n"),
        format!("{post}A: \x01\r\n\r\n"),
        format!("{post}Content-Length: +1\r\n\r\nx"),
        format!("{post}Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
        format!("{post}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n"),
    ];
    for request in &given {
        let mut client = Client::connect(&engine).await;
        client.send(request.as_bytes()).await;
        assert_eq!(client.response().await.unwrap().status, 400, "{request:?}");
        assert_eq!(client.rest().await.bytes, b"", "closed after the refusal");
    }
    assert_eq!(engine.malformed().len(), given.len());
    assert_eq!(engine.malformed()[0].bytes, given[0].as_bytes());
}
