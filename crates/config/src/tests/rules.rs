//! Tests errors and warnings, with the words and positions of their messages.

use super::{load, load_more, refusal, warnings};

#[test]
fn unknown_keys_come_with_position_and_suggestion() {
    assert_eq!(
        refusal("routing:\n    strateggy: smart"),
        "penstock.yaml:3:5: unknown key 'strateggy' in 'routing': did you mean 'strategy'?"
    );
    assert_eq!(
        refusal("rooting: {}"),
        "penstock.yaml:2:1: unknown key 'rooting': did you mean 'routing'?"
    );
    assert_eq!(
        load("backends:\n- url: http://a\n  colour: red").unwrap_err(),
        "penstock.yaml:3:3: unknown key 'colour' in 'backends[0]'"
    );
}

#[test]
fn errors_are_reported_in_file_order() {
    let error =
        refusal("timeouts: {connect: 5}\nrouting: {max_retries: x, retry_5xx: maybe}\nlimits: []");
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(
        lines,
        [
            "penstock.yaml:2:21: 'timeouts.connect': '5' is not a duration: write a number with ms, s, m or h, as in 250ms or 5s",
            "penstock.yaml:3:24: 'routing.max_retries' is 'x': expected a whole number, 0 or more",
            "penstock.yaml:3:38: 'routing.retry_5xx' is 'maybe': expected true or false",
            "penstock.yaml:4:9: 'limits' is a list: expected a mapping",
        ]
    );
}

#[test]
fn too_large_number_names_the_maximum() {
    for (text, expected) in [
        ("backends: [{url: http://a, telemetry: {port: 70000}}]", "from 1 to 65535"),
        ("backends: [{url: http://a, telemetry: {port: 0}}]", "a whole number, 1 or more"),
        ("backends: [http://a]\nrouting: {max_retries: 1099511627776}", "from 0 to 4294967295"),
        ("backends: [http://a]\nrouting: {max_retries: -1}", "a whole number, 0 or more"),
    ] {
        let error = load(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn unknown_values_list_the_known_ones() {
    let error = load("backends: [{url: http://a, engine: vlllm}]").unwrap_err();
    assert!(
        error.contains("unknown value 'vlllm' of 'backends[0].engine': did you mean 'vllm'?"),
        "{error}"
    );
    assert!(error.contains("known: auto, vllm"), "{error}");
    let error = load("backends: [{url: http://a, step_times: h100}]").unwrap_err();
    assert!(error.contains("expected one of rtxpro6000/llama-3.1-8b/tp1, "), "{error}");
    let error =
        load("backends: [{url: http://a, models: [{id: m, capabilities: [json]}]}]").unwrap_err();
    assert!(error.contains("vision, tools, json_mode"), "{error}");
}

#[test]
fn unknown_strategy_becomes_smart_with_a_warning() {
    let config = load_more("routing: {strategy: smrat}").unwrap();
    assert_eq!(config.routing.strategy.name(), "smart");
    let warning = config.warnings[0].to_string();
    assert!(warning.starts_with("penstock.yaml:2:21: UNKNOWN STRATEGY 'smrat'"), "{warning}");
    assert!(warning.contains("did you mean 'smart'?"), "{warning}");
}

#[test]
fn weights_must_sum_to_100() {
    assert_eq!(
        refusal("routing:\n  weights: {priority: 50, load: 30, latency: 30}"),
        "penstock.yaml:3:3: 'routing.weights' must sum to 100, not 110"
    );
    assert!(refusal("routing: {weights: {load: 4294967295}}").contains("100"), "no overflow");
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (text, part) in [
        ("health: {jitter: 1.5}", "from 0 to 1"),
        ("health: {jitter: .nan}", "from 0 to 1"),
        ("health: {rise: 0}", "1 or more"),
        ("timeouts: {response: 0s}", "longer than 0"),
        ("routing: {max_retries: -1}", "0 or more"),
        ("server: {threads: 0}", "1 or more"),
        ("server: {listen: []}", "at least one"),
        ("server: {listen: 'localhost:80'}", "IP address"),
        ("server: {cors: [example.com]}", "origins such as"),
        ("limits: {min_body_rate: 1KiB}", "1KiB/s"),
        ("limits: {max_body_size: 32}", "is not a size"),
        ("limits: {max_body_size: 4GiB}", "at most 4095MiB"),
        ("limits: {buffered_bodies: 1MiB}", "'limits.max_body_size: 32MiB' must not exceed"),
        ("routing: {passthrough: {/x: nope}}", "neither a backend nor 'by-model'"),
        ("routing: {passthrough: {x: by-model}}", "a path starts with /"),
        ("routing: {default_model: {chats: m}}", "did you mean 'chat'"),
        ("routing: {default_model: [m]}", "expected a model"),
        ("timeouts: {response: 9000h}", "at most 8760h"),
        ("server: {threads: 1025}", "at most 1024"),
        ("server: {admin: off}", "'admin' in 'server': did you mean 'admin' at the top level?"),
        ("health: {path: health}", "such as /health"),
        ("routing: {cooldown: {min: 9s, max: 3s}}", "'routing.cooldown.min: 9s' must not exceed"),
        ("health: {breaker: {open: 60s}}", "must not exceed 'breaker.max_open: 4s'"),
    ] {
        let error = refusal(text);
        assert!(error.contains(part) && error.contains("penstock.yaml:2:"), "{text}: {error}");
    }
    let error = load("backends: [{url: http://a, max_in_flight: 0}]").unwrap_err();
    assert!(error.contains("1 or more"), "{error}");
}

#[test]
fn alias_cycles_are_printed() {
    assert_eq!(
        refusal("routing:\n  aliases:\n    a: b\n    b: a\n    c: a"),
        "penstock.yaml:4:5: 'routing.aliases' has a cycle: a -> b -> a"
    );
    assert!(refusal("routing: {aliases: {x: x}}").contains("x -> x"));
}

#[test]
fn long_alias_chains_warn_and_name_where_they_stop() {
    let text = "backends: [http://a]\nrouting: {aliases: {a: b, b: c, c: d, d: e}}";
    assert_eq!(
        warnings(text),
        ["penstock.yaml:2:21: alias 'a' takes 4 hops; resolution stops after 3 at 'd'"]
    );
}

#[test]
fn paths_of_lm_studios_own_api_warn() {
    let given = |url: &str, engine: &str| {
        warnings(&format!("backends: [{{url: \"{url}\", engine: {engine}}}]"))
    };
    for (url, engine, path) in [
        ("http://a:1234/api/v1", "lmstudio", "'/api/v1'"),
        ("http://a:1234/api/v1", "auto", "'/api/v1'"),
        ("http://a:1234/api/v0", "lmstudio", "'/api/v0'"),
        ("http://a:1234/v1/v1", "lmstudio", "'/v1/v1'"),
    ] {
        let all = warnings_of_one(given(url, engine));
        assert!(all.contains(path) && all.contains("write 'http://a:1234'"), "{url}: {all}");
    }
    assert!(given("https://openrouter.ai/api/v1", "openai").is_empty());
    assert!(given("http://a:1234/v1", "lmstudio").is_empty());
}

/// Returns the only warning.
fn warnings_of_one(warnings: Vec<String>) -> String {
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    warnings.concat()
}

#[test]
fn aliases_that_hide_models_warn() {
    let text =
        "backends: [{name: x, url: http://a, models: [gpt-4, m]}]\nrouting: {aliases: {gpt-4: m}}";
    assert_eq!(
        warnings(text),
        [
            "penstock.yaml:2:21: alias 'gpt-4' hides the model of that name on backend 'x': aliases take precedence"
        ]
    );
}

#[test]
fn aliases_without_target_warn() {
    let text = |rest: &str| format!("backends: [{{url: http://a, models: [m]}}]\n{rest}");
    let alias = warnings(&text("routing: {aliases: {x: y, y: gone, z: m}}"));
    assert_eq!(alias.len(), 2);
    assert!(alias[0].starts_with("penstock.yaml:2:21: alias 'x' resolves to 'gone'"), "{alias:?}");
    let with_chain = "routing: {aliases: {x: gone}, fallbacks: {x: [m]}}";
    assert!(warnings(&text(with_chain)).is_empty(), "the chain stands in");
    let model = warnings(&text("models: {n: {timeouts: {response: 5s}}}"));
    assert!(model[0].starts_with("penstock.yaml:2:10: 'models' has settings for 'n'"), "{model:?}");
    assert!(warnings("backends: [http://a]\nmodels: {n: {}}").is_empty(), "it may turn up");
    let member = warnings(&text("models: {m: {ensemble: [m, n]}}"));
    assert_eq!(member.len(), 1);
    assert!(member[0].contains("the ensemble of 'm' has the member 'n'"), "{member:?}");
}

#[test]
fn useless_fallbacks_warn() {
    let warned = |chains: &str, models: &str| {
        warnings(&format!(
            "backends: [{{url: http://a{models}}}]\nrouting: {{aliases: {{al: m}}, fallbacks: {{{chains}}}}}"
        ))
    };
    let declared = ", models: [m, n]";
    assert!(warned("m: [n]", declared).is_empty());
    assert!(warned("gone: [al]", declared).is_empty(), "aliases are followed in chains");
    assert!(warned("m: [other]", "").is_empty(), "a model may still be discovered");
    assert!(warned("m: []", "")[0].contains("is empty"));
    let unknown = warned("m: [other, n]", declared);
    assert_eq!(unknown.len(), 1);
    assert!(
        unknown[0].starts_with("penstock.yaml:2:45: ") && unknown[0].contains("'other'"),
        "{unknown:?}"
    );
    assert!(warned("m: [other]", declared)[1].contains("no backend serves any model"));
    assert!(warned("m: [n], al: [n]", declared)[0].contains("alias 'al' is unused"));
    assert!(warned("m: [al, n]", declared)[0].contains("contains the model itself"));
}

#[test]
fn patterns_serve_the_names_that_chains_and_aliases_lead_to() {
    let warned = |aliases: &str, routing: &str| {
        warnings(&format!(
            "backends: [{{url: http://a, models: [m, n]}}]\n\
             models: {{m: {{ensemble: [gpt-1, n]}}}}\n\
             routing: {{aliases: {{{aliases}}}{routing}}}"
        ))
    };
    let chain = ", fallbacks: {gone: [gpt-4o]}";
    assert_eq!(warned("'gpt-*': n, best: gpt-4o-mini", chain), Vec::<String>::new());
    // The most specific pattern counts, and what it leads to may need another one.
    assert_eq!(warned("'gpt-*': x, 'x*': n", chain), Vec::<String>::new());
    let dead = warned("'gpt-*': n, 'gpt-4*': x, best: gpt-4o-mini", chain);
    assert!(
        dead.iter().any(|one| one.contains("alias 'best' resolves to 'gpt-4o-mini'")),
        "{dead:?}"
    );
    assert!(dead.iter().any(|one| one.contains("in the fallback chain of 'gone'")), "{dead:?}");
    let cycle = warned("'gpt-*': gpt-5", "");
    assert!(cycle.iter().any(|one| one.contains("alias 'gpt-*' resolves to 'gpt-5'")), "{cycle:?}");
    let same = warned("'gpt-*': n", ", fallbacks: {n: [gpt-4o]}");
    assert!(same.iter().any(|one| one.contains("contains the model itself")), "{same:?}");
}

#[test]
fn duplicate_backends_are_refused() {
    let error =
        load("backends:\n- {name: x, url: http://a}\n- {name: x, url: http://b}").unwrap_err();
    assert_eq!(error, "penstock.yaml:3:10: duplicate backend 'x'");
    let same = warnings("- http://a\n- http://A:80/v1/");
    assert!(same[0].starts_with("penstock.yaml:2:3: backends 'a:80' and 'a:80-2'"), "{same:?}");
    let error = load("- {name: 'a b', url: http://a}\n- {name: c}\n- [d]").unwrap_err();
    assert!(error.contains("1:10: 'backends[0].name' is 'a b': expected a name"), "{error}");
    assert!(error.contains("2:3: missing key 'url' in 'backends[1]'"), "{error}");
    assert!(error.contains("3:3: 'backends[2]' is a list"), "{error}");
    let error = load("backends: [{url: http://a, models: [m, {id: m}]}]").unwrap_err();
    assert!(error.contains("duplicate model 'm' in backend 'a:80'"), "{error}");
}

#[test]
fn at_most_1024_backends() {
    let many = |count: u32| (0..count).map(|one| format!("- http://h{one}\n")).collect::<String>();
    assert_eq!(load(&many(1024)).unwrap().backends.len(), 1024);
    assert!(load(&many(1025)).unwrap_err().contains("at most 1024"));
}

#[test]
fn secrets_must_be_given_once_and_differ() {
    let keys = |items: &str| refusal(&format!("auth: {{keys: [{items}]}}"));
    assert!(
        keys("{name: a, key: k}, {name: b, key: k}").contains("'a' and 'b' have the same value")
    );
    assert!(keys("{name: a}").contains("missing key 'key' in 'auth.keys[0]'"));
    assert!(keys("{key: k}").contains("missing key 'name' in 'auth.keys[0]'"));
    let hash = crate::KeyHash::of(b"k").to_text();
    let twice = keys(&format!("{{name: a, key: k}}, {{name: b, hash: '{hash}'}}"));
    assert!(twice.contains("'a' and 'b' have the same value"), "{twice}");
    let both = keys(&format!("{{name: a, key: k, hash: '{hash}'}}"));
    assert!(both.contains("'auth.keys[0]' sets both a key and its 'hash'"), "{both}");
    let plain = keys("{name: a, hash: sk-secret}");
    assert!(plain.contains("is '***': expected sha256:") && !plain.contains("sk-"), "{plain}");
    let times = "not_before: 2027-01-01T00:00:00Z, expires_at: 2027-01-01T00:00:00Z";
    let never = keys(&format!("{{name: a, key: k, {times}}}"));
    assert!(never.contains("'auth.keys[0]' expires before it is valid"), "{never}");
    assert!(keys("{name: a, key: ''}").contains("the secret is empty"));
    assert!(keys("{name: a, key: '${NONE:-}'}").contains("the secret is empty"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    assert!(
        keys(&format!("{{name: a, key_file: {file}}}")).contains("not allowed in HTTP headers")
    );
    let error = load("backends: [{name: x, url: http://a, authorization: replace}]").unwrap_err();
    assert!(error.starts_with("penstock.yaml:1:52: backend 'x' sets"), "{error}");
}

#[test]
fn urls_in_errors_hide_passwords() {
    let error = load("- http://user:hunter2@a").unwrap_err();
    assert!(error.contains("api_key") && !error.contains("hunter2"), "{error}");
}

/// Returns the warnings for `text`, appended to a first line with a backend.
fn warned(text: &str) -> Vec<String> {
    warnings(&format!("backends: [http://a:1]\n{text}"))
}

#[test]
fn limits_that_disable_features_are_reported() {
    let error = refusal("telemetry: {max_cpu: 0}");
    let expected = "'telemetry.max_cpu' is '0': expected more than 0; `telemetry.enabled: false` turns telemetry off";
    assert!(error.contains(expected) && error.starts_with("penstock.yaml:2:"), "{error}");
    let weighted = "routing: {strategy: weighted}\nlimits: {prefix_memory: 1KiB}";
    assert_eq!(
        warned(weighted),
        [
            "penstock.yaml:3:10: 'limits.prefix_memory' is 1KiB, but one long prompt takes 64KiB: the prefix index is \
          too small to find cached prompts"
        ]
    );
    for fine in [
        "routing: {strategy: smart}\nlimits: {prefix_memory: 1KiB}",
        "routing: {strategy: weighted}\nlimits: {prefix_memory: 64KiB}",
        "routing: {strategy: weighted, preset: least-loaded}\nlimits: {prefix_memory: 0B}",
    ] {
        assert_eq!(warned(fine), Vec::<String>::new(), "{fine}");
    }
    let shadow = "routing: {shadow: {strategy: weighted, prefix_memory: 100KiB}}";
    assert!(warned(shadow)[0].contains("'routing.shadow.prefix_memory' is 100KiB"));
}

#[test]
fn weighted_without_telemetry_warns() {
    let off = "telemetry: {enabled: false}\n";
    for (routing, section) in
        [("strategy: weighted", "routing"), ("shadow: {strategy: weighted}", "routing.shadow")]
    {
        let found = warned(&format!("{off}routing: {{{routing}}}"));
        assert_eq!(found.len(), 1, "{found:?}");
        let expected = format!(
            "penstock.yaml:2:13: '{section}.strategy' is 'weighted', but telemetry is off: load is"
        );
        assert!(found[0].starts_with(&expected), "{found:?}");
    }
    assert_eq!(warned(&format!("{off}routing: {{strategy: smart}}")), Vec::<String>::new());
}

#[test]
fn settings_of_another_strategy_or_of_no_queue_warn() {
    let weights = "weights: {priority: 60, load: 20, latency: 20}";
    for (text, key) in [
        (format!("routing: {{preset: lmetric, {weights}}}"), "routing.weights"),
        (
            format!("routing: {{scorers: [{{name: queue-depth, weight: 1}}], {weights}}}"),
            "routing.weights",
        ),
        (format!("routing: {{strategy: round_robin, {weights}}}"), "routing.weights"),
        (format!("routing: {{shadow: {{strategy: random, {weights}}}}}"), "routing.shadow.weights"),
        ("routing: {prefer: knee}".to_owned(), "routing.prefer"),
        ("routing: {strategy: weighted, prefer: least}".to_owned(), "routing.prefer"),
        ("queue: {reserve: 0.5}".to_owned(), "queue.reserve"),
        ("queue: {size: 0, timeout: 3s}".to_owned(), "queue.timeout"),
        ("queue: {order: newest_under_overload}".to_owned(), "queue.order"),
    ] {
        let found = warned(&text);
        let expected = format!("'{key}' has no effect");
        assert!(found.len() == 1 && found[0].contains(&expected), "{text}: {found:?}");
        assert!(found[0].starts_with("penstock.yaml:2:"), "{found:?}");
    }
    for fine in [
        format!("routing: {{{weights}}}"),
        format!("routing: {{strategy: auto, {weights}}}"),
        format!("routing: {{shadow: {{strategy: smart, {weights}}}}}"),
        "routing: {strategy: slo, prefer: knee}".to_owned(),
        "routing: {shadow: {strategy: slo}, prefer: knee}".to_owned(),
        "queue: {size: 5, reserve: 0.5, timeout: 3s}".to_owned(),
        "queue: {size: 0}".to_owned(),
    ] {
        assert_eq!(warned(&fine), Vec::<String>::new(), "{fine}");
    }
}

#[test]
fn objective_that_no_file_has_says_so() {
    let error = refusal("auth: {keys: [{name: a, key: sk-a, objective: nope}]}");
    assert!(error.contains("(known: none, as 'objectives' is empty)"), "{error}");
}
