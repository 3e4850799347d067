//! The remaining time of a draining backend, shown to operators as `empty_in_s`.
//!
//! Every request in flight holds a slot that records its start, the expected length of its response
//! and the tokens that have passed. The estimate is the longest remaining time of any slot: the
//! remaining tokens at the stream's speed so far, or for a plain response the rest of the usual
//! duration. A response that takes longer than expected counts as half done.
//!
//! The slots cost the hot path a compare-and-swap per request, one `fetch_add` per token event and
//! one store at the end; only a reader walks them. The request's [`super::InflightGuard`] owns its
//! slot by id and frees it exactly once. Freeing it twice would let two requests share a slot. A
//! reader may see a slot half filled: the estimate is then wrong once, and harmless.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use once_cell::sync::OnceCell;
use penstock_api::units::{Timestamp, TokenCount, to_micros};

/// The number of tracked requests per backend; further ones do not enter the estimate.
const SLOTS: usize = 256;

/// The expected size of a response when its request is sent; zero if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpectedResponse {
    /// The length of a stream: the usual length here, or `max_tokens` if lower or the only known
    /// value.
    pub tokens: TokenCount,
    /// The usual duration of a response that is not streamed.
    pub duration: Duration,
    /// The time within which nine of ten requests end, streamed or not.
    pub usual: Duration,
}

#[derive(Debug, Default)]
struct RequestSlot {
    /// The start of its request; 0 while it is free.
    sent_at: AtomicU64,
    expected_tokens: AtomicU32,
    passed_tokens: AtomicU32,
    /// The model of its request.
    model: AtomicUsize,
    /// The expected duration of a whole response; 0 for a stream.
    expected_micros: AtomicU64,
    usual_micros: AtomicU64,
}

/// A request in flight.
pub(super) struct Running {
    pub(super) started: Timestamp,
    pub(super) model: ModelTag,
    /// The time that requests for its model usually took when it started; zero if unknown.
    pub(super) usual: Duration,
}

/// The identity of a model on a backend, as long as that is in the fleet; 0 for none.
pub(super) type ModelTag = usize;

/// The number of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotId(u16);

/// The requests in flight on one backend, with the data for an estimate.
#[derive(Debug, Default)]
pub struct DrainEstimate {
    /// Allocated for the first request: most backends of a large configuration may never see one.
    slots: OnceCell<Box<[RequestSlot]>>,
    next: AtomicU32,
}

impl DrainEstimate {
    /// Takes a slot; `None` if all are taken.
    pub(super) fn take(
        &self,
        expected: ExpectedResponse,
        model: ModelTag,
        now: Timestamp,
    ) -> Option<SlotId> {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| RequestSlot::default()).collect());
        let first = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        for offset in 0..SLOTS {
            let number = first.wrapping_add(offset) % SLOTS;
            let Some(slot) = slots.get(number) else { continue };
            // Acquire pairs with `free`: the tokens of the last request are all added before they
            // are reset.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if slot.sent_at.load(failure) == 0
                && slot.sent_at.compare_exchange(0, now.0.max(1), success, failure).is_ok()
            {
                slot.passed_tokens.store(0, Ordering::Relaxed);
                slot.model.store(model, Ordering::Relaxed);
                slot.expected_tokens.store(expected.tokens.0, Ordering::Relaxed);
                slot.expected_micros.store(to_micros(expected.duration), Ordering::Relaxed);
                slot.usual_micros.store(to_micros(expected.usual), Ordering::Relaxed);
                return u16::try_from(number).ok().map(SlotId);
            }
        }
        None
    }

    fn slot(&self, id: SlotId) -> Option<&RequestSlot> {
        self.slots.get()?.get(usize::from(id.0))
    }

    /// Adds tokens of the response that have passed.
    pub fn add_tokens(&self, id: SlotId, tokens: u32) {
        if let Some(slot) = self.slot(id) {
            slot.passed_tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    pub fn free(&self, id: SlotId) {
        if let Some(slot) = self.slot(id) {
            slot.sent_at.store(0, Ordering::Release);
        }
    }

    /// The requests in flight.
    pub(super) fn running(&self) -> impl Iterator<Item = Running> {
        let slots = self.slots.get().into_iter().flat_map(|slots| slots.iter());
        slots.filter_map(|slot| {
            let sent_at = slot.sent_at.load(Ordering::Acquire);
            (sent_at != 0).then(|| Running {
                started: Timestamp(sent_at),
                model: slot.model.load(Ordering::Relaxed),
                usual: Duration::from_micros(slot.usual_micros.load(Ordering::Relaxed)),
            })
        })
    }

    /// The time until the last request is likely to end; `None` if nothing is known of any request
    /// in flight.
    pub fn time_left(&self, now: Timestamp) -> Option<Duration> {
        self.slots.get()?.iter().filter_map(|slot| slot.time_left(now)).max()
    }
}

impl RequestSlot {
    fn time_left(&self, now: Timestamp) -> Option<Duration> {
        let sent_at = self.sent_at.load(Ordering::Acquire);
        if sent_at == 0 {
            return None;
        }
        let elapsed = now.since(Timestamp(sent_at));
        let expected = self.expected_tokens.load(Ordering::Relaxed);
        let passed = self.passed_tokens.load(Ordering::Relaxed);
        let duration = Duration::from_micros(self.expected_micros.load(Ordering::Relaxed));
        if !duration.is_zero() {
            return Some(duration.checked_sub(elapsed).unwrap_or(elapsed));
        }
        match (passed, expected) {
            (0, _) | (_, 0) => None,
            (passed, expected) if passed >= expected => Some(elapsed),
            (passed, expected) => {
                let factor = f64::from(expected - passed) / f64::from(passed);
                Duration::try_from_secs_f64(elapsed.as_secs_f64() * factor).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn stream(tokens: u32) -> ExpectedResponse {
        ExpectedResponse { tokens: TokenCount(tokens), ..Default::default() }
    }

    #[test]
    fn slowest_stream_determines_the_estimate() {
        let all = DrainEstimate::default();
        assert_eq!(all.time_left(Timestamp(0)), None);
        let start = Timestamp(SECOND);
        let short = all.take(stream(100), 0, start).unwrap();
        let long = all.take(stream(400), 0, start).unwrap();
        let later = Timestamp(11 * SECOND);
        assert_eq!(all.time_left(later), None, "unknown before the first token");
        all.add_tokens(short, 50);
        assert_eq!(all.time_left(later), Some(Duration::from_secs(10)), "50 more at 5 a second");
        all.add_tokens(long, 100);
        assert_eq!(all.time_left(later), Some(Duration::from_secs(30)), "300 more at 10 a second");
        all.free(long);
        assert_eq!(all.time_left(later), Some(Duration::from_secs(10)));
        all.add_tokens(short, 60);
        assert_eq!(all.time_left(later), Some(Duration::from_secs(10)), "too long: half done");
        all.free(short);
        assert_eq!(all.time_left(later), None);
    }

    #[test]
    fn plain_response_is_estimated_by_the_usual_duration() {
        let all = DrainEstimate::default();
        let expected = ExpectedResponse { duration: Duration::from_secs(8), ..Default::default() };
        let slot = all.take(expected, 0, Timestamp(SECOND)).unwrap();
        assert_eq!(all.time_left(Timestamp(4 * SECOND)), Some(Duration::from_secs(5)));
        assert_eq!(all.time_left(Timestamp(21 * SECOND)), Some(Duration::from_secs(20)));
        all.free(slot);
    }

    #[test]
    fn requests_beyond_the_slots_are_not_tracked() {
        let all = DrainEstimate::default();
        let taken: Vec<SlotId> =
            (0..SLOTS).filter_map(|_| all.take(stream(1), 0, Timestamp(1))).collect();
        assert_eq!(taken.len(), SLOTS);
        assert_eq!(all.take(stream(1), 0, Timestamp(1)), None);
        all.free(taken[7]);
        assert_eq!(all.take(stream(1), 0, Timestamp(1)), Some(taken[7]));
    }
}
