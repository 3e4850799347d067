//! A request body: how it is framed, why it may be refused, and the memory it is held in.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header;

use crate::api::ErrorCode;
use crate::config::LimitsConfig;
use crate::units::ByteSize;
use crate::wire::chunked::ChunkError;
use crate::wire::content_coding::{CodingError, ContentCoding};
use crate::wire::content_decoder::DecodeError;

/// How a request's body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyLength {
    None,
    Known(u64),
    Chunked,
    /// By HTTP/2's frames; with the client's `content-length`, which h2 holds the frames to.
    Framed(Option<u64>),
}

/// Why a body was not read. All but those found in a body that was read whole end the connection: where the
/// next request starts is unknown, or not worth the bytes before it.
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
    /// The error the client gets; `None` when it is gone.
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

    /// Whether the connection ends with the response.
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

    /// Refuses what is known to be wrong before a byte of the body is read.
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

/// Bounds the bodies held by all requests together (`limits.buffered_bodies`).
#[derive(Debug, Default)]
pub(crate) struct BodyBudget {
    held: AtomicUsize,
}

impl BodyBudget {
    /// Bytes held now.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    fn try_take(&self, bytes: usize, limit: usize) -> bool {
        let added = self.held.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|sum| *sum <= limit)
        });
        added.is_ok()
    }
}

/// A claim on the budget, returned when dropped.
pub(crate) struct BodyClaim {
    budget: Arc<BodyBudget>,
    bytes: usize,
    limit: usize,
}

impl BodyClaim {
    /// Claims room for a body of `bytes`, or `None` when `limit` is reached.
    pub(crate) fn take(budget: &Arc<BodyBudget>, bytes: usize, limit: usize) -> Option<Self> {
        budget.try_take(bytes, limit).then(|| Self { budget: Arc::clone(budget), bytes, limit })
    }

    /// Claims more room as a body of unknown length grows; returns whether there is any.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let granted = more == 0 || self.budget.try_take(more, self.limit);
        if granted {
            self.bytes += more;
        }
        granted
    }

    /// Returns the room beyond `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.budget.held.fetch_sub(surplus, Ordering::AcqRel);
        self.bytes -= surplus;
    }
}

impl Drop for BodyClaim {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::AcqRel);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_claims_stay_within_the_budget_and_are_returned() {
        let budget = Arc::new(BodyBudget::default());
        let mut first = BodyClaim::take(&budget, 60, 100).unwrap();
        assert!(BodyClaim::take(&budget, 50, 100).is_none());
        assert!(first.grow_to(100));
        assert!(!first.grow_to(101));
        assert_eq!(budget.held(), 100);
        first.shrink_to(200);
        assert_eq!(budget.held(), 100);
        first.shrink_to(30);
        assert_eq!(budget.held(), 30);
        drop(first);
        assert_eq!(budget.held(), 0);
    }
}
