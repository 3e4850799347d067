//! Engine metrics: with telemetry enabled, penstock scrapes each engine and shows its load,
//! including load from other clients. Old values are marked stale, and scraping stays within its
//! CPU budget.

use std::time::Duration;

use penstock_mock::{Fault, Gate};
use serde_json::{Value, json};

use crate::support::client::streaming_chat;
use crate::support::fleet::{Fleet, SOON, Setup, find_metric, metric, name, yaml};
use crate::support::{block_on, eventually};

const ON: &str = "telemetry: { enabled: true, interval: 20ms, idle_interval: 50ms, max_cpu: 1 }";

fn page(waiting: u32, running: u32, kv: &str) -> String {
    format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} {running}.0\n\
         vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} {waiting}.0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} {kv}\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\"}} 1.0\n\
         process_start_time_seconds 100\n"
    )
}

fn fleet(count: usize, sections: &str) -> Fleet {
    let page = page(2, 3, "0.25");
    let metrics = Some(&*page);
    Fleet::start(count, Setup { sections, metrics, backend: "engine: vllm", ..Setup::default() })
}

fn telemetry(fleet: &Fleet, backend: &str, key: &str) -> Value {
    fleet.fact(backend, "telemetry")[key].clone()
}

fn wait_telemetry(fleet: &Fleet, backend: &str, key: &str, value: &Value) {
    let what = format!("{key} of {backend} is {value}");
    eventually(&what, SOON, || telemetry(fleet, backend, key) == *value);
}

/// Scrapes of an engine among its last 256 probes.
fn scrapes(fleet: &Fleet, index: usize) -> usize {
    let probes = fleet.engines[index].probes();
    probes.iter().filter(|probe| probe.target == "/metrics").count()
}

#[test]
fn engine_metrics_are_shown() {
    let fleet = fleet(2, ON);
    fleet.b().set_page("/metrics", Some(&page(0, 1, "NaN")));
    wait_telemetry(&fleet, "a", "load", &json!(5.0));
    wait_telemetry(&fleet, "b", "load", &json!(1.0));
    assert_eq!(telemetry(&fleet, "a", "standing"), "fresh");
    assert_eq!(telemetry(&fleet, "a", "blocks"), 1000);
    assert_eq!(telemetry(&fleet, "b", "kv_utilization"), Value::Null, "not a number is unknown");
    for (metric, value) in [("waiting", 2.0), ("running", 3.0), ("kv_utilization", 0.25)] {
        fleet.wait_metric(&format!("penstock_backend_{metric}{{backend=\"a\"}}"), value);
    }
    assert!(fleet.metric("penstock_backend_telemetry_age_seconds{backend=\"a\"}") < 2.0);
    assert!(fleet.metric("penstock_backend_scrapes_total{backend=\"a\",result=\"passed\"}") > 0.0);
    assert_eq!(fleet.metric("penstock_telemetry_interval_factor"), 1.0);
    assert!(fleet.a().connections_accepted() < 10, "the connection is kept");
    // A dispatched request counts at once, before the next scrape.
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let client = fleet.begin(&streaming_chat("m", "hello"));
    block_on(fleet.a().wait_for(|counters| counters.open_requests == 1)).unwrap();
    fleet.a().set_page("/metrics", Some(&page(2, 4, "0.25")));
    wait_telemetry(&fleet, "a", "load", &json!(6.0));
    gate.open();
    drop(client);
}

#[test]
fn engines_are_scraped_only_when_needed() {
    let off = fleet(1, "");
    assert_eq!(off.chat().status, 200);
    assert_eq!(scrapes(&off, 0), 0, "no strategy reads it");
    assert_eq!(off.fact("a", "telemetry"), Value::Null);
    let one = Fleet::start(2, Setup { sections: ON, ..Setup::default() });
    assert_eq!(one.chat().status, 200);
    // Neither engine has metrics: their telemetry stays unknown, and requests succeed.
    eventually("both were scraped", SOON, || scrapes(&one, 0) > 0 && scrapes(&one, 1) > 0);
    assert_eq!(one.fact("a", "telemetry"), Value::Null);
    let failed = "penstock_backend_scrapes_total{backend=\"a\",result=\"failed\"}";
    eventually("the failure is counted", SOON, || {
        find_metric(&one.penstock, failed).is_some_and(|count| count > 0.0)
    });
    assert!(one.penstock.log().contains("/metrics returned 404"), "{}", one.penstock.log());
}

#[test]
fn telemetry_becomes_stale_failing_and_fresh_again() {
    let fleet = fleet(1, ON);
    wait_telemetry(&fleet, "a", "standing", &json!("fresh"));
    fleet.a().set_page("/metrics", None);
    wait_telemetry(&fleet, "a", "standing", &json!("stale"));
    assert_eq!(telemetry(&fleet, "a", "load"), 0.0, "our own requests in flight");
    assert_eq!(telemetry(&fleet, "a", "waiting"), Value::Null);
    wait_telemetry(&fleet, "a", "standing", &json!("failing"));
    assert!(fleet.metric("penstock_backend_telemetry_age_seconds") >= 2.0);
    assert_eq!(fleet.chat().status, 200);
    fleet.a().set_page("/metrics", Some(&page(0, 0, "0.0")));
    let limit = Duration::from_secs(20);
    eventually("it is fresh again", limit, || telemetry(&fleet, "a", "standing") == "fresh");
}

#[test]
fn engine_restart_clears_learned_latency() {
    let fleet = fleet(1, ON);
    assert_eq!(fleet.stream().status, 200);
    let first_token = || fleet.fact("a", "models")[0]["first_token_ms"].clone();
    eventually("a latency is known", SOON, || first_token().is_number());
    wait_telemetry(&fleet, "a", "standing", &json!("fresh"));
    let restarted = page(0, 0, "0").replace("seconds 100", "seconds 200");
    fleet.a().set_page("/metrics", Some(&restarted));
    fleet.wait_metric("penstock_backend_restarts_total{backend=\"a\"}", 1.0);
    assert_eq!(first_token(), Value::Null);
}

#[test]
fn busy_engines_are_scraped_more_often() {
    let fleet =
        fleet(2, "telemetry: { enabled: true, interval: 20ms, idle_interval: 2s, max_cpu: 1 }");
    wait_telemetry(&fleet, "b", "standing", &json!("fresh"));
    let gate = Gate::new();
    fleet.a().script([Fault::Gate(gate.clone())]);
    let client = fleet.begin(&streaming_chat("m", "hello"));
    eventually("the busy engine is scraped often", SOON, || scrapes(&fleet, 0) > 20);
    assert!(scrapes(&fleet, 1) < 10, "the idle engine is scraped rarely");
    gate.open();
    drop(client);
}

#[test]
fn reload_starts_and_stops_scraping() {
    let fleet = fleet(2, "");
    let with = |sections, models: &[&str]| {
        let setup = Setup { sections, backend: "engine: vllm", ..Setup::default() };
        yaml(&fleet.engines, models, setup)
    };
    fleet.penstock.rewrite(&with(ON, &["m", "m"]));
    assert_eq!(fleet.penstock.reload().status, 200);
    for index in 0..2 {
        wait_telemetry(&fleet, &name(index), "standing", &json!("fresh"));
    }
    fleet.penstock.rewrite(&with(ON, &["m"]));
    assert_eq!(fleet.penstock.reload().status, 200);
    fleet.b().clear();
    fleet.a().clear();
    eventually("the remaining backend is scraped", SOON, || scrapes(&fleet, 0) > 5);
    assert!(scrapes(&fleet, 1) <= 1, "the removed backend is not scraped");
    fleet.penstock.rewrite(&with("", &["m"]));
    assert_eq!(fleet.penstock.reload().status, 200);
    wait_telemetry(&fleet, "a", "standing", &json!("stale"));
}

#[test]
fn scrape_intervals_grow_over_budget() {
    let spend = |share: &str| {
        format!(
            "telemetry: {{ enabled: true, interval: 10ms, idle_interval: 10ms, max_cpu: {share} }}"
        )
    };
    let fleet = fleet(1, &spend("0.0002"));
    let padded = page(1, 1, "0")
        + &"# padding
"
        .repeat(3000);
    fleet.a().set_page("/metrics", Some(&padded));
    let factor = || metric(&fleet.penstock, "penstock_telemetry_interval_factor");
    eventually("the intervals grow", Duration::from_secs(20), || factor() > 4.0);
    assert_eq!(fleet.stream().status, 200);
    let config = std::fs::read_to_string(&fleet.penstock.config).unwrap();
    let config = config.replace("max_cpu: 0.0002", "max_cpu: 1");
    std::fs::write(&fleet.penstock.config, config).unwrap();
    assert_eq!(fleet.penstock.reload().status, 200);
    eventually("the intervals shrink again", Duration::from_secs(20), || factor() < 1.5);
    assert!(metric(&fleet.penstock, "penstock_telemetry_cpu_seconds_total") > 0.0);
}
