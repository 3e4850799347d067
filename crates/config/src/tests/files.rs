//! Compares the shipped files, the dump and the schema with the table of options, and refuses files
//! that cannot be written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::load;
use crate::syntax::document::{Content, Node, parse_document};
use crate::syntax::setting::{Section, Setting};
use crate::syntax::shape::Shape;
use crate::{
    AliasTargets, BackendConfig, Config, ConfigError, Environment, ModelConfig, Problem,
    json_schema, known_variables,
};

fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf")
}

fn read_reference() -> String {
    std::fs::read_to_string(conf().join("penstock.yaml")).unwrap()
}

#[test]
fn shipped_files_load_without_a_warning() {
    let mut count = 0;
    let token = std::env::temp_dir().join(format!("penstock-token-{}", std::process::id()));
    std::fs::write(&token, "for-this-test").unwrap();
    // In the example for Kubernetes the token is mounted into the pod.
    let variable = ("PENSTOCK_ADMIN_TOKEN_FILE".to_owned(), token.to_str().unwrap().to_owned());
    let mounted: Environment = [variable].into_iter().collect();
    let examples = std::fs::read_dir(conf().join("examples")).unwrap();
    let files = examples.map(|entry| entry.unwrap().path()).chain([conf().join("penstock.yaml")]);
    for file in files {
        let is_mounted = file.ends_with("kubernetes.yaml");
        let environment = if is_mounted { mounted.clone() } else { Environment::default() };
        let config =
            Config::load(&file, &environment, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.warnings, [], "{}", file.display());
        count += 1;
    }
    assert!(count >= 6, "only {count} files");
    std::fs::remove_file(token).unwrap();
}

#[test]
fn reference_file_shows_the_defaults() {
    let loaded = load(&read_reference()).unwrap();
    let shown = BackendConfig { name: "gpu-a".to_owned(), ..BackendConfig::default() };
    assert_eq!(loaded, Config { backends: vec![shown], ..Config::default() });
}

/// The number of lines above an option in which its default stands.
const NEAR: usize = 8;

/// Returns the reference file with the options that are not set by default.
fn reference_with_all_options() -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in read_reference().lines() {
        let bare = line.trim_start();
        let is_option = bare.starts_with('#') && !bare.starts_with("# ") && bare != "#";
        if is_option {
            let line = line.replacen('#', "", 1);
            // The option replaces the empty default above it.
            let key = line.split(':').next().unwrap_or_default();
            let is_default = |earlier: &String| {
                earlier.starts_with(&format!("{key}: [")) || *earlier == format!("{key}: {{}}")
            };
            let near = lines.len().saturating_sub(NEAR);
            let found = lines.iter().skip(near).position(is_default);
            if let Some(position) = found {
                lines.remove(near + position);
            }
            lines.push(line);
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

#[test]
fn commented_options_are_valid() {
    let text = reference_with_all_options();
    // Paths of prompts are relative to the folder of the file.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf");
    let result = Config::parse(&text, "all", &folder, &Environment::default());
    let Err(ConfigError::Invalid { faults, .. }) = result else { panic!("{result:?}") };
    for fault in faults {
        assert!(
            matches!(
                fault.problem,
                // The file shows every option, including those that exclude each other.
                Problem::SecretFile { .. }
                    | Problem::Tls { .. }
                    | Problem::BacklogWithoutPrediction
                    | Problem::ScorersAndPreset { .. }
            ),
            "only the files with secrets and certificates may be missing: {fault}"
        );
    }
}

#[test]
fn reference_file_documents_every_key() {
    let root = parse_document(&reference_with_all_options(), &Arc::from("all")).unwrap();
    let mut missing = Vec::new();
    let mut count = 0;
    find_missing(&Config::shape(), &[&root], "", &mut |path, is_there| {
        count += 1;
        if !is_there {
            missing.push(path.to_owned());
        }
    });
    assert_eq!(missing, Vec::<String>::new(), "known to the loader and not in the file");
    assert!(count > 100, "only {count} keys were looked for");
}

fn find_missing(shape: &Shape, nodes: &[&Node], path: &str, found: &mut impl FnMut(&str, bool)) {
    match shape {
        Shape::Scalar(_) => {}
        Shape::List(item) => {
            let items: Vec<&Node> = nodes.iter().flat_map(|node| node.items()).collect();
            find_missing(item, &items, &format!("{path}[]"), found);
        }
        Shape::Table(value) => {
            let values: Vec<&Node> = nodes.iter().flat_map(|node| values_of(node)).collect();
            if !values.is_empty() || !value.is_plain() && !matches!(**value, Shape::List(_)) {
                find_missing(value, &values, &format!("{path}.*"), found);
            }
        }
        Shape::Either(shapes) => {
            shapes.iter().for_each(|shape| find_missing(shape, nodes, path, found));
        }
        Shape::Section(section) => {
            for field in &section.fields {
                let path = format!("{path}.{}", field.name);
                let below: Vec<&Node> = nodes
                    .iter()
                    .filter_map(|node| node.entry(field.name))
                    .map(|entry| &entry.node)
                    .collect();
                found(&path, !below.is_empty());
                find_missing(&field.shape, &below, &path, found);
            }
        }
    }
}

fn values_of(node: &Node) -> Vec<&Node> {
    match &node.content {
        Content::Map(entries) => entries.iter().map(|entry| &entry.node).collect(),
        Content::Null | Content::Scalar(_) | Content::List(_) => Vec::new(),
    }
}

#[test]
fn dump_shows_every_key_and_loads_back() {
    let text = r#"
auth: { keys: [{ name: t, key: hush-hush, models: ["a*"], max_priority: -1 }] }
objectives: { batch: { priority: -5 } }
server: { cors: "*", threads: 7 }
admin: { listen: off }
routing: { aliases: { "a: b": "$${x}", "null": "off" }, fallbacks: { m: [] } }
timeouts: { total: 90s }
models: { "true": { timeouts: { total: none } } }
backends:
  - { name: a, url: "http://a/v1", api_key: hush-hush, models: ["1.10", { id: "~", capabilities: [tools], operations: [audio] }] }
  - http://[::1]:9
"#;
    let config = load(text).unwrap();
    let yaml = config.to_masked_yaml();
    assert!(!yaml.contains("hush-hush"), "{yaml}");
    let back = load(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    assert_eq!(back.to_masked_yaml(), yaml);
    assert_eq!(back.routing, config.routing);
    assert_eq!(back.models, config.models);
    assert_eq!(back.backends[0].models, config.backends[0].models);
    for key in Config::keys() {
        assert!(yaml.contains(&format!("{}:", key.name)), "{}", key.name);
    }
}

#[test]
fn defaults_survive_the_dump() {
    let config = load("- http://a").unwrap();
    assert_eq!(load(&config.to_masked_yaml()).unwrap(), config);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_name_survives_the_dump(key in "\\PC{1,12}", value in "\\PC{1,12}") {
        prop_assume!(!value.trim().is_empty());
        let mut config = load("- http://a").unwrap();
        config.routing.aliases.insert(key, AliasTargets::from("target"));
        config.models = [(value.clone(), ModelConfig::default())].into_iter().collect();
        config.routing.fallbacks = [("target".to_owned(), vec![value])].into_iter().collect();
        let yaml = config.to_masked_yaml();
        let back = load(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        prop_assert_eq!((back.routing, back.models), (config.routing, config.models));
    }
}

#[test]
fn schema_describes_every_section() {
    let schema = json_schema();
    let properties = &schema["anyOf"][0]["properties"];
    for key in Config::keys() {
        assert!(properties[key.name]["description"].is_string(), "{}", key.name);
    }
    assert_eq!(properties["routing"]["properties"]["max_retries"]["default"], 2);
    assert_eq!(properties["routing"]["additionalProperties"], false);
}

#[test]
fn variables_are_known_for_plain_settings_in_sections() {
    let known = known_variables();
    for name in [
        "PENSTOCK_ROUTING_STRATEGY",
        "PENSTOCK_ROUTING_MAX_RETRIES",
        "PENSTOCK_ROUTING_WEIGHTS_LOAD",
        "PENSTOCK_ADMIN_TOKEN_FILE",
        "PENSTOCK_SERVER_CORS",
    ] {
        assert!(known.iter().any(|one| one == name), "{name} in {known:?}");
    }
    assert!(!known.iter().any(|one| one.contains("ALIASES")), "{known:?}");
}

#[test]
fn two_settings_cannot_name_the_same_file() {
    let text = "backends: [http://a]\naccess_log: {path: a.db}\nledger: {path: a.db}\n\
                auth: {store: b.db}";
    let error = load(text).unwrap_err().to_string();
    assert!(
        error.contains("penstock.yaml:3:16: 'ledger.path' is the file of 'access_log.path'"),
        "{error}"
    );
    let other = load(&text.replacen("a.db", "src/../a.db", 1)).unwrap_err().to_string();
    assert!(other.contains("'ledger.path' is the file of 'access_log.path'"), "{other}");
    assert!(load(&text.replacen("a.db", "c.log", 1)).is_ok());
}

#[test]
fn files_in_missing_folders_are_refused_at_the_start_alone() {
    let text = "backends: [http://a]\nledger: {path: none/l.db}\naccess_log: {path: none/a.log}\n\
                auth: {store: none/k.db}";
    let config = load(text).unwrap();
    let error = config.check_folders().unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    let folder = std::path::absolute("none").unwrap();
    let expected = format!(
        "penstock.yaml:3:20: 'access_log.path': the folder {} does not exist: create it, or name another",
        folder.display()
    );
    assert_eq!(lines[0], expected);
    assert!(lines[1].starts_with("penstock.yaml:4:15: 'auth.store'"), "{error}");
    let folder = load("backends: [http://a]\naccess_log: {path: src}\nauth: {store: /}").unwrap();
    let error = folder.check_folders().unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines[0].starts_with("penstock.yaml:2:20: 'access_log.path': "), "{error}");
    assert!(lines[0].ends_with("src is a folder: name a file in it"), "{error}");
    assert!(lines[1].starts_with("penstock.yaml:3:15: 'auth.store': / is a folder"), "{error}");
    let usable = load("backends: [http://a]\naccess_log: {path: new.log}").unwrap();
    assert!(usable.check_folders().is_ok(), "the file itself need not exist");
    let file = load("backends: [http://a]\naccess_log: {path: Cargo.toml/a.log}").unwrap();
    assert!(file.check_folders().is_err());
}
