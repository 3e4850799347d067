//! Conversion between dialects: one token event of a stream, and a request of 4 KiB. The bounds are
//! 10 us for an event and 30 us for a request.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on should stop")]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, WallTime};
use criterion::{Criterion, criterion_group, criterion_main};
use penstock_api::Operation::{self, Chat, Messages, OllamaChat, Responses};
use penstock_api::{Engine, ReasoningField};
use penstock_dialect::{
    ReplyContext, RequestTerms, ResponseConverter, ResponseLimits, convert_request,
};
use serde_json::{Value, json};

const TERMS: RequestTerms<'_> =
    RequestTerms { model: "llama3:70b", engine: Engine::Vllm, num_ctx: None };

/// Clients, and the backends they are converted to.
const PAIRS: &[(Operation, Operation)] = &[
    (OllamaChat, Chat),
    (OllamaChat, Messages),
    (Chat, OllamaChat),
    (Chat, Messages),
    (Messages, Chat),
    (Messages, OllamaChat),
    (Responses, Chat),
];

/// A request of about 4 KiB: instructions, eight turns, a tool.
fn request(client: Operation) -> String {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let text = "What is the weather like in Ulm today, and \"tomorrow\"?\n".repeat(8);
    let turns: Vec<Value> = (0..8)
        .map(|turn| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": text}))
        .collect();
    let function = json!({"name": "weather", "description": "d", "parameters": schema});
    let body = match client {
        Messages => json!({
            "model": "m", "max_tokens": 512, "stream": true, "system": text, "messages": turns,
            "tools": [{"name": "weather", "description": "d", "input_schema": schema}],
        }),
        Responses => json!({
            "model": "m", "max_output_tokens": 512, "stream": true, "instructions": text, "input": turns,
            "tools": [{"type": "function", "name": "weather", "description": "d", "parameters": schema}],
        }),
        _ => json!({
            "model": "m", "max_tokens": 512, "stream": true, "messages": turns, "temperature": 0.7,
            "tools": [{"type": "function", "function": function}],
        }),
    };
    body.to_string()
}

/// An event with one token, as `backend` sends it.
fn token_event(backend: Operation) -> &'static str {
    match backend {
        Messages => concat!(
            "event: content_block_delta\n",
            r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" token"}}"#,
            "\n\n"
        ),
        OllamaChat => concat!(
            r#"{"model":"llama3:70b","created_at":"2026-11-23T04:10:00.123456789Z","message":{"role":"assistant","content":" token"},"done":false}"#,
            "\n"
        ),
        _ => concat!(
            r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"llama3:70b","system_fingerprint":"b1","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}"#,
            "\n\n"
        ),
    }
}

fn converter(client: Operation, backend: Operation) -> ResponseConverter {
    let body = request(client);
    let converted = convert_request(client, backend, body.as_bytes(), &TERMS).unwrap();
    let context = ReplyContext {
        model: "llama3".to_owned(),
        request_id: "0b5f4b0c".to_owned(),
        arrived_at: Duration::from_secs(1_700_000_000),
        reasoning: ReasoningField::Both,
        limits: ResponseLimits::default(),
    };
    ResponseConverter::new(client, backend, converted.reply, context)
}

fn convert_requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dialect/request 4 KiB");
    for (client, backend) in PAIRS {
        let body = request(*client);
        assert!((3800..5000).contains(&body.len()), "{} bytes", body.len());
        group.bench_function(format!("{} to {}", client.name(), backend.name()), |bencher| {
            bencher.iter(|| {
                convert_request(*client, *backend, black_box(body.as_bytes()), &TERMS).unwrap()
            });
        });
    }
    group.finish();
}

fn convert_events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dialect/token event");
    for (client, backend) in PAIRS {
        let event = token_event(*backend).as_bytes();
        group.bench_function(format!("{} to {}", backend.name(), client.name()), |bencher| {
            // A converter per thousand tokens, as a response has.
            bencher.iter_custom(|events| {
                let (mut out, mut spent) = (Vec::with_capacity(1 << 20), Duration::ZERO);
                let mut left = events;
                while left > 0 {
                    let batch = left.min(1000);
                    let mut one = converter(*client, *backend);
                    let started = WallTime.start();
                    for _ in 0..batch {
                        one.feed(black_box(event), Duration::from_millis(7), &mut out).unwrap();
                        black_box(&out);
                        out.clear();
                    }
                    spent += WallTime.end(started);
                    left -= batch;
                }
                spent
            });
        });
    }
    group.finish();
}

criterion_group!(benches, convert_requests, convert_events);
criterion_main!(benches);
