//! The cost of reading an engine's metrics: a page of 100 KiB as vLLM writes it, from the bytes to
//! what decisions read.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench's own data")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use penstock::discovery::PageReader;
use penstock_api::units::Timestamp;
use penstock_core::fleet::{EngineSample, Load, Telemetry};

const LABELS: &str = r#"engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct""#;
/// The histograms of an engine; there are more on a page than anybody reads.
const HISTOGRAMS: [&str; 12] = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_max_tokens",
    "iteration_tokens_total",
];

fn page(length: usize) -> String {
    let mut page = String::from(
        "# HELP process_start_time_seconds Start time of the process.\n\
         # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.76372136149e+09\n",
    );
    let singles = [
        ("num_requests_running", "17.0"),
        ("num_requests_waiting", "4.0"),
        ("kv_cache_usage_perc", "0.4321987654321"),
        ("prefix_cache_queries_total", "1.2345678e+07"),
        ("prefix_cache_hits_total", "7.654321e+06"),
        ("generation_tokens_total", "9.87654e+06"),
    ];
    for (name, value) in singles {
        writeln!(page, "# HELP vllm:{name} What it is.\n# TYPE vllm:{name} gauge").unwrap();
        writeln!(page, "vllm:{name}{{{LABELS}}} {value}").unwrap();
    }
    writeln!(
        page,
        "vllm:cache_config_info{{block_size=\"16\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",\
         engine=\"0\",gpu_memory_utilization=\"0.9\",num_cpu_blocks=\"None\",num_gpu_blocks=\"27461\"}} 1.0"
    )
    .unwrap();
    for round in 0_u32.. {
        for name in HISTOGRAMS {
            writeln!(page, "# HELP vllm:{name} Histogram of it.\n# TYPE vllm:{name} histogram")
                .unwrap();
            for bucket in 0..24 {
                let bound = f64::from(bucket * bucket + round) / 40.0;
                writeln!(page, "vllm:{name}_bucket{{{LABELS},le=\"{bound}\"}} {}.0", bucket * 931)
                    .unwrap();
            }
            writeln!(page, "vllm:{name}_count{{{LABELS}}} 22345.0").unwrap();
            writeln!(page, "vllm:{name}_sum{{{LABELS}}} 48711.1234567").unwrap();
            if page.len() >= length {
                return page;
            }
        }
    }
    page
}

fn reading(criterion: &mut Criterion) {
    let page = page(100 << 10);
    let (reader, telemetry, load) = (PageReader::default(), Telemetry::default(), Load::default());
    let mut group = criterion.benchmark_group("scrape");
    group.throughput(Throughput::Bytes(u64::try_from(page.len()).unwrap()));
    group.bench_function("a page of 100 KiB", |bencher| {
        bencher.iter(|| {
            let reading = reader.read(black_box(page.as_bytes())).expect("it reports its load");
            telemetry.learn_details(&reading.details);
            telemetry.publish(EngineSample {
                waiting: reading.waiting,
                running: reading.running,
                kv_utilization: reading.kv_utilization,
                in_flight: load.in_flight(),
                sent_at: Timestamp(1_000_000),
                interval: Duration::from_millis(100),
            });
        });
    });
    group.finish();
    criterion.bench_function("what a decision reads of one backend", |bencher| {
        bencher.iter(|| black_box(&telemetry).read(&load, black_box(Timestamp(1_050_000))));
    });
}

criterion_group!(benches, reading);
criterion_main!(benches);
