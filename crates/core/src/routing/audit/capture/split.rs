//! The split of an alias in a captured decision.

use penstock_api::hex::Hex;
use serde::{Deserialize, Serialize};

use crate::routing::split::branch_of;
use crate::routing::{RouteInput, Split, SplitPoint};

/// The split of an alias, and the point that selected the model of this request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SplitRecord {
    alias: String,
    /// A hash of the session, the key or the request.
    point: Hex,
    branches: Vec<BranchRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BranchRecord {
    model: String,
    weight: u32,
}

impl SplitRecord {
    pub(super) fn of(split: Split<'_>, input: &RouteInput<'_>) -> Self {
        let branches = split
            .branches()
            .map(|(model, weight)| BranchRecord { model: model.to_owned(), weight });
        Self {
            alias: split.alias.to_owned(),
            point: Hex(input.split.0),
            branches: branches.collect(),
        }
    }

    /// Returns the model that the split selects. A fallback is none of its models and stays.
    pub(super) fn model<'a>(&'a self, decided: &'a str) -> &'a str {
        if !self.branches.iter().any(|branch| branch.model == decided) {
            return decided;
        }
        let weights = self.branches.iter().map(|branch| branch.weight);
        let chosen = self.branches.get(branch_of(&self.alias, weights, SplitPoint(self.point.0)));
        chosen.map_or(decided, |branch| &branch.model)
    }
}
