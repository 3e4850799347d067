//! The money that a request may cost, for the budgets of its client.

use penstock_api::units::TokenCount;

use super::Router;
use crate::fleet::{Serving, Topology};
use crate::routing::policies::{ModelAsked, PolicyScope, Restriction};

/// The tokens of a response without a limit, on a model whose lengths are not known yet.
const ASSUMED_OUTPUT: u64 = 1024;

/// The size of a request and of its responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestSize {
    /// The tokens of its prompt.
    pub input: u64,
    /// The most tokens of all its responses together; `None` without a limit.
    pub output: Option<u64>,
    /// The number of its responses.
    pub responses: u64,
    /// The context length that it requests.
    pub context: Option<TokenCount>,
}

impl RequestSize {
    /// The most that it may cost on a backend.
    fn cost(&self, row: &Serving) -> f64 {
        let Some(price) = &row.price else { return 0.0 };
        let usual = || row.latency.length().map_or(ASSUMED_OUTPUT, |length| length.0.into());
        let output = self.output.unwrap_or_else(|| usual().saturating_mul(self.responses));
        // No response is longer than the context of its engine.
        let context = row.context_for(self.context).map_or(u32::MAX, |length| length.0);
        let window = u64::from(context).saturating_mul(self.responses);
        let cost = |cached| price.request_cost(self.input, cached, output.min(window));
        // Cached input may be the dearer one.
        cost(0).max(cost(self.input))
    }
}

impl Router {
    /// Returns the most that a request may cost: on the dearest backend of its model, or of a
    /// fallback, that its policies admit. Without an `output` limit, responses have the length that
    /// the model's usually have.
    pub fn highest_cost(
        &self,
        model: &ModelAsked<'_>,
        scope: &PolicyScope,
        size: &RequestSize,
    ) -> f64 {
        let restriction = scope.restriction;
        let rows = self.chain_of(model).flat_map(|name| rows(name, model.fleet));
        let rows = rows.filter(|row| may_serve(&restriction, row));
        rows.map(|row| size.cost(row)).fold(0.0, f64::max)
    }

    /// Returns whether a request costs nothing wherever it may go, whatever its size.
    pub fn is_free(&self, model: &ModelAsked<'_>, scope: &PolicyScope) -> bool {
        let restriction = scope.restriction;
        let mut rows = self.chain_of(model).flat_map(|name| rows(name, model.fleet));
        rows.all(|row| row.is_free() || !may_serve(&restriction, row))
    }

    /// Returns whether a backend that costs nothing may serve a request.
    pub fn has_free_backend(&self, model: &ModelAsked<'_>, scope: &PolicyScope) -> bool {
        let restriction = scope.restriction;
        let mut rows = self.chain_of(model).flat_map(|name| rows(name, model.fleet));
        rows.any(|row| row.is_free() && may_serve(&restriction, row))
    }

    /// The model of a request, and its fallbacks.
    fn chain_of<'a>(&'a self, model: &ModelAsked<'a>) -> impl Iterator<Item = &'a str> {
        let ModelAsked { name, fleet, split } = *model;
        let chain = self.names.chain(name, fleet, split).iter().map(|entry| &**entry);
        let all = std::iter::once(name).chain(chain);
        all.map(move |name| self.names.resolve(name, fleet, split))
    }
}

fn rows<'a>(name: &str, fleet: &'a Topology) -> impl Iterator<Item = &'a Serving> + use<'a> {
    let model = fleet.model_named(name);
    model.into_iter().flat_map(|model| &model.serving)
}

fn may_serve(restriction: &Restriction, row: &Serving) -> bool {
    restriction.admits(row) && (!restriction.is_free_only || row.is_free())
}
