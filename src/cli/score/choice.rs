//! Reads the choice of backends in a line: scorers or a preset, and a picker. Parsed by hand, so
//! that an error message names the path of the invalid value.

use penstock_config::nearest;
use penstock_scoring::{PRESETS, Picker, Preset, ScorerSpec, Value, parse_scorers};
use serde_json::{Map, Value as Json};

/// The scorers of a list or of one text.
pub(super) fn read_scorers(given: &Json) -> Result<Vec<ScorerSpec>, String> {
    match given {
        Json::String(text) => parse_scorers(text).map_err(|reason| format!("scorers: {reason}")),
        Json::Array(list) => {
            list.iter().enumerate().map(|(index, one)| read_scorer(index, one)).collect()
        }
        _ => Err("scorers: expected a list, or a text as in \"prefix-affinity:3,queue-depth:2\""
            .to_owned()),
    }
}

fn read_scorer(index: usize, given: &Json) -> Result<ScorerSpec, String> {
    let place = format!("scorers[{index}]");
    let Json::Object(fields) = given else {
        return Err(format!("{place}: expected an object with a name"));
    };
    let name = read_name(fields, &place)?;
    if !fields.contains_key("weight") {
        return Err(format!("{place}: 'weight' is missing"));
    }
    // Replaced below: the fields have a weight.
    let mut spec = ScorerSpec::new(name, f64::NAN);
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("name", _) => {}
            ("weight", Json::Number(number)) => {
                spec.weight = number.as_f64().unwrap_or(f64::NAN);
            }
            ("weight", _) => return Err(format!("{place}.weight: expected a number")),
            (_, Json::Number(number)) => {
                spec.params.set(key, Value::Number(number.as_f64().unwrap_or(f64::NAN)));
            }
            (_, Json::String(text)) => spec.params.set(key, Value::Text(text.clone())),
            _ => return Err(format!("{place}.{key}: expected a number or a text")),
        }
    }
    Ok(spec)
}

fn read_name<'a>(fields: &'a Map<String, Json>, place: &str) -> Result<&'a str, String> {
    match fields.get("name") {
        None => Err(format!("{place}: 'name' is missing")),
        Some(Json::String(name)) => Ok(name),
        Some(_) => Err(format!("{place}.name: expected a text")),
    }
}

pub(super) fn read_preset(name: &str) -> Result<Vec<ScorerSpec>, String> {
    let Some(preset) = Preset::find(name) else {
        let known: Vec<_> = PRESETS.iter().map(|one| one.name).collect();
        return Err(format!("unknown preset '{name}'; there is {}", known.join(", ")));
    };
    Ok(preset.specs())
}

/// A picker by its name, or with its temperature.
pub(super) fn read_picker(given: &Json) -> Result<Picker, String> {
    let (name, temperature) = match given {
        Json::String(name) => (name.as_str(), None),
        Json::Object(fields) => (read_name(fields, "picker")?, read_temperature(fields)?),
        _ => {
            return Err(
                "picker: expected a name, or an object with a name and a temperature".to_owned()
            );
        }
    };
    Picker::from_name(name, temperature).map_err(|error| format!("picker: {error}"))
}

fn read_temperature(fields: &Map<String, Json>) -> Result<Option<f64>, String> {
    const KEYS: [&str; 2] = ["name", "temperature"];
    if let Some(other) = fields.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let near = nearest(other, KEYS.into_iter());
        let near = near.map_or_else(String::new, |word| format!(": did you mean '{word}'?"));
        return Err(format!("picker: unknown key '{other}'{near}"));
    }
    match fields.get("temperature") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Number(number)) => Ok(number.as_f64()),
        Some(_) => Err("picker.temperature: expected a number".to_owned()),
    }
}
