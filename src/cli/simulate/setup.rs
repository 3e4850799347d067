//! From flags and files to what is simulated.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use xxhash_rust::xxh3::xxh3_64;

use super::arguments::SimulateArgs;
use super::error::SimulateError;
use crate::cli::engines::{ChosenEngine, engine_of};
use crate::config::{Config, Environment, Resolve};
use crate::sim::engine::EngineSpec;
use crate::sim::experiment::{Setting, Variant};
use crate::sim::summary::Objective;
use crate::sim::workload::{TraceFormat, Workload, WorkloadSpec, generate, presets, read_trace};
use crate::sim::world::{Delays, Oracle};

/// Backends of a fleet without a configuration.
const USUAL_BACKENDS: usize = 4;
/// How a compressed file starts.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The largest file that is read, uncompressed.
const MOST_BYTES: u64 = 4 << 30;

/// What is simulated.
pub(super) struct Plan {
    pub(super) setting: Setting,
    pub(super) variants: Vec<Variant>,
    pub(super) workload_name: String,
    pub(super) workload_hash: String,
    /// Requests per second.
    pub(super) rate: f64,
    pub(super) engine_names: Vec<String>,
    /// What the user should know.
    pub(super) notes: Vec<String>,
}

/// Where a configuration comes from.
pub(super) enum Source {
    File(PathBuf),
    /// A fleet of so many backends.
    Fleet(usize),
}

impl Source {
    /// The sources that the flags name.
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

    /// The configuration with settings that override the file's.
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
                (backend.resolve, backend.srv) = (Resolve::Together, None);
            }
        }
        if let Some(count) = args.backends {
            replicate(&mut config, count);
        }
        Ok(config)
    }
}

/// So many backends: the configured ones, in turn.
fn replicate(config: &mut Config, count: usize) {
    let configured = config.backends.clone();
    let copies = configured.iter().cycle().take(count).enumerate().map(|(index, backend)| {
        let round = index / configured.len().max(1);
        let mut copy = backend.clone();
        if round > 0 {
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
        if text.trim_start().starts_with('{') || !text.contains("streams") {
            let source = crate::sim::workload::TraceError::Unknown;
            return Err(SimulateError::Trace { path, source });
        }
        let spec = WorkloadSpec::parse(&text)
            .map_err(|source| SimulateError::Workload { path, source })?;
        Ok((Self::Spec(Box::new(spec)), hash))
    }

    fn draw(&self, path: &str, seed: u64) -> Result<Workload, SimulateError> {
        match self {
            Self::Spec(spec) => Ok(generate(spec, seed)),
            Self::Trace(text) => read_trace(text, seed)
                .map_err(|source| SimulateError::Trace { path: path.into(), source }),
        }
    }
}

/// A text file, compressed or not.
pub(super) fn read_text(path: &Path) -> Result<String, SimulateError> {
    let unreadable = |source| SimulateError::Unreadable { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(unreadable)?;
    if !bytes.starts_with(&GZIP) {
        return String::from_utf8(bytes)
            .map_err(|error| unreadable(std::io::Error::other(error.utf8_error())));
    }
    let mut text = String::new();
    let decoder = GzDecoder::new(bytes.as_slice());
    decoder.take(MOST_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

impl Plan {
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
        if let Some(first) = variants.first().filter(|_| args.oracle).cloned() {
            let oracles = [Oracle::Sheddable, Oracle::All];
            variants.extend(oracles.map(|oracle| Variant::oracle(&first, oracle)));
        }
        let (template, hash) = Template::read(given)?;
        let first = variants.first().map(|variant| &variant.config);
        let model = args.model.clone().or_else(|| first.and_then(first_model));
        let mut workloads = Vec::new();
        for number in 0..args.seeds as u64 {
            let mut workload = template.draw(given, args.seed.wrapping_add(number))?;
            name_models(&mut workload, model.as_deref(), args.model.is_some());
            if let Some(arrivals) = args.arrivals {
                workload = workload.with_arrivals(arrivals, args.seed.wrapping_add(number));
            }
            workloads.push(workload.first_part(args.part).at_speed(args.speed.unwrap_or(1.0)));
        }
        let Engines { specs: engines, names: engine_names, delays } = engines(args, &variants)?;
        let setting = Setting {
            workloads,
            engines,
            balancers: args.balancers,
            seed: args.seed,
            delays,
            faults: args.faults.clone(),
            reports_cached: !args.no_cached_tokens,
            objective: Objective {
                first_token: args.ttft.as_secs_f64(),
                per_token: args.tpot.as_secs_f64(),
            },
            judges_sheds: args.sweep.is_empty() && args.yesterday.is_none(),
        };
        let mut plan = Self {
            setting,
            variants,
            workload_name: given.to_owned(),
            workload_hash: hash,
            rate: 0.0,
            engine_names,
            notes,
        };
        plan.settle(args)?;
        Ok(plan)
    }

    /// Declares models, and scales the arrivals to the load that was given.
    fn settle(&mut self, args: &SimulateArgs) -> Result<(), SimulateError> {
        let Some(workload) = self.setting.workloads.first() else {
            return Err(SimulateError::Flag { flag: "--seeds", reason: "at least 1".to_owned() });
        };
        for variant in &mut self.variants {
            variant.declare_models(workload);
            variant.check_models(workload)?;
        }
        self.rate = rate_of(workload);
        if let (Some(load), Some(variant)) = (args.load, self.variants.first()) {
            let speed = load * self.setting.capacity(variant)? / self.rate.max(f64::MIN_POSITIVE);
            let workloads = std::mem::take(&mut self.setting.workloads);
            self.setting.workloads = workloads.into_iter().map(|one| one.at_speed(speed)).collect();
            self.rate *= speed;
        }
        Ok(())
    }
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

/// Requests per second of a workload.
fn rate_of(workload: &Workload) -> f64 {
    let last = workload.requests.iter().map(|request| request.arrives_at).max().unwrap_or(0);
    if last == 0 { 0.0 } else { workload.requests.len() as f64 / (last as f64 * 1e-6) }
}

fn first_model(config: &Config) -> Option<String> {
    let declared = config.backends.iter().filter_map(|backend| backend.models.as_ref());
    declared.flatten().next().map(|model| model.id.clone())
}

/// Gives requests without a model one; `all` renames the others, too.
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

/// The engines of a plan.
struct Engines {
    /// Of each backend.
    specs: Vec<EngineSpec>,
    /// What they are called.
    names: Vec<String>,
    /// What lies between them and clients.
    delays: Delays,
}

/// The engine of each backend.
fn engines(args: &SimulateArgs, variants: &[Variant]) -> Result<Engines, SimulateError> {
    let backends = variants.first().map_or(&[][..], |first| &first.config.backends);
    let names: Vec<&str> = backends.iter().map(|backend| backend.name.as_str()).collect();
    for variant in variants.iter().skip(1) {
        let other = variant.config.backends.len();
        if other != names.len() {
            return Err(SimulateError::Backends { first: names.len(), other });
        }
    }
    let mut usual = None;
    let mut own: Vec<Option<(ChosenEngine, String)>> = names.iter().map(|_| None).collect();
    for given in &args.engines {
        match given.split_once('=') {
            None => usual = Some((engine_of(given)?, given.clone())),
            Some((name, row)) => {
                let index = names.iter().position(|one| *one == name).ok_or_else(|| {
                    SimulateError::UnknownBackend {
                        given: name.to_owned(),
                        known: names.join(", "),
                    }
                })?;
                if let Some(place) = own.get_mut(index) {
                    *place = Some((engine_of(row)?, row.to_owned()));
                }
            }
        }
    }
    let chosen = own.into_iter().zip(backends).map(|(own, backend)| {
        let (engine, name) = own.or_else(|| usual.clone())?;
        let spec = args.limits.applied(engine.spec, backend.engine, backend.num_parallel);
        Some((spec, name, engine.front_end))
    });
    let chosen: Option<Vec<(EngineSpec, String, Option<u64>)>> = chosen.collect();
    let chosen = chosen.ok_or_else(|| SimulateError::Flag {
        flag: "--engine",
        reason: "it names an engine for some backends; pass one for the others, too".to_owned(),
    })?;
    let mut engines = Engines { specs: Vec::new(), names: Vec::new(), delays: Delays::default() };
    for (spec, name, front_end) in chosen {
        spec.validate()?;
        engines.specs.push(spec);
        engines.names.push(name);
        if let Some(front_end) = front_end {
            engines.delays = Delays::of_front_end(front_end);
        }
    }
    Ok(engines)
}

/// A short name for a text: the same text has the same.
pub(super) fn hash_of(text: &str) -> String {
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

/// The presets with what they are.
pub(super) fn list() -> String {
    let mut text = String::new();
    for preset in presets() {
        _ = writeln!(text, "{:<16} {}", preset.name, preset.about);
    }
    text
}
