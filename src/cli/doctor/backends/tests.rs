//! The findings of an examination.

use std::path::Path;

use penstock_config::{Config, Environment, ModelEntry};
use penstock_core::routing::Generation;

use super::super::finding::Severity;
use super::*;

fn backend(rest: &str) -> Backend {
    let yaml = format!("backends: [{{ name: gpu, url: 'http://127.0.0.1:1', {rest} }}]");
    let config = Config::parse(&yaml, "x", Path::new("."), &Environment::default()).unwrap();
    Generation::new(config).fleet.topology().backends[0].clone()
}

fn healthy() -> Examination {
    let model = ModelEntry { id: "m".to_owned(), context_length: Some(8), ..Default::default() };
    Examination {
        resolves: true,
        check: Ok(Duration::from_millis(2)),
        remark: None,
        engine: Engine::Vllm,
        version: Some("0.9.1".to_owned()),
        models: Ok(ListedModels { models: vec![model], ..ListedModels::default() }),
        metrics: Some(MetricsPage { missing: Ok(Vec::new()), replacement: None, remedy: "" }),
        keep_alive: IdleHandling::Stays(Duration::from_secs(5)),
        clock: None,
    }
}

const TERMS: DoctorSettings =
    DoctorSettings { idle: Duration::from_secs(4), wants_telemetry: true };

fn levels(found: &Examination, rest: &str) -> Vec<(Severity, String)> {
    let findings = judge(&backend(rest), found, TERMS);
    findings.into_iter().map(|finding| (finding.level, finding.message)).collect()
}

#[test]
fn healthy_backend_has_no_warnings() {
    let reported = levels(&healthy(), "engine: vllm");
    assert!(reported.iter().all(|(level, _)| *level == Severity::Ok), "{reported:?}");
    assert!(reported[0].1.contains("vllm 0.9.1"), "{reported:?}");
    assert!(reported[1].1.contains("m (8 tokens)"), "{reported:?}");
}

#[test]
fn each_problem_is_reported_once() {
    let status = |status| DiscoveryError::Status { path: "/health".to_owned(), status };
    let soon = IdleHandling::Closes(Duration::from_millis(1990));
    let missing =
        MetricsPage { missing: Ok(vec!["vllm:x"]), replacement: None, remedy: "start it so" };
    for (found, rest, expected) in [
        (Examination { resolves: false, ..healthy() }, "", (Severity::Fail, "does not resolve")),
        (
            Examination { check: Err(status(401)), ..healthy() },
            "",
            (Severity::Fail, "returned 401"),
        ),
        (
            Examination { remark: Some((429, "the rate is limited")), ..healthy() },
            "",
            (Severity::Warn, "429: the rate is limited"),
        ),
        (
            Examination { models: Err(status(404)), ..healthy() },
            "",
            (Severity::Fail, "not list its"),
        ),
        (healthy(), "models: [n]", (Severity::Warn, "declared models: n")),
        (Examination { keep_alive: soon, ..healthy() }, "", (Severity::Warn, "after 2s")),
        (
            Examination { keep_alive: IdleHandling::NotKept, ..healthy() },
            "",
            (Severity::Warn, "after every response"),
        ),
        (Examination { metrics: Some(missing), ..healthy() }, "", (Severity::Warn, "vllm:x")),
        (Examination { clock: Some(5), ..healthy() }, "", (Severity::Warn, "off by")),
    ] {
        let reported = levels(&found, rest);
        let ill: Vec<_> = reported.iter().filter(|(level, _)| *level != Severity::Ok).collect();
        assert_eq!(ill.len(), 1, "{reported:?}");
        assert_eq!(ill[0].0, expected.0);
        assert!(ill[0].1.contains(expected.1), "{reported:?}");
    }
    let missing =
        || Some(MetricsPage { missing: Err(status(404)), replacement: None, remedy: "-m" });
    let found = Examination { metrics: missing(), ..healthy() };
    let unread = judge(&backend(""), &found, DoctorSettings { wants_telemetry: false, ..TERMS });
    let remark = unread.iter().find(|one| one.message.contains("metrics")).unwrap();
    assert_eq!(remark.level, Severity::Ok, "no strategy uses them: {remark:?}");
    let declared = Examination { models: Err(status(404)), ..healthy() };
    assert!(levels(&declared, "models: [m]").iter().all(|(level, _)| *level == Severity::Ok));
}
