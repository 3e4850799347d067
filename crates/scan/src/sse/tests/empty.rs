//! Streams without output, and those whose output is in no delta.

use super::*;

#[test]
fn streams_without_output_are_empty() {
    let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let cut = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
    let counts =
        |count| format!("data: {{\"choices\":[],\"usage\":{{\"completion_tokens\":{count}}}}}\n\n");
    let thought = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":9,\
        \"completion_tokens_details\":{\"reasoning_tokens\":9}}}\n\n";
    for (operation, stream, is_void, is_empty) in [
        (Operation::Chat, ": a comment\n\ndata: [DONE]\n\n".to_owned(), true, true),
        (Operation::Chat, "data: null\n\ndata: [DONE]\n\n".to_owned(), true, true),
        (Operation::Chat, format!("{role}{stop}"), false, true),
        (Operation::Chat, format!("{role}{stop}{}", counts(1)), false, true),
        (Operation::Chat, format!("{role}{stop}{}", counts(5)), false, true),
        (
            Operation::OllamaChat,
            "{\"message\":{\"content\":\"\"},\"done\":true,\"eval_count\":5}\n".to_owned(),
            false,
            true,
        ),
        (
            Operation::Completions,
            format!("data: {{\"choices\":[{{\"text\":\"\"}}]}}\n\n{}", counts(5)),
            false,
            false,
        ),
        (Operation::Chat, format!("{role}{cut}{}", counts(0)), false, true),
        (Operation::Chat, format!("{role}{cut}{}", counts(5)), false, false),
        (Operation::Chat, format!("{role}{stop}{thought}"), false, false),
        (
            Operation::Chat,
            format!("{role}{}", stop.replace("stop", "content_filter")),
            false,
            false,
        ),
        (
            Operation::Messages,
            "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\": \"refusal\"}}\n\n"
                .to_owned(),
            false,
            false,
        ),
        (Operation::Chat, format!("data: {}\n\n{stop}", chat(r#"{"content":"a"}"#)), false, false),
        (
            Operation::Chat,
            format!("data: {}\n\n{stop}", chat(r#"{"images":[{"type":"x"}]}"#)),
            false,
            false,
        ),
        (Operation::OllamaChat, "{\"done\":true,\"eval_count\":0}\n".to_owned(), false, true),
        (
            Operation::OllamaChat,
            "{\"done\":true,\"done_reason\":\"load\"}\n".to_owned(),
            true,
            true,
        ),
        (Operation::Speech, "data: {\"audio\":\"A\"}\n\n".to_owned(), false, false),
    ] {
        let (_, scanner) = fed(operation, &stream);
        assert_eq!((scanner.is_void(), scanner.is_empty()), (is_void, is_empty), "{stream}");
    }
}

#[test]
fn events_that_hold_nothing_are_no_output() {
    for (operation, stream, is_void, is_empty) in [
        (Operation::Chat, "data: {}\n\n".repeat(5) + "data: [DONE]\n\n", true, true),
        (Operation::Chat, "data: [ ]\n\ndata: \"\"\n\n".to_owned(), true, true),
        (Operation::OllamaChat, "{}\n".to_owned(), true, true),
        (Operation::Chat, "data: {\"x\":1,\"id\":\"c\"}\n\n".to_owned(), false, true),
        (Operation::Chat, "data: {\"token\":{\"text\":\"a\"}}\n\n".to_owned(), false, false),
    ] {
        let (_, scanner) = fed(operation, &stream);
        assert_eq!((scanner.is_void(), scanner.is_empty()), (is_void, is_empty), "{stream}");
    }
}

#[test]
fn chats_may_show_output_outside_of_deltas() {
    for (choice, is_empty) in [
        (r#""message":{"role":"assistant","content":"Hello there"}"#, false),
        (r#""message":{"role":"assistant","content":"","tool_calls":[{"id":"t"}]}"#, false),
        (r#""text":"Hello""#, false),
        (r#""output":["a"]"#, false),
        (r#""delta":{"role":"assistant","content":"","reasoning_text":"hm"}"#, false),
        (r#""delta":{"content":" ","reasoning_text":"hm"}"#, false),
        (r#""delta":{"content":null,"reasoning_details":[{"text":"hm"}]}"#, false),
        (r#""delta":{"parts":{"text":"hm"}}"#, false),
        (r#""message":{"role":"assistant","content":"","tool_calls":[]}"#, true),
        (r#""message":{"role":"assistant","content":" \n"}"#, true),
        (r#""message":{"content":"","tool_calls":[{"function":{"name":""}}]}"#, true),
        (r#""message":null,"text":"""#, true),
        (r#""text":" ""#, true),
        (r#""delta":{"role":"assistant","reasoning_text":"","reasoning_details":[]}"#, true),
        (r#""delta":{},"logprobs":{"content":[]},"stop_reason":"</s>","matched_stop":"x""#, true),
        (r#""delta":{"content":""},"content_filter_results":{"hate":{"filtered":false}}"#, true),
    ] {
        for usage in ["", r#","usage":{"completion_tokens":300}"#] {
            let event =
                format!(r#"{{"choices":[{{"index":0,{choice},"finish_reason":"stop"}}]{usage}}}"#);
            let (progress, scanner) =
                fed(Operation::Chat, &format!("data: {event}\n\ndata: [DONE]\n\n"));
            assert_eq!((progress.done, scanner.is_empty()), (true, is_empty), "{event}");
        }
    }
    let text = "data: {\"choices\":[{\"text\":\" \"}]}\n\n";
    assert!(!fed(Operation::FillInTheMiddle, text).1.is_empty(), "white space may be inserted");
}

#[test]
fn items_without_deltas_may_be_output() {
    let item = "data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"x\"}}\n\n";
    let ended = |name, count| {
        format!(
            "data: {{\"type\":\"{name}\",\"response\":{{\"usage\":{{\"output_tokens\":{count}}}}}}}\n\n"
        )
    };
    for (operation, stream, is_void, is_empty) in [
        (Operation::Responses, format!("{item}{}", ended("response.completed", 9)), false, false),
        (Operation::Responses, format!("{item}{}", ended("response.completed", 0)), false, true),
        (Operation::Responses, ended("response.completed", 1), false, true),
        (
            Operation::Responses,
            format!("{}{}", item.replace("\"x\"", "\"message\""), ended("response.completed", 1)),
            false,
            true,
        ),
        (
            Operation::Responses,
            item.replace("\"x\"", "\"message\",\"content\":[{\"text\":\"a\"}]"),
            false,
            false,
        ),
        (
            Operation::Messages,
            "data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
                .to_owned(),
            false,
            true,
        ),
        (
            Operation::Messages,
            "data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"input\":{}}}\n\n"
                .to_owned(),
            false,
            false,
        ),
        (
            Operation::Messages,
            "data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"name\":\"\",\"input\":{}}}\n\n"
                .to_owned(),
            false,
            true,
        ),
        (Operation::Responses, ended("response.incomplete", 9), false, false),
    ] {
        let (_, scanner) = fed(operation, &stream);
        assert_eq!((scanner.is_void(), scanner.is_empty()), (is_void, is_empty), "{stream}");
    }
}

#[test]
fn streams_of_white_space_are_empty() {
    let of = |delta: &str| format!("data: {}\n\n", chat(delta));
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let counts = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\n";
    let space = of(r#"{"role":"assistant","content":" "}"#);
    let line = of(r#"{"content":"\n\u0020"}"#);
    let typed = |delta: &str| {
        format!("data: {{\"type\":\"response.output_text.delta\",\"delta\":\"{delta}\"}}\n\n")
    };
    let completed = "data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\
        \"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"\\n\"}]}],\
        \"usage\":{\"output_tokens\":1}}}\n\n";
    let block = |text: &str| {
        format!(
            "data: {{\"type\":\"content_block_delta\",\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        )
    };
    for (operation, stream, is_empty) in [
        (Operation::Chat, format!("{space}{stop}"), true),
        (Operation::Chat, format!("{space}{line}{space}{stop}"), true),
        (Operation::Chat, format!("{space}{}{stop}", of(r#"{"content":"a"}"#)), false),
        (Operation::Chat, format!("{space}{}", stop.replace("stop\"", "length\"")), false),
        (Operation::Chat, format!("{space}{}", of(r#"{"tool_calls":[{"id":"t"}]}"#)), false),
        (
            Operation::Chat,
            of(r#"{"tool_calls":[{"id":"t","function":{"name":"","arguments":""}}]}"#).repeat(3)
                + stop,
            true,
        ),
        (Operation::Chat, format!("{space}{line}{stop}{counts}"), true),
        (Operation::FillInTheMiddle, format!("{space}{stop}"), false),
        (Operation::Completions, "data: {\"choices\":[{\"text\":\" \"}]}\n\n".to_owned(), false),
        (Operation::Responses, format!("{}{completed}", typed(r"\n")), true),
        (Operation::Responses, format!("{}{}{completed}", typed(r"\n"), typed("a")), false),
        (Operation::Messages, block(r"\t"), true),
        (Operation::Messages, format!("{}{}", block(" "), block("a ")), false),
        (
            Operation::OllamaChat,
            "{\"message\":{\"content\":\" \"}}\n{\"done\":true,\"eval_count\":1}\n".to_owned(),
            true,
        ),
        (
            Operation::OllamaGenerate,
            "{\"response\":\"\\n\"}\n{\"response\":\"a\"}\n{\"done\":true}\n".to_owned(),
            false,
        ),
    ] {
        let (_, scanner) = fed(operation, &stream);
        assert_eq!(scanner.is_empty(), is_empty, "{} {stream}", operation.name());
    }
}
