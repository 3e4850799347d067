//! The effective configuration as YAML, for `config dump` and `/config`. Secrets are masked before
//! they get here.

use serde::{Serialize, Serializer};

/// A value to write as YAML.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Dump {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Dump>),
    /// A mapping, in the order in which it is shown.
    #[serde(serialize_with = "as_mapping")]
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

fn as_mapping<S: Serializer>(entries: &[(String, Dump)], out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(entries.iter().map(|(key, value)| (key, value)))
}
