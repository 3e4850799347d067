//! The table of the rule on outcomes, row by row.

use penstock_api::units::TokenCount;

use super::*;

mod meanings;
mod results;

const BODY: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

/// A chat with penstock's own key, on a backend that has served chats.
fn chat() -> ResponseTerms<'static> {
    ResponseTerms {
        operation: Operation::Chat,
        sent: Operation::Chat,
        model: "m",
        body: BODY,
        key: SentKey::Own,
        is_converted: false,
        is_load: false,
        has_head: false,
        is_gathered: false,
        retries_5xx: false,
        may_shorten: false,
        may_drop: Capabilities::NONE,
        needs: Capabilities::NONE,
        elsewhere: Capabilities::NONE,
        contexts: None,
        has_served: true,
    }
}

/// A whole response of JSON.
fn whole(status: u16, body: &str) -> SeenResponse<'_> {
    SeenResponse {
        status,
        framing: BodyEnd::Length(body.len() as u64),
        stream: None,
        is_json: true,
        is_text: false,
        is_encoded: false,
        body: Some(body.as_bytes()),
        is_whole: true,
        result: None,
    }
}

fn stream(body: &str, is_whole: bool) -> SeenResponse<'_> {
    SeenResponse {
        framing: BodyEnd::Chunked,
        stream: Some(StreamFraming::Events),
        is_json: false,
        is_whole,
        ..whole(200, body)
    }
}

/// Returns what is decided about a response of which enough was read.
fn decided(terms: &ResponseTerms<'_>, seen: &SeenResponse<'_>) -> Disposition {
    Disposition::of(terms, &seen.read_result(terms.sent)).expect("enough was read")
}

const HELD: fn(HoldReason) -> Disposition = Disposition::Hold;
const ERROR: &str = r#"{"error":{"message":"x","type":"y"}}"#;
const CHAT: &str = r#"{"id":"c","choices":[{"message":{"content":"hi"}}]}"#;

#[test]
fn status_of_an_error_decides_with_the_key_that_was_sent() {
    let of = |status, key| decided(&ResponseTerms { key, ..chat() }, &whole(status, ERROR));
    for (status, own, clients) in [
        (400, Disposition::Relay, Disposition::Relay),
        (401, HELD(HoldReason::KeyRejected), Disposition::Relay),
        (402, HELD(HoldReason::KeyRejected), Disposition::Relay),
        (403, HELD(HoldReason::Forbidden), Disposition::Relay),
        (404, Disposition::Relay, Disposition::Relay),
        (408, Disposition::Relay, Disposition::Relay),
        (413, Disposition::Relay, Disposition::Relay),
        (422, Disposition::Relay, Disposition::Relay),
        (429, HELD(HoldReason::RateLimited), HELD(HoldReason::RateLimited)),
        (500, Disposition::Relay, Disposition::Relay),
        (502, Disposition::Relay, Disposition::Relay),
        (503, HELD(HoldReason::Overloaded), HELD(HoldReason::Overloaded)),
        (504, Disposition::Relay, Disposition::Relay),
        (529, HELD(HoldReason::Overloaded), HELD(HoldReason::Overloaded)),
    ] {
        assert_eq!(of(status, SentKey::Own), own, "{status} with penstock's key");
        assert_eq!(of(status, SentKey::Clients), clients, "{status} with the client's key");
    }
}

#[test]
fn server_errors_go_elsewhere_only_where_that_is_configured() {
    let terms = ResponseTerms { retries_5xx: true, ..chat() };
    for status in [500, 502, 504] {
        let found = decided(&terms, &whole(status, ERROR));
        assert_eq!(found, HELD(HoldReason::ServerError), "{status}");
    }
    assert_eq!(decided(&terms, &whole(503, ERROR)), HELD(HoldReason::Overloaded));
    let busy = r#"{"error":{"message":"Overloaded","type":"overloaded_error"}}"#;
    assert_eq!(decided(&chat(), &whole(500, busy)), HELD(HoldReason::Overloaded));
    let quoted = r#"{"error":{"message":"bad value: rate limit","type":"invalid_request_error"}}"#;
    assert_eq!(decided(&chat(), &whole(400, quoted)), Disposition::Relay);
}

#[test]
fn request_beyond_a_limit_by_itself_does_not_make_a_backend_busy() {
    let too_large = r#"{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 30000, Requested 45000.","type":"tokens","code":"rate_limit_exceeded"}}"#;
    let used_up = too_large.replace("Requested 45000", "Used 29000, Requested 4000");
    for (body, expected) in [(too_large, HoldReason::TooLarge), (&used_up, HoldReason::RateLimited)]
    {
        for status in [200, 429] {
            assert_eq!(decided(&chat(), &whole(status, body)), HELD(expected), "{status} {body}");
        }
        let passed = ResponseTerms { operation: Operation::Passthrough, ..chat() };
        assert_eq!(decided(&passed, &whole(429, body)), HELD(expected), "{body}");
    }
    assert_eq!(decided(&chat(), &whole(400, too_large)), Disposition::Relay);
}

#[test]
fn account_without_credit_is_a_rejected_key() {
    let empty = r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let of = |status, key| decided(&ResponseTerms { key, ..chat() }, &whole(status, empty));
    for (status, own, clients) in [
        (200, HELD(HoldReason::KeyRejected), HELD(HoldReason::Client)),
        (400, HELD(HoldReason::Forbidden), Disposition::Relay),
        (403, HELD(HoldReason::Forbidden), Disposition::Relay),
        (429, HELD(HoldReason::KeyRejected), Disposition::Relay),
        (500, HELD(HoldReason::KeyRejected), Disposition::Relay),
    ] {
        assert_eq!(of(status, SentKey::Own), own, "{status} with penstock's key");
        assert_eq!(of(status, SentKey::Clients), clients, "{status} with the client's key");
    }
}

#[test]
fn not_found_is_about_the_model_the_path_or_the_client() {
    let model = r#"{"error":{"message":"The model `m` does not exist","type":"NotFoundError"}}"#;
    let path = r#"{"detail":"Not Found"}"#;
    let item = r#"{"error":{"message":"Item with id 'msg_1' not found.","param":"input"}}"#;
    let unknown = ResponseTerms { has_served: false, ..chat() };
    let body = br#"{"input":[{"type":"item_reference","id":"msg_1"}]}"#;
    let naming = ResponseTerms { body, ..unknown };
    for (terms, status, body, expected) in [
        (naming, 404, item, Disposition::Relay),
        (chat(), 404, model, HELD(HoldReason::ModelMissing)),
        (unknown, 404, model, HELD(HoldReason::ModelMissing)),
        (unknown, 404, path, HELD(HoldReason::OperationMissing)),
        (unknown, 405, path, HELD(HoldReason::OperationMissing)),
        (unknown, 501, path, HELD(HoldReason::OperationMissing)),
        (chat(), 404, path, Disposition::Relay),
        (chat(), 405, path, Disposition::Relay),
        (chat(), 501, path, Disposition::Relay),
    ] {
        assert_eq!(decided(&terms, &whole(status, body)), expected, "{status} {body}");
    }
    let tool = r#"{"error":{"message":"The model `hi` does not exist","code":"model_not_found"}}"#;
    assert_eq!(decided(&unknown, &whole(404, tool)), Disposition::Relay, "the client named it");
    let flagged = r#"{"error":{"message":"Your input was flagged","code":403}}"#;
    assert_eq!(decided(&chat(), &whole(403, flagged)), Disposition::Relay);
}

#[test]
fn success_is_judged_by_what_it_holds() {
    for (seen, expected) in [
        (whole(200, CHAT), Disposition::Relay),
        (whole(200, ERROR), HELD(HoldReason::NoWork)),
        (
            whole(200, r#"{"error":{"message":"slow down","code":429}}"#),
            HELD(HoldReason::RateLimited),
        ),
        (whole(200, r#"{"error":"server busy"}"#), HELD(HoldReason::Overloaded)),
        (whole(200, r#"{"detail":"Not authenticated"}"#), HELD(HoldReason::NoResult)),
        (whole(200, r#"{"message":"Rate limit","code":429}"#), HELD(HoldReason::RateLimited)),
        (whole(200, "<html>"), HELD(HoldReason::NoResult)),
        (whole(200, "\u{feff}{}"), HELD(HoldReason::NoResult)),
        (whole(200, "null"), HELD(HoldReason::NoResult)),
        (SeenResponse { body: Some(&[60, 0, 128, 63]), ..whole(200, "0000") }, Disposition::Relay),
        // Empty, or of a form that is not known: no proof of a fault.
        (whole(200, r#"{"id":"c","choices":[]}"#), Disposition::Relay),
        (whole(202, r#"{"x":1}"#), Disposition::Relay),
        (whole(200, r#"{"id":"c","choices":["#), HELD(HoldReason::NoResult)),
        (whole(200, r#"[{"error":{"message":"x"}}]"#), HELD(HoldReason::NoResult)),
        (whole(200, r#"{"status":"error","message":"server busy"}"#), HELD(HoldReason::Overloaded)),
        (whole(200, r#"{"choices":[{"message":{"content":""}}]}"#), Disposition::Relay),
        (SeenResponse { is_whole: false, ..whole(200, r#"{"id":"c","#) }, Disposition::Relay),
        (stream(": ping\n\n", false), Disposition::Relay),
        (stream(": ping\n\n", true), HELD(HoldReason::NoWork)),
        (stream(": ping\n\ndata: [DONE]\n\n", false), HELD(HoldReason::NoWork)),
        (
            SeenResponse { is_json: false, is_whole: false, ..whole(200, "<html>") },
            HELD(HoldReason::NoResult),
        ),
        (
            SeenResponse { is_json: false, is_whole: false, ..whole(200, "data: {") },
            Disposition::Relay,
        ),
        (SeenResponse { is_encoded: true, ..whole(200, "\u{1f}") }, Disposition::Relay),
        (SeenResponse { is_json: false, ..whole(200, ERROR) }, HELD(HoldReason::NoWork)),
        (whole(302, ""), HELD(HoldReason::NoResult)),
        (whole(200, ""), HELD(HoldReason::NoWork)),
        (whole(200, " \n"), HELD(HoldReason::NoWork)),
        (whole(204, ""), HELD(HoldReason::NoWork)),
        (SeenResponse { framing: BodyEnd::Empty, ..whole(200, "") }, HELD(HoldReason::NoWork)),
        (stream("", true), HELD(HoldReason::NoWork)),
        (stream("data: [DONE]\n\n", false), HELD(HoldReason::NoWork)),
        (stream("data: {\"error\":{\"message\":\"x\"}}\n\n", false), HELD(HoldReason::NoWork)),
        (
            stream(
                "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
                false,
            ),
            HELD(HoldReason::Overloaded),
        ),
        (stream("data: {\"choices\":[]}\n\n", false), Disposition::Relay),
        (stream(": ping\n", false), Disposition::Relay),
    ] {
        assert_eq!(decided(&chat(), &seen), expected, "{seen:?}");
    }
}

#[test]
fn responses_are_read_only_as_far_as_they_have_to_be() {
    let unread = |seen: SeenResponse<'static>| SeenResponse { body: None, is_whole: false, ..seen };
    let large = SeenResponse { framing: BodyEnd::Length(1 << 20), ..unread(whole(200, "")) };
    let text = SeenResponse { is_json: false, framing: BodyEnd::Chunked, ..unread(whole(200, "")) };
    for (seen, expected) in [
        (unread(stream("", false)), None),
        (stream("data: {", false), None),
        (SeenResponse { framing: BodyEnd::Chunked, ..unread(whole(200, "")) }, None),
        (large, None),
        (SeenResponse { body: Some(b"{"), ..large }, Some(Disposition::Relay)),
        (text, None),
        (SeenResponse { body: Some(b"[1"), ..text }, Some(Disposition::Relay)),
        (SeenResponse { is_whole: false, ..whole(200, "\n") }, Some(Disposition::Relay)),
        (SeenResponse { is_whole: false, ..whole(200, "{\"err") }, None),
        (
            SeenResponse { framing: BodyEnd::Chunked, ..unread(whole(422, "")) },
            Some(Disposition::Relay),
        ),
        (SeenResponse { framing: BodyEnd::Chunked, ..unread(whole(401, "")) }, None),
        (
            SeenResponse { framing: BodyEnd::Length(1 << 20), ..unread(whole(503, "")) },
            Some(HELD(HoldReason::Overloaded)),
        ),
    ] {
        let seen = seen.read_result(Operation::Chat);
        assert_eq!(Disposition::of(&chat(), &seen), expected, "{seen:?}");
    }
}

#[test]
fn long_error_at_the_start_of_a_stream_is_read_to_its_end() {
    let error = format!("data: {{\"error\":{{\"message\":\"{}\"}}}}\n\n", "z".repeat(40_000));
    for terms in [chat(), ResponseTerms { is_converted: true, ..chat() }] {
        let of = |body| Disposition::of(&terms, &stream(body, false));
        assert_eq!(of(&error[..20_000]), None);
        assert_eq!(of(&error), Some(HELD(HoldReason::NoWork)));
        let endless = format!("data: {{\"x\":\"{}", "z".repeat(MAX_HELD));
        assert_eq!(of(&endless), Some(Disposition::Relay), "what is held is bounded");
    }
}

#[test]
fn passed_through_responses_speak_for_themselves() {
    let terms = ResponseTerms { operation: Operation::Passthrough, has_served: false, ..chat() };
    for (status, body) in
        [(200, ERROR), (200, ""), (204, ""), (401, ERROR), (404, ERROR), (500, ERROR)]
    {
        assert_eq!(decided(&terms, &whole(status, body)), Disposition::Relay, "{status}");
    }
    assert_eq!(decided(&terms, &whole(503, ERROR)), HELD(HoldReason::Overloaded));
}

#[test]
fn too_long_prompt_goes_only_to_a_longer_context() {
    let refused = |limit, prompt| {
        let text = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {} tokens ({prompt} in the messages, 1000 in the completion). Please reduce the length of the messages or completion.",
            prompt + 1000
        );
        format!(r#"{{"error":{{"message":"{text}","type":"BadRequestError"}}}}"#)
    };
    let held = |context| HELD(HoldReason::ContextTooShort(TokenCount(context)));
    for (own, longest, limit, prompt, expected) in [
        (Some(8192), 32_768, 8192, 9000, held(8192)),
        (None, 32_768, 8192, 9000, held(8192)),
        // The engine counts, not what is declared for it.
        (Some(131_072), 32_768, 8192, 9000, held(8192)),
        (Some(8192), 8192, 8192, 9000, Disposition::Relay),
        (Some(8192), 16_384, 8192, 16_000, Disposition::Relay),
    ] {
        let own = own.map(TokenCount);
        let longest_elsewhere = TokenCount(longest);
        let terms = ResponseTerms { contexts: Some(Contexts { own, longest_elsewhere }), ..chat() };
        assert_eq!(decided(&terms, &whole(400, &refused(limit, prompt))), expected, "{longest}");
        assert_eq!(decided(&terms, &whole(400, ERROR)), Disposition::Relay);
    }
    let own = Some(TokenCount(8192));
    let contexts = Some(Contexts { own, longest_elsewhere: TokenCount(32_768) });
    let shortens = ResponseTerms { may_shorten: true, contexts, ..chat() };
    let found = decided(&shortens, &whole(400, &refused(8192, 9000)));
    assert!(matches!(found, Disposition::Shorten(_)), "the context shift finds longer contexts");
}

#[test]
fn errors_are_converted_shortened_for_or_dropped_for_before_they_are_relayed() {
    let converted = ResponseTerms { is_converted: true, ..chat() };
    assert_eq!(decided(&converted, &whole(400, ERROR)), Disposition::ConvertError);
    assert_eq!(decided(&converted, &whole(500, ERROR)), Disposition::ConvertError);
    let too_long = r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (8000 in the messages, 1000 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError"}}"#;
    let shortens = ResponseTerms { may_shorten: true, ..chat() };
    assert!(matches!(decided(&shortens, &whole(400, too_long)), Disposition::Shorten(_)));
    let needs = Capabilities::TOOLS;
    let drops = ResponseTerms { needs, may_drop: needs, ..chat() };
    let unsupported = r#"{"error":"registry.ollama.ai/library/m does not support tools"}"#;
    let found = decided(&drops, &whole(400, unsupported));
    assert_eq!(found, Disposition::Drop(Capabilities::TOOLS));
    let elsewhere = ResponseTerms { elsewhere: needs, ..drops };
    let found = decided(&elsewhere, &whole(400, unsupported));
    assert_eq!(found, HELD(HoldReason::CapabilityMissing));
    let needs = Capabilities::VISION;
    let no_images = ResponseTerms { needs, elsewhere: needs, ..chat() };
    assert_eq!(decided(&no_images, &whole(400, unsupported)), Disposition::Relay);
    let has_head = ResponseTerms { has_head: true, ..chat() };
    assert_eq!(decided(&has_head, &whole(200, CHAT)), Disposition::NoStream);
    let events = stream("data: {\"choices\":[]}\n\n", false);
    assert_eq!(decided(&has_head, &events), Disposition::Relay);
    let encoded = SeenResponse { is_encoded: true, ..events };
    assert_eq!(decided(&has_head, &encoded), Disposition::NoStream);
    assert_eq!(decided(&chat(), &encoded), Disposition::Relay);
    let converted = ResponseTerms { is_converted: true, ..has_head };
    assert_eq!(decided(&converted, &whole(200, CHAT)), Disposition::Relay);
}

#[test]
fn inputs_yield_results_and_loads_yield_none() {
    let embed = ResponseTerms {
        operation: Operation::Embeddings,
        sent: Operation::Embeddings,
        body: br#"{"model":"m","input":"a"}"#,
        ..chat()
    };
    let none = ResponseTerms { body: br#"{"model":"m","input":[]}"#, ..embed };
    let load = ResponseTerms {
        operation: Operation::OllamaGenerate,
        sent: Operation::OllamaGenerate,
        is_load: true,
        ..chat()
    };
    let generate = ResponseTerms { is_load: false, ..load };
    let loaded = r#"{"model":"m","response":"","done":true,"done_reason":"load"}"#;
    let line = SeenResponse { stream: Some(StreamFraming::Lines), ..stream(loaded, true) };
    for (terms, seen, expected) in [
        (embed, whole(200, r#"{"data":[]}"#), Disposition::Relay),
        (embed, whole(200, r#"{"data":[{"embedding":[NaN]}]}"#), HELD(HoldReason::NoResult)),
        (embed, whole(200, r#"{"data":[{"embedding":[0.1]}]}"#), Disposition::Relay),
        (none, whole(200, r#"{"data":[]}"#), Disposition::Relay),
        (load, whole(200, loaded), Disposition::Relay),
        (load, line, Disposition::Relay),
        (generate, whole(200, loaded), HELD(HoldReason::NoResult)),
        (generate, line, HELD(HoldReason::NoWork)),
    ] {
        assert_eq!(
            decided(&terms, &seen),
            expected,
            "{:?}",
            seen.body.map(String::from_utf8_lossy)
        );
    }
}
