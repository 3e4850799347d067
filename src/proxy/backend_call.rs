//! A small request that penstock itself sends to one backend, while a client waits.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{self, HeaderName};
use penstock_api::ErrorCode;
use pingora::http::ResponseHeader;
use serde_json::Value;

use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::own_response::OwnResponse;
use crate::upstream::engine_exchange::{EngineExchange, EngineRequest, ExchangeFailure};
use crate::upstream::failure::{AttemptFailure, ConnectError, ConnectionEnd};
use crate::upstream::headers::REQUEST_ID;
use crate::upstream::response_head::InvalidResponse;
use crate::wire::body_budget::BodyClaim;

/// The maximum number of bytes of an engine's error that a client is shown.
const MAX_SHOWN_ERROR: usize = 1024;

/// The reason why a backend did not carry out a request.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The engine's status, if it responded with one.
    pub(crate) status: Option<u16>,
    pub(crate) text: String,
}

impl Refused {
    /// The end of an attempt that was refused; `message` is for the client. An engine's 4xx is
    /// about the request, and says nothing about the engine.
    pub(crate) fn to_end(&self, message: String) -> AttemptEnd {
        let error = OwnError::new(ErrorCode::BadUpstreamResponse, message);
        AttemptEnd::Own {
            status: self.status.unwrap_or(error.code.row().status),
            response: Err(error),
        }
    }
}

/// An engine's response to a call, read whole.
pub(crate) struct EngineResponse {
    pub(crate) status: u16,
    /// Its status, and its fields that the client of a refusal gets.
    pub(crate) header: Box<ResponseHeader>,
    /// Empty if an error broke off.
    pub(crate) body: Bytes,
    pub(crate) claim: BodyClaim,
}

impl EngineResponse {
    pub(crate) fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }

    /// The text of an error.
    pub(crate) fn error_text(&self) -> String {
        let value: Option<Value> = serde_json::from_slice(&self.body).ok();
        let text = value.and_then(|value| error_of(&value));
        text.unwrap_or_else(|| format!("it responded with {}", self.status))
    }
}

/// The part of a call in which it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStep {
    Send,
    /// The request was written whole.
    Wait,
    /// The head of the response was read.
    Read,
}

/// The failure of a call without a whole response.
#[derive(Debug)]
pub(crate) struct CallFailure {
    step: CallStep,
    pub(crate) error: ExchangeFailure,
}

impl CallFailure {
    /// The failure of an attempt that consists of the call.
    ///
    /// # Errors
    /// [`CallFailure`], unchanged, if the response has started, or is too large.
    pub(crate) fn into_failure(self) -> Result<AttemptFailure, Self> {
        Ok(match (&self.error, self.step) {
            (ExchangeFailure::NoConnection(error), _) => AttemptFailure::NotSent(*error),
            (ExchangeFailure::TimedOut, _) => AttemptFailure::TimedOut(ErrorCode::ResponseTimeout),
            (ExchangeFailure::Broken, CallStep::Send) => {
                AttemptFailure::NotSent(ConnectError::ClosedEarly)
            }
            (ExchangeFailure::Broken, CallStep::Wait) => {
                AttemptFailure::NoResponse { end: ConnectionEnd::Closed, is_unread: false }
            }
            (ExchangeFailure::NotHttp, _) => AttemptFailure::BadResponse(InvalidResponse::NotHttp),
            (
                ExchangeFailure::Broken
                | ExchangeFailure::LineTooLong
                | ExchangeFailure::TooLarge
                | ExchangeFailure::MemoryFull,
                _,
            ) => return Err(self),
        })
    }
}

/// The fields of a refusal that its client gets.
const REFUSAL_FIELDS: [HeaderName; 4] = [
    header::RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-should-retry"),
    REQUEST_ID,
];

/// Posts `body` to a path of an attempt's backend. `timeout`: the longest wait for progress.
///
/// # Errors
/// [`CallFailure`] when there is no whole response.
pub(crate) async fn call(
    flow: &Flow<'_>,
    attempt: &Attempt<'_>,
    path: &'static str,
    body: Bytes,
    timeout: Duration,
) -> Result<EngineResponse, CallFailure> {
    let request = EngineRequest::new(
        Method::POST,
        path.to_owned(),
        &flow.client.head().headers,
        &flow.ctx.request_id,
        timeout,
    );
    let request = EngineRequest { length: Some(body.len()), ..request };
    let failed = |step| move |error| CallFailure { step, error };
    let connect_timeout = attempt.serving.timeouts.connect;
    let connecting =
        EngineExchange::begin(&flow.proxy.calls, attempt.backend, &request, connect_timeout);
    let mut exchange = connecting.await.map_err(failed(CallStep::Send))?;
    exchange.send(&body).await.map_err(failed(CallStep::Send))?;
    let status = exchange.finish().await.map_err(failed(CallStep::Wait))?;
    let header = refusal_header(&exchange, status);
    let header = header.map_err(|_bad_status| ExchangeFailure::NotHttp);
    let header = Box::new(header.map_err(failed(CallStep::Wait))?);
    let limit = flow.ctx.generation.config.limits.converted_response.to_usize();
    let mut claim = flow.proxy.claim_response();
    let body = match exchange.read_all(limit, &mut claim).await {
        Ok(body) => body,
        // The status says enough.
        Err(_) if !matches!(status, 200..=299) => Bytes::new(),
        Err(error) => return Err(CallFailure { step: CallStep::Read, error }),
    };
    Ok(EngineResponse { status, header, body, claim })
}

fn refusal_header(exchange: &EngineExchange, status: u16) -> pingora::Result<ResponseHeader> {
    let mut header = ResponseHeader::build(status, Some(REFUSAL_FIELDS.len()))?;
    for name in REFUSAL_FIELDS {
        if let Some(value) = exchange.head().and_then(|head| head.headers.get(&name)) {
            header.insert_header(name, value.clone())?;
        }
    }
    Ok(header)
}

/// Posts `body` to a path of an attempt's backend, and returns the response. It has the timeout of
/// the first token: loading a model takes as long as the first request to it.
///
/// # Errors
/// [`Refused`] when the backend did not carry out the request.
pub(crate) async fn post(
    flow: &Flow<'_>,
    attempt: &Attempt<'_>,
    path: &'static str,
    body: Bytes,
) -> Result<Bytes, Refused> {
    let timeout = attempt.serving.timeouts.first_token;
    match call(flow, attempt, path, body, timeout).await {
        Ok(response) if response.is_success() => Ok(response.body),
        Ok(response) => Err(Refused { status: Some(response.status), text: response.error_text() }),
        Err(failed) => Err(Refused { status: None, text: failed.error.to_string() }),
    }
}

/// The text of an error in Ollama's shape or OpenAI's.
pub(crate) fn error_of(line: &Value) -> Option<String> {
    let error = line.get("error")?;
    let text = error.as_str().or_else(|| error.get("message")?.as_str());
    let text = text.map_or_else(|| error.to_string(), str::to_owned);
    Some(penstock_api::escape(&text, MAX_SHOWN_ERROR).into_owned())
}

/// The end of an attempt that penstock responds to itself, with JSON.
pub(crate) fn own_json(body: &Value) -> AttemptEnd {
    let body = Bytes::from(body.to_string());
    let response = match ResponseHeader::build(200, Some(4)) {
        Ok(head) => Ok(OwnResponse { head, body, closes: false }),
        Err(_) => Err(OwnError::new(ErrorCode::InternalError, "The response cannot be made")),
    };
    AttemptEnd::Own { response, status: 200 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_a_call_depends_on_its_step() {
        let failure = |step, error| CallFailure { step, error }.into_failure();
        let refused = ExchangeFailure::NoConnection(ConnectError::Refused);
        assert!(matches!(
            failure(CallStep::Send, refused),
            Ok(AttemptFailure::NotSent(ConnectError::Refused))
        ));
        assert!(matches!(
            failure(CallStep::Send, ExchangeFailure::Broken),
            Ok(AttemptFailure::NotSent(ConnectError::ClosedEarly))
        ));
        let lost = failure(CallStep::Wait, ExchangeFailure::Broken).unwrap();
        assert!(lost.is_lost_connection());
        assert!(failure(CallStep::Read, ExchangeFailure::Broken).is_err(), "it has started");
        for step in [CallStep::Send, CallStep::Wait, CallStep::Read] {
            assert!(matches!(
                failure(step, ExchangeFailure::TimedOut),
                Ok(AttemptFailure::TimedOut(ErrorCode::ResponseTimeout))
            ));
        }
        assert!(matches!(
            failure(CallStep::Wait, ExchangeFailure::NotHttp),
            Ok(AttemptFailure::BadResponse(InvalidResponse::NotHttp))
        ));
    }
}
