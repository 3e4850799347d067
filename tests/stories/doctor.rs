//! `penstock doctor`, before a start and on a running instance, reports each problem, its place,
//! and what to do about it.

use penstock_mock::{EngineModel, Fault, Flavour, MockEngine, MockSpec};
use serde_json::Value;

use crate::support::command::{Ran, file, run};
use crate::support::engines::{backend, start};
use crate::support::free_address;
use crate::support::penstock::Penstock;

fn vllm(name: &str) -> MockEngine {
    let spec = MockSpec::new(name, [EngineModel::new("m")]);
    start(MockSpec { flavour: Flavour::Vllm, ..spec })
}

fn ask(yaml: &str, more: &[&str]) -> Ran {
    let (data, admin) = (free_address(), free_address());
    let text = format!(
        "server: {{ listen: \"{data}\" }}\nadmin: {{ listen: \"{admin}\" }}\n\
         limits: {{ connections: 100 }}\n{yaml}"
    );
    let path = file("penstock.yaml", text);
    let arguments = ["doctor", "--config", path.to_str().unwrap(), "--watch", "700ms"];
    run(arguments.iter().chain(more))
}

fn read_findings(ran: &Ran) -> Vec<Value> {
    let findings: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    findings["findings"].as_array().unwrap().clone()
}

/// The findings about something whose message contains a word.
fn of<'a>(findings: &'a [Value], about: &str, word: &str) -> Vec<&'a Value> {
    let is_it =
        |one: &&Value| one["about"] == about && one["message"].as_str().unwrap().contains(word);
    findings.iter().filter(is_it).collect()
}

#[test]
fn healthy_fleet_has_only_ok_findings() {
    let one = vllm("gpu");
    let yaml = format!("backends:\n{}", backend(&one, "engine: other"));
    let ran = ask(&yaml, &[]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    for piece in [
        "ok    config",
        "ok    clock",
        "ok    files",
        "ok    server.listen",
        "ok    gpu            http://127.0.0.1:",
        "serves m (32768 tokens)",
    ] {
        assert!(ran.stdout.contains(piece), "{piece} in\n{}", ran.stdout);
    }
    assert!(ran.stdout.trim_end().ends_with("0 warnings, 0 failures"), "{}", ran.stdout);
    assert!(ran.stdout.chars().all(|c| c == '\n' || !c.is_control()), "plain text");
    let findings = read_findings(&ask(&yaml, &["--json"]));
    assert!(findings.iter().all(|one| one["level"] == "ok"), "{findings:#?}");
}

#[test]
fn slots_of_llamacpp_are_named() {
    let spec = MockSpec::new("cpp", [EngineModel::new("m")]);
    let engine = start(MockSpec { flavour: Flavour::LlamaCpp, ..spec });
    let yaml = format!("backends:\n{}", backend(&engine, "engine: llamacpp"));
    let findings = read_findings(&ask(&yaml, &["--json"]));
    let slots = of(&findings, "cpp", "4 slots");
    assert!(slots.len() == 1 && slots[0]["level"] == "ok", "{findings:#?}");
}

#[test]
fn each_problem_is_named_with_its_remedy() {
    let (busy, bare, closing) = (vllm("busy"), vllm("bare"), vllm("closing"));
    let spec = MockSpec::new("locked", [EngineModel::new("m")]);
    let locked = start(MockSpec { api_key: Some("sk-right".to_owned()), ..spec });
    busy.set_health(503);
    closing.always_probes(Some(Fault::CloseAfterResponse));
    let yaml = format!(
        "routing: {{ strategy: weighted }}\n\
         backends:\n{}{}{}{}  - {{ name: gone, url: \"http://{}\" }}\n",
        backend(&busy, "engine: vllm"),
        backend(&bare, "engine: vllm, models: [m, another]"),
        backend(&closing, ""),
        backend(&locked, "api_key: sk-wrong"),
        free_address(),
    );
    let ran = ask(&yaml, &["--json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stderr.contains("3 of the findings above are failures"), "{}", ran.stderr);
    assert!(!ran.stdout.contains("sk-wrong"), "{}", ran.stdout);
    let findings = read_findings(&ran);
    for (level, about, word, remedy) in [
        ("fail", "busy", "/health returned 503", "see its log"),
        ("fail", "gone", "connection refused", "start it"),
        ("fail", "locked", "returned 401", "api_key"),
        ("warn", "bare", "does not serve declared models: another", "load the model"),
        ("warn", "bare", "metrics", "--disable-log-stats"),
        ("warn", "closing", "closes the connection after every response", "keep-alive"),
    ] {
        let found = of(&findings, about, word);
        assert_eq!(found.len(), 1, "{about}: {word} in {findings:#?}");
        assert_eq!(found[0]["level"], level, "{:#}", found[0]);
        assert!(found[0]["remedy"].as_str().unwrap().contains(remedy), "{:#}", found[0]);
    }
    assert_eq!(of(&findings, "closing", "vllm")[0]["remedy"], "set engine: vllm to skip detection");
    let unread = read_findings(&ask(&yaml.replace("weighted", "smart"), &["--json"]));
    assert_eq!(of(&unread, "bare", "metrics")[0]["level"], "ok", "no strategy reads them");
    let blind =
        read_findings(&ask(&format!("telemetry: {{ enabled: false }}\n{yaml}"), &["--json"]));
    assert_eq!(of(&blind, "config", "but telemetry is off")[0]["level"], "warn");
}

#[test]
fn doctor_queries_the_running_instance() {
    let one = vllm("gpu");
    let yaml = format!("backends:\n{}", backend(&one, ""));
    let penstock = Penstock::start(&yaml);
    let path = file(
        "penstock.yaml",
        format!(
            "server: {{ listen: \"{}\" }}\nadmin: {{ listen: \"{}\" }}\n{yaml}",
            penstock.data, penstock.admin
        ),
    );
    let arguments = ["doctor", "--watch", "0s", "--json", "--config", path.to_str().unwrap()];
    let without = read_findings(&run(arguments));
    assert_eq!(of(&without, "server.listen", "is in use")[0]["level"], "warn");
    let admin = format!("http://{}", penstock.admin);
    let with = read_findings(&run(arguments.iter().copied().chain(["--admin", &admin])));
    assert_eq!(of(&with, "server.listen", "is in use")[0]["level"], "ok");
    assert_eq!(of(&with, "running", "1 of 1 backends are healthy")[0]["level"], "ok");
    let wrong = format!("http://{}", one.addr());
    let ran = run(arguments.iter().copied().chain(["--admin", &wrong]));
    assert_eq!(ran.code, Some(1), "an engine is no penstock: {}", ran.stdout);
}

#[test]
fn doctor_refuses_an_invalid_configuration() {
    let path = file("penstock.yaml", "backend: []\n");
    let ran = run(["doctor", "--config", path.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("did you mean 'backends'"), "{}", ran.stderr);
}
