//! The worked examples of `docs/contributing/` are true: each is a patch in `tests/extensions/`
//! that applies to a copy of the workspace and touches no more files of `src/` and `crates/` than
//! [`EXAMPLES`] allows, without files of tests; its page names each of them. The tests that the
//! patches add pass there, all examples together.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The names of pages and patches, and the most files of `src/` and `crates/` that each may touch,
/// besides files of tests.
const EXAMPLES: &[(&str, usize)] = &[
    ("add-a-scorer", 2),
    // Also the table of readings, and the place where the fleet is read.
    ("add-a-scorer-with-a-new-reading", 4),
    // Also its reason, its setting, and the place that switches it on.
    ("add-a-filter", 5),
    ("add-an-engine", 2),
    // Also the readers and writers of a conversion, and their row; three without one.
    ("add-a-dialect", 5),
    ("add-a-strategy", 3),
    ("add-a-metric", 2),
    ("add-an-admin-endpoint", 2),
    ("add-a-command", 2),
    // Its file, its setting, and the line that calls it.
    ("add-a-step-of-a-request", 3),
    // The record, the place that sets it, and its line.
    ("add-a-field-of-the-access-log", 3),
];

/// The names of added tests, by the package they are in.
type Tests = BTreeMap<String, BTreeSet<String>>;

#[test]
fn worked_examples_touch_few_files_and_their_tests_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = copy_of_the_workspace(root);
    let mut tests = Tests::new();
    for (name, most) in EXAMPLES {
        let path = root.join(format!("tests/extensions/{name}.patch"));
        let patch = fs::read_to_string(&path).unwrap();
        let page = fs::read_to_string(root.join(format!("docs/contributing/{name}.md"))).unwrap();
        assert!(page.contains(&format!("`tests/extensions/{name}.patch`")), "{name}.md");

        let sources: Vec<&str> = files(&patch)
            .map(|(file, _)| file)
            .filter(|file| file.starts_with("src/") || file.starts_with("crates/"))
            .filter(|file| !file.ends_with("/tests.rs"))
            .collect();
        assert!((1..=*most).contains(&sources.len()), "{name} touches {sources:?}");
        for file in sources {
            assert!(page.contains(&format!("`{file}`")), "{name}.md does not name {file}");
        }

        apply(&copy, &path);
        let mut has_test = false;
        for (file, part) in files(&patch) {
            let added = added_tests(part);
            has_test |= !added.is_empty();
            tests.entry(package(file)).or_default().extend(added);
        }
        assert!(has_test, "{name} adds no test");
    }
    tests.retain(|_, added| !added.is_empty());
    run_tests(&copy, &tests);
}

/// The files that a patch touches, each with its part of the patch.
fn files(patch: &str) -> impl Iterator<Item = (&str, &str)> {
    patch.split("\ndiff --git ").map(|part| {
        let file = part.lines().find_map(|line| line.strip_prefix("+++ b/"));
        (file.unwrap_or_else(|| panic!("no file in {part}")), part)
    })
}

/// The package that a file belongs to.
fn package(file: &str) -> String {
    let name = file.strip_prefix("crates/").and_then(|path| path.split('/').next());
    format!("penstock-{}", name.unwrap_or("lb"))
}

/// The names of the unit tests that a patch adds.
fn added_tests(patch: &str) -> BTreeSet<String> {
    let mut lines = patch.lines().filter_map(|line| line.strip_prefix('+')).map(str::trim);
    let mut found = BTreeSet::new();
    while let Some(line) = lines.next() {
        if line == "#[test]" {
            let name = lines.find_map(|line| line.strip_prefix("fn ")?.split('(').next());
            found.extend(name.map(str::to_owned));
        }
    }
    found
}

fn apply(copy: &Path, patch: &Path) {
    let mut git = Command::new("git");
    git.arg("apply").arg(patch).current_dir(copy);
    // The copy lies within a repository that the patch is not for.
    git.env("GIT_CEILING_DIRECTORIES", copy.parent().unwrap());
    let output = git.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} does not apply: {errors}", patch.display());
}

/// Everything the libraries are built from, under another version. Cargo identifies the packages of
/// a workspace by name, version and path within it, so the builds share the target folder and the
/// compiled dependencies, and neither replaces a crate of the other.
fn copy_of_the_workspace(root: &Path) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extensions");
    let _none_yet = fs::remove_dir_all(&copy);
    for folder in ["src", "crates", "docs"] {
        copy_folder(&root.join(folder), &copy.join(folder));
    }
    // A copy of `vendor` would be newer than its build: Pingora would be compiled again.
    for unchanged in ["vendor", "tests", "benches", "conf", "README.md"] {
        symlink(root.join(unchanged), copy.join(unchanged)).unwrap();
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    fs::write(copy.join("Cargo.toml"), with_other_version(&manifest, "[workspace.package]"))
        .unwrap();
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap();
    fs::write(copy.join("Cargo.lock"), with_other_version(&lock, "name = \"penstock-")).unwrap();
    copy
}

/// Adds build metadata to the version in the line after each line that starts with `before`.
/// Metadata does not count where a package requires another.
fn with_other_version(text: &str, before: &str) -> String {
    let version = concat!("version = \"", env!("CARGO_PKG_VERSION"));
    let mut follows = false;
    let mut changed = String::new();
    for line in text.lines() {
        let rest = line.strip_prefix(version).filter(|_| follows);
        match rest {
            Some(rest) => changed.extend([version, "+examples", rest, "\n"]),
            None => changed.extend([line, "\n"]),
        }
        follows = line.starts_with(before);
    }
    assert_ne!(changed, text, "no version after {before}");
    changed
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn run_tests(copy: &Path, tests: &Tests) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["test", "--offline", "--locked", "--lib"])
        .args(tests.keys().map(|package| format!("--package={package}")))
        .arg("--")
        .args(tests.values().flatten())
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", target);
    // Cargo sets them for this test. With them it would compile ring again, whose build script
    // reads them, and Pingora after it; so would the next build without them.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&*name);
        }
    }
    let output = cargo.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    for test in tests.values().flatten() {
        let is_run = text.lines().any(|line| line.ends_with(&format!("::{test} ... ok")));
        assert!(is_run, "{test} did not run:\n{text}");
    }
}
