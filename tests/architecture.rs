//! Keeps the structure of `src/` and `crates/`: the allowed imports between folders, no cycle
//! between the files of a folder, the places that may name I/O, and the length of files. Reads the
//! code with `syn`, so that grouped imports, re-exports and paths inside macros count like any
//! other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "tests fail by panicking"
)]

#[path = "support/source_tree.rs"]
mod source_tree;

use std::collections::{BTreeMap, BTreeSet};

use source_tree::{Source, sources};

/// The crates, the folders of `crates/core/src` and those of `src/`, from the bottom up. Each
/// imports only from rows above its own; those of one row never import each other.
const LAYERS: &[&[&str]] = &[
    &["api"],
    &["clock", "scan", "dialect", "predict"],
    &["mock", "scoring"],
    &["config"],
    &["prefix"],
    &["fleet"],
    &["routing"],
    &["admission"],
    &["sim"],
    &["wire", "http_client"],
    &["upstream"],
    &["discovery"],
    &["downstream"],
    &["shared_state"],
    &["proxy"],
    &["observe"],
    &["lifecycle"],
    &["admin"],
    &["server"],
    &["cli"],
    &["main", "lib"],
];

/// Folders that may name Pingora.
const NAMES_PINGORA: &[&str] =
    &["downstream", "upstream", "proxy", "discovery", "lifecycle", "admin", "server"];

/// Folders whose code is given time and randomness and does no I/O.
const PURE: &[&str] = &[
    "api",
    "scan",
    "prefix",
    "scoring",
    "fleet",
    "predict",
    "routing",
    "admission",
    "dialect",
    "sim",
];
/// The names that pure code may not use: runtimes, sockets, files, the time, and the system's
/// randomness.
const IMPURE: &[&str] = &[
    "tokio",
    "pingora",
    "pingora_load_balancing",
    "pingora_pool",
    "pingora_proxy",
    "socket2",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os",
    "std::fs",
    "std::io::stdin",
    "std::io::stdout",
    "std::io::stderr",
    "std::env",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "crate::clock::now",
    "crate::clock::unix_seconds",
    "rand::rng",
    "rand::rngs::OsRng",
    "rand::rngs::StdRng",
];

/// Folders that a decision runs through. The one lock of a decision is the prefix index's, in
/// `prefix`.
const LOCK_FREE: &[&str] = &["scan", "scoring", "routing"];
/// The names that code without locks may not use.
const LOCKS: &[&str] =
    &["parking_lot", "std::sync::Condvar", "std::sync::Mutex", "std::sync::RwLock", "tokio::sync"];

const MAX_LINES: usize = 500;

fn row(name: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&name))
}

#[test]
fn imports_go_down_the_table() {
    let mut broken = BTreeSet::new();
    for source in sources() {
        let own = source.room();
        let Some(own_row) = row(own) else {
            broken.insert(format!("{own} is not in the table of layers"));
            continue;
        };
        for path in &source.paths {
            let Some(other) = path.strip_prefix("crate::").and_then(|path| path.split("::").next())
            else {
                continue;
            };
            let is_allowed = other == own || row(other).is_none_or(|other| other < own_row);
            if !is_allowed {
                broken.insert(format!("{} imports {path}", source.name));
            }
        }
    }
    assert!(broken.is_empty(), "{}", list(&broken));
}

#[test]
fn pingora_is_named_only_where_requests_and_processes_are_handled() {
    for source in sources() {
        let named = source.paths.iter().find(|path| path.starts_with("pingora"));
        let is_allowed = NAMES_PINGORA.contains(&source.room());
        assert!(named.is_none() || is_allowed, "{} names {named:?}", source.name);
    }
}

#[test]
fn pure_folders_name_no_io_and_no_clock() {
    let mut broken = BTreeSet::new();
    for source in sources().iter().filter(|source| PURE.contains(&source.room())) {
        for path in &source.paths {
            if IMPURE.iter().any(|banned| starts_with(path, banned)) {
                broken.insert(format!("{} names {path}", source.name));
            }
        }
    }
    assert!(broken.is_empty(), "{}", list(&broken));
}

#[test]
fn decisions_take_no_lock_but_the_index() {
    let mut broken = BTreeSet::new();
    for source in sources().iter().filter(|source| LOCK_FREE.contains(&source.room())) {
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
    let reach = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(one) = open.pop() {
            for next in graph.get(&one).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        seen
    };
    let all: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|one| (one, reach(one))).collect();
    let mutual = |one: &String| -> BTreeSet<String> {
        all[one]
            .iter()
            .filter(|other| all.get(other).is_some_and(|back| back.contains(one)))
            .cloned()
            .collect()
    };
    graph.keys().map(mutual).filter(|cycle| cycle.len() > 1).collect()
}

fn starts_with(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn list(lines: &BTreeSet<String>) -> String {
    lines.iter().cloned().collect::<Vec<_>>().join("\n")
}
