//! An oracle that knows the state of every engine and the length of every output. It sends each
//! request to the backend where the most requests reach their objectives if no other request
//! arrives; ties go to the earliest end. It refuses a request that may be refused if that request
//! would be late or make another late. It shows how much better any strategy could be, and cannot
//! be configured in production. It does not know future requests.

use std::time::Duration;

use penstock_core::fleet::BackendSet;
use penstock_core::routing::RouteError;

use super::attempts::Earlier;
use super::balancer::Arrived;
use super::lookahead::Future;
use super::{World, timestamp};

/// The requests that an oracle may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Oracle {
    /// Requests of a priority below 0.
    Sheddable,
    All,
}

/// The effect of sending a request to a backend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outlook {
    /// The backend, as an index.
    pub(super) index: usize,
    /// The number of requests that reach their objectives with the request, minus the number
    /// without it.
    pub(super) gain: i64,
    /// The future of the request.
    pub(super) own: Future,
}

impl World<'_> {
    /// Returns every backend except the oracle's choice; `None` if there is no oracle, or no
    /// backend could take the request.
    pub(super) fn chosen_by_oracle(
        &self,
        id: u32,
        balancer: u32,
        earlier: &Earlier,
        at: u64,
    ) -> Result<Option<BackendSet>, RouteError> {
        let Some(oracle) = self.spec.oracle else { return Ok(None) };
        let none = BackendSet::default();
        let tried = earlier.tried.as_deref().unwrap_or(&none);
        let outlooks = self.outlooks(id, balancer, tried, at).unwrap_or_default();
        let rank = |one: &&Outlook| (-one.gain, one.own.ended, one.own.first_token, one.index);
        let Some(best) = outlooks.iter().min_by_key(rank) else { return Ok(None) };
        let request = self.workload.requests.get(id as usize);
        let may_refuse =
            oracle == Oracle::All || request.is_some_and(|request| request.priority < 0);
        // As the router: an attempt after the first is not refused.
        if best.gain < 1 && tried.is_empty() && may_refuse {
            return Err(RouteError::ObjectiveMissed {
                model: String::new(),
                predicted_ms: 0,
                per_token_ms: 0,
                wait: Duration::ZERO,
                interval: Duration::ZERO,
                can_be_met: false,
            });
        }
        Ok(self.balancers.get(balancer as usize).map(|one| one.all_but(best.index)))
    }

    /// Computes the outlook for each backend that could take a request.
    pub(super) fn outlooks(
        &self,
        id: u32,
        balancer: u32,
        tried: &BackendSet,
        at: u64,
    ) -> Option<Vec<Outlook>> {
        let (workload, queued_ms, now) = (self.workload, None, timestamp(at));
        let request = workload.requests.get(id as usize)?;
        let one = self.balancers.get(balancer as usize)?;
        let terms = self.terms_of(id);
        let arrived = Arrived { id, request, workload, tried, terms, attempt: 1, queued_ms, now };
        let could = one.awaited(&arrived)?.backends;
        let is_candidate = |index: &usize| {
            let engine = self.engines.all.get(*index);
            let backend = one.topology.backends.get(*index);
            engine.is_some_and(|engine| engine.is_up() && engine.refusals == 0)
                && backend.is_some_and(|backend| could.contains(backend.state.id))
        };
        let candidates = (0..self.engines.all.len()).filter(is_candidate);
        let outlooks = candidates.filter_map(|index| {
            let without = self.look_ahead(index, None, at)?;
            let with = self.look_ahead(index, Some(id), at)?;
            let count = |good: usize| i64::try_from(good).unwrap_or(i64::MAX);
            Some(Outlook { index, gain: count(with.good) - count(without.good), own: with.own })
        });
        Some(outlooks.collect())
    }
}
