//! Hot reload: an operator changes the configuration under load. No request fails, streams finish,
//! learned state survives, and an invalid file changes nothing. (R.F1, R.F2)

use std::time::Duration;

use penstock_mock::{EngineModel, MockEngine, MockSpec, Pace};
use serde_json::{Value, json};

use crate::support::client::{self, Client, chat, streaming_chat};
use crate::support::command::{file, run};
use crate::support::engines::{backend, engine, last_body, start};
use crate::support::fleet::{CHAT, SOON, begin, metric};
use crate::support::load::Load;
use crate::support::penstock::Penstock;
use crate::support::{block_on, eventually};

const SLOW: Pace =
    Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(60), tokens: 40 };

fn slow_engine(name: &str) -> MockEngine {
    let spec = MockSpec::new(name, [EngineModel::new("stream")]);
    start(MockSpec { pace: SLOW, ..spec })
}

fn list(engines: &[&MockEngine], more: &str) -> String {
    let items: String = engines.iter().map(|one| backend(one, more)).collect();
    format!("backends:\n{items}")
}

fn reload(penstock: &Penstock, yaml: &str) -> Value {
    penstock.rewrite(yaml);
    let response = penstock.reload();
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[test]
fn reloads_under_load_lose_no_request() {
    let (a, b, c) = (engine("a", &["m"]), engine("b", &["m"]), engine("c", &["m"]));
    let slow = slow_engine("slow");
    let only_m = |engines: &[&MockEngine]| list(engines, "models: [m]");
    let streamed = "  - { name: slow, models: [stream], url: ";
    let first = format!("{}{streamed}\"{}\" }}\n", only_m(&[&a, &b]), slow.url());
    let penstock = Penstock::start(&first);
    let mut streams: Vec<Client> =
        (0..3).map(|_| begin(penstock.data, CHAT, &streaming_chat("stream", "hello"))).collect();
    block_on(slow.wait_for(|counters| counters.events >= 3)).unwrap();
    let rounds = [
        only_m(&[&a, &b, &c]),
        format!("routing: {{ strategy: round_robin, max_retries: 1 }}\n{}", only_m(&[&b, &c])),
        format!("limits: {{ max_body_size: 1MiB }}\n{}", only_m(&[&c])),
        format!("routing: {{ aliases: {{ x: m }} }}\n{}", only_m(&[&a, &c])),
        only_m(&[&a, &b]),
    ];
    let (sent, failed) = Load::during(&penstock, |load| {
        for yaml in &rounds {
            load.wait_for(40);
            reload(&penstock, yaml);
        }
        load.wait_for(40);
    });
    assert_eq!(failed, 0, "of {sent} requests during five reloads");
    assert!(sent > 100, "{sent}");
    assert!(c.counters().requests > 0, "the backend that came was used");
    for stream in &mut streams {
        let response = stream.read_response().unwrap();
        assert!(response.is_whole && response.text().ends_with("data: [DONE]\n\n"));
    }
    // The client may have the last byte before the engine counts it.
    eventually("all three have responses", SOON, || slow.counters().responded == 3);
    assert_eq!(slow.counters().cancelled, 0);
    assert_eq!(metric(&penstock, "penstock_config_reloads_total{result=\"applied\"}"), 5.0);
}

#[test]
fn fleet_is_replaced_under_load() {
    // The same names at other addresses: every backend is new, without learned state.
    let (old, new) = (engine("a", &["m"]), engine("a", &["m"]));
    let penstock = Penstock::start(&list(&[&old], ""));
    let (sent, failed) = Load::during(&penstock, |load| {
        for turn in 0..6 {
            load.wait_for(20);
            let report = reload(&penstock, &list(&[if turn % 2 == 0 { &new } else { &old }], ""));
            assert_eq!(report["changed"][0]["setting"], "backends[a].url", "{report}");
        }
    });
    assert_eq!(failed, 0, "of {sent} requests");
    assert!(old.counters().requests > 0 && new.counters().requests > 0);
}

#[test]
fn invalid_file_keeps_the_old_configuration() {
    let one = engine("one", &["m"]);
    let good = list(&[&one], "models: [m]");
    let penstock = Penstock::start(&good);
    let before = penstock.admin("/config").text();
    penstock.rewrite(&good);
    let whole = std::fs::read_to_string(&penstock.config).unwrap();
    let mistaken = format!("{whole}routing:\n  strateggy: random\n");
    let truncated = &whole[..whole.len() - 12];
    let faulty = [
        (mistaken.as_str(), ".yaml:6:3", "did you mean 'strategy'?"),
        ("", ".yaml:1:1", "no backends"),
        (truncated, ".yaml:", ""),
        ("routing: [", ".yaml:1:", ""),
        ("\0\u{1}binary", ".yaml:1:", ""),
    ];
    for (number, (text, place, hint)) in (1_u32..).zip(faulty) {
        std::fs::write(&penstock.config, text).unwrap();
        let response = penstock.reload();
        let message = response.text();
        assert_eq!(
            (response.status, response.error_code()),
            (422, "invalid_configuration".to_owned())
        );
        assert!(message.contains(place) && message.contains(hint), "{place} {hint} in {message}");
        assert_eq!(penstock.chat("m").status, 200, "the old configuration stays in force");
        assert_eq!(penstock.admin("/config").text(), before);
        let refused = metric(&penstock, "penstock_config_reloads_total{result=\"refused\"}");
        assert_eq!(refused, f64::from(number));
        assert_eq!(metric(&penstock, "penstock_config_last_reload_successful"), 0.0);
        let config = file("penstock.yaml", text);
        let checked = run(["check".as_ref(), "--config".as_ref(), config.as_os_str()]);
        assert_eq!(checked.code, Some(2), "check says the same");
    }
    std::fs::remove_file(&penstock.config).unwrap();
    let response = penstock.reload();
    assert_eq!(response.status, 422, "a file that is gone: {}", response.text());
    assert!(penstock.log().contains("the previous one stays in force"), "{}", penstock.log());
    assert_eq!(penstock.chat("m").status, 200);
    reload(&penstock, &good);
    assert_eq!(metric(&penstock, "penstock_config_last_reload_successful"), 1.0);
}

#[test]
fn empty_list_of_backends_is_refused() {
    let one = engine("one", &["m"]);
    let good = list(&[&one], "models: [m]");
    let penstock = Penstock::start(&good);
    penstock.rewrite("backends: []");
    let response = penstock.reload();
    assert_eq!(
        (response.status, response.error_code().as_str()),
        (422, "invalid_configuration"),
        "{}",
        response.text()
    );
    assert!(response.text().contains("1 are in use"), "{}", response.text());
    assert_eq!(penstock.chat("m").status, 200, "the old configuration stays in force");
    reload(&penstock, &good);
}

#[test]
fn pipe_without_a_writer_is_refused_at_once() {
    let one = engine("one", &["m"]);
    let good = list(&[&one], "models: [m]");
    let penstock = Penstock::start(&good);
    std::fs::remove_file(&penstock.config).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&penstock.config).status().unwrap();
    assert!(made.success());
    let response = penstock.reload();
    assert_eq!(response.status, 422, "{}", response.text());
    let reason = "it is not a file, and nothing is written to it";
    assert!(response.text().contains(reason), "a writer gets five seconds: {}", response.text());
    std::fs::remove_file(&penstock.config).unwrap();
    reload(&penstock, &good);
    assert_eq!(penstock.chat("m").status, 200, "later reloads work");
}

#[test]
fn sighup_reloads_and_logs_the_result() {
    let one = engine("one", &["m"]);
    let good = list(&[&one], "models: [m]");
    let penstock = Penstock::start(&good);
    penstock.rewrite(&format!("routing: {{ strategy: random }}\nlog: {{ level: debug }}\n{good}"));
    penstock.signal("HUP");
    let in_force = || penstock.admin("/config").text().contains("strategy: random");
    eventually("the new strategy is in force", SOON, in_force);
    eventually("the reload is logged", SOON, || penstock.log().contains("configuration reloaded"));
    assert!(penstock.log().contains("routing.strategy"), "{}", penstock.log());
    assert_eq!(penstock.reload().status, 200);
    eventually("the log follows its level", SOON, || penstock.log().contains("DEBUG"));
    penstock.rewrite("backends: {");
    penstock.signal("HUP");
    eventually("the fault is logged with its place", SOON, || {
        let log = penstock.log();
        log.contains("configuration refused") && log.contains("penstock.yaml:3:")
    });
    assert!(in_force(), "the last valid one stays in force");
    assert_eq!(penstock.chat("m").status, 200);
}

/// A backend's row of `/fleet`, without the time since its models were used.
fn facts_of(penstock: &Penstock, name: &str) -> Value {
    let mut row = penstock.backend(name);
    for model in row["models"].as_array_mut().into_iter().flatten() {
        model.as_object_mut().unwrap().remove("used_s_ago");
    }
    row
}

#[test]
fn learned_state_survives_a_reload() {
    let (kept, moved) = (engine("kept", &["m"]), engine("moved", &["m"]));
    let elsewhere = engine("moved", &["m"]);
    let penstock = Penstock::start(&list(&[&kept, &moved], "engine: other,"));
    for _ in 0..4 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    let drained = client::request(penstock.admin, "POST", "/backends/kept/drain", &[], b"");
    assert_eq!(drained.status, 200);
    let before = facts_of(&penstock, "kept");
    let report = reload(&penstock, &list(&[&kept, &elsewhere], "engine: other, priority: 7,"));
    assert_eq!(report["backends"]["added"], json!([]), "{report}");
    let after = facts_of(&penstock, "kept");
    for fact in ["requests_total", "health", "models", "breaker"] {
        assert_eq!(after[fact], before[fact], "{fact}");
    }
    assert_eq!(after["health"], "draining", "what an operator said stays said");
    assert_eq!(after["priority"], 7);
    assert_eq!(penstock.backend("moved")["requests_total"], 0, "another address, another backend");
}

#[test]
fn removed_backend_gets_no_more_checks() {
    let (stays, goes) = (engine("stays", &["m"]), engine("goes", &["m"]));
    let often = "health: { interval: 50ms }\nlimits: { idle_timeout: 60s }\n";
    let both =
        format!("{often}routing: {{ strategy: round_robin }}\n{}", list(&[&stays, &goes], ""));
    let penstock = Penstock::start(&both);
    for _ in 0..4 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert!(goes.counters().open_connections > 0, "a connection is kept");
    let report = reload(&penstock, &format!("{often}{}", list(&[&stays], "")));
    assert_eq!(report["backends"]["removed"], json!(["goes"]), "{report}");
    let is_left = || goes.counters().open_connections == 0;
    eventually("its connections are closed", SOON, is_left);
    let probes = goes.probes().len();
    let others = stays.probes().len();
    eventually("the others are still checked", SOON, || stays.probes().len() >= others + 5);
    assert_eq!(goes.probes().len(), probes, "no check goes there any more");
    assert_eq!(penstock.chat("m").status, 200);
}

#[test]
fn new_backend_serves_when_the_reload_returns() {
    let (one, two) = (engine("one", &["m"]), engine("two", &["n"]));
    let penstock = Penstock::start(&list(&[&one], ""));
    assert_eq!(penstock.chat("n").status, 404);
    for turn in 0..3 {
        reload(&penstock, &list(&[&one, &two], ""));
        assert_eq!(
            penstock.chat("n").status,
            200,
            "health-checked and models discovered, turn {turn}"
        );
        reload(&penstock, &list(&[&one], ""));
        assert_eq!(penstock.chat("n").status, 404);
    }
    let unreachable = "  - { name: gone, url: \"http://127.0.0.1:9\", models: [x] }\n";
    let report = reload(&penstock, &format!("{}{unreachable}", list(&[&one], "")));
    assert_eq!(report["backends"]["not_healthy"], json!(["gone"]), "{report}");
    assert_eq!(penstock.admin("/health/ready").status, 200, "a reload does not affect readiness");
}

#[test]
fn secret_files_are_reread_and_never_shown() {
    let one = engine("one", &["m"]);
    let (client_key, engine_key) = (file("client", "first-client"), file("engine", "first-engine"));
    let yaml = format!(
        "auth: {{ keys: [{{ name: t, key_file: \"{}\" }}] }}\n{}",
        client_key.display(),
        list(&[&one], &format!("models: [m], api_key_file: \"{}\"", engine_key.display()))
    );
    let penstock = Penstock::start(&yaml);
    let ask = |key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let body = chat("m", "hello").to_string();
        client::request(penstock.data, "POST", CHAT, &headers, body.as_bytes()).status
    };
    assert_eq!((ask("first-client"), ask("second-client")), (200, 401));
    std::fs::write(&client_key, "second-client\n").unwrap();
    std::fs::write(&engine_key, "second-engine\n").unwrap();
    let report = reload(&penstock, &yaml);
    assert_eq!((ask("first-client"), ask("second-client")), (401, 200));
    let sent = one.received().pop().unwrap();
    assert_eq!(sent.header("authorization"), Some("Bearer second-engine"));
    let changed: Vec<&str> = report["changed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["setting"].as_str().unwrap())
        .collect();
    assert_eq!(changed, ["auth.keys", "backends[one].api_key"]);
    for text in [report.to_string(), penstock.log()] {
        for key in ["first-client", "second-client", "first-engine", "second-engine"] {
            assert!(!text.contains(key), "{text}");
        }
    }
}

#[test]
fn limits_apply_and_restart_settings_are_named() {
    let one = engine("one", &["m"]);
    let fleet = list(&[&one], "models: [m]");
    let penstock = Penstock::start(&fleet);
    let large = chat("m", &"x".repeat(4096));
    assert_eq!(penstock.post(CHAT, &large).status, 200);
    let report = reload(
        &penstock,
        &format!(
            "limits: {{ max_body_size: 2KiB, max_head_size: 1KiB, metric_models: 7 }}\n\
             log: {{ format: json }}\nrouting: {{ aliases: {{ short: m }} }}\n{fleet}"
        ),
    );
    assert_eq!(report["result"], "applied");
    assert_eq!(report["restart_needed"], json!(["limits.metric_models", "log.format"]), "{report}");
    assert_eq!(penstock.post(CHAT, &large).status, 413);
    let long = [("x-long", "y".repeat(16 * 1024))];
    let long: Vec<(&str, &str)> =
        long.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(client::request(penstock.data, "GET", "/health", &long, b"").status, 431);
    assert_eq!(penstock.chat("short").status, 200);
    assert!(String::from_utf8(last_body(&one)).unwrap().contains("\"m\""));
    let again = penstock.reload().json();
    assert_eq!(again["changed"], json!([]), "nothing changed since");
    assert_eq!(again["restart_needed"], report["restart_needed"], "still to be done");
}

#[test]
fn trusted_proxies_apply_after_a_reload() {
    let one = engine("one", &["m"]);
    let server = "forwarded_for: append, trusted_proxies: [10.0.0.0/8]";
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let penstock = Penstock::start_listening(&[], server, &yaml);
    // One connection: the trusted proxies are checked for each request.
    let mut kept = Client::connect(penstock.data);
    let mut forwarded_for = || {
        let fields = [("x-forwarded-for", "198.51.100.7")];
        kept.send("POST", CHAT, &fields, chat("m", "hello").to_string().as_bytes());
        assert_eq!(kept.read_response().unwrap().status, 200);
        let received = one.received().pop().unwrap();
        received.header("x-forwarded-for").map(str::to_owned)
    };
    assert_eq!(forwarded_for().as_deref(), Some("127.0.0.1"), "an untrusted peer is ignored");
    let text = std::fs::read_to_string(&penstock.config).unwrap();
    let change = |from: &str, to: &str| {
        assert!(text.contains(from));
        std::fs::write(&penstock.config, text.replace(from, to)).unwrap();
        let report = penstock.reload().json();
        assert_eq!(report["result"], "applied", "{report}");
        assert_eq!(report["restart_needed"], json!([]), "{report}");
    };
    change("10.0.0.0/8", "127.0.0.1");
    assert_eq!(forwarded_for().as_deref(), Some("198.51.100.7, 127.0.0.1"));
    change("10.0.0.0/8", "10.0.0.0/9");
    assert_eq!(
        forwarded_for().as_deref(),
        Some("127.0.0.1"),
        "a peer that is no longer trusted is ignored"
    );
}

#[test]
fn tracing_settings_apply_after_a_reload() {
    let one = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    let traceparent = || {
        assert_eq!(penstock.chat("m").status, 200);
        one.received().pop().unwrap().header("traceparent").map(str::to_owned)
    };
    assert!(traceparent().is_some_and(|trace| trace.ends_with("-01")));
    for (section, restart) in [
        ("sample: 0", json!([])),
        ("propagate: false", json!([])),
        ("sample: 0, service_name: x", json!(["tracing.service_name"])),
    ] {
        let report = reload(&penstock, &format!("tracing: {{ {section} }}\n{yaml}"));
        assert_eq!(report["restart_needed"], restart, "{section}");
        let trace = traceparent();
        match section {
            "propagate: false" => assert_eq!(trace, None),
            _ => assert!(trace.is_some_and(|trace| trace.ends_with("-00")), "{section}"),
        }
    }
}
