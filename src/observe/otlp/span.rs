//! The spans of requests and attempts in the JSON encoding of OTLP. Attribute names follow the
//! OpenTelemetry semantic conventions for generative AI and HTTP; other names start with
//! `penstock.`. Spans contain no prompt, no response and no key.

use std::time::Duration;

use penstock_api::{Operation, TraceContext};
use penstock_core::fleet::Outcome;
use penstock_core::routing::{AttemptEnded, RequestOutcome};
use serde_json::{Value, json};

/// The OTLP span kind SERVER.
const SERVER: u8 = 2;
/// The OTLP span kind CLIENT.
const CLIENT: u8 = 3;
/// The OTLP status code ERROR.
const FAILED: u8 = 2;
/// The maximum number of characters of a text chosen by a client.
const MAX_TEXT: usize = 256;

/// The span of a request that finished at `end`, since 1970.
pub(super) fn of_request(
    outcome: &RequestOutcome<'_>,
    trace: TraceContext,
    end: Duration,
) -> Vec<u8> {
    let about = &outcome.details;
    let start = end.saturating_sub(outcome.took);
    let operation = outcome.operation.map(|operation| operation.row().gen_ai_name);
    let name = match (operation, outcome.model()) {
        (Some(operation), Some(model)) => format!("{operation} {model}"),
        (Some(operation), None) => operation.to_owned(),
        (None, _) => method(about.method).to_owned(),
    };
    let usage = outcome.record.response.usage.unwrap_or_default();
    let mut span = Attributes::default();
    span.text("gen_ai.operation.name", operation);
    span.text("gen_ai.provider.name", outcome.record.routing.provider);
    span.text("gen_ai.request.model", outcome.record.request.requested_model.as_deref());
    span.text("gen_ai.response.model", outcome.model());
    span.number("gen_ai.usage.input_tokens", usage.prompt_tokens.map(u64::from));
    span.number("gen_ai.usage.output_tokens", usage.completion_tokens.map(u64::from));
    span.text("http.request.method", Some(method(about.method)));
    span.text("url.path", Some(about.path));
    span.number("http.response.status_code", Some(outcome.record.response.status.into()));
    span.text("client.address", about.client.map(|client| client.to_string()).as_deref());
    span.text("penstock.request_id", Some(about.request_id));
    span.text("penstock.key", about.key);
    span.text("penstock.operation", outcome.operation.map(Operation::name));
    span.text("penstock.backend", outcome.last_backend());
    span.text("penstock.outcome", Some(outcome.outcome.name()));
    span.text(
        "penstock.ensemble",
        outcome.record.request.ensemble.map(|call| call.to_string()).as_deref(),
    );
    span.number("penstock.attempts", Some(outcome.record.routing.attempts.into()));
    span.flag("penstock.fallback", outcome.record.routing.is_fallback);
    let error =
        error_type(outcome.outcome, outcome.record.response.code.map(|code| code.row().name));
    span.text("error.type", error);
    let first_token = outcome.first_token.filter(|_| outcome.record.request.is_streaming);
    let events = first_token.map(
        |took| json!([{"timeUnixNano": nanos(start.saturating_add(took)), "name": "first token"}]),
    );
    let mut value = json!({
        "traceId": format!("{:032x}", trace.trace_id),
        "spanId": to_hex(trace.span),
        "name": shorten(&name),
        "kind": SERVER,
        "startTimeUnixNano": nanos(start),
        "endTimeUnixNano": nanos(end),
        "attributes": span.0,
    });
    add(&mut value, "parentSpanId", trace.caller.map(|caller| json!(to_hex(caller))));
    add(&mut value, "events", events);
    // By the HTTP conventions, client errors do not set the span status of a server.
    let is_failed = error.is_some() && outcome.record.response.status >= 500;
    add(&mut value, "status", is_failed.then(|| json!({"code": FAILED})));
    value.to_string().into_bytes()
}

/// The span of an attempt that finished at `end`.
pub(super) fn of_attempt(
    event: &AttemptEnded<'_>,
    trace: TraceContext,
    span_id: u64,
    end: Duration,
) -> Vec<u8> {
    let (host, port) = event.server;
    let mut span = Attributes::default();
    span.text("gen_ai.provider.name", Some(event.provider));
    span.text("server.address", Some(host));
    span.number("server.port", Some(port.into()));
    span.text("penstock.backend", Some(event.name));
    span.number("penstock.attempt", Some(event.number.into()));
    span.text("penstock.outcome", Some(event.outcome.name()));
    let error = error_type(event.outcome, event.code.map(|code| code.row().name));
    span.text("error.type", error);
    let mut value = json!({
        "traceId": format!("{:032x}", trace.trace_id),
        "spanId": to_hex(span_id),
        "parentSpanId": to_hex(trace.span),
        "name": shorten(&format!("attempt {}", event.name)),
        "kind": CLIENT,
        "startTimeUnixNano": nanos(end.saturating_sub(event.took)),
        "endTimeUnixNano": nanos(end),
        "attributes": span.0,
    });
    add(&mut value, "status", error.map(|_| json!({"code": FAILED})));
    value.to_string().into_bytes()
}

#[derive(Default)]
struct Attributes(Vec<Value>);

impl Attributes {
    fn text(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.0.push(json!({"key": key, "value": {"stringValue": shorten(value)}}));
        }
    }

    fn number(&mut self, key: &str, value: Option<u64>) {
        if let Some(value) = value {
            // The encoding represents 64-bit integers as strings.
            self.0.push(json!({"key": key, "value": {"intValue": value.to_string()}}));
        }
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.0.push(json!({"key": key, "value": {"boolValue": value}}));
    }
}

fn add(span: &mut Value, key: &str, value: Option<Value>) {
    if let (Some(fields), Some(value)) = (span.as_object_mut(), value) {
        fields.insert(key.to_owned(), value);
    }
}

/// Returns the error: penstock's error code, or the class of the outcome.
fn error_type(outcome: Outcome, code: Option<&'static str>) -> Option<&'static str> {
    match outcome {
        Outcome::Ok | Outcome::Empty => code,
        Outcome::Client
        | Outcome::Busy { .. }
        | Outcome::Refused { .. }
        | Outcome::Unreachable
        | Outcome::Fault
        | Outcome::Cancel
        | Outcome::Shortage => code.or(Some(outcome.name())),
    }
}

/// Returns the method, or `_OTHER` if it is not a standard one.
fn method(given: &str) -> &str {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    // As the conventions say, since clients may send any word as a method.
    if known.contains(&given) { given } else { "_OTHER" }
}

fn shorten(text: &str) -> &str {
    text.char_indices().nth(MAX_TEXT).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

fn to_hex(span: u64) -> String {
    format!("{span:016x}")
}

fn nanos(since_1970: Duration) -> String {
    since_1970.as_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_texts_are_bounded() {
        let long = "ä".repeat(1000);
        assert_eq!(shorten(&long).chars().count(), MAX_TEXT);
        assert_eq!(shorten("short"), "short");
        assert_eq!(method("BREW\u{1b}"), "_OTHER");
    }

    #[test]
    fn cancelled_request_is_not_a_success() {
        assert_eq!(error_type(Outcome::Cancel, None), Some("cancel"));
        assert_eq!(error_type(Outcome::Fault, Some("connect_failed")), Some("connect_failed"));
        assert_eq!(error_type(Outcome::Ok, None), None);
    }
}
