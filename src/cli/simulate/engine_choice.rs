//! The engine of each backend, chosen by the flags.

use penstock_sim::engine::{EngineSpec, StepTime};
use penstock_sim::experiment::Variant;

use super::arguments::SimulateArgs;
use super::error::SimulateError;
use crate::cli::engines::{ChosenEngine, engine_of};

/// The engines of a plan.
pub(super) struct ChosenEngines {
    /// The engine of each backend.
    pub(super) specs: Vec<EngineSpec>,
    /// The names of the engines.
    pub(super) names: Vec<String>,
    pub(super) choices: Vec<EngineChoice>,
}

/// The choice of a backend's engine.
#[derive(Debug, Clone)]
pub(super) struct EngineChoice {
    /// True if a flag names it for this backend: then it is not learned.
    pub(super) is_given: bool,
    /// The lower bound of the step time on its hardware.
    pub(super) least: StepTime,
}

impl ChosenEngines {
    /// Returns the engine of each backend.
    pub(super) fn of(args: &SimulateArgs, variants: &[Variant]) -> Result<Self, SimulateError> {
        let backends = variants.first().map_or(&[][..], |first| &first.config.backends);
        let names: Vec<&str> = backends.iter().map(|backend| backend.name.as_str()).collect();
        // All configurations are simulated with the same engines, one per backend.
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
            let is_given = own.is_some();
            let (engine, name) = own.or_else(|| usual.clone())?;
            let spec = args.limits.applied(engine.spec, backend.engine, backend.num_parallel);
            Some((spec, name, EngineChoice { is_given, least: engine.least }))
        });
        let chosen: Option<Vec<(EngineSpec, String, EngineChoice)>> = chosen.collect();
        let chosen = chosen.ok_or_else(|| SimulateError::Flag {
            flag: "--engine",
            reason: "it names an engine for some backends; pass one for the others, too, as in \
                     '--engine unknown --engine NAME=FILE'"
                .to_owned(),
        })?;
        let mut engines = Self { specs: Vec::new(), names: Vec::new(), choices: Vec::new() };
        for (spec, name, choice) in chosen {
            spec.validate()?;
            engines.specs.push(spec);
            engines.names.push(name);
            engines.choices.push(choice);
        }
        Ok(engines)
    }
}
