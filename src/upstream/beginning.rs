//! The beginning of a response's body, read before it is decided what becomes of the response: an error,
//! or nothing at all, may come with any status.

use bytes::{Bytes, BytesMut};

use super::body_decoder::BodyDecoder;
use super::failure::{ConnectionEnd, ExchangeError};
use super::http1::Exchange;
use super::response_head::{BadResponse, Framing};

/// The payload of a part of a body. What came in one read is not copied.
enum Payload {
    OneRead(Bytes),
    Gathered(BytesMut),
}

/// The part of a body that has been read, and the way to read the rest.
pub(crate) struct Beginning {
    decoder: BodyDecoder,
    payload: Payload,
    /// The bytes that there will be room for at once, where the body says how long it is.
    room: usize,
    /// The backend has closed the connection that ends the body.
    is_closed: bool,
}

impl Beginning {
    /// The beginning of a body that nothing has been read of.
    pub(crate) fn new(framing: Framing) -> Self {
        let payload = Payload::OneRead(Bytes::new());
        Self { decoder: BodyDecoder::new(framing), payload, room: 0, is_closed: false }
    }

    /// Expects the whole body, of at most `limit` bytes. Room that is not written to takes no memory, and spares the
    /// copies of a growing buffer.
    pub(crate) fn expect_whole(&mut self, limit: usize) {
        let announced = usize::try_from(self.decoder.announced()).unwrap_or(usize::MAX);
        self.room = announced.saturating_add(self.payload().len()).min(limit);
        if let Payload::Gathered(gathered) = &mut self.payload {
            gathered.reserve(self.room.saturating_sub(gathered.len()));
        }
    }

    /// The payload that has been read and not been taken.
    pub(crate) fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::OneRead(bytes) => bytes,
            Payload::Gathered(bytes) => bytes,
        }
    }

    /// The same, taken.
    pub(crate) fn take_payload(&mut self) -> Bytes {
        match std::mem::replace(&mut self.payload, Payload::OneRead(Bytes::new())) {
            Payload::OneRead(bytes) => bytes,
            Payload::Gathered(bytes) => bytes.freeze(),
        }
    }

    /// Whether the whole body has been read.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_closed || self.decoder.is_done()
    }

    /// Whether the body ends with its connection, which has not been closed.
    pub(crate) fn is_until_close(&self) -> bool {
        !self.is_closed && self.decoder.is_until_close()
    }

    /// Whether the end of its connection was taken for the end of the body.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The connection that ends the body was closed.
    pub(crate) fn end(&mut self) {
        self.is_closed = true;
    }

    /// Takes the payload that has been read; where there is none, what is in `read`.
    ///
    /// # Errors
    /// When what is in `read` is malformed.
    pub(crate) fn take(&mut self, read: &mut BytesMut) -> Result<Bytes, BadResponse> {
        match self.payload().is_empty() {
            true => self.decoder.take(read),
            // What is malformed behind it is found by the next call.
            false => Ok(self.take_payload()),
        }
    }

    fn decode(&mut self, read: &mut BytesMut) -> Result<(), BadResponse> {
        let decoded = self.decoder.take(read)?;
        match &mut self.payload {
            Payload::OneRead(first) if first.is_empty() => *first = decoded,
            Payload::OneRead(_) if decoded.is_empty() => {}
            Payload::OneRead(first) => {
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
    /// Takes what has come of the body with what was read before. Returns whether there is anything to look at.
    ///
    /// # Errors
    /// When it is malformed.
    pub(crate) fn take_arrived(&mut self, started: &mut Beginning) -> Result<bool, BadResponse> {
        started.decode(&mut self.connection.read)?;
        Ok(started.is_whole() || !started.payload().is_empty())
    }

    /// Reads on until the body ends, or what there is of it is enough.
    ///
    /// # Errors
    /// When the backend breaks off, a deadline passes, or the client leaves. What was read stays.
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
