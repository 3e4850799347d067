//! Decodes the framing of a response body (length, chunked, until close) and yields its payload.

use bytes::{Bytes, BytesMut};

use super::response_head::{BadResponse, Framing};
use crate::wire::chunked::ChunkDecoder;

/// Takes payload off the front of a buffer, up to the end of the body.
pub(crate) struct BodyDecoder(State);

enum State {
    Length(u64),
    Chunked(ChunkDecoder),
    UntilClose,
    Done,
}

impl BodyDecoder {
    pub(crate) fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::Empty | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(ChunkDecoder::default()),
            Framing::UntilClose => State::UntilClose,
        })
    }

    /// Returns whether the whole body has been taken; never true for a body that ends with its
    /// connection.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    /// The remaining bytes of a body of known length; 0 for others.
    pub(crate) fn announced(&self) -> u64 {
        match &self.0 {
            State::Length(left) => *left,
            State::Chunked(_) | State::UntilClose | State::Done => 0,
        }
    }

    /// Returns whether the body ends with its connection.
    pub(crate) fn is_until_close(&self) -> bool {
        matches!(self.0, State::UntilClose)
    }

    /// Takes all payload in `read`.
    pub(crate) fn take(&mut self, read: &mut BytesMut) -> Result<Bytes, BadResponse> {
        match &mut self.0 {
            State::Done => Ok(Bytes::new()),
            State::UntilClose => Ok(read.split().freeze()),
            State::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                *left -= count as u64;
                if *left == 0 {
                    self.0 = State::Done;
                }
                Ok(read.split_to(count).freeze())
            }
            State::Chunked(decoder) => {
                let decoded = decoder.decode(read).map_err(|_malformed| BadResponse::Chunks)?;
                let mut taken = read.split_to(decoded.consumed);
                taken.truncate(decoded.payload);
                if decoded.is_done {
                    self.0 = State::Done;
                }
                Ok(taken.freeze())
            }
        }
    }
}
