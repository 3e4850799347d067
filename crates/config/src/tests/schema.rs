//! Compares the schema with the values that are read and dumped.

use std::path::Path;

use serde_json::Value;

use super::load;
use crate::json_schema;

/// Returns whether `value` matches `schema`. Supports only the keywords that our schema uses, and
/// of patterns only the one for variables.
fn fits(value: &Value, schema: &Value, root: &Value) -> bool {
    let kind = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64(),
        "boolean" => value.is_boolean(),
        _ => value.is_null(),
    };
    let list = |key: &str| schema[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_kind = match &schema["type"] {
        Value::String(name) => kind(name),
        Value::Array(names) => names.iter().any(|name| kind(name.as_str().unwrap())),
        _ => true,
    };
    let target = schema["$ref"].as_str().map(|path| &path[1..]);
    let property = |(key, value): (&String, &Value)| match &schema["properties"][key] {
        Value::Null => match &schema["additionalProperties"] {
            Value::Bool(is_open) => *is_open,
            other => other.is_null() || fits(value, other, root),
        },
        known => fits(value, known, root),
    };
    let is_variable = schema["pattern"].as_str().is_some_and(|pattern| pattern.contains(r"\$\{"));
    is_kind
        && (!is_variable || value.as_str().is_some_and(|text| text.contains("${")))
        && target.is_none_or(|path| fits(value, root.pointer(path).unwrap(), root))
        && (list("enum").is_empty() || list("enum").contains(value))
        && (list("anyOf").is_empty() || list("anyOf").iter().any(|one| fits(value, one, root)))
        && value.as_object().is_none_or(|fields| {
            list("required").iter().all(|key| fields.contains_key(key.as_str().unwrap()))
                && fields.iter().all(property)
        })
        && (schema["items"].is_null()
            || value
                .as_array()
                .is_none_or(|all| all.iter().all(|one| fits(one, &schema["items"], root))))
        && value.as_u64().zip(schema["maximum"].as_u64()).is_none_or(|(given, most)| given <= most)
}

#[test]
fn dump_and_examples_match_the_schema() {
    let schema = json_schema();
    let value = |yaml: &str| serde_saphyr::from_str::<Value>(yaml).unwrap();
    for text in [
        "backends: [http://a]",
        "backends: [http://a]\nrouting: {shadow: {strategy: weighted, picker: softmax}}",
        "backends: [{url: http://a, models: [m], telemetry: {port: 9000}}]\nadmin: {listen: off}",
    ] {
        let dumped = value(&load(text).unwrap().to_masked_yaml());
        assert!(fits(&dumped, &schema, &schema), "{dumped:#}");
    }
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf");
    let examples = std::fs::read_dir(conf.join("examples")).unwrap();
    let files = examples.map(|entry| entry.unwrap().path()).chain([conf.join("penstock.yaml")]);
    for path in files {
        let written = value(&std::fs::read_to_string(&path).unwrap());
        assert!(fits(&written, &schema, &schema), "{}: {written:#}", path.display());
    }
    for (text, is_fit) in [
        ("telemetry: {enabled: true}", true),
        ("telemetry: {enabled: false}", true),
        ("telemetry: {enabled: auto}", true),
        ("telemetry: {enabled: maybe}", false),
        ("routing: {picker: {name: softmax, temperature: 0.5}}", true),
        ("routing: {picker: {name: softmax, temprature: 0.5}}", false),
        ("routing: {shadow: null}", true),
        ("routing: {shadow: {sample: 0.5}}", false),
        ("routing: {max_retries: 4294967296}", false),
    ] {
        let written = value(&format!("backends: [http://a]\n{text}"));
        assert_eq!(fits(&written, &schema, &schema), is_fit, "{text}");
    }
}
