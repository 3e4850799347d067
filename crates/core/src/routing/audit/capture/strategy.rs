//! A strategy with all its parameters, as JSON.

use std::collections::BTreeMap;

use penstock_config::{RoutingConfig, Strategy, Weights};
use penstock_scoring::{Params, Picker, PrefixParams, Profile, ScorerSpec, Value, normalize};
use serde::{Deserialize, Serialize};

use crate::routing::Router;
use crate::routing::audit::capture::CaptureError;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::routing::audit) struct StrategyRecord {
    pub(in crate::routing::audit) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights: Option<WeightsRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    scorers: Vec<ScorerRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    picker: Option<PickerRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightsRecord {
    priority: u32,
    load: u32,
    latency: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScorerRecord {
    name: String,
    weight: f64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    params: BTreeMap<String, Param>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Param {
    Number(f64),
    Text(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PickerRecord {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
}

impl StrategyRecord {
    /// Records a strategy of a router.
    pub(in crate::routing::audit) fn of(router: &Router, strategy: Strategy) -> Self {
        let Weights { priority, load, latency } = *router.weights();
        let weighted = router.weighted_in(strategy);
        let specs = weighted.map_or(&[][..], |weighted| weighted.specs());
        Self {
            name: strategy.name().to_owned(),
            weights: (strategy == Strategy::Smart).then_some(WeightsRecord {
                priority,
                load,
                latency,
            }),
            scorers: specs.iter().map(ScorerRecord::of).collect(),
            picker: weighted.map(|weighted| PickerRecord::of(weighted.profile().picker())),
        }
    }

    /// Returns a configuration that selects this strategy.
    ///
    /// # Errors
    /// [`CaptureError`] if there is no such strategy.
    pub(in crate::routing::audit) fn to_routing(&self) -> Result<RoutingConfig, CaptureError> {
        let Some(strategy) = Strategy::from_name(&self.name) else {
            return Err(CaptureError::Strategy { given: self.name.clone() });
        };
        let mut routing = RoutingConfig { strategy, ..RoutingConfig::default() };
        if let Some(WeightsRecord { priority, load, latency }) = self.weights {
            if [priority, load, latency].iter().map(|one| u64::from(*one)).sum::<u64>() != 100 {
                return Err(CaptureError::Weights);
            }
            routing.weights = Weights { priority, load, latency };
        }
        if routing.strategy == Strategy::Weighted {
            routing.scorers = self.scorers.iter().map(ScorerRecord::to_spec).collect();
            if let Some(PickerRecord { name, temperature }) = &self.picker {
                routing.picker = Picker::from_name(name, *temperature)?;
            }
            // Only for its error: a router would do without such scorers, and replay by another
            // strategy.
            Profile::new(&routing.scorers, routing.picker)?;
            PrefixParams::of(&routing.scorers).map_err(|error| CaptureError::Prefix { error })?;
        }
        Ok(routing)
    }
}

impl ScorerRecord {
    fn of(spec: &ScorerSpec) -> Self {
        let params = spec.params.iter().map(|(name, value)| {
            let value = match value {
                Value::Number(number) => Param::Number(*number),
                Value::Text(text) => Param::Text(text.clone()),
            };
            (name.to_owned(), value)
        });
        Self { name: normalize(&spec.name), weight: spec.weight, params: params.collect() }
    }

    fn to_spec(&self) -> ScorerSpec {
        let mut params = Params::default();
        for (name, value) in &self.params {
            let value = match value {
                Param::Number(number) => Value::Number(*number),
                Param::Text(text) => Value::Text(text.clone()),
            };
            params.set(name, value);
        }
        ScorerSpec { name: self.name.clone(), weight: self.weight, params }
    }
}

impl PickerRecord {
    fn of(picker: Picker) -> Self {
        let temperature = match picker {
            Picker::Softmax { temperature } => Some(temperature),
            Picker::MaxScore | Picker::WeightedRandom | Picker::PowerOfTwo => None,
        };
        Self { name: picker.name().to_owned(), temperature }
    }
}
