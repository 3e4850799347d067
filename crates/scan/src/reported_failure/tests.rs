//! Failures that a response reports in its first events, or as a whole.

use super::*;

fn first(operation: Operation, payload: &str, is_whole: bool) -> FirstEvent {
    let framing = operation.row().dialect.row().framing;
    FirstEvent::read(operation, framing, payload.as_bytes(), is_whole)
}

#[test]
fn first_event_of_a_stream_says_whether_it_failed() {
    let error = r#"{"error":{"message":"x"}}"#;
    for (operation, payload, expected) in [
        (Operation::Chat, "", FirstEvent::Incomplete),
        (Operation::Chat, "data: {\"err", FirstEvent::Incomplete),
        (Operation::Chat, "event: error\n", FirstEvent::Incomplete),
        (Operation::Chat, ": ping\n", FirstEvent::Good),
        (Operation::Chat, ": ping\n\ndata: {\"err", FirstEvent::Good),
        (Operation::Chat, ": ping\n\ndata: [DONE]\n\n", FirstEvent::Missing),
        (Operation::Chat, "data: null\n\ndata: [DONE]\n\n", FirstEvent::Missing),
        (Operation::Chat, "data: {\"choices\":[]}\n\n", FirstEvent::Good),
        (Operation::Chat, "data: {\"error\":null,\"choices\":[]}\n\n", FirstEvent::Good),
        (Operation::Chat, "data: [DONE]\n\n", FirstEvent::Missing),
        (Operation::Chat, "\u{feff}data: {\"choices\":[]}\n\n", FirstEvent::Good),
        (Operation::OllamaChat, "\u{feff}{\"done\":true}\n", FirstEvent::Good),
        (Operation::OllamaChat, "{\"done\":true}\n", FirstEvent::Good),
        (Operation::OllamaChat, "{\"done\":true,\"done_reason\":\"load\"}\n", FirstEvent::Missing),
        (Operation::OllamaChat, "{\"error\":\"x\"}\n", FirstEvent::Failed(0..13)),
    ] {
        assert_eq!(first(operation, payload, false), expected, "{payload}");
    }
    for (operation, payload) in [
        (Operation::Chat, format!("data: {error}\n\ndata: [DONE]\n\n")),
        (Operation::Chat, format!(": ping\n\ndata: {error}\n\n")),
        (Operation::Chat, format!("\n\ndata:{error}\r\n")),
        (Operation::Messages, "event: error\ndata: {\"type\":\"error\"}\n\n".to_owned()),
        (Operation::Responses, "data: {\"type\":\"response.failed\"}\n\n".to_owned()),
        (Operation::Chat, "data: {\"object\":\"error\",\"message\":\"x\"}\n\n".to_owned()),
    ] {
        let FirstEvent::Failed(place) = first(operation, &payload, false) else {
            panic!("{payload} is an error")
        };
        assert!(payload[place].trim_ascii_end().ends_with('}'), "{payload}");
    }
}

#[test]
fn stream_of_nothing_but_foreign_refusals_has_no_result() {
    let refusal = "data: {\"detail\":\"boom\"}\n\n";
    let foreign = FirstEvent::Foreign(6..23);
    let chunk = "data: {\"choices\":[]}\n\n";
    for (payload, is_whole, expected) in [
        (refusal.to_owned(), false, FirstEvent::Incomplete),
        (refusal.to_owned(), true, foreign.clone()),
        (format!("{refusal}data: [DONE]\n\n"), false, foreign.clone()),
        (format!("{refusal}{refusal}data: [DONE]\n\n"), false, foreign),
        (format!("{refusal}{chunk}"), false, FirstEvent::Good),
        (format!("{refusal}data: {{\"cho"), false, FirstEvent::Incomplete),
        (format!("{refusal}data: {{\"error\":\"x\"}}\n"), false, FirstEvent::Failed(31..44)),
        ("data: {\"metadata\":1}\n\n".to_owned(), false, FirstEvent::Good),
        ("data: {\"usage\":{\"prompt_tokens\":1}}\n\n".to_owned(), false, FirstEvent::Good),
    ] {
        assert_eq!(first(Operation::Chat, &payload, is_whole), expected, "{payload}");
    }
    let line = "{\"message\":\"boom\"}\n";
    assert_eq!(first(Operation::OllamaChat, line, true), FirstEvent::Foreign(0..18));
}

#[test]
fn events_before_the_first_output_are_passed_over() {
    let role = r#"data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}

"#;
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"x\"}}\n\n";
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{\"output_tokens\":3}}}\n\n";
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    let block = |kind: &str| {
        format!(
            "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"content_block\":{kind}}}\n\n"
        )
    };
    let text = block(r#"{"type":"text","text":""}"#);
    let call = block(r#"{"type":"tool_use","name":"f"}"#);
    let lead = format!("{start}{ping}{text}");
    let line = "{\"message\":{\"content\":\"\"},\"done\":false}\n";
    let (chat, messages) = (Operation::Chat, Operation::Messages);
    for (operation, payload, is_whole, expected) in [
        (chat, role.to_owned(), false, Some(FirstEvent::Incomplete)),
        (chat, format!(": ping\n\n{role}: ping\n\n"), false, Some(FirstEvent::Incomplete)),
        (chat, format!("{role}{token}"), false, Some(FirstEvent::Good)),
        (chat, format!("{role}{end}"), false, Some(FirstEvent::Good)),
        (chat, role.to_owned(), true, Some(FirstEvent::Good)),
        (chat, ": ping\n\n".to_owned(), true, Some(FirstEvent::Missing)),
        (chat, format!("{role}{error}"), false, None),
        (messages, lead.clone(), false, Some(FirstEvent::Incomplete)),
        (messages, format!("{lead}{call}"), false, Some(FirstEvent::Good)),
        (messages, format!("{lead}event: error\n{error}"), false, None),
        (Operation::OllamaChat, line.to_owned(), false, Some(FirstEvent::Incomplete)),
        (Operation::OllamaChat, format!("{line}{{\"error\":\"x\"}}\n"), false, None),
    ] {
        let framing = operation.row().dialect.row().framing;
        let read = FirstEvent::read_to_output(operation, framing, payload.as_bytes(), is_whole);
        match (read, expected) {
            (FirstEvent::Failed(place), None) => {
                assert!(payload[place].contains("error"), "{payload}");
            }
            (read, expected) => assert_eq!(Some(read), expected, "{payload}"),
        }
    }
}

#[test]
fn stream_that_ends_has_no_incomplete_event() {
    assert_eq!(first(Operation::Chat, "", true), FirstEvent::Missing);
    assert_eq!(first(Operation::Chat, "\n\n", true), FirstEvent::Missing);
    assert_eq!(first(Operation::Chat, ": ping\n\n", true), FirstEvent::Missing);
    assert_eq!(first(Operation::Chat, "data: {\"choices\":[]}", true), FirstEvent::Good);
    assert_eq!(first(Operation::Chat, "data: {}", true), FirstEvent::Missing);
    assert_eq!(first(Operation::OllamaChat, "{\"error\":\"x\"}", true), FirstEvent::Failed(0..13));
}

#[test]
fn whole_responses_without_content_report_failures() {
    for (body, expected) in [
        (r#"{"error":{"message":"overloaded"}}"#, true),
        (r#"{"error":"model runner has stopped"}"#, true),
        (r#"{"type":"error","error":{"type":"overloaded_error"}}"#, true),
        (r#"{"object":"error","message":"x","code":400}"#, true),
        (r#"{"id":"resp_1","error":{"code":"server_error"},"status":"failed","output":[]}"#, true),
        (r#"{"id":"resp_1","error":null,"status":"completed","output":[{}]}"#, false),
        (r#"{"choices":[{"message":{"content":"\"error\" is a word"}}]}"#, false),
        (r#"{"choices":[{"error":{"message":"x"}}],"error":{"message":"x"}}"#, false),
        (r#"{"error":""}"#, false),
        (r#"{"error":{}"#, false),
        (r#"["error"]"#, false),
        ("\"error\"", false),
    ] {
        assert_eq!(reports_failure(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn failed_results_are_those_with_an_error_beside_or_inside_them() {
    for (body, expected) in [
        (r#"{"choices":[{"message":{"content":""}}],"error":{"message":"x"}}"#, true),
        (r#"{"message":{"content":"hi"},"done":true,"error":"x"}"#, true),
        (r#"{"type":"message","content":[{}],"error":{"message":"x"}}"#, true),
        (r#"{"choices":[{"finish_reason":"error","error":{"code":502}}]}"#, true),
        (r#"{"choices":[{"finish_reason":"abort"}]}"#, true),
        ("\u{feff}{\"choices\":[{\"finish_reason\":\"abort\"}]}", true),
        (r#"{"choices":[{"message":{"content":"hi"}}],"error":null}"#, false),
        (r#"{"choices":[{"message":{"content":"hi"}}],"error":""}"#, false),
        (r#"{"choices":[{"message":{"error":"x"},"finish_reason":"stop"}]}"#, false),
        (r#"{"choices":[{"message":{"content":"\"error\""}}]}"#, false),
    ] {
        assert_eq!(reports_failed_result(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn member_is_switched_off_at_the_top_only() {
    for (body, expected) in [
        (r#"{"store":false}"#, true),
        (r#"{"store":true}"#, false),
        (r#"{"store":false,"store":true}"#, false),
        (r#"{"input":{"store":false}}"#, false),
        ("{}", false),
        ("[]", false),
    ] {
        assert_eq!(is_switched_off(body.as_bytes(), b"store"), expected, "{body}");
    }
}
