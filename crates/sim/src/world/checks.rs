//! Health checks on the proxy's schedule.

use std::task::{Context, Waker};

use penstock_api::units::to_micros;
use penstock_core::fleet::{CheckOutcome, CheckResult, Health};

use super::events::WorldEvent;
use super::{START, World, timestamp};
use crate::random::{Purpose, RandomStream};

impl World<'_> {
    pub(super) fn start_checks(&mut self) {
        for balancer in (0_u32..).zip(&self.balancers).map(|(number, _)| number).collect::<Vec<_>>()
        {
            for backend in 0..u32::try_from(self.engines.all.len()).unwrap_or(u32::MAX) {
                self.plan_check(balancer, backend, START);
            }
        }
    }

    /// Plans the check after the one at `now`.
    fn plan_check(&mut self, balancer: u32, backend: u32, now: u64) {
        let Some(one) = self.balancers.get(balancer as usize) else { return };
        let Some(checked) = one.topology.backends.get(backend as usize) else { return };
        let health = &checked.config.health;
        let id = u64::from(backend) << 32 | u64::from(balancer);
        let mut stream = RandomStream::new(self.spec.seed ^ now, Purpose::Checks, id);
        let jitter = 1.0 + health.jitter * (2.0 * stream.uniform() - 1.0);
        let interval = checked.state.health.check_interval(health).mul_f64(jitter.max(0.0));
        self.queue.push(now + to_micros(interval).max(1), WorldEvent::Check { balancer, backend });
    }

    /// Checks a backend and plans the next check.
    pub(super) fn check(&mut self, balancer: u32, backend: u32, now: u64) {
        self.run_check(balancer, backend, now);
        self.plan_check(balancer, backend, now);
    }

    pub(super) fn run_check(&self, balancer: u32, backend: u32, now: u64) {
        let (Some(one), Some(engine)) =
            (self.balancers.get(balancer as usize), self.engines.all.get(backend as usize))
        else {
            return;
        };
        let Some(checked) = one.topology.backends.get(backend as usize) else { return };
        let outcome = if engine.is_up() {
            CheckOutcome::Passed(self.spec.delays.network)
        } else {
            CheckOutcome::Refused
        };
        let check = CheckResult { at: timestamp(now), outcome };
        let verdict = checked.state.learn_check(check, &checked.config.health);
        if verdict.health == Some(Health::Unhealthy) {
            one.generation.fleet.record_outage(checked.state.id);
        }
        one.generation.fleet.limit_caches(checked.state.id);
    }

    /// Checks a backend soon, if a failed attempt requested it.
    pub(super) fn check_soon(&mut self, balancer: u32, backend: u32, now: u64) {
        let Some(one) = self.balancers.get(balancer as usize) else { return };
        let Some(checked) = one.topology.backends.get(backend as usize) else { return };
        let cx = Context::from_waker(Waker::noop());
        if checked.state.poll_check_requested(&cx).is_pending() {
            return;
        }
        let fast = to_micros(checked.config.health.fast_interval);
        let last = checked.state.checked_at().map_or(0, |at| at.0);
        let at = now.max(last + fast);
        self.queue.push(at, WorldEvent::CheckOnce { balancer, backend });
    }
}
