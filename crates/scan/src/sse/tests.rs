//! Tests which events are tokens, endings and boundaries, and that chunk boundaries make no
//! difference.

use proptest::prelude::*;

use super::*;
mod damaged;
mod empty;
mod long_lines;

/// Feeds a whole stream. Returns its progress and the scanner.
fn fed(operation: Operation, stream: &str) -> (Progress, EventScanner) {
    let mut scanner = EventScanner::new(operation, framing_of(operation));
    let progress = scanner.feed(stream.as_bytes());
    (progress, scanner)
}

fn framing_of(operation: Operation) -> StreamFraming {
    match operation.row().events {
        EventForm::JsonLine => StreamFraming::Lines,
        _ => StreamFraming::Events,
    }
}

fn tokens(operation: Operation, data: &str) -> u32 {
    fed(operation, &format!("data: {data}\n\n")).0.tokens
}

fn chat(delta: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null}}]}}"#
    )
}

#[test]
fn chat_deltas_with_something_in_them_are_tokens() {
    for (delta, expected) in [
        (r#"{"content":"Hi"}"#, 1),
        (r#"{ "role" : "assistant", "content" : " " }"#, 1),
        (r#"{"reasoning_content":"hm"}"#, 1),
        (r#"{"content":null,"reasoning":"hm"}"#, 1),
        (r#"{"refusal":"no"}"#, 1),
        (r#"{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}"#, 1),
        (r#"{"content":"\""}"#, 1),
        (r#"{"role":"assistant","content":""}"#, 0),
        (r#"{"role":"assistant"}"#, 0),
        (r#"{"content":null,"tool_calls":[]}"#, 0),
        ("{}", 0),
        ("null", 0),
        (r#"{"role":"delta"}"#, 0),
    ] {
        assert_eq!(tokens(Operation::Chat, &chat(delta)), expected, "{delta}");
    }
    let two = r#"{"choices":[{"delta":{"content":""}},{"delta":{"content":"x"}}]}"#;
    assert_eq!(tokens(Operation::Chat, two), 1, "the second choice counts");
}

#[test]
fn other_operations_have_their_own_tokens() {
    for (operation, data, expected) in [
        (Operation::Completions, r#"{"choices":[{"text":"Hi","index":0}]}"#, 1),
        (Operation::Completions, r#"{"choices":[{"text":"","index":0}]}"#, 0),
        (Operation::Responses, r#"{"type":"response.output_text.delta","delta":"Hi"}"#, 1),
        (
            Operation::Responses,
            r#"{"delta":"{","type":"response.function_call_arguments.delta"}"#,
            1,
        ),
        (Operation::Responses, r#"{"type":"response.output_text.delta","delta":""}"#, 0),
        (Operation::Responses, r#"{"type":"response.output_text.done","text":"Hi"}"#, 0),
        (
            Operation::Messages,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}"#,
            1,
        ),
        (
            Operation::Messages,
            r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}"#,
            1,
        ),
        (
            Operation::Messages,
            r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":""}}"#,
            0,
        ),
        (Operation::Messages, r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#, 0),
        (Operation::Messages, r#"{"type": "ping"}"#, 0),
        (Operation::Speech, r#"{"audio":"AAAA"}"#, 1),
        (Operation::Transcriptions, "[DONE]", 0),
    ] {
        assert_eq!(tokens(operation, data), expected, "{data}");
    }
}

#[test]
fn keep_alive_events_are_no_tokens() {
    for stream in [
        ": ping\n\n",
        "event: ping\n\n",
        "\n\n",
        "retry: 100\n\n",
        "data\n\n",
        "data:\n\n",
        "data: [DONE]\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: oops\n\n",
    ] {
        assert_eq!(fed(Operation::Chat, stream).0.tokens, 0, "{stream:?}");
    }
}

#[test]
fn streams_say_when_they_are_done_or_failed() {
    for (operation, stream, done, error) in [
        (Operation::Chat, "data: [DONE]\n\n", true, false),
        (Operation::Chat, "data:[DONE]\r\r", true, false),
        (Operation::Chat, "data: {\"choices\":[]}\n\n", false, false),
        (Operation::Chat, "data: {\"error\": {\"message\": \"x\"}}\n\n", false, true),
        (Operation::Chat, "data: {\"error\":null,\"choices\":[]}\n\n", false, false),
        (Operation::Chat, "data: {\"choices\":[{\"finish_reason\":\"error\"}]}\n\n", false, true),
        (Operation::Chat, "data: {\"choices\":[{\"finish_reason\": \"abort\"}]}\n\n", false, true),
        (Operation::Chat, "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n", false, false),
        (Operation::Chat, "data: {\"object\":\"error\",\"message\":\"x\"}\n\n", false, true),
        (
            Operation::Responses,
            "data: {\"response\":{},\"type\":\"response.completed\"}\n\n",
            true,
            false,
        ),
        (Operation::Responses, "event: response.incomplete\ndata: {}\n\n", true, false),
        (Operation::Responses, "data: {\"type\":\"response.failed\"}\n\n", true, true),
        (
            Operation::Messages,
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
            true,
            false,
        ),
        (
            Operation::Messages,
            "event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n",
            false,
            true,
        ),
    ] {
        let (progress, _) = fed(operation, stream);
        assert_eq!((progress.done, progress.error), (done, error), "{stream}");
    }
}

#[test]
fn stream_is_over_once_its_last_event_is_whole() {
    let (operation, framing) = (Operation::Responses, StreamFraming::Events);
    let mut scanner = EventScanner::new(operation, framing);
    for (chunk, done, is_over) in [
        ("event: response.completed\n", false, false),
        ("data: {\"type\":\"response.com", false, false),
        ("pleted\"}\n", true, false),
        ("\n", true, true),
    ] {
        assert_eq!((scanner.feed(chunk.as_bytes()).done, scanner.is_over()), (done, is_over));
    }
    let stop = "data: {\"content\":\"\",\"stop\":true}\n\n";
    assert!(!fed(Operation::NativeCompletion, stop).1.is_over(), "another prompt may follow");
    assert!(fed(Operation::Chat, "data: [DONE]\n\n").1.is_over());
    assert!(fed(Operation::OllamaChat, "{\"done\":true}\n").1.is_over());
}

#[test]
fn usage_is_gathered_from_start_and_end() {
    let stream = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n\
        data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":5}}\n\n";
    let (_, scanner) = fed(Operation::Messages, stream);
    let usage = scanner.usage().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(9), Some(5)));
    assert_eq!(fed(Operation::Chat, "data: {\"usage\":null}\n\n").1.usage(), None);
}

#[test]
fn native_counts_come_with_the_last_event() {
    let stream = "data: {\"content\":\"Hi\",\"stop\":false}\n\n\
        data: {\"content\":\"\",\"stop\":true,\"tokens_predicted\":5,\"tokens_evaluated\":9}\n\n";
    let (progress, scanner) = fed(Operation::NativeCompletion, stream);
    let usage = scanner.usage().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(9), Some(5)));
    assert!(progress.done);
    let stream = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\
        \"timings\":{\"cache_n\":4,\"prompt_n\":5,\"predicted_n\":6}}\n\n";
    let usage = fed(Operation::Chat, stream).1.usage().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(9), Some(6)));
    assert_eq!(usage.cached_tokens, Some(4));
}

#[test]
fn streams_of_sounds_and_pictures_have_an_ending_by_the_types_of_their_events() {
    let event = |kind: &str, size: usize| {
        let data = "A".repeat(size);
        format!("data: {{\"type\":\"{kind}\",\"b64_json\":\"{data}\"}}\n\n")
    };
    for (operation, part, end) in [
        (Operation::Transcriptions, "transcript.text.delta", "transcript.text.done"),
        (Operation::Transcriptions, "transcript.text.segment", "transcript.text.done"),
        (Operation::Speech, "speech.audio.delta", "speech.audio.done"),
        (
            Operation::ImageGenerations,
            "image_generation.partial_image",
            "image_generation.completed",
        ),
        (Operation::ImageEdits, "image_edit.partial_image", "image_edit.completed"),
    ] {
        for size in [4, 40_000] {
            let parts = event(part, size).repeat(2);
            let finished = |stream: &str| {
                let mut scanner = EventScanner::new(operation, StreamFraming::Events);
                stream.as_bytes().chunks(7000).for_each(|chunk| _ = scanner.feed(chunk));
                // The next picture, or sentence, may follow.
                assert!(stream.contains("[DONE]") || !scanner.is_over(), "{stream:.99}");
                scanner.has_finished()
            };
            assert!(!finished(&parts), "{part}");
            assert!(!finished(&format!("event: {part}\n{parts}")), "{part}");
            let cut = event(part, size);
            assert!(!finished(&format!("{parts}{}", &cut[..cut.len() - 6])), "{part}");
            assert!(finished(&format!("{parts}{}", event(end, size))), "{end}");
            assert!(finished(&format!("{parts}event: {end}\ndata: {{}}\n\n")), "{end}");
            assert!(finished(&format!("{parts}data: [DONE]\n\n")), "{part}");
            assert!(finished(&event("chunk", size)), "another kind of stream");
        }
    }
    let late = format!("data: {{\"b64_json\":\"{}\",\"type\":\"x\"}}\n\n", "A".repeat(40_000));
    let stream = event("image_edit.partial_image", 4) + &late;
    assert!(fed(Operation::ImageEdits, &stream).1.has_finished(), "its type has not been read");
}

#[test]
fn a_boundary_is_where_an_event_has_ended() {
    let mut scanner = EventScanner::new(Operation::Chat, StreamFraming::Events);
    assert!(scanner.at_boundary(), "nothing came");
    for (chunk, at_boundary) in [
        ("data: {}", false),
        ("\r", false),
        ("\n", false),
        ("\r", true),
        ("\n", true),
        (": ping\n", false),
        ("\n", true),
        ("d", false),
        ("\n\n", true),
    ] {
        scanner.feed(chunk.as_bytes());
        assert_eq!(scanner.at_boundary(), at_boundary, "after {chunk:?}");
    }
}

#[test]
fn the_last_event_may_be_too_long_to_be_held() {
    let text = "x".repeat(40_000);
    let line = format!(
        r#"{{"type":"response.completed","response":{{"text":"{text}","usage":{{"input_tokens":3,"output_tokens":4}}}}}}"#
    );
    let named = format!("event: response.completed\ndata: {line}\n\n");
    let plain = format!("data: {line}\n\ndata: {line}\n\n");
    for step in [1 << 20, 7000, 100] {
        for (stream, expected, done) in [(&named, 0, true), (&plain, 0, true)] {
            let mut scanner = EventScanner::new(Operation::Responses, StreamFraming::Events);
            let mut tokens = 0;
            let mut last = Progress::default();
            for chunk in stream.as_bytes().chunks(step) {
                last = scanner.feed(chunk);
                tokens += last.tokens;
                assert!(scanner.partial.capacity() <= 4 * MAX_LINE, "what is kept is bounded");
            }
            assert_eq!((tokens, last.done), (expected, done), "in steps of {step}");
            assert_eq!(scanner.usage().unwrap().completion_tokens, Some(4));
            assert!(scanner.at_boundary());
        }
    }
}

#[test]
fn json_lines_carry_tokens_and_end_with_their_counts() {
    let stream = concat!(
        "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"done\":false}\n",
        "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,",
        "\"prompt_eval_count\":26,\"eval_count\":2}\n",
    );
    let (progress, scanner) = fed(Operation::OllamaChat, stream);
    assert_eq!(progress, Progress { tokens: 1, done: true, error: false });
    let usage = scanner.usage().unwrap();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(26), Some(2)));
    assert!(scanner.at_boundary());
    let (progress, scanner) = fed(Operation::OllamaChat, "{\"error\":\"x\"}\n{\"mess");
    assert_eq!(progress, Progress { tokens: 0, done: false, error: true });
    assert!(!scanner.at_boundary());
    let context = "1,".repeat(MAX_LINE);
    let last =
        format!("{{\"response\":\"\",\"done\":true,\"context\":[{context}1],\"eval_count\":3}}\n");
    let (progress, scanner) = fed(Operation::OllamaGenerate, &last);
    assert_eq!((progress.tokens, progress.done), (0, true), "the context may be long");
    assert_eq!(scanner.usage().unwrap().completion_tokens, Some(3));
}

fn a_line() -> impl Strategy<Value = String> {
    let delta = prop_oneof![
        Just(r#"{"content":"日本é😀"}"#.to_owned()),
        Just(r#"{"content":""}"#.to_owned()),
        Just(r#"{"type":"text_delta","text":"Hi"}"#.to_owned()),
        Just(r#""Hi""#.to_owned()),
    ];
    prop_oneof![
        4 => delta.prop_map(|delta| format!("data: {}", chat(&delta))),
        1 => (16_000..17_000_usize).prop_map(|length| format!("data: {}", "x".repeat(length))),
        1 => Just(r#"data: {"choices":[{"text":"Hi"}],"usage":{"prompt_tokens":3}}"#.to_owned()),
        1 => Just(r#"{"message":{"content":"Hi"},"done":false}"#.to_owned()),
        1 => (16_000..17_000_usize).prop_map(|length| {
            format!("{{\"response\":\"\",\"context\":[1{}],\"eval_count\":1}}", ",1".repeat(length / 2))
        }),
        1 => Just("data: [DONE]".to_owned()),
        1 => Just("event: response.completed".to_owned()),
        3 => Just(String::new()),
        1 => "[ -~]{0,20}",
    ]
}

proptest! {
    #[test]
    fn chunks_do_not_change_the_totals(
        lines in prop::collection::vec((a_line(), prop::sample::select(vec!["\n", "\r\n", "\r"])), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        operation in prop::sample::select(vec![
            Operation::Chat, Operation::Completions, Operation::Responses, Operation::Messages,
            Operation::Speech, Operation::OllamaChat,
        ]),
    ) {
        let stream: String = lines.iter().flat_map(|(line, end)| [line.as_str(), *end]).collect();
        let (whole, reference) = fed(operation, &stream);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut scanner = EventScanner::new(operation, framing_of(operation));
        let mut total = Progress::default();
        for pair in cuts.windows(2) {
            let progress = scanner.feed(&stream.as_bytes()[pair[0]..pair[1]]);
            total = Progress { tokens: total.tokens + progress.tokens, ..progress };
        }
        prop_assert_eq!(total, whole);
        prop_assert_eq!(scanner.usage(), reference.usage());
        prop_assert_eq!(scanner.at_boundary(), reference.at_boundary());
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for operation in [Operation::Chat, Operation::Responses, Operation::Messages] {
            let mut scanner = EventScanner::new(operation, StreamFraming::Events);
            scanner.feed(b"data: {\"delta\":");
            scanner.feed(&bytes);
            scanner.feed(b"\n\n");
        }
    }
}
