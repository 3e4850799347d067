//! Streams in an unusual form, of which every event counts.

use super::*;

#[test]
fn byte_order_mark_belongs_to_no_event() {
    let event = chat(r#"{"content":"a"}"#);
    let stream = format!("\u{feff}data: {event}\n\ndata: [DONE]\n\n");
    let (progress, scanner) = fed(Operation::Chat, &stream);
    assert_eq!((progress.tokens, progress.done, scanner.is_empty()), (1, true, false));
    let lines = "\u{feff}{\"message\":{\"content\":\"a\"},\"done\":true}\n";
    let (progress, scanner) = fed(Operation::OllamaChat, lines);
    assert_eq!((progress.tokens, progress.done, scanner.is_empty()), (1, true, false));
}

#[test]
fn completed_response_may_have_failed() {
    let ended = |status: &str| {
        format!(
            "data: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{{\"status\":\"failed\"}}],\"status\":\"{status}\"}}}}\n\n"
        )
    };
    for (status, error) in [("failed", true), ("completed", false)] {
        let (progress, _) = fed(Operation::Responses, &ended(status));
        assert_eq!((progress.done, progress.error), (true, error), "{status}");
    }
}
