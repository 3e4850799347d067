//! A scan allocates nothing, whatever the body.

use penstock_api::Operation;

use super::super::{ScanOptions, scan};

fn body_with(text: &str, length: usize) -> String {
    let text: String = text.chars().cycle().take(length).collect();
    format!(
        r#"{{"model":"llama3:8b","messages":[{{"role":"user","content":"{text}"}}],"stream":true,"tools":[{{"type":"function"}}],"max_tokens":9}}"#
    )
}

fn allocations(body: &str) -> u64 {
    let bytes = body.as_bytes();
    let run = |operation| scan(operation, None, bytes, ScanOptions::default()).unwrap();
    run(Operation::Chat);
    allocation_counter::measure(|| {
        for operation in
            [Operation::Chat, Operation::Messages, Operation::Responses, Operation::OllamaChat]
        {
            std::hint::black_box(run(operation));
        }
    })
    .count_total
}

#[test]
fn a_scan_allocates_nothing() {
    for length in [180, 32 << 10, 1 << 20] {
        assert_eq!(allocations(&body_with("plain text, ", length)), 0, "{length} plain bytes");
        assert_eq!(allocations(&body_with("日本語 и é ", length)), 0, "{length} characters");
        let escaped = body_with("0123456789abcdef", length).replace("abc", r#"\n\u0041\""#);
        assert_eq!(allocations(&escaped), 0, "{length} characters with escapes");
    }
    let escaped_names = r#"{"mod\u0065l":"a\/b","messag\u0065s":[{"cont\u0065nt":"x"}]}"#;
    assert_eq!(allocations(escaped_names), 0, "escaped names are decoded on the stack");
    let own = r#"{"model":"m","messages":[{"role":"user","content":"x","images":["aGk="]}],
        "format":"json","options":{"num_predict":7},"keep_alive":"5m"}"#;
    assert_eq!(allocations(own), 0, "members of Ollama's own API");
}

#[test]
fn a_refusal_allocates_nothing() {
    let counted = allocation_counter::measure(|| {
        for body in [&b"{"[..], b"{\"model\":7}", b"{\"model\":\"\xff\"}", b"{\"a\":\"\\ud800\"}"] {
            assert!(scan(Operation::Chat, None, body, ScanOptions::default()).is_err());
        }
    });
    assert_eq!(counted.count_total, 0);
}
