//! The head of a request: whose it is, what it asks for, and what can be said before a body is
//! read.

use std::hash::{BuildHasher, Hash, Hasher};

use http::header::{self, HeaderValue};
use http::{HeaderMap, Method};
use pingora::http::ResponseHeader;
use pingora_proxy::Session;

use super::Proxy;
use super::auth;
use super::context::RequestContext;
use super::failure::OwnError;
use super::local;
use crate::api::hex;
use crate::api::{Dialect, ErrorCode, Operation};
use crate::config::Cors;
use crate::downstream::body::BodyLength;
use crate::downstream::head_check::MAX_TARGET;
use crate::downstream::http1::RefusedHead;
use crate::upstream::headers::REQUEST_ID;

const MAX_REQUEST_ID: usize = 128;

/// What a path stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    Operation(Operation),
    Models,
    Model(&'a str),
    Health,
    Unknown,
}

impl<'a> Target<'a> {
    pub(crate) fn of(path: &'a str) -> Self {
        if let Some(operation) = Operation::from_path(path) {
            return Self::Operation(operation);
        }
        match path {
            "/v1/models" => Self::Models,
            "/health" => Self::Health,
            _ => match path.strip_prefix("/v1/models/") {
                Some(id) if !id.is_empty() => Self::Model(id),
                Some(_) | None => Self::Unknown,
            },
        }
    }

    fn methods(self) -> &'static str {
        match self {
            Self::Operation(_) => "POST, OPTIONS",
            Self::Models | Self::Model(_) | Self::Health => "GET, HEAD, OPTIONS",
            Self::Unknown => "",
        }
    }

    fn takes(self, method: &Method) -> bool {
        match self {
            Self::Operation(_) => *method == Method::POST,
            Self::Models | Self::Model(_) | Self::Health => {
                *method == Method::GET || *method == Method::HEAD
            }
            Self::Unknown => false,
        }
    }
}

impl Proxy {
    /// Answers what needs no backend. Returns the operation that does, with nothing but its head
    /// read so far.
    pub(crate) async fn read_head(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> pingora::Result<Option<Operation>> {
        self.identify(session, ctx);
        let path = session.req_header().uri.path().to_owned();
        let target = Target::of(&path);
        if let Target::Operation(operation) = target {
            ctx.operation = Some(operation);
            ctx.dialect = operation.row().dialect;
        } else if path.starts_with("/v1/messages") {
            ctx.dialect = Dialect::Anthropic;
        }
        match self.judge_head(session, ctx, target) {
            Err(error) => {
                if error.code == ErrorCode::MethodNotAllowed {
                    self.answer_wrong_method(session, ctx, target, error).await?;
                } else {
                    self.answer_error(session, ctx, error).await?;
                }
                Ok(None)
            }
            Ok(()) => match target {
                Target::Operation(_) if session.req_header().method == Method::OPTIONS => {
                    self.answer_preflight(session, ctx, target).await.map(|()| None)
                }
                Target::Operation(operation) => Ok(Some(operation)),
                Target::Models | Target::Model(_) | Target::Health | Target::Unknown => {
                    if session.req_header().method == Method::OPTIONS {
                        self.answer_preflight(session, ctx, target).await?;
                    } else {
                        local::answer(self, session, ctx, target).await?;
                    }
                    Ok(None)
                }
            },
        }
    }

    /// Answers a request whose head was refused; nothing behind that head can be trusted.
    pub(crate) async fn answer_refused(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        refused: RefusedHead,
    ) -> pingora::Result<()> {
        ctx.ending.refused = Some(Box::new(refused.requested));
        ctx.request_id = self.make_request_id();
        ctx.dialect = refused.dialect;
        let error = OwnError::new(refused.error.code(), refused.error.to_string());
        self.answer_error(session, ctx, error.closing()).await
    }

    fn identify(&self, session: &Session, ctx: &mut RequestContext) {
        let head = session.req_header();
        ctx.trace = self.trace(&head.headers, &ctx.generation.config.tracing);
        ctx.request_id = given_request_id(&head.headers).unwrap_or_else(|| self.make_request_id());
        if let Cors::Origins(allowed) = &ctx.generation.config.server.cors {
            let origin = head.headers.get(header::ORIGIN);
            let may_read = |origin: &&HeaderValue| {
                allowed.iter().any(|name| name == "*" || name.as_bytes() == origin.as_bytes())
            };
            ctx.cors_origin = origin.filter(may_read).cloned();
        }
    }

    fn judge_head(
        &self,
        session: &Session,
        ctx: &mut RequestContext,
        target: Target<'_>,
    ) -> Result<(), OwnError> {
        let head = session.req_header();
        let has_body = ctx.body_length != BodyLength::None;
        // A body that is not going to be read ends the connection with the answer.
        let ended = |error: OwnError| if has_body { error.closing() } else { error };
        if head.raw_path().len() > MAX_TARGET {
            let message = "The request target is longer than 16 KiB";
            return Err(OwnError::new(ErrorCode::UriTooLong, message).closing());
        }
        let limit = ctx.generation.config.limits.max_headers;
        if head.headers.len() > limit {
            let message = format!("More than {limit} header fields (limits.max_headers)");
            return Err(OwnError::new(ErrorCode::HeadTooLarge, message).closing());
        }
        if target == Target::Unknown {
            let message = format!("Unknown path: {}", shown(head.uri.path()));
            return Err(ended(OwnError::new(ErrorCode::UnknownPath, message)));
        }
        let is_preflight = head.method == Method::OPTIONS
            && !matches!(ctx.generation.config.server.cors, Cors::Off);
        if !is_preflight && !target.takes(&head.method) {
            let message = format!("{} takes {}", head.uri.path(), target.methods());
            return Err(ended(OwnError::new(ErrorCode::MethodNotAllowed, message)));
        }
        if !is_preflight && target != Target::Health {
            let key = auth::check_key(&ctx.generation.config.auth, &head.headers);
            ctx.key = key.map_err(|error| OwnError { closes: has_body, ..error })?;
        }
        ctx.client_hash = self.hash_client(ctx);
        Ok(())
    }

    fn hash_client(&self, ctx: &RequestContext) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        match (ctx.key, ctx.client_address) {
            (Some(key), _) => key.hash(&mut hasher),
            (None, Some(address)) => address.hash(&mut hasher),
            (None, None) => {}
        }
        hasher.finish()
    }

    async fn answer_wrong_method(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        target: Target<'_>,
        error: OwnError,
    ) -> pingora::Result<()> {
        let row = error.code.row();
        ctx.ending.status = row.status;
        ctx.ending.code = Some(error.code);
        let mut head = ResponseHeader::build(row.status, Some(8))?;
        let with_cors = !matches!(ctx.generation.config.server.cors, Cors::Off);
        let methods = target.methods();
        let allowed = if with_cors { methods } else { methods.trim_end_matches(", OPTIONS") };
        head.insert_header(header::ALLOW, allowed)?;
        head.insert_header("x-should-retry", "false")?;
        let body = crate::api::error_body(ctx.dialect, error.code, &error.message, None);
        self.answer(session, ctx, (head, body.into(), error.closes)).await
    }

    async fn answer_preflight(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        target: Target<'_>,
    ) -> pingora::Result<()> {
        ctx.ending.status = 204;
        let mut head = ResponseHeader::build(204, Some(8))?;
        if ctx.cors_origin.is_some() {
            head.insert_header(header::ACCESS_CONTROL_ALLOW_METHODS, target.methods())?;
            let asked = session.req_header().headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
            if let Some(asked) = asked {
                head.insert_header(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone())?;
            }
            head.insert_header(header::ACCESS_CONTROL_MAX_AGE, "600")?;
        }
        self.answer(session, ctx, (head, bytes::Bytes::new(), false)).await
    }

    fn make_request_id(&self) -> HeaderValue {
        let mut id = [0; 32];
        let (before, behind) = id.split_at_mut(16);
        hex::write(&self.next_seed().to_be_bytes(), before);
        hex::write(&self.next_seed().to_be_bytes(), behind);
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("-"))
    }
}

fn given_request_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(REQUEST_ID)?;
    let is_fit = !value.is_empty()
        && value.len() <= MAX_REQUEST_ID
        && value.as_bytes().iter().all(u8::is_ascii_graphic);
    is_fit.then(|| value.clone())
}

/// A path as a message may repeat it: short, and on one line.
fn shown(path: &str) -> String {
    let short: String = path.chars().take(200).flat_map(char::escape_default).collect();
    if path.chars().count() > 200 { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_exactly() {
        assert_eq!(Target::of("/v1/chat/completions"), Target::Operation(Operation::Chat));
        assert_eq!(
            Target::of("/v1/models/meta-llama/Llama-3:8b"),
            Target::Model("meta-llama/Llama-3:8b")
        );
        for unknown in [
            "/",
            "/v1",
            "/v1/models/",
            "/v1/chat/completions/",
            "/v1/chat/../models",
            "//v1/models",
        ] {
            assert_eq!(Target::of(unknown), Target::Unknown, "{unknown}");
        }
    }
}
