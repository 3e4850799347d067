//! Chunked transfer coding (RFC 9112 §7.1), decoded in place and strictly.
//!
//! Strictly, because the framing decides where the next request starts: a size, line end or trailer
//! that another parser reads differently is request smuggling. A state machine, because a body
//! arrives in slices that may end anywhere; only the state is kept between them. In place, because
//! the payload only moves towards the front: the write position never passes the read position.

use penstock_api::is_token_byte;

/// The error in the framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// No digits, too many, or something else in their place.
    #[error("a chunk size is not a hexadecimal number")]
    Size,
    /// A bare LF, a control character or too many bytes in an extension.
    #[error("a chunk extension is malformed or too long")]
    Extension,
    /// Bytes other than CR LF after a chunk.
    #[error("a chunk does not end with CR LF")]
    Ending,
    /// Trailers that are malformed or too long.
    #[error("the trailers are malformed or too long")]
    Trailers,
}

/// The result of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoded {
    /// Payload bytes, moved to the front of the slice. Never more than `consumed`.
    pub payload: usize,
    /// The bytes of the slice that belong to the body. After the end, the rest is the next message;
    /// before it, the rest starts with a byte that breaks the framing, which the next call reports.
    pub consumed: usize,
    /// True if the last chunk and its trailers have been read.
    pub is_done: bool,
}

// The limit of a body counts its payload: extensions and trailers need limits here.
const MAX_EXTENSION: u32 = 1024;
const MAX_TRAILERS: u32 = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Size { value: u64, digits: u8 },
    Padding { size: u64 },
    Extension { size: u64, length: u32 },
    SizeEnd { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart { length: u32 },
    TrailerName { length: u32 },
    TrailerValue { length: u32 },
    TrailerLf { length: u32 },
    LastLf,
    Done,
}

/// A decoder for a chunked body in slices of any size.
#[derive(Debug)]
pub struct ChunkDecoder(ChunkState);

impl Default for ChunkDecoder {
    fn default() -> Self {
        Self(ChunkState::Size { value: 0, digits: 0 })
    }
}

impl ChunkDecoder {
    /// Decodes as much of `bytes` as belongs to the body, moving the payload to its front.
    ///
    /// # Errors
    /// [`ChunkError`] at the first byte that breaks the framing; nothing can be decoded after it.
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<Decoded, ChunkError> {
        let mut payload = 0;
        let mut at = 0;
        while self.0 != ChunkState::Done {
            if let ChunkState::Data { left } = self.0 {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                if take == 0 {
                    break;
                }
                if payload != at {
                    bytes.copy_within(at..at + take, payload);
                }
                payload += take;
                at += take;
                self.0 = match left - take as u64 {
                    0 => ChunkState::DataCr,
                    left => ChunkState::Data { left },
                };
                continue;
            }
            let Some(&byte) = bytes.get(at) else { break };
            match self.step(byte) {
                Ok(next) => self.0 = next,
                // The payload before the error is returned first; the next call finds the error
                // again.
                Err(_) if payload > 0 => break,
                Err(error) => return Err(error),
            }
            at += 1;
        }
        debug_assert!(payload <= at && at <= bytes.len(), "the payload moves towards the front");
        Ok(Decoded { payload, consumed: at, is_done: self.0 == ChunkState::Done })
    }

    fn step(&self, byte: u8) -> Result<ChunkState, ChunkError> {
        match (self.0, byte) {
            (ChunkState::Size { value, digits }, _) => step_size(value, digits, byte),
            // Blanks as RFC 9112 §7.1.1 allows (BWS); digits after them are ambiguous.
            (ChunkState::Padding { size }, b' ' | b'\t') => Ok(ChunkState::Padding { size }),
            (ChunkState::Padding { size }, b';') => Ok(ChunkState::Extension { size, length: 0 }),
            (ChunkState::Padding { size }, b'\r') => Ok(ChunkState::SizeEnd { size }),
            (ChunkState::Padding { .. }, _) => Err(ChunkError::Size),
            (ChunkState::Extension { size, .. }, b'\r') => Ok(ChunkState::SizeEnd { size }),
            (ChunkState::Extension { size, length }, b'\t' | b' '..=b'~' | 0x80..)
                if length < MAX_EXTENSION =>
            {
                Ok(ChunkState::Extension { size, length: length + 1 })
            }
            (ChunkState::Extension { .. }, _) => Err(ChunkError::Extension),
            (ChunkState::SizeEnd { size: 0 }, b'\n') => Ok(ChunkState::TrailerStart { length: 0 }),
            (ChunkState::SizeEnd { size }, b'\n') => Ok(ChunkState::Data { left: size }),
            (ChunkState::SizeEnd { .. }, _) => Err(ChunkError::Size),
            (ChunkState::DataCr, b'\r') => Ok(ChunkState::DataLf),
            (ChunkState::DataLf, b'\n') => Ok(ChunkState::Size { value: 0, digits: 0 }),
            (ChunkState::DataCr | ChunkState::DataLf, _) => Err(ChunkError::Ending),
            (ChunkState::TrailerStart { .. }, b'\r') => Ok(ChunkState::LastLf),
            // Without the empty line the next request would be read as trailers: a name is a token,
            // and no request line has one before a colon.
            (ChunkState::TrailerStart { length } | ChunkState::TrailerName { length }, _)
                if is_token_byte(byte) && length < MAX_TRAILERS =>
            {
                Ok(ChunkState::TrailerName { length: length + 1 })
            }
            (ChunkState::TrailerName { length }, b':') => Ok(ChunkState::TrailerValue { length }),
            (ChunkState::TrailerValue { length }, b'\t' | b' '..=b'~' | 0x80..)
                if length < MAX_TRAILERS =>
            {
                Ok(ChunkState::TrailerValue { length: length + 1 })
            }
            (ChunkState::TrailerValue { length }, b'\r') => Ok(ChunkState::TrailerLf { length }),
            (ChunkState::TrailerLf { length }, b'\n') => Ok(ChunkState::TrailerStart { length }),
            (ChunkState::LastLf, b'\n') => Ok(ChunkState::Done),
            (
                ChunkState::TrailerStart { .. }
                | ChunkState::TrailerName { .. }
                | ChunkState::TrailerValue { .. }
                | ChunkState::TrailerLf { .. }
                | ChunkState::LastLf,
                _,
            ) => Err(ChunkError::Trailers),
            (state @ (ChunkState::Data { .. } | ChunkState::Done), _) => Ok(state),
        }
    }
}

fn step_size(value: u64, digits: u8, byte: u8) -> Result<ChunkState, ChunkError> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        b'\r' if digits > 0 => return Ok(ChunkState::SizeEnd { size: value }),
        b';' if digits > 0 => return Ok(ChunkState::Extension { size: value, length: 0 }),
        b' ' | b'\t' if digits > 0 => return Ok(ChunkState::Padding { size: value }),
        _ => return Err(ChunkError::Size),
    };
    // 15 digits are 60 bits: no size overflows.
    if digits >= 15 {
        return Err(ChunkError::Size);
    }
    Ok(ChunkState::Size { value: value << 4 | u64::from(digit), digits: digits + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode_in(parts: &[&[u8]]) -> Result<(Vec<u8>, bool, usize), ChunkError> {
        let mut decoder = ChunkDecoder::default();
        let (mut payload, mut done, mut left) = (Vec::new(), false, 0);
        for part in parts {
            let mut bytes = part.to_vec();
            // The rest before the end starts with a bad byte, which the next call reports.
            while !bytes.is_empty() {
                let decoded = decoder.decode(&mut bytes)?;
                payload.extend_from_slice(&bytes[..decoded.payload]);
                done = decoded.is_done;
                bytes.drain(..decoded.consumed);
                if done {
                    left += bytes.len();
                    break;
                }
            }
        }
        Ok((payload, done, left))
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        for (bytes, error) in [
            (&b"\r\n"[..], ChunkError::Size),
            (b"g\r\n", ChunkError::Size),
            (b"-1\r\n", ChunkError::Size),
            (b"0x1\r\n", ChunkError::Size),
            (b"1\n", ChunkError::Size),
            (b"2 2\r\n", ChunkError::Size),
            (b"1\rx", ChunkError::Size),
            (b"1111111111111111\r\n", ChunkError::Size),
            (b"1;a\nb\r\n", ChunkError::Extension),
            (b"1;\0\r\n", ChunkError::Extension),
            (b"1\r\nab", ChunkError::Ending),
            (b"1\r\na\n", ChunkError::Ending),
            (b"0\r\n\n", ChunkError::Trailers),
            (b"0\r\na: b\n", ChunkError::Trailers),
            (b"0\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", ChunkError::Trailers),
            (b"0\r\nno colon\r\n\r\n", ChunkError::Trailers),
            (b"0\r\nname\r\n\r\n", ChunkError::Trailers),
            (b"0\r\n: value\r\n\r\n", ChunkError::Trailers),
            (b"0\r\na: b\r\n folded\r\n\r\n", ChunkError::Trailers),
            (b"0\r\na: b\0\r\n\r\n", ChunkError::Trailers),
        ] {
            assert_eq!(decode_in(&[bytes]), Err(error), "{bytes:?}");
        }
        let long = [b"1;".to_vec(), vec![b'a'; 2000]].concat();
        assert_eq!(decode_in(&[&long]), Err(ChunkError::Extension));
    }

    #[test]
    fn payload_before_an_error_is_returned() {
        let mut decoder = ChunkDecoder::default();
        let mut bytes = b"5\r\nhello\r\nworse".to_vec();
        let decoded = decoder.decode(&mut bytes).unwrap();
        assert_eq!(&bytes[..decoded.payload], b"hello");
        assert_eq!(decoder.decode(&mut bytes[decoded.consumed..]), Err(ChunkError::Size));
    }

    #[test]
    fn bytes_after_the_body_are_not_consumed() {
        let body = b"5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\nGET /";
        assert_eq!(decode_in(&[body]), Ok((b"hello".to_vec(), true, 5)));
    }

    proptest! {
        #[test]
        fn every_split_decodes_alike(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..6),
            cuts in proptest::collection::vec(0_usize..300, 0..8),
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\n\r\n");
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(wire.len())).collect();
            cuts.sort_unstable();
            let mut parts = Vec::new();
            let mut from = 0;
            for cut in cuts {
                parts.push(&wire[from..cut]);
                from = cut;
            }
            parts.push(&wire[from..]);
            prop_assert_eq!(decode_in(&parts), Ok((chunks.concat(), true, 0)));
        }

        #[test]
        fn decoder_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _outcome = decode_in(&[&bytes]);
        }
    }
}
