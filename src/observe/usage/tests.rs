use std::path::Path;

use penstock_config::{Config, Environment};
use serde_json::Value;

use super::*;

fn live(yaml: &str) -> Arc<LiveUsage> {
    let environment = Environment::default();
    let config = Config::parse(yaml, "test.yaml", Path::new(""), &environment).unwrap();
    let generation = Arc::new(Generation::new(config));
    let ledger = Arc::new(Ledger::start(&generation, Arc::default()).unwrap());
    Arc::new(LiveUsage::new(ledger, generation, Arc::default()))
}

const ONE: &str = "backends: [{ name: a, url: http://h:1, models: [m, 'x:latest'] }]\n";

async fn page(usage: &Arc<LiveUsage>, call: UsageCall, query: &str, body: &str) -> Value {
    let request = UsageRequest { call, query, body: body.as_bytes() };
    match usage.respond(request).await {
        Ok(UsageReply::Page(page)) => serde_json::from_slice(&page).unwrap(),
        Ok(UsageReply::Stream(_)) => panic!("no stream was requested"),
        Err(error) => Value::String(error.to_string()),
    }
}

#[tokio::test(start_paused = true)]
async fn stream_starts_with_the_state_and_beats_every_15_seconds() {
    let usage = live(ONE);
    let mut stream = usage.subscribe().unwrap();
    let first = stream.next().await.unwrap();
    let expected = "data: {\"usage_counts\":{},\"token_usage_counts\":{}}\n\n";
    assert_eq!(std::str::from_utf8(&first).unwrap(), expected);
    let started = tokio::time::Instant::now();
    assert_eq!(stream.next().await.unwrap(), ": heartbeat\n\n");
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(15) && waited < Duration::from_secs(16), "{waited:?}");
    usage.stopping.store(true, Ordering::Release);
    assert_eq!(stream.next().await, None, "the process shuts down");
}

#[tokio::test]
async fn streams_are_limited() {
    let usage = live(&format!("usage: {{ streams: 2 }}\n{ONE}"));
    let streams = [usage.subscribe().unwrap(), usage.subscribe().unwrap()];
    assert!(matches!(usage.subscribe(), Err(UsageError::TooManyStreams { limit: 2 })));
    assert_eq!((usage.streams(), usage.refused_streams()), (2, 1));
    drop(streams);
    assert_eq!(usage.streams(), 0);
    assert!(usage.subscribe().is_ok());
}

#[tokio::test]
async fn interval_grows_with_the_streams() {
    let usage = live(ONE);
    assert_eq!(usage.interval(), Duration::from_millis(100));
    let streams: Vec<_> = (0..500).map(|_| usage.subscribe().unwrap()).collect();
    assert_eq!(usage.interval(), Duration::from_millis(500));
    drop(streams);
}

#[tokio::test]
async fn stats_know_models_as_ollama_does() {
    let usage = live(ONE);
    let stats = page(&usage, UsageCall::Stats, "", r#"{"model": "X"}"#).await;
    assert_eq!(stats["model"], "x:latest");
    assert_eq!((&stats["total_tokens"], &stats["time_series"]), (&0.into(), &Value::Array(vec![])));
    let stats = page(&usage, UsageCall::Stats, "model=m", "").await;
    assert_eq!(stats["model"], "m");
    let unknown = page(&usage, UsageCall::Stats, "", r#"{"model": "y"}"#).await;
    assert_eq!(unknown, "model 'y' not found");
    for nothing in ["", "{}", r#"{"model": ""}"#, "nonsense"] {
        let refused = page(&usage, UsageCall::Stats, "", nothing).await;
        assert!(refused.as_str().is_some_and(|text| text.starts_with("name a model")), "{refused}");
    }
}

#[tokio::test]
async fn backends_are_listed_by_their_kind() {
    let usage = live(
        "auth: { keys: [{ name: k, key: secret-key }] }\n\
         backends:\n  - { url: http://h:1, engine: llamacpp }\n  - { url: http://h:2/v1, engine: vllm }",
    );
    let config = page(&usage, UsageCall::Config, "", "").await;
    assert_eq!(config["llama_server_endpoints"][0]["url"], "http://h:1");
    assert_eq!(config["endpoints"][0]["status"], "error");
    assert_eq!(config["require_router_api_key"], true);
    let (is_ok, page) = usage.health(true);
    let page: Value = serde_json::from_slice(&page).unwrap();
    assert!(!is_ok && page["status"] == "error" && page["endpoints"]["http://h:1"].is_object());
    let (_, page) = usage.health(false);
    assert_eq!(page, br#"{"status":"error"}"#, "no URL without a key");
}

#[tokio::test]
async fn days_are_checked() {
    let usage = live(ONE);
    let days = page(&usage, UsageCall::Days, "", r#"{"days": 7, "trim_old": true}"#).await;
    assert_eq!((&days["days"], &days["aggregated_groups"]), (&7.into(), &0.into()));
    for wrong in [r#"{"days": 0}"#, r#"{"days": "x"}"#, "[]"] {
        assert!(page(&usage, UsageCall::Days, "", wrong).await.is_string(), "{wrong}");
    }
}
