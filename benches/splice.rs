//! The cost of rewriting a body's model name: nothing is copied, whatever its size.

#![allow(clippy::unwrap_used, reason = "a bench's own data")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use penstock::upstream::splice::{splice, total_len};
use penstock_api::Operation;
use penstock_scan::{ScanOptions, scan};

fn splice_model(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("splice");
    for size in [300, 32 << 10, 1 << 20] {
        let text = "x".repeat(size);
        let body =
            format!(r#"{{"model":"gpt-4","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let profile = scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap();
        group.bench_function(format!("{size} B"), |bencher| {
            bencher.iter(|| total_len(&splice(black_box(body.as_bytes()), &profile, "llama3:70b")));
        });
    }
    group.finish();
}

criterion_group!(benches, splice_model);
criterion_main!(benches);
