//! Posts spans to a collector: OTLP over HTTP in its JSON encoding, a request per batch. A batch
//! that does not get through is lost and counted: spans are worth no memory that requests need.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::json;

use crate::config::BackendUrl;
use crate::observe::queue::Sink;

/// How long a collector may take for each step.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most of its answer that is read.
const ANSWER_LIMIT: u64 = 64 * 1024;
const MAX_HEADERS: usize = 64;

/// Where spans go.
pub(super) struct Collector {
    endpoint: BackendUrl,
    /// What stands before and behind the spans of a batch.
    envelope: (String, &'static str),
}

impl Collector {
    pub(super) fn new(endpoint: BackendUrl, service_name: &str) -> Self {
        let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
        let version = env!("CARGO_PKG_VERSION");
        let resource = json!({"attributes": [
            text("service.name", service_name),
            text("service.version", version),
        ]});
        let scope = json!({"name": "penstock", "version": version});
        let before = format!(
            r#"{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{{"scope":{scope},"spans":["#
        );
        Self { endpoint, envelope: (before, "]}]}]}") }
    }

    fn to_body(&self, batch: &[Vec<u8>]) -> Vec<u8> {
        let (before, behind) = &self.envelope;
        let mut body = before.as_bytes().to_vec();
        for (index, span) in batch.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(span);
        }
        body.extend_from_slice(behind.as_bytes());
        body
    }

    fn post(&self, body: &[u8]) -> io::Result<u16> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let head = format!(
            "POST {}/v1/traces HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            self.endpoint.base_path,
            self.endpoint.authority(),
            body.len(),
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_LIMIT).read_to_end(&mut answer)?;
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(&answer);
        let is_head = matches!(parsed, Ok(httparse::Status::Complete(_)));
        head.code.filter(|_| is_head).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in (self.endpoint.host.as_str(), self.endpoint.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Sink for Collector {
    const NAME: &'static str = "the export of spans";
    const BATCH_DELAY: Duration = Duration::from_millis(500);

    fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()> {
        match self.post(&self.to_body(batch))? {
            200..=299 => Ok(()),
            status => Err(io::Error::other(format!("the collector answered {status}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_one_document() {
        let collector = Collector::new("http://[::1]:4318/base".parse().unwrap(), "a \"name\"");
        for count in 0..3 {
            let body = collector.to_body(&vec![br#"{"name":"x"}"#.to_vec(); count]);
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let spans = &value["resourceSpans"][0]["scopeSpans"][0]["spans"];
            assert_eq!(spans.as_array().unwrap().len(), count);
            let attributes = &value["resourceSpans"][0]["resource"]["attributes"];
            assert_eq!(attributes[0]["value"]["stringValue"], "a \"name\"");
        }
    }
}
