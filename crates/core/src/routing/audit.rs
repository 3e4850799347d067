//! Inspection of decisions: a [`Trace`] records a decision, `explain` prints it, a capture
//! serialises it, replay decides again from it, and the shadow lets another strategy decide from
//! it. All use the router's rules; none implements a second version.

mod capture;
mod dry_run;
mod explain;
mod replay;
mod replay_report;
mod shadow;
mod shift_plan;
mod trace;

pub use capture::{Capture, CaptureError, CapturedAttempt, DecisionRecord, Lease};
pub use dry_run::{
    BudgetVerdict, ContextShiftReport, DEFAULT_PATH, DryRun, DryRunError, DryRunOutcome,
    DryRunReport, DryRunRequest, DryRunRequestError, sorted_json,
};
pub use explain::{CandidateReport, Explanation};
pub use replay::Replayed;
pub use replay_report::ReplayReport;
pub use shadow::{ObservedDecision, Shadow, ShadowCounts, ShadowHost, ShadowReport, SpawnThread};
pub use trace::Trace;
