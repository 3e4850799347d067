//! The result of a dry run, as the admin port writes it and `penstock explain --admin` reads it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;

use penstock_api::{ErrorCode, escape};
use penstock_scan::RequestRequirements;
use penstock_scoring::Objectives;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::routing::audit::CandidateReport;

/// The most bytes of an error that are shown.
const MAX_MESSAGE: usize = 1024;

/// The result of a dry run; `Display` is for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DryRunReport {
    /// The needs of the request, if its body could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirements: Option<RequestRequirements>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objectives: Option<Objectives>,
    /// The policies that the request is under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyReport>,
    /// The budgets of the client, and whether they have room for the request. The decision does
    /// not consider them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<BudgetVerdict>,
    /// The messages that the request loses; all else is about the remainder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_shift: Option<ContextShiftReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitReport>,
    /// The session that the request names, if homes are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ensemble: Option<EnsembleReport>,
    #[serde(flatten)]
    pub outcome: DryRunOutcome,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DryRunOutcome {
    Decided {
        decision: DecisionReport,
    },
    Refused {
        error: DryRunError,
        /// Every candidate, if the request got as far as a decision.
        #[serde(skip_serializing_if = "Option::is_none")]
        candidates: Option<Vec<CandidateReport>>,
        /// The time that the request would wait for room instead.
        #[serde(skip_serializing_if = "Option::is_none")]
        queue_timeout_ms: Option<u64>,
    },
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DecisionReport {
    pub backend: Option<String>,
    pub model: Option<String>,
    /// The name of the model on the backend.
    pub upstream_model: Option<String>,
    pub fallback: bool,
    pub assumed: bool,
    /// True if the backend is below the tier that the request's policy prefers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub below_tier: bool,
    /// True if all are in cooldown, and the backend is the first to leave it.
    pub next_probe: bool,
    pub strategy: String,
    /// The preset of scorers of the strategy weighted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The reason for it, if the configuration does not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<BTreeMap<String, f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picker: Option<String>,
    pub candidates: Vec<CandidateReport>,
}

/// The error that a client would get.
#[derive(Debug, Clone, thiserror::Error, Serialize, Deserialize)]
#[error("{status} {code}: {}", self.shown_message())]
pub struct DryRunError {
    pub status: u16,
    pub code: String,
    pub message: String,
}

impl DryRunError {
    /// Returns the message for a terminal: it may quote the request.
    pub(super) fn shown_message(&self) -> Cow<'_, str> {
        escape(&self.message, MAX_MESSAGE)
    }
}

/// The policy of a request, and what it may reach.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The name of the policy; absent if only the key restricts the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The zones that are admitted; absent if all are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zones: Option<Vec<String>>,
    /// The lowest tier that is admitted.
    pub tier: u8,
    /// The lowest tier that is preferred.
    pub preferred_tier: u8,
}

/// The treatment of a request by a budget.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BudgetVerdict {
    pub name: String,
    /// The team or the key; empty for all.
    pub subject: String,
    pub limit: f64,
    /// The money neither spent nor reserved; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<f64>,
    /// The most that the request may cost.
    pub estimate: f64,
    /// True if there is room for that.
    pub fits: bool,
    /// The treatment of the request without room.
    pub at_limit: String,
}

impl BudgetVerdict {
    /// Returns the verdict of a process that does not know what was spent.
    #[must_use]
    pub fn without_spending(self) -> Self {
        Self { left: None, ..self }
    }
}

/// The messages that a context shift drops.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ContextShiftReport {
    pub dropped_messages: u32,
    /// The estimated tokens of the prompt before.
    pub whole_prompt_tokens: u32,
}

/// An alias of several models, and the model of this request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SplitReport {
    pub(super) alias: String,
    pub(super) model: String,
    pub(super) branches: Vec<SplitBranch>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SplitBranch {
    pub(super) model: String,
    pub(super) weight: u32,
}

/// The backend of a session, if it has one already.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionReport {
    pub(super) home: Option<String>,
}

/// The calls of an ensemble, and their cost in all.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EnsembleReport {
    pub(super) model: String,
    pub(super) calls: Vec<PlannedCall>,
    #[serde(flatten)]
    pub(super) cost: CallCost,
}

/// A call of an ensemble, with its backend or the error.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PlannedCall {
    pub(super) call: String,
    pub(super) model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backend: Option<String>,
    #[serde(flatten)]
    pub(super) cost: CallCost,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// The cost of one or more calls.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct CallCost {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) price: Option<f64>,
}

impl DryRunError {
    /// Creates the error of a code.
    pub fn new(code: ErrorCode, message: impl Display) -> Self {
        let row = code.row();
        Self { status: row.status, code: row.name.to_owned(), message: message.to_string() }
    }
}

/// The report about a request that cannot be read.
impl From<DryRunError> for DryRunReport {
    fn from(error: DryRunError) -> Self {
        let outcome = DryRunOutcome::Refused { error, candidates: None, queue_timeout_ms: None };
        Self {
            requirements: None,
            objectives: None,
            policy: None,
            budgets: Vec::new(),
            context_shift: None,
            split: None,
            session: None,
            ensemble: None,
            outcome,
        }
    }
}

/// Returns a report as JSON with sorted keys.
pub fn sorted_json(report: &impl Serialize) -> Value {
    let value = serde_json::to_value(report);
    debug_assert!(value.is_ok(), "a report has string keys only");
    value.unwrap_or_default()
}
