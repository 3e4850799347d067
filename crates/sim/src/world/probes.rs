//! The models that backends have in memory, as balancers learn them: from probes and from
//! responses.

use std::time::Duration;

use penstock_api::units::to_micros;
use penstock_core::fleet::LoadedModel;
use penstock_scoring::Residency;

use super::events::WorldEvent;
use super::{START, World, timestamp};
use crate::random::{Purpose, RandomStream};

/// The delay of a probe after a response that contradicts the known models.
const SOON: Duration = Duration::from_millis(500);

impl World<'_> {
    /// Plans the first probe of each server that loads models on demand.
    pub(super) fn start_probes(&mut self) {
        if !self.spec.config.discovery.enabled {
            return;
        }
        for balancer in (0_u32..).zip(&self.balancers).map(|(number, _)| number).collect::<Vec<_>>()
        {
            for (backend, server) in (0_u32..).zip(&self.engines.all) {
                if server.engine.loads_on_demand() {
                    let id = u64::from(backend) << 32 | u64::from(balancer);
                    let mut stream = RandomStream::new(self.spec.seed, Purpose::Probes, id);
                    let interval = to_micros(self.spec.config.discovery.loaded_interval).max(1);
                    let at = START.saturating_sub(stream.below(interval)) + interval;
                    self.queue.push(START, WorldEvent::ProbeOnce { balancer, backend });
                    self.queue.push(at, WorldEvent::Probe { balancer, backend });
                }
            }
        }
    }

    /// Reads a backend's models and plans the next probe.
    pub(super) fn probe(&mut self, balancer: u32, backend: u32, now: u64) {
        self.read_models(balancer, backend, now);
        let interval = to_micros(self.spec.config.discovery.loaded_interval).max(1);
        self.queue.push(now + interval, WorldEvent::Probe { balancer, backend });
    }

    /// Reads a backend's models once.
    pub(super) fn read_models(&self, balancer: u32, backend: u32, now: u64) {
        let (Some(one), Some(server)) =
            (self.balancers.get(balancer as usize), self.engines.all.get(backend as usize))
        else {
            return;
        };
        let Some(probed) = one.topology.backends.get(backend as usize) else { return };
        if !server.is_up() {
            return;
        }
        let loaded = |name: &str| LoadedModel {
            name: name.to_owned(),
            residency: Residency::Resident,
            ..LoadedModel::default()
        };
        let loaded: Vec<LoadedModel> = server.engine.models().map(loaded).collect();
        one.generation.fleet.learn_loaded(probed.state.id, &loaded, timestamp(now));
    }

    /// Plans a probe if the response of request `id` showed a model in memory that was not known to
    /// be there.
    pub(super) fn learn_model(&mut self, id: u32, at: u64) {
        let Some(Some(live)) = self.live.get(id as usize) else { return };
        let balancer = live.balancer();
        let Some(one) = self.balancers.get(balancer as usize) else { return };
        let Some(serving) = live.serving(&one.topology) else { return };
        let backend = u32::from(serving.backend);
        let server = self.engines.all.get(usize::from(serving.backend));
        let loads = server.is_some_and(|server| server.engine.loads_on_demand());
        if serving.learn_response(timestamp(at)) && loads {
            self.queue.push(at + to_micros(SOON), WorldEvent::ProbeOnce { balancer, backend });
        }
    }
}
