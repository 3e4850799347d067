//! The names of the configuration that keys refer to. A budget that does not exist counts nothing,
//! so a misspelled name must not pass unnoticed.

use std::collections::BTreeSet;

use penstock_config::Config;
use serde_json::Value;

use super::KeyStore;

/// The most unknown names that are logged.
const MAX_LOGGED: usize = 20;

/// A name that the configuration does not have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("'{attribute}' names '{}', which the configuration does not have", name.escape_debug())]
pub struct UnknownName {
    attribute: &'static str,
    name: String,
}

/// Returns the objective, the budget and the policies of a key's description, or the issuer of a
/// revoked token's, that the configuration does not have.
pub fn unknown_names(described: &Value, config: &Config) -> Vec<UnknownName> {
    let text = |attribute: &str| described.get(attribute).and_then(Value::as_str);
    let policies = described.get("policies").and_then(Value::as_array).into_iter().flatten();
    let all = policies.filter_map(Value::as_str).map(|name| ("policies", name));
    let single =
        ["objective", "budget", "issuer"].map(|attribute| Some((attribute, text(attribute)?)));
    let all = all.chain(single.into_iter().flatten());
    all.filter_map(|(attribute, name)| unknown(attribute, name, config)).collect()
}

fn unknown(attribute: &'static str, name: &str, config: &Config) -> Option<UnknownName> {
    let is_known = match attribute {
        "objective" => config.objectives.contains_key(name),
        "issuer" => config.auth.jwt.iter().any(|jwt| jwt.issuer == name),
        "budget" => config.budgets.iter().any(|budget| budget.name == name),
        _ => config.policies.iter().any(|policy| policy.name == name),
    };
    (!is_known).then(|| UnknownName { attribute, name: name.to_owned() })
}

impl KeyStore {
    /// Logs the names that keys refer to and a configuration does not have.
    pub fn warn_of_unknown_names(&self, config: &Config) {
        let mut found = BTreeSet::new();
        for key in self.table().iter() {
            let client = &key.client;
            let single = [("objective", &client.objective), ("budget", &client.budget)];
            let single = single.into_iter().filter_map(|(kind, name)| Some((kind, name.as_ref()?)));
            let all = client.policies.iter().map(|name| ("policies", name)).chain(single);
            found.extend(all.filter_map(|(kind, name)| unknown(kind, name, config)));
        }
        for name in found.iter().take(MAX_LOGGED) {
            tracing::warn!("auth.store: a key's {name}");
        }
        if found.len() > MAX_LOGGED {
            let count = found.len();
            tracing::warn!(count, "auth.store: keys refer to more names that do not exist");
        }
    }
}
