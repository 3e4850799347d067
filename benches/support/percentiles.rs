//! The percentiles of single measurements, which criterion's averages hide. Printed, and kept in
//! the target folder for `benches/rig/record.py`.

use std::path::Path;
use std::time::Duration;

/// Prints the percentiles of `took` and keeps them under `name`; nothing of no measurements.
pub(crate) fn report(name: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |percent: usize| took.get(took.len() * percent / 100).map(Duration::as_nanos);
    let (Some(p50), Some(p95), Some(p99)) = (at(50), at(95), at(99)) else {
        println!("{name}: no measurements");
        return;
    };
    let count = took.len();
    println!("{name}: p50 {p50} ns, p95 {p95} ns, p99 {p99} ns ({count} measurements)");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("percentiles");
    let kept = format!(
        r#"{{"name":"{name}","p50_ns":{p50},"p95_ns":{p95},"p99_ns":{p99},"count":{count}}}"#
    );
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name.replace('/', " ") + ".json"), kept).unwrap();
}
