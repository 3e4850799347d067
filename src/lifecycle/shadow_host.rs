//! What the shadow strategy gets from the process: a clock and a thread. Routing itself has neither.

use std::io;

use penstock_clock::now;
use penstock_core::routing::audit::ShadowHost;

/// The clock and the threads of this process.
pub(crate) const SHADOW_HOST: ShadowHost = ShadowHost { now, spawn };

fn spawn(name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(job).map(drop)
}
