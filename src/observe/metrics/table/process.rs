//! Metrics of the process and the build.

use super::super::process;
use super::super::row::{MetricRow, counter, gauge};
use super::super::samples::{from_option, number, one, to_sample};

pub(super) const ROWS: &[MetricRow] = &[
    gauge(
        "penstock_build_info",
        &["version"],
        |_, _| vec![number(&[env!("CARGO_PKG_VERSION")], 1.0)],
        "always 1",
    ),
    gauge(
        "penstock_process_start_time_seconds",
        &[],
        |metrics, _| one(to_sample(metrics.started_at)),
        "start time of the process, in seconds since 1970",
    ),
    counter(
        "penstock_process_cpu_seconds_total",
        &[],
        |_, _| from_option(process::cpu_seconds()),
        "CPU time of the process; Linux only",
    ),
    gauge(
        "penstock_process_resident_bytes",
        &[],
        |_, _| from_option(process::resident_bytes().map(to_sample)),
        "resident memory of the process; Linux only",
    ),
    gauge(
        "penstock_process_open_files",
        &[],
        |_, _| from_option(process::open_files().map(to_sample)),
        "open file descriptors; Linux only",
    ),
    gauge(
        "penstock_process_max_open_files",
        &[],
        |_, _| from_option(process::max_open_files().map(to_sample)),
        "limit of open file descriptors; Linux only",
    ),
];
