//! A scraper task against a stub engine.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::header;
use penstock_api::units::Timestamp;
use penstock_config::Environment;
use penstock_core::fleet::Standing;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::discovery::dns;

const PAGE: &str = "vllm:num_requests_waiting 2\nvllm:num_requests_running 3\n\
                    vllm:kv_cache_usage_perc 0.5\nprocess_start_time_seconds 100\n";

/// An engine that returns the result of `respond` for each request's number and path, and closes a
/// connection after `per_connection` responses.
struct Stub {
    url: String,
    connections: Arc<AtomicUsize>,
}

impl Stub {
    async fn start(per_connection: usize, respond: fn(usize, &str) -> (u16, String)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (connections, count) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                accepted.fetch_add(1, Ordering::Relaxed);
                for _ in 0..per_connection {
                    let Some(path) = read_path(&mut stream).await else { break };
                    let (status, body) = respond(count.fetch_add(1, Ordering::Relaxed), &path);
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n");
                    stream.write_all((head + &body).as_bytes()).await.unwrap();
                }
            }
        });
        Self { url, connections }
    }
}

async fn read_path(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(head).unwrap();
    head.split(' ').nth(1).map(str::to_owned)
}

async fn task(url: &str, rest: &str) -> Task {
    let yaml = format!(
        "telemetry: {{ enabled: true }}\n\
         backends: [{{ name: a, url: '{url}', models: [m], {rest} }}]"
    );
    let config = Config::parse(&yaml, "x", Path::new("."), &Environment::default()).unwrap();
    let fleet = Arc::new(Fleet::new(&config));
    let backend = fleet.topology().backends[0].clone();
    assert!(dns::resolve(&backend, &dns::Resolver::new(&config.discovery)).await);
    let Scraper(shared) = Scraper::new(1);
    let targets =
        ScrapeTargets { fleet, config: config.telemetry.clone(), spares_disturbed: false };
    Task {
        fetcher: Fetcher::new(backend.clone(), &targets.config),
        sources: sources(&backend.config),
        rng: SmallRng::seed_from_u64(1),
        known: None,
        failures: 0,
        was_busy: false,
        work: None,
        cache_tokens: None,
        backend,
        targets,
        shared,
    }
}

impl Task {
    async fn once(&mut self) -> Result<(), String> {
        match self.scrape().await {
            Ok((page, sent)) => {
                self.learn(page, &sent, Duration::ZERO);
                Ok(())
            }
            Err(error) => {
                self.fail(&error);
                Err(error.to_string())
            }
        }
    }
}

#[tokio::test]
async fn connection_is_reused_and_reopened_when_closed() {
    let stub = Stub::start(2, |_, _| (200, PAGE.to_owned())).await;
    let mut task = task(&stub.url, "engine: vllm").await;
    for _ in 0..5 {
        task.once().await.unwrap();
    }
    assert_eq!(stub.connections.load(Ordering::Relaxed), 3, "two scrapes per connection");
    let state = &task.backend.state;
    assert_eq!(state.telemetry.scrapes(), (5, 0));
    assert_eq!(task.shared.budget.bytes(), 5 * u64::try_from(PAGE.len()).unwrap());
    let readings = state.telemetry.read(&state.load, now());
    assert_eq!((readings.load, readings.standing), (5.0, Standing::Fresh));
}

#[tokio::test]
async fn failed_scrape_reports_its_reason() {
    for (response, reason) in [
        ((|_, _| (404, String::new())) as fn(usize, &str) -> _, "/metrics returned 404"),
        (|_, _| (200, "<html>".to_owned()), "/metrics has no metrics of an engine's load"),
        (|_, _| (200, "x 1\n".repeat(1_100_000)), "the response is larger than 4MiB"),
    ] {
        let stub = Stub::start(9, response).await;
        let mut task = task(&stub.url, "engine: vllm").await;
        assert_eq!(task.once().await.unwrap_err(), reason);
        let pauses: Vec<Duration> = (1..12)
            .map(|failures| {
                task.failures = failures;
                task.pause()
            })
            .collect();
        assert!(pauses.is_sorted() && pauses[0] == Duration::from_secs(2), "{pauses:?}");
        assert_eq!(pauses[10], MAX_PAUSE);
        assert_eq!(task.backend.state.telemetry.scrapes(), (0, 1));
    }
}

#[tokio::test]
async fn llamacpp_is_scraped_by_its_slots_and_slowly() {
    let stub = Stub::start(99, |_, path| match path {
        "/slots" => (200, r#"[{"is_processing":true},{"is_processing":false}]"#.to_owned()),
        "/props" => {
            (200, r#"{"total_slots":2,"default_generation_settings":{"n_ctx":512}}"#.to_owned())
        }
        _ => (501, String::new()),
    })
    .await;
    let mut task = task(&stub.url, "").await;
    task.once().await.unwrap();
    task.once().await.unwrap();
    let telemetry = &task.backend.state.telemetry;
    assert_eq!(telemetry.details().unwrap().capacity_tokens(), Some(1024));
    let sample = telemetry.sample().unwrap();
    assert_eq!((sample.waiting, sample.running), (Some(0.0), Some(1.0)));
    task.backend.state.load.set_in_flight(4);
    assert_eq!(task.interval(), Duration::from_millis(1400));
}

#[tokio::test]
async fn restart_clears_what_was_learned() {
    let stub = Stub::start(99, |number, _| match number {
        0 | 1 => (200, PAGE.to_owned()),
        _ => (200, PAGE.replace("seconds 100", "seconds 200")),
    })
    .await;
    let mut task = task(&stub.url, "engine: vllm").await;
    let fleet = task.targets.fleet.topology();
    let model = fleet.model(fleet.model_id("m").unwrap()).unwrap();
    let latency = &model.serving[0].latency;
    latency.learn_first_token(Duration::from_secs(1), Timestamp(0));
    task.once().await.unwrap();
    task.once().await.unwrap();
    assert!(latency.first_token().is_some());
    assert_eq!(task.backend.state.telemetry.epoch(), 0);
    task.once().await.unwrap();
    assert_eq!(task.backend.state.telemetry.epoch(), 1);
    assert_eq!(latency.first_token(), None);
}

#[tokio::test]
async fn falling_work_counter_is_a_restart() {
    let stub = Stub::start(99, |number, _| {
        let work = [10, 20, 5].get(number).copied().unwrap_or(5);
        (200, format!("tgi_queue_size 0\ntgi_batch_current_size 1\ntgi_request_count {work}\n"))
    })
    .await;
    let mut task = task(&stub.url, "engine: tgi").await;
    for epoch in [0, 0, 1, 1] {
        task.once().await.unwrap();
        assert_eq!(task.backend.state.telemetry.epoch(), epoch);
    }
}

#[tokio::test]
async fn busy_engines_are_scraped_more_often_than_idle_ones() {
    let stub = Stub::start(99, |_, _| (200, PAGE.to_owned())).await;
    let mut task = task(&stub.url, "engine: vllm").await;
    assert_eq!(task.interval(), Duration::from_secs(1));
    task.once().await.unwrap();
    assert_eq!(task.interval(), Duration::from_secs(1));
    task.backend.state.load.set_in_flight(1);
    assert_eq!(task.interval(), Duration::from_millis(100));
    task.once().await.unwrap();
    task.backend.state.load.set_in_flight(0);
    assert_eq!(task.interval(), Duration::from_millis(100), "asked once more soon");
    task.once().await.unwrap();
    assert_eq!(task.interval(), Duration::from_secs(1));
    assert_eq!(task.backend.state.telemetry.sample().unwrap().interval, Duration::from_secs(1));
}

#[tokio::test]
async fn metrics_port_gets_no_api_key() {
    let stub = Stub::start(99, |_, _| (200, PAGE.to_owned())).await;
    let port = stub.url.rsplit(':').next().unwrap();
    let rest = format!("engine: trtllm, api_key: secret, telemetry: {{ port: {port} }}");
    let mut task = task("http://127.0.0.1:9", &rest).await;
    task.once().await.unwrap();
    let head = task.fetcher.head("/metrics").unwrap();
    assert!(head.headers.get(header::AUTHORIZATION).is_none());
    assert_eq!(head.headers[header::HOST], stub.url["http://".len()..]);
}
