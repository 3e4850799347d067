//! CLOCK_MONOTONIC, which every process of one machine reads alike: an event stamped by the engine
//! can be timed by the client.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the machine's monotonic clock.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the clock is past zero");
    let rest = u64::try_from(time.tv_nsec).expect("a part of a second");
    seconds * 1_000_000_000 + rest
}
