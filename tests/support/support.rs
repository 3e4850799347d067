//! Test support: a running penstock, mock engines, and clients that see every byte.

pub mod certificates;
pub mod client;
pub mod command;
pub mod dns_server;
pub mod engines;
pub mod fleet;
pub mod http2;
pub mod http2_engine;
pub mod identity_provider;
pub mod load;
pub mod markdown;
pub mod open_engine;
pub mod pace;
pub mod penstock;
pub mod promql;
pub mod raw_engine;
pub mod redis;

use std::future::Future;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// The runtime of the mock engines.
pub static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

/// Runs a future on the engines' runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// Returns whether everything must run: a tool that is missing is a failure then.
pub fn requires_all() -> bool {
    std::env::var("PENSTOCK_E2E").is_ok_and(|value| value == "required")
}

/// Reports that a story does not run here. Fails where everything must run.
pub fn skip(story: &str, reason: &str) {
    assert!(!requires_all(), "{story} did not run: {reason}");
    report(&format!("skipped: {story} ({reason})"));
}

/// Prints a line of a passing test, which the harness would capture otherwise.
pub fn report(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// An address without a listener. Its port is below the ephemeral range, which the system hands out
/// by itself, so that no outgoing connection takes it before it is listened on.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(211).wrapping_add(NEXT.fetch_add(1, Relaxed));
        let port = 12_000 + u16::try_from(number % 20_000).unwrap();
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().unwrap();
        }
    }
}

/// Adds the keys of every object in `value`, however deep.
pub fn collect_keys(value: &serde_json::Value, keys: &mut std::collections::BTreeSet<String>) {
    for (key, inner) in value.as_object().into_iter().flatten() {
        keys.insert(key.clone());
        collect_keys(inner, keys);
    }
    for inner in value.as_array().into_iter().flatten() {
        collect_keys(inner, keys);
    }
}

/// Returns whether this is the long run, which has time for soak tests.
pub fn is_long() -> bool {
    std::env::var_os("PENSTOCK_LONG").is_some()
}

/// The polling interval for state without a notification.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The same as [`eventually`] where looking takes an asynchronous call.
pub async fn eventually_async(what: &str, limit: Duration, mut check: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !check().await {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits until `check` holds, and panics with `what` when it does not within `limit`.
pub fn eventually(what: &str, limit: Duration, mut check: impl FnMut() -> bool) {
    let started = Instant::now();
    while !check() {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}
