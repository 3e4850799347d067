//! Decodes the framing of a response body (length, chunked, until close) and yields its payload.

use bytes::{Bytes, BytesMut};

use super::response_head::{BodyEnd, InvalidResponse};
use crate::wire::chunked::ChunkDecoder;

/// Takes payload off the front of a buffer, up to the end of the body.
pub(crate) struct BodyDecoder(DecoderState);

enum DecoderState {
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClose,
    Done,
}

impl BodyDecoder {
    pub(crate) fn new(framing: BodyEnd) -> Self {
        Self(match framing {
            BodyEnd::Empty | BodyEnd::Length(0) => DecoderState::Done,
            BodyEnd::Length(length) => DecoderState::Length(length),
            BodyEnd::Chunked => DecoderState::Chunked(ChunkDecoder::default()),
            BodyEnd::UntilClose => DecoderState::UntilClose,
        })
    }

    /// Returns whether the whole body has been taken; never true for a body that ends with its
    /// connection.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.0, DecoderState::Done)
    }

    /// The remaining bytes of a body of known length; 0 for others.
    pub(crate) fn announced(&self) -> u64 {
        match &self.0 {
            DecoderState::Length(left) => *left,
            DecoderState::Chunked(_) | DecoderState::UntilClose | DecoderState::Done => 0,
        }
    }

    /// Returns whether the body ends with its connection.
    pub(crate) fn is_until_close(&self) -> bool {
        matches!(self.0, DecoderState::UntilClose)
    }

    /// Takes all payload in `read`.
    pub(crate) fn take(&mut self, read: &mut BytesMut) -> Result<Bytes, InvalidResponse> {
        match &mut self.0 {
            DecoderState::Done => Ok(Bytes::new()),
            DecoderState::UntilClose => Ok(read.split().freeze()),
            DecoderState::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                *left -= count as u64;
                if *left == 0 {
                    self.0 = DecoderState::Done;
                }
                Ok(read.split_to(count).freeze())
            }
            DecoderState::Chunked(decoder) => {
                let decoded = decoder.decode(read).map_err(|_malformed| InvalidResponse::Chunks)?;
                let mut taken = read.split_to(decoded.consumed);
                taken.truncate(decoded.payload);
                if decoded.is_done {
                    self.0 = DecoderState::Done;
                }
                Ok(taken.freeze())
            }
        }
    }
}
