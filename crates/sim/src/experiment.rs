//! Several configurations run with the same workloads, one per seed, so that differences between
//! configurations are not chance (common random numbers).

use std::time::Duration;

use penstock_config::{Config, Strategy};
use penstock_core::fleet::dump;
use penstock_scoring::Objectives;

use super::engine::EngineSpec;
use super::random::{Purpose, RandomStream};
use super::summary::{Objective, Summary};
use super::workload::{Workload, rounded_u32};
use super::world::{
    Delays, Examined, Oracle, PlannedFault, RunResult, Status, WorldError, WorldSpec, simulate,
};

/// The number of blocks of a run.
// Fewer give wide intervals; more are shorter than a burst, and not independent.
const BLOCKS: usize = 10;

/// A configuration with a name.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The name of the variant: its file, or the values that a sweep sets.
    pub name: String,
    /// The configuration; its backends declare their models.
    pub config: Config,
    /// The oracle that decides instead of the strategy, from the true state of the engines.
    pub oracle: Option<Oracle>,
}

/// The setting that all variants share.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// One workload per seed.
    pub workloads: Vec<Workload>,
    /// The engines, in the order of the backends.
    pub engines: Vec<EngineSpec>,
    /// The number of balancers that share the clients.
    pub balancers: u32,
    pub seed: u64,
    /// The delays between balancers and engines.
    pub delays: Delays,
    /// The faults of the engines.
    pub faults: Vec<PlannedFault>,
    /// If set, engines report how much of a prompt they had cached.
    pub reports_cached: bool,
    /// The objective of a good request.
    pub objective: Objective,
    /// If set, every refusal is compared with what the engines could have done.
    pub judges_sheds: bool,
}

impl Experiment {
    /// Runs a variant with the workload of one seed.
    ///
    /// # Errors
    /// [`WorldError`] when the fleet cannot be built.
    pub fn run(&self, variant: &Variant, seed: usize) -> Result<(RunResult, Summary), WorldError> {
        let empty = Workload::default();
        let workload = self.workloads.get(seed).unwrap_or(&empty);
        let result = simulate(&self.world(variant, seed, None), workload)?;
        let summary = Summary::new(&result, workload, &self.objective);
        Ok((result, summary))
    }

    /// Returns whether the workloads of all seeds are the same requests at the same times, as those
    /// of an access log are.
    pub fn has_same_requests(&self) -> bool {
        self.workloads.iter().zip(self.workloads.iter().skip(1)).all(|(one, next)| one == next)
    }

    /// Runs a variant as [`Self::run`] does. Returns its figures, and those without each of a few
    /// blocks of requests that arrived one after the other.
    ///
    /// # Errors
    /// [`WorldError`] when the fleet cannot be built.
    pub fn run_in_blocks(
        &self,
        variant: &Variant,
        seed: usize,
    ) -> Result<(Summary, Vec<Summary>), WorldError> {
        let (run, summary) = self.run(variant, seed)?;
        let empty = Workload::default();
        let workload = self.workloads.get(seed).unwrap_or(&empty);
        let mut order: Vec<usize> = (0..run.requests.len()).collect();
        order.sort_by_key(|id| run.requests.get(*id).map_or(0, |request| request.arrived));
        let length = order.len().div_ceil(BLOCKS).max(1);
        let without = order.chunks(length).map(|block| {
            let mut rest = run.clone();
            for id in block {
                if let Some(request) = rest.requests.get_mut(*id) {
                    // Left out of every figure.
                    request.status = Status::Abandoned;
                }
            }
            Summary::new(&rest, workload, &self.objective)
        });
        Ok((summary, without.collect()))
    }

    /// Runs a variant with another workload and the first seed.
    ///
    /// # Errors
    /// [`WorldError`] when the fleet cannot be built.
    pub fn run_workload(
        &self,
        variant: &Variant,
        workload: &Workload,
    ) -> Result<RunResult, WorldError> {
        simulate(&self.world(variant, 0, None), workload)
    }

    /// Runs a variant up to the end of one request.
    ///
    /// # Errors
    /// [`WorldError`] when the fleet cannot be built.
    pub fn examine(&self, variant: &Variant, examined: Examined) -> Result<RunResult, WorldError> {
        let empty = Workload::default();
        let workload = self.workloads.first().unwrap_or(&empty);
        simulate(&self.world(variant, 0, Some(examined)), workload)
    }

    fn world(&self, variant: &Variant, seed: usize, examined: Option<Examined>) -> WorldSpec {
        WorldSpec {
            config: variant.config.clone(),
            engines: self.engines.clone(),
            balancers: self.balancers,
            // The same for every variant: chance must not differ between those compared.
            seed: self.seed.wrapping_add(seed as u64),
            delays: self.delays,
            faults: self.faults.clone(),
            objectives: Objectives {
                ttft_ms: Some(self.objective.first_token * 1000.0),
                tpot_ms: Some(self.objective.per_token * 1000.0),
                priority: 0,
            },
            reports_cached: self.reports_cached,
            examined,
            oracle: variant.oracle,
            judges_sheds: self.judges_sheds,
        }
    }

    /// Returns the same setting with model errors: prefill, KV reads and capacity up to 20 % off,
    /// outputs up to 30 %, late telemetry, or a lost backend. `world` seeds the errors.
    #[must_use]
    pub fn perturbed(&self, world: u64, backends: &[String]) -> Self {
        let mut random = RandomStream::new(self.seed, Purpose::Perturbations, world);
        let mut off = |most: f64| 1.0 + most * (2.0 * random.uniform() - 1.0);
        let (token, context, capacity, output) = (off(0.2), off(0.2), off(0.2), off(0.3));
        let mut setting = self.clone();
        for engine in &mut setting.engines {
            engine.step_time = engine.step_time.perturbed(token, context);
            engine.kv_blocks = rounded_u32(f64::from(engine.kv_blocks) * capacity).max(1);
        }
        for workload in &mut setting.workloads {
            for request in &mut workload.requests {
                let tokens = rounded_u32(f64::from(request.output_tokens) * output).max(1);
                // A request still ends at its own limit, however long the output becomes.
                let most = if request.max_tokens > 0 { request.max_tokens } else { u32::MAX };
                request.output_tokens = tokens.min(most);
            }
        }
        // A third of the worlds each: late telemetry, a lost engine, and neither.
        match world % 3 {
            0 => setting.delays.scrape = Duration::from_millis(200),
            1 => setting.faults.extend(self.lost_backend(backends, &mut random)),
            _ => {}
        }
        setting
    }

    /// Returns the loss of a random backend halfway through the run, if there is more than one.
    fn lost_backend(&self, backends: &[String], random: &mut RandomStream) -> Option<PlannedFault> {
        // A fleet of one would only show the outage.
        if backends.len() < 2 {
            return None;
        }
        let number = random.below(backends.len() as u64);
        let last = self.workloads.first()?.requests.iter().map(|one| one.arrives_at).max()?;
        Some(PlannedFault {
            at: Duration::from_micros(last / 2),
            backend: backends.get(usize::try_from(number).ok()?)?.clone(),
            kind: super::world::FaultKind::Down,
            lasts: Duration::from_micros(last / 8),
        })
    }
}

/// The reason why a configuration cannot be simulated with a workload.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no backend of '{variant}' serves the model '{model}' of the workload; --model NAME sends every request to NAME"
)]
pub struct UnservedModel {
    /// The name of the variant.
    pub variant: String,
    /// The name of the model.
    pub model: String,
}

impl Variant {
    /// Creates a variant whose strategy decides.
    pub fn new(name: String, config: Config) -> Self {
        Self { name, config, oracle: None }
    }

    /// Creates an oracle for the fleet of a configuration, with its limits. It has no queue: it
    /// decides at once.
    #[must_use]
    pub fn oracle(of: &Self, oracle: Oracle) -> Self {
        let name = match oracle {
            Oracle::Sheddable => "oracle",
            Oracle::All => "oracle, refusing",
        };
        let mut config = of.config.clone();
        config.routing.strategy = Strategy::RoundRobin;
        (config.routing.preset, config.routing.scorers) = (None, Vec::new());
        // The oracle decides: everything that would decide beside it is off.
        (config.routing.predict, config.routing.move_waiting) = (false, false);
        config.queue.size = 0;
        Self { name: name.to_owned(), config, oracle: Some(oracle) }
    }

    /// Declares the models of a workload on the backends that declare none, so that there is
    /// nothing to discover.
    pub fn declare_models(&mut self, workload: &Workload) {
        use penstock_config::ModelEntry;
        let entry = |name: &String| ModelEntry { id: name.clone(), ..ModelEntry::default() };
        for backend in self.config.backends.iter_mut().filter(|backend| backend.models.is_none()) {
            backend.models = Some(workload.models.iter().map(entry).collect());
        }
    }

    /// Checks that every model of the workload is served, by its name or an alias.
    ///
    /// # Errors
    /// [`UnservedModel`] for the first model that is not served.
    pub fn check_models(&self, workload: &Workload) -> Result<(), UnservedModel> {
        let generation = penstock_core::routing::Generation::new(self.config.clone());
        dump::assume_healthy(&generation.fleet);
        let topology = generation.fleet.topology();
        for model in &workload.models {
            let split = penstock_core::routing::SplitPoint::default();
            let target = generation.router.names.resolve(model, &topology, split);
            // Found now: a simulation in which every request is refused takes minutes to show it.
            if topology.model_id(target).is_none() {
                return Err(UnservedModel { variant: self.name.clone(), model: model.clone() });
            }
        }
        Ok(())
    }
}
