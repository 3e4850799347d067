//! The model that a path names: `/v1/models/M:generateContent` of Gemini's API,
//! `/openai/deployments/M/…` of Azure's.

use penstock_api::{is_same_model, percent_decode};
use penstock_core::fleet::Topology;

/// The segments behind which a model stands.
const PARENTS: [&str; 3] = ["models", "deployments", "engines"];
/// The methods of Gemini's API, which follow the name of a model and a colon.
const VERBS: [&str; 8] = [
    "generateContent",
    "streamGenerateContent",
    "countTokens",
    "embedContent",
    "batchEmbedContents",
    "batchGenerateContent",
    "predict",
    "predictLongRunning",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathModel {
    /// The segment after the parent, without a verb.
    segment: String,
    /// All that follows the parent, without a verb: names may have slashes.
    rest: String,
}

impl PathModel {
    /// The model that `path` names.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let mut parts = path.split('/');
        parts.find(|part| {
            let part = percent_decode(part);
            PARENTS.iter().any(|parent| part.eq_ignore_ascii_case(parent))
        })?;
        let parts: Vec<String> = parts.map(percent_decode).collect();
        let first = parts.first().filter(|first| !first.is_empty())?;
        Some(Self {
            segment: without_verb(first).to_owned(),
            rest: without_verb(&parts.join("/")).to_owned(),
        })
    }

    /// The full name if the fleet has such a model, else the first segment.
    pub(crate) fn name(&self, fleet: &Topology) -> &str {
        // `models/org/name:verb` names one model, `models/name/versions` another one with a path
        // below.
        if fleet.model_id(&self.rest).is_some() { &self.rest } else { &self.segment }
    }

    /// Returns whether the path names that model.
    pub(crate) fn is(&self, name: &str, fleet: &Topology) -> bool {
        is_same_model(self.name(fleet), name)
    }
}

fn without_verb(name: &str) -> &str {
    match name.rsplit_once(':') {
        // Only known verbs: `llama3:8b` has a colon of its name.
        Some((model, verb)) if VERBS.contains(&verb) => model,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_in_paths() {
        for (path, expected) in [
            ("/v1beta/models/gemini:generateContent", Some(("gemini", "gemini"))),
            ("/v1/models/llama3:8b", Some(("llama3:8b", "llama3:8b"))),
            ("/v1/models/llama3:8b:countTokens", Some(("llama3:8b", "llama3:8b"))),
            ("/v1/model%73/org/m", Some(("org", "org/m"))),
            ("/openai/deployments/gpt/chat/completions", Some(("gpt", "gpt/chat/completions"))),
            ("/v1/models/", None),
            ("/v1/realtime", None),
        ] {
            let found = PathModel::of(path);
            let found = found.as_ref().map(|model| (&*model.segment, &*model.rest));
            assert_eq!(found, expected, "{path}");
        }
    }
}
