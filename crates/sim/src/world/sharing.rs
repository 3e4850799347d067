//! Several balancers that share their requests in flight, as several penstocks do through a server.
//! Each reports in turn, and at the same time reads the last reports of its peers.

use penstock_api::units::to_micros;
use penstock_core::fleet::{LoadReport, SHARE_INTERVAL};

use super::events::WorldEvent;
use super::{START, World};

impl World<'_> {
    /// Starts the sharing of load between balancers, if it is configured.
    pub(super) fn start_sharing(&mut self) {
        let shared = &self.spec.config.shared_state;
        let count = u32::try_from(self.balancers.len()).unwrap_or(u32::MAX);
        if shared.redis.is_none() || count < 2 {
            return;
        }
        self.reports = self.balancers.iter().map(|_| LoadReport::default()).collect();
        let interval = to_micros(SHARE_INTERVAL);
        for balancer in 0..count {
            let phase = interval * u64::from(balancer) / u64::from(count);
            self.queue.push(START + phase, WorldEvent::Share { balancer });
        }
    }

    /// Reports the load of a balancer, and applies the reports of its peers.
    pub(super) fn share_load(&mut self, number: u32, at: u64) {
        self.queue.push(at + to_micros(SHARE_INTERVAL), WorldEvent::Share { balancer: number });
        let index = number as usize;
        let Some(balancer) = self.balancers.get(index) else { return };
        let fleet = &balancer.generation.fleet;
        let own = fleet.own_load();
        self.reports.iter_mut().skip(index).take(1).for_each(|report| *report = own.clone());
        let others = self.reports.iter().enumerate().filter(|(other, _)| *other != index);
        let others: Vec<LoadReport> = others.map(|(_, report)| report.clone()).collect();
        fleet.apply_peer_loads(&others);
    }
}
