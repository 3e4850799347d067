//! Results that are no JSON, or need not be.

use super::*;

#[test]
fn result_is_json_text_or_sound_by_its_operation() {
    let of = |operation| ResponseTerms { operation, sent: operation, ..chat() };
    let typed = |body, is_json, is_text| SeenResponse { is_json, is_text, ..whole(200, body) };
    let transcripts = of(Operation::Transcriptions);
    let subtitles = "1\n00:00:00,000 --> 00:00:01,000\n[Music] {hm}\n";
    for (seen, expected) in [
        (whole(200, r#"{"text":"hi"}"#), Disposition::Relay),
        (typed("hi there", false, true), Disposition::Relay),
        (typed("[BLANK_AUDIO]", false, true), Disposition::Relay),
        (typed(subtitles, false, false), Disposition::Relay),
        // A sound without words.
        (typed("", false, true), Disposition::Relay),
        (typed("\n", false, true), Disposition::Relay),
        (whole(200, ""), HELD(HoldReason::NoWork)),
        (typed("", false, false), HELD(HoldReason::NoWork)),
        (whole(204, ""), HELD(HoldReason::NoWork)),
        (whole(200, ERROR), HELD(HoldReason::NoWork)),
        (typed(ERROR, false, true), HELD(HoldReason::NoWork)),
        (whole(200, r#"[{"error":{"message":"x"}}]"#), HELD(HoldReason::NoResult)),
        (typed("<!DOCTYPE html><html>", false, true), HELD(HoldReason::NoResult)),
        (typed("\n<HTML>", false, false), HELD(HoldReason::NoResult)),
        (stream("data: {\"type\":\"transcript.text.delta\"}\n\n", false), Disposition::Relay),
        (stream("data: {\"error\":{\"message\":\"x\"}}\n\n", false), HELD(HoldReason::NoWork)),
    ] {
        assert_eq!(decided(&transcripts, &seen), expected, "{seen:?}");
    }
    let speech = of(Operation::Speech);
    for (seen, expected) in [
        (typed("RIFF", false, false), Disposition::Relay),
        (
            SeenResponse { body: Some(&[255, 251, 144]), ..typed("...", false, true) },
            Disposition::Relay,
        ),
        (whole(200, r#"{"audio":"AAAA"}"#), Disposition::Relay),
        (typed("", false, false), HELD(HoldReason::NoWork)),
        (typed("<html>", false, false), HELD(HoldReason::NoResult)),
        (typed("no voice", false, true), HELD(HoldReason::NoResult)),
        (typed(ERROR, false, false), HELD(HoldReason::NoWork)),
        (stream("data: {\"type\":\"speech.audio.delta\"}\n\n", false), Disposition::Relay),
    ] {
        assert_eq!(decided(&speech, &seen), expected, "{seen:?}");
    }
    let edits = of(Operation::ImageEdits);
    for (seen, expected) in [
        (whole(200, r#"{"created":1,"data":[{"b64_json":"x"}]}"#), Disposition::Relay),
        (whole(200, "<html>"), HELD(HoldReason::NoResult)),
        (whole(200, ERROR), HELD(HoldReason::NoWork)),
    ] {
        assert_eq!(decided(&edits, &seen), expected, "{seen:?}");
    }
}

#[test]
fn refusal_of_a_gateway_is_no_result_whole_or_as_a_stream() {
    for (seen, expected) in [
        (whole(200, r#"{"message":"boom"}"#), HELD(HoldReason::NoResult)),
        (whole(200, r#"{"id":"x","errors":["boom"]}"#), HELD(HoldReason::NoResult)),
        (whole(200, r#"{"fault":{"faultstring":"boom"}}"#), HELD(HoldReason::NoResult)),
        (
            stream("data: {\"detail\":\"boom\"}\n\ndata: [DONE]\n\n", false),
            HELD(HoldReason::NoResult),
        ),
        (stream("data: {\"code\":500,\"message\":\"boom\"}\n\n", true), HELD(HoldReason::NoResult)),
        (
            stream("data: {\"message\":\"server busy\"}\n\ndata: [DONE]\n\n", false),
            HELD(HoldReason::Overloaded),
        ),
        (
            stream("data: {\"message\":\"wait\"}\n\ndata: {\"choices\":[]}\n\n", false),
            Disposition::Relay,
        ),
    ] {
        assert_eq!(decided(&chat(), &seen), expected, "{seen:?}");
    }
}

#[test]
fn converted_result_with_an_error_is_a_failure() {
    const CHOICE: &str = r#"{"choices":[{"message":{"content":""},"finish_reason":"error","error":{"code":502,"message":"x"}}]}"#;
    let busy = CHOICE.replace("502", "429");
    let bad = CHOICE.replace("502", "400");
    let beside = r#"{"choices":[{"message":{"content":""}}],"error":{"message":"x"}}"#;
    let partial = CHOICE.replace("\"content\":\"\"", "\"content\":\"hi\"");
    let partial_busy = partial.replace("502", "429");
    let chat = ResponseTerms { is_converted: true, ..chat() };
    let ollama = ResponseTerms { sent: Operation::OllamaChat, ..chat };
    for (terms, body, expected) in [
        (chat, CHOICE, HELD(HoldReason::NoWork)),
        (chat, &busy, HELD(HoldReason::RateLimited)),
        (chat, &bad, HELD(HoldReason::Client)),
        (chat, beside, HELD(HoldReason::NoWork)),
        (ollama, r#"{"message":{"content":""},"done":true,"error":"x"}"#, HELD(HoldReason::NoWork)),
        // The work was done.
        (chat, &partial, Disposition::Relay),
        (chat, &partial_busy, HELD(HoldReason::RateLimited)),
        (ResponseTerms { retries_5xx: true, ..chat }, &partial, HELD(HoldReason::NoWork)),
        (
            ResponseTerms { is_converted: false, is_gathered: true, ..chat },
            CHOICE,
            HELD(HoldReason::NoWork),
        ),
        // It passes as it came.
        (ResponseTerms { is_converted: false, ..chat }, CHOICE, Disposition::Relay),
        (chat, CHAT, Disposition::Relay),
    ] {
        assert_eq!(decided(&terms, &whole(200, body)), expected, "{body}");
    }
    for start in ["\n\n", "{\"id\":", "\n{\"choices\":[{"] {
        let seen = SeenResponse { is_whole: false, framing: BodyEnd::Chunked, ..whole(200, start) };
        assert_eq!(Disposition::of(&chat, &seen), None, "nothing of {start} passes before its end");
    }
}

#[test]
fn converted_stream_is_judged_up_to_its_first_output() {
    let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    let busy = format!(
        "{role}data: {{\"error\":{{\"message\":\"x\",\"code\":\"rate_limit_exceeded\"}}}}\n\n"
    );
    let token = format!("{role}data: {{\"choices\":[{{\"delta\":{{\"content\":\"hi\"}}}}]}}\n\n");
    let plain = chat();
    let converted = ResponseTerms { is_converted: true, ..plain };
    assert_eq!(Disposition::of(&converted, &stream(role, false)), None);
    assert_eq!(decided(&converted, &stream(&busy, false)), HELD(HoldReason::RateLimited));
    assert_eq!(decided(&converted, &stream(&token, false)), Disposition::Relay);
    let many = role.repeat(300);
    for lines in [&many, &many.replace('\n', "\r")] {
        // They are not read again and again.
        assert_eq!(decided(&converted, &stream(lines, false)), Disposition::Relay);
    }
    // The role has gone to the client.
    assert_eq!(decided(&plain, &stream(&busy, false)), Disposition::Relay);
}
