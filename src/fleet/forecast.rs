//! When a backend will have finished what is in flight: a place per request, filled as its tokens
//! pass, read by whoever waits for a drain. Taking, filling and leaving a place is a few atomics.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::units::{Timestamp, TokenCount, to_micros};

/// Requests per backend that are watched; further ones are not forecast.
const PLACES: usize = 256;

/// What can be said of a request when it is sent; zero where nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Forecast {
    /// The length of a stream: `max_tokens`, or what is usual here if that is less.
    pub tokens: TokenCount,
    /// How long an answer that is no stream usually takes.
    pub answer: Duration,
}

#[derive(Debug, Default)]
struct Place {
    /// When its request was sent; 0 while it is free.
    since: AtomicU64,
    expected: AtomicU32,
    passed: AtomicU32,
    answer: AtomicU64,
}

/// The number of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceId(u16);

/// The requests in flight on one backend.
#[derive(Debug, Default)]
pub struct Forecasts {
    /// Made for the first request: most of a large configuration may never see one.
    places: OnceCell<Box<[Place]>>,
    next: AtomicU32,
}

impl Forecasts {
    /// Takes a place, or none when all are taken.
    pub fn take(&self, forecast: Forecast, now: Timestamp) -> Option<PlaceId> {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| Place::default()).collect());
        let first = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        for turn in 0..PLACES {
            let number = first.wrapping_add(turn) % PLACES;
            let Some(place) = places.get(number) else { continue };
            let (free, taken) = (Ordering::Acquire, Ordering::Relaxed);
            if place.since.load(taken) == 0
                && place.since.compare_exchange(0, now.0.max(1), free, taken).is_ok()
            {
                place.passed.store(0, Ordering::Relaxed);
                place.expected.store(forecast.tokens.0, Ordering::Relaxed);
                place.answer.store(to_micros(forecast.answer), Ordering::Relaxed);
                return u16::try_from(number).ok().map(PlaceId);
            }
        }
        None
    }

    fn place(&self, id: PlaceId) -> Option<&Place> {
        self.places.get()?.get(usize::from(id.0))
    }

    /// Some tokens of its answer have passed.
    pub fn add(&self, id: PlaceId, tokens: u32) {
        if let Some(place) = self.place(id) {
            place.passed.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    /// Gives it back.
    pub fn leave(&self, id: PlaceId) {
        if let Some(place) = self.place(id) {
            place.since.store(0, Ordering::Release);
        }
    }

    /// When the last of them is likely to end; `None` when nothing is in flight that anything is
    /// known of. The formula is in docs/operations/reload-and-upgrade.md.
    pub fn left(&self, now: Timestamp) -> Option<Duration> {
        self.places.get()?.iter().filter_map(|place| place.left(now)).max()
    }
}

impl Place {
    fn left(&self, now: Timestamp) -> Option<Duration> {
        let since = self.since.load(Ordering::Acquire);
        if since == 0 {
            return None;
        }
        let spent = now.since(Timestamp(since));
        let expected = self.expected.load(Ordering::Relaxed);
        let passed = self.passed.load(Ordering::Relaxed);
        let answer = Duration::from_micros(self.answer.load(Ordering::Relaxed));
        match (answer.is_zero(), passed, expected) {
            // What lasts longer than was to be expected is taken to be half way.
            (false, ..) => Some(answer.checked_sub(spent).unwrap_or(spent)),
            (true, 0, _) | (true, _, 0) => None,
            (true, passed, expected) if passed >= expected => Some(spent),
            (true, passed, expected) => {
                let times = f64::from(expected - passed) / f64::from(passed);
                Duration::try_from_secs_f64(spent.as_secs_f64() * times).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn stream(tokens: u32) -> Forecast {
        Forecast { tokens: TokenCount(tokens), answer: Duration::ZERO }
    }

    #[test]
    fn the_slowest_stream_says_when_all_is_done() {
        let all = Forecasts::default();
        assert_eq!(all.left(Timestamp(0)), None);
        let start = Timestamp(SECOND);
        let short = all.take(stream(100), start).unwrap();
        let long = all.take(stream(400), start).unwrap();
        let later = Timestamp(11 * SECOND);
        assert_eq!(all.left(later), None, "nothing is known before a token has passed");
        all.add(short, 50);
        assert_eq!(all.left(later), Some(Duration::from_secs(10)), "50 more at 5 a second");
        all.add(long, 100);
        assert_eq!(all.left(later), Some(Duration::from_secs(30)), "300 more at 10 a second");
        all.leave(long);
        assert_eq!(all.left(later), Some(Duration::from_secs(10)));
        all.add(short, 60);
        assert_eq!(all.left(later), Some(Duration::from_secs(10)), "past its length: half way");
        all.leave(short);
        assert_eq!(all.left(later), None);
    }

    #[test]
    fn an_answer_that_is_no_stream_goes_by_the_usual_time() {
        let all = Forecasts::default();
        let usual = Forecast { tokens: TokenCount(0), answer: Duration::from_secs(8) };
        let place = all.take(usual, Timestamp(SECOND)).unwrap();
        assert_eq!(all.left(Timestamp(4 * SECOND)), Some(Duration::from_secs(5)));
        assert_eq!(all.left(Timestamp(21 * SECOND)), Some(Duration::from_secs(20)));
        all.leave(place);
    }

    #[test]
    fn more_requests_than_places_are_served_all_the_same() {
        let all = Forecasts::default();
        let taken: Vec<PlaceId> =
            (0..PLACES).filter_map(|_| all.take(stream(1), Timestamp(1))).collect();
        assert_eq!(taken.len(), PLACES);
        assert_eq!(all.take(stream(1), Timestamp(1)), None);
        all.leave(taken[7]);
        assert_eq!(all.take(stream(1), Timestamp(1)), Some(taken[7]));
    }
}
