//! Pauses that are part of the test itself: a load has a rate, a slow client drips. Nothing is
//! waited for here; `eventually` and the engines' counters do that.

use std::thread;
use std::time::{Duration, Instant};

use super::is_long;

/// Keeps a load below what the machine could send.
pub fn pause_between_requests(pause: Duration) {
    thread::sleep(pause);
}

/// Makes a client slow.
pub fn pause_between_drips(pause: Duration) {
    thread::sleep(pause);
}

/// Waits until a request of an open-loop load is due; returns at once when it is late.
pub fn pause_until(started: Instant, due: Duration) {
    thread::sleep(due.saturating_sub(started.elapsed()));
}

/// Lets time pass between two observations.
pub fn pause_between_readings(pause: Duration) {
    thread::sleep(pause);
}

/// Measures once: other tests share the machine. In the long run, measures until a measurement is
/// below `limit`, at most `rounds` times, and fails when no round is fast enough.
pub fn best_of(rounds: usize, limit: Duration, mut measure: impl FnMut() -> Duration) {
    if !is_long() {
        measure();
        return;
    }
    let mut measured = Vec::new();
    while measured.len() < rounds {
        let took = measure();
        if took < limit {
            return;
        }
        measured.push(took);
    }
    panic!("no round is below {limit:?}: {measured:?}");
}
