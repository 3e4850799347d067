//! Figures of this process from `/proc`; `None` on systems other than Linux.

use std::fs::{read_dir, read_to_string};

/// The unit of CPU times in `/proc`, the same on every architecture Rust builds for.
const TICKS_PER_SECOND: f64 = 100.0;

/// The CPU time, in seconds.
pub(super) fn cpu_seconds() -> Option<f64> {
    parse_cpu_seconds(&read("stat")?)
}

/// The resident memory, in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    parse_resident_bytes(&read("status")?)
}

/// The number of open files and sockets.
pub(super) fn open_files() -> Option<u64> {
    // One entry is the directory that is being read.
    let entries = read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u64::try_from(entries).ok()
}

/// The limit on open files and sockets.
pub(super) fn max_open_files() -> Option<u64> {
    parse_max_open_files(&read("limits")?)
}

fn read(name: &str) -> Option<String> {
    read_to_string(format!("/proc/self/{name}")).ok()
}

fn parse_resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn parse_max_open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // The program name is in parentheses and may itself contain parentheses.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(parse_resident_bytes("Name:\tx\nVmRSS:\t   2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_resident_bytes("Name:\tx\n"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        assert_eq!(parse_max_open_files(limits), Some(1024));
        let stat = "1 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(parse_cpu_seconds(stat), Some(2.0));
        assert_eq!(parse_cpu_seconds("1 (a) S"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_reports_every_figure() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
        assert!(open_files().is_some_and(|files| files > 0));
        assert!(max_open_files().is_some() && cpu_seconds().is_some());
    }
}
