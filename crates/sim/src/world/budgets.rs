//! Budgets: a request reserves what it may cost when it arrives, and pays what it did cost at its
//! end, by the proxy's code. Balancers have separate budgets unless they share their state.

use penstock_api::units::Timestamp;
use penstock_config::{Config, MAX_BUDGETS};
use penstock_core::admission::budgets::{
    AdmittedTerms, BudgetHold, Budgets, Exceeded, Money, highest_cost,
};
use penstock_core::clients::ClientIdentity;
use penstock_core::fleet::BackendSet;
use penstock_core::routing::ModelAsked;

use super::balancer::{Arrived, Balancer, profile_of};
use super::result::BudgetResult;
use super::{START, World, WorldSpec};
use crate::workload::Workload;

/// The time at which a run starts, in seconds since 1970: 1 January 2024, a Monday, at midnight in
/// UTC, so that a day, a week and a month begin with the run.
const STARTS_AT: u64 = 1_704_067_200;

/// The budgets of a run, and what its requests take from them.
#[derive(Debug)]
pub(super) struct SimBudgets {
    /// The budgets of each balancer; one for all if they share their state.
    budgets: Vec<Budgets>,
    /// The clients of the workload: each has the key of its name, if there is one.
    clients: Vec<ClientIdentity>,
    /// The reservation of each request; `None` before it arrives.
    reserved: Vec<Option<BudgetReservation>>,
    results: Vec<BudgetResult>,
}

/// The reservation of a request, and the terms that it got.
#[derive(Debug)]
struct BudgetReservation {
    /// `None` once the request has paid.
    hold: Option<BudgetHold>,
    terms: AdmittedTerms,
    /// The position of the budget whose model the request got.
    model_of: Option<usize>,
}

impl SimBudgets {
    /// Returns the budgets of a run; `None` if nothing limits what requests spend.
    pub(super) fn new(spec: &WorldSpec, workload: &Workload) -> Option<Box<Self>> {
        let config = &spec.config;
        if config.budgets.is_empty() {
            return None;
        }
        let is_shared = config.shared_state.redis.is_some();
        // Balancers that share their state spend from the same money.
        let count = if is_shared { 1 } else { spec.balancers.max(1) };
        let results = config.budgets.iter().map(|budget| BudgetResult::new(&budget.name));
        Some(Box::new(Self {
            budgets: (0..count).map(|_| Budgets::new(config)).collect(),
            clients: workload.clients.iter().map(|name| client_of(name, config)).collect(),
            reserved: workload.requests.iter().map(|_| None).collect(),
            results: results.collect(),
        }))
    }

    pub(super) fn terms_of(&self, id: u32) -> Option<&AdmittedTerms> {
        Some(&self.reserved.get(id as usize)?.as_ref()?.terms)
    }

    /// Returns the position of the budget whose model a request got.
    pub(super) fn model_of(&self, id: u32) -> Option<usize> {
        self.reserved.get(id as usize)?.as_ref()?.model_of
    }

    /// Reserves what a request may cost, with other terms where a budget has no room. Returns
    /// whether it may go on.
    fn reserve(&mut self, balancer: &Balancer, number: usize, arrived: &Arrived<'_>) -> bool {
        let profile = profile_of(arrived.request, arrived.now);
        let router = &balancer.generation.router;
        let (client, unix) = (self.clients.get(arrived.request.client as usize), unix(arrived.now));
        let Some(budgets) = self.budgets.get(number).or(self.budgets.first()) else { return true };
        let mut terms = AdmittedTerms { policy: balancer.policy_of(arrived), instead: None };
        let mut model_of = None;
        // Each budget can change the request once at most.
        for _ in 0..=MAX_BUDGETS {
            let name = terms.instead.as_deref().unwrap_or(arrived.model());
            let asked = ModelAsked { name, fleet: &balancer.topology, split: arrived.split() };
            let estimate = highest_cost(router, &asked, &terms.policy, &profile);
            let exceeded = match budgets.reserve(client, estimate, unix) {
                Ok(hold) => {
                    let reserved = BudgetReservation { hold: Some(hold), terms, model_of };
                    if let Some(place) = self.reserved.get_mut(arrived.id as usize) {
                        *place = Some(reserved);
                    }
                    return true;
                }
                Err(exceeded) => exceeded,
            };
            let next = exceeded.at_limit.terms(router, &asked, &terms);
            let position = note(&mut self.results, &exceeded, next.is_none());
            let Some(next) = next else { return false };
            model_of = position.filter(|_| next.instead != terms.instead).or(model_of);
            terms = next;
        }
        false
    }

    /// Ends what a request has reserved with what it has cost.
    fn pay(&mut self, id: u32, cost: Money, now: Timestamp) {
        let reserved = self.reserved.get_mut(id as usize).and_then(Option::as_mut);
        let Some(hold) = reserved.and_then(|reserved| reserved.hold.take()) else { return };
        for report in hold.reports(unix(now)) {
            let result = self.results.iter_mut().find(|one| *one.name == *report.budget);
            if let Some(result) = result {
                // Before `settle`, which takes the hold.
                result.spent = result.spent.plus(cost);
            }
        }
        hold.settle(cost, unix(now));
    }

    /// Returns the results, in the order of the configuration.
    pub(super) fn into_results(self) -> Vec<BudgetResult> {
        self.results
    }
}

/// Counts a request for which a budget has no room. Returns the position of the budget.
fn note(results: &mut [BudgetResult], exceeded: &Exceeded, is_refused: bool) -> Option<usize> {
    let found = results.iter_mut().enumerate().find(|(_, one)| *one.name == *exceeded.budget);
    let (position, result) = found?;
    match is_refused {
        true => result.refused += 1,
        false => result.changed += 1,
    }
    Some(position)
}

fn client_of(name: &str, config: &Config) -> ClientIdentity {
    let key = config.auth.keys.iter().find(|key| key.name == name);
    key.map_or_else(|| ClientIdentity::new(name, name), ClientIdentity::of_key)
}

/// Returns a simulated time as a time of the clock, in seconds since 1970.
fn unix(now: Timestamp) -> u64 {
    STARTS_AT + now.0.saturating_sub(START) / 1_000_000
}

impl World<'_> {
    /// Reserves what a request may cost. Returns whether its budgets let it in.
    pub(super) fn reserve_cost(&mut self, id: u32, balancer: u32, now: Timestamp) -> bool {
        let Some(budgets) = &mut self.budgets else { return true };
        let number = balancer as usize;
        let request = self.workload.requests.get(id as usize);
        let Some((one, request)) = self.balancers.get(number).zip(request) else { return true };
        let (workload, tried, terms) = (self.workload, &BackendSet::default(), None);
        let (attempt, queued_ms) = (1, None);
        let arrived = Arrived { id, request, workload, tried, terms, attempt, queued_ms, now };
        budgets.reserve(one, number, &arrived)
    }

    /// Lets a request pay for its prompt and for `output` tokens, at the prices of its backend.
    pub(super) fn pay(&mut self, id: u32, output: u32, now: Timestamp) {
        let Some(budgets) = &mut self.budgets else { return };
        let Some(Some(live)) = self.live.get(id as usize) else { return };
        let Some(balancer) = self.balancers.get(live.balancer() as usize) else { return };
        let request = self.workload.requests.get(id as usize);
        let input = request.map_or(0, |request| request.input_tokens);
        let cached = self.results.get(id as usize).map_or(0, |one| one.cached_tokens);
        let price = live.serving(&balancer.topology).and_then(|row| row.price.as_deref());
        let cost = price
            .map_or(0.0, |price| price.request_cost(input.into(), cached.into(), output.into()));
        budgets.pay(id, Money::of(cost), now);
    }

    /// Returns the terms that budgets set for a request; `None` without budgets.
    pub(super) fn terms_of(&self, id: u32) -> Option<&AdmittedTerms> {
        self.budgets.as_ref()?.terms_of(id)
    }

    /// Gives back what a request has reserved and not paid.
    pub(super) fn release(&mut self, id: u32, now: Timestamp) {
        if let Some(budgets) = &mut self.budgets {
            budgets.pay(id, Money::ZERO, now);
        }
    }
}
