//! One line of `penstock score`: its JSON, and the members that it must have.

use std::fmt;
use std::marker::PhantomData;

use penstock_scoring::{
    Candidate, Picker, Profile, READINGS, ReadingRow, ScorerSpec, known_reading,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

use super::choice::{read_picker, read_preset, read_scorers};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScoreLine {
    scorers: Option<Json>,
    preset: Option<String>,
    picker: Option<Json>,
    pub(super) backends: Vec<BackendLine>,
    #[serde(default, deserialize_with = "read_object")]
    pub(super) request: Option<RequestLine>,
    #[serde(default)]
    pub(super) seed: u64,
}

/// The readings of one backend: its name, the keys of [`READINGS`], and two further values.
#[derive(Debug)]
pub(super) struct BackendLine {
    pub(super) name: String,
    /// Requests dispatched since the engine was scraped.
    pending: Option<f64>,
    /// Its cached prefix; if it is not given, the prefix index of the process is used.
    prefix: Option<PrefixLine>,
    readings: Candidate,
}

impl<'de> Deserialize<'de> for BackendLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BackendVisitor)
    }
}

struct BackendVisitor;

impl<'de> Visitor<'de> for BackendVisitor {
    type Value = BackendLine;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<BackendLine, A::Error> {
        let (mut name, mut pending, mut prefix) = (None, None, None);
        // Counts that are not given are unknown, not 0.
        let mut readings =
            Candidate { in_flight: f64::NAN, tokens_in_flight: f64::NAN, ..Candidate::default() };
        let mut given: Vec<String> = Vec::new();
        while let Some(key) = fields.next_key::<String>()? {
            // Otherwise the last one would win, and the error would show nowhere.
            if given.contains(&key) {
                return Err(A::Error::custom(format!("duplicate field `{key}`")));
            }
            match key.as_str() {
                "name" => name = Some(fields.next_value::<String>()?),
                "pending" => pending = fields.next_value()?,
                "prefix" => {
                    let object: Option<Object<PrefixLine>> = fields.next_value()?;
                    prefix = object.map(|Object(prefix)| prefix);
                }
                _ => {
                    let named = |row: &&ReadingRow| row.score.is_some_and(|one| one.key == key);
                    let row = READINGS.iter().find(named).ok_or_else(|| unknown_key(&key))?;
                    let value: Json = fields.next_value()?;
                    if !(row.set)(&mut readings, &value) {
                        return Err(A::Error::custom(format!("'{key}' cannot be {value}")));
                    }
                }
            }
            given.push(key);
        }
        let name = name.ok_or_else(|| A::Error::missing_field("name"))?;
        Ok(BackendLine { name, pending, prefix, readings })
    }
}

fn unknown_key<E: serde::de::Error>(key: &str) -> E {
    let rows = READINGS.iter().filter_map(|row| row.score.map(|one| one.key));
    let known = ["name", "pending", "prefix"].into_iter().chain(rows);
    let known: Vec<String> = known.map(|key| format!("`{key}`")).collect();
    E::custom(format!("unknown field `{key}`, expected one of {}", known.join(", ")))
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefixLine {
    matched: u32,
    total: u32,
}

/// The request to place.
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

fn default_path() -> String {
    "/v1/chat/completions".to_owned()
}

impl ScoreLine {
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

    /// Returns the scorers that the line names; without any the `usual` ones, else 3 : 2 : 2 of
    /// llm-d.
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
    /// Returns the readings in the form that scorers use.
    pub(super) fn to_candidate(&self) -> Candidate {
        let readings = &self.readings;
        let pending = self.pending.filter(|pending| pending.is_finite());
        let both = readings.waiting.zip(readings.running);
        let load = both.map(|(waiting, running)| waiting + running + pending.unwrap_or(0.0));
        // What is pending is in flight, whatever else is.
        let in_flight = if readings.in_flight.is_nan() { pending } else { None };
        Candidate {
            key: Candidate::key_of(&self.name),
            // The sum of very large readings may be infinite.
            load: load.map(|load| load.clamp(0.0, f64::MAX)),
            kv_utilization: readings.kv_utilization.map(|part| part.min(1.0)),
            in_flight: in_flight.and_then(known_reading).unwrap_or(readings.in_flight),
            prefill_tokens: known_reading(readings.prefill_tokens).unwrap_or(0.0),
            matched_blocks: self.prefix.map_or(0, |prefix| prefix.matched),
            prompt_blocks: self.prefix.map_or(0, |prefix| prefix.total),
            ..*readings
        }
    }

    /// Returns whether the line gives the cached prefix of the backend.
    pub(super) fn has_prefix(&self) -> bool {
        self.prefix.is_some()
    }
}

/// A value that was written as a JSON object: derived `Deserialize` also accepts a list of the
/// values.
#[derive(Debug, Clone, Copy)]
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}
