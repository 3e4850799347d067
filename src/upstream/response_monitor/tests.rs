//! Tests of the counts and the results that a monitor finds.

use super::*;

fn usage_of(parts: &[&[u8]]) -> Option<Usage> {
    let bounds = UsageBounds::default();
    let mut monitor = ResponseMonitor::new(Operation::Chat, None, bounds);
    for (at, part) in parts.iter().enumerate() {
        monitor.observe(part, at + 1 == parts.len());
    }
    monitor.usage
}

#[test]
fn usage_is_found_before_long_text_however_the_body_is_split() {
    let text = "word ".repeat(4000);
    let usage = r#""usage":{"prompt_tokens":123,"completion_tokens":4000}"#;
    let before =
        format!(r#"{{"id":"x",{usage},"choices":[{{"message":{{"content":"{text}"}}}}]}}"#);
    let between = format!(r#"{{"choices":["{text}"],{usage},"prompt_token_ids":"{text}"}}"#);
    for body in [before, between] {
        let start = body.find(r#""usage""#).unwrap();
        let cuts = (start.saturating_sub(5)..start + 60).chain([body.len() - 1, body.len()]);
        for cut in cuts {
            let (first, second) = body.as_bytes().split_at(cut);
            let found = usage_of(&[first, second]).and_then(|usage| usage.completion_tokens);
            assert_eq!(found, Some(4000), "cut at {cut}");
        }
        let parts: Vec<&[u8]> = body.as_bytes().chunks(7).collect();
        assert_eq!(usage_of(&parts).and_then(|usage| usage.prompt_tokens), Some(123));
    }
}

#[test]
fn results_without_output_are_empty_unless_little_was_requested() {
    let empty = r#"{"choices":[{"message":{"content":""}}],"usage":{"completion_tokens":1}}"#;
    let thought = r#"{"choices":[{"message":{"content":""}}],"usage":{"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":9}}}"#;
    let none = r#"{"id":"c","choices":[]}"#;
    let cut = format!(r#"{{"choices":[{{"message":{{"content":"{}""#, "word ".repeat(2000));
    let judged = |body: &str, cut: usize, expected| {
        let bounds = UsageBounds::default();
        let mut monitor = ResponseMonitor::new(Operation::Chat, None, bounds);
        monitor.expect_result(None);
        monitor.expected = expected;
        let (first, second) = body.as_bytes().split_at(cut);
        monitor.observe(first, second.is_empty());
        if !second.is_empty() {
            monitor.observe(second, true);
        }
        (monitor.has_failed(), monitor.is_empty())
    };
    for (body, expected, judgement) in [
        (empty, ExpectedOutput::Any, (false, true)),
        (empty, ExpectedOutput::Little, (false, false)),
        (&empty.replace(":1}", ":12}"), ExpectedOutput::Any, (false, true)),
        (thought, ExpectedOutput::Any, (false, false)),
        (none, ExpectedOutput::Any, (false, true)),
        (none, ExpectedOutput::Little, (false, false)),
        (none, ExpectedOutput::None, (false, false)),
        (&cut, ExpectedOutput::Any, (true, false)),
    ] {
        for at in [5, body.len() - 3, body.len()] {
            assert_eq!(judged(body, at, expected), judgement, "{body} in parts at {at}");
        }
    }
}

#[test]
fn quoted_text_is_no_usage() {
    let text = r#"say \"usage\":{\"prompt_tokens\":1} "#.repeat(300);
    let body = format!(r#"{{"choices":["{text}"]}}"#);
    assert_eq!(usage_of(&[body.as_bytes()]), None);
    assert_eq!(usage_of(&[body.as_bytes(), b" "]), None);
}

#[test]
fn failed_response_with_output_has_failed_in_one_part_or_in_several() {
    let text = "word ".repeat(2000);
    let body = |status: &str, text: &str| {
        format!(
            r#"{{"id":"resp_1","status":"{status}","error":{{"code":"server_error"}},"output":[{{"type":"message","content":[{{"type":"output_text","text":"{text}"}}]}}]}}"#
        )
    };
    for (status, text, expected) in [
        ("failed", "hi", true),
        ("failed", &*text, true),
        ("completed", "hi", false),
        ("completed", r#"\"status\":\"failed\""#, false),
    ] {
        let body = body(status, text);
        for cut in [60, body.len() - 3, body.len()] {
            let mut monitor =
                ResponseMonitor::new(Operation::Responses, None, UsageBounds::default());
            monitor.expect_result(None);
            let (first, second) = body.as_bytes().split_at(cut);
            monitor.observe(first, second.is_empty());
            if !second.is_empty() {
                monitor.observe(second, true);
            }
            assert_eq!(monitor.has_failed(), expected, "{status} cut at {cut}");
        }
    }
}
