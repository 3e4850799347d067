//! Work on large bodies, which would hold up the other requests of its thread.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// The number of bytes above which work leaves the event loop: a conversion takes some 10 ms for a
/// MiB.
const MAX_BYTES_IN_LOOP: usize = 256 * 1024;

/// Does work on `bytes` bytes. During long work, another thread serves the other requests of this
/// one.
pub(crate) fn beside_the_loop<R>(bytes: usize, work: impl FnOnce() -> R) -> R {
    // `block_in_place` panics on a runtime of one thread.
    let can_move = || {
        Handle::try_current().is_ok_and(|own| own.runtime_flavor() == RuntimeFlavor::MultiThread)
    };
    if bytes > MAX_BYTES_IN_LOOP && can_move() { block_in_place(work) } else { work() }
}
