//! The allowed values of each setting, as data: the source of the JSON Schema, of the environment
//! variables and of the test that every option is documented.

use serde_json::{Value, json};

use super::dump::Dump;

/// The allowed values of a setting.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    /// A single value, as a JSON Schema of it.
    Scalar(Value),
    List(Box<Shape>),
    /// A mapping whose keys the user chooses.
    Table(Box<Shape>),
    /// A mapping with a fixed set of keys.
    Section(SectionShape),
    Either(Vec<Shape>),
}

/// The keys of a section.
#[derive(Debug, Clone)]
pub(crate) struct SectionShape {
    pub(crate) about: &'static str,
    pub(crate) required: &'static [&'static str],
    /// True if it is optional although it has required keys.
    pub(crate) is_optional: bool,
    pub(crate) fields: Vec<Field>,
}

/// One key of a section.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) default: Dump,
    pub(crate) shape: Shape,
}

impl Shape {
    /// A string. YAML parses an unquoted one as a number or boolean, so these are allowed, too.
    pub(crate) fn text() -> Self {
        Self::Scalar(json!({"type": ["string", "number", "boolean"]}))
    }

    /// A string that matches a pattern.
    pub(crate) fn pattern(pattern: &str) -> Self {
        Self::Scalar(json!({"type": "string", "pattern": pattern}))
    }

    pub(crate) fn integer(minimum: u64, maximum: u64) -> Self {
        Self::Scalar(json!({"type": "integer", "minimum": minimum, "maximum": maximum}))
    }

    /// One of a few names. `true` and `false` are booleans in YAML, and YAML 1.1 parsers read `off`
    /// as false.
    pub(crate) fn names(names: impl Iterator<Item = &'static str>) -> Self {
        let mut words: Vec<Value> = names.map(Value::from).collect();
        for (word, truth) in [("true", true), ("false", false), ("off", false)] {
            if words.contains(&json!(word)) {
                words.push(json!(truth));
            }
        }
        Self::Scalar(json!({"enum": words}))
    }

    /// Allows this shape or one word. YAML 1.1 parsers read `off` as false, so false is allowed for
    /// it.
    pub(crate) fn or_word(self, word: &str) -> Self {
        let words = if word == "off" { json!([word, false]) } else { json!([word]) };
        Self::Either(vec![Self::Scalar(json!({"enum": words})), self])
    }

    /// Returns whether a single string can express it, as in an environment variable.
    pub(crate) fn is_plain(&self) -> bool {
        match self {
            Self::Scalar(_) => true,
            Self::Either(shapes) => shapes.iter().any(Self::is_plain),
            Self::List(_) | Self::Table(_) | Self::Section(_) => false,
        }
    }

    /// The JSON Schema of this shape.
    pub(crate) fn to_schema(&self) -> Value {
        match self {
            Self::Scalar(schema) => {
                // A key without a value keeps its default.
                json!({"anyOf": [schema, {"$ref": "#/$defs/variable"}, {"type": "null"}]})
            }
            Self::List(item) => json!({"type": ["array", "null"], "items": item.to_schema()}),
            Self::Table(value) => {
                json!({"type": ["object", "null"], "additionalProperties": value.to_schema()})
            }
            Self::Section(section) => section.to_schema(),
            Self::Either(shapes) => {
                json!({"anyOf": shapes.iter().map(Self::to_schema).collect::<Vec<_>>()})
            }
        }
    }
}

impl SectionShape {
    fn to_schema(&self) -> Value {
        let mut properties = serde_json::Map::new();
        for field in &self.fields {
            let mut schema = field.shape.to_schema();
            if let Some(entries) = schema.as_object_mut() {
                entries.insert("description".to_owned(), json!(one_line(field.about)));
                // The defaults of a section are those of its keys.
                if !matches!(field.default, Dump::Null | Dump::Map(_)) {
                    entries.insert("default".to_owned(), json!(field.default));
                }
            }
            properties.insert(field.name.to_owned(), schema);
        }
        let may_be_null = self.required.is_empty() || self.is_optional;
        json!({
            "type": if may_be_null { json!(["object", "null"]) } else { json!("object") },
            "description": one_line(self.about),
            "properties": properties,
            "required": self.required,
            "additionalProperties": false,
        })
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
