//! Budgets on the way of a request: what it may cost is reserved when it is admitted, and replaced
//! by what it did cost when its response has been read.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use penstock_api::ErrorCode;
use penstock_clock::{now, unix_seconds};
use penstock_config::BudgetScope;
use penstock_core::admission::budgets::{
    AdmittedTerms, AtLimit, BudgetReport, Exceeded, Money, UNKNOWN_COST, highest_cost, is_counted,
};
use penstock_core::admission::returns::Fingerprint;
use penstock_core::fleet::{BackendId, Topology};
use penstock_core::routing::ModelAsked;
use pingora::http::ResponseHeader;

use crate::proxy::Proxy;
use crate::proxy::failure::OwnError;
use crate::proxy::flow::{Flow, RequestContext};
use crate::proxy::limit_holds::{RequestBudget, UsedTokens};
use crate::proxy::request::ScannedRequest;
use crate::proxy::return_time::fingerprint;
use crate::shared_state::{BudgetLease, ReservationFailure, SharedHold};

/// The model that a request gets because a budget does not suffice for its own.
const MODEL: HeaderName = HeaderName::from_static("x-penstock-budget-model");
/// The budget with the least left, for keys that may see it.
const BUDGET: HeaderName = HeaderName::from_static("x-penstock-budget");

/// Reserves what a request may cost. A budget without room for it may limit the request to
/// backends that cost nothing, or give it another model.
///
/// # Errors
/// When a budget refuses it.
pub(crate) async fn reserve(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
) -> Result<(), OwnError> {
    let unix = unix_seconds();
    // Each budget can change the request once at most.
    for _ in 0..=penstock_config::MAX_BUDGETS {
        let estimate = estimate(flow, request);
        let exceeded = match hold(flow, estimate, unix).await {
            Ok(held) => {
                let instead = request.instead.clone();
                keep(flow.ctx, held, instead, is_counted(request.profile.operation));
                return Ok(());
            }
            Err(ReservationFailure::Exceeded(exceeded)) => exceeded,
            Err(ReservationFailure::Unreached) => return Err(unreached()),
        };
        if !adopt(flow, request, &exceeded.at_limit) {
            let request = fingerprint(request.view(flow.ctx));
            return Err(refused(flow.proxy, &exceeded, request, unix));
        }
    }
    Err(OwnError::new(ErrorCode::BudgetExceeded, "The budgets leave no model for the request"))
}

/// Reserves money from the budgets of the client, over all penstocks if they share them.
async fn hold(
    flow: &Flow<'_>,
    estimate: Money,
    unix: u64,
) -> Result<SharedHold, ReservationFailure> {
    let (proxy, client) = (flow.proxy, flow.ctx.identity.as_deref());
    match &proxy.shared_budgets {
        Some(shared) => {
            let proposal = proxy.budgets.propose(client, estimate, unix);
            shared.reserve(proposal.map_err(ReservationFailure::Exceeded)?).await
        }
        None => {
            let hold = proxy.budgets.reserve(client, estimate, unix);
            hold.map(|hold| (hold, BudgetLease::default())).map_err(ReservationFailure::Exceeded)
        }
    }
}

fn unreached() -> OwnError {
    let message = "The server that knows what was spent of the budgets is not reached";
    OwnError::new(ErrorCode::BudgetsUnreached, message).after(Duration::from_secs(1))
}

/// Reserves again what a request may cost, for the fleet that it meets after a wait.
///
/// # Errors
/// When a budget refuses it.
pub(crate) async fn renew(
    flow: &mut Flow<'_>,
    request: &mut ScannedRequest,
) -> Result<(), OwnError> {
    if flow.ctx.budget.take().is_none() {
        return Ok(());
    }
    Box::pin(reserve(flow, request)).await
}

/// Admits a request that is sent to `backend` by its name and is not read. If the backend costs
/// money, the request passes until a budget of its client is spent; its cost is not counted.
///
/// # Errors
/// When a budget of the client is spent, even one that then offers free backends or another model:
/// a request that is not read can take neither.
pub(crate) async fn reserve_unread(
    flow: &mut Flow<'_>,
    fleet: &Topology,
    backend: BackendId,
) -> Result<(), OwnError> {
    let mut rows = fleet.models().iter().flat_map(|model| &model.serving);
    if flow.proxy.budgets.is_empty() || rows.all(|row| row.id != backend || row.is_free()) {
        return Ok(());
    }
    let unix = unix_seconds();
    let held = Box::pin(hold(flow, UNKNOWN_COST, unix)).await.map_err(|error| match error {
        ReservationFailure::Exceeded(exceeded) => refused(flow.proxy, &exceeded, None, unix),
        ReservationFailure::Unreached => unreached(),
    })?;
    keep(flow.ctx, held, None, false);
    Ok(())
}

fn keep(ctx: &mut RequestContext, held: SharedHold, instead: Option<Arc<str>>, is_counted: bool) {
    let sees = ctx.identity.as_ref().is_some_and(|client| client.sees_budget);
    let tightest =
        if sees { held.0.reports(unix_seconds()).min_by_key(BudgetReport::left) } else { None };
    let hold = Mutex::new(Some(held));
    ctx.budget = Some(Box::new(RequestBudget { hold, instead, tightest, is_counted }));
}

/// Returns the most that a request may cost on a backend of its model or of a fallback.
fn estimate(flow: &Flow<'_>, request: &ScannedRequest) -> Money {
    let router = &flow.ctx.generation.router;
    highest_cost(router, &asked(request), &request.policy, &request.profile)
}

fn asked(request: &ScannedRequest) -> ModelAsked<'_> {
    ModelAsked { name: request.wanted_model(), fleet: &request.fleet, split: request.split }
}

/// Limits a request to what a budget without room for it still allows: free backends, or another
/// model. Returns whether it changed.
fn adopt(flow: &mut Flow<'_>, request: &mut ScannedRequest, at_limit: &AtLimit) -> bool {
    let router = &flow.ctx.generation.router;
    let terms = AdmittedTerms { policy: request.policy, instead: request.instead.clone() };
    let Some(terms) = at_limit.terms(router, &asked(request), &terms) else { return false };
    request.policy = terms.policy;
    flow.ctx.policy = Some(request.policy);
    if request.instead != terms.instead {
        request.instead = terms.instead;
        let target = router.names.resolve(request.wanted_model(), &request.fleet, request.split);
        let known = request.fleet.model_named(target);
        flow.ctx.record.routing.model = known.map(|model| model.name.clone());
    }
    true
}

fn refused(
    proxy: &Proxy,
    exceeded: &Exceeded,
    request: Option<Fingerprint>,
    unix: u64,
) -> OwnError {
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
    let wait = exceeded.room_at.map(|at| Duration::from_secs(at.saturating_sub(unix).max(1)));
    let line = ("budget", budget, subject);
    let spread = |openings| proxy.returns.after(line, request, openings, now());
    let wait = exceeded.openings.as_deref().map(spread).or(wait);
    OwnError { retry_after: wait, ..OwnError::new(ErrorCode::BudgetExceeded, message) }
}

/// Replaces what a request has reserved by the cost of what it used, or by the reservation if that
/// is unknown. Only the first call counts.
pub(crate) fn settle(ctx: &RequestContext, used: Option<UsedTokens>) {
    let Some(budget) = &ctx.budget else { return };
    let Some((hold, lease)) = budget.hold.lock().take() else { return };
    let cost = match (used, &ctx.record.routing.price) {
        _ if !budget.is_counted => Money::ZERO,
        // Failed before a backend had anything to do.
        (Some(used), _) if used == UsedTokens::default() => Money::ZERO,
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
    // Last: what was spent must count before what was reserved is free.
    drop(lease);
}

/// Adds the model that the client got instead and, if its key may see it, its budget.
pub(crate) fn add_fields(
    head: &mut ResponseHeader,
    budget: &RequestBudget,
    ctx: &RequestContext,
) -> pingora::Result<()> {
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
