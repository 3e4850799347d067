//! The table of steps names stories that exist, and every reason against a backend.

use std::collections::BTreeSet;

use penstock_core::routing::RejectReason;

use super::pages::page;
use crate::support::markdown::spans;

/// The page that names the story for each line, as `module::name`.
const STEPS: &str = "docs/routing/pipeline.md";

#[test]
fn every_named_story_exists() {
    let prose = page(STEPS).prose();
    let stories: Vec<(&str, &str)> =
        spans(&prose).into_iter().filter_map(|span| span.split_once("::")).collect();
    assert!(stories.len() > 50, "{} stories are named", stories.len());
    for (module, name) in stories {
        let file = page(&format!("tests/stories/{module}.rs")).text;
        let is_story = file.contains(&format!("\n#[test]\nfn {name}() {{"));
        assert!(is_story, "{STEPS}: no story `{module}::{name}`");
    }
}

#[test]
fn every_reason_against_a_backend_is_in_the_table_of_steps() {
    let prose = page(STEPS).prose();
    let documented: BTreeSet<&str> = spans(&prose).into_iter().collect();
    let missing: Vec<_> =
        RejectReason::NAMES.iter().filter(|name| !documented.contains(*name)).collect();
    assert!(missing.is_empty(), "{STEPS} has no step for {missing:?}");
}
