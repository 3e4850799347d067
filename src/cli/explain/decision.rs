//! `penstock explain --decision`: replays captured decisions, by the strategy that made them or by
//! another configuration.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use penstock_core::routing::audit::{ReplayReport, sorted_json};
use penstock_core::routing::{Capture, Router};
use serde_json::{Map, json};

use super::{ConfigArgs, open, unreadable};
use crate::cli::error::CliError;
use crate::cli::lines::without_mark;
use crate::cli::output::Output;

/// Replays every decision in a file. Counts those with an identical result.
pub(super) fn run(
    path: &Path,
    config: &ConfigArgs,
    is_json: bool,
    output: &mut Output,
) -> Result<(), CliError> {
    let mut text = Vec::new();
    let read = open(path).and_then(|mut file| file.read_to_end(&mut text));
    read.map_err(unreadable(path))?;
    let refused = |source| CliError::Capture { path: path.to_owned(), source };
    let mut captures = Capture::read_all(without_mark(&text)).map_err(refused)?;
    // In their original order, for strategies whose turns are counted here.
    captures.sort_by_key(|capture| capture.number);
    let whole = config.is_explicit().then(|| config.load_and_warn(output)).transpose()?;
    let choice = config.choice()?;
    if let (None, Some(warning)) = (&whole, choice.warning()) {
        output.complain("warning", warning);
    }
    let is_what_if = whole.is_some() || !choice.is_empty();
    let (mut turns, mut changed) = (Turns::default(), 0);
    for capture in &captures {
        let routing = match &whole {
            Some(config) => config.routing.clone(),
            None => choice.apply(capture.routing().map_err(refused)?),
        };
        let router = Router::new(&routing);
        let report = ReplayReport::new(capture, &router, turns.of(capture), is_what_if);
        changed += usize::from(report.is_changed());
        match is_json {
            true => output.line(sorted_json(&report))?,
            false => output.line(format!("{report}\n"))?,
        }
    }
    let all = captures.len();
    output.line(summary(is_json, is_what_if, all, changed))?;
    // By another configuration, a change is what the replay is to find.
    if changed > 0 && !is_what_if {
        return Err(CliError::NotIdentical { changed, all });
    }
    Ok(())
}

fn summary(is_json: bool, is_what_if: bool, all: usize, changed: usize) -> String {
    let (key, count, words) = match is_what_if {
        true => ("moved", changed, "would have gone elsewhere"),
        false => ("identical", all - changed, "identical"),
    };
    if is_json {
        let counts = [("decisions".to_owned(), json!(all)), (key.to_owned(), json!(count))];
        return json!({ "summary": Map::from_iter(counts) }).to_string();
    }
    let noun = if all == 1 { "decision" } else { "decisions" };
    format!("{all} {noun}, {count} {words}")
}

/// The number of turns so far of each model, for captures by a strategy that counted none.
#[derive(Default)]
struct Turns<'a>(BTreeMap<&'a str, u64>);

impl<'a> Turns<'a> {
    fn of(&mut self, capture: &'a Capture) -> u64 {
        let next = self.0.entry(&capture.model).or_default();
        let turn = *next;
        *next += 1;
        turn
    }
}
