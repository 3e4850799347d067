//! The effective configuration as YAML, for `config dump` and `/config`. Secrets are masked before
//! they get here.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

/// A value to write as YAML.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Dump {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Dump>),
    /// A mapping, in the order in which it is shown.
    Map(Vec<(String, Dump)>),
}

impl Dump {
    /// A string that reads back unchanged: `${` is escaped, as it would start a variable.
    pub(crate) fn text(text: &str) -> Self {
        Self::Text(text.replace("${", "$${"))
    }

    /// The YAML of this value.
    pub(crate) fn to_yaml(&self) -> String {
        let text = serde_saphyr::to_string(self);
        // Only an I/O error or a non-string key could stop the serializer, and there is neither.
        debug_assert!(text.is_ok(), "a dump is written as YAML");
        text.unwrap_or_default()
    }
}

impl Serialize for Dump {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(value) => serializer.serialize_i64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}
