//! The state of a budget for one of those that it counts apart, for people and programs.

use std::sync::Arc;

use penstock_config::{BudgetScope, UnixTime};
use serde_json::{Value, json};

use super::AtLimit;
use super::account::Balance;
use super::money::Money;
use crate::routing::audit::BudgetVerdict;

/// A state of one account.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetReport {
    pub budget: Arc<str>,
    pub scope: BudgetScope,
    /// The team or the key; empty for all.
    pub subject: Arc<str>,
    pub limit: Money,
    /// The share of the amount from which on a warning is logged.
    pub soft: Option<f64>,
    pub balance: Balance,
}

impl BudgetReport {
    /// The amount that is neither spent nor reserved.
    pub fn left(&self) -> Money {
        self.limit.less(self.balance.spent).less(self.balance.reserved)
    }

    /// The time at which the period ends; of a rolling one, at which the next part is forgotten.
    pub fn resets_at(&self) -> UnixTime {
        UnixTime(self.balance.until)
    }

    /// The row as a JSON object; without a soft limit, that is null.
    pub fn to_json(&self) -> Value {
        let Balance { spent, reserved, refused_count, .. } = self.balance;
        json!({
            "name": &*self.budget,
            "per": self.scope.name(),
            "subject": &*self.subject,
            "limit": self.limit.amount(),
            "spent": spent.amount(),
            "reserved": reserved.amount(),
            "left": self.left().amount(),
            "soft": self.soft.map(|share| share * self.limit.amount()),
            "resets_at": self.resets_at().to_string(),
            "refused": refused_count,
        })
    }

    /// Returns what the budget would do with a request that may cost `estimate`.
    pub(super) fn verdict(&self, estimate: Money, fits: bool, at_limit: &AtLimit) -> BudgetVerdict {
        BudgetVerdict {
            name: self.budget.to_string(),
            subject: self.subject.to_string(),
            limit: self.limit.amount(),
            left: Some(self.left().amount()),
            estimate: estimate.amount(),
            fits,
            at_limit: match at_limit {
                AtLimit::Refuse => "it is refused".to_owned(),
                AtLimit::Zones(zones) => {
                    format!("it may reach only what costs nothing in {}", zones.join(", "))
                }
                AtLimit::Model(model) => format!("it gets the model '{model}'"),
            },
        }
    }
}
