//! The worked examples of `docs/contributing/` are true: the `diff` blocks of each page apply to a
//! copy of the source, touch no more files of `src/` than [`PAGES`] allows, and the tests they add
//! pass there, all examples together.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The pages, and the most files of `src/` that each may touch.
const PAGES: &[(&str, usize)] = &[
    ("add-a-scorer.md", 2),
    // Also the table of readings, and the place where the fleet is read.
    ("add-a-scorer-with-a-new-reading.md", 4),
    ("add-an-engine.md", 2),
    ("add-a-dialect.md", 4),
    ("add-a-strategy.md", 3),
    ("add-a-metric.md", 2),
    ("add-an-admin-endpoint.md", 2),
    ("add-a-command.md", 2),
];

#[test]
fn worked_examples_touch_few_files_and_their_tests_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = copy_of_the_source(root);
    let mut tests = BTreeSet::new();
    for (page, most) in PAGES {
        let text = fs::read_to_string(root.join("docs/contributing").join(page))
            .unwrap_or_else(|error| panic!("docs/contributing/{page}: {error}"));
        let patch = diff_blocks(&text);
        let files: BTreeSet<&str> =
            patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).collect();
        let sources = files.iter().filter(|file| file.starts_with("src/")).count();
        assert!((1..=*most).contains(&sources), "{page} touches {files:?}");
        apply(&copy, &patch, page);
        let added = added_tests(&patch);
        assert!(!added.is_empty(), "{page} adds no test");
        tests.extend(added);
    }
    run_tests(&copy, &tests);
}

/// The `diff` blocks of a page, one after the other.
fn diff_blocks(text: &str) -> String {
    let mut patch = String::new();
    let mut is_inside = false;
    for line in text.lines() {
        match line {
            "```diff" => is_inside = true,
            "```" => is_inside = false,
            _ if is_inside => patch.extend([line, "\n"]),
            _ => {}
        }
    }
    patch
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

fn apply(copy: &Path, patch: &str, page: &str) {
    let mut git = Command::new("git");
    git.args(["apply", "--whitespace=nowarn", "-"]).current_dir(copy);
    // The copy lies within a repository that the patch is not for.
    git.env("GIT_CEILING_DIRECTORIES", copy.parent().unwrap());
    let mut child = git.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(patch.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docs/contributing/{page} does not apply: {errors}");
}

/// Everything the library is built from, under another package name so that its build does not
/// replace this one's.
fn copy_of_the_source(root: &Path) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extensions");
    let _none_yet = fs::remove_dir_all(&copy);
    for folder in ["src", "vendor", "tests", "benches", "conf", "docs", ".cargo", "systemd"] {
        copy_folder(&root.join(folder), &copy.join(folder));
    }
    for file in ["Cargo.lock", "README.md", "clippy.toml", "CHANGELOG.md"] {
        fs::copy(root.join(file), copy.join(file)).unwrap();
    }
    let name =
        |text: String| text.replacen("name = \"penstock-lb\"", "name = \"penstock-examples\"", 1);
    let manifest = name(fs::read_to_string(root.join("Cargo.toml")).unwrap());
    fs::write(copy.join("Cargo.toml"), manifest).unwrap();
    let lock = name(fs::read_to_string(root.join("Cargo.lock")).unwrap());
    fs::write(copy.join("Cargo.lock"), lock).unwrap();
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                copy_folder(&path, &target);
            }
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn run_tests(copy: &Path, tests: &BTreeSet<String>) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["test", "--offline", "--lib", "--"])
        .args(tests)
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    for test in tests {
        let is_run = text.lines().any(|line| line.ends_with(&format!("::{test} ... ok")));
        assert!(is_run, "{test} did not run:\n{text}");
    }
}
