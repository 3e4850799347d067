//! Builds the simulation from flags and files.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use penstock_config::{Config, Environment, Resolve};
use penstock_sim::capacity::capacity;
use penstock_sim::experiment::{Setting, Variant};
use penstock_sim::summary::Objective;
use penstock_sim::workload::{TraceFormat, Workload, WorkloadSpec, generate, presets, read_trace};
use penstock_sim::world::{Delays, Oracle};
use xxhash_rust::xxh3::xxh3_64;

use super::arguments::SimulateArgs;
use super::engine_choice::{EngineChoice, Engines};
use super::error::SimulateError;

/// The number of backends of a fleet without a configuration.
// Fewer hide what a strategy does with load, and more cost time in every run.
const USUAL_BACKENDS: usize = 4;
/// The first bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The number of requests in the workload that determines a capacity, which is at most
/// [`MAX_LENGTHENING`] times as long as the given one.
// A queue that grows slowly shows only in a long run.
const STEADY_REQUESTS: usize = 24_000;
const MAX_LENGTHENING: u32 = 4;
/// The maximum size of an input file in bytes, uncompressed.
// A small file can unpack to more than any memory.
const MAX_BYTES: u64 = 4 << 30;

/// The inputs of a simulation.
pub(super) struct SimulationPlan {
    pub(super) setting: Setting,
    pub(super) variants: Vec<Variant>,
    pub(super) workload_name: String,
    pub(super) workload_hash: String,
    /// The arrival rate in requests per second.
    pub(super) rate: f64,
    /// The workload that determines the capacity; `None` for a closed loop, which has no rate.
    steady: Option<Workload>,
    /// The capacity of the fleet in requests per second, once it is known.
    pub(super) capacity: Option<f64>,
    pub(super) engine_names: Vec<String>,
    /// The choice of each engine, in the order of the backends.
    pub(super) choices: Vec<EngineChoice>,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
}

/// The source of a configuration.
pub(super) enum Source {
    File(PathBuf),
    /// A fleet with this number of backends.
    Fleet(usize),
}

impl Source {
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

/// A workload before seeds are drawn.
enum Template {
    Spec(Box<WorkloadSpec>),
    Trace(String),
}

impl Template {
    fn read(given: &str) -> Result<(Self, String), SimulateError> {
        if let Some(preset) = presets().iter().find(|preset| preset.name == given) {
            let path = PathBuf::from(given);
            let spec = WorkloadSpec::parse(preset.yaml)
                .map_err(|source| SimulateError::Workload { path, source })?;
            return Ok((Self::Spec(Box::new(spec)), hash_of(preset.yaml)));
        }
        let path = PathBuf::from(given);
        let text = read_text(&path)?;
        let hash = hash_of(&text);
        if TraceFormat::of(&text).is_some() {
            return Ok((Self::Trace(text), hash));
        }
        // A trace in an unknown format, as which it is refused, and not as a faulty workload.
        if text.trim_start().starts_with('{') || !text.contains("streams") {
            let source = penstock_sim::workload::TraceError::Unknown;
            return Err(SimulateError::Trace { path, source });
        }
        let spec = WorkloadSpec::parse(&text)
            .map_err(|source| SimulateError::Workload { path, source })?;
        Ok((Self::Spec(Box::new(spec)), hash))
    }

    /// Returns a longer workload that determines the capacity: shortly after a session has started,
    /// nothing shows whether the fleet keeps up. `None` for a closed loop.
    fn steady(
        &self,
        path: &str,
        seed: u64,
        requests: usize,
    ) -> Result<Option<Workload>, SimulateError> {
        match self {
            // Its users wait for their responses: it has no rate that could be too high.
            Self::Spec(spec) if spec.is_closed() => Ok(None),
            Self::Spec(spec) => {
                let factor = STEADY_REQUESTS / requests.max(1);
                let factor = u32::try_from(factor).unwrap_or(1).clamp(1, MAX_LENGTHENING);
                Ok(Some(generate(&spec.as_ref().clone().lengthened(factor), seed)))
            }
            Self::Trace(_) => self.draw(path, seed).map(Some),
        }
    }

    /// Draws a workload for each seed.
    fn draw_all(
        &self,
        path: &str,
        args: &SimulateArgs,
        model: Option<&str>,
    ) -> Result<Vec<Workload>, SimulateError> {
        let seeds = (0..args.seeds as u64).map(|number| args.seed.wrapping_add(number));
        let workloads = seeds.map(|seed| {
            let workload = as_asked(self.draw(path, seed)?, args, model, seed);
            Ok(workload.at_speed(args.speed.unwrap_or(1.0)))
        });
        workloads.collect()
    }

    fn draw(&self, path: &str, seed: u64) -> Result<Workload, SimulateError> {
        match self {
            Self::Spec(spec) => Ok(generate(spec, seed)),
            Self::Trace(text) => read_trace(text, seed)
                .map_err(|source| SimulateError::Trace { path: path.into(), source }),
        }
    }
}

/// Reads a text file, compressed or not.
pub(super) fn read_text(path: &Path) -> Result<String, SimulateError> {
    let unreadable = |source| SimulateError::Unreadable { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(unreadable)?;
    if !bytes.starts_with(&GZIP) {
        return String::from_utf8(bytes)
            .map_err(|error| unreadable(std::io::Error::other(error.utf8_error())));
    }
    let mut text = String::new();
    let decoder = GzDecoder::new(bytes.as_slice());
    decoder.take(MAX_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

impl SimulationPlan {
    pub(super) fn new(args: &SimulateArgs) -> Result<Self, SimulateError> {
        let known = || presets().iter().map(|one| one.name).collect::<Vec<_>>().join(", ");
        let log = args.yesterday.as_ref().map(|path| path.to_string_lossy());
        let given = args.workload.as_deref().or(log.as_deref());
        let given = given.ok_or_else(|| SimulateError::NoWorkload { known: known() })?;
        check_flags(args)?;
        let mut notes = Vec::new();
        let sources = Source::all(args);
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
        let steady = template.steady(given, args.seed, requests)?;
        let steady = steady.map(|one| as_asked(one, args, model.as_deref(), args.seed));
        let Engines { specs: engines, names: engine_names, choices } =
            Engines::of(args, &variants)?;
        let setting = Setting {
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
        plan.settle(args)?;
        Ok(plan)
    }

    /// Declares models, and scales the arrivals to the given load.
    fn settle(&mut self, args: &SimulateArgs) -> Result<(), SimulateError> {
        let Some(workload) = self.setting.workloads.first() else {
            return Err(SimulateError::Flag { flag: "--seeds", reason: "at least 1".to_owned() });
        };
        for variant in &mut self.variants {
            variant.declare_models(workload);
            variant.check_models(workload)?;
        }
        self.rate = workload.rate();
        if let Some(load) = args.load {
            self.find_capacity()?;
            let capacity = self.capacity.ok_or_else(|| SimulateError::Flag {
                flag: "--load",
                reason: "a closed loop has no rate; change its users".to_owned(),
            })?;
            let speed = load * capacity / self.rate.max(f64::MIN_POSITIVE);
            let workloads = std::mem::take(&mut self.setting.workloads);
            self.setting.workloads = workloads.into_iter().map(|one| one.at_speed(speed)).collect();
            self.rate *= speed;
        }
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

    /// Returns the rate in relation to the capacity, if that is known.
    pub(super) fn load(&self) -> Option<f64> {
        self.capacity.filter(|capacity| *capacity > 0.0).map(|capacity| self.rate / capacity)
    }
}

/// Applies the model, the arrivals and the part of the flags to a workload.
fn as_asked(
    mut workload: Workload,
    args: &SimulateArgs,
    model: Option<&str>,
    seed: u64,
) -> Workload {
    name_models(&mut workload, model, args.model.is_some());
    if let Some(arrivals) = args.arrivals {
        workload = workload.with_arrivals(arrivals, seed);
    }
    workload.first_part(args.part)
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
    if args.seeds == 0 || args.backends == Some(0) {
        let flag = if args.seeds == 0 { "--seeds" } else { "--backends" };
        return Err(SimulateError::Flag { flag, reason: "at least 1".to_owned() });
    }
    Ok(())
}

fn first_model(config: &Config) -> Option<String> {
    let declared = config.backends.iter().filter_map(|backend| backend.models.as_ref());
    declared.flatten().next().map(|model| model.id.clone())
}

/// Names a model in requests without one; `all` renames the others, too.
fn name_models(workload: &mut Workload, model: Option<&str>, all: bool) {
    let name = model.unwrap_or("model");
    if all {
        workload.models = vec![name.to_owned()];
        workload.requests.iter_mut().for_each(|request| request.model = 0);
    }
    for unnamed in workload.models.iter_mut().filter(|model| model.is_empty()) {
        name.clone_into(unnamed);
    }
}

/// Returns a short name for a text; equal texts get equal names.
pub(super) fn hash_of(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

/// Lists the presets with their descriptions.
pub(super) fn list() -> String {
    let mut text = String::new();
    for preset in presets() {
        _ = writeln!(text, "{:<16} {}", preset.name, preset.about);
    }
    text
}
