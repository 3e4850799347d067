//! An operator runs penstock under systemd: penstock reports readiness, reloads, shutdown and the
//! main process of an upgrade; the unit is valid and hardened.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penstock_mock::Fault;

use crate::support::command::file;
use crate::support::engines::{backend, engine};
use crate::support::penstock::{Penstock, Successor};
use crate::support::{client, skip};

/// A mock service manager.
struct Manager {
    socket: UnixDatagram,
    name: String,
}

impl Manager {
    fn new(name: &str) -> Self {
        let name = format!("penstock-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        Self { socket, name: format!("@{name}") }
    }

    fn start(&self, yaml: &str) -> Penstock {
        let environment = [("NOTIFY_SOCKET", self.name.as_str()), ("WATCHDOG_USEC", "3000000")];
        Penstock::start_with(yaml, &environment)
    }

    /// Waits for a notification that contains `part`.
    fn expect(&self, part: &str) -> String {
        let mut received = Vec::new();
        let mut buffer = [0; 4096];
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(15) {
            let count = self.socket.recv(&mut buffer).unwrap_or(0);
            let message = String::from_utf8_lossy(&buffer[..count]).into_owned();
            if message.contains(part) {
                return message;
            }
            received.push(message);
        }
        panic!("no notification with {part}, only {received:?}");
    }
}

#[test]
fn lifecycle_is_reported_to_systemd() {
    let one = engine("one", &["m"]);
    let manager = Manager::new("life");
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let mut penstock = manager.start(&yaml);
    let ready = manager.expect("READY=1");
    assert!(ready.contains("STATUS=serving: 1 of 1 backends healthy"), "{ready}");
    manager.expect("WATCHDOG=1");
    manager.expect("WATCHDOG=1");
    penstock.signal("HUP");
    let reloading = manager.expect("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    manager.expect("READY=1");
    penstock.rewrite("backends: {");
    penstock.signal("HUP");
    manager.expect("RELOADING=1");
    manager.expect("READY=1");
    one.always(Some(Fault::SlowHead(Duration::from_secs(3))));
    std::thread::scope(|scope| {
        let request = scope.spawn(|| penstock.chat("m").status);
        manager.expect("1 requests in flight");
        penstock.signal("TERM");
        manager.expect("STOPPING=1");
        let draining = manager.expect("STATUS=shutting down: 1 requests in flight");
        assert!(draining.contains("EXTEND_TIMEOUT_USEC="), "{draining}");
        assert_eq!(request.join().unwrap(), 200);
    });
    assert_eq!(penstock.wait_end(Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn upgrade_reports_the_new_main_pid() {
    let one = engine("one", &["m"]);
    let manager = Manager::new("upgrade");
    let mut penstock = manager.start(&format!("backends:\n{}", backend(&one, "models: [m]")));
    manager.expect("READY=1");
    let response = client::request(penstock.admin, "POST", "/upgrade", &[], b"");
    let successor = Successor::of(&response);
    manager.expect(&format!("MAINPID={}\n", successor.pid));
    assert_eq!(penstock.wait_end(Duration::from_secs(10)).code(), Some(0));
    manager.expect("WATCHDOG=1");
    successor.signal("TERM");
    manager.expect("STOPPING=1");
}

#[test]
fn low_file_limit_is_warned_about() {
    let one = engine("one", &["m"]);
    let fleet = format!("backends:\n{}", backend(&one, "models: [m]"));
    let many = Penstock::start(&format!("limits: {{ connections: 500000000 }}\n{fleet}"));
    assert!(many.log().contains("LimitNOFILE"), "{}", many.log());
    let few = Penstock::start(&format!("limits: {{ connections: 10 }}\n{fleet}"));
    assert!(!few.log().contains("LimitNOFILE"), "{}", few.log());
}

fn unit_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")
}

fn unit() -> String {
    std::fs::read_to_string(unit_folder().join("penstock.service")).unwrap()
}

/// Values of a key, in order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| *name == key)
        .map(|(_, v)| v)
        .collect()
}

#[test]
fn unit_has_required_settings() {
    let unit = unit();
    for (key, value) in [
        ("Type", "notify"),
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("DynamicUser", "yes"),
        ("ProtectSystem", "strict"),
        ("LimitNOFILE", "1048576"),
        ("RuntimeDirectory", "penstock"),
        ("NoNewPrivileges", "yes"),
    ] {
        assert_eq!(values(&unit, key), [value], "{key}");
    }
    let stop = values(&unit, "TimeoutStopSec")[0].trim_end_matches('s').parse::<u64>().unwrap();
    let drain = penstock_config::ServerConfig::default().drain_timeout.as_secs();
    assert!(stop > drain, "systemd must not kill a process that still drains");
    let drop_in = std::fs::read_to_string(unit_folder().join("notify-reload.conf")).unwrap();
    assert_eq!(values(&drop_in, "Type"), ["notify-reload"]);
    assert_eq!(values(&drop_in, "ExecReload"), [""], "systemd sends the signal");
}

/// Runs systemd-analyze on the unit with the binary under test; `None` without systemd.
fn analyze(arguments: &[&str]) -> Option<(bool, String)> {
    let text = unit().replace("/usr/bin/penstock", env!("CARGO_BIN_EXE_penstock"));
    let path = file("penstock.service", text);
    let ran =
        Command::new("systemd-analyze").args(arguments).arg(path).stdin(Stdio::null()).output();
    let ran = ran.ok()?;
    let text = [ran.stdout, ran.stderr].concat();
    Some((ran.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn systemd_analyze_accepts_the_unit() {
    // Only the package installs the manual page.
    let Some(verified) = analyze(&["verify", "--man=no"]) else {
        skip("systemd_analyze_accepts_the_unit", "no systemd-analyze");
        return;
    };
    assert_eq!(verified, (true, String::new()));
    let (is_fine, security) =
        analyze(&["security", "--offline=true", "--no-pager", "--threshold=20"]).unwrap();
    assert!(is_fine, "exposure is 2.0 or more: {security}");
    assert!(security.contains("Overall exposure level"), "{security}");
}
