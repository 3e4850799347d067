//! Keeps the predicted contents of engine caches current and bounded, off the hot path. Clears the
//! prediction when an engine restarts or is away, and shares an engine's cache and the index memory
//! between models.

use std::iter;

use super::serving::Serving;
use super::topology::{Model, Topology};
use super::{BackendId, BackendState, Fleet};
use crate::prefix::{MemoryBudget, fair_shares};

impl Fleet {
    /// Forgets the latencies and the cache of an engine process that is gone.
    pub fn forget_process(&self, id: BackendId) {
        for (model, row) in serving(&self.topology(), id) {
            // The new process may have other models, slots, or another version.
            row.state.invalidate_models();
            row.latency.forget();
            if let Some(predictor) = row.model_state.used_predictor() {
                predictor.restarted();
            }
            model.prefixes.sync_epochs(iter::once(row.slot_and_epoch()));
        }
        self.forget_missing(id);
    }

    /// Forgets the capabilities that models of a backend lacked: its engine may run with other
    /// options.
    fn forget_missing(&self, id: BackendId) {
        let topology = self.topology();
        let forgets = |(_, row): &(&Model, &Serving)| row.model_state.lessons.forget();
        if serving(&topology, id).filter(forgets).count() > 0 {
            self.republish();
        }
    }

    /// Records the version of an engine. A changed version resets the learned step times to the
    /// prior. Returns whether it changed.
    pub fn learn_version(&self, state: &BackendState, version: &str) -> bool {
        let is_other = state.pages.learn_version(version);
        if is_other {
            if state.lessons.forget() {
                self.republish();
            }
            self.forget_missing(state.id);
            for (_, row) in serving(&self.topology(), state.id) {
                if let Some(predictor) = row.model_state.used_predictor() {
                    predictor.version_changed();
                }
            }
        }
        is_other
    }

    /// Clears the cache prediction of a backend whose health checks fail: it may return as another
    /// process.
    pub fn record_outage(&self, id: BackendId) {
        self.forget_missing(id);
        let topology = &self.topology();
        if let Some((_, row)) = serving(topology, id).next() {
            row.state.telemetry.record_outage();
        }
        for (model, row) in serving(topology, id) {
            model.prefixes.sync_epochs(iter::once(row.slot_and_epoch()));
        }
    }

    /// Enforces two bounds that recording a prompt cannot enforce: the models of a backend share
    /// its engine's cache, and all models share the memory.
    pub fn limit_caches(&self, id: BackendId) {
        let topology = &self.topology();
        share_cache(topology, id);
        share_memory(topology, self.prefix_memory());
    }
}

fn serving(topology: &Topology, id: BackendId) -> impl Iterator<Item = (&Model, &Serving)> {
    let rows = move |model: &'_ Model| model.serving.iter().position(|row| row.id == id);
    topology
        .models()
        .iter()
        .filter_map(move |model| Some((model, model.serving.get(rows(model)?)?)))
}

/// Evens out the parts of a backend's cache that its models hold, which frees the reserve for late
/// starters. Evicts the excess if the engine reports less capacity than before.
fn share_cache(topology: &Topology, id: BackendId) {
    let Some((_, row)) = serving(topology, id).next() else { return };
    let cache = &row.state.cache;
    let reported = row.state.telemetry.details().and_then(|details| details.capacity_tokens());
    if let Some(tokens) = reported {
        cache.lower_capacity(tokens);
    }
    let most = cache.limit_of_large();
    if cache.held() <= most {
        return;
    }
    let mut shares: Vec<_> = serving(topology, id)
        .map(|(model, row)| (model.prefixes.held_tokens(row.slot), (model, row)))
        .collect();
    for (kept, (model, row)) in fair_shares(&mut shares, most) {
        model.prefixes.evict_to(row.slot, kept);
    }
}

fn share_memory(topology: &Topology, memory: &MemoryBudget) {
    let most = memory.limit_of_large();
    if memory.used() <= most {
        return;
    }
    let sizes = topology.models().iter().filter_map(|model| Some((model.prefixes.bytes()?, model)));
    let mut shares: Vec<_> =
        sizes.map(|(size, model)| (u64::try_from(size).unwrap_or(u64::MAX), model)).collect();
    for (kept, model) in fair_shares(&mut shares, u64::try_from(most).unwrap_or(u64::MAX)) {
        model.prefixes.shrink_to(usize::try_from(kept).unwrap_or(usize::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fleet::EngineDetails;
    use crate::prefix::CacheState;
    use penstock_config::{Config, Environment};

    const KEPT: CacheState = CacheState { capacity: 1 << 20, block_tokens: 16, epoch: 0 };

    fn fleet_of(memory: &str) -> Fleet {
        let yaml = format!(
            "limits: {{ prefix_memory: {memory} }}\n\
             backends: [{{ name: x, url: \"http://a\", models: [m, n] }}]"
        );
        let config = Config::parse(&yaml, "test.yaml", Path::new(""), &Environment::default());
        Fleet::new(&config.unwrap())
    }

    /// Records prompts of 50 blocks each without common blocks.
    fn record(fleet: &Fleet, model: usize, prompts: std::ops::Range<u64>) {
        record_within(fleet, model, prompts, KEPT);
    }

    fn record_within(
        fleet: &Fleet,
        model: usize,
        prompts: std::ops::Range<u64>,
        state: CacheState,
    ) {
        let topology = &fleet.topology();
        let model = &topology.models()[model];
        for prompt in prompts {
            let chain: Vec<u64> =
                (0..50).map(|block| (prompt << 16 | block).wrapping_mul(0x9e37_79b9)).collect();
            model.prefixes.record(model.serving[0].slot, &chain, state);
        }
    }

    fn held(fleet: &Fleet) -> Vec<u32> {
        let topology = &fleet.topology();
        let held = |model: &Model| model.prefixes.held(model.serving[0].slot);
        topology.models().iter().map(held).collect()
    }

    #[test]
    fn models_of_one_engine_share_its_cache() {
        let fleet = fleet_of("1MiB");
        let (id, state) = {
            let state = std::sync::Arc::clone(&fleet.topology().backends[0].state);
            (state.id, state)
        };
        let capacity = |blocks| CacheState { capacity: blocks, ..KEPT };
        record_within(&fleet, 0, 0..2, capacity(1600));
        record_within(&fleet, 1, 0..40, capacity(1600));
        assert_eq!(held(&fleet), [100, 1400], "within it already when recorded");
        let details = |blocks| EngineDetails {
            block_size: Some(16),
            blocks: Some(blocks),
            ..EngineDetails::default()
        };
        assert!(!fleet.learn_details(&state, &details(400)));
        fleet.limit_caches(id);
        record_within(&fleet, 0, 0..2, capacity(400));
        record_within(&fleet, 1, 0..10, capacity(400));
        fleet.limit_caches(id);
        assert_eq!(held(&fleet), [100, 275], "a reserve is left to models that start late");
        assert!(!fleet.learn_details(&state, &details(160)));
        fleet.limit_caches(id);
        assert_eq!(held(&fleet), [75, 75]);
    }

    #[test]
    fn outage_clears_the_believed_cache() {
        let fleet = fleet_of("1MiB");
        let id = fleet.topology().backends[0].state.id;
        record(&fleet, 0, 0..2);
        let telemetry = || fleet.topology().backends[0].state.clone();
        fleet.record_outage(id);
        assert_eq!((held(&fleet), telemetry().telemetry.restarts()), (vec![0, 0], 0));
    }

    #[test]
    fn late_model_gets_memory_and_a_lower_limit_holds() {
        let fleet = fleet_of("1MiB");
        let id = fleet.topology().backends[0].state.id;
        let used = || fleet.prefix_memory().used();
        record(&fleet, 0, 0..2000);
        fleet.limit_caches(id);
        let alone = held(&fleet)[0];
        assert!(used() <= 1 << 20 && alone > 20_000, "{} bytes, {alone} blocks", used());
        for round in 0..40 {
            record(&fleet, 1, round * 20..round * 20 + 20);
            record(&fleet, 0, 2000 + round * 200..2200 + round * 200);
            fleet.limit_caches(id);
        }
        let both = held(&fleet);
        assert!(both[1] > both[0] / 2, "{both:?}");
        fleet.prefix_memory().set_limit(256 << 10);
        fleet.limit_caches(id);
        assert!(used() <= 256 << 10, "{}", used());
    }
}
