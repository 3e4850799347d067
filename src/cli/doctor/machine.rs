//! Findings on this host: clock, file descriptors, ports.

use std::io::ErrorKind;

use penstock_clock::unix_seconds;
use penstock_config::{Config, ListenAddress};

use super::finding::Finding;
use crate::server::try_listen;

/// The number of open files in addition to connections.
const OTHER_FILES: usize = 200;
/// The earliest plausible time: before this code was written, so the clock was never set.
const YOUNGEST: u64 = 1_760_000_000;
/// The latest plausible time: the year 2100.
const OLDEST: u64 = 4_102_444_800;

pub(super) fn look(config: &Config, is_running: bool) -> Vec<Finding> {
    let mut findings = vec![clock(unix_seconds())];
    findings.extend(open_files().map(|limit| files(config, limit)));
    let data = config.server.listen.iter();
    findings.extend(data.map(|listener| port("server.listen", &listener.address, is_running)));
    let admin = config.admin.listen.map(ListenAddress::Tcp);
    findings.extend(admin.map(|address| port("admin.listen", &address, is_running)));
    findings
}

fn clock(now: u64) -> Finding {
    if (YOUNGEST..OLDEST).contains(&now) {
        return Finding::ok("clock", "shows a plausible date");
    }
    let message = format!("shows an impossible date ({now} s since 1970)");
    Finding::fail(
        "clock",
        message,
        "set the clock (timedatectl): certificates and logs depend on it",
    )
}

/// Returns the maximum number of files that a process started here may open.
fn open_files() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn files(config: &Config, limit: u64) -> Finding {
    let limits = &config.limits;
    // Every client connection may need a separate backend connection.
    let most = limits.connections.saturating_mul(2).saturating_add(OTHER_FILES);
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    if limit >= most {
        return Finding::ok("files", format!("limit of {limit} open files, at most {most} needed"));
    }
    let message = format!(
        "limit of {limit} open files in this environment, but limits.connections: {} may need {most}",
        limits.connections
    );
    let remedy = format!(
        "set LimitNOFILE={most} in the systemd unit (ulimit -n in a shell), or limits.connections: {}",
        limit.saturating_sub(200) / 2
    );
    Finding::warn("files", message, remedy)
}

fn port(about: &str, address: &ListenAddress, is_running: bool) -> Finding {
    match try_listen(address) {
        Ok(()) => Finding::ok(about, format!("{address} is free")),
        // Usually penstock runs meanwhile, and its ports are no finding.
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_running => {
            Finding::ok(about, format!("{address} is in use, presumably by the running penstock"))
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::warn(
            about,
            format!("{address} is in use"),
            "by another penstock or another program: see `ss -ltnp`",
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Finding::fail(
            about,
            format!("no permission to listen on {address}: {error}"),
            "ports below 1024 need AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit",
        ),
        Err(error) => Finding::fail(
            about,
            format!("cannot listen on {address}: {error}"),
            "use an address of this host",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn unset_clock_fails() {
        assert_eq!(clock(0).level, Severity::Fail);
        assert_eq!(clock(1_795_204_406).level, Severity::Ok);
    }

    #[test]
    fn low_file_limit_suggests_a_connection_limit() {
        let config = Config::default();
        let low = files(&config, 1024);
        assert_eq!(low.level, Severity::Warn);
        assert!(low.remedy.unwrap().ends_with("limits.connections: 412"));
        assert_eq!(files(&config, 1_048_576).level, Severity::Ok);
    }

    #[test]
    fn port_in_use_warns_and_free_port_passes() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ListenAddress::Tcp(taken.local_addr().unwrap());
        assert_eq!(port("x", &address, false).level, Severity::Warn);
        assert_eq!(port("x", &address, true).level, Severity::Ok);
        drop(taken);
        assert_eq!(port("x", &address, false).level, Severity::Ok);
        let elsewhere = ListenAddress::Tcp("192.0.2.1:80".parse().unwrap());
        assert_eq!(port("x", &elsewhere, false).level, Severity::Fail);
    }
}
