//! What a line says.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::scoring::{
    Adapter, Candidate, Params, Picker, Preset, Profile, ScorerSpec, Value, parse_scorers,
};

/// One line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub(super) scorers: Option<Scorers>,
    pub(super) preset: Option<String>,
    pub(super) picker: Option<PickerText>,
    pub(super) backends: Vec<BackendLine>,
    pub(super) request: Option<RequestLine>,
    #[serde(default)]
    pub(super) seed: u64,
}

/// Scorers as a list, or in one line of text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Scorers {
    Text(String),
    List(Vec<ScorerLine>),
}

/// A scorer with its parameters.
#[derive(Debug, Deserialize)]
pub(super) struct ScorerLine {
    name: String,
    #[serde(default = "one")]
    weight: f64,
    #[serde(flatten)]
    params: BTreeMap<String, Json>,
}

fn one() -> f64 {
    1.0
}

/// A picker by its name, or with its temperature.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum PickerText {
    Name(String),
    Full { name: String, temperature: Option<f64> },
}

/// The readings of one backend.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackendLine {
    pub(super) name: String,
    waiting: Option<f64>,
    running: Option<f64>,
    pending: Option<f64>,
    in_flight: Option<f64>,
    kv_utilization: Option<f64>,
    tokens_in_flight: Option<f64>,
    prefill_tokens: Option<f64>,
    priority: Option<u32>,
    latency_ms: Option<f64>,
    adapter: Option<AdapterText>,
    prefix: Option<PrefixLine>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AdapterText {
    Active,
    FreeSlot,
    Waiting,
    Absent,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefixLine {
    matched: u32,
    total: u32,
}

/// The request that is to be placed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestLine {
    #[serde(default = "default_path")]
    pub(super) path: String,
    pub(super) body: String,
    pub(super) session: Option<String>,
}

fn default_path() -> String {
    "/v1/chat/completions".to_owned()
}

impl Line {
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let line: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if line.backends.is_empty() {
            return Err("there are no backends".to_owned());
        }
        let mut names: Vec<&str> = line.backends.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        let pairs = names.iter().zip(names.iter().skip(1));
        if let Some((twice, _)) = pairs.into_iter().find(|(one, next)| one == next) {
            return Err(format!("backend '{twice}' is listed twice"));
        }
        Ok(line)
    }

    /// The scorers it asks for; where it names none the `usual` ones, else 3 : 2 : 2 of llm-d.
    pub(super) fn specs(&self, usual: Option<&[ScorerSpec]>) -> Result<Vec<ScorerSpec>, String> {
        match (&self.scorers, &self.preset) {
            (None, None) if usual.is_some() => Ok(usual.unwrap_or_default().to_vec()),
            (Some(_), Some(_)) => Err("give either scorers or a preset".to_owned()),
            (Some(Scorers::Text(text)), None) => parse_scorers(text),
            (Some(Scorers::List(list)), None) => list.iter().map(ScorerLine::to_spec).collect(),
            (None, preset) => {
                let name = preset.as_deref().unwrap_or("llm-d");
                let known = || crate::scoring::PRESETS.iter().map(|one| one.name);
                let unknown = || {
                    let known: Vec<_> = known().collect();
                    format!("unknown preset '{name}'; there is {}", known.join(", "))
                };
                Ok(Preset::find(name).ok_or_else(unknown)?.specs())
            }
        }
    }

    pub(super) fn profile(&self, specs: &[ScorerSpec]) -> Result<Profile, String> {
        let picker = match &self.picker {
            None => Ok(Picker::default()),
            Some(PickerText::Name(name)) => Picker::from_name(name, None),
            Some(PickerText::Full { name, temperature }) => Picker::from_name(name, *temperature),
        };
        let picker = picker.map_err(|error| error.to_string())?;
        Profile::new(specs, picker).map_err(|error| error.to_string())
    }
}

impl ScorerLine {
    fn to_spec(&self) -> Result<ScorerSpec, String> {
        let mut params = Params::default();
        for (name, value) in &self.params {
            let value = match value {
                Json::Number(number) => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
                Json::String(text) => Value::Text(text.clone()),
                _ => return Err(format!("'{name}' must be a number or a text")),
            };
            params.set(name, value);
        }
        Ok(ScorerSpec { name: self.name.clone(), weight: self.weight, params })
    }
}

impl BackendLine {
    /// What scorers know of it.
    pub(super) fn to_candidate(&self) -> Candidate {
        let reading = |given: Option<f64>| given.and_then(Candidate::reading);
        let (waiting, running) = (reading(self.waiting), reading(self.running));
        let pending = self.pending.filter(|pending| pending.is_finite()).unwrap_or(0.0);
        let load = waiting.zip(running).map(|(waiting, running)| waiting + running + pending);
        let adapter = self.adapter.map_or(Adapter::Unknown, |adapter| match adapter {
            AdapterText::Active => Adapter::Active,
            AdapterText::FreeSlot => Adapter::FreeSlot,
            AdapterText::Waiting => Adapter::Waiting,
            AdapterText::Absent => Adapter::Absent,
        });
        let prefix = self.prefix.unwrap_or(PrefixLine { matched: 0, total: 0 });
        Candidate {
            waiting,
            running,
            load: load.map(|load| load.max(0.0)),
            kv_utilization: reading(self.kv_utilization).map(|part| part.min(1.0)),
            in_flight: reading(self.in_flight.or(self.pending)).unwrap_or(f64::NAN),
            tokens_in_flight: reading(self.tokens_in_flight).unwrap_or(f64::NAN),
            prefill_tokens: reading(self.prefill_tokens).unwrap_or(0.0),
            matched_blocks: prefix.matched,
            prompt_blocks: prefix.total,
            priority: self.priority.unwrap_or(0),
            latency_ms: reading(self.latency_ms),
            adapter,
            ..Candidate::new(&self.name)
        }
    }

    /// Whether the line says itself what the backend has cached.
    pub(super) fn has_prefix(&self) -> bool {
        self.prefix.is_some()
    }
}
