//! The beginning of a response's body. It is read before the response is classified, because an
//! error, or nothing at all, may follow any status.

use bytes::{Bytes, BytesMut};

use super::body_decoder::BodyDecoder;
use super::failure::{ConnectionEnd, ExchangeError};
use super::http1::Exchange;
use super::response_head::{BodyEnd, InvalidResponse};

/// The payload of a part of a body. A payload that arrived in one read is not copied.
enum Payload {
    OneRead(Bytes),
    Gathered(BytesMut),
}

/// The part of a body that has been read, and the way to read the rest.
pub(crate) struct Beginning {
    decoder: BodyDecoder,
    payload: Payload,
    /// The capacity to allocate at once if the body's length is known.
    room: usize,
    /// True if the backend has closed the connection that ends the body.
    is_closed: bool,
}

impl Beginning {
    pub(crate) fn new(framing: BodyEnd) -> Self {
        let payload = Payload::OneRead(Bytes::new());
        Self { decoder: BodyDecoder::new(framing), payload, room: 0, is_closed: false }
    }

    /// Expects the whole body, of at most `limit` bytes. Reserved memory that is never written
    /// costs nothing, and avoids the copies of a growing buffer.
    pub(crate) fn expect_whole(&mut self, limit: usize) {
        let announced = usize::try_from(self.decoder.announced()).unwrap_or(usize::MAX);
        self.room = announced.saturating_add(self.payload().len()).min(limit);
        if let Payload::Gathered(gathered) = &mut self.payload {
            gathered.reserve(self.room.saturating_sub(gathered.len()));
        }
    }

    /// The payload that has been read and not taken.
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::OneRead(bytes) => bytes,
            Payload::Gathered(bytes) => bytes,
        }
    }

    pub(crate) fn take_payload(&mut self) -> Bytes {
        match std::mem::replace(&mut self.payload, Payload::OneRead(Bytes::new())) {
            Payload::OneRead(bytes) => bytes,
            Payload::Gathered(bytes) => bytes.freeze(),
        }
    }

    /// Changes the payload that has been read and not taken.
    pub(crate) fn change(&mut self, change: impl FnOnce(Bytes) -> Bytes) {
        self.payload = Payload::OneRead(change(self.take_payload()));
    }

    /// Returns whether the whole body has been read.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_closed || self.decoder.is_done()
    }

    /// Returns whether more bytes of a body of known length are to come.
    pub(crate) fn is_announced(&self) -> bool {
        self.decoder.announced() > 0
    }

    /// Returns whether the body ends with its connection, which has not been closed yet.
    pub(crate) fn is_until_close(&self) -> bool {
        !self.is_closed && self.decoder.is_until_close()
    }

    /// Returns whether the close of the connection ended the body.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Records that the connection that ends the body was closed.
    pub(crate) fn end(&mut self) {
        self.is_closed = true;
    }

    /// Takes the payload that has been read; without any, decodes what is in `read`.
    ///
    /// # Errors
    /// When the content of `read` is malformed.
    pub(crate) fn take(&mut self, read: &mut BytesMut) -> Result<Bytes, InvalidResponse> {
        match self.payload().is_empty() {
            true => self.decoder.take(read),
            // If the bytes after it are malformed, the next call reports it.
            false => Ok(self.take_payload()),
        }
    }

    fn decode(&mut self, read: &mut BytesMut) -> Result<(), InvalidResponse> {
        let decoded = self.decoder.take(read)?;
        match &mut self.payload {
            Payload::OneRead(first) if first.is_empty() => *first = decoded,
            Payload::OneRead(_) if decoded.is_empty() => {}
            Payload::OneRead(first) => {
                // At least twice the payload so far: further parts rarely copy it again.
                let mut gathered =
                    BytesMut::with_capacity(self.room.max(2 * (first.len() + decoded.len())));
                gathered.extend_from_slice(first);
                gathered.extend_from_slice(&decoded);
                self.payload = Payload::Gathered(gathered);
            }
            Payload::Gathered(gathered) => gathered.extend_from_slice(&decoded),
        }
        Ok(())
    }
}

impl Exchange<'_> {
    /// Decodes the part of the body that arrived with earlier reads. Returns whether there is
    /// anything to examine.
    ///
    /// # Errors
    /// When it is malformed.
    pub(crate) fn take_arrived(
        &mut self,
        started: &mut Beginning,
    ) -> Result<bool, InvalidResponse> {
        started.decode(&mut self.connection.read)?;
        Ok(started.is_whole() || !started.payload().is_empty())
    }

    /// Reads until the body ends or `is_enough` accepts the payload so far.
    ///
    /// # Errors
    /// When the backend breaks off, a deadline passes, or the client leaves. The payload read so
    /// far stays.
    pub(crate) async fn read_until(
        &mut self,
        started: &mut Beginning,
        mut is_enough: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), ExchangeError> {
        loop {
            started.decode(&mut self.connection.read).map_err(ExchangeError::BadResponse)?;
            if started.is_whole() || (!started.payload().is_empty() && is_enough(started.payload()))
            {
                return Ok(());
            }
            if self.read_more().await? == 0 {
                if !started.is_until_close() {
                    return Err(ExchangeError::Ended(ConnectionEnd::Closed));
                }
                started.end();
            }
        }
    }
}
