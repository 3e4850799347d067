//! A captured decision beside its replay, as JSON and as text.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::capture::Capture;
use super::dry_run::{DecisionReport, candidate_text};
use super::explain::CandidateReport;
use crate::routing::Router;

/// A captured decision beside its replay; `Display` is for people and ends without a newline.
#[derive(Debug, Serialize)]
pub struct ReplayReport<'a> {
    number: u64,
    request_id: &'a str,
    attempt: u32,
    operation: &'a str,
    asked: &'a str,
    model: &'a str,
    next_probe: bool,
    recorded: ReplaySide<'a>,
    replayed: ReplaySide<'a>,
    candidates: Vec<CandidateReport>,
    #[serde(flatten)]
    comparison: Comparison,
}

#[derive(Debug, Serialize)]
struct ReplaySide<'a> {
    backend: Option<String>,
    strategy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
}

/// A replay compared with the decision, and a what-if.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Comparison {
    Identical(bool),
    Moved(bool),
}

impl<'a> ReplayReport<'a> {
    /// Replays a captured decision. `turn` as in [`Router::replay`].
    pub fn new(capture: &'a Capture, router: &Router, turn: u64, is_what_if: bool) -> Self {
        let again = router.replay(capture, turn);
        let (operation, asked) = capture.asked();
        let comparison = match is_what_if {
            true => Comparison::Moved(!again.goes_there(capture)),
            false => Comparison::Identical(again.is_identical(capture)),
        };
        Self {
            number: capture.number,
            request_id: &capture.request_id,
            attempt: capture.attempt,
            operation,
            asked,
            model: &capture.model,
            next_probe: capture.decision.next_probe,
            recorded: ReplaySide {
                backend: Some(capture.decision.backend.clone()),
                strategy: capture.strategy(),
                total: capture.total(),
            },
            replayed: ReplaySide {
                backend: again.backend,
                strategy: router.strategy().name(),
                total: again.total,
            },
            candidates: again.candidates.into_iter().chain(capture.rejected()).collect(),
            comparison,
        }
    }

    /// Returns whether the replay differs from the decision.
    pub fn is_changed(&self) -> bool {
        matches!(self.comparison, Comparison::Identical(false) | Comparison::Moved(true))
    }
}

impl Display for ReplayReport<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { number, request_id, attempt, operation, asked, recorded, replayed, .. } = self;
        let comparison = match self.comparison {
            Comparison::Identical(true) => "identical",
            Comparison::Identical(false) => "NOT identical",
            Comparison::Moved(true) => "another backend",
            Comparison::Moved(false) => "the same backend",
        };
        let picked = DecisionReport {
            backend: replayed.backend.clone(),
            model: Some(self.model.to_owned()),
            next_probe: self.next_probe,
            ..DecisionReport::default()
        };
        writeln!(
            out,
            "decision    {number}, {operation} with '{asked}', attempt {attempt} of {request_id}"
        )?;
        writeln!(out, "{}", candidate_text(&self.candidates, Some(&picked)))?;
        writeln!(out, "recorded    {recorded}")?;
        write!(out, "replayed    {replayed}: {comparison}")
    }
}

/// A text like `b0 by weighted, total 0.830`.
impl Display for ReplaySide<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let backend = self.backend.as_deref().unwrap_or("no backend");
        write!(out, "{backend} by {}", self.strategy)?;
        self.total.map_or(Ok(()), |total| write!(out, ", total {total:.3}"))
    }
}
