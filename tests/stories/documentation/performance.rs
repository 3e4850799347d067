//! The tables of `docs/performance.md`, rendered from the rows that `benches/rig/record.py` keeps:
//! no figure in them is entered by hand.

use std::collections::BTreeSet;

use serde_json::Value;

use super::pages::{page, root};
use crate::support::markdown::table;
use crate::support::skip;

/// The rows of one kind, by the name of the bench.
fn rows(kind: &str) -> Vec<(String, Value)> {
    let kept: Value = serde_json::from_str(&page("docs/performance/benches.json").text).unwrap();
    let rows = kept[kind].as_object().unwrap();
    rows.iter().map(|(name, row)| (name.clone(), row.clone())).collect()
}

/// A duration in the unit that people read it in.
fn duration(nanos: &Value) -> String {
    let nanos = nanos.as_f64().unwrap();
    let (value, unit) = match nanos {
        _ if nanos < 1e3 => (nanos, "ns"),
        _ if nanos < 1e6 => (nanos / 1e3, "µs"),
        _ => (nanos / 1e6, "ms"),
    };
    let digits = usize::from(value < 10.0) + usize::from(value < 100.0 && unit != "ns");
    format!("{value:.digits$} {unit}")
}

/// The median, and the fastest sample.
fn average(row: &Value) -> String {
    format!("{} ({})", duration(&row["median_ns"]), duration(&row["fastest_ns"]))
}

/// Returns the time and the machine of the measurements.
pub(super) fn machine() -> String {
    let all = rows("averages").into_iter().chain(rows("percentiles"));
    let runs: BTreeSet<String> = all
        .map(|(_, row)| {
            let part = |key: &str| row[key].as_str().unwrap().to_owned();
            format!("- {}: {}", part("date"), part("machine"))
        })
        .collect();
    runs.into_iter().map(|run| run + "\n").collect()
}

/// The decision: a row per fleet, a column per strategy.
pub(super) fn decisions() -> String {
    let strategies = ["smart", "round_robin", "priority_only", "random"];
    let fleets = [(5, 8), (25, 8), (100, 8), (25, 1000), (100, 1000)];
    let rows = rows("averages");
    let cells = fleets.iter().map(|(backends, models)| {
        let cell = |strategy: &&str| {
            let name = format!("route/{strategy}/{backends} backends/{models} models");
            let row = rows.iter().find(|row| row.0 == name);
            average(&row.unwrap_or_else(|| panic!("{name} was not measured")).1)
        };
        let fleet = format!("{backends}, {models}");
        std::iter::once(fleet).chain(strategies.iter().map(cell)).collect()
    });
    table(
        &["backends, models each", strategies[0], strategies[1], strategies[2], strategies[3]],
        cells,
    )
}

/// The scanner: a row per body, a column per reader.
pub(super) fn scanner() -> String {
    let readers = ["penstock", "jiter", "serde_json", "simdutf8"];
    let rows = rows("averages");
    let cells =
        rows.iter().filter_map(|(name, _)| name.strip_prefix("scan/penstock/")).map(|body| {
            let cell = |reader: &&str| {
                let name = format!("scan/{reader}/{body}");
                let row = rows.iter().find(|row| row.0 == name);
                average(&row.unwrap_or_else(|| panic!("{name} was not measured")).1)
            };
            std::iter::once(body.to_owned()).chain(readers.iter().map(cell)).collect()
        });
    table(&["body", readers[0], readers[1], readers[2], "simdutf8 alone"], cells)
}

/// The averages whose names begin with one of these.
fn averages_of(prefixes: &[&str]) -> String {
    let chosen = rows("averages")
        .into_iter()
        .filter(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    table(
        &["bench", "median (fastest sample)"],
        chosen.map(|(name, row)| vec![name, average(&row)]),
    )
}

/// Whole requests and threads: everything of the route bench that is no row of the fleets.
pub(super) fn averages() -> String {
    averages_of(&["scan + route/", "route/smart/25 backends/2", "route/smart/25 backends/by"])
}

/// Weighted scores and the prefix index.
pub(super) fn weighted() -> String {
    averages_of(&["weighted/", "index/"])
}

/// Reading the engines' metrics.
pub(super) fn telemetry() -> String {
    averages_of(&["scrape/", "what a decision reads"])
}

/// Conversion, the ledger, and the rewriting of the model's name.
pub(super) fn bodies() -> String {
    averages_of(&["dialect/", "ledger/", "splice/"])
}

/// Look-ups of keys, tokens and policies.
pub(super) fn clients() -> String {
    averages_of(&["keys/", "tokens/", "policies/"])
}

/// A table of the rig, from the rows it kept; nothing without Python, which computes it.
pub(super) fn rig(name: &str) -> Option<String> {
    let ran = std::process::Command::new("python3")
        .arg(root().join("benches/rig/table.py"))
        .arg(root().join(format!("docs/performance/rig/{name}.jsonl")))
        .output();
    let Ok(ran) = ran else {
        skip("the tables of the rig", "no python3");
        return None;
    };
    assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    Some(String::from_utf8(ran.stdout).unwrap())
}

/// Percentiles of single measurements.
pub(super) fn percentiles() -> String {
    let cells = rows("percentiles").into_iter().map(|(name, row)| {
        let part = |key: &str| duration(&row[key]);
        vec![name, part("p50_ns"), part("p95_ns"), part("p99_ns"), row["count"].to_string()]
    });
    table(&["bench", "p50", "p95", "p99", "measurements"], cells)
}
