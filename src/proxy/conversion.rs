//! The conversion of a request for a backend that does not serve its operation, and of the response
//! on its way back. `dialect` defines the conversion, and `rewrite` decides when it happens; this
//! file keeps the converted request for retries, and bounds the memory of both.

use bytes::Bytes;
use http::{StatusCode, header};
use penstock_api::units::Timestamp;
use penstock_api::{Engine, ErrorCode, Operation};
use penstock_dialect::{
    BadResponse, ConvertError, Converted, ReplyContext, ReplyTerms, RequestTerms,
    ResponseConverter, convert_error, convert_request,
};

use crate::downstream::body::BodyClaim;
use crate::proxy::failure::OwnError;
use crate::upstream::failure::HeldResponse;
use crate::upstream::relay::Transform;
use crate::wire::beside_the_loop;

pub(crate) struct Conversion {
    terms: ConversionTerms,
    converted: Converted,
    /// The conversion's share of the memory for bodies.
    _claim: BodyClaim,
}

/// The inputs of a conversion, besides the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConversionTerms {
    /// The operation that the request is converted to.
    pub(crate) target: Operation,
    pub(crate) engine: Engine,
    /// The backend's name for the model.
    pub(crate) model: Box<str>,
    /// The context that Ollama loads the model with.
    pub(crate) num_ctx: Option<u32>,
}

/// The reason why a request has no form for a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConversionFailure {
    /// The backend's API has no form for the request. Another backend's may have one.
    NoForm(ConvertError),
    /// There is no memory for the converted body (`limits.buffered_bodies`).
    NoMemory,
}

impl ConversionFailure {
    pub(crate) fn to_error(self) -> OwnError {
        match self {
            Self::NoForm(error) => {
                OwnError::new(ErrorCode::NotConvertible, error.to_string()).about(error.field())
            }
            Self::NoMemory => {
                OwnError::new(ErrorCode::BodyMemoryFull, "No memory for the converted request")
            }
        }
    }
}

impl Conversion {
    /// Converts `body`, a request of `from`. `claim` takes memory for the result.
    ///
    /// # Errors
    /// [`ConversionFailure`] when the backend's API cannot express the request, or memory is short.
    pub(crate) fn new(
        from: Operation,
        body: &[u8],
        terms: ConversionTerms,
        claim: impl FnOnce(usize) -> Option<BodyClaim>,
    ) -> Result<Self, ConversionFailure> {
        let request_terms =
            RequestTerms { model: &terms.model, engine: terms.engine, num_ctx: terms.num_ctx };
        let converted = beside_the_loop(body.len(), || {
            convert_request(from, terms.target, body, &request_terms)
        });
        let converted = converted.map_err(ConversionFailure::NoForm)?;
        // Claimed afterwards: the size of the result is not known before.
        let _claim = claim(converted.body.len()).ok_or(ConversionFailure::NoMemory)?;
        Ok(Self { terms, converted, _claim })
    }

    /// Returns whether a backend of these terms gets the same request.
    pub(crate) fn fits(&self, terms: &ConversionTerms) -> bool {
        self.terms == *terms
    }

    /// The operation that the request has become.
    pub(crate) fn operation(&self) -> Operation {
        self.converted.operation
    }

    /// The body that the backend gets.
    pub(crate) fn body(&self) -> &[u8] {
        &self.converted.body
    }

    /// Releases the body, and returns the conversion of the response.
    pub(crate) fn into_way_back(self) -> WayBack {
        WayBack { operation: self.converted.operation, reply: self.converted.reply }
    }
}

/// Converts an engine's error to the dialect of the client's operation.
pub(crate) fn convert_held(held: HeldResponse, client: Operation) -> HeldResponse {
    let body = convert_error(client, held.status, &held.body);
    let mut header = held.header;
    // The head may have another status: the error came as the event of a stream, or with a 200.
    if let Ok(status) = StatusCode::from_u16(held.status) {
        _ = header.set_status(status);
    }
    // The engine's type is not that of the converted body; `own_response` adds the right one.
    header.remove_header(&header::CONTENT_TYPE);
    HeldResponse { header, body: body.into(), ..held }
}

/// The conversion of a response back to the client's operation.
#[derive(Debug, Clone)]
pub(crate) struct WayBack {
    operation: Operation,
    reply: ReplyTerms,
}

impl WayBack {
    /// The operation whose response the backend sends.
    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    /// The way back of a response that the backend sends whole, if `is_whole`. Some engines send
    /// one to a request for a stream.
    pub(crate) fn for_response(self, is_whole: bool) -> Self {
        match is_whole {
            true => Self { reply: self.reply.of_complete(), ..self },
            false => self,
        }
    }

    /// Returns whether the client gets a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.reply.is_stream()
    }

    /// The converter of one response, for a client that sent a request of `client` at `arrived_at`.
    pub(crate) fn into_converter(
        self,
        client: Operation,
        context: ReplyContext,
        arrived_at: Timestamp,
    ) -> Converter {
        Converter {
            inner: ResponseConverter::new(client, self.operation, self.reply, context),
            arrived_at,
            out: Vec::new(),
            failure: None,
            claim: None,
        }
    }
}

pub(crate) struct Converter {
    inner: ResponseConverter,
    arrived_at: Timestamp,
    /// The converted bytes that have not been written.
    out: Vec<u8>,
    /// The reason why the response cannot be converted.
    failure: Option<BadResponse>,
    /// The memory for what a stream keeps until its end.
    claim: Option<BodyClaim>,
}

/// The least growth of a stream's claim: not every event touches the budget.
const MIN_CLAIM_STEP: usize = 16 * 1024;

impl Converter {
    /// Claims memory from `claim` for what a stream keeps.
    pub(crate) fn with_claim(self, claim: BodyClaim) -> Self {
        Self { claim: Some(claim), ..self }
    }

    /// Claims memory for what the converter keeps; returns whether there is enough.
    fn claim_held(&mut self) -> bool {
        let held = self.inner.held();
        let Some(claim) = self.claim.as_mut().filter(|_| held > 0) else { return true };
        // Close to the limit the exact size may still fit.
        claim.grow_to(held.next_multiple_of(MIN_CLAIM_STEP)) || claim.grow_to(held)
    }

    /// The `content-type` that the client gets.
    pub(crate) fn content_type(&self) -> &'static str {
        self.inner.content_type()
    }

    /// The reason why the response cannot be converted, if `apply` has failed.
    pub(crate) fn failure(&self) -> Option<String> {
        let text = self.failure?.to_string();
        let mut letters = text.chars();
        let first = letters.next()?.to_uppercase();
        Some(first.chain(letters).collect())
    }
}

impl Transform for Converter {
    fn apply(&mut self, payload: Bytes, is_last: bool, now: Timestamp) -> Result<Bytes, ErrorCode> {
        let elapsed = now.since(self.arrived_at);
        let fed = self.inner.feed(&payload, elapsed, &mut self.out);
        let ended = match (fed, is_last) {
            (Ok(()), true) => {
                // A whole response is converted at its end, all at once.
                let (inner, out) = (&mut self.inner, &mut self.out);
                beside_the_loop(inner.unread(), || inner.finish(elapsed, out))
            }
            (fed, _) => fed,
        };
        if ended.is_ok() && !self.claim_held() {
            return Err(ErrorCode::ResponseMemoryFull);
        }
        match ended {
            Ok(()) => Ok(std::mem::take(&mut self.out).into()),
            // The output so far stays: `cut` sends it with the end.
            Err(error) => {
                tracing::debug!(%error, "a response cannot be converted");
                self.failure = Some(error);
                Err(ErrorCode::BadUpstreamResponse)
            }
        }
    }

    fn cut(&mut self, code: ErrorCode, message: &str) -> Bytes {
        let failure = self.failure();
        self.inner.cut(code, failure.as_deref().unwrap_or(message), &mut self.out);
        std::mem::take(&mut self.out).into()
    }
}
