//! The client's objectives for its request: from header fields, or from an objective named by the
//! request, its key or its model.

use http::header::HeaderName;
use penstock_api::{OBJECTIVE, PRIORITY, SLO_TPOT, SLO_TTFT, is_unprintable};
use penstock_config::{Config, MAX_PRIORITY, ObjectiveConfig};
use penstock_scoring::Objectives;

use crate::clients::ClientIdentity;

/// An error in the objectives of a request, a 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectivesError {
    #[error("The header {field} is '{given}': expected {expected}")]
    Value { field: HeaderName, given: String, expected: &'static str },
    #[error("The header {field} is there more than once")]
    Twice { field: HeaderName },
    #[error("The header {OBJECTIVE} names '{name}': there is no such objective ({known})")]
    Unknown { name: String, known: String },
}

/// Reads the objectives of a request. Precedence: numbers in header fields, the named objective,
/// the objective of the key, that of the model. The key's `max_priority` caps the priority. `field`
/// returns the values of a header field, `model` is the fleet's name of the model.
///
/// # Errors
/// When a field has an invalid value, or more than one, or names an unknown objective.
pub fn read_objectives<'a, V: Iterator<Item = &'a [u8]>>(
    config: &Config,
    field: impl Fn(&HeaderName) -> V,
    client: Option<&ClientIdentity>,
    model: &str,
) -> Result<Objectives, ObjectivesError> {
    let text = |name: &HeaderName| text(name, field(name));
    let given = configured(config, client, model);
    let given = given.map(ObjectiveConfig::to_objectives).unwrap_or_default();
    let chosen = match text(&OBJECTIVE)? {
        Some(name) => Some(config.objectives.get(name).ok_or_else(|| unknown(config, name))?),
        None => None,
    };
    let chosen = chosen.map(ObjectiveConfig::to_objectives);
    let named = chosen.unwrap_or(given);
    let millis = |name: HeaderName| Ok(text(&name)?.map(|given| milliseconds(name, given)));
    let priority = text(&PRIORITY)?.map(priority).transpose()?;
    let chosen = priority.or(chosen.map(|chosen| chosen.priority));
    Ok(Objectives {
        ttft_ms: millis(SLO_TTFT)?.transpose()?.or(named.ttft_ms),
        tpot_ms: millis(SLO_TPOT)?.transpose()?.or(named.tpot_ms),
        priority: bounded(client, given.priority, chosen),
    })
}

/// Returns the priority of a request: the one its client chose, if its key allows that, else the
/// `given` one of the configuration. Without an allowance a client may only lower it: a higher one
/// takes its place from other clients. Without keys, all clients are trusted alike.
fn bounded(client: Option<&ClientIdentity>, given: i32, chosen: Option<i32>) -> i32 {
    let Some(client) = client else { return chosen.unwrap_or(given) };
    match (chosen, client.max_priority) {
        (chosen, Some(most)) => chosen.unwrap_or(given).min(most),
        // A key without `max_priority` may only lower it: otherwise every client would be first.
        (Some(chosen), None) => chosen.min(given),
        (None, None) => given,
    }
}

/// Returns the objective of the key, else of the model.
fn configured<'a>(
    config: &'a Config,
    client: Option<&'a ClientIdentity>,
    model: &str,
) -> Option<&'a ObjectiveConfig> {
    // The usual case: no look-up by key and by model.
    if config.objectives.is_empty() {
        return None;
    }
    let of_key = client.and_then(|client| client.objective.as_deref());
    let of_model = || config.models.get(model)?.objective.as_deref();
    config.objectives.get(of_key.or_else(of_model)?)
}

/// Returns the value of a field; `None` if absent.
fn text<'a>(
    name: &HeaderName,
    mut values: impl Iterator<Item = &'a [u8]>,
) -> Result<Option<&'a str>, ObjectivesError> {
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ObjectivesError::Twice { field: name.clone() });
    }
    let text = std::str::from_utf8(value).ok().map(str::trim);
    let text = text.filter(|text| !text.is_empty() && !text.contains(is_unprintable));
    text.map(Some).ok_or_else(|| refused(name.clone(), "", "text"))
}

fn milliseconds(name: HeaderName, given: &str) -> Result<f64, ObjectivesError> {
    let parsed = given.parse().ok().filter(|ms| Objectives::is_objective(*ms));
    parsed.ok_or_else(|| refused(name, given, Objectives::EXPECTED))
}

fn priority(given: &str) -> Result<i32, ObjectivesError> {
    let range = -MAX_PRIORITY..=MAX_PRIORITY;
    let parsed = given.parse().ok().filter(|priority| range.contains(priority));
    parsed.ok_or_else(|| refused(PRIORITY, given, "a whole number from -100 to 100"))
}

fn refused(field: HeaderName, given: &str, expected: &'static str) -> ObjectivesError {
    ObjectivesError::Value { field, given: given.to_owned(), expected }
}

fn unknown(config: &Config, name: &str) -> ObjectivesError {
    let known: Vec<&str> = config.objectives.keys().map(String::as_str).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    ObjectivesError::Unknown { name: name.to_owned(), known }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use penstock_config::Environment;

    const CONFIG: &str = "objectives:
  chat: { ttft: 500ms, tpot: 50ms, priority: 5 }
  batch: { priority: -1 }
models: { m: { objective: chat } }
auth: { keys: [{ name: nightly, key: k1, objective: batch }, { name: other, key: k2 },
  { name: capped, key: k3, max_priority: 2 }] }
backends: [http://127.0.0.1:1]
";

    fn read(fields: &[(&'static str, &'static str)], key: usize) -> Result<Objectives, String> {
        let environment = Environment::default();
        let config = Config::parse(CONFIG, "test.yaml", Path::new(""), &environment).unwrap();
        let field = |name: &HeaderName| {
            let values = fields.iter().filter(|(field, _)| field == name);
            values.map(|(_, value)| value.as_bytes()).collect::<Vec<_>>().into_iter()
        };
        let client = ClientIdentity::of_key(&config.auth.keys[key]);
        read_objectives(&config, field, Some(&client), "M:latest")
            .map_err(|error| error.to_string())
    }

    #[test]
    fn fields_come_before_names_and_keys_before_models() {
        let chat = Objectives { ttft_ms: Some(500.0), tpot_ms: Some(50.0), priority: 5 };
        assert_eq!(read(&[], 1).unwrap(), chat);
        assert_eq!(read(&[], 0).unwrap().priority, -1);
        let chosen = read(&[("x-gateway-inference-objective", "chat")], 0).unwrap();
        assert_eq!(chosen, Objectives { priority: -1, ..chat }, "its priority is not raised");
        let fields = [("x-gateway-inference-objective", "chat"), ("x-slo-ttft-ms", "250.5")];
        assert_eq!(read(&fields, 1).unwrap(), Objectives { ttft_ms: Some(250.5), ..chat });
        assert_eq!(read(&[("x-priority", "-7")], 1).unwrap().priority, -7);
    }

    #[test]
    fn keys_bound_the_priority_of_their_requests() {
        assert_eq!(read(&[("x-priority", "100")], 2).unwrap().priority, 2);
        assert_eq!(read(&[("x-gateway-inference-objective", "chat")], 2).unwrap().priority, 2);
        let raised = |key| read(&[("x-priority", "100")], key).unwrap().priority;
        assert_eq!((raised(0), raised(1)), (-1, 5), "no more than without asking");
        assert_eq!(read(&[], 2).unwrap().priority, 2, "that of the model is 5");
        assert_eq!(read(&[("x-priority", "-3")], 2).unwrap().priority, -3);
    }

    #[test]
    fn other_values_are_refused() {
        for (name, value) in [
            ("x-slo-ttft-ms", "0"),
            ("x-slo-ttft-ms", "-5"),
            ("x-slo-ttft-ms", "nan"),
            ("x-slo-ttft-ms", "inf"),
            ("x-slo-tpot-ms", "fast"),
            ("x-slo-tpot-ms", ""),
            ("x-priority", "1.5"),
            ("x-priority", "101"),
            ("x-gateway-inference-objective", "gold"),
        ] {
            let message = read(&[(name, value)], 1).unwrap_err();
            assert!(message.contains(name), "{message}");
        }
        let twice = read(&[("x-priority", "1"), ("x-priority", "high")], 1).unwrap_err();
        assert_eq!(twice, "The header x-priority is there more than once");
    }
}
