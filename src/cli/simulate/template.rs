//! The workload that an argument names, before seeds are drawn.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use penstock_sim::workload::{
    TraceError, TraceFormat, Workload, WorkloadSpec, generate, presets, read_trace,
};
use xxhash_rust::xxh3::xxh3_64;

use super::arguments::SimulateArgs;
use super::error::SimulateError;

/// The first bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The number of requests in the workload that determines a capacity, which is at most
/// [`MAX_LENGTHENING`] times as long as the given one unless that is too short to show it.
// A queue that grows slowly shows only in a long run.
const STEADY_REQUESTS: usize = 24_000;
pub(super) const MAX_LENGTHENING: u32 = 4;
/// The maximum size of an input file in bytes, uncompressed.
// A small file can unpack to more than any memory.
const MAX_BYTES: u64 = 4 << 30;

/// The properties of the drawn workloads.
pub(super) struct DrawnWorkloads<'a> {
    /// The number of their requests.
    pub(super) requests: usize,
    /// The model of requests that name none.
    pub(super) model: Option<&'a str>,
}

/// A workload before seeds are drawn.
pub(super) enum Template {
    Spec(Box<WorkloadSpec>),
    Trace(String),
}

impl Template {
    pub(super) fn read(given: &str) -> Result<(Self, String), SimulateError> {
        if let Some(preset) = presets().iter().find(|preset| preset.name == given) {
            let path = PathBuf::from(given);
            let spec = WorkloadSpec::parse(preset.yaml)
                .map_err(|source| SimulateError::Workload { path, source })?;
            return Ok((Self::Spec(Box::new(spec)), hash_of(preset.yaml)));
        }
        let path = PathBuf::from(given);
        let text = read_text(&path).map_err(|error| match error {
            SimulateError::Unreadable { source, .. } if source.kind() == ErrorKind::NotFound => {
                SimulateError::UnknownWorkload { given: given.to_owned(), known: preset_names() }
            }
            other => other,
        })?;
        let hash = hash_of(&text);
        if text.trim().is_empty() {
            return Err(SimulateError::Trace { path, source: TraceError::Empty });
        }
        if TraceFormat::of(&text).is_some() {
            return Ok((Self::Trace(text), hash));
        }
        // A trace in an unknown format, as which it is refused, and not as a faulty workload.
        if text.trim_start().starts_with('{') || !text.contains("streams") {
            return Err(SimulateError::Trace { path, source: TraceError::Unknown });
        }
        let spec = WorkloadSpec::parse(&text)
            .map_err(|source| SimulateError::Workload { path, source })?;
        Ok((Self::Spec(Box::new(spec)), hash))
    }

    /// Returns a workload up to `most` times as long that determines the capacity: shortly after a
    /// session has started, nothing shows whether the fleet keeps up. `None` for a closed loop.
    pub(super) fn steady(
        &self,
        path: &str,
        args: &SimulateArgs,
        drawn: &DrawnWorkloads<'_>,
        most: u32,
    ) -> Result<Option<Workload>, SimulateError> {
        let workload = match self {
            // Its users wait for their responses: it has no rate that could be too high.
            Self::Spec(spec) if spec.is_closed() => return Ok(None),
            Self::Spec(spec) => {
                let times = u32::try_from(STEADY_REQUESTS / drawn.requests.max(1));
                let times = times.unwrap_or(u32::MAX).clamp(1, most);
                // A part of a workload that is longer yet would be drawn for nothing.
                let wanted = f64::from(times) * args.part;
                let mut factors = times.min(MAX_LENGTHENING)..=times;
                let factor = factors.find(|factor| f64::from(*factor) >= wanted).unwrap_or(times);
                let part = wanted / f64::from(factor);
                let longer = generate(&spec.as_ref().clone().lengthened(factor), args.seed);
                as_asked(longer, args, drawn.model, args.seed).first_part(part)
            }
            Self::Trace(_) => {
                let trace = self.draw(path, args.seed)?;
                as_asked(trace, args, drawn.model, args.seed).first_part(args.part)
            }
        };
        Ok(Some(workload))
    }

    /// Draws a workload for each seed.
    pub(super) fn draw_all(
        &self,
        path: &str,
        args: &SimulateArgs,
        model: Option<&str>,
    ) -> Result<Vec<Workload>, SimulateError> {
        let seeds = (0..args.seeds as u64).map(|number| args.seed.wrapping_add(number));
        let workloads = seeds.map(|seed| {
            let workload = as_asked(self.draw(path, seed)?, args, model, seed);
            Ok(workload.first_part(args.part).at_speed(args.speed.unwrap_or(1.0)))
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

/// Returns the names of the presets.
pub(super) fn preset_names() -> String {
    presets().iter().map(|one| one.name).collect::<Vec<_>>().join(", ")
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

/// Applies the model and the arrivals of the flags to a workload.
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
    workload
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
