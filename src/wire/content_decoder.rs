//! Decodes an encoded body in steps that the caller bounds, so that no step takes long and no
//! output grows unnoticed. A body may be several members (gzip) or frames (zstd) one after the
//! other, as their formats allow.
//!
//! **Memory.** Besides its output a decoder holds a window: 32 KiB of gzip and deflate, at most 8
//! MiB of zstd (RFC 9659) and 16 MiB of Brotli, both written to only as far as the output has
//! grown.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};
use penstock_api::content_coding::ContentCoding;
use zstd::stream::raw::{DParameter, InBuffer, Operation, OutBuffer};

/// The largest window of a zstd frame, as an exponent of two (RFC 9659 §3).
const MAX_ZSTD_WINDOW_LOG: u32 = 23;
/// The size of gzip's window, as an exponent of two.
const GZIP_WINDOW_BITS: u8 = 15;
/// The most members or frames of a body: each costs a decoder, even if it is empty.
const MAX_FRAMES: usize = 1024;
/// zstd's error for a frame with a larger window.
const ZSTD_WINDOW_ERROR: &str = "Frame requires too much memory for decoding";

/// The reason why a body cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("it is malformed")]
    Malformed,
    #[error("it ends early")]
    Truncated,
    #[error("other bytes follow its end")]
    TrailingBytes,
    #[error("its window is larger than 8MiB")]
    WindowTooLarge,
    #[error("it has more than {MAX_FRAMES} frames")]
    TooManyFrames,
    #[error("there is no memory for a decoder")]
    NoMemory,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// The input bytes that were used.
    pub(crate) read: usize,
    /// The output bytes that were written.
    pub(crate) written: usize,
    /// True if the body may end here.
    pub(crate) is_whole: bool,
}

/// The decoder of one body.
pub(crate) struct ContentDecoder {
    coding: ContentCoding,
    /// The decoder of the current frame; `None` between frames.
    frame: Option<Frame>,
    frames: usize,
}

enum Frame {
    Zlib(Decompress),
    Brotli(Box<Brotli>),
    Zstd(zstd::stream::raw::Decoder<'static>),
}

type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

impl ContentDecoder {
    pub(crate) fn new(coding: ContentCoding) -> Self {
        Self { coding, frame: None, frames: 0 }
    }

    /// Decodes from the front of `rest`, the remaining bytes of the body: at most `most` bytes, and
    /// as many as `output` has room for.
    ///
    /// # Errors
    /// When the body does not match its coding, or ends early.
    pub(crate) fn step(
        &mut self,
        rest: &[u8],
        most: usize,
        output: &mut [u8],
    ) -> Result<Step, DecodeError> {
        debug_assert!(most > 0 && !output.is_empty(), "a step can go on");
        let frame = match &mut self.frame {
            Some(frame) => frame,
            None => {
                let started = start(self.coding, rest, self.frames)?;
                self.frames += 1;
                self.frame.insert(started)
            }
        };
        let input = rest.get(..most).unwrap_or(rest);
        let (step, is_frame_done) = frame.step(input, output)?;
        if is_frame_done {
            self.frame = None;
        } else if step.read == rest.len() && step.written < output.len() {
            // The decoder has used all input and has room for output: it waits for bytes that do
            // not exist.
            return Err(DecodeError::Truncated);
        } else if step.read == 0 && step.written == 0 {
            // Bytes remain that the decoder does not take.
            return Err(DecodeError::Malformed);
        }
        Ok(Step { is_whole: is_frame_done && step.read == rest.len(), ..step })
    }
}

/// Starts the frame at the front of `rest`, after `frames` others.
fn start(coding: ContentCoding, rest: &[u8], frames: usize) -> Result<Frame, DecodeError> {
    let is_first = frames == 0;
    let may_begin = match coding {
        ContentCoding::Gzip => is_first || rest.starts_with(&[0x1f, 0x8b]),
        // Only these: zstd would also decode formats of its early years, without a bound on their
        // window.
        ContentCoding::Zstd => begins_zstd_frame(rest),
        ContentCoding::Deflate | ContentCoding::Brotli => is_first,
    };
    match may_begin {
        true if frames >= MAX_FRAMES => return Err(DecodeError::TooManyFrames),
        true => {}
        false if is_first && rest.len() < ZSTD_MAGIC.len() => return Err(DecodeError::Truncated),
        false if is_first => return Err(DecodeError::Malformed),
        false => return Err(DecodeError::TrailingBytes),
    }
    Ok(match coding {
        ContentCoding::Gzip => Frame::Zlib(Decompress::new_gzip(GZIP_WINDOW_BITS)),
        ContentCoding::Deflate => Frame::Zlib(Decompress::new(has_zlib_header(rest))),
        ContentCoding::Brotli => {
            let (one, two, three) = Default::default();
            // Strict: without the windows of up to 1 GiB that RFC 7932 does not have.
            Frame::Brotli(Box::new(BrotliState::new_strict(one, two, three)))
        }
        ContentCoding::Zstd => {
            let made = zstd::stream::raw::Decoder::new().and_then(|mut decoder| {
                decoder.set_parameter(DParameter::WindowLogMax(MAX_ZSTD_WINDOW_LOG))?;
                Ok(decoder)
            });
            Frame::Zstd(made.map_err(|_no_memory| DecodeError::NoMemory)?)
        }
    })
}

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Returns whether a zstd frame, or a skippable frame, may begin here (RFC 8878 §3.1).
fn begins_zstd_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]) || bytes.starts_with(&ZSTD_MAGIC)
}

/// Returns whether deflate comes in zlib's format, as RFC 9110 §8.4.1.2 requires, or raw, as some
/// clients send it. A raw body with the same first bytes would begin with a stored block with
/// padding other than zero.
fn has_zlib_header(bytes: &[u8]) -> bool {
    let [method, flags, ..] = bytes else { return true };
    method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0
}

impl Frame {
    /// Decodes once; returns the bytes read and written, and whether the frame is done.
    fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<(Step, bool), DecodeError> {
        match self {
            Self::Zlib(decoder) => {
                let before = (decoder.total_in(), decoder.total_out());
                let status = decoder.decompress(input, output, FlushDecompress::None);
                let status = status.map_err(|_error| DecodeError::Malformed)?;
                let count = |now: u64, before| usize::try_from(now - before).unwrap_or(usize::MAX);
                let read = count(decoder.total_in(), before.0);
                let written = count(decoder.total_out(), before.1);
                Ok((Step { read, written, is_whole: false }, status == Status::StreamEnd))
            }
            Self::Brotli(state) => {
                let (mut left, mut room) = (input.len(), output.len());
                let (mut read, mut written, mut total) = (0, 0, 0);
                let result = BrotliDecompressStream(
                    &mut left,
                    &mut read,
                    input,
                    &mut room,
                    &mut written,
                    output,
                    &mut total,
                    state,
                );
                let is_done = match result {
                    BrotliResult::ResultSuccess => true,
                    BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => false,
                    BrotliResult::ResultFailure => return Err(DecodeError::Malformed),
                };
                Ok((Step { read, written, is_whole: false }, is_done))
            }
            Self::Zstd(decoder) => {
                let mut from = InBuffer::around(input);
                let mut into = OutBuffer::around(output);
                let hint = decoder.run(&mut from, &mut into).map_err(|error| {
                    let is_large = error.to_string().contains(ZSTD_WINDOW_ERROR);
                    if is_large { DecodeError::WindowTooLarge } else { DecodeError::Malformed }
                })?;
                let (read, written) = (from.pos(), into.pos());
                // zstd's hint is 0 when a frame is decoded and its output is flushed.
                Ok((Step { read, written, is_whole: false }, hint == 0))
            }
        }
    }
}

#[cfg(test)]
mod tests;
