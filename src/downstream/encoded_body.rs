//! Decodes the body of a request with a content coding: once, after it was read whole, in steps
//! between which other requests run. The decoded body is bounded in size, in its ratio to the
//! encoded size, and by the memory that all bodies share.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;

use bytes::{Bytes, BytesMut};
use penstock_api::KindCounters;
use penstock_api::content_coding::ContentCoding;
use penstock_api::slices::{after, before};
use penstock_config::LimitsConfig;
use tokio::sync::Semaphore;

use super::body::{BodyBudget, BodyClaim, BodyError, HeldBody};
use crate::wire::content_decoder::ContentDecoder;

/// The most bytes that one step reads, and the most that it writes: well below a millisecond.
const MAX_STEP: usize = 64 * 1024;
/// The minimum output buffer of a step.
const MIN_ROOM: usize = 1024;
/// The size up to which bodies may expand by any ratio: they cost little, and a text made for a
/// test may consist of one word.
const MAX_BYTES_AT_ANY_RATIO: usize = 1 << 20;

penstock_api::named! {
    /// The result of decoding a body.
    enum DecodeResult {
        Decoded = "decoded",
        /// The body does not match its coding.
        Malformed = "malformed",
        /// The body exceeds the limit of a body, or of all bodies together.
        TooLarge = "too_large",
    }
}

impl DecodeResult {
    fn of(decoded: &Result<HeldBody, BodyError>) -> Self {
        match decoded {
            Ok(_) => Self::Decoded,
            Err(BodyError::NotDecoded { .. }) => Self::Malformed,
            Err(_) => Self::TooLarge,
        }
    }
}

/// The encoded bodies of all requests: the permits to decode, and the counts by coding and result.
#[derive(Debug)]
pub struct EncodedBodies {
    /// One permit per processor. More decoders at one time would not be faster and hold more
    /// memory: each of many bombs grows until it is refused.
    turns: Semaphore,
    counts: [KindCounters<{ DecodeResult::ALL.len() }>; ContentCoding::ALL.len()],
}

impl Default for EncodedBodies {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self { turns: Semaphore::new(processors), counts: Default::default() }
    }
}

impl EncodedBodies {
    fn add(&self, coding: ContentCoding, result: DecodeResult) {
        if let Some(row) = self.counts.get(coding as usize) {
            row.count(result as usize);
        }
    }

    /// The coding, the result and the count of each pair.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let codings = ContentCoding::ALL.into_iter().zip(&self.counts);
        codings.flat_map(|(coding, row)| {
            let counts = DecodeResult::ALL.into_iter().zip(row.read());
            counts.map(move |(result, count)| (coding.name(), result.name(), count))
        })
    }
}

/// The bounds on the decoding of bodies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeBounds<'a> {
    pub(crate) limits: &'a LimitsConfig,
    pub(crate) budget: &'a Arc<BodyBudget>,
}

/// Decodes a body.
///
/// # Errors
/// When the body does not match its coding, expands beyond the limits, or exceeds the memory of all
/// bodies.
pub(crate) async fn decode(
    encoded: HeldBody,
    coding: ContentCoding,
    bounds: DecodeBounds<'_>,
    all: &EncodedBodies,
) -> Result<HeldBody, BodyError> {
    if encoded.bytes.is_empty() {
        return Ok(encoded);
    }
    let turn = all.turns.acquire().await;
    debug_assert!(turn.is_ok(), "turns do not end");
    let decoded = decode_steps(&encoded.bytes, coding, bounds).await;
    drop(turn);
    all.add(coding, DecodeResult::of(&decoded));
    decoded
}

async fn decode_steps(
    encoded: &Bytes,
    coding: ContentCoding,
    bounds: DecodeBounds<'_>,
) -> Result<HeldBody, BodyError> {
    let limit = bounds.limits.buffered_bodies.to_usize();
    let mut claim = BodyClaim::take(bounds.budget, 0, limit).ok_or(BodyError::MemoryFull)?;
    let mut decoder = ContentDecoder::new(coding);
    let mut pieces = Pieces::for_body_of(encoded.len());
    let mut rest = &encoded[..];
    loop {
        let step = decoder.step(rest, MAX_STEP, pieces.room());
        let step = step.map_err(|reason| BodyError::NotDecoded { coding, reason })?;
        let decoded = pieces.add(step.written);
        rest = after(rest, step.read);
        // After every step: a bomb is at most one step past its limit.
        check_size(decoded, encoded.len(), bounds.limits)?;
        // The decoder's window is at most as large as its output, and so is the joined body.
        if !claim.grow_to(2 * decoded) {
            return Err(BodyError::MemoryFull);
        }
        if step.is_whole {
            // Freed first: beside the pieces, the claim covers its window or the joined body.
            drop(decoder);
            let body = pieces.joined();
            claim.shrink_to(decoded);
            return Ok(HeldBody::new(body, claim));
        }
        tokio::task::yield_now().await;
    }
}

/// The decoded bytes, in pieces: a body that exceeds its limit is never copied to grow.
struct Pieces {
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
    /// The bytes of `last` that are written.
    written: usize,
    total: usize,
}

impl Pieces {
    fn for_body_of(encoded: usize) -> Self {
        // Most bodies expand to a few times their encoded size.
        let first = encoded.saturating_mul(4).clamp(MIN_ROOM, MAX_STEP);
        Self { full: Vec::new(), last: vec![0; first], written: 0, total: 0 }
    }

    /// Returns the buffer for the next step; never empty.
    fn room(&mut self) -> &mut [u8] {
        if self.written == self.last.len() {
            self.full.push(std::mem::replace(&mut self.last, vec![0; MAX_STEP]));
            self.written = 0;
        }
        self.last.get_mut(self.written..).unwrap_or(&mut [])
    }

    /// Records `written` bytes in that buffer; returns the total size.
    fn add(&mut self, written: usize) -> usize {
        self.written += written;
        self.total += written;
        self.total
    }

    /// Joins the pieces without spare capacity: many small bodies may wait in a queue.
    fn joined(self) -> BytesMut {
        let mut body = BytesMut::with_capacity(self.total);
        for piece in &self.full {
            body.extend_from_slice(piece);
        }
        body.extend_from_slice(before(&self.last, self.written));
        body
    }
}

fn check_size(decoded: usize, encoded: usize, limits: &LimitsConfig) -> Result<(), BodyError> {
    let limit = limits.max_body_size;
    if decoded > limit.to_usize() {
        return Err(BodyError::TooLarge { limit });
    }
    let ratio = limits.max_body_ratio;
    let most = encoded.saturating_mul(usize::try_from(ratio).unwrap_or(usize::MAX));
    if decoded > most.max(MAX_BYTES_AT_ANY_RATIO) {
        return Err(BodyError::Expands { ratio });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;
    use penstock_api::units::ByteSize;

    fn gzip(text: &[u8]) -> HeldBody {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        let budget = Arc::default();
        let claim = BodyClaim::take(&budget, 0, 0).unwrap();
        HeldBody::new(BytesMut::from(&encoder.finish().unwrap()[..]), claim)
    }

    async fn decode_by(
        text: &[u8],
        limits: &LimitsConfig,
        budget: &Arc<BodyBudget>,
    ) -> Result<HeldBody, BodyError> {
        let bounds = DecodeBounds { limits, budget };
        decode(gzip(text), ContentCoding::Gzip, bounds, &EncodedBodies::default()).await
    }

    #[tokio::test]
    async fn other_tasks_have_a_turn_after_each_step() {
        let text: Vec<u8> = (0..20 * MAX_STEP).map(|at| (at * at / 7).to_le_bytes()[0]).collect();
        let turns = Cell::new(0);
        let (limits, budget) = (LimitsConfig::default(), Arc::default());
        let decoded = tokio::select! {
            biased;
            decoded = decode_by(&text, &limits, &budget) => decoded.unwrap(),
            () = async { loop { turns.set(turns.get() + 1); tokio::task::yield_now().await; } } => unreachable!(),
        };
        assert!(decoded.bytes == text);
        assert_eq!(budget.held(), text.len());
        assert!(turns.get() >= 19, "{} turns", turns.get());
    }

    #[tokio::test]
    async fn ratio_counts_beyond_the_first_mebibyte() {
        let limits = LimitsConfig { max_body_ratio: 10, ..LimitsConfig::default() };
        let budget = Arc::default();
        assert!(decode_by(&vec![0; MAX_BYTES_AT_ANY_RATIO], &limits, &budget).await.is_ok());
        let more = decode_by(&vec![0; MAX_BYTES_AT_ANY_RATIO + 1], &limits, &budget).await;
        assert!(matches!(more, Err(BodyError::Expands { ratio: 10 })));
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn decoded_bytes_count_towards_all_bodies() {
        let buffered_bodies = ByteSize::kib(256);
        let limits = LimitsConfig { buffered_bodies, ..LimitsConfig::default() };
        let budget = Arc::default();
        let first = decode_by(&[b'x'; 100_000], &limits, &budget).await.unwrap();
        assert_eq!(budget.held(), 100_000);
        let second = decode_by(&[b'x'; 200_000], &limits, &budget).await;
        assert!(matches!(second, Err(BodyError::MemoryFull)));
        drop(first);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn bodies_are_decoded_in_turn() {
        let buffered_bodies = ByteSize::kib(450);
        let limits = LimitsConfig { buffered_bodies, ..LimitsConfig::default() };
        let budget = Arc::default();
        let all = EncodedBodies { turns: Semaphore::new(1), ..EncodedBodies::default() };
        let text: Vec<u8> =
            (0..200_000_u32).flat_map(|at| at.wrapping_mul(at).to_le_bytes()).collect();
        let one = async || {
            let bounds = DecodeBounds { limits: &limits, budget: &budget };
            let body = gzip(&text[..200_000]);
            decode(body, ContentCoding::Gzip, bounds, &all).await.map(drop)
        };
        let (first, second) = tokio::join!(one(), one());
        assert!(first.is_ok() && second.is_ok(), "there is room for one at a time");
    }

    #[tokio::test]
    async fn small_bodies_are_held_without_spare_room() {
        let (limits, budget) = (LimitsConfig::default(), Arc::default());
        let text = [b'x'; 20_000];
        let decoded = decode_by(&text, &limits, &budget).await.unwrap();
        let room = BytesMut::from(decoded.bytes).capacity();
        assert!(room < 2 * text.len(), "{room} bytes");
    }
}
