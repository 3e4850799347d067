//! An operator runs penstock under systemd: the service manager hears when it is ready, reloads,
//! stops and who took over; the unit is sound and locked down.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penstock::mock::Fault;

use crate::support::client;
use crate::support::command::file;
use crate::support::engines::{backend, engine};
use crate::support::penstock::{Penstock, Successor};

crate::trials![
    every_turn_of_its_life_is_told,
    a_hand_over_names_the_new_process,
    a_full_table_of_files_is_warned_of,
    the_unit_says_what_it_must,
    systemd_finds_no_fault_in_the_unit,
];

/// Stands in for the service manager.
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

    /// Reads on until something is told that has `part` in it.
    fn hear(&self, part: &str) -> String {
        let mut heard = Vec::new();
        let mut buffer = [0; 4096];
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(15) {
            let count = self.socket.recv(&mut buffer).unwrap_or(0);
            let message = String::from_utf8_lossy(&buffer[..count]).into_owned();
            if message.contains(part) {
                return message;
            }
            heard.push(message);
        }
        panic!("{part} was not told, but {heard:?}");
    }
}

fn every_turn_of_its_life_is_told() {
    let one = engine("one", &["m"]);
    let manager = Manager::new("life");
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let mut penstock = manager.start(&yaml);
    let ready = manager.hear("READY=1");
    assert!(ready.contains("STATUS=serving: 1 of 1 backends healthy"), "{ready}");
    manager.hear("WATCHDOG=1");
    manager.hear("WATCHDOG=1");
    penstock.signal("HUP");
    let reloading = manager.hear("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    manager.hear("READY=1");
    penstock.rewrite("backends: {");
    penstock.signal("HUP");
    manager.hear("RELOADING=1");
    manager.hear("READY=1");
    one.always(Some(Fault::SlowHead(Duration::from_secs(3))));
    std::thread::scope(|scope| {
        let request = scope.spawn(|| penstock.chat("m").status);
        manager.hear("1 requests in flight");
        penstock.signal("TERM");
        manager.hear("STOPPING=1");
        let draining = manager.hear("STATUS=stopping: 1 requests in flight");
        assert!(draining.contains("EXTEND_TIMEOUT_USEC="), "{draining}");
        assert_eq!(request.join().unwrap(), 200);
    });
    assert_eq!(penstock.wait_end(Duration::from_secs(10)).code(), Some(0));
}

fn a_hand_over_names_the_new_process() {
    let one = engine("one", &["m"]);
    let manager = Manager::new("handover");
    let mut penstock = manager.start(&format!("backends:\n{}", backend(&one, "models: [m]")));
    manager.hear("READY=1");
    let response = client::request(penstock.admin, "POST", "/upgrade", &[], b"");
    let successor = Successor::of(&response);
    manager.hear(&format!("MAINPID={}\n", successor.pid));
    assert_eq!(penstock.wait_end(Duration::from_secs(10)).code(), Some(0));
    manager.hear("WATCHDOG=1");
    successor.signal("TERM");
    manager.hear("STOPPING=1");
}

fn a_full_table_of_files_is_warned_of() {
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

/// Values of a key, in the order they stand there.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| *name == key)
        .map(|(_, v)| v)
        .collect()
}

fn the_unit_says_what_it_must() {
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
    let drain = penstock::config::ServerConfig::default().drain_timeout.as_secs();
    assert!(stop > drain, "systemd must not kill what penstock still drains");
    let drop_in = std::fs::read_to_string(unit_folder().join("notify-reload.conf")).unwrap();
    assert_eq!(values(&drop_in, "Type"), ["notify-reload"]);
    assert_eq!(values(&drop_in, "ExecReload"), [""], "the signal comes from systemd itself");
}

/// Runs systemd-analyze on the unit, with the binary under test in it; nothing without systemd.
fn analyze(arguments: &[&str]) -> Option<(bool, String)> {
    let text = unit().replace("/usr/bin/penstock", env!("CARGO_BIN_EXE_penstock"));
    let path = file("penstock.service", text);
    let ran =
        Command::new("systemd-analyze").args(arguments).arg(path).stdin(Stdio::null()).output();
    let ran = ran.ok()?;
    let text = [ran.stdout, ran.stderr].concat();
    Some((ran.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn systemd_finds_no_fault_in_the_unit() {
    // The manual page is there once the package is installed.
    let Some(verified) = analyze(&["verify", "--man=no"]) else { return };
    assert_eq!(verified, (true, String::new()));
    let (is_fine, security) =
        analyze(&["security", "--offline=true", "--no-pager", "--threshold=20"]).unwrap();
    assert!(is_fine, "exposure is 2.0 or more: {security}");
    assert!(security.contains("Overall exposure level"), "{security}");
}
