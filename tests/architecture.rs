//! Guards the house: which layer may import which, where Pingora may be named, how long files are,
//! and that every file says what it is for.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Layers from the bottom up; a module imports only from rows above its own. Modules of one row
/// never import each other.
const LAYERS: &[&[&str]] = &[
    &["units", "clock", "scoring"],
    &["api", "tls"],
    &["config"],
    &["fleet"],
    &["scan"],
    &["routing"],
    &["shadow"],
    &["upstream"],
    &["discovery"],
    &["downstream"],
    &["proxy"],
    &["explain"],
    &["observe"],
    &["lifecycle"],
    &["admin", "mock"],
    &["cli"],
    &["main", "lib"],
];
/// Imports against the table, to be removed by the moves that follow.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("clock", "units"),
    ("fleet", "routing"),
    ("explain", "fleet"),
    ("routing", "shadow"),
    ("lifecycle", "admin"),
    ("upstream", "downstream"),
    ("upstream", "proxy"),
    ("downstream", "proxy"),
];
const NAMES_PINGORA: &[&str] =
    &["downstream", "upstream", "proxy", "discovery", "lifecycle", "admin"];
const MAX_LINES: usize = 500;

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The top-level module a file belongs to.
fn module(path: &Path) -> String {
    let inner = path.strip_prefix(src()).unwrap();
    let first = inner.components().next().unwrap().as_os_str().to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

fn row(name: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&name))
}

/// Every module named behind `crate::` in a file's code.
fn imports(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: String = code.collect::<Vec<_>>().join("\n");
    let named = code.split("crate::").skip(1).map(|behind| {
        behind.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    });
    named.filter(|name| row(name).is_some()).collect()
}

#[test]
fn imports_go_downwards_only() {
    let mut broken = Vec::new();
    for path in sources(&src()) {
        let own = module(&path);
        let Some(own_row) = row(&own) else {
            broken.push(format!("{own} has no place in the table of layers"));
            continue;
        };
        for other in imports(&fs::read_to_string(&path).unwrap()) {
            let is_allowed = other == own
                || row(&other).is_some_and(|other| other < own_row)
                || EXCEPTIONS.contains(&(own.as_str(), other.as_str()));
            if !is_allowed {
                broken.push(format!("{} imports {other}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The first segment of every `a::b` in a line of code, outside of string literals.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let outside = line.split('"').step_by(2);
    outside.flat_map(|code| {
        code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .filter(|word| word.contains("::"))
    })
}

#[test]
fn pingora_is_named_at_the_edges_only() {
    for path in sources(&src()) {
        let text = fs::read_to_string(&path).unwrap();
        let names = text.lines().any(|line| {
            let line = line.trim_start();
            // A path of the crate; its name inside a text (a log filter) is none.
            !line.starts_with("//") && paths(line).any(|path| path.starts_with("pingora"))
        });
        let own = module(&path);
        assert!(
            !names || NAMES_PINGORA.contains(&own.as_str()),
            "{} names Pingora",
            path.display()
        );
    }
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    for path in sources(&src()) {
        let text = fs::read_to_string(&path).unwrap();
        let is_tests = path.components().any(|part| part.as_os_str() == "tests")
            || path.file_name().is_some_and(|name| name == "tests.rs");
        let lines = text.lines().count();
        assert!(is_tests || lines <= MAX_LINES, "{} has {lines} lines", path.display());
        assert!(is_tests || text.starts_with("//!"), "{} has no //! doc", path.display());
    }
}
