use std::collections::BTreeSet;

use penstock_scoring::{PICKERS, PRESETS};
use serde_json::{Value, json};

use super::book::Book;

fn score(book: &mut Book, line: &Value) -> Value {
    serde_json::from_str(&book.score(line.to_string().as_bytes())).unwrap()
}

fn once(line: &Value) -> Value {
    score(&mut Book::new(None), line)
}

fn three() -> Value {
    json!([
        {"name": "a", "waiting": 0, "running": 2, "kv_utilization": 0.4},
        {"name": "b", "waiting": 5, "running": 8, "kv_utilization": 0.9},
        {"name": "c", "waiting": 1, "running": 3, "pending": 2, "kv_utilization": null},
    ])
}

#[test]
fn line_is_scored_by_the_formulas() {
    let result = once(&json!({"scorers": "queue-depth:2,kv_utilization:2", "backends": three()}));
    assert_eq!(result["weights"], json!({"queue-depth": 0.5, "kv-utilization": 0.5}));
    assert_eq!(result["scores"]["queue-depth"], json!({"a": 1.0, "b": 0.0, "c": 7.0 / 11.0}));
    assert_eq!(result["scores"]["kv-utilization"]["a"], json!(0.6));
    assert_eq!(result["scores"]["kv-utilization"]["c"], json!(0.0), "null is unknown");
    assert_eq!(result["totals"]["a"], json!(0.8));
    assert_eq!(result["winner"], "a");
    assert!(result.get("probabilities").is_none() && result.get("prefix").is_none());
}

#[test]
fn default_scorers_are_the_llm_d_preset() {
    let result = once(&json!({"backends": three()}));
    for (name, part) in [("prefix-affinity", 3.0), ("queue-depth", 2.0), ("kv-utilization", 2.0)] {
        let weight = result["weights"][name].as_f64().unwrap();
        assert!((weight - part / 7.0).abs() < 1e-12, "{name}: {weight}");
    }
    let preset = once(&json!({"preset": "llm-d", "backends": three()}));
    assert_eq!(result, preset);
    let listed = json!([
        {"name": "prefix_affinity", "weight": 3, "block_size": 16},
        {"name": "queue-depth", "weight": 2},
        {"name": "kv-utilization", "weight": 2},
    ]);
    assert_eq!(once(&json!({"scorers": listed, "backends": three()})), result);
}

#[test]
fn incomplete_load_readings_score_as_unknown() {
    let backends = json!([{"name": "a", "waiting": 0, "pending": 0}, {"name": "b", "waiting": 9, "running": 9}]);
    let result = once(&json!({"scorers": "load-balance:1", "backends": backends}));
    assert_eq!(result["scores"]["load-balance"]["a"], json!(0.0));
    assert_eq!(result["winner"], "b");
}

#[test]
fn overflowing_load_scores_as_the_largest() {
    let backends = json!([{"name": "a", "waiting": 1e308, "running": 1e308}, {"name": "b", "waiting": 1, "running": 1}]);
    let result = once(&json!({"scorers": "queue-depth:1", "backends": backends}));
    assert_eq!(result["scores"]["queue-depth"], json!({"a": 0.0, "b": 1.0}));
}

#[test]
fn null_equals_a_missing_key() {
    let line = json!({"scorers": null, "preset": null, "picker": null, "request": null, "backends": three()});
    assert_eq!(once(&line), once(&json!({"backends": three()})));
    let picker = json!({"name": "softmax", "temperature": null});
    assert!(once(&json!({"picker": picker, "backends": three()}))["winner"].is_string());
}

#[test]
fn prompts_are_indexed_across_lines() {
    let mut book = Book::new(None);
    let text = "a system prompt that many share. ".repeat(40);
    let line = |user: &str| {
        let body = json!({"model": "m", "messages": [
            {"role": "system", "content": text}, {"role": "user", "content": user}]});
        json!({"scorers": "prefix-affinity:3,load-balance:1", "request": {"body": body.to_string()},
            "backends": [{"name": "a", "waiting": 0, "running": 0}, {"name": "b", "waiting": 0, "running": 0}]})
    };
    let first = score(&mut book, &line("one"));
    let home = first["winner"].as_str().unwrap().to_owned();
    assert_eq!(first["prefix"][&home]["matched"], 0);
    let total = first["prefix"][&home]["total"].as_u64().unwrap();
    assert_eq!(total, 20, "1320 characters and a little make 20 blocks of 64");
    let second = score(&mut book, &line("two"));
    assert_eq!(second["winner"], home.as_str());
    assert_eq!(second["prefix"][&home]["matched"], 20, "all full blocks are the system prompt's");
    let other = if home == "a" { "b" } else { "a" };
    assert_eq!(second["prefix"][other]["matched"], 0);
    assert_eq!(once(&line("two"))["prefix"][&home]["matched"], 0, "another process, another index");
}

#[test]
fn prefixes_are_tracked_for_more_backends_than_a_shard() {
    let mut book = Book::new(None);
    let body = json!({"model": "m", "prompt": "the same words again and again. ".repeat(40)});
    let line = |names: &[String]| {
        let backends: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"preset": "prefix-affinity", "backends": backends,
            "request": {"path": "/v1/completions", "body": body.to_string()}})
    };
    let all: Vec<String> = (0..200).map(|number| format!("b{number}")).collect();
    // Each backend was picked once, alone, and so has the whole prompt.
    for name in &all {
        assert_eq!(score(&mut book, &line(std::slice::from_ref(name)))["winner"], name.as_str());
    }
    let stranger = ["stranger".to_owned()];
    let result = score(&mut book, &line(&[&all[..], &stranger].concat()));
    assert!(all.iter().all(|name| result["prefix"][name]["matched"] == 20), "{result}");
    assert_eq!(result["prefix"]["stranger"]["matched"], 0);
}

#[test]
fn given_prefixes_override_the_index() {
    let backends = json!([
        {"name": "a", "prefix": {"matched": 1, "total": 4}},
        {"name": "b", "prefix": {"matched": 3, "total": 4}},
    ]);
    let result = once(&json!({"preset": "prefix-affinity", "backends": backends}));
    assert_eq!(result["scores"]["prefix-affinity"], json!({"a": 0.25, "b": 0.75}));
    assert_eq!(result["prefix"]["b"], json!({"matched": 3, "total": 4}));
}

#[test]
fn random_picker_reports_probabilities_and_follows_the_seed() {
    let line = |seed: u64| {
        json!({"scorers": "load-balance:1", "picker": {"name": "softmax", "temperature": 0.5},
            "backends": three(), "seed": seed})
    };
    let result = once(&line(1));
    let odds = result["probabilities"].as_object().unwrap();
    let sum: f64 = odds.values().filter_map(Value::as_f64).sum();
    assert!((sum - 1.0).abs() < 1e-9);
    assert_eq!(once(&line(1)), result);
    let winners: BTreeSet<String> =
        (0..40).map(|seed| once(&line(seed))["winner"].to_string()).collect();
    assert!(winners.len() > 1);
}

#[test]
fn invalid_line_is_reported_and_the_next_is_scored() {
    let mut book = Book::new(None);
    for (line, expected) in [
        ("{", "EOF"),
        ("[]", "expected an object"),
        (r#"{"backends":[]}"#, "there are no backends"),
        (r#"{"backends":[{"name":"a"},{"name":"a"}]}"#, "backend 'a' is listed twice"),
        (r#"{"backends":[{"name":"a","queue":1}]}"#, "unknown field `queue`"),
        (r#"{"backends":[{"name":"a"}],"scorers":"x:1"}"#, "unknown scorer 'x'"),
        (r#"{"backends":[{"name":"a"}],"scorers":"queue-depth:0"}"#, "above 0, not 0"),
        (r#"{"backends":[{"name":"a"}],"preset":"best"}"#, "unknown preset 'best'; there is llm-d"),
        (r#"{"backends":[{"name":"a"}],"preset":"lmetric","scorers":"queue-depth:1"}"#, "either"),
        (r#"{"backends":[{"name":"a"}],"picker":"first"}"#, "unknown picker 'first'"),
        (
            r#"{"backends":[{"name":"a"}],"request":{"body":"{"}}"#,
            "request.body: the body is not valid JSON",
        ),
        (r#"{"backends":[{"name":"a"}],"request":{"path":"/x","body":"{}"}}"#, "unknown path /x"),
        (
            r#"{"backends":[{"name":"a"}],"scorers":[{"name":"prefix-affinity","weight":1,"block_size":999}]}"#,
            "scorer 'prefix-affinity': 'block-size' must be a whole number from 1 to 256",
        ),
    ] {
        let result: Value = serde_json::from_str(&book.score(line.as_bytes())).unwrap();
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{line}: {message}");
    }
    assert_eq!(score(&mut book, &json!({"backends": three()}))["winner"], "a");
}

#[test]
fn error_names_the_path_of_the_invalid_value() {
    for (line, expected) in [
        (r#"{"backends":[["a"]]}"#, "expected an object"),
        (r#"{"backends":[{"name":"a","prefix":[1,2]}]}"#, "expected an object"),
        (
            r#"{"backends":[{"name":"a"}],"request":["/v1/embeddings","{}",null]}"#,
            "expected an object",
        ),
        (
            r#"{"backends":[{"name":"a"}],"scorers":{"queue-depth":1}}"#,
            "scorers: expected a list, or",
        ),
        (r#"{"backends":[{"name":"a"}],"scorers":[]}"#, "no scorers are listed"),
        (
            r#"{"backends":[{"name":"a"}],"scorers":["x"]}"#,
            "scorers[0]: expected an object with a name",
        ),
        (
            r#"{"backends":[{"name":"a"}],"scorers":[{"weight":1}]}"#,
            "scorers[0]: 'name' is missing",
        ),
        (
            r#"{"backends":[{"name":"a"}],"scorers":[{"name":"queue-depth"}]}"#,
            "scorers[0]: 'weight' is missing",
        ),
        (
            r#"{"backends":[{"name":"a"}],"scorers":[{"name":"queue-depth","weight":"2"}]}"#,
            "scorers[0].weight: expected a number",
        ),
        (
            r#"{"backends":[{"name":"a"}],"scorers":[{"name":"queue-depth","weight":null}]}"#,
            "scorers[0].weight: expected a number",
        ),
        (r#"{"backends":[{"name":"a"}],"picker":3}"#, "picker: expected a name, or an object"),
        (r#"{"backends":[{"name":"a"}],"picker":{"temperature":3}}"#, "picker: 'name' is missing"),
        (
            r#"{"backends":[{"name":"a"}],"picker":{"name":"softmax","temprature":3}}"#,
            "picker: unknown key 'temprature': did you mean 'temperature'?",
        ),
        (
            r#"{"backends":[{"name":"a"}],"picker":{"name":"max-score","temperature":3}}"#,
            "a temperature belongs to the picker softmax",
        ),
        (
            r#"{"backends":[{"name":"a"}],"scorers":[{"name":"session-affinity","weight":1,"header":"a b:"}]}"#,
            "scorer 'session-affinity': 'header' must be the name of a header",
        ),
    ] {
        let result: Value = serde_json::from_str(&Book::new(None).score(line.as_bytes())).unwrap();
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{line}: {message}");
    }
}

#[test]
fn schema_lists_every_key_of_a_line() {
    let schema: Value = serde_json::from_str(&super::schema()).unwrap();
    let names = |at: &str| -> Vec<String> {
        let found = schema.pointer(at).unwrap().as_object().unwrap();
        found.keys().cloned().collect()
    };
    let names_in = |at: &str| -> Vec<String> {
        let found = schema.pointer(at).unwrap().as_array().unwrap();
        found.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let both = |name: &'static str| [name.to_owned(), name.replace('-', "_")];
    let spellings = |known: Vec<&'static str>| -> BTreeSet<String> {
        known.into_iter().flat_map(both).collect()
    };
    let presets = names_in("/$defs/preset/enum").into_iter().collect::<BTreeSet<_>>();
    assert_eq!(presets, spellings(PRESETS.iter().map(|preset| preset.name).collect()));
    let pickers = names_in("/$defs/picker/enum").into_iter().collect::<BTreeSet<_>>();
    assert_eq!(pickers, spellings(PICKERS.to_vec()));
    // An unknown key is refused with the list of the known ones.
    let refusal = |line: &str| Book::new(None).score(line.as_bytes());
    let line = refusal(r#"{"nonsense":1}"#);
    for name in names("/$defs/line/properties") {
        assert!(line.contains(&format!("`{name}`")), "{name}: {line}");
    }
    let backend = refusal(r#"{"backends":[{"nonsense":1}]}"#);
    for name in names("/$defs/line/properties/backends/items/properties") {
        assert!(backend.contains(&format!("`{name}`")), "{name}: {backend}");
    }
}
