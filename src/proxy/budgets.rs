//! Budgets on the way of a request: what it may cost is reserved when it is admitted, and replaced
//! by what it did cost when its response has been read.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use penstock_api::{ErrorCode, Work};
use penstock_clock::unix_seconds;
use penstock_config::BudgetScope;
use penstock_core::admission::budgets::{AtLimit, BudgetHold, BudgetReport, Exceeded, Money};
use penstock_core::routing::ModelAsked;
use pingora::http::ResponseHeader;

use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::request::ScannedRequest;

/// The model that a request gets because a budget does not suffice for its own.
const MODEL: HeaderName = HeaderName::from_static("x-penstock-budget-model");
/// The budget with the least left, for keys that may see it.
const BUDGET: HeaderName = HeaderName::from_static("x-penstock-budget");

/// The money that a request has reserved.
#[derive(Debug)]
pub(crate) struct RequestBudget {
    hold: Mutex<Option<BudgetHold>>,
    /// The model that it gets in place of its own.
    instead: Option<Arc<str>>,
    /// The budget with the least left after the reservation.
    tightest: Option<BudgetReport>,
}

/// The tokens that a request has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct UsedTokens {
    pub(crate) input: u64,
    /// The cached ones among them.
    pub(crate) cached: u64,
    pub(crate) output: u64,
}

impl UsedTokens {
    pub(crate) fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// Reserves what a request may cost. A budget without room for it may limit the request to
/// backends that cost nothing, or give it another model.
///
/// # Errors
/// When a budget refuses it.
pub(crate) fn reserve(flow: &mut Flow<'_>, request: &mut ScannedRequest) -> Result<(), OwnError> {
    let unix = unix_seconds();
    // Each budget can change the request once at most.
    for _ in 0..=penstock_config::MAX_BUDGETS {
        let estimate = estimate(flow, request);
        let client = flow.ctx.identity.as_deref();
        let exceeded = match flow.proxy.budgets.reserve(client, estimate, unix) {
            Ok(hold) => {
                let left = |report: &BudgetReport| {
                    report.limit.less(report.balance.spent).less(report.balance.reserved)
                };
                let tightest = hold.reports(unix).min_by_key(left);
                let instead = request.instead.clone();
                flow.ctx.budget = Some(Box::new(RequestBudget {
                    hold: Mutex::new(Some(hold)),
                    instead,
                    tightest,
                }));
                return Ok(());
            }
            Err(exceeded) => exceeded,
        };
        let is_changed = match &exceeded.at_limit {
            AtLimit::Refuse => false,
            AtLimit::Zones(zones) => keep_free(flow, request, zones),
            AtLimit::Model(model) => replace_model(flow, request, model),
        };
        if !is_changed {
            return Err(refused(&exceeded, unix));
        }
    }
    Err(OwnError::new(ErrorCode::BudgetExceeded, "The budgets leave no model for the request"))
}

/// Returns the most that a request may cost on a backend of its model or of a fallback.
fn estimate(flow: &Flow<'_>, request: &ScannedRequest) -> Money {
    let profile = &request.profile;
    let router = &flow.ctx.generation.router;
    let output = match (profile.operation.row().work, profile.output_limit) {
        (Work::Text | Work::Inference, _) => Some(0),
        (Work::Generation, limit) => limit.map(|most| u64::from(most.0)),
    };
    let input = u64::from(profile.prefill_tokens().0);
    let asked =
        ModelAsked { name: request.wanted_model(), fleet: &request.fleet, split: request.split };
    Money::of(router.highest_cost(&asked, &request.policy, input, output))
}

/// Limits a request to backends that cost nothing in some zones. Returns whether that is new.
fn keep_free(flow: &mut Flow<'_>, request: &mut ScannedRequest, zones: &[String]) -> bool {
    let before = request.policy.restriction;
    let set = request.fleet.zones.set(zones.iter().map(String::as_str));
    request.policy.restriction.zones = before.zones.and(set);
    request.policy.restriction.is_free_only = true;
    flow.ctx.policy = Some(request.policy);
    request.policy.restriction != before
}

/// Gives a request another model. Returns whether it had none yet.
fn replace_model(flow: &mut Flow<'_>, request: &mut ScannedRequest, model: &str) -> bool {
    if request.instead.is_some() {
        return false;
    }
    let fleet = Arc::clone(&request.fleet);
    let router = &flow.ctx.generation.router;
    let asked = ModelAsked { name: model, fleet: &fleet, split: request.split };
    request.policy = router.also_under(&request.policy, &asked);
    let target = router.names.resolve(model, &fleet, request.split);
    let known = fleet.model_id(target).and_then(|id| fleet.model(id));
    flow.ctx.record.routing.model = known.map(|model| model.name.clone());
    flow.ctx.policy = Some(request.policy);
    request.instead = Some(model.into());
    true
}

fn refused(exceeded: &Exceeded, unix: u64) -> OwnError {
    let Exceeded { budget, subject, scope, limit, balance, estimate, .. } = exceeded;
    let whose = match scope {
        BudgetScope::Everything => String::new(),
        BudgetScope::Team => format!(" of team '{}'", subject.escape_debug()),
        BudgetScope::Key => " of this API key".to_owned(),
    };
    let left = limit.less(balance.spent).less(balance.reserved);
    let message = format!(
        "The budget '{budget}'{whose} has {:.6} of {} left, and the request may cost {:.6}",
        left.amount(),
        limit.amount(),
        estimate.amount(),
    );
    let wait = Duration::from_secs(balance.until.saturating_sub(unix).max(1));
    OwnError {
        retry_after: (!exceeded.is_final()).then_some(wait),
        ..OwnError::new(ErrorCode::BudgetExceeded, message)
    }
}

/// Replaces what a request has reserved by the cost of what it used, or by the reservation if that
/// is unknown. Only the first call counts.
pub(crate) fn settle(ctx: &RequestContext, used: Option<UsedTokens>) {
    let Some(budget) = &ctx.budget else { return };
    let Some(hold) = budget.hold.lock().take() else { return };
    let cost = match (used, &ctx.record.routing.price) {
        (Some(used), Some(price)) => {
            Money::of(price.request_cost(used.input, used.cached, used.output))
        }
        (Some(_), _) => Money::ZERO,
        (None, _) => hold.estimate(),
    };
    for reached in hold.settle(cost, unix_seconds()) {
        tracing::warn!(
            budget = %reached.budget,
            subject = %reached.subject,
            spent = reached.spent.amount(),
            limit = reached.limit.amount(),
            "a budget has reached its soft limit"
        );
    }
}

/// Tells the client of the model that it got instead and, if its key may see it, of its budget.
pub(crate) fn add_fields(head: &mut ResponseHeader, ctx: &RequestContext) -> pingora::Result<()> {
    let Some(budget) = &ctx.budget else { return Ok(()) };
    if let Some(model) = &budget.instead {
        head.insert_header(MODEL, &**model)?;
    }
    let sees = ctx.identity.as_ref().is_some_and(|client| client.sees_budget);
    if let Some(report) = budget.tightest.as_ref().filter(|_| sees) {
        let BudgetReport { budget, limit, balance, .. } = report;
        let reset = balance.until.saturating_sub(unix_seconds());
        let text = format!(
            "{budget};limit={};spent={:.6};reserved={:.6};reset={reset}",
            limit.amount(),
            balance.spent.amount(),
            balance.reserved.amount(),
        );
        if let Ok(value) = HeaderValue::from_str(&text) {
            head.insert_header(BUDGET, value)?;
        }
    }
    Ok(())
}
