//! Builds the simulation from flags and files.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use penstock_config::{Config, Environment, Resolve};
use penstock_sim::capacity::{Capacity, capacity};
use penstock_sim::experiment::{Experiment, Variant};
use penstock_sim::summary::Objective;
use penstock_sim::workload::{Workload, presets};
use penstock_sim::world::{Delays, Oracle};

use super::arguments::SimulateArgs;
use super::engine_choice::{ChosenEngines, EngineChoice};
use super::error::SimulateError;
use super::template::{DrawnWorkloads, MAX_LENGTHENING, Template, preset_names};

/// The number of backends of a fleet without a configuration.
// Fewer hide what a strategy does with load, and more cost time in every run.
const USUAL_BACKENDS: usize = 4;
/// The inputs of a simulation.
pub(super) struct SimulationPlan {
    pub(super) setting: Experiment,
    pub(super) variants: Vec<Variant>,
    pub(super) workload_name: String,
    pub(super) workload_hash: String,
    /// The arrival rate in requests per second.
    pub(super) rate: f64,
    /// The workload that determines the capacity; `None` for a closed loop, which has no rate.
    steady: Option<Workload>,
    /// The capacity of the fleet, once it is known.
    pub(super) capacity: Option<Capacity>,
    pub(super) engine_names: Vec<String>,
    /// The choice of each engine, in the order of the backends.
    pub(super) choices: Vec<EngineChoice>,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
}

/// The source of a fleet: a configuration, or a number of equal backends.
pub(super) enum FleetSource {
    File(PathBuf),
    /// A fleet with this number of backends.
    Fleet(usize),
}

impl FleetSource {
    /// Returns the sources that the flags name.
    pub(super) fn all(args: &SimulateArgs) -> Vec<Self> {
        if args.configs.is_empty() {
            return vec![Self::Fleet(args.backends.unwrap_or(USUAL_BACKENDS))];
        }
        args.configs.iter().cloned().map(Self::File).collect()
    }

    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Fleet(_) => "weighted".to_owned(),
        }
    }

    /// Loads the configuration with settings that override the file's.
    pub(super) fn load(
        &self,
        args: &SimulateArgs,
        overrides: &[(String, String)],
        notes: &mut Vec<String>,
    ) -> Result<Config, SimulateError> {
        let environment = Environment::of_process();
        let mut config = match self {
            Self::File(path) => Config::load(path, &environment, overrides)?,
            Self::Fleet(count) => {
                let mut yaml = "routing: { strategy: weighted }\nbackends:\n".to_owned();
                for number in 1..=*count {
                    _ = writeln!(
                        yaml,
                        "  - {{ name: b{number}, url: 'http://10.0.0.1:{}', engine: vllm }}",
                        8000 + number
                    );
                }
                Config::parse_with(&yaml, "the fleet", Path::new(""), &environment, overrides)?
            }
        };
        for backend in &mut config.backends {
            if backend.resolve == Resolve::Each || backend.srv.is_some() {
                notes.push(format!(
                    "the addresses of '{}' are simulated as one backend",
                    backend.name
                ));
                // A simulation looks up no names: its result would depend on the network.
                (backend.resolve, backend.srv) = (Resolve::Together, None);
            }
        }
        if let Some(count) = args.backends {
            replicate(&mut config, count);
        }
        Ok(config)
    }
}

/// Replaces the backends with `count` copies of the configured ones, in turn.
fn replicate(config: &mut Config, count: usize) {
    let configured = config.backends.clone();
    let copies = configured.iter().cycle().take(count).enumerate().map(|(index, backend)| {
        let round = index / configured.len().max(1);
        let mut copy = backend.clone();
        if round > 0 {
            // A backend is identified by its name.
            copy.name = format!("{}-{}", backend.name, round + 1);
        }
        copy
    });
    config.backends = copies.collect();
}

impl SimulationPlan {
    pub(super) fn new(args: &SimulateArgs) -> Result<Self, SimulateError> {
        let log = args.yesterday.as_ref().map(|path| path.to_string_lossy());
        let given = args.workload.as_deref().or(log.as_deref());
        let given = given.ok_or_else(|| SimulateError::NoWorkload { known: preset_names() })?;
        check_flags(args)?;
        let mut notes = Vec::new();
        let sources = FleetSource::all(args);
        let mut variants = Vec::new();
        for source in &sources {
            variants.push(Variant::new(source.name(), source.load(args, &[], &mut notes)?));
        }
        if let Some(first) = variants.first() {
            // Before minutes of simulation: a misspelt backend should cost nothing.
            args.faults.iter().try_for_each(|fault| fault.check(&first.config))?;
        }
        if let Some(first) = variants.first().filter(|_| args.oracle).cloned() {
            let oracles = [Oracle::Sheddable, Oracle::All];
            // After the given ones: the first of those stays what all are compared with.
            variants.extend(oracles.map(|oracle| Variant::oracle(&first, oracle)));
        }
        let (template, hash) = Template::read(given)?;
        let first = variants.first().map(|variant| &variant.config);
        let model = args.model.clone().or_else(|| first.and_then(first_model));
        let workloads = template.draw_all(given, args, model.as_deref())?;
        let requests = workloads.first().map_or(0, |workload| workload.requests.len());
        let drawn = DrawnWorkloads { requests, model: model.as_deref() };
        let steady = template.steady(given, args, &drawn, MAX_LENGTHENING)?;
        let ChosenEngines { specs: engines, names: engine_names, choices } =
            ChosenEngines::of(args, &variants)?;
        let setting = Experiment {
            workloads,
            engines,
            balancers: args.balancers,
            seed: args.seed,
            delays: Delays::default(),
            faults: args.faults.clone(),
            reports_cached: !args.no_cached_tokens,
            objective: Objective {
                first_token: args.ttft.as_secs_f64(),
                per_token: args.tpot.as_secs_f64(),
            },
            // It runs an engine ahead for each refusal, which a sweep would repeat for every arm.
            judges_sheds: args.sweep.is_empty() && args.yesterday.is_none(),
        };
        let mut plan = Self {
            setting,
            variants,
            workload_name: given.to_owned(),
            workload_hash: hash,
            rate: 0.0,
            steady,
            capacity: None,
            engine_names,
            choices,
            notes,
        };
        plan.settle()?;
        plan.find_load(&template, given, args, &drawn)?;
        Ok(plan)
    }

    /// Returns the warnings of the configurations, each once.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut all = Vec::new();
        for warning in self.variants.iter().flat_map(|variant| &variant.config.warnings) {
            let text = warning.to_string();
            // An oracle has those of the configuration that it was made of.
            if !all.contains(&text) {
                all.push(text);
            }
        }
        all
    }

    /// Determines the capacity if a flag needs it, with a longer workload if the given one is too
    /// short, and scales the arrivals to the given load.
    fn find_load(
        &mut self,
        template: &Template,
        path: &str,
        args: &SimulateArgs,
        drawn: &DrawnWorkloads<'_>,
    ) -> Result<(), SimulateError> {
        if args.load.is_some() || args.plot.is_some() {
            let mut most = MAX_LENGTHENING;
            self.find_capacity()?;
            // Step by step: a search takes as long as its workload is.
            while self.capacity.is_none() && self.has_rate() {
                most = most.saturating_mul(MAX_LENGTHENING);
                let longer = template.steady(path, args, drawn, most)?;
                let length = |one: &Option<Workload>| one.as_ref().map(|one| one.requests.len());
                if length(&longer) <= length(&self.steady) {
                    break;
                }
                self.steady = longer;
                self.find_capacity()?;
            }
        }
        args.load.map_or(Ok(()), |load| self.scale_to(load))
    }

    /// Declares models.
    fn settle(&mut self) -> Result<(), SimulateError> {
        let Some(workload) = self.setting.workloads.first() else {
            return Err(SimulateError::Flag { flag: "--seeds", reason: "at least 1".to_owned() });
        };
        for variant in &mut self.variants {
            variant.declare_models(workload);
            variant.check_models(workload)?;
        }
        self.rate = workload.rate();
        Ok(())
    }

    /// Returns the capacity.
    ///
    /// # Errors
    /// If the workload has none, or does not show it.
    pub(super) fn known_capacity(&self, flag: &'static str) -> Result<Capacity, SimulateError> {
        self.capacity.ok_or_else(|| {
            let reason = match &self.steady {
                None => "a closed loop has no rate; change its users",
                Some(steady) if steady.rate() <= 0.0 => {
                    "the requests all arrive at once, which is no rate"
                }
                Some(_) => "the workload is too short to show the capacity of the fleet",
            };
            SimulateError::Flag { flag, reason: reason.to_owned() }
        })
    }

    /// Scales the arrivals to a load.
    fn scale_to(&mut self, load: f64) -> Result<(), SimulateError> {
        let capacity = self.known_capacity("--load")?;
        let speed = load * capacity.rate / self.rate.max(f64::MIN_POSITIVE);
        let workloads = std::mem::take(&mut self.setting.workloads);
        self.setting.workloads = workloads.into_iter().map(|one| one.at_speed(speed)).collect();
        self.rate *= speed;
        Ok(())
    }

    /// Determines the capacity of the fleet, unless it is known.
    pub(super) fn find_capacity(&mut self) -> Result<(), SimulateError> {
        if let (Some(steady), Some(first), None) =
            (&self.steady, self.variants.first(), self.capacity)
        {
            self.capacity = capacity(&self.setting, first, steady)?;
        }
        Ok(())
    }

    /// Returns whether each user waits for a response before the next request.
    pub(super) fn is_closed_loop(&self) -> bool {
        self.steady.is_none()
    }

    /// Returns whether the requests have a rate that a fleet could keep up with or not.
    pub(super) fn has_rate(&self) -> bool {
        self.steady.is_some() && self.rate > 0.0
    }

    /// Returns the rate in relation to the capacity with the error of that, if it is known.
    pub(super) fn load(&self) -> Option<PlannedLoad> {
        let capacity = self.capacity.filter(|capacity| capacity.rate > 0.0)?;
        let share = self.rate / capacity.rate;
        Some(PlannedLoad { share, error: share * capacity.error })
    }
}

/// The rate of a plan in relation to the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PlannedLoad {
    pub(super) share: f64,
    /// The error of `share`, of the same unit.
    pub(super) error: f64,
}

fn check_flags(args: &SimulateArgs) -> Result<(), SimulateError> {
    let positive = |value: Option<f64>| value.is_none_or(|value| value.is_finite() && value > 0.0);
    let wrong = match () {
        () if !positive(args.speed) => Some("--speed"),
        () if !positive(args.load) => Some("--load"),
        () if !(positive(Some(args.part)) && args.part <= 1.0) => Some("--part"),
        () => None,
    };
    if let Some(flag) = wrong {
        let reason = "a number greater than 0".to_owned();
        return Err(SimulateError::Flag { flag, reason });
    }
    let counts = [
        ("--seeds", Some(args.seeds)),
        ("--backends", args.backends),
        ("--balancers", usize::try_from(args.balancers).ok()),
        ("--threads", args.threads),
        ("--budget", Some(args.budget)),
    ];
    if let Some((flag, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
        return Err(SimulateError::Flag { flag, reason: "at least 1".to_owned() });
    }
    Ok(())
}

fn first_model(config: &Config) -> Option<String> {
    let declared = config.backends.iter().filter_map(|backend| backend.models.as_ref());
    declared.flatten().next().map(|model| model.id.clone())
}

/// Lists the presets with their descriptions.
pub(super) fn list() -> String {
    let mut text = String::new();
    for preset in presets() {
        _ = writeln!(text, "{:<16} {}", preset.name, preset.about);
    }
    text
}
