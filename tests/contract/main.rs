//! The contract, row by row, with the tests that hold it. Every row is here once, every test named
//! here exists and runs, and rows without a test are listed with the reason.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking, and this one prints what is not held"
)]

mod ollama;
mod reliability;
mod requests;
mod rulings;
mod scoring;
mod slo;

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

/// The name of a row (or several, apart by spaces), what it requires, and the tests that hold it:
/// `file::function` below `tests/stories/`, or a path.
type Row = (&'static str, &'static str, &'static [&'static str]);

/// A part of the contract.
struct Part {
    name: &'static str,
    /// The numbers of its rows by the beginnings of their names.
    rows: &'static [(&'static str, RangeInclusive<usize>)],
    held: &'static [Row],
}

const PARTS: &[Part] =
    &[requests::PART, rulings::PART, scoring::PART, reliability::PART, ollama::PART, slo::PART];

/// Rows that no test holds, or not to their figure.
const UNHELD: &[(&str, &str)] = &[
    ("N15", "0.5 ms is a figure of an optimised build; the test of this one allows 2 ms"),
    ("N50", "1 ms is a figure of an optimised build; the test of this one allows 2 ms"),
    ("N55", "what is not built has no behaviour to test"),
    ("C9", "the percentile of real bodies is printed by the bench, and no test reads it"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The file and the function that a table names.
fn source(test: &str) -> (String, &str) {
    let (place, name) = test.rsplit_once("::").unwrap();
    let is_in_stories = !place.contains('/');
    let file = if is_in_stories { format!("tests/stories/{place}.rs") } else { place.to_owned() };
    (file, name)
}

/// Returns whether a file has a function and runs it: as a test, or by a list or a call that names
/// it, too.
fn runs(file: &str, text: &str, name: &str) -> bool {
    if file.ends_with(".py") {
        return text.contains(&format!("def {name}(")) && name.starts_with("case_");
    }
    let Some((before, _)) = text.split_once(&format!("fn {name}(")) else {
        return false;
    };
    let is_test = before
        .trim_end()
        .lines()
        .rev()
        .take_while(|line| !line.trim().is_empty() && line.trim() != "}")
        .any(|line| {
            line.contains("#[test]") || line.contains("::test]") || line.contains("::test(")
        });
    let lists = ["trials![", "criterion_group!"].iter().filter_map(|list| text.rsplit_once(list));
    let mut listed = lists.filter_map(|(_, list)| list.split("];\n\n").next());
    let is_part = |list: &str| {
        list.split(|character: char| character != '_' && !character.is_alphanumeric())
            .any(|word| word == name)
    };
    is_test || listed.any(is_part)
}

#[test]
fn every_contract_row_names_existing_tests() {
    let mut missing = Vec::new();
    for part in PARTS {
        for (row, what, tests) in part.held {
            for test in *tests {
                let (file, name) = source(test);
                let text = fs::read_to_string(root().join(&file)).unwrap_or_default();
                if !runs(&file, &text, name) {
                    missing.push(format!("{}: {row} ({what}): {test}", part.name));
                }
            }
        }
    }
    assert!(missing.is_empty(), "no such tests:\n{}", missing.join("\n"));
}

#[test]
fn every_row_of_the_contract_is_listed_once() {
    for part in PARTS {
        let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
        for row in part.held.iter().flat_map(|(row, ..)| row.split(' ')) {
            *rows.entry(row).or_default() += 1;
        }
        let expected = part.rows.iter().flat_map(|(beginning, numbers)| {
            numbers.clone().map(move |number| format!("{beginning}{number}"))
        });
        for row in expected {
            let count = rows.remove(row.as_str()).unwrap_or_default();
            assert_eq!(count, 1, "rows called {row} in part {}", part.name);
        }
        assert!(rows.is_empty(), "rows that part {} does not have: {rows:?}", part.name);
    }
}

/// The list may become shorter; a row is added here only by a change of the contract.
#[test]
fn unheld_rows_are_known() {
    for (row, reason) in UNHELD {
        println!("{row} is not held: {reason}");
    }
    let unheld: Vec<&str> = UNHELD.iter().map(|(row, _)| *row).collect();
    assert_eq!(unheld, ["N15", "N50", "N55", "C9"]);
    for part in PARTS {
        for (row, what, tests) in part.held {
            let is_listed = part.name != "R" && unheld.contains(row);
            assert!(!tests.is_empty() || is_listed, "{}: {row} ({what}) has no test", part.name);
        }
    }
}

#[test]
fn threat_model_names_existing_tests() {
    let root = root();
    let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let missing: Vec<&str> = links.clone().filter(|link| !root.join(link).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(links.count() > 20);
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip_while(|line| !line.starts_with("| attack |"));
    for row in rows.skip(1) {
        assert!(row.contains("](tests/") || row.contains("](src/"), "no test: {row}");
    }
}
