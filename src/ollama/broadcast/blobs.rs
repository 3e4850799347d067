//! `/api/blobs/{digest}`: files of a model that is to be created. An upload passes to all backends
//! as it comes: parts of 64 KiB, a few of them per backend, at the speed of the slowest. The end of
//! the body is sent only after the digest was found right, so that no backend keeps a broken file.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use penstock_api::{ErrorCode, OllamaRoute, hex};
use penstock_core::fleet::Backend;
use pingora::http::ResponseHeader;
use ring::digest::{Context, SHA256};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::downstream::body::{BodyError, BodyLength};
use crate::downstream::body_stream::BodyStream;
use crate::downstream::client::Client;
use crate::ollama::broadcast::targets::{check_right, choose, is_up};
use crate::ollama::broadcast::verdict::{BroadcastVerdict, TargetEnd, judge, read_refusal};
use crate::ollama::broadcast::{count_command, fleet_timeout};
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext, Served};
use crate::proxy::own_response::{OwnResponse, send, send_error};
use crate::upstream::connect::Connector;
use crate::upstream::engine_exchange::{EngineExchange, EngineRequest, ExchangeFailure};

/// The maximum number of parts of an upload that wait for one backend.
const MAX_WAITING_PARTS: usize = 4;

#[derive(Debug, Clone)]
enum UploadPart {
    Bytes(Bytes),
    /// The digest is right: the body is complete.
    End,
}

/// Reports whether all backends have a file, or uploads it to them.
pub(crate) async fn serve_blob(flow: &mut Flow<'_>) -> Served {
    let fleet = flow.ctx.generation.fleet.topology();
    let head = flow.client.head();
    let digest = digest_of(head.uri.path());
    let chosen = check_right(flow.ctx).and(digest).and_then(|digest| {
        refuse_too_large(flow.ctx)?;
        let targets = choose(flow.ctx, &fleet, head)?;
        let permit = count_command(flow.proxy, flow.ctx)?;
        Ok((digest, targets, permit))
    });
    let (digest, targets, _permit) = match chosen {
        Ok(chosen) => chosen,
        Err(error) => return send_error(flow, error).await,
    };
    let timeout = flow.ctx.generation.config.ollama.progress_timeout;
    let (method, path) = (head.method.clone(), head.uri.path().to_owned());
    let is_upload = method == Method::POST;
    let request = EngineRequest::new(method, path, &head.headers, &flow.ctx.request_id, timeout);
    let length = if is_upload { None } else { Some(0) };
    let upload =
        Upload::start(&flow.proxy.calls, flow.ctx, &targets, EngineRequest { length, ..request });
    let ends = match is_upload {
        true => match tee(flow, upload, &digest).await {
            Ok(ends) => ends,
            Err(error) => return refuse_upload(flow, error).await,
        },
        false => upload.finish().await,
    };
    let names = targets.iter().map(|backend| &*backend.config.name);
    let ends: Vec<(&str, TargetEnd)> = names.zip(ends).collect();
    let (status, body) = match (judge(&ends, false), is_upload) {
        (BroadcastVerdict::Done, true) => (201, Bytes::new()),
        (BroadcastVerdict::Done, false) => (200, Bytes::new()),
        (BroadcastVerdict::Failed { .. }, false) if any_missing(&ends) => (404, Bytes::new()),
        (BroadcastVerdict::Failed { status, text }, _) => {
            (status, json!({ "error": text }).to_string().into())
        }
    };
    flow.ctx.record.response.status = status;
    let head = ResponseHeader::build(status, Some(8))?;
    send(flow, OwnResponse { head, body, closes: false }).await
}

fn any_missing(ends: &[(&str, TargetEnd)]) -> bool {
    ends.iter().any(|(_, end)| matches!(end, TargetEnd::Failed { status: Some(404), .. }))
}

/// The digits of the digest that a path names: 64 of them, after `sha256:` or `sha256-`.
fn digest_of(path: &str) -> Result<String, OwnError> {
    let given = match OllamaRoute::of(path) {
        Some(OllamaRoute::Blob(digest)) => digest,
        _ => "",
    };
    let digits = given.strip_prefix("sha256:").or(given.strip_prefix("sha256-"));
    let is_digest = |digits: &&str| {
        digits.len() == 64 && digits.bytes().all(|one| matches!(one, b'0'..=b'9' | b'a'..=b'f'))
    };
    digits.filter(is_digest).map(str::to_owned).ok_or_else(|| {
        let message = "The digest must be 'sha256:' and 64 hexadecimal digits";
        OwnError::new(ErrorCode::InvalidRequest, message)
    })
}

/// Refuses a file by the length in its head; chunked files are counted as they come.
fn refuse_too_large(ctx: &RequestContext) -> Result<(), OwnError> {
    match ctx.body_length {
        BodyLength::Known(bytes) | BodyLength::Framed(Some(bytes)) => check_size(ctx, bytes),
        BodyLength::None | BodyLength::Chunked | BodyLength::Framed(None) => Ok(()),
    }
}

fn check_size(ctx: &RequestContext, bytes: u64) -> Result<(), OwnError> {
    let limit = ctx.generation.config.ollama.max_blob_size;
    if bytes <= limit.0 {
        return Ok(());
    }
    let message = format!("The file is larger than {limit} (ollama.max_blob_size)");
    Err(OwnError::new(ErrorCode::BodyTooLarge, message).closing())
}

/// The reason why an upload ended before its last part.
enum UploadError {
    Body(BodyError),
    TooLarge(OwnError),
    WrongDigest,
    /// No backend takes any more of the upload.
    AllFailed(Vec<TargetEnd>),
}

/// Sends the client's body to all backends, and returns the end on each.
async fn tee(
    flow: &mut Flow<'_>,
    mut upload: Upload,
    digest: &str,
) -> Result<Vec<TargetEnd>, UploadError> {
    let gone = || UploadError::Body(BodyError::ClientGone);
    let client = flow.ctx.client.clone().ok_or_else(gone)?;
    let has_body = flow.ctx.body_length != BodyLength::None;
    if has_body && flow.client.head().headers.contains_key(header::EXPECT) {
        let written = flow.client.write_continue().await;
        written.map_err(|_gone| gone())?;
    }
    let generation = Arc::clone(&flow.ctx.generation);
    let mut body = BodyStream::new(&client, flow.ctx.body_length, &generation.config.limits);
    let mut hash = Context::new(&SHA256);
    while let Some(part) = body.next().await.map_err(UploadError::Body)? {
        hash.update(&part);
        flow.ctx.record.request.bytes_in =
            flow.ctx.record.request.bytes_in.saturating_add(part.len());
        check_size(flow.ctx, flow.ctx.record.request.bytes_in as u64)
            .map_err(UploadError::TooLarge)?;
        if !upload.send(&UploadPart::Bytes(part)).await {
            return Err(UploadError::AllFailed(upload.finish().await));
        }
    }
    flow.ctx.body_is_read = true;
    let mut digits = [0; 64];
    hex::write(hash.finish().as_ref(), &mut digits);
    if digits != *digest.as_bytes() {
        // Without `UploadPart::End` the connections break off, and no backend keeps the file.
        return Err(UploadError::WrongDigest);
    }
    finish_watched(upload, &client).await.ok_or_else(gone)
}

/// Ends the body on all backends, unless the client leaves before they have responded.
async fn finish_watched(upload: Upload, client: &Client) -> Option<Vec<TargetEnd>> {
    tokio::select! {
        ends = upload.finish() => Some(ends),
        () = std::future::poll_fn(|cx| client.poll_gone(cx)) => None,
    }
}

async fn refuse_upload(flow: &mut Flow<'_>, error: UploadError) -> Served {
    let own = match error {
        UploadError::Body(error) => match OwnError::from_body(&error) {
            Some(own) => own.closing(),
            None => return flow.ctx.end_cancelled(),
        },
        UploadError::TooLarge(error) => error,
        UploadError::WrongDigest => {
            let message = "The digest of the file is not the one in the path";
            OwnError::new(ErrorCode::InvalidRequest, message)
        }
        UploadError::AllFailed(ends) => {
            let texts = ends.into_iter().map(|end| match end {
                TargetEnd::Failed { text, .. } => text,
                TargetEnd::Done => "it responded before the end of the file".to_owned(),
            });
            let message =
                format!("No backend took the file: {}", texts.collect::<Vec<_>>().join("; "));
            OwnError::new(ErrorCode::BadUpstreamResponse, message).closing()
        }
    };
    send_error(flow, own).await
}

/// The exchanges of one request with all backends.
struct Upload {
    parts: Vec<mpsc::Sender<UploadPart>>,
    tasks: JoinSet<(usize, TargetEnd)>,
    count: usize,
}

impl Upload {
    fn start(
        connector: &Arc<Connector>,
        ctx: &RequestContext,
        targets: &[&Backend],
        request: EngineRequest,
    ) -> Self {
        let mut tasks = JoinSet::new();
        let mut parts = Vec::new();
        for (number, backend) in targets.iter().enumerate() {
            let (sender, waiting) = mpsc::channel(MAX_WAITING_PARTS);
            parts.push(sender);
            let (connector, backend) = (Arc::clone(connector), (*backend).clone());
            let (request, timeout) = (request.clone(), fleet_timeout(ctx, &backend));
            tasks.spawn(async move {
                let end = pass_on(&connector, &backend, &request, timeout, waiting).await;
                let failed = |error: ExchangeFailure| TargetEnd::Failed {
                    status: None,
                    text: error.to_string(),
                };
                (number, end.unwrap_or_else(failed))
            });
        }
        Self { parts, tasks, count: targets.len() }
    }

    /// Sends a part to every backend that still takes it; returns whether any does.
    async fn send(&mut self, part: &UploadPart) -> bool {
        let mut is_taken = false;
        for sender in &self.parts {
            // A task that has failed takes nothing more, and holds up none of the others.
            is_taken |= sender.send(part.clone()).await.is_ok();
        }
        is_taken
    }

    /// Ends the body and waits for the responses.
    async fn finish(mut self) -> Vec<TargetEnd> {
        self.send(&UploadPart::End).await;
        let lost = || TargetEnd::Failed { status: None, text: "its task ended".to_owned() };
        let mut ends: Vec<TargetEnd> = (0..self.count).map(|_| lost()).collect();
        while let Some(joined) = self.tasks.join_next().await {
            if let Ok((number, end)) = joined
                && let Some(place) = ends.get_mut(number)
            {
                *place = end;
            }
        }
        ends
    }
}

/// Runs one backend's exchange. If the parts end without [`UploadPart::End`], the connection breaks
/// off.
async fn pass_on(
    connector: &Connector,
    backend: &Backend,
    request: &EngineRequest,
    connect_timeout: Duration,
    mut parts: mpsc::Receiver<UploadPart>,
) -> Result<TargetEnd, ExchangeFailure> {
    if !is_up(backend) {
        return Ok(TargetEnd::Failed { status: None, text: "it is not healthy".to_owned() });
    }
    let mut exchange = EngineExchange::begin(connector, backend, request, connect_timeout).await?;
    loop {
        match parts.recv().await {
            Some(UploadPart::Bytes(part)) => exchange.send(&part).await?,
            Some(UploadPart::End) => break,
            None => return Err(ExchangeFailure::Broken),
        }
    }
    match exchange.finish().await? {
        200..=299 => Ok(TargetEnd::Done),
        status => Ok(read_refusal(&mut exchange, status).await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digests_are_blobs() {
        let digits = "0af9".repeat(16);
        for form in ["sha256:", "sha256-"] {
            assert_eq!(digest_of(&format!("/api/blobs/{form}{digits}")).unwrap(), digits);
        }
        for bad in [
            format!("sha256:{}", "0AF9".repeat(16)),
            format!("sha256:{digits}0"),
            format!("sha256:{}", &digits[1..]),
            format!("md5:{digits}"),
            format!("sha256:{}/../../etc", &digits[..50]),
            digits.clone(),
        ] {
            assert!(digest_of(&format!("/api/blobs/{bad}")).is_err(), "{bad}");
        }
    }
}
