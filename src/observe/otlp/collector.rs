//! Sends spans to a collector: OTLP over HTTP in its JSON encoding, one request per batch. A batch
//! that cannot be delivered is dropped and counted: a retry would hold memory that requests need.

use std::io;
use std::time::Duration;

use penstock_config::BackendUrl;
use serde_json::json;
use ureq::Agent;

use crate::http_client::{ClientTimeouts, new_client};
use crate::observe::queue::Sink;

const TIMEOUTS: ClientTimeouts =
    ClientTimeouts { connect: Duration::from_secs(5), io: Duration::from_secs(5) };

/// The sink of spans.
pub(super) struct OtlpCollector {
    agent: Agent,
    url: String,
    /// The JSON before the spans of a batch.
    prefix: String,
}

/// The JSON after the spans of a batch.
const SUFFIX: &str = "]}]}]}";

fn attribute(key: &str, value: &str) -> serde_json::Value {
    json!({"key": key, "value": {"stringValue": value}})
}

impl OtlpCollector {
    pub(super) fn new(endpoint: &BackendUrl, service_name: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let resource = json!({"attributes": [
            attribute("service.name", service_name),
            attribute("service.version", version),
        ]});
        let scope = json!({"name": "penstock", "version": version});
        // Made once: it is the same for all batches of a process.
        let prefix = format!(
            r#"{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{{"scope":{scope},"spans":["#
        );
        let agent = new_client(endpoint.https, TIMEOUTS);
        Self { agent, url: format!("{endpoint}/v1/traces"), prefix }
    }

    fn to_body(&self, batch: &[Vec<u8>]) -> Vec<u8> {
        let mut body = self.prefix.as_bytes().to_vec();
        for (index, span) in batch.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(span);
        }
        body.extend_from_slice(SUFFIX.as_bytes());
        body
    }
}

impl Sink for OtlpCollector {
    const NAME: &'static str = "span export";
    const BATCH_DELAY: Duration = Duration::from_millis(500);

    fn destination(&self) -> String {
        self.url.clone()
    }

    fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()> {
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let response = request.send(self.to_body(batch)).map_err(io::Error::other)?;
        match response.status().as_u16() {
            200..=299 => Ok(()),
            status => Err(io::Error::other(format!("the collector returned {status}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_one_json_document() {
        let endpoint = "http://[::1]:4318/base".parse().unwrap();
        let collector = OtlpCollector::new(&endpoint, "a \"name\"");
        assert_eq!(collector.url, "http://[::1]:4318/base/v1/traces");
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
