//! Lines are complete, bounded and cannot be forged, and no request waits for them.

use std::path::Path;
use std::time::Duration;

use http::header::HeaderValue;
use penstock_api::units::TokenCount;
use penstock_api::{ErrorCode, Operation, TraceContext};
use penstock_core::fleet::BackendId;
use penstock_core::routing::{
    EditFacts, QueueFacts, ReplayFields, RequestDetails, RequestFacts, RequestRecord,
    ResponseFacts, RoutingFacts,
};
use penstock_predict::Prediction;
use penstock_scan::Usage;
use serde_json::{Value, json};

use super::*;

fn record() -> RequestRecord {
    RequestRecord {
        request: RequestFacts {
            requested_model: Some("gpt-4o".into()),
            is_streaming: true,
            prompt_tokens: Some(TokenCount(7)),
            bytes_in: 120,
            ..RequestFacts::default()
        },
        queue: QueueFacts { wait: Some(Duration::from_millis(250)), ..QueueFacts::default() },
        routing: RoutingFacts {
            model: Some("llama3:70b".into()),
            backend: Some((BackendId(3), "gpu-a".into())),
            provider: Some("vllm"),
            attempts: 2,
            ..RoutingFacts::default()
        },
        response: ResponseFacts {
            status: 200,
            token_events: 11,
            upstream_request_id: Some(HeaderValue::from_static("req_7")),
            ..ResponseFacts::default()
        },
        edits: EditFacts::default(),
    }
}

fn details<'a>() -> RequestDetails<'a> {
    RequestDetails {
        request_id: "r-1",
        key: Some("team-a"),
        account: Some("team-a"),
        client: Some("::1".parse().unwrap()),
        method: "POST",
        path: "/v1/chat/completions",
        bytes_out: 4000,
        trace: Some(TraceContext::begin(0xabc, 1, true)),
    }
}

fn outcome<'a>(record: &'a RequestRecord, details: RequestDetails<'a>) -> RequestOutcome<'a> {
    RequestOutcome {
        record,
        operation: Some(Operation::Chat),
        outcome: Outcome::Ok,
        first_token: Some(Duration::from_micros(31_500)),
        took: Duration::from_millis(900),
        details,
    }
}

/// The parsed line of an outcome, without the fields for a replay.
fn line_of(outcome: &RequestOutcome<'_>) -> Value {
    parse(&line::to_line(outcome, Duration::ZERO, false))
}

#[test]
fn replay_has_hashes_and_no_text() {
    let fields = ReplayFields {
        max_tokens: Some(TokenCount(9)),
        session: Some(0xffff_0000_0000_0abc),
        block_tokens: 256,
        blocks: vec![1, u64::MAX],
    };
    let mut record = record();
    record.request.replay = Some(Box::new(fields.clone()));
    let line = |outcome: &RequestOutcome<'_>, has_replay| {
        parse(&line::to_line(outcome, Duration::from_secs(1), has_replay))
    };
    let of_gate = line(&outcome(&record, details()), false);
    assert_eq!(of_gate.get("replay"), None, "the fields may be set for the reload gate alone");
    let shown = line(&outcome(&record, details()), true);
    let expected = json!({
        "max_tokens": 9, "session": "000000000abc", "block_tokens": 256,
        "blocks": "000000000001ffffffffffff",
    });
    assert_eq!(shown["replay"], expected);
    let longest = ReplayFields { blocks: vec![u64::MAX; 1000], ..fields };
    let long = "é".repeat(10_000);
    record.request.requested_model = Some(long.as_str().into());
    record.request.replay = Some(Box::new(longest));
    let details = RequestDetails { request_id: &long, key: Some(&long), path: &long, ..details() };
    let line = line(&outcome(&record, details), true);
    assert_eq!(line["replay"]["blocks"].as_str().unwrap().len(), 160 * 12);
}

fn parse(line: &[u8]) -> Value {
    assert!(line.len() <= line::MAX_LINE, "{} bytes", line.len());
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
    assert_eq!(line.last(), Some(&b'\n'));
    serde_json::from_slice(line).unwrap()
}

#[test]
fn line_describes_the_request() {
    let record = record();
    let at = Duration::from_secs(1_795_204_406);
    let line = line::to_line(&outcome(&record, details()), at, true);
    let expected = json!({
        "time": "2026-11-20T19:53:26.000Z", "id": "r-1", "upstream_id": "req_7", "key": "team-a", "client": "::1",
        "method": "POST", "path": "/v1/chat/completions", "operation": "chat",
        "model_requested": "gpt-4o", "model": "llama3:70b", "backend": "gpu-a", "status": 200,
        "error": null, "outcome": "ok", "stream": true, "fallback": false, "attempts": 2,
        "tokens_in": 7, "tokens_out": 11, "tokens_cached": null, "tokens_estimated": true,
        "queue_ms": 250, "ttft_ms": 31.5, "duration_ms": 900, "bytes_in": 120, "bytes_out": 4000,
        "trace": "00000000000000000000000000000abc", "ensemble": null,
    });
    assert_eq!(parse(&line), expected);
}

#[test]
fn predictions_stand_beside_the_truth() {
    let predicted = Prediction {
        ttft_us: 42_000.4,
        ttft_p90_us: 60_000.0,
        tpot_us: 9_000.0,
        ..Prediction::default()
    };
    let mut record = record();
    record.routing.prediction = Some(predicted);
    let line = line_of(&outcome(&record, details()));
    let found = ["predicted_ttft_ms", "predicted_ttft_p90_ms", "predicted_tpot_ms", "tpot_ms"]
        .map(|key| line[key].as_f64().unwrap());
    assert_eq!(found, [42.0, 60.0, 9.0, 86.85], "868.5 ms for ten gaps");
    let cut = RequestOutcome { outcome: Outcome::Cancel, ..outcome(&record, details()) };
    assert_eq!(line_of(&cut)["tpot_ms"], Value::Null);
}

#[test]
fn engine_token_counts_take_precedence() {
    let usage = |prompt_tokens, completion_tokens| Usage {
        prompt_tokens,
        completion_tokens,
        ..Usage::default()
    };
    for (usage, expected) in [
        (Some(usage(Some(9), Some(12))), json!([9, 12, false])),
        (Some(usage(Some(9), None)), json!([9, 11, true])),
        (Some(usage(None, Some(12))), json!([7, 12, true])),
        (None, json!([7, 11, true])),
    ] {
        let mut record = record();
        record.response.usage = usage;
        let line = line_of(&outcome(&record, details()));
        let tokens = json!([line["tokens_in"], line["tokens_out"], line["tokens_estimated"]]);
        assert_eq!(tokens, expected);
    }
    let mut record = record();
    record.routing.backend = None;
    record.response = ResponseFacts {
        status: 404,
        code: Some(ErrorCode::ModelNotFound),
        ..ResponseFacts::default()
    };
    let refused = RequestOutcome { outcome: Outcome::Client, ..outcome(&record, details()) };
    let line = line_of(&refused);
    assert_eq!(line["error"], "model_not_found");
    assert_eq!(line["tokens_in"], Value::Null, "no engine has seen it");
    assert_eq!(line["tokens_estimated"], false);
}

#[test]
fn client_texts_cannot_forge_or_flood_a_line() {
    let evil = "\r\n{\"forged\":1}\u{1b}[31m\u{7f}\u{9b}\u{2028}\u{202e}\0\"\\ä";
    let long = evil.repeat(400);
    for text in [evil, &long] {
        let details = RequestDetails {
            request_id: text,
            key: Some(text),
            method: text,
            path: text,
            ..details()
        };
        let mut record = record();
        record.request.requested_model = Some(text.into());
        record.routing.model = Some(text.into());
        record.routing.backend = Some((BackendId(0), text.into()));
        let at = Duration::MAX.min(Duration::from_secs(1 << 40));
        let line = line::to_line(&outcome(&record, details), at, false);
        let parsed = parse(&line);
        let text = String::from_utf8(line).unwrap();
        let odd = |c: &char| (c.is_control() && *c != '\n') || matches!(c, '\u{2028}' | '\u{202e}');
        assert_eq!(text.chars().find(odd), None, "{text}");
        assert!(parsed["path"].as_str().unwrap().starts_with("\r\n{\"forged\""));
    }
    let record = record();
    let line = line_of(&outcome(&record, RequestDetails { path: &long, ..details() }));
    assert!(line["path"].as_str().unwrap().ends_with('…'), "a cut shows");
}

#[test]
fn text_of_maximum_length_is_not_cut() {
    for length in 765..775 {
        let path = "x".repeat(length);
        let record = record();
        let line = line_of(&outcome(&record, RequestDetails { path: &path, ..details() }));
        let shown = line["path"].as_str().unwrap().to_owned();
        if length <= 768 {
            assert_eq!(shown, path);
        } else {
            assert_eq!(shown, format!("{}…", "x".repeat(765)));
        }
    }
}

fn config(path: PathBuf) -> AccessLogConfig {
    AccessLogConfig { path: LogTarget::File(path), ..AccessLogConfig::default() }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn lines_are_flushed_and_continue_after_rotation() {
    let folder = folder("access-log");
    let (path, moved) = (folder.join("access.log"), folder.join("access.log.1"));
    let log = AccessLog::start(&config(path.clone())).unwrap().unwrap();
    for _ in 0..100 {
        log.finished(&outcome(&record(), details()));
    }
    log.flush(Duration::from_secs(10));
    assert_eq!(log.deliveries(), Deliveries { delivered: 100, dropped: 0, failed: 0 });
    std::fs::rename(&path, &moved).unwrap();
    log.reopen();
    log.finished(&outcome(&record(), details()));
    log.flush(Duration::from_secs(10));
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
    assert_eq!((lines(&moved), lines(&path)), (100, 1));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn open_and_write_errors_are_reported() {
    let missing = folder("no-log").join("missing/access.log");
    let error = AccessLog::start(&config(missing)).unwrap_err();
    assert!(error.to_string().contains("cannot open"), "{error}");
    if Path::new("/dev/full").exists() {
        let log = AccessLog::start(&config("/dev/full".into())).unwrap().unwrap();
        log.finished(&outcome(&record(), details()));
        log.flush(Duration::from_secs(10));
        assert_eq!(log.deliveries(), Deliveries { delivered: 0, dropped: 0, failed: 1 });
    }
}

#[test]
fn sampling_rates_apply_to_ok_and_failed_requests() {
    let folder = folder("sampled-log");
    let path = folder.join("access.log");
    let config = AccessLogConfig { sample: 0.25, ..config(path.clone()) };
    let log = AccessLog::start(&config).unwrap().unwrap();
    let write = |log: &AccessLog, class| {
        let before = log.deliveries().delivered;
        for number in 0..2000 {
            let id = format!("request-{number}");
            let details = RequestDetails { request_id: &id, ..details() };
            log.finished(&RequestOutcome { outcome: class, ..outcome(&record(), details) });
        }
        log.flush(Duration::from_secs(10));
        log.deliveries().delivered - before
    };
    let chosen = write(&log, Outcome::Ok);
    assert!((400..600).contains(&chosen), "{chosen} of 2000 at a share of 0.25");
    assert_eq!(write(&log, Outcome::Ok), chosen, "the same requests each time");
    assert_eq!(write(&log, Outcome::Fault), 2000);
    assert_eq!(write(&AccessLog { sample: 0.0, ..log }, Outcome::Ok), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}
