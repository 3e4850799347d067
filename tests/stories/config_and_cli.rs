//! An operator writes a configuration, validates it with `check` (errors have positions and
//! suggestions), prints the effective one, and tries the demo without an engine.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::command::{Ran, file, run, run_with};
use crate::support::engines::engine;
use crate::support::penstock::{binary, remove_own_variables};
use crate::support::{client, free_address};

fn check(yaml: &str) -> Ran {
    let config = file("penstock.yaml", yaml);
    run(["check".as_ref(), "--config".as_ref(), config.as_os_str()])
}

fn conf_files() -> Vec<PathBuf> {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let examples = std::fs::read_dir(conf.join("examples")).unwrap();
    let examples = examples.map(|entry| entry.unwrap().path());
    [conf.join("penstock.yaml")].into_iter().chain(examples).collect()
}

#[test]
fn shipped_files_pass_the_check() {
    let files = conf_files();
    assert!(files.len() >= 5, "{files:?}");
    let token = file("admin-token", "for-this-test");
    let mounted = [("PENSTOCK_ADMIN_TOKEN_FILE", token.to_str().unwrap())];
    for path in files {
        // The token of the example for Kubernetes is mounted into its pod.
        let variables = if path.ends_with("kubernetes.yaml") { &mounted[..] } else { &[] };
        let arguments = ["check".as_ref(), "--config".as_ref(), path.as_os_str()];
        let ran = run_with(arguments, b"", variables);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", path.display());
        assert!(ran.stdout.contains("is valid"), "{}", ran.stdout);
    }
}

#[test]
fn check_prints_a_summary() {
    let ran = check(
        "routing: { strategy: Priority-Only, aliases: { gpt-4: m }, fallbacks: { m: [n] } }\n\
         backends: [{ name: a, url: http://a:1, models: [m] }, { name: b, url: http://b:1, models: [n] }]",
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["priority_only", "backends    2", "gpt-4 -> m", "m -> n", "warnings    0"] {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
    let empty = check("backends: []");
    assert_eq!(empty.code, Some(0), "an empty fleet may be meant");
    assert!(empty.stderr.contains("'backends' is empty"), "{}", empty.stderr);
}

#[test]
fn errors_have_position_and_suggestion() {
    let one = "backends: [http://a:1]\n";
    for (yaml, parts) in [
        ("routing:\n  strateggy: smart", vec!["penstock.yaml:3:3", "did you mean 'strategy'?"]),
        ("routing: { weights: { load: 31 } }", vec!["weights", "100", "101", ":2:"]),
        ("routing: { aliases: { a: b, b: c, c: a } }", vec!["a -> b -> c -> a"]),
        ("routing: { aliases: { self: self } }", vec!["self -> self"]),
        ("timeouts: { connect: 5 }", vec![":2:22", "not a duration", "250ms"]),
        ("limits: { max_body_size: lots }", vec!["not a size", "32MiB"]),
        ("server: { listen: [here] }", vec!["IP address"]),
        ("admin: { listen: 0.0.0.0:9 }", vec!["admin.token_file"]),
        ("routing: [", vec!["penstock.yaml:"]),
        ("models: { m: { timeout: 1s } }", vec!["did you mean 'timeouts'?"]),
        ("server: { listen: [\"${NOT_SET_ANYWHERE}\"] }", vec!["NOT_SET_ANYWHERE"]),
    ] {
        let ran = check(&format!("{one}{yaml}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{yaml}: {}", ran.stderr);
        for part in parts {
            assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
        }
    }
    for (yaml, part) in [
        ("", "no backends"),
        ("routing: {}", "no backends"),
        ("backends: [{ name: x }]", "missing key 'url'"),
        ("backends: [{ url: http://a, engine: vlllm }]", "did you mean 'vllm'?"),
        ("backends: [{ url: \"ftp://a\" }]", "http"),
        ("backends: [{ url: http://a, name: x }, { url: http://b, name: x }]", "duplicate backend"),
    ] {
        let ran = check(yaml);
        assert_eq!(ran.code, Some(2), "{yaml}");
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
    let ran = check("backends: [http://a]\nrooting: {}\nlimits: { boddy: 1MiB }");
    let faults = ran.stderr.lines().filter(|line| line.contains("penstock.yaml:")).count();
    assert_eq!(faults, 2, "all at once: {}", ran.stderr);
    let ran = run(["check", "--config", "/nowhere/penstock.yaml"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("cannot read"), "{}", ran.stderr);
}

#[test]
fn all_faults_come_at_once_with_the_warnings() {
    let ran = check(
        "server: { listen: 127.0.0.1:8080, colour: red }\n\
         admin: { listen: 0.0.0.0:9090 }\n\
         limits: { max_body_size: lots }\n\
         routing: { smart: {}, weights: { load: 31 }, aliases: { a: b, b: a } }\n\
         backends:\n\
         - { name: x, url: http://a/v1/chat/completions }\n\
         - { name: x, url: http://b, priority: high }\n\
         - { name: y, url: http://127.0.0.1:8080, authorization: replace }",
    );
    assert_eq!(ran.code, Some(2));
    for part in [
        "unknown key 'colour' in 'server'",
        "'admin.listen' is 0.0.0.0:9090, which is not loopback",
        "not a size",
        "unknown key 'smart' in 'routing': did you mean 'routing.weights'?",
        "'routing.weights' must sum to 100, not 101",
        "duplicate backend 'x'",
        "'backends[1].priority' is 'high'",
        "backend 'y' sets 'authorization: replace'",
        "warning: ",
        "the path of an endpoint, '/v1/chat/completions'",
        "backend 'y' has the address of the data port",
    ] {
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
    let misspelled = check("admin: { listen: 0.0.0.0:9090, token_fil: x }\nbackends: [http://a]");
    assert!(misspelled.stderr.contains("did you mean 'token_file'?"), "{}", misspelled.stderr);
    assert!(!misspelled.stderr.contains("not loopback"), "it may be set: {}", misspelled.stderr);
    let unread = check("backends: [ftp://a, http://b]\nrouting: { aliases: { a: m } }");
    let faults = unread.stderr.lines().filter(|line| line.contains("penstock.yaml:")).count();
    assert_eq!(faults, 1, "no rule judges the default of an invalid value: {}", unread.stderr);
}

#[test]
fn misplaced_keys_get_their_place() {
    for (yaml, place) in [
        ("server: { tls: {} }", "'server.listen[].tls'"),
        ("strategy: smart", "'routing.strategy'"),
        ("server: { port: 8080 }", "'server.listen'"),
        ("aliases: { a: b }", "'routing.aliases'"),
        ("limits: { max_retries: 3 }", "'routing.max_retries'"),
        ("listen: 127.0.0.1:1", "'server.listen'"),
    ] {
        let ran = check(&format!("backends: [http://a]\n{yaml}"));
        let hint = format!("did you mean {place}");
        assert!(ran.code == Some(2) && ran.stderr.contains(&hint), "{yaml}: {}", ran.stderr);
    }
}

#[test]
fn urls_of_endpoints_are_warned_of() {
    for (url, base) in [
        ("http://h:8000/v1/chat/completions", "http://h:8000"),
        ("http://h:8000/v1/messages", "http://h:8000"),
        ("http://h:8000/v1/models/", "http://h:8000"),
        ("http://h:11434/api", "http://h:11434"),
        ("http://h:11434/api/generate", "http://h:11434"),
        ("https://h/gateway/v1/responses", "https://h/gateway"),
    ] {
        let ran = check(&format!("backends: [{{ name: b, url: '{url}' }}]"));
        let hint = format!("write '{base}'");
        assert!(ran.stderr.contains(&hint), "{url}: {}", ran.stderr);
        assert!(ran.stdout.contains("warnings    1"), "{}", ran.stdout);
    }
    for url in ["http://h:8000/v1", "https://openrouter.ai/api/v1", "https://h/v1beta/openai"] {
        let ran = check(&format!("backends: [ '{url}' ]"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{url}");
    }
}

#[test]
fn broken_indentation_is_explained() {
    for (yaml, place, cause) in [
        ("server:\n  listen: 127.0.0.1:1\n   threads: 2\n", ":3:", "wrong indentation"),
        ("backends:\n  - url: http://a\n   name: b\n", ":3:", "wrong indentation"),
        ("server:\n    threads: 2\n  cors: off\n", ":3:", "wrong indentation"),
        ("server:\n\tthreads: 2\n", ":2:1:", "indented with a tab"),
        ("backends:\n  - url: http://a\n\tname: b\n", ":3:1:", "indented with a tab"),
        ("routing:\n  aliases:\n    a: b: c\n", ":3:", "put it in quotes"),
        ("backends: [http://a\nrouting: {}\n", ":2:", "is not closed"),
        ("backends:\n  - name: @b\n", ":2:", "starts with '@' needs quotes"),
        ("backends:\n  - name: *b\n", ":2:", "starts with '*' needs quotes"),
    ] {
        let ran = check(yaml);
        assert_eq!(ran.code, Some(2), "{yaml}: {}", ran.stderr);
        let line = ran.stderr.lines().find(|line| line.contains("penstock.yaml")).unwrap();
        assert!(line.contains(place) && line.contains(cause), "{yaml}: {line}");
    }
}

#[test]
fn patterns_count_as_aliases() {
    let ran = check("routing: { aliases: { 'gpt-*': m, big: m } }\nbackends: [http://a]");
    assert!(ran.stdout.contains("aliases     2\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("gpt-* -> m\n"), "{}", ran.stdout);
}

#[test]
fn pipes_are_read_for_a_while_only() {
    let yaml = "backends: [http://a]";
    let piped = run_with(["check", "--config", "/dev/stdin"], yaml.as_bytes(), &[]);
    assert_eq!(piped.code, Some(0), "{}", piped.stderr);
    let pipe = crate::support::penstock::scratch("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let ran = run(["check".as_ref(), "--config".as_ref(), pipe.as_os_str()]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("it is not a file, and nothing is written"), "{}", ran.stderr);
}

#[test]
fn warnings_do_not_fail_the_check() {
    let ran = check(
        "routing: { strategy: fastest, aliases: { a: b, b: c, c: d, d: m } }\n\
         backends: [{ url: http://a, models: [m, a] }]",
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["UNKNOWN STRATEGY 'fastest'", "takes 4 hops", "hides the model"] {
        assert!(ran.stderr.contains(part), "{part} in {}", ran.stderr);
    }
    assert!(!ran.stdout.contains("warnings    0"), "{}", ran.stdout);
}

#[test]
fn check_shows_why_a_strategy_was_selected() {
    for (routing, expected) in [
        ("preset: llm-d", "strategy    weighted, preset llm-d (prefix-affinity 3"),
        ("preset: llm-d", "; max-score), because routing.preset is set\n"),
        ("scorers: \"queue-depth:1\"", "max-score), because routing.scorers is set\n"),
        ("weights: { load: 30 }", "latency 20), because only routing.weights is set\n"),
        ("strategy: smart, weights: { load: 30 }", "latency 20)\n"),
    ] {
        let ran = check(&format!("routing: {{ {routing} }}\nbackends: [http://a]"));
        assert!(ran.stdout.contains(expected), "{routing}: {}", ran.stdout);
    }
}

#[test]
fn environment_and_flags_override_the_file() {
    let config =
        file("penstock.yaml", "routing: { strategy: smart, max_retries: 1 }\nbackends: [http://a]");
    let config = config.to_str().unwrap();
    let environment =
        [("PENSTOCK_ROUTING_STRATEGY", "random"), ("PENSTOCK_ROUTING_MAX_RETRIES", "7")];
    let ran = run_with(["config", "dump", "--config", config], b"", &environment);
    assert!(ran.stdout.contains("strategy: random"), "{}", ran.stdout);
    assert!(ran.stdout.contains("max_retries: 7"), "{}", ran.stdout);
    let arguments = ["config", "dump", "--config", config, "--strategy", "round-robin"];
    let ran = run_with(arguments, b"", &environment);
    assert!(ran.stdout.contains("strategy: round_robin"), "{}", ran.stdout);
    let ran =
        run_with(["check", "--config", config], b"", &[("PENSTOCK_ROUTING_MAX_RETRIES", "x")]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("PENSTOCK_ROUTING_MAX_RETRIES"), "{}", ran.stderr);
}

#[test]
fn control_characters_are_escaped() {
    let ran = check("backends:\n- { url: http://a, models: [\"m\\rx\", \"e\\e[2J\", \"bel\\a\"] }");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["m\\rx", "e\\u{1b}[2J", "bel\\u{7}"] {
        assert!(ran.stdout.contains(part), "{part} in {}", ran.stdout);
    }
    let ran = check("backends:\n- { name: \"a\\nb\", url: http://a }");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("'backends[0].name' is 'a\\nb': expected"), "{}", ran.stderr);
    let all = ran.stdout + &ran.stderr;
    assert!(!all.contains(|c: char| c.is_control() && c != '\n'), "{all:?}");

    let many: Vec<String> = (0..500).map(|number| format!("model-{number}")).collect();
    let ran = check(&format!("backends: [{{ url: http://a, models: [{}] }}]", many.join(", ")));
    assert!(ran.stdout.contains("model-19 and 480 more"), "{}", ran.stdout);
}

#[test]
fn messages_name_the_file_and_not_the_library() {
    for (text, expected) in [
        (&b"backends: [http://a]\n---\nbackends: [http://b]\n"[..], ":3:1: a second YAML document"),
        (b"backends: [http://a]\nlog: {}\nlog: {}\n", ":3:1: duplicate key 'log'"),
        (b"just some text\n", ":1:1: the file is a single value: expected a mapping"),
        (b"backends:\n- http://a # caf\xe9\n", ":2:17: byte 0xe9 is not UTF-8"),
        (b"\xff\xfeb\0a\0", ":1:1: the text is UTF-16, not UTF-8: save the file as UTF-8"),
    ] {
        let config = file("penstock.yaml", text);
        let ran = run(["check".as_ref(), "--config".as_ref(), config.as_os_str()]);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{expected} in {}", ran.stderr);
        for leaked in ["from_str", "Policy", "Options", "''", "stream did not"] {
            assert!(!ran.stderr.contains(leaked), "{leaked} in {}", ran.stderr);
        }
    }
}

#[test]
fn backends_at_own_addresses_are_warned_of() {
    for (listen, url, is_loop) in [
        ("127.0.0.1:18080", "http://127.0.0.1:18080", true),
        ("0.0.0.0:18080", "http://localhost:18080", true),
        ("\\\"[::]:18080\\\"", "http://127.0.0.1:18080", true),
        ("127.0.0.1:18080", "http://127.0.0.1:18081", false),
        ("127.0.0.1:18080", "http://10.0.0.5:18080", false),
        ("127.0.0.1:18080", "http://127.0.0.1:9090", true),
    ] {
        let listen = listen.replace("\\\"", "");
        let ran = check(&format!("server: {{ listen: \"{listen}\" }}\nbackends: [\"{url}\"]"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("would return to this process"), is_loop, "{}", ran.stderr);
    }
}

#[test]
fn check_opens_what_a_start_opens() {
    let missing = file("here", "").with_file_name("missing").join("access.log");
    let ran =
        check(&format!("access_log: {{ path: \"{}\" }}\nbackends: [http://a]", missing.display()));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("missing does not exist"), "{}", ran.stderr);
    let new = file("here", "").with_file_name("access.log");
    let ran =
        check(&format!("access_log: {{ path: \"{}\" }}\nbackends: [http://a]", new.display()));
    assert_eq!((ran.code, new.exists()), (Some(0), false), "it creates no file: {}", ran.stderr);
}

#[test]
fn address_that_cannot_be_opened_ends_the_process() {
    // No socket can be made there, which only an attempt shows.
    let config = file(
        "penstock.yaml",
        "server: { listen: unix:/proc/penstock.sock }\nadmin: { listen: \"127.0.0.1:0\" }\n\
         backends: [http://127.0.0.1:1]",
    );
    let ran = run(["serve".as_ref(), "--config".as_ref(), config.as_os_str()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("penstock data: cannot listen, exiting"), "{}", ran.stderr);
}

#[test]
fn low_memory_limit_is_an_error_line() {
    let config = file(
        "penstock.yaml",
        "server: { listen: 127.0.0.1:0, threads: 64 }\nadmin: { listen: off }\nbackends: [http://127.0.0.1:1]",
    );
    let mut refused = 0;
    for limit in [90_000, 110_000, 130_000] {
        let mut command = std::process::Command::new("sh");
        let line = format!("ulimit -v {limit}; exec \"$0\" serve --config \"$1\"");
        remove_own_variables(&mut command);
        let output =
            command.args(["-c", &line]).arg(binary().get_program()).arg(&config).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!log.contains("panicked"), "{limit}: {log}");
        // Between "no threads" and "enough" an allocation may fail, which ends any Rust program.
        let is_refused = log.contains("error: cannot start its threads");
        let ends = ["memory allocation of", "Fatal glibc error: failed to register TLS destructor"];
        let is_out_of_memory = ends.iter().any(|end| log.contains(end));
        assert!(is_refused || is_out_of_memory, "{limit}: {log}");
        assert!(!is_refused || output.status.code() == Some(1), "{limit}: {log}");
        refused += usize::from(is_refused);
    }
    assert!(refused > 0, "no limit was met while threads were started");
}

#[test]
fn unknown_variables_are_refused() {
    let config = file("penstock.yaml", "backends: [http://a]");
    for (command, variable, expected) in [
        ("check", "PENSTOCK_AUTH_KEYS", "'auth.keys' can be set only in the configuration file"),
        ("serve", "PENSTOCK_AUTH_KEYS", "'auth.keys' can be set only in the configuration file"),
        ("serve", "PENSTOCK_BACKENDS", "'backends' can be set only in the configuration file"),
        ("check", "PENSTOCK_ROUTING_STRATEGI", "did you mean 'PENSTOCK_ROUTING_STRATEGY'?"),
        ("check", "PENSTOCK_CONFIGS", "did you mean 'PENSTOCK_CONFIG'?"),
        ("check", "PENSTOCK_ANYTHING", "no such setting"),
    ] {
        let arguments = [command, "--config", config.to_str().unwrap()];
        let ran = run_with(arguments, b"", &[(variable, "[{name: a, key: zzz}]")]);
        assert_eq!(ran.code, Some(2), "{command} {variable}: {}", ran.stderr);
        let line = format!("{variable}: unknown environment variable");
        assert!(ran.stderr.contains(&line) && ran.stderr.contains(expected), "{}", ran.stderr);
    }
}

#[test]
fn dump_shows_everything_but_secrets() {
    let token = file("token", "token-secret-3\n");
    let key = file("key", "file-secret-2\n");
    let yaml = format!(
        "admin: {{ token_file: \"{}\" }}\nauth: {{ keys: [{{ name: k, key: client-secret-1 }}] }}\n\
         backends: [{{ name: a, url: http://a, api_key: \"${{UP}}\" }}, {{ name: b, url: http://b, api_key_file: \"{}\" }}]",
        token.display(),
        key.display()
    );
    let config = file("penstock.yaml", yaml);
    let arguments = ["config".as_ref(), "dump".as_ref(), "--config".as_ref(), config.as_os_str()];
    let ran = run_with(arguments, b"", &[("UP", "env-secret-4")]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for secret in ["client-secret-1", "file-secret-2", "token-secret-3", "env-secret-4"] {
        assert!(!ran.stdout.contains(secret) && !ran.stderr.contains(secret), "{secret} is shown");
    }
    for part in ["first_token: 120s", "max_retries: 2", "max_body_size: 32MiB", "priority: 50"] {
        assert!(ran.stdout.contains(part), "{part}, a default, in {}", ran.stdout);
    }
    let plain = file("plain.yaml", "backends: [{ name: a, url: http://a, models: [m] }]");
    let dump = |path: &Path| {
        run(["config".as_ref(), "dump".as_ref(), "--config".as_ref(), path.as_os_str()]).stdout
    };
    let first = dump(&plain);
    assert_eq!(dump(&file("again.yaml", &first)), first, "a dump loads back as what it was");
}

#[test]
fn schema_is_valid_json() {
    let ran = run(["config", "schema"]);
    let schema: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(schema["$schema"].as_str().unwrap().contains("json-schema.org"));
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(["completions", shell]);
        assert_eq!(ran.code, Some(0));
        assert!(ran.stdout.contains("penstock"), "{shell}");
    }
}

#[test]
fn help_lists_commands_examples_and_exit_codes() {
    let ran = run(["--help"]);
    assert_eq!(ran.code, Some(0));
    for word in
        ["serve", "check", "explain", "demo", "config", "completions", "Examples", "Exit codes"]
    {
        assert!(ran.stdout.contains(word), "{word} in {}", ran.stdout);
    }
    assert!(run(["--version"]).stdout.starts_with("penstock "));
    for command in ["serve", "check", "explain"] {
        assert!(run([command, "--help"]).stdout.contains("--config"), "{command}");
    }
    let wrong = run(["serv"]);
    assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(2), ""));
    assert!(wrong.stderr.contains("serve"), "a suggestion: {}", wrong.stderr);
    assert_eq!(run(["explain", "--config", "x"]).code, Some(2), "a request is missing");
}

#[test]
fn smallest_configuration_serves() {
    let engine = engine("one", &["m"]);
    let (data, admin) = (free_address(), free_address());
    let config = file("penstock.yaml", format!("[{}]", engine.url()));
    let mut child = binary()
        .args([
            "serve",
            "--listen",
            &data.to_string(),
            "--admin-listen",
            &admin.to_string(),
            "--config",
        ])
        .arg(config)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::support::eventually("it serves", Duration::from_secs(15), || {
        client::is_ok(admin, "/health/ready") && std::net::TcpStream::connect(data).is_ok()
    });
    let response = client::post(data, "/v1/chat/completions", &client::chat("m", "hello"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
}

#[test]
fn failed_start_names_its_cause() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = file("penstock.yaml", "backends: [http://127.0.0.1:1]");
    let config = config.to_str().unwrap();
    let admin = free_address().to_string();
    let arguments = ["serve", "--config", config, "--listen", &address, "--admin-listen", &admin];
    let ran = run(arguments);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains(&address), "{}", ran.stderr);
    let broken = file("broken.yaml", "backends: [{}]");
    let ran = run(["serve", "--config", broken.to_str().unwrap()]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("missing key 'url'"), "{}", ran.stderr);
    assert_eq!(run(["serve", "--config", "/nowhere.yaml"]).code, Some(2));
}

#[test]
fn demo_routes_as_expected() {
    let ran = run(["demo", "--once", "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let wanted = [
        ("vision", "vision", "200"),
        ("tools", "tools", "200"),
        ("alias", "tools", "200"),
        ("404", "-", "404"),
    ];
    for (line, (label, backend, status)) in lines.iter().zip(wanted) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..4], [label, "->", backend, status], "{line}");
    }
    let [session, failover] = &lines[wanted.len()..] else { panic!("{}", ran.stdout) };
    assert!(session.starts_with("session  -> text") && session.contains(" 200 "), "{session}");
    assert!(session.contains("6 turns of an agent: 6 on text"), "one engine: {session}");
    assert!(failover.starts_with("failover -> text-2  200"), "{failover}");
    assert!(failover.contains("then engine 'text' was killed: 0 failed, "), "{failover}");
}
