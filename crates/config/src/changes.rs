//! The differences between two configurations, named as an operator would: `routing.strategy`,
//! `backends[gpu-a].priority`. Secrets are masked.

use serde::Serialize;
use serde_json::Value;

use crate::sections::Config;
use crate::sections::backends::BackendConfig;
use crate::syntax::dump::Dump;
use crate::syntax::setting::Setting;

/// Settings that need a restart. A name covers everything below it.
const READ_AT_START: [&str; 13] = [
    "auth.store",
    "auth.max_keys",
    "auth.max_revoked_tokens",
    "server.listen",
    "server.threads",
    "admin.listen",
    "log.format",
    "access_log",
    "ledger.path",
    "shared_state",
    "tracing.otlp_endpoint",
    "tracing.service_name",
    "limits.metric_models",
];
/// Shown in place of a secret.
const MASK: &str = "***";

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The path of the setting.
    pub setting: String,
    pub from: Value,
    pub to: Value,
}

/// The differences between two configurations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Changed settings, including those of backends that exist in both configurations.
    pub settings: Vec<Change>,
    /// The names of new backends.
    pub added: Vec<String>,
    /// The names of removed backends.
    pub removed: Vec<String>,
}

impl Changes {
    /// The changes from `old` to `new`.
    pub fn between(old: &Config, new: &Config) -> Self {
        let mut changes = Self::default();
        let (Dump::Map(before), Dump::Map(after)) = (Config::dump(old), Config::dump(new)) else {
            return changes;
        };
        // A dump lists every section, always in the same order.
        for ((section, before), (_, after)) in before.iter().zip(&after) {
            // Compared by name below: a new first backend would otherwise change all positions.
            if section != "backends" {
                changes.compare(section, before, after);
            }
        }
        // Dumps show masks, so a changed secret is compared by its value.
        if old.auth != new.auth && !changes.has_below("auth") {
            changes.add_secret("auth.keys".to_owned());
        }
        if old.admin.token != new.admin.token && !changes.has_below("admin.token_file") {
            changes.add_secret("admin.token_file".to_owned());
        }
        changes.compare_prompts(old, new);
        changes.compare_backends(&old.backends, &new.backends);
        changes
    }

    /// The changed settings that need a restart.
    pub fn needing_restart(&self) -> Vec<&str> {
        let names = self.settings.iter().map(|change| change.setting.as_str());
        names.filter(|name| READ_AT_START.iter().any(|start| is_below(name, start))).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.added.is_empty() && self.removed.is_empty()
    }

    /// Compares the texts of prompts: a file may have a different text under the same name.
    fn compare_prompts(&mut self, old: &Config, new: &Config) {
        let (old, new) = (&old.ensembles, &new.ensembles);
        for (name, before, after) in [
            ("ensembles.critique_prompt", &old.critique_prompt, &new.critique_prompt),
            ("ensembles.final_prompt", &old.final_prompt, &new.final_prompt),
        ] {
            if before != after && !self.has_below(name) {
                self.add_secret(name.to_owned());
            }
        }
    }

    fn compare_backends(&mut self, old: &[BackendConfig], new: &[BackendConfig]) {
        for before in old {
            let name = &before.name;
            let Some(after) = new.iter().find(|one| one.name == *name) else {
                self.removed.push(name.clone());
                continue;
            };
            let path = format!("backends[{name}]");
            // Settings of a backend repeat global ones: `drop_inherited` compares with those found
            // so far.
            let global = self.settings.len();
            self.compare(&path, &BackendConfig::dump(before), &BackendConfig::dump(after));
            self.drop_inherited(&path, global);
            // The dumps show a key that was set or removed, so that change is already listed.
            let is_listed = ["api_key", "api_key_file"]
                .iter()
                .any(|key| self.has_below(&format!("{path}.{key}")));
            if before.api_key != after.api_key && !is_listed {
                self.add_secret(format!("{path}.api_key"));
            }
        }
        let added = new.iter().filter(|one| !old.iter().any(|before| before.name == one.name));
        self.added.extend(added.map(|one| one.name.clone()));
    }

    /// Drops changes of the global `health` that a backend inherits, so that they are not reported
    /// twice.
    fn drop_inherited(&mut self, path: &str, from: usize) {
        let (known, mine) = self.settings.split_at(from);
        let is_inherited = |change: &Change| {
            let short = change.setting.strip_prefix(path).and_then(|rest| rest.strip_prefix('.'));
            known.iter().any(|other| {
                Some(other.setting.as_str()) == short
                    && (&other.from, &other.to) == (&change.from, &change.to)
            })
        };
        let mine: Vec<Change> = mine.iter().filter(|one| !is_inherited(one)).cloned().collect();
        self.settings.truncate(from);
        self.settings.extend(mine);
    }

    fn compare(&mut self, path: &str, before: &Dump, after: &Dump) {
        if before == after {
            return;
        }
        let (Dump::Map(old), Dump::Map(new)) = (before, after) else {
            let (from, to) = (to_value(before), to_value(after));
            self.settings.push(Change { setting: path.to_owned(), from, to });
            return;
        };
        let nothing = Dump::Null;
        for (key, value) in old {
            self.compare(&format!("{path}.{key}"), value, find(new, key).unwrap_or(&nothing));
        }
        // The keys that both have were compared above.
        for (key, value) in new.iter().filter(|(key, _)| find(old, key).is_none()) {
            self.compare(&format!("{path}.{key}"), &nothing, value);
        }
    }

    fn has_below(&self, path: &str) -> bool {
        self.settings.iter().any(|change| is_below(&change.setting, path))
    }

    fn add_secret(&mut self, setting: String) {
        // Alike on both sides: a report may show that a secret has changed, and nothing of it.
        let mask = || Value::String(MASK.to_owned());
        self.settings.push(Change { setting, from: mask(), to: mask() });
    }
}

fn find<'a>(entries: &'a [(String, Dump)], name: &str) -> Option<&'a Dump> {
    entries.iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

fn is_below(name: &str, path: &str) -> bool {
    // A whole step of the path: `limits.response` is not below `limits.resp`.
    name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn to_value(dump: &Dump) -> Value {
    // Serializing fails only for maps whose keys are not texts; there are none.
    serde_json::to_value(dump).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Environment;

    fn config(yaml: &str) -> Config {
        Config::parse(yaml, "test.yaml", Path::new(""), &Environment::default()).unwrap()
    }

    fn names(changes: &Changes) -> Vec<&str> {
        changes.settings.iter().map(|change| change.setting.as_str()).collect()
    }

    #[test]
    fn change_has_path_and_both_values() {
        let old = config("backends: [{ name: a, url: http://a:1 }, http://b:1]");
        let new = config(
            "routing: { strategy: random, aliases: { x: y } }\n\
             backends: [{ name: a, url: http://a:1, priority: 3 }, { name: c, url: http://c:1 }]",
        );
        let changes = Changes::between(&old, &new);
        assert_eq!(
            names(&changes),
            ["routing.strategy", "routing.aliases.x", "backends[a].priority"]
        );
        assert_eq!(changes.settings[0].from, "auto");
        assert_eq!(changes.settings[0].to, "random");
        assert_eq!(changes.settings[2].to, 3);
        assert_eq!(
            (changes.added, changes.removed),
            (vec!["c".to_owned()], vec!["b:1".to_owned()])
        );
        assert!(Changes::between(&new, &new).is_empty());
    }

    #[test]
    fn changed_secrets_are_masked() {
        let yaml = |key: &str, api: &str| {
            config(&format!(
                "auth: {{ keys: [{{ name: t, key: {key} }}] }}\n\
                 backends: [{{ name: a, url: http://a:1, api_key: {api} }}]"
            ))
        };
        let changes = Changes::between(&yaml("old-one", "one"), &yaml("new-one", "two"));
        assert_eq!(names(&changes), ["auth.keys", "backends[a].api_key"]);
        let shown = serde_json::to_string(&changes.settings).unwrap();
        assert!(!shown.contains("one") && !shown.contains("two"), "{shown}");
    }

    #[test]
    fn first_key_of_a_backend_is_reported_once() {
        let yaml =
            |rest: &str| config(&format!("backends: [{{ name: a, url: http://a:1{rest} }}]"));
        let changes = Changes::between(&yaml(""), &yaml(", api_key: one"));
        let keys = changes.settings.iter().filter(|change| change.setting.contains("api_key"));
        assert_eq!(keys.count(), 1, "{changes:?}");
    }

    #[test]
    fn inherited_change_is_reported_once() {
        let old =
            config("backends: [{ name: a, url: http://a:1, health: { rise: 7 } }, http://b:1]");
        let new = config(
            "health: { interval: 9s }\n\
             backends: [{ name: a, url: http://a:1, health: { rise: 8 } }, http://b:1]",
        );
        let changes = Changes::between(&old, &new);
        assert_eq!(names(&changes), ["health.interval", "backends[a].health.rise"]);
    }

    #[test]
    fn settings_that_need_a_restart_are_named() {
        let one = "backends: [http://a:1]";
        let new = config(&format!("server: {{ threads: 1000, drain_timeout: 1s }}\n{one}"));
        let changes = Changes::between(&config(one), &new);
        assert_eq!(changes.needing_restart(), ["server.threads"]);
        let traced = config(&format!(
            "tracing: {{ propagate: false, sample: 0.5, service_name: x }}\n{one}"
        ));
        let changes = Changes::between(&config(one), &traced);
        assert_eq!(changes.settings.len(), 3, "{changes:?}");
        assert_eq!(changes.needing_restart(), ["tracing.service_name"]);
        assert!(is_below("server.listen[0]", "server.listen"));
        assert!(!is_below("server.listeners", "server.listen"));
    }
}
