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
const EVENTS: [(Operation, &str); 50] = [
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
    (Operation::Chat, r#"{"choices":[{"delta":{"annotations":["@"],"content":"Hello"}}]}"#),
    (
        Operation::Chat,
        r#"{"choices":[{"delta":{"annotations":["@"],"content":""},"finish_reason":"stop"}]}"#,
    ),
    (
        Operation::Chat,
        r#"{"choices":[{"delta":{"annotations":["@"],"tool_calls":[{"function":{"name":"f"}}]}}]}"#,
    ),
    (
        Operation::Chat,
        r#"{"choices":[{"delta":{"annotations":["@"],"tool_calls":[{"function":{"name":""}}]}}]}"#,
    ),
    (
        Operation::Chat,
        r#"{"choices":[{"message":{"annotations":["@"],"content":"Hello"},"finish_reason":"stop"}]}"#,
    ),
    (Operation::Chat, r#"{"choices":[{"logprobs":["@"],"message":{"content":"Hello"}}]}"#),
    (
        Operation::Chat,
        r#"{"citations":["@"],"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}"#,
    ),
    (Operation::Chat, r#"{"x":"@","usage":{"completion_tokens":4}}"#),
    (
        Operation::Messages,
        r#"{"delta":{"citations":["@"],"text":"Hi"},"type":"content_block_delta"}"#,
    ),
    (
        Operation::Messages,
        r#"{"content_block":{"text":"Hi","pad":"@","type":"text"},"type":"content_block_start"}"#,
    ),
    (
        Operation::Messages,
        r#"{"type":"message_start","message":{"model":"@","usage":{"input_tokens":4,"output_tokens":1}}}"#,
    ),
    (
        Operation::Responses,
        r#"{"response":{"instructions":"@","output":[{"content":[{"text":"Hi"}]}]},"type":"response.completed"}"#,
    ),
    (
        Operation::Responses,
        r#"{"response":{"output":[{"content":[{"text":"Hi"}]}],"instructions":"@"},"type":"response.completed"}"#,
    ),
    (
        Operation::Responses,
        r#"{"response":{"instructions":"@","output":[],"usage":{"output_tokens":30}},"type":"response.incomplete"}"#,
    ),
    (
        Operation::Responses,
        r#"{"response":{"incomplete_details":{"reason":"content_filter"},"instructions":"@"},"type":"response.incomplete"}"#,
    ),
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
fn a_long_line_that_is_cut_off_reports_no_end() {
    let long = "z".repeat(40_000);
    for (operation, line) in [
        (
            Operation::Chat,
            r#"data: {"choices":[{"finish_reason":"stop","delta":{"content":"@"}}]}"#,
        ),
        (Operation::Completions, r#"data: {"choices":[{"finish_reason":"stop","text":"@"}]}"#),
        (Operation::NativeCompletion, r#"data: {"stop":true,"content":"@"}"#),
        (Operation::Responses, r#"data: {"type":"response.completed","response":{"x":"@"}}"#),
        (Operation::OllamaChat, r#"{"done":true,"message":{"content":"@"}}"#),
    ] {
        let line = line.replace('@', &long);
        let (start, end) = line.split_at(30_000);
        let (progress, mut scanner) = fed(operation, start);
        assert!(!progress.done && !scanner.has_finished(), "{}", operation.name());
        scanner.feed(end.as_bytes());
        assert!(!scanner.has_finished(), "{}: its line has no end", operation.name());
        scanner.feed(b"\n\n");
        assert!(scanner.has_finished(), "{}: its line has ended", operation.name());
    }
}

#[test]
fn text_may_begin_with_much_white_space() {
    for (operation, line) in [
        (Operation::Chat, r#"data: {"choices":[{"delta":{"content":"@"},"logprobs":["%"]}]}"#),
        (Operation::Messages, r#"data: {"type":"content_block_delta","delta":{"text":"@"}}"#),
        (Operation::Responses, r#"data: {"delta":"@","type":"response.output_text.delta"}"#),
        (Operation::OllamaChat, r#"{"message":{"content":"@"},"done":true}"#),
    ] {
        for (space, size) in
            [" ", r"\n", r"\u0020", r" \u3000\t"].into_iter().zip([20_000, 9000, 5000, 1900])
        {
            for size in size..size + 8 {
                for (text, is_empty) in [("Hello", false), ("", true)] {
                    let text = space.repeat(size) + text;
                    let line = line.replace('@', &text).replace('%', &"z".repeat(9000));
                    let (progress, scanner) = fed(operation, &format!("{line}\n\n"));
                    let name = operation.name();
                    assert_eq!(progress.tokens, 1, "{name}: {size} of {space}");
                    assert_eq!(scanner.is_empty(), is_empty, "{name}: {size} of {space}");
                }
            }
        }
    }
    let apart = format!("{{\"choices\":[{{\"delta\":{}", " ".repeat(17_000));
    let (progress, scanner) =
        fed(Operation::Chat, &format!("data: {apart}{{\"content\":\"Hello\"}}}}]}}\n\n"));
    assert_eq!((progress.tokens, scanner.is_empty()), (1, false), "white space between members");
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
