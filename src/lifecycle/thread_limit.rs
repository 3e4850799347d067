//! Checks that the system lets this process start its threads. Otherwise the runtimes panic, for
//! example under a low `ulimit -v` or `TasksMax`.

use std::io;
use std::sync::Arc;

use penstock_config::Config;

/// The number of threads besides those of the data port: other services, their pools of blocking
/// calls, queues.
const OTHERS: usize = 16;

/// Starts the number of threads that a server of this configuration needs, and ends them again.
///
/// # Errors
/// If the system refuses one of them.
pub fn check_threads(config: &Config) -> io::Result<()> {
    let count = config.server.threads.saturating_add(OTHERS + config.auth.jwt.len());
    let mut started = Vec::with_capacity(count);
    let mut refused = None;
    // All of them exist at the same time: each waits for a lock that this thread holds.
    let gate = Arc::new(parking_lot::Mutex::new(()));
    let closed = gate.lock();
    for _ in 0..count {
        let gate = Arc::clone(&gate);
        let thread = std::thread::Builder::new().stack_size(STACK);
        match thread.spawn(move || drop(gate.lock())) {
            Ok(thread) => started.push(thread),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    drop(closed);
    for thread in started {
        if thread.join().is_err() {
            return Err(io::Error::other("a thread ended by itself"));
        }
    }
    refused.map_or(Ok(()), Err)
}

/// The stack size of a runtime's thread.
const STACK: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_configuration_starts_its_threads() {
        check_threads(&Config::default()).unwrap();
    }
}
