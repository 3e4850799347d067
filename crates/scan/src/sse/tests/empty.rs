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
        (Operation::Chat, format!("{role}{stop}{}", counts(5)), false, false),
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
        (Operation::Speech, "data: {}\n\n".to_owned(), false, false),
    ] {
        let (_, scanner) = fed(operation, &stream);
        assert_eq!((scanner.is_void(), scanner.is_empty()), (is_void, is_empty), "{stream}");
    }
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
        (Operation::Responses, ended("response.incomplete", 9), false, false),
    ] {
        let (_, scanner) = fed(operation, &stream);
        assert_eq!((scanner.is_void(), scanner.is_empty()), (is_void, is_empty), "{stream}");
    }
}
