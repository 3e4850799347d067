//! The request scanner beside two JSON readers that find the same facts, and beside `simdutf8`
//! alone, which reads the same bytes once and finds nothing: the floor.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on should stop")]

use std::borrow::Cow;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jiter::{Jiter, JiterResult, NumberInt, Peek};
use penstock_api::Operation;
use penstock_scan::{ScanOptions, TokenEstimate, scan};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The facts all three readers find, so that none does less.
#[derive(Debug, Default, PartialEq)]
struct Facts {
    model: usize,
    streaming: bool,
    tools: bool,
    vision: bool,
    json_mode: bool,
    text: usize,
    max_tokens: Option<u32>,
}

fn with_jiter(body: &[u8]) -> JiterResult<Facts> {
    let mut reader = Jiter::new(body);
    let mut facts = Facts::default();
    let mut name = reader.next_object_bytes()?;
    while let Some(member) = name {
        match member {
            b"model" => facts.model = reader.next_str()?.len(),
            b"stream" => {
                facts.streaming = reader.peek()? == Peek::True;
                reader.next_skip()?;
            }
            b"tools" | b"functions" => {
                facts.tools = reader.peek()? != Peek::Null;
                reader.next_skip()?;
            }
            b"max_tokens" => match reader.next_int()? {
                NumberInt::Int(limit) => facts.max_tokens = u32::try_from(limit).ok(),
                NumberInt::BigInt(_) => facts.max_tokens = Some(u32::MAX),
            },
            b"response_format" => facts.json_mode = jiter_format(&mut reader)?,
            b"messages" => {
                let mut next = reader.next_array()?;
                while next.is_some() {
                    jiter_message(&mut reader, &mut facts)?;
                    next = reader.array_step()?;
                }
            }
            _ => reader.next_skip()?,
        }
        name = reader.next_key_bytes()?;
    }
    reader.finish()?;
    Ok(facts)
}

fn jiter_format(reader: &mut Jiter<'_>) -> JiterResult<bool> {
    let mut is_json = false;
    let mut name = reader.next_object_bytes()?;
    while let Some(member) = name {
        if member == b"type" {
            is_json = matches!(reader.next_str()?, "json_object" | "json_schema");
        } else {
            reader.next_skip()?;
        }
        name = reader.next_key_bytes()?;
    }
    Ok(is_json)
}

fn jiter_message(reader: &mut Jiter<'_>, facts: &mut Facts) -> JiterResult<()> {
    let mut name = reader.next_object_bytes()?;
    while let Some(member) = name {
        if member != b"content" {
            reader.next_skip()?;
        } else if reader.peek()? == Peek::String {
            facts.text += count(reader.known_str()?);
        } else {
            let mut next = reader.next_array()?;
            while next.is_some() {
                jiter_part(reader, facts)?;
                next = reader.array_step()?;
            }
        }
        name = reader.next_key_bytes()?;
    }
    Ok(())
}

fn jiter_part(reader: &mut Jiter<'_>, facts: &mut Facts) -> JiterResult<()> {
    let mut name = reader.next_object_bytes()?;
    while let Some(member) = name {
        match member {
            b"type" => facts.vision |= reader.next_str()? == "image_url",
            b"text" => facts.text += count(reader.next_str()?),
            _ => reader.next_skip()?,
        }
        name = reader.next_key_bytes()?;
    }
    Ok(())
}

fn count(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().count() }
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(default)]
    stream: bool,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    functions: Option<&'a RawValue>,
    max_tokens: Option<u32>,
    #[serde(borrow)]
    response_format: Option<Format<'a>>,
    #[serde(borrow, default)]
    messages: Vec<Message<'a>>,
}

#[derive(Deserialize)]
struct Format<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Content<'a>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Parts(#[serde(borrow)] Vec<Part<'a>>),
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

fn with_serde(body: &[u8]) -> Facts {
    let body: Body<'_> = serde_json::from_slice(body).unwrap();
    let mut facts = Facts {
        model: body.model.len(),
        streaming: body.stream,
        tools: body.tools.is_some() || body.functions.is_some(),
        json_mode: body
            .response_format
            .is_some_and(|format| matches!(&*format.kind, "json_object" | "json_schema")),
        max_tokens: body.max_tokens,
        ..Facts::default()
    };
    for message in &body.messages {
        match &message.content {
            Content::Text(text) => facts.text += count(text),
            Content::Parts(parts) => {
                for part in parts {
                    facts.vision |= part.kind == "image_url";
                    facts.text += part.text.as_deref().map_or(0, count);
                }
            }
        }
    }
    facts
}

fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let text = "What does a lock-free queue cost when no other thread is in line?";
    let fill = |length: usize| text.chars().cycle().take(length).collect::<String>();
    let request = |messages: String| {
        format!(
            r#"{{"model":"meta-llama/Llama-3.1-8B-Instruct","messages":[{messages}],"temperature":0.7,"max_tokens":256,"stream":true}}"#
        )
        .into_bytes()
    };
    let message = |role: &str, text: &str| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
    let base64: String = "iVBORw0KGgoAAAANSUhEUgAAA+/8".chars().cycle().take(1 << 20).collect();
    let escaped = |length: usize| {
        let line = format!("{}\\n", fill(38));
        line.repeat(length / line.len())
    };
    let five = [
        message("system", "You are terse and polite."),
        message("user", "Name a colour of the sky."),
        message("assistant", "Blue."),
        message("user", "Another one, please."),
        message("user", "And one more for the road?"),
    ];
    // Their lengths repeat, so that ten thousand are a hundred times a hundred.
    let conversation = |count: usize| -> String {
        let role = |index: usize| if index.is_multiple_of(2) { "user" } else { "assistant" };
        let one = |index: usize| message(role(index), &fill(60 + index % 100));
        (0..count).map(one).collect::<Vec<_>>().join(",")
    };
    let image = format!(
        r#"{{"role":"user","content":[{{"type":"text","text":"What is this?"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{base64}"}}}}]}}"#
    );
    let tools: Vec<String> = (0..40)
        .map(|index| {
            let about = format!("{}\\n- `offset`: {}", fill(1400), fill(120));
            format!(
                r#"{{"type":"function","function":{{"name":"tool_{index}","description":"{about}","parameters":{{"type":"object","properties":{{"path":{{"type":"string","description":"The path of the file"}},"limit":{{"type":"integer","minimum":0}}}},"required":["path"]}}}}}}"#
            )
        })
        .collect();
    let agent = format!(
        r#"{{"model":"m","messages":[{}],"tools":[{}],"max_tokens":256,"stream":true}}"#,
        message("user", &fill(300)),
        tools.join(",")
    );
    vec![
        ("40 tools", agent.into_bytes()),
        ("300 B", request(message("user", &fill(150)))),
        ("5 messages", request(five.join(","))),
        ("100 messages", request(conversation(100))),
        ("10,000 messages", request(conversation(10_000))),
        ("32 KiB escaped", request(message("user", &escaped(32 << 10)))),
        ("1 MiB image", request(image)),
        ("1 MiB escaped", request(message("user", &escaped(1 << 20)))),
        ("1 MiB CJK", request(message("user", &"東京都の天気は晴れ".repeat((1 << 20) / 27)))),
    ]
}

fn bench(criterion: &mut Criterion) {
    for (name, body) in bodies() {
        let in_characters =
            ScanOptions { estimate: TokenEstimate::Chars, ..ScanOptions::default() };
        let scanned = scan(Operation::Chat, None, &body, in_characters).unwrap();
        let facts = with_jiter(&body).unwrap();
        assert_eq!(facts, with_serde(&body), "the readers find the same");
        assert_eq!(scanned.estimated_tokens.0 as usize, facts.text / 4);
        let mut group = criterion.benchmark_group("scan");
        group.throughput(Throughput::Bytes(body.len() as u64));
        let id = |reader: &str| BenchmarkId::new(reader, format!("{name}, {} bytes", body.len()));
        group.bench_function(id("penstock"), |bencher| {
            bencher.iter(|| {
                scan(Operation::Chat, None, black_box(&body), ScanOptions::default()).unwrap()
            });
        });
        group.bench_function(id("jiter"), |bencher| {
            bencher.iter(|| with_jiter(black_box(&body)).unwrap());
        });
        group.bench_function(id("serde_json"), |bencher| {
            bencher.iter(|| with_serde(black_box(&body)));
        });
        group.bench_function(id("simdutf8"), |bencher| {
            bencher.iter(|| simdutf8::basic::from_utf8(black_box(&body)).unwrap().len());
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(900))
        .sample_size(30);
    targets = bench
}
criterion_main!(benches);
