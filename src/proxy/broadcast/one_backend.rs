//! A small request that penstock itself sends to one backend, while a client waits.

use bytes::Bytes;
use http::Method;
use penstock_api::ErrorCode;

use super::engine_exchange::{EngineExchange, EngineRequest, ExchangeFailure};
use super::target_task::read_refusal;
use super::verdict::TargetEnd;
use crate::proxy::attempt::{Attempt, AttemptEnd};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::Flow;

/// The reason why a backend did not carry out a request.
#[derive(Debug)]
pub(in crate::proxy) struct Refused {
    /// The engine's status, if it responded with one.
    pub(in crate::proxy) status: Option<u16>,
    pub(in crate::proxy) text: String,
}

impl Refused {
    /// The end of an attempt that was refused; `message` is for the client. An engine's 4xx is
    /// about the request, and says nothing about the engine.
    pub(in crate::proxy) fn to_end(&self, message: String) -> AttemptEnd {
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
pub(in crate::proxy) async fn post(
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
    let connector = &flow.proxy.broadcasts.connector;
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
