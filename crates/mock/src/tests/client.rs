//! A client on a raw connection.

use std::io::{self, ErrorKind};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::MockEngine;

pub(super) struct Client {
    pub(super) stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

/// A response that ended early.
#[derive(Debug, PartialEq)]
pub(super) struct Broken {
    /// The bytes that arrived, with their framing.
    pub(super) bytes: Vec<u8>,
    /// The error; `None` for a FIN.
    pub(super) error: Option<ErrorKind>,
}

impl Response {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(super) fn has_header(&self, line: &str) -> bool {
        self.head.split("\r\n").any(|known| known.eq_ignore_ascii_case(line))
    }

    /// Returns the JSON data of each event.
    pub(super) fn events(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }
}

impl Client {
    pub(super) async fn connect(engine: &MockEngine) -> Self {
        Self { stream: TcpStream::connect(engine.addr()).await.unwrap(), buffer: Vec::new() }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(super) async fn get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value) {
        self.post_with(path, "", body.to_string().as_bytes()).await;
    }

    pub(super) async fn post_with(&mut self, path: &str, headers: &str, body: &[u8]) {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {length}\r\n\r\n");
        self.send(&[head.as_bytes(), body].concat()).await;
    }

    pub(super) async fn response(&mut self) -> Result<Response, Broken> {
        let end = self.until(b"\r\n\r\n").await?;
        let head = String::from_utf8(self.buffer.drain(..end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let value = |name: &str| {
            let line = head.split("\r\n").find(|line| line.starts_with(name))?;
            Some(line[name.len()..].to_owned())
        };
        let body = if (100..200).contains(&status) {
            Vec::new()
        } else if value("Transfer-Encoding: ").is_some() {
            self.chunks().await?
        } else if let Some(length) = value("Content-Length: ") {
            self.exactly(length.parse().unwrap()).await?
        } else {
            let broken = self.rest().await;
            assert_eq!(broken.error, None, "a body without a length ends with a FIN");
            broken.bytes
        };
        Ok(Response { status, head, body })
    }

    /// Reads everything until the connection ends.
    pub(super) async fn rest(&mut self) -> Broken {
        loop {
            if let Err(broken) = self.fill().await {
                return broken;
            }
        }
    }

    /// Reads until `mark` has arrived; returns the position of its end.
    pub(super) async fn until(&mut self, mark: &[u8]) -> Result<usize, Broken> {
        loop {
            let found = self.buffer.windows(mark.len()).position(|window| window == mark);
            if let Some(at) = found {
                return Ok(at + mark.len());
            }
            self.fill().await?;
        }
    }

    pub(super) fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    async fn chunks(&mut self) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        loop {
            let end = self.until(b"\r\n").await?;
            let line: Vec<u8> = self.buffer[..end].to_vec();
            let size = std::str::from_utf8(&line[..end - 2]).ok();
            let Some(size) = size.and_then(|size| usize::from_str_radix(size, 16).ok()) else {
                return Err(Broken { bytes: line, error: Some(ErrorKind::InvalidData) });
            };
            self.buffer.drain(..end);
            body.extend(self.exactly(size).await?);
            assert_eq!(self.exactly(2).await?, b"\r\n");
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, Broken> {
        while self.buffer.len() < length {
            self.fill().await?;
        }
        Ok(self.buffer.drain(..length).collect())
    }

    async fn fill(&mut self) -> Result<(), Broken> {
        let read: io::Result<usize> = self.stream.read_buf(&mut self.buffer).await;
        let error = match read {
            Ok(0) => None,
            Ok(_) => return Ok(()),
            Err(error) => Some(error.kind()),
        };
        Err(Broken { bytes: std::mem::take(&mut self.buffer), error })
    }
}
