//! Pauses that are part of what is tested: a load has a rate, a slow client drips. Nothing is waited
//! for here; `eventually` and the engines' counters do that.

use std::thread;
use std::time::{Duration, Instant};

/// Keeps a load below what the machine could send.
pub fn pause_between_requests(pause: Duration) {
    thread::sleep(pause);
}

/// Makes a client slow.
pub fn pause_between_drips(pause: Duration) {
    thread::sleep(pause);
}

/// Lets a request of a load with a timetable leave when it is due, or at once when that is over.
pub fn pause_until(started: Instant, due: Duration) {
    thread::sleep(due.saturating_sub(started.elapsed()));
}

/// Lets something go on for a while between two looks at it.
pub fn pause_between_readings(pause: Duration) {
    thread::sleep(pause);
}
