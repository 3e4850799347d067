//! N14: the time of a scan and of a decision grows with their input as a single pass does.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::time::{Duration, Instant};

use penstock_api::Operation;
use penstock_scan::{ScanOptions, scan};

use super::{Fleet, TestRequest, alike};

/// Returns the duration of the shortest run: other load on the machine only lengthens runs.
fn shortest(mut run: impl FnMut()) -> Duration {
    let once = |_| {
        let started = Instant::now();
        run();
        started.elapsed()
    };
    (0..7).map(once).min().unwrap()
}

/// A hundred times the messages take a hundred times as long in one pass, and ten thousand times as
/// long in a pass per message.
#[test]
fn scan_takes_one_pass_over_messages() {
    let [few, many] = [100, 10_000].map(|messages| {
        let part = serde_json::json!({"type": "text", "text": "rivers and stones"});
        let message = serde_json::json!({"role": "user", "content": [part.clone(), part]});
        let body =
            serde_json::json!({"model": "m", "messages": vec![message; messages]}).to_string();
        shortest(|| {
            scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        })
    });
    assert!(many < few * 1000, "{few:?} for 100 messages, {many:?} for 10,000");
}

/// Ten times the backends take ten times as long in one pass, a hundred times with a pass for each.
#[test]
fn decision_takes_one_pass_over_backends() {
    let [few, many] = [100, 1000].map(|backends| {
        let mut fleet = Fleet::of(&alike(backends, "m"));
        shortest(|| {
            for _ in 0..10 {
                fleet.backend_for(TestRequest::of("m"));
            }
        })
    });
    assert!(many < few * 40, "{few:?} for 100 backends, {many:?} for 1,000");
}
