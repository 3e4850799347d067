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

#[test]
fn text_with_half_of_a_pair_is_output() {
    let (high, low) = (r#"\ud83d"#, r#"\ude00 bye"#);
    for text in [high, low, r#"\ud83dx"#, r#"\ud83d\u0041"#, r#"\ud83d\ude00"#] {
        let event = chat(&format!(r#"{{"role":"assistant","content":"{text}"}}"#));
        let (progress, scanner) = fed(Operation::Chat, &format!("data: {event}\n\n"));
        assert_eq!((progress.tokens, scanner.is_empty()), (1, false), "{text}");
        let line = format!("{{\"message\":{{\"content\":\"{text}\"}},\"done\":true}}\n");
        let (progress, _) = fed(Operation::OllamaChat, &line);
        assert_eq!((progress.tokens, progress.done), (1, true), "{text}");
        let block = format!(
            "data: {{\"type\":\"content_block_delta\",\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        );
        assert_eq!(fed(Operation::Messages, &block).0.tokens, 1, "{text}");
        let whole = format!(r#"{{"choices":[{{"message":{{"content":"{text}"}}}}]}}"#);
        let read = crate::WholeResult::read(Operation::Chat, whole.as_bytes());
        assert_eq!(read, crate::WholeResult::Filled, "{text}");
    }
}
