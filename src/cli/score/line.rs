//! What a line says.

use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use super::choice::{read_picker, read_preset, read_scorers};
use super::object::Object;
use crate::scoring::{Adapter, Candidate, Picker, Profile, ScorerSpec};

/// One line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    scorers: Option<Json>,
    preset: Option<String>,
    picker: Option<Json>,
    #[serde(deserialize_with = "read_objects")]
    pub(super) backends: Vec<BackendLine>,
    #[serde(default, deserialize_with = "read_object")]
    pub(super) request: Option<RequestLine>,
    #[serde(default)]
    pub(super) seed: u64,
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
    #[serde(default, deserialize_with = "read_object")]
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

fn read_object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<Object<T>>::deserialize(deserializer).map(|object| object.map(|Object(value)| value))
}

fn read_objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|Object(value)| value).collect())
}

fn default_path() -> String {
    "/v1/chat/completions".to_owned()
}

impl Line {
    pub(super) fn read(text: &[u8]) -> Result<Self, String> {
        let Object(line): Object<Self> =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
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
        match (&self.scorers, &self.preset, usual) {
            (Some(_), Some(_), _) => Err("give either scorers or a preset".to_owned()),
            (Some(scorers), None, _) => read_scorers(scorers),
            (None, Some(preset), _) => read_preset(preset),
            (None, None, Some(usual)) => Ok(usual.to_vec()),
            (None, None, None) => read_preset("llm-d"),
        }
    }

    pub(super) fn profile(&self, specs: &[ScorerSpec]) -> Result<Profile, String> {
        let picker = self.picker.as_ref().map_or_else(|| Ok(Picker::default()), read_picker)?;
        Profile::new(specs, picker).map_err(|error| error.to_string())
    }
}

impl BackendLine {
    /// What scorers know of it.
    pub(super) fn to_candidate(&self) -> Candidate {
        let reading = |given: Option<f64>| given.and_then(Candidate::reading);
        let (waiting, running) = (reading(self.waiting), reading(self.running));
        let pending = self.pending.filter(|pending| pending.is_finite()).unwrap_or(0.0);
        let load = waiting.zip(running).map(|(waiting, running)| waiting + running + pending);
        // The sum of very large readings is no number.
        let load = load.map(|load| load.clamp(0.0, f64::MAX));
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
            load,
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
