//! Lines that are too long to be held: what they report counts as in a line that is read whole.

use super::*;

/// Feeds a stream in pieces; `scanner` has seen nothing yet.
fn fed_to(mut scanner: EventScanner, stream: &str, step: usize) -> (u32, bool, EventScanner) {
    let (mut tokens, mut error) = (0, false);
    for chunk in stream.as_bytes().chunks(step) {
        let progress = scanner.feed(chunk);
        tokens += progress.tokens;
        error = progress.error;
        assert!(scanner.partial.capacity() <= 4 * MAX_LINE, "what is kept is bounded");
    }
    (tokens, error, scanner)
}

/// The verdicts on a stream: its tokens, its error, and whether it has finished, is void, or is
/// empty.
fn verdict(operation: Operation, stream: &str, step: usize) -> (u32, bool, bool, bool, bool) {
    let scanner = EventScanner::new(operation, framing_of(operation));
    let (tokens, error, scanner) = fed_to(scanner, stream, step);
    (tokens, error, scanner.has_finished(), scanner.is_void(), scanner.is_empty())
}

/// Each `@` stands for something long.
const EVENTS: [(Operation, &str); 35] = [
    (Operation::Chat, r#"{"x":"@"}"#),
    (Operation::Chat, r#"{"id":"@"}"#),
    (Operation::Chat, r#"{"choices":[{"delta":{"content":"@"},"finish_reason":null}]}"#),
    (Operation::Chat, r#"{"choices":[{"delta":{"content":"@"},"finish_reason":"stop"}]}"#),
    (Operation::Chat, r#"{"choices":[{"finish_reason":"stop","delta":{"content":"@"}}]}"#),
    (Operation::Chat, r#"{"choices":[{"finish_reason":"","delta":{"content":"@"}}]}"#),
    (
        Operation::Chat,
        r#"{"choices":[{"delta":{"content":"@"},"finish_reason":"stop","logprobs":["@"]}]}"#,
    ),
    (Operation::Chat, r#"{"choices":[{"delta":{"content":"@"},"finish_reason": "abort"}]}"#),
    (Operation::Chat, r#"{"choices":[{"logprobs":["@"],"delta":{"content":"Hi"}}]}"#),
    (Operation::Chat, r#"{"choices":[{"delta":{"content":""},"logprobs":["@"]}]}"#),
    (
        Operation::Chat,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"write","arguments":"{\"t\":\"@"}}]},"finish_reason":null}]}"#,
    ),
    (Operation::Chat, r#"{"choices":[],"pad":"@","usage":{"completion_tokens":4}}"#),
    (Operation::Chat, r#"{"error":{"message":"@","code":500}}"#),
    (Operation::Chat, r#"{"object":"error","message":"@"}"#),
    (Operation::Chat, r#"{"choices":[{"delta":{"content":"\"finish_reason\":\"stop\" @"}}]}"#),
    (Operation::Completions, r#"{"choices":[{"text":"@","finish_reason":null}]}"#),
    (Operation::Completions, r#"{"choices":[{"text":"@","finish_reason":"length"}]}"#),
    (Operation::Completions, r#"{"error":{"message":"@"}}"#),
    (Operation::Messages, r#"{"type":"content_block_delta","delta":{"text":"@"}}"#),
    (
        Operation::Messages,
        r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a\":\"@"}}"#,
    ),
    (
        Operation::Messages,
        r#"{"type":"content_block_start","content_block":{"type":"web_search_tool_result","content":"@"}}"#,
    ),
    (Operation::Messages, r#"{"type":"error","error":{"message":"@"}}"#),
    (Operation::Messages, r#"{"pad":"@","type":"message_stop"}"#),
    (
        Operation::Messages,
        r#"{"type":"message_start","message":{"content":[],"model":"@","usage":{"input_tokens":4}}}"#,
    ),
    (Operation::Responses, r#"{"type":"response.created","response":{"instructions":"@"}}"#),
    (Operation::Responses, r#"{"type":"response.output_text.delta","delta":"@"}"#),
    (Operation::Responses, r#"{"delta":"@","type":"response.output_text.delta"}"#),
    (
        Operation::Responses,
        r#"{"type":"response.completed","response":{"instructions":"@","output":[{"content":[{"text":"Hi"}]}]}}"#,
    ),
    (
        Operation::Responses,
        r#"{"response":{"output":["@"],"usage":{"output_tokens":3}},"type":"response.completed"}"#,
    ),
    (
        Operation::Responses,
        r#"{"type":"response.completed","response":{"status":"failed","instructions":"@"}}"#,
    ),
    (Operation::Responses, r#"{"type":"response.failed","response":{"instructions":"@"}}"#),
    (Operation::NativeCompletion, r#"{"content":"@","stop":false}"#),
    (
        Operation::NativeCompletion,
        r#"{"content":"","stop":true,"prompt":"@","tokens_predicted":5,"truncated":false}"#,
    ),
    (Operation::NativeCompletion, r#"{"content":"@","stop":true}"#),
    (Operation::NativeCompletion, r#"{"error":{"message":"@"}}"#),
];

const LINES: [&str; 7] = [
    r#"{"message":{"role":"assistant","content":"@"},"done":false}"#,
    r#"{"message":{"role":"assistant","content":"@"},"done":true,"eval_count":3}"#,
    r#"{"message":{"content":"\"done\":true @"}}"#,
    r#"{"message":{"content":"","tool_calls":[{"function":{"name":"f","arguments":{"done":true,"text":"@"}}}]},"done":false}"#,
    r#"{"response":"","done":true,"context":["@"],"eval_count":3}"#,
    r#"{"error":"@"}"#,
    r#"{"message":{"role":"assistant","content":""},"pad":"@","done":false}"#,
];

#[test]
fn long_lines_report_what_short_ones_do() {
    let lines = LINES.map(|line| (Operation::OllamaChat, line));
    for (operation, event) in EVENTS.into_iter().chain(lines) {
        let framed = |event: &str| match framing_of(operation) {
            StreamFraming::Events => format!("data: {event}\n\n"),
            StreamFraming::Lines => format!("{event}\n"),
        };
        let short = framed(&event.replace('@', "abc"));
        let expected = verdict(operation, &short, short.len());
        for size in [16_384, 17_000, 20_000, 28_650, 40_000] {
            for filler in ["z", "\\u65e5", "日"] {
                let long = framed(&event.replace('@', &filler.repeat(size / filler.len())));
                for step in [1 << 20, 7000, 99] {
                    let found = verdict(operation, &long, step);
                    assert_eq!(found, expected, "{event} of {size} in steps of {step}");
                }
                let usage = fed(operation, &long).1.usage();
                assert_eq!(usage, fed(operation, &short).1.usage(), "{event} of {size}");
            }
        }
    }
}

#[test]
fn a_long_line_hides_no_cut() {
    let long = "z".repeat(17_000);
    for (operation, stream) in [
        (
            Operation::Chat,
            format!("data: {}\n\n", chat(&format!(r#"{{"content":"{long}"}}"#)))
                + &format!("data: {}\n\n", chat(r#"{"content":"a"}"#)),
        ),
        (
            Operation::Responses,
            format!(
                "data: {{\"type\":\"response.created\",\"response\":{{\"instructions\":\"{long}\"}}}}\n\n\
                data: {{\"type\":\"response.output_text.delta\",\"delta\":\"a\"}}\n\n"
            ),
        ),
        (Operation::OllamaChat, format!("{{\"message\":{{\"content\":\"{long}\"}}}}\n")),
        (Operation::Messages, format!(": {long}\n\ndata: {{\"type\":\"ping\"}}\n\n")),
    ] {
        let (progress, scanner) = fed(operation, &stream);
        assert!(!scanner.has_finished() && !progress.error, "{}", operation.name());
        assert!(scanner.at_boundary(), "{}: an error event may follow", operation.name());
    }
}

#[test]
fn long_lines_without_data_are_no_events() {
    let (space, comment) = (" ".repeat(20_000), "c".repeat(20_000));
    for stream in [
        format!(": {comment}\n\ndata: [DONE]\n\n"),
        format!("id: {comment}\n\ndata: [DONE]\n\n"),
        format!("data:{space}\n\ndata: [DONE]\n\n"),
    ] {
        let (progress, scanner) = fed(Operation::Chat, &stream);
        assert_eq!((progress.tokens, scanner.is_void()), (0, true), "{stream:.20}");
    }
    let blank = format!("data: {}\n\n", chat(&format!(r#"{{"content":"{space}"}}"#)));
    assert!(fed(Operation::Chat, &blank).1.is_empty(), "white space is no output");
}
