//! Records the models in the memory of backends, from probes and responses.

use ahash::HashMap;
use penstock_api::canonical_name;
use penstock_api::units::{ByteSize, Timestamp};
use penstock_scoring::Residency;

use super::model_state::LoadedModel;
use super::serving::Serving;
use super::slots::initial_residency;
use super::topology::Topology;
use super::{BackendId, Fleet};

impl Fleet {
    /// Records the models in a backend's memory by a probe that started at `asked_at`; all others
    /// are on disk. Returns whether a model is loaded with another context than before.
    pub fn learn_loaded(&self, id: BackendId, loaded: &[LoadedModel], asked_at: Timestamp) -> bool {
        let topology = &self.topology();
        let by_name: HashMap<_, _> =
            loaded.iter().map(|model| (canonical_name(&model.name), model)).collect();
        let found = |row: &Serving| by_name.get(&canonical_name(row.adapter_name())).copied();
        // The load of a model that is not shown yet may still evict those that are.
        let is_loading = rows(topology, id)
            .any(|row| found(row).is_none() && row.model_state.may_be_loaded_after(asked_at));
        let mut has_new_context = false;
        for row in rows(topology, id) {
            if !is_loading {
                row.model_state.prove(asked_at);
            }
            has_new_context |= row.model_state.learn_probe(found(row), asked_at);
        }
        let backend = topology.backends.iter().find(|one| one.state.id == id);
        let Some(backend) = backend else { return has_new_context };
        let resident = loaded.iter().filter(|model| model.residency == Residency::Resident);
        let used = resident.clone().filter_map(|model| model.vram).map(|vram| vram.0);
        let used = used.fold(0_u64, u64::saturating_add);
        let count = u32::try_from(resident.count()).unwrap_or(u32::MAX);
        backend.state.memory.learn(count, ByteSize(used));
        has_new_context
    }

    /// Records the same residency for every model of a backend.
    pub fn learn_residency(&self, id: BackendId, residency: Residency) {
        for row in rows(&self.topology(), id) {
            row.model_state.set_residency(residency);
            row.state.memory.settle();
        }
    }

    /// Forgets the loaded models of a backend: its process ended, or it has not reported for long.
    pub fn forget_loaded(&self, id: BackendId) {
        let topology = &self.topology();
        let Some(backend) = topology.backends.iter().find(|one| one.state.id == id) else { return };
        backend.state.memory.forget();
        let residency = initial_residency(backend.state.engine(backend.config.engine));
        rows(topology, id).for_each(|row| row.model_state.forget_process(residency));
    }

    /// Records the sizes of a backend's models by their listed names.
    pub fn learn_sizes(&self, id: BackendId, sizes: &[(String, ByteSize)]) {
        let by_name: HashMap<_, _> =
            sizes.iter().map(|(name, size)| (canonical_name(name), *size)).collect();
        for row in rows(&self.topology(), id) {
            if let Some(size) = by_name.get(&canonical_name(row.adapter_name())) {
                row.model_state.set_size(*size);
            }
        }
    }
}

fn rows(topology: &Topology, id: BackendId) -> impl Iterator<Item = &Serving> {
    topology.models().iter().filter_map(move |model| model.serving.iter().find(|row| row.id == id))
}
