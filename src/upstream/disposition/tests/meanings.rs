//! Errors that mean another status than they came with.

use super::*;

#[test]
fn fault_of_the_client_within_a_200_counts_as_with_its_status() {
    let coded = |code: &str, kind: &str| {
        format!(r#"{{"error":{{"message":"x","type":"{kind}","code":{code}}}}}"#)
    };
    let clients = ResponseTerms { key: SentKey::Clients, ..chat() };
    for (body, own, with_clients_key) in [
        (coded("400", "BadRequestError"), HoldReason::Client, HoldReason::Client),
        (coded("413", "x"), HoldReason::Client, HoldReason::Client),
        (coded("422", "x"), HoldReason::Client, HoldReason::Client),
        (coded("404", "NotFoundError"), HoldReason::Client, HoldReason::Client),
        (coded("\"context_length_exceeded\"", "x"), HoldReason::Client, HoldReason::Client),
        (coded("null", "invalid_request_error"), HoldReason::Client, HoldReason::Client),
        (coded("401", "x"), HoldReason::KeyRejected, HoldReason::Client),
        (coded("null", "authentication_error"), HoldReason::KeyRejected, HoldReason::Client),
        (coded("403", "x"), HoldReason::Forbidden, HoldReason::Client),
        (coded("408", "x"), HoldReason::NoWork, HoldReason::NoWork),
        (coded("500", "invalid_request_error"), HoldReason::NoWork, HoldReason::NoWork),
    ] {
        assert_eq!(decided(&chat(), &whole(200, &body)), HELD(own), "{body}");
        assert_eq!(decided(&clients, &whole(200, &body)), HELD(with_clients_key), "{body}");
        let event = format!("data: {body}\n\n");
        assert_eq!(decided(&chat(), &stream(&event, false)), HELD(own), "{body}");
    }
}

#[test]
fn own_key_that_is_refused_with_400_is_a_rejected_key() {
    const CREDIT: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."}}"#;
    const KEY: &str = r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]"#;
    let clients = ResponseTerms { key: SentKey::Clients, ..chat() };
    for (body, expected) in [(CREDIT, HoldReason::KeyRejected), (KEY, HoldReason::KeyInvalid)] {
        for status in [400, 403] {
            assert_eq!(decided(&chat(), &whole(status, body)), HELD(expected), "{status} {body}");
            let found = decided(&clients, &whole(status, body));
            assert_eq!(found, Disposition::Relay, "{status} {body}");
        }
    }
    let quotes = ResponseTerms { body: br#"{"messages":[{"role":"Your credit balance is too low to access the Anthropic API"}]}"#, ..chat() };
    assert_eq!(decided(&quotes, &whole(400, CREDIT)), Disposition::Relay, "the client wrote it");
}

#[test]
fn path_that_is_missing_with_a_200_counts_as_with_a_404() {
    let body = r#"{"error":"Unexpected endpoint or method. (POST /v1/messages)"}"#;
    let unknown = ResponseTerms { has_served: false, ..chat() };
    assert_eq!(decided(&unknown, &whole(200, body)), HELD(HoldReason::OperationMissing));
    assert_eq!(decided(&chat(), &whole(200, body)), HELD(HoldReason::NoWork), "it has served it");
    let named = ResponseTerms { body: br#"{"previous_response_id":"r"}"#, ..unknown };
    assert_eq!(decided(&named, &whole(200, body)), HELD(HoldReason::NoWork));
    let quoted = ResponseTerms { body: b"Unexpected endpoint or method", ..unknown };
    assert_eq!(
        decided(&quoted, &whole(200, body)),
        HELD(HoldReason::NoWork),
        "the client wrote it"
    );
}
