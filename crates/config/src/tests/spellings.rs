//! Tests that names that differ in case or in `:latest` alone are one model to the checks.

use super::warnings;

#[test]
fn other_spellings_of_a_declared_model_do_not_warn() {
    for (declared, written) in [("llama3:latest", "LLAMA3"), ("Llama3", "llama3:latest")] {
        let text = format!(
            "backends: [{{url: http://a, zone: local, models: [\"{declared}\", q]}}]
models: {{ \"{written}\": {{ timeouts: {{ response: 5s }}, ensemble: [q, \"{written}\"] }} }}
routing: {{ aliases: {{ x: \"{written}\" }}, fallbacks: {{ q: [\"{written}\"] }} }}
policies: [{{ models: [\"{written}\", q], name: p, zones: [local] }}]
"
        );
        assert!(warnings(&text).is_empty(), "{:?}", warnings(&text));
    }
    let other = "backends: [{url: http://a, models: [llama3]}]\nmodels: {\"llama3:8b\": {}}";
    assert_eq!(warnings(other).len(), 1, "another tag is another model");
}

#[test]
fn fallback_outside_the_zones_of_a_policy_warns_in_any_spelling() {
    let text = "backends: [{url: http://a, models: [m], zone: local},
  {url: http://b, models: [\"q:latest\"], zone: cloud}]
routing: {fallbacks: {m: [Q]}}
policies: [{name: p, models: [m, q], zones: [local]}]
";
    let found = warnings(text);
    assert!(found.iter().any(|one| one.contains("'Q'") && one.contains("'p'")), "{found:?}");
}
