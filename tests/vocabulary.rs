//! Keeps retired words out of code, messages, tests, configuration and docs. Every term has one
//! name, the one an engineer of the field would search for; `docs/glossary.md` lists them.
//!
//! Text is compared word by word: `CamelCase` and `snake_case` are split, punctuation and line
//! breaks count as one space. So `RestingBackend`, "resting backend" and `resting_backend` are the
//! same phrase. Doc comments open with a noun or a verb, and comments end before column 101.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Retired phrases, and what to write instead.
const RETIRED: &[(&str, &str)] = &[
    ("resting", "in cooldown"),
    ("rested", "in cooldown"),
    ("rests", "cools down"),
    ("anew", "again"),
    ("handover", "graceful upgrade"),
    ("hand over", "graceful upgrade, or pass"),
    ("hands over", "passes"),
    ("handed over", "passed"),
    ("outbox", "bounded queue"),
    ("orphan", "detached launcher"),
    ("untold", "without telemetry"),
    ("told", "reported, configured"),
    ("tells", "reports, returns"),
    ("hears", "receives"),
    ("heard", "received"),
    ("begun", "started"),
    ("nobody", "no client, no backend"),
    ("whoever", "the client that"),
    ("who is asked", "the backend that is queried"),
    ("is asked", "is queried, is requested"),
    ("are asked", "are queried, are requested"),
    ("was asked", "was queried, was requested"),
    ("were asked", "were queried, were requested"),
    ("be asked", "be queried, be requested"),
    ("asked for", "requested"),
    ("of its own", "its own, separate"),
    ("of their own", "their own, separate"),
    ("an own", "its own"),
    ("stand in", "mock engine, placeholder"),
    ("stand ins", "mock engines"),
    ("smell", "finding"),
    ("smells", "findings"),
    ("oddity", "warning"),
    ("oddities", "warnings"),
    ("flaw", "head error"),
    ("flaws", "head errors"),
    ("welcomed", "accepted"),
    ("unwelcome", "rejected"),
    ("distrust", "CA revoked"),
    ("distrusted", "CA revoked"),
    ("distrusting", "CA revoked"),
    ("sighting", "observed decision"),
    ("sightings", "observed decisions"),
    ("noting", "recording"),
    ("obedience", "control loop"),
    ("last words", "shutdown hooks"),
    ("upkeep", "supervisor, sharing"),
    ("carrier", "sink"),
    ("closings", "close reasons"),
    ("forecast", "drain estimate"),
    ("forecasts", "drain estimates"),
    ("first due", "next probe"),
    ("warming", "slow start"),
    ("comes back slowly", "slow start"),
    ("repeats", "retries"),
    ("says so itself", "reports it"),
    ("answer", "response"),
    ("answers", "responses, responds"),
    ("answered", "responded, complete"),
];

/// Folders and files that people read.
const ROOTS: &[&str] = &[
    "src",
    "crates",
    "tests",
    "benches",
    "fuzz/fuzz_targets",
    "fuzz/targets.rs",
    "conf",
    "docs",
    "systemd",
    "packaging",
    ".ci",
    ".github",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "Cargo.toml",
    "clippy.toml",
    "deny.toml",
];
const ENDINGS: &[&str] =
    &["rs", "py", "md", "yaml", "yml", "toml", "html", "json", "service", "conf", "patch", ""];
/// This list, and recorded data.
const EXEMPT: &[&str] = &[
    "tests/vocabulary.rs",
    "tests/golden",
    "benches/rig/target",
    "crates/scan/src/tests/counted_texts.rs",
    "crates/scan/src/tests/agents/",
];

#[test]
fn retired_words_stay_out() {
    let mut found = Vec::new();
    for (name, text) in texts(ROOTS, ENDINGS, 300) {
        found.extend(
            retired(&text).map(|(line, phrase, instead)| {
                format!("{name}:{line}: '{phrase}': write {instead}")
            }),
        );
    }
    assert!(found.is_empty(), "{} retired words\n{}", found.len(), found.join("\n"));
}

/// The words that no doc comment opens with, nor any line of the comment of a file: a clause takes
/// the place of the noun after them.
const OPENINGS: &[&str] =
    &["What", "Whose", "Has", "Of", "Whether", "When", "Where", "How", "Which", "Who", "Those"];
/// The words that no comment and no page has: they take the place of a parameter's name.
const VAGUE: &[&str] = &["so many", "is told"];
const MAX_COLUMNS: usize = 100;

#[test]
fn comments_are_short_lines_that_name_their_subject() {
    let roots = ["src", "crates", "tests", "benches", "fuzz/targets.rs"];
    let mut found = Vec::new();
    for (name, text) in texts(&roots, &["rs"], 300) {
        found.extend(unclear(&text).map(|(line, reason)| format!("{name}:{line}: {reason}")));
    }
    assert!(found.is_empty(), "{} comments\n{}", found.len(), found.join("\n"));
}

#[test]
fn unclear_comments_are_found() {
    let text =
        "/// What it is.\n/// Of note.\nfn a() {}\n// so many\n    /// Whether a b.\n/// Office.";
    let found: Vec<usize> = unclear(text).map(|(line, _)| line).collect();
    assert_eq!(found, [1, 4, 5], "the first line of each, and the vague word");
    let file = "//! What it is.\n//! Who it is for.\n//!\n//! Houses.\n//! whose line goes on";
    let found: Vec<usize> = unclear(file).map(|(line, _)| line).collect();
    assert_eq!(found, [1, 2], "every line of a file's comment that a sentence opens");
    let long = format!("// {}", "x".repeat(MAX_COLUMNS));
    assert_eq!(unclear(&long).count(), 1);
}

/// The comments of a text that break a rule: line and reason. Links and tables may be longer.
fn unclear(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut was_doc = false;
    (1..).zip(text.lines()).filter_map(move |(number, line)| {
        let trimmed = line.trim_start();
        let is_first = !std::mem::replace(&mut was_doc, trimmed.starts_with("///"));
        let comment = trimmed.strip_prefix("//")?;
        let is_wide = line.chars().count() > MAX_COLUMNS;
        let is_table = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
        if is_wide && !comment.contains("://") && !is_table {
            return Some((number, format!("past column {MAX_COLUMNS}")));
        }
        let item_doc = comment.strip_prefix("/ ").filter(|_| is_first);
        let opening = item_doc.or(comment.strip_prefix("! ")).and_then(|doc| {
            OPENINGS.iter().find(|opening| {
                let rest = doc.strip_prefix(**opening);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            })
        });
        let vague = VAGUE.iter().find(|vague| comment.contains(**vague));
        opening.or(vague).map(|words| (number, format!("'{words}'")))
    })
}

#[test]
fn pages_name_their_numbers() {
    let mut found = Vec::new();
    for (name, text) in texts(&["docs", "README.md", "CHANGELOG.md"], &["md"], 90) {
        found.extend(vague(&text).map(|(line, words)| format!("{name}:{line}: '{words}'")));
    }
    assert!(found.is_empty(), "{} vague words\n{}", found.len(), found.join("\n"));
}

#[test]
fn vague_words_of_a_page_are_found() {
    let found: Vec<_> = vague("# So many\n\nonly so many of them\nsome").collect();
    assert_eq!(found, [(3, "so many")]);
}

/// The vague words of a page, each with its line.
fn vague(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    (1..).zip(text.lines()).flat_map(|(number, line)| {
        VAGUE.iter().filter(move |words| line.contains(**words)).map(move |words| (number, *words))
    })
}

#[test]
fn phrases_are_found_in_identifiers_and_across_lines() {
    let text = "let first_due = 1;\n// it is\n// asked for\nstruct UntoldThing;\n\"The rest\"";
    let phrases: Vec<(usize, &str)> =
        retired(text).map(|(line, phrase, _)| (line, phrase)).collect();
    assert_eq!(phrases, [(4, "untold"), (2, "is asked"), (3, "asked for"), (1, "first due")]);
}

/// Retired phrases in a text: line, phrase, replacement; in the order of the list.
fn retired(text: &str) -> impl Iterator<Item = (usize, &'static str, &'static str)> {
    let words = words(text);
    RETIRED.iter().flat_map(move |(phrase, instead)| {
        let wanted: Vec<&str> = phrase.split(' ').collect();
        let starts: Vec<usize> = words
            .windows(wanted.len())
            .filter(|window| {
                window.iter().map(|(_, word)| word.as_str()).eq(wanted.iter().copied())
            })
            .map(|window| window[0].0)
            .collect();
        starts.into_iter().map(move |line| (line, *phrase, *instead))
    })
}

/// The words of a text in lower case, each with its line. Identifiers are split.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let (mut word, mut was_lower) = (String::new(), false);
        for letter in content.chars().chain([' ']) {
            let is_boundary = !letter.is_alphanumeric() || (letter.is_uppercase() && was_lower);
            if is_boundary && !word.is_empty() {
                words.push((line, std::mem::take(&mut word)));
            }
            was_lower = letter.is_lowercase() || letter.is_ascii_digit();
            if letter.is_alphanumeric() {
                word.extend(letter.to_lowercase());
            }
        }
    }
    words
}

/// Returns the names and texts of the files below `roots` that end with one of `endings`: more
/// than `least` of them.
fn texts(roots: &[&str], endings: &[&str], least: usize) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for start in roots {
        collect(&root.join(start), endings, &mut files);
    }
    assert!(files.len() > least, "only {} files were read", files.len());
    let named = files.into_iter().map(|path| {
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        // Recorded data need not be text.
        (name, fs::read_to_string(&path).unwrap_or_default())
    });
    named.filter(|(name, _)| !EXEMPT.iter().any(|exempt| name.starts_with(exempt))).collect()
}

fn collect(path: &Path, endings: &[&str], files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), endings, files);
        }
    } else if path.exists() {
        let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned());
        if endings.contains(&ending.unwrap_or_default().as_str()) {
            files.push(path.to_owned());
        }
    }
}
