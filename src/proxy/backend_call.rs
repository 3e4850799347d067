//! A small request that penstock itself sends to one backend, while a client waits.

pub(crate) mod engine_exchange;

use bytes::Bytes;
use http::Method;
use penstock_api::ErrorCode;
use pingora::http::ResponseHeader;
use serde_json::Value;

use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::backend_call::engine_exchange::{EngineExchange, EngineRequest, ExchangeFailure};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;
use crate::proxy::own_response::OwnResponse;

/// The maximum number of bytes of an engine's error that a client is shown.
const SHOWN_ERROR: usize = 1024;

/// The end of a command on one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetEnd {
    Done,
    /// The command failed; `status` is the engine's, if it responded with one.
    Failed {
        status: Option<u16>,
        text: String,
    },
}

impl TargetEnd {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Failed { status: Some(404), .. })
    }
}

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

/// Posts `body` to a path of an attempt's backend, and returns the response. It has the timeout of
/// the first token: loading a model takes as long as the first request to it.
///
/// # Errors
/// [`Refused`] when the backend did not carry out the request.
pub(crate) async fn post(
    flow: &Flow<'_>,
    attempt: &Attempt<'_>,
    path: &str,
    body: Bytes,
) -> Result<Bytes, Refused> {
    let timeouts = &attempt.serving.timeouts;
    let (path, timeout) = (path.to_owned(), timeouts.first_token);
    let request = EngineRequest::new(
        Method::POST,
        path,
        &flow.client.head().headers,
        &flow.ctx.request_id,
        timeout,
    );
    let request = EngineRequest { length: Some(body.len()), ..request };
    let failed = |error: ExchangeFailure| Refused { status: None, text: error.to_string() };
    let connector = &flow.proxy.calls;
    let connecting = EngineExchange::begin(connector, attempt.backend, &request, timeouts.connect);
    let mut exchange = connecting.await.map_err(failed)?;
    exchange.send(&body).await.map_err(failed)?;
    match exchange.finish().await.map_err(failed)? {
        200..=299 => {
            let limit = flow.ctx.generation.config.limits.converted_response.to_usize();
            exchange.read_all(limit, &mut flow.proxy.claim_response()).await.map_err(failed)
        }
        status => match read_refusal(&mut exchange, status).await {
            TargetEnd::Done => Ok(Bytes::new()),
            TargetEnd::Failed { status, text } => Err(Refused { status, text }),
        },
    }
}

/// The end of an exchange that the engine refused.
pub(crate) async fn read_refusal(exchange: &mut EngineExchange, status: u16) -> TargetEnd {
    // Engines report an error in one line of JSON; any other body is not worth reading.
    let line = exchange.next_line().await.ok().flatten();
    let text = line.and_then(|line| {
        let value: Value = serde_json::from_slice(&line).ok()?;
        error_of(&value)
    });
    let text = text.unwrap_or_else(|| format!("it responded with {status}"));
    TargetEnd::Failed { status: Some(status), text }
}

/// The text of an error in Ollama's shape or OpenAI's.
pub(crate) fn error_of(line: &Value) -> Option<String> {
    let error = line.get("error")?;
    let text = error.as_str().or_else(|| error.get("message")?.as_str());
    let text = text.map_or_else(|| error.to_string(), str::to_owned);
    Some(penstock_api::escape(&text, SHOWN_ERROR).into_owned())
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
