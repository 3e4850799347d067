//! Tests that write and apply dumps.

use std::path::Path;
use std::time::Duration;

use penstock_config::{Config, Environment, HealthConfig};
use penstock_scoring::Residency;

use super::*;
use crate::fleet::{
    BreakerState, CheckOutcome, CheckResult, CooldownCause, CooldownScope, Serving,
};

const NOW: Timestamp = Timestamp(1_000_000);

const TWO: &str = r#"
backends:
  - { name: gpu-a, url: "http://a:1/base/v1", api_key: sekret, engine: vllm, max_in_flight: 8 }
  - name: gpu-b
    url: http://b:2
    priority: 7
    models: [{ id: big, upstream_id: org/big, capabilities: [tools], operations: [chat, audio] }]
"#;

fn configured() -> Fleet {
    let config = Config::parse(TWO, "test.yaml", Path::new(""), &Environment::default());
    Fleet::new(&config.unwrap())
}

fn lay(dump: &Value) -> Result<Fleet, String> {
    let fleet = configured();
    overlay(&fleet, dump, NOW).map_err(|error| error.to_string())?;
    Ok(fleet)
}

fn with_serving<T>(fleet: &Fleet, model: &str, read: impl Fn(&Serving) -> T) -> T {
    let topology = &*fleet.topology();
    let model = topology.model(topology.model_id(model).unwrap()).unwrap();
    read(&model.serving[0])
}

#[test]
fn new_fleet_dumps_as_unknown() {
    let rows = dump(&configured(), NOW);
    assert_eq!(
        rows["backends"][0],
        json!({
            "name": "gpu-a", "url": "http://a:1/base", "engine": "vllm", "priority": 50,
            "health": "unknown", "in_flight": 0, "max_in_flight": 8, "latency_ms": null,
            "breaker": "closed", "cooldown_remaining_s": null, "cooldown_status": null, "models": null,
            "checked_s_ago": null, "requests_total": 0,
        })
    );
    assert_eq!(
        rows["backends"][1]["models"],
        json!([{
            "id": "big", "upstream_id": "org/big", "capabilities": ["tools"],
            "operations": ["chat", "speech", "transcriptions", "translations"],
            "residency": "resident",
        }])
    );
    assert!(!rows.to_string().contains("sekret"));
}

#[test]
fn applied_dump_dumps_the_same() {
    let live = configured();
    assume_healthy(&live);
    let fleet = live.topology();
    let [a, b] = &fleet.backends[..] else { panic!("two backends") };
    a.state.learn_check(
        CheckResult { at: NOW, outcome: CheckOutcome::Passed(Duration::from_millis(12)) },
        &HealthConfig { rise: 1, fall: 1, ..HealthConfig::default() },
    );
    a.state.load.set_in_flight(3);
    a.state.cooldowns.start(
        CooldownScope::BACKEND,
        NOW.after(Duration::from_secs(5)),
        CooldownCause::of_status(429),
        NOW,
    );
    a.state.breaker.set(BreakerState::HalfOpen, NOW);
    b.state.set_draining(true);
    b.state.breaker.set(BreakerState::Open, NOW);
    let model =
        ModelEntry { id: "small".to_owned(), context_length: Some(64), ..Default::default() };
    live.learn_models(a.state.id, &[model]);
    let fact =
        ModelEntry { id: "org/big".to_owned(), context_length: Some(4096), ..Default::default() };
    live.learn_models(b.state.id, &[fact]);
    with_serving(&live, "small", |row| {
        row.latency.learn_first_token(Duration::from_millis(40), Timestamp(0))
    });
    with_serving(&live, "big", |row| {
        row.latency.learn_response(Duration::from_millis(900), Timestamp(0))
    });

    with_serving(&live, "small", |row| {
        row.model_state.load.set_in_flight(2);
        row.model_state.set_size(ByteSize::mib(5));
        row.latency.context.learn(ContextLimit { tokens: 512, scale: ContextLimit::UNIT });
        let loaded = LoadedModel {
            name: "small".to_owned(),
            residency: Residency::Resident,
            vram: Some(ByteSize::mib(6)),
            expires_at: Some(NOW.after(Duration::from_secs(4))),
            context_length: Some(TokenCount(32)),
        };
        row.model_state.learn_probe(Some(&loaded), NOW);
        row.state.memory.learn(3, ByteSize::mib(9));
    });

    let mut saved = dump(&live, NOW);
    let mut copy = dump(&lay(&saved).unwrap(), NOW);
    for rows in [&mut saved, &mut copy] {
        for row in rows["backends"].as_array_mut().unwrap() {
            row["checked_s_ago"] = Value::Null;
        }
    }
    assert_eq!(saved, copy);
    assert_eq!(copy["backends"][0]["models"][0]["first_token_ms"], 40.0);
    assert_eq!(copy["backends"][0]["models"][0]["learned_context_length"], 512);
    assert_eq!(copy["backends"][0]["models"][0]["in_flight"], 2);
    assert_eq!(copy["backends"][0]["models"][0]["vram_bytes"], 6 << 20);
    assert_eq!(copy["backends"][0]["models_in_memory"], 3);
    assert_eq!(copy["backends"][1]["models"][0]["context_length"], 4096);
    assert_eq!(copy["backends"][1]["health"], "draining");
}

#[test]
fn dump_by_hand_may_be_partial() {
    let fleet = lay(&json!({"backends": [
        {"name": "gpu-a", "models": ["m1", {"id": "m2", "capabilities": [], "context_length": 10}]},
        {"name": "gpu-b", "health": "unhealthy", "latency_ms": 250, "in_flight": 2},
    ]}))
    .unwrap();
    assert!(fleet.topology().is_complete());
    with_serving(&fleet, "m2", |row| assert_eq!(row.context_length.unwrap().0, 10));
    with_serving(&fleet, "big", |row| {
        assert_eq!(row.state.status(), Health::Unhealthy);
        assert_eq!(row.state.check_latency(), Duration::from_millis(250));
        assert_eq!(row.state.load.in_flight(), 2);
    });
}

#[test]
fn assumed_fleet_is_healthy_with_undeclared_models_unknown() {
    let fleet = configured();
    assume_healthy(&fleet);
    let topology = fleet.topology();
    assert!(topology.backends.iter().all(|one| one.state.status() == Health::Healthy));
    assert!(!topology.is_complete(), "the models of gpu-a are unknown");
}

#[test]
fn invalid_dump_names_the_place() {
    for (dump, reason) in [
        (json!([]), "'backends'"),
        (json!({"backends": [], "models": []}), "no other key"),
        (json!({"backends": [{}]}), "backends[0]: missing field `name`"),
        (json!({"backends": [{"name": "gpu-a", "helth": "healthy"}]}), "unknown field `helth`"),
        (json!({"backends": [{"name": "gpu-a", "health": "fine"}]}), "unknown variant `fine`"),
        (json!({"backends": [{"name": "gpu-a", "in_flight": -1}]}), "backends[0]: "),
        (json!({"backends": [{"name": "gpu_c"}]}), "'gpu_c' is not in the configuration"),
        (json!({"backends": [{"name": "gpu_a"}]}), "did you mean 'gpu-a'?"),
        (json!({"backends": [{"name": "gpu-a"}, {"name": "gpu-a"}]}), "'gpu-a' is listed twice"),
        (json!({"backends": [{"name": "gpu-a", "latency_ms": -1}]}), "'latency_ms' must be 0"),
        (json!({"backends": [{"name": "gpu-a", "models": [{"id": "x", "size": 1}]}]}), "models[0]"),
        (
            json!({"backends": [{"name": "gpu-a", "models": [{"id": "x", "capabilities": ["sight"]}]}]}),
            "unknown capability 'sight'",
        ),
        (
            json!({"backends": [{"name": "gpu-a", "models": [{"id": "x", "operations": ["talk"]}]}]}),
            "unknown operation 'talk'",
        ),
    ] {
        let error = lay(&dump).unwrap_err();
        assert!(error.contains(reason), "{dump}: {error}");
    }
}

#[test]
fn telemetry_round_trips() {
    let telemetry = json!({
        "waiting": 2.0, "running": 3.0, "kv_utilization": 0.25, "load": 6.0, "age_s": 0.5,
        "standing": "fresh", "block_size": 16, "blocks": 700, "adapters_running": ["sql"],
        "adapters_waiting": [], "max_adapters": 4,
    });
    let row = |telemetry: &Value| json!({"name": "gpu-a", "in_flight": 5, "telemetry": telemetry});
    let laid = lay(&json!({"backends": [row(&telemetry)]})).unwrap();
    assert_eq!(dump(&laid, NOW)["backends"][0]["telemetry"], telemetry);
    for (standing, age) in [("stale", 0.9), ("unknown", 0.0)] {
        let old = json!({"waiting": 2.0, "running": 3.0, "age_s": age, "standing": standing});
        let laid = lay(&json!({"backends": [row(&old)]})).unwrap();
        let state = &laid.topology().backends[0].state;
        let readings = state.telemetry.read(&state.load, NOW);
        assert_eq!((readings.standing.name(), readings.load), (standing, 5.0));
    }
    let later = Timestamp(100_000_000);
    let failing = json!({"backends": [row(&json!({"age_s": 9.0, "standing": "failing"}))]});
    let fleet = configured();
    overlay(&fleet, &failing, later).unwrap();
    let shown = &dump(&fleet, later)["backends"][0]["telemetry"];
    assert_eq!(*shown, json!({"load": 5.0, "age_s": 9.0, "standing": "failing"}));
    assert!(lay(&json!({"backends": [row(&json!({"age_s": -1.0}))]})).is_err());
}

#[test]
fn age_follows_the_standing() {
    let now = Timestamp(100_000_000);
    for (telemetry, standing, age_s) in [
        (json!({"standing": "stale"}), "stale", 1.0),
        (json!({"standing": "stale", "age_s": 0.25}), "stale", 0.25),
        (json!({"standing": "failing"}), "failing", 2.001),
        (json!({"standing": "failing", "age_s": 1.0}), "failing", 2.001),
        (json!({"standing": "failing", "age_s": 7.0}), "failing", 7.0),
        (json!({"standing": "fresh", "age_s": 7.0}), "fresh", 7.0),
        (json!({"age_s": 7.0}), "fresh", 7.0),
    ] {
        let fleet = configured();
        let laid = json!({"backends": [{"name": "gpu-a", "telemetry": telemetry}]});
        overlay(&fleet, &laid, now).unwrap();
        let shown = &dump(&fleet, now)["backends"][0]["telemetry"];
        assert_eq!((&shown["standing"], &shown["age_s"]), (&json!(standing), &json!(age_s)));
    }
}
