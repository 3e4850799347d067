//! A request body: its framing, the reasons to refuse it, and the memory that holds it.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};

pub(crate) use crate::wire::body_budget::{BodyBudget, BodyClaim};
use crate::wire::chunked::ChunkError;
use crate::wire::content_decoder::DecodeError;
use penstock_api::ErrorCode;
use penstock_api::content_coding::{CodingError, ContentCoding};
use penstock_api::units::ByteSize;
use penstock_config::LimitsConfig;

/// The framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyLength {
    None,
    Known(u64),
    Chunked,
    /// By HTTP/2's frames. If the client sent `content-length`, h2 checks the frames against it.
    Framed(Option<u64>),
}

/// The reason why a body was not read. Except for errors found in a body that was read whole, the
/// connection ends: the start of the next request is unknown, or not worth the bytes before it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The client disconnected; no response can be sent.
    #[error("the client disconnected")]
    ClientGone,
    #[error(transparent)]
    Coding(#[from] CodingError),
    #[error("The body cannot be decoded as {}: {reason}", .coding.name())]
    NotDecoded { coding: ContentCoding, reason: DecodeError },
    #[error("The body expands to more than {ratio} times its size (limits.max_body_ratio)")]
    Expands { ratio: u32 },
    #[error("The body is larger than {limit} (limits.max_body_size)")]
    TooLarge { limit: ByteSize },
    #[error("Too many request bodies are held at once (limits.buffered_bodies)")]
    MemoryFull,
    #[error("The body did not arrive in time (limits.body_read_timeout, limits.min_body_rate)")]
    TimedOut,
    #[error("The chunked body is malformed: {0}")]
    Malformed(#[from] ChunkError),
}

impl BodyError {
    /// The error for the client; `None` when it is gone.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::ClientGone => None,
            Self::Coding(_) => Some(ErrorCode::UnsupportedEncoding),
            Self::TooLarge { .. } | Self::Expands { .. } => Some(ErrorCode::BodyTooLarge),
            Self::MemoryFull => Some(ErrorCode::BodyMemoryFull),
            Self::TimedOut => Some(ErrorCode::BodyTimeout),
            Self::Malformed(_) | Self::NotDecoded { .. } => Some(ErrorCode::InvalidRequest),
        }
    }

    /// Returns whether the connection ends with the response.
    pub(crate) fn closes(&self) -> bool {
        !matches!(self, Self::NotDecoded { .. } | Self::Expands { .. })
    }
}

impl BodyLength {
    /// The framing of an HTTP/1.1 head that `head_check` has passed.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(header::TRANSFER_ENCODING) {
            return Self::Chunked;
        }
        let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        match length.and_then(|digits| digits.trim().parse().ok()) {
            None | Some(0) => Self::None,
            Some(bytes) => Self::Known(bytes),
        }
    }

    /// Refuses a body that is known to be invalid before a byte of it is read.
    pub(crate) fn check(self, limits: &LimitsConfig) -> Result<(), BodyError> {
        let limit = limits.max_body_size;
        match self {
            Self::Known(bytes) | Self::Framed(Some(bytes)) if bytes > limit.0 => {
                Err(BodyError::TooLarge { limit })
            }
            Self::None | Self::Known(_) | Self::Chunked | Self::Framed(_) => Ok(()),
        }
    }
}

/// A whole body and its claim on the budget.
pub(crate) struct HeldBody {
    pub(crate) bytes: Bytes,
    pub(crate) _claim: BodyClaim,
}

impl HeldBody {
    pub(crate) fn new(bytes: BytesMut, claim: BodyClaim) -> Self {
        Self { bytes: bytes.freeze(), _claim: claim }
    }
}
