//! `routing.scorers`, `routing.preset` and `routing.picker`: the parts of the weighted strategy.

use penstock_scoring::{
    PICKERS, PRESETS, Params, Picker, Preset, Profile, SCORERS, ScorerSpec, Value, parse_scorers,
};
use serde_json::json;

use crate::syntax::document::{Content, Entry, Node};
use crate::syntax::dump::Dump;
use crate::syntax::errors::Problem;
use crate::syntax::reader::Reader;
use crate::syntax::setting::Setting;
use crate::syntax::shape::Shape;
use crate::syntax::suggest::nearest;

/// A list of `{name, weight, …}`, or one string: `name:weight,name:weight`. Validated as a whole.
pub(crate) struct Scorers;

impl Setting for Scorers {
    type Value = Vec<ScorerSpec>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        let specs = match &node.content {
            Content::Scalar(text) => parse_scorers(text),
            Content::List(items) => items
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    reader.within(format!("[{index}]"), |reader| read_one(item, reader))
                })
                .collect::<Option<Vec<_>>>()
                .map(Ok)?,
            Content::Null | Content::Map(_) => {
                return reader.refuse_kind(node, "a list of scorers");
            }
        };
        let checked = specs.and_then(|specs| {
            // An empty list is as if it were not there; a profile needs at least one.
            if specs.is_empty() {
                return Ok(specs);
            }
            Profile::new(&specs, Picker::default()).map_err(|error| error.to_string())?;
            Ok(specs.into_iter().map(ScorerSpec::in_one_spelling).collect())
        });
        match checked {
            Ok(specs) => Some(specs),
            Err(reason) => reader.refuse(node, |key| Problem::Scoring { key, reason }),
        }
    }

    fn dump(value: &Self::Value) -> Dump {
        let one = |spec: &ScorerSpec| {
            let own = [
                ("name".to_owned(), Dump::text(&spec.name)),
                ("weight".to_owned(), Dump::Float(spec.weight)),
            ];
            let params = spec.params.iter().map(|(name, value)| {
                let value = match value {
                    Value::Number(number) => Dump::Float(*number),
                    Value::Text(text) => Dump::text(text),
                };
                (name.to_owned(), value)
            });
            Dump::Map(own.into_iter().chain(params).collect())
        };
        Dump::List(value.iter().map(one).collect())
    }

    fn shape() -> Shape {
        let names: Vec<_> = SCORERS.iter().map(|row| row.name).collect();
        let one = json!({
            "type": "object",
            "required": ["name", "weight"],
            "properties": {
                "name": { "type": "string", "examples": names },
                "weight": { "type": "number", "exclusiveMinimum": 0 },
            },
            "additionalProperties": { "type": ["number", "string"] },
        });
        Shape::Either(vec![Shape::List(Box::new(Shape::Scalar(one))), Shape::text()])
    }
}

fn read_one(node: &Node, reader: &mut Reader) -> Option<ScorerSpec> {
    let Content::Map(entries) = &node.content else {
        return reader.refuse_kind(node, "a mapping with 'name' and 'weight'");
    };
    let (mut name, mut weight, mut params) = (None, None, Params::default());
    for entry in entries {
        let step = format!(".{}", entry.key);
        reader.within(step, |reader| {
            let text = reader.scalar(&entry.node, "a number or a text")?;
            // Parameters differ by scorer, so that only the table of scorers knows their types.
            let number = text.trim().parse::<f64>();
            match (entry.key.as_str(), number) {
                ("name", _) => name = Some(text.trim().to_owned()),
                ("weight", Ok(number)) => weight = Some(number),
                ("weight", Err(_)) => return reader.refuse_value(&entry.node, text, "a number"),
                (key, Ok(number)) => params.set(key, Value::Number(number)),
                (key, Err(_)) => params.set(key, Value::Text(text.to_owned())),
            }
            Some(())
        })?;
    }
    let name = required(name.filter(|name| !name.is_empty()), "name", node, reader)?;
    let weight = required(weight, "weight", node, reader)?;
    Some(ScorerSpec { name, weight, params })
}

fn required<T>(given: Option<T>, key: &str, node: &Node, reader: &mut Reader) -> Option<T> {
    if given.is_none() {
        return reader.refuse(node, |section| Problem::MissingKey { key: key.into(), section });
    }
    given
}

pub(crate) struct PresetName;

impl Setting for PresetName {
    type Value = Option<&'static str>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        if matches!(node.content, Content::Null) {
            return Some(None);
        }
        let given = reader.scalar(node, "the name of a preset")?;
        match Preset::find(given) {
            Some(preset) => Some(Some(preset.name)),
            None => reader.refuse_name(node, given, PRESETS.iter().map(|preset| preset.name)),
        }
    }

    fn dump(value: &Self::Value) -> Dump {
        value.map_or(Dump::Null, Dump::text)
    }

    fn shape() -> Shape {
        Shape::names(PRESETS.iter().map(|preset| preset.name))
    }
}

/// The name of a picker, or `{name, temperature}`.
pub(crate) struct PickerSetting;

impl Setting for PickerSetting {
    type Value = Picker;

    fn read(node: &Node, reader: &mut Reader) -> Option<Picker> {
        let (name, temperature) = match &node.content {
            Content::Scalar(text) => (text.clone(), None),
            Content::Map(entries) => {
                refuse_others(entries, reader)?;
                let name = reader.scalar(node.at("name"), "the name of a picker")?.to_owned();
                let temperature = match node.entry("temperature") {
                    None => None,
                    Some(entry) => {
                        let text = reader.scalar(&entry.node, "a number")?;
                        match text.trim().parse() {
                            Ok(number) => Some(number),
                            Err(_) => return reader.refuse_value(&entry.node, text, "a number"),
                        }
                    }
                };
                (name, temperature)
            }
            Content::Null | Content::List(_) => {
                return reader.refuse_kind(node, "the name of a picker");
            }
        };
        match Picker::from_name(&name, temperature) {
            Ok(picker) => Some(picker),
            Err(error) => {
                let reason = error.to_string();
                reader.refuse(node, |key| Problem::Scoring { key, reason })
            }
        }
    }

    fn dump(value: &Picker) -> Dump {
        match value {
            Picker::Softmax { temperature } => Dump::Map(vec![
                ("name".to_owned(), Dump::text(value.name())),
                ("temperature".to_owned(), Dump::Float(*temperature)),
            ]),
            Picker::MaxScore | Picker::WeightedRandom | Picker::PowerOfTwo => {
                Dump::text(value.name())
            }
        }
    }

    fn shape() -> Shape {
        let full = json!({
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": { "enum": PICKERS },
                "temperature": { "type": ["number", "null"], "minimum": 0 },
            },
            "additionalProperties": false,
        });
        Shape::Either(vec![Shape::names(PICKERS.into_iter()), Shape::Scalar(full)])
    }
}

/// Refuses keys that a picker does not have.
fn refuse_others(entries: &[Entry], reader: &mut Reader) -> Option<()> {
    const KEYS: [&str; 2] = ["name", "temperature"];
    let mut others = entries.iter().filter(|entry| !KEYS.contains(&entry.key.as_str())).peekable();
    let is_fit = others.peek().is_none();
    for entry in others {
        let suggestion = nearest(&entry.key, KEYS.into_iter()).map(str::to_owned);
        let (key, section, suggestions) =
            (entry.key.clone(), reader.path(), suggestion.into_iter().collect());
        reader.fault(&entry.place, Problem::UnknownKey { key, section, suggestions });
    }
    is_fit.then_some(())
}
