//! The only file that reads the system's clocks. Decisions take a [`Timestamp`] as an argument, so
//! that tests and replays can set the time. Only I/O code calls [`now`]. Bottom layer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use once_cell::sync::Lazy;
use penstock_api::units::{Timestamp, to_micros};

static PROCESS_START: Lazy<u64> = Lazy::new(monotonic_us);

/// The microseconds of the clock that [`std::time::Instant`] reads. A request asks for the time a
/// dozen times, and two instants that are subtracted cost three times the clock itself.
fn monotonic_us() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    debug_assert!(time.is_ok(), "every system has a monotonic clock");
    time.map_or(0, |time| to_micros(Duration::from(time)))
}

/// The monotonic time since the first call in this process.
pub fn now() -> Timestamp {
    Timestamp(monotonic_us().saturating_sub(*PROCESS_START))
}

/// Seconds since 1970, for `created` fields and the like; never for measuring.
pub fn unix_seconds() -> u64 {
    unix_time().as_secs()
}

/// The time since 1970, for logs and traces; never for measuring.
#[expect(
    clippy::disallowed_methods,
    reason = "this file is where the crate reads the system's clock"
)]
pub fn unix_time() -> Duration {
    // Zero for a system clock before 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// The CPU time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    debug_assert!(time.is_ok(), "every thread has a CPU clock");
    time.map_or(Duration::ZERO, Duration::from)
}
