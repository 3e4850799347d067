//! The cost of finding the client of a key among others, hash included, and of the comparison with
//! every key that it replaces.

#![allow(clippy::unwrap_used, reason = "a bench's own data")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use penstock_config::{KeyHash, UnixTime};
use penstock_core::clients::{ClientIdentity, KeyTable, KnownKey, Validity};
use subtle::ConstantTimeEq;

const SIZES: [u32; 4] = [10, 1_000, 100_000, 1_000_000];
/// Keys that take turns, so that not all of a table lies in the caches.
const TURNS: u32 = 4096;

/// A key as `penstock keys create` makes them.
fn secret(n: u32) -> String {
    format!("sk-penstock-{:043}", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn table(size: u32) -> KeyTable {
    let mut table = KeyTable::default();
    for n in 0..size {
        let client = Arc::new(ClientIdentity::new(&format!("key_{n}"), "team"));
        let key = KnownKey { client, validity: Validity::default() };
        table.insert(KeyHash::of(secret(n).as_bytes()), key);
    }
    table
}

fn look_up(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys");
    for size in SIZES {
        let table = table(size);
        let step = (size / TURNS).max(1);
        let turns: Vec<String> = (0..size).step_by(step.try_into().unwrap()).map(secret).collect();
        let mut turns = turns.iter().cycle();
        group.bench_function(BenchmarkId::new("find", size), |bencher| {
            bencher.iter(|| {
                let hash = KeyHash::of(black_box(turns.next().unwrap().as_bytes()));
                let key = table.find(&hash).unwrap();
                key.validity.check(|| UnixTime(0)).unwrap();
                Arc::clone(&key.client)
            });
        });
    }
    let keys: Vec<String> = (0..10).map(secret).collect();
    group.bench_function(BenchmarkId::new("compare", 10), |bencher| {
        let given = black_box(secret(5));
        bencher.iter(|| {
            let same = |key: &String| bool::from(key.as_bytes().ct_eq(given.as_bytes()));
            keys.iter().filter(|key| same(key)).count()
        });
    });
    group.finish();
}

criterion_group!(benches, look_up);
criterion_main!(benches);
