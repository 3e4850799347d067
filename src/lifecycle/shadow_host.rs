//! The clock and the thread that the process provides to the shadow strategy. Routing has neither.

use std::io;

use penstock_clock::now;
use penstock_core::routing::audit::ShadowHost;

pub(crate) const SHADOW_HOST: ShadowHost = ShadowHost { now, spawn };

fn spawn(name: &str, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(job).map(drop)
}
