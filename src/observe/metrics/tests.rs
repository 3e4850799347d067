//! Tests the page after requests, and the cost of counting.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use penstock_api::units::{ByteSize, Timestamp};
use penstock_api::{ErrorCode, Operation};
use penstock_config::{Config, Environment, Strategy};
use penstock_core::fleet::{
    Adapters, DroppedModels, EngineDetails, EngineSample, LoadedModel, ModelId, Outcome, Topology,
};
use penstock_core::routing::audit::ShadowHost;
use penstock_core::routing::{
    QueueFacts, RequestDetails, RequestFacts, RequestRecord, ResponseFacts, RoutingDecision,
    RoutingFacts,
};
use penstock_predict::{ReportedLimits, RequestShape};
use penstock_scan::Usage;
use penstock_scoring::Residency;

use super::*;
use crate::discovery::ScrapeBudget;
use crate::proxy::ProxyParts;

fn generation(yaml: &str) -> Arc<Generation> {
    let config = Config::parse(yaml, "test.yaml", Path::new("."), &Environment::default());
    Arc::new(Generation::new(config.unwrap()).with_shadow(None, ShadowHost::IDLE).unwrap())
}

fn two_backends() -> Arc<Generation> {
    generation(
        "limits: { metric_models: 2 }\n\
         auth: { keys: [{ name: k, key: sk-of-a-test, limits: { in_flight: 1 } }] }\n\
         routing: { shadow: { strategy: weighted } }\n\
         backends:\n\
         - { name: a, url: 'http://127.0.0.1:1', engine: vllm, max_in_flight: 4, models: [{ id: m }] }\n\
         - { name: 1a, url: 'http://127.0.0.1:2', models: [{ id: m }, { id: m1 }] }\n\
         - { name: g, url: 'http://engines.test:3', resolve: each }\n",
    )
}

fn record(model: &str, backend: u16, name: &str) -> RequestRecord {
    let usage = Usage {
        prompt_tokens: Some(100),
        completion_tokens: Some(11),
        cached_tokens: Some(64),
        ..Usage::default()
    };
    RequestRecord {
        request: RequestFacts { is_streaming: true, ..RequestFacts::default() },
        queue: QueueFacts { wait: Some(Duration::from_millis(250)), ..QueueFacts::default() },
        routing: RoutingFacts {
            model: Some(model.into()),
            backend: Some((BackendId(backend), name.into())),
            attempts: 1,
            expected_cached: Some(48),
            ..RoutingFacts::default()
        },
        response: ResponseFacts {
            status: 200,
            usage: Some(usage),
            token_events: 11,
            ..ResponseFacts::default()
        },
        ..RequestRecord::default()
    }
}

fn outcome(record: &RequestRecord) -> RequestOutcome<'_> {
    RequestOutcome {
        record,
        operation: Some(Operation::Chat),
        outcome: Outcome::Ok,
        first_token: Some(Duration::from_millis(30)),
        took: Duration::from_secs(1),
        details: RequestDetails::default(),
    }
}

/// The generation that decisions refer to.
static ROUTED_BY: LazyLock<Arc<Generation>> = LazyLock::new(two_backends);
static ROUTED_ON: LazyLock<Arc<Topology>> = LazyLock::new(|| ROUTED_BY.fleet.topology());
const DECISION: RoutingDecision = RoutingDecision {
    strategy: Strategy::Smart,
    ..RoutingDecision::direct(BackendId(0), ModelId(0), 0)
};

fn ended<'a>(backend: BackendId, took: Duration) -> AttemptEnded<'a> {
    let (outcome, code) = (Outcome::Ok, None);
    AttemptEnded {
        backend,
        name: "a",
        provider: "vllm",
        server: ("127.0.0.1", 1),
        number: 1,
        trace: None,
        decision: &DECISION,
        router: &ROUTED_BY.router,
        fleet: &ROUTED_ON,
        is_relayed: true,
        is_moved: false,
        has_output: true,
        usage: None,
        outcome,
        conversion: Some((Operation::OllamaChat, Operation::Chat)),
        code,
        took,
    }
}

fn page(metrics: &Metrics, generation: &Arc<Generation>) -> String {
    let proxy = Proxy::new(Arc::clone(generation), ProxyParts::default()).unwrap();
    metrics.render(&Scrape {
        now: Timestamp(1_000_000),
        generation,
        fleet: &generation.fleet.topology(),
        proxy: &proxy,
        scraping: &ScrapeBudget::default(),
        access_log: None,
        spans: None,
        usage: None,
    })
}

fn assert_has(page: &str, line: &str) {
    assert!(page.lines().any(|other| other == line), "no line `{line}` in\n{page}");
}

/// Changes a counter of every kind.
fn exercise(metrics: &Metrics, generation: &Arc<Generation>) {
    let state = generation.fleet.topology().backends[0].state.clone();
    let at = Timestamp(5);
    let passed = penstock_core::fleet::CheckOutcome::Passed(Duration::from_millis(2));
    let check = penstock_core::fleet::CheckResult { at, outcome: passed };
    state.learn_check(
        check,
        &penstock_config::HealthConfig {
            rise: 1,
            fall: 1,
            ..penstock_config::HealthConfig::default()
        },
    );
    state.listing.record(DroppedModels { duplicate: 1, ..DroppedModels::default() });
    let adapters = Some(Adapters { dropped: 1, ..Adapters::default() });
    state.telemetry.learn_details(&EngineDetails { adapters, ..EngineDetails::default() });
    state.telemetry.publish(EngineSample {
        waiting: Some(2.0),
        running: Some(3.0),
        kv_utilization: Some(0.5),
        in_flight: 0,
        sent_at: Timestamp(900_000),
        interval: Duration::from_secs(1),
    });
    let model = generation.fleet.topology().models()[0].serving[0].model_state.clone();
    model.load.set_in_flight(1);
    let name = "m".to_owned();
    let vram = Some(ByteSize::mib(8));
    let loaded =
        LoadedModel { name, residency: Residency::Resident, vram, ..LoadedModel::default() };
    generation.fleet.learn_loaded(BackendId(0), &[loaded], at);
    let sent = RequestShape {
        prompt_tokens: 9.0,
        cached_tokens: 0.0,
        max_output_tokens: 9.0,
        is_whole: false,
    };
    let prediction = model.predictor().estimate(&sent, 5.0).prediction;
    model.predictor().send(sent, prediction, None, 5.0).tokens(1, 9.0);
    model
        .predictor()
        .refresh(ReportedLimits { slots: 4.0, kv_tokens: 1e6, ..ReportedLimits::default() }, 9.0);
    metrics.first_token(BackendId(0), Duration::from_millis(30));
    metrics.progress(BackendId(0), 3);
    let code = Some(ErrorCode::ConnectFailed);
    let took = Duration::from_secs(1);
    metrics.attempt_ended(&AttemptEnded {
        outcome: Outcome::Unreachable,
        code,
        is_moved: true,
        ..ended(BackendId(0), took)
    });
    metrics.finished(&outcome(&record("m", 0, "a")));
}

#[test]
fn page_and_table_name_the_same_metrics() {
    let generation = two_backends();
    let metrics = Metrics::new(&generation).unwrap();
    exercise(&metrics, &generation);
    let page = page(&metrics, &generation);
    let shown: BTreeSet<(&str, &str)> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut known: BTreeSet<_> = metric_rows().map(|row| (row.name, row.kind.name())).collect();
    assert_eq!(known.len(), metric_rows().count(), "no name twice");
    // Requires a listener with TLS; the story of listener TLS reads it.
    known.remove(&("penstock_tls_certificate_expiry_timestamp_seconds", "gauge"));
    // Require requests that wait; the stories of queues read them.
    known.remove(&("penstock_queue_requests", "gauge"));
    known.remove(&("penstock_queue_ended_total", "counter"));
    known.remove(&("penstock_queue_kept_alive_total", "counter"));
    known.remove(&("penstock_queue_held_back_total", "counter"));
    // Require budgets, and a store of keys; their stories read them.
    known.remove(&("penstock_budget_spent", "gauge"));
    known.remove(&("penstock_budget_limit", "gauge"));
    known.remove(&("penstock_budget_reserved", "gauge"));
    known.remove(&("penstock_budget_refused_total", "counter"));
    known.remove(&("penstock_key_store_up", "gauge"));
    known.remove(&("penstock_key_store_keys", "gauge"));
    known.remove(&("penstock_key_store_failures_total", "counter"));
    known.remove(&("penstock_key_store_damaged_rows", "gauge"));
    known.remove(&("penstock_revoked_tokens", "gauge"));
    // Require an identity provider; the stories of tokens read them.
    known.remove(&("penstock_jwks_age_seconds", "gauge"));
    known.remove(&("penstock_jwks_fetches_total", "counter"));
    known.remove(&("penstock_jwks_keys", "gauge"));
    // Require a server; the stories of what is shared read them.
    known.remove(&("penstock_shared_state_up", "gauge"));
    known.remove(&("penstock_shared_state_penstocks", "gauge"));
    known.remove(&("penstock_budgets_shared", "gauge"));
    known.remove(&("penstock_budget_alone_total", "counter"));
    known.remove(&("penstock_key_store_unshared", "gauge"));
    known.remove(&("penstock_backend_others_in_flight", "gauge"));
    known.remove(&("penstock_shared_state_errors_total", "counter"));
    assert_eq!(shown, known);
}

#[test]
fn request_appears_in_all_its_metrics() {
    let generation = two_backends();
    let metrics = Metrics::new(&generation).unwrap();
    exercise(&metrics, &generation);
    let page = page(&metrics, &generation);
    let gen_ai =
        r#"gen_ai_operation_name="chat",gen_ai_provider_name="vllm",gen_ai_request_model="m""#;
    for line in [
        r#"penstock_requests_total{model="m",backend="a",operation="chat",status="200",outcome="ok"} 1"#,
        r#"penstock_request_duration_seconds_sum{model="m",backend="a",outcome="ok"} 1"#,
        r#"penstock_request_duration_seconds_bucket{model="m",backend="a",outcome="ok",le="7200"} 1"#,
        r#"penstock_ttft_seconds_count{backend="a"} 1"#,
        r#"penstock_stream_tokens_total{backend="a"} 3"#,
        r#"penstock_stream_tokens_total{backend="1a"} 0"#,
        r#"penstock_attempts_total{backend="a",outcome="fault",code="connect_failed"} 1"#,
        r#"penstock_tokens_total{model="m",backend="a",type="cached"} 64"#,
        r#"penstock_tokens_total{model="m",backend="a",type="expected"} 48"#,
        r#"penstock_errors_total{code="body_memory_full"} 0"#,
        r#"penstock_backend_up{backend="a"} 1"#,
        r#"penstock_backend_up{backend="1a"} 0"#,
        r#"penstock_backend_max_in_flight{backend="a"} 4"#,
        r#"penstock_backend_check_seconds{backend="a"} 0.002"#,
        r#"penstock_backend_idle_connections{backend="1a"} 0"#,
        r#"penstock_shadow_decisions_total{result="other"} 0"#,
        r#"penstock_shadow_expected_tokens_total{side="live"} 0"#,
        "penstock_shadow_lag_seconds_total 0",
        "penstock_in_flight 0",
        "penstock_held_body_bytes 0",
        "penstock_models 2",
        "penstock_connections 0",
        "penstock_max_connections 65536",
        "penstock_max_held_body_bytes 1073741824",
        r#"penstock_access_log_lines_total{result="dropped"} 0"#,
        &format!("gen_ai_server_time_to_first_token_seconds_sum{{{gen_ai}}} 0.03"),
        &format!("gen_ai_server_time_per_output_token_seconds_sum{{{gen_ai}}} 0.097"),
        &format!(r#"gen_ai_client_token_usage_sum{{{gen_ai},gen_ai_token_type="input"}} 100"#),
        &format!(
            r#"gen_ai_client_token_usage_bucket{{{gen_ai},gen_ai_token_type="output",le="16"}} 1"#
        ),
    ] {
        assert_has(&page, line);
    }
    for absent in [r#"max_in_flight{backend="1a"}"#, r#"check_seconds{backend="1a"}"#] {
        assert!(!page.contains(absent), "{absent}");
    }
}

#[test]
fn models_over_the_limit_are_counted_as_other() {
    let generation = two_backends();
    let metrics = Metrics::new(&generation).unwrap();
    for model in ["m", "m1", "x", "y"] {
        metrics.finished(&outcome(&record(model, 0, "a")));
    }
    let mut missed = record("", 0, "");
    (missed.routing.model, missed.routing.backend) = (None, None);
    missed.response.status = 404;
    missed.response.code = Some(ErrorCode::ModelNotFound);
    let refused = RequestOutcome { outcome: Outcome::Client, ..outcome(&missed) };
    metrics.finished(&refused);
    let page = page(&metrics, &generation);
    for line in [
        r#"penstock_requests_total{model="m1",backend="a",operation="chat",status="200",outcome="ok"} 1"#,
        r#"penstock_requests_total{model="other",backend="a",operation="chat",status="200",outcome="ok"} 2"#,
        r#"penstock_requests_total{model="unknown",backend="none",operation="chat",status="404",outcome="client"} 1"#,
        r#"penstock_errors_total{code="model_not_found"} 1"#,
    ] {
        assert_has(&page, line);
    }
}

#[test]
fn labels_that_join_to_the_same_text_stay_separate() {
    let generation = two_backends();
    let metrics = Metrics::new(&generation).unwrap();
    metrics.finished(&outcome(&record("m1", 0, "a")));
    metrics.finished(&outcome(&record("m", 1, "1a")));
    let page = page(&metrics, &generation);
    for (model, backend) in [("m1", "a"), ("m", "1a")] {
        let line = format!(
            r#"penstock_request_duration_seconds_count{{model="{model}",backend="{backend}",outcome="ok"}} 1"#
        );
        assert_has(&page, &line);
    }
}

#[test]
fn backend_with_its_old_name_continues_its_counters() {
    let generation = two_backends();
    let metrics = Metrics::new(&generation).unwrap();
    metrics.progress(BackendId(0), 3);
    // A reload gives the backend another number.
    let reloaded = self::generation(
        "backends:\n- { name: new, url: 'http://127.0.0.1:3' }\n- { name: a, url: 'http://127.0.0.1:4' }\n",
    );
    metrics.learn_backends(&reloaded.fleet.topology());
    metrics.progress(BackendId(1), 4);
    metrics.progress(BackendId(0), 1);
    metrics.progress(BackendId(900), 1);
    let page = page(&metrics, &reloaded);
    assert_has(&page, r#"penstock_stream_tokens_total{backend="a"} 7"#);
    assert_has(&page, r#"penstock_stream_tokens_total{backend="new"} 1"#);
}

#[test]
fn label_values_are_escaped() {
    let generation = generation("backends: [{ name: 'a\\b', url: 'http://127.0.0.1:1' }]");
    let metrics = Metrics::new(&generation).unwrap();
    metrics.finished(&outcome(&record("m\"\n", 0, "a\\b")));
    let page = page(&metrics, &generation);
    assert!(page.contains(r#"model="m\"\n",backend="a\\b""#), "{page}");
}

#[test]
fn counting_known_labels_does_not_allocate() {
    let generation = two_backends();
    let metrics = Metrics::new(&generation).unwrap();
    let whole = record("m", 0, "a");
    let finished = outcome(&whole);
    exercise_hot(&metrics, &finished);
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            exercise_hot(&metrics, &finished);
        }
    });
    assert_eq!(counted.count_total, 0);
}

fn exercise_hot(metrics: &Metrics, finished: &RequestOutcome<'_>) {
    metrics.first_token(BackendId(0), Duration::from_millis(30));
    metrics.progress(BackendId(0), 1);
    let took = Duration::from_secs(1);
    metrics.attempt_ended(&ended(BackendId(0), took));
    metrics.finished(finished);
}

#[test]
fn counts_of_many_threads_add_up() {
    let generation = two_backends();
    let metrics = Metrics::new(&generation).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for model in ["m", "m1", "x"].iter().cycle().take(3000) {
                    exercise_hot(&metrics, &outcome(&record(model, 0, "a")));
                }
            });
        }
    });
    let page = page(&metrics, &generation);
    for model in ["m", "m1", "other"] {
        let line = format!(
            r#"penstock_request_duration_seconds_count{{model="{model}",backend="a",outcome="ok"}} 4000"#
        );
        assert_has(&page, &line);
    }
    assert_has(&page, r#"penstock_stream_tokens_total{backend="a"} 12000"#);
}
