//! The cost of the token ledger for each request: `Ledger::finished` as the data plane calls it, by
//! one thread and by several on the same backend, model and key.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark fails by panicking and starts threads"
)]

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use penstock::observe::ledger::Ledger;
use penstock_api::Operation;
use penstock_config::{Config, Environment};
use penstock_core::fleet::{BackendId, Outcome};
use penstock_core::routing::{
    Generation, RequestDetails, RequestFacts, RequestObserver, RequestOutcome, RequestRecord,
    ResponseFacts, RoutingFacts,
};
use penstock_scan::Usage;

const THREADS: u64 = 4;

fn record() -> RequestRecord {
    let usage = Usage { prompt_tokens: Some(700), completion_tokens: Some(90), ..Usage::default() };
    RequestRecord {
        request: RequestFacts { is_streaming: true, ..RequestFacts::default() },
        routing: RoutingFacts {
            model: Some("meta-llama/Meta-Llama-3-8B-Instruct".into()),
            backend: Some((BackendId(0), "gpu-a".into())),
            attempts: 1,
            ..RoutingFacts::default()
        },
        response: ResponseFacts {
            status: 200,
            usage: Some(usage),
            token_events: 90,
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
        first_token: None,
        took: Duration::ZERO,
        details: RequestDetails { account: Some("team-a"), ..RequestDetails::default() },
    }
}

fn finished(criterion: &mut Criterion) {
    let yaml = "backends: [{ name: gpu-a, url: http://127.0.0.1:1 }]";
    let config = Config::parse(yaml, "bench.yaml", Path::new(""), &Environment::default()).unwrap();
    let ledger = Arc::new(Ledger::start(&Generation::new(config), Arc::default()).unwrap());
    criterion.bench_function("ledger/finished", |bencher| {
        let record = record();
        let outcome = outcome(&record);
        bencher.iter(|| ledger.finished(black_box(&outcome)));
    });
    criterion.bench_function("ledger/finished by 4 threads", |bencher| {
        bencher.iter_custom(|iterations| {
            let started = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let record = record();
                        let outcome = outcome(&record);
                        for _ in 0..iterations / THREADS {
                            ledger.finished(black_box(&outcome));
                        }
                    });
                }
            });
            started.elapsed()
        });
    });
}

criterion_group!(benches, finished);
criterion_main!(benches);
