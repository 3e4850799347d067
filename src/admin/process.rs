//! What Linux says of this process; elsewhere nothing is said.

use std::fs::{read_dir, read_to_string};

use crate::observe::metrics::ProcessFigures;

/// The unit of processor times in `/proc`, the same on every architecture Rust builds for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads what `/proc` shows.
pub(super) fn read_process() -> ProcessFigures {
    let text = |name: &str| read_to_string(format!("/proc/self/{name}")).ok();
    ProcessFigures {
        resident_bytes: text("status").as_deref().and_then(resident_bytes),
        open_files: count_open_files(),
        max_open_files: text("limits").as_deref().and_then(max_open_files),
        cpu_seconds: text("stat").as_deref().and_then(cpu_seconds),
    }
}

fn count_open_files() -> Option<u64> {
    // One of them is the directory that is being read.
    let entries = read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u64::try_from(entries).ok()
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn max_open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    // The program's name stands in brackets and may hold anything, brackets too.
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_proc() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   2048 kB\n"), Some(2 << 20));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        assert_eq!(max_open_files(limits), Some(1024));
        let stat = "1 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("1 (a) S"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_says_something() {
        let figures = read_process();
        assert!(figures.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{figures:?}");
        assert!(figures.open_files.is_some_and(|files| files > 0), "{figures:?}");
        assert!(figures.cpu_seconds.is_some(), "{figures:?}");
    }
}
