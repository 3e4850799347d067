//! Settings in the words, the syntax and the formats of other programs.

use super::{load, refusal, warnings};

#[test]
fn secrets_in_the_syntax_of_other_programs_warn() {
    let of_backend =
        |key: &str| warnings(&format!("backends: [{{url: http://a, api_key: '{key}'}}]"));
    for key in ["$OPENAI_KEY", "os.environ/OPENAI_KEY", "{{ OPENAI_KEY }}", "%OPENAI_KEY%"] {
        let [warning] = of_backend(key).try_into().unwrap();
        let expected = "penstock.yaml:1:37: 'backends[0].api_key' has another program's syntax for a \
                        variable and is used as it stands: write `${OPENAI_KEY}`, or name a file in \
                        'backends[0].api_key_file'";
        assert_eq!(warning, expected, "{key}");
    }
    let hidden = of_backend("$(cat /run/hunter2)").remove(0);
    assert!(hidden.contains("`${NAME}`") && !hidden.contains("hunter2"), "{hidden}");
    let scheme = of_backend("Bearer hunter2").remove(0);
    assert!(scheme.contains("leave out 'Bearer'") && !scheme.contains("hunter2"), "{scheme}");
    assert!(of_backend("sk-$A{{}}").is_empty());
    for (text, key) in [
        ("auth: {keys: [{name: a, key: $KEY}]}", "'auth.keys[0].key_file'"),
        ("shared_state: {redis: 'redis://r', password: $KEY}", "'shared_state.password_file'"),
    ] {
        let all = warnings(&format!("backends: [http://a]\n{text}"));
        assert!(all.iter().any(|one| one.contains(key)), "{all:?}");
    }
}

#[test]
fn words_of_other_programs_lead_to_the_setting() {
    for (backend, expected) in [
        ("type: ollama", "'type' in 'backends[0]': did you mean 'backends[].engine'?"),
        ("models: [{name: m}]", "did you mean 'backends[].models[].id'?"),
        ("key: x", "did you mean 'backends[].api_key'?"),
    ] {
        let error = load(&format!("backends: [{{url: http://a, {backend}}}]")).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn names_with_a_space_after_the_colon_are_explained() {
    let error = load("backends: [{url: http://a, models: [llama3: 8b]}]").unwrap_err();
    assert_eq!(
        error,
        "penstock.yaml:1:37: 'backends[0].models[0]' is a mapping: expected the id of a model, such \
         as llama3:8b, without a space after ':' or in quotes; or a mapping with 'id'"
    );
    let error = refusal("routing: {fallbacks: {m: [llama3: 8b]}}");
    assert!(error.contains("a text with ': ' in it needs quotes"), "{error}");
}

#[test]
fn other_formats_are_named() {
    for text in ["[server]\nlisten = 'a'", "[[backends]]\nurl = 'a'", "backends = ['http://a']"] {
        let error = load(text).unwrap_err();
        assert_eq!(
            error, "penstock.yaml:1:1: the file is no YAML: it looks like TOML or INI",
            "{text}"
        );
    }
    for text in [
        "{\n// c\n\"backends\": [\"http://a\"]}",
        "{\"backends\": [\n\"http://a\" // c\n]}",
        "{\"backends\":\n[\"http://a\"], // c\n\"server\": {}}",
    ] {
        let error = load(text).unwrap_err();
        let expected = "penstock.yaml:2:1: the file is no YAML: it looks like JSON with comments";
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    assert!(load("{\"backends\": [\"http://a\"],}").is_ok(), "YAML has a comma at the end");
    assert!(load("[http://a]").is_ok());
}
