//! Keeps what neither the compiler nor Clippy can hold: which folder of a crate may import which,
//! no cycle between the files of a folder, where Pingora may be named, which code takes no lock,
//! what crates without I/O do not depend on (tokio not even through others), and how long files
//! are. Reads the code with `syn`, so that grouped imports, re-exports and paths inside macros
//! count like any other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "tests fail by panicking"
)]

#[path = "support/source_tree.rs"]
mod source_tree;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use source_tree::{Source, sources};

/// Folders of the program and of `core` from the bottom up. A folder imports only from rows above
/// its own; folders of one row never import each other.
const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "penstock",
        &[
            &["wire", "http_client", "sqlite"],
            &["upstream"],
            &["seeds"],
            &["discovery"],
            &["downstream"],
            &["shared_state"],
            &["key_store", "tokens"],
            &["auth"],
            &["proxy"],
            &["direct"],
            &["ensemble", "ollama"],
            &["data_port"],
            &["observe"],
            &["lifecycle"],
            &["admin"],
            &["server"],
            &["cli"],
            &["main", "lib"],
        ],
    ),
    (
        "penstock_core",
        &[&["clients"], &["prefix"], &["fleet"], &["routing"], &["admission"], &["lib"]],
    ),
];

/// Folders of the program that may name Pingora.
const NAMES_PINGORA: &[&str] = &[
    "downstream",
    "upstream",
    "proxy",
    "direct",
    "ensemble",
    "ollama",
    "data_port",
    "discovery",
    "lifecycle",
    "admin",
    "server",
];

/// Crates that do no I/O: their `Cargo.toml` names none of [`RUNTIMES`].
const PURE: &[&str] = &["api", "scan", "dialect", "predict", "scoring", "core", "sim"];
/// Runtimes, sockets, the operating system and its clocks.
const RUNTIMES: &[&str] = &[
    "tokio",
    "tokio-util",
    "pingora",
    "nix",
    "rustix",
    "socket2",
    "rustls",
    "rusqlite",
    "redis",
    "penstock-clock",
    "penstock-lb",
];

/// Folders that a decision runs through. The one lock of a decision is the prefix index's, in
/// `prefix`.
const LOCK_FREE: &[&str] = &["penstock_scan", "penstock_scoring", "penstock_core::routing"];
/// The names that code without locks may not use.
const LOCKS: &[&str] =
    &["parking_lot", "std::sync::Condvar", "std::sync::Mutex", "std::sync::RwLock", "tokio::sync"];

const MAX_LINES: usize = 400;

#[test]
fn imports_go_down_the_table() {
    let mut broken = BTreeSet::new();
    for (package, layers) in LAYERS {
        let row = |name: &str| layers.iter().position(|row| row.contains(&name));
        for source in sources().iter().filter(|source| source.package() == *package) {
            let own = source.room();
            let Some(own_row) = row(own) else {
                broken.insert(format!("{own} is not in the table of layers"));
                continue;
            };
            for path in &source.paths {
                let mut parts = path.split("::");
                if parts.next() != Some(package) {
                    continue;
                }
                let other = parts.next().unwrap_or_default();
                let is_allowed = other == own || row(other).is_none_or(|other| other < own_row);
                if !is_allowed {
                    broken.insert(format!("{} imports {path}", source.name));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", list(&broken));
}

#[test]
fn pingora_is_named_only_where_requests_and_processes_are_handled() {
    for source in sources() {
        let named = source.paths.iter().find(|path| path.starts_with("pingora"));
        let is_allowed = source.package() == "penstock" && NAMES_PINGORA.contains(&source.room());
        assert!(named.is_none() || is_allowed, "{} names {named:?}", source.name);
    }
}

#[test]
fn crates_without_io_depend_on_no_runtime() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates");
    for package in PURE {
        let manifest = fs::read_to_string(crates.join(package).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap();
        let names = dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        let named: Vec<&str> = names.filter(|name| RUNTIMES.contains(name)).collect();
        assert!(named.is_empty(), "crates/{package} depends on {named:?}");
    }
}

#[test]
fn tokio_is_built_for_the_program_and_its_mock_engines_alone() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lock = fs::read_to_string(workspace.join("Cargo.lock")).unwrap();
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let (head, dependencies) = package.split_once("dependencies = [").unwrap_or((package, ""));
        let name = head.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
        // A dependency with several versions is followed by its own.
        let names = dependencies.lines().filter_map(|line| line.trim().split(['"', ' ']).nth(1));
        graph.entry(name.trim_matches('"')).or_default().extend(names);
    }
    assert!(reach(&graph, "penstock-mock").contains("tokio"), "the lock file is understood");
    for package in PURE.iter().chain(&["config", "clock"]) {
        let all = reach(&graph, &format!("penstock-{package}"));
        assert!(!all.contains("tokio"), "crates/{package} is compiled after tokio");
    }
}

#[test]
fn decisions_take_no_lock_but_the_index() {
    let mut broken = BTreeSet::new();
    for source in
        sources().iter().filter(|one| LOCK_FREE.iter().any(|free| starts_with(&one.module, free)))
    {
        for path in &source.paths {
            if LOCKS.iter().any(|banned| starts_with(path, banned)) {
                broken.insert(format!("{} names {path}", source.name));
            }
        }
    }
    assert!(broken.is_empty(), "{}", list(&broken));
}

#[test]
fn files_of_a_folder_import_each_other_one_way() {
    let sources = sources();
    let folders: BTreeSet<String> = sources.iter().map(|one| one.folder()).collect();
    let mut cycles = BTreeSet::new();
    for folder in folders {
        for cycle in cycles_of(&graph_of(&folder, sources)) {
            cycles.insert(format!(
                "{folder}: {}",
                cycle.into_iter().collect::<Vec<_>>().join(" <-> ")
            ));
        }
    }
    assert!(cycles.is_empty(), "{}", list(&cycles));
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    for source in sources() {
        let lines = source.text.lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines", source.name);
        assert!(source.text.starts_with("//!"), "{} has no //! doc", source.name);
    }
}

/// Returns the imports between the entries of a folder: a file, or a file with the folder of its
/// name.
fn graph_of(folder: &str, sources: &[Source]) -> BTreeMap<String, BTreeSet<String>> {
    let prefix = format!("{folder}::");
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        let Some(inner) = source.module.strip_prefix(&prefix) else { continue };
        let own = inner.split("::").next().unwrap_or_default().to_owned();
        let edges = graph.entry(own.clone()).or_default();
        for path in &source.paths {
            let path = source_tree::follow_reexport(path, sources);
            let other = path.strip_prefix(&prefix).and_then(|path| path.split("::").next());
            let is_entry = |name: &str| {
                let module = format!("{prefix}{name}");
                sources.iter().any(|one| one.module == module)
            };
            edges.extend(other.filter(|other| *other != own && is_entry(other)).map(str::to_owned));
        }
    }
    graph
}

/// The strongly connected parts of a graph that have more than one member.
fn cycles_of(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<BTreeSet<String>> {
    let all: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|one| (one, reach(graph, one))).collect();
    let mutual = |one: &String| -> BTreeSet<String> {
        all[one]
            .iter()
            .filter(|other| all.get(other).is_some_and(|back| back.contains(one)))
            .cloned()
            .collect()
    };
    graph.keys().map(mutual).filter(|cycle| cycle.len() > 1).collect()
}

/// Everything that a graph leads to from one of its nodes.
fn reach<Node: Ord + Clone + Borrow<str>>(
    graph: &BTreeMap<Node, BTreeSet<Node>>,
    from: &str,
) -> BTreeSet<Node> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<Node> = graph.get(from).into_iter().flatten().cloned().collect();
    while let Some(one) = open.pop() {
        if seen.insert(one.clone()) {
            open.extend(graph.get(one.borrow()).into_iter().flatten().cloned());
        }
    }
    seen
}

fn starts_with(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn list(lines: &BTreeSet<String>) -> String {
    lines.iter().cloned().collect::<Vec<_>>().join("\n")
}
