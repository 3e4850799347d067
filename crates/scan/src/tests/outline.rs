use penstock_api::Operation;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[derive(Default)]
struct Kept(Vec<u8>, [u8; 7]);

impl OutlineSink for Kept {
    fn add(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.1
    }

    fn fill(&mut self, count: usize) {
        self.0.extend_from_slice(&self.1[..count]);
    }

    fn is_full(&self) -> bool {
        false
    }
}

/// Returns the facts of a body, to which a model is added.
fn scanned(operation: Operation, body: &str) -> (RequestProfile, String) {
    let comma = if body.trim_start_matches('{').starts_with('}') { "" } else { "," };
    let body = body.replacen('{', &format!(r#"{{"model":"m"{comma}"#), 1);
    let options = crate::ScanOptions::default();
    (crate::scan(operation, None, body.as_bytes(), options).unwrap(), body)
}

fn outline(operation: Operation, body: &str) -> Vec<u8> {
    let mut kept = Kept::default();
    let (request, body) = scanned(operation, body);
    Outline::of(&request, body.as_bytes()).unwrap().write(&mut kept);
    kept.0
}

fn chat(body: &str) -> Vec<u8> {
    outline(Operation::Chat, body)
}

#[test]
fn the_layout_of_a_body_makes_no_difference() {
    let plain = chat(r#"{"model":"m","messages":[{"role":"user","content":"é \"x\" 😀"}]}"#);
    for same in [
        r#"{"messages":[{"content":"é \"x\" 😀","role":"user"}],"model":"other","stream":true}"#,
        r#"{ "messages" : [ { "role" : "user" , "content" : "\u00e9 \u0022x\u0022 \ud83d\ude00" } ] }"#,
        r#"{"messages":[{"role":"\u0075ser","content":[{"type":"text","text":"é \"x\" 😀"}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"text":"é \"x\" 😀","type":"text"}]}]}"#,
    ] {
        assert_eq!(chat(same), plain, "{same}");
    }
    assert!(String::from_utf8_lossy(&plain).contains("é \"x\" 😀"));
}

#[test]
fn outline_differs_with_every_prompt_field() {
    let base = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
    for other in [
        r#"{"messages":[{"role":"system","content":"hi"}]}"#,
        r#"{"messages":[{"role":"user","content":"ho"}]}"#,
        r#"{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function"}]}"#,
        r#"{"messages":[{"role":"user","content":"hi","name":"bob"}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"x"}}]}]}"#,
    ] {
        assert_ne!(chat(other), chat(base), "{other}");
    }
    let image = |url| {
        chat(
            &json!({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}}]}]})
            .to_string(),
        )
    };
    assert_ne!(image("a"), image("b"));
    let long = image(&"x".repeat(100_000));
    assert!((3072..3200).contains(&long.len()), "an image is as long as the tokens it counts");
    let sound = format!("UklGR{}", "QUJD".repeat(25_000));
    for part in [
        json!({"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}),
        json!({"type": "file", "file": {"file_data": format!("data:application/pdf;base64,{sound}")}}),
        json!({"image_url": {"url": format!("data:image/png;base64,{sound}")}}),
        json!({"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": {"type": "base64", "data": sound}}]}),
    ] {
        let body = json!({"messages": [{"role": "user", "content": [part]}]}).to_string();
        assert!((3072..3400).contains(&chat(&body).len()), "{}: {body:.80}", chat(&body).len());
    }
    let ollama = json!({"messages": [{"role": "user", "content": "hi", "images": [sound]}]});
    assert!((3072..3200).contains(&chat(&ollama.to_string()).len()));
}

#[test]
fn longer_conversations_begin_like_shorter_ones() {
    let turns: Vec<Value> = (0..6)
        .map(|turn| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": format!("turn {turn}")}))
        .collect();
    let body = |count: usize| json!({"tools": [{"a": 1}], "messages": turns[..count]}).to_string();
    let whole = chat(&body(6));
    for count in 0..6 {
        let part = chat(&body(count));
        assert!(whole.starts_with(&part) && part.len() < whole.len());
    }
}

#[test]
fn tools_come_first_and_spacing_in_them_does_not_count() {
    let tight = chat(r#"{"messages":[],"tools":[{"name":"a b","n":1}]}"#);
    let loose = chat("{\"tools\" : [ {\"name\": \"a b\",\n \"n\": 1 } ], \"messages\": []}");
    assert_eq!(tight, loose);
    assert!(tight.starts_with(TOOLS) && String::from_utf8_lossy(&tight).contains("a b"));
}

#[test]
fn dialects_with_the_same_prompt_have_the_same_outline() {
    let plain = outline(Operation::Completions, r#"{"prompt":"once upon\na time"}"#);
    assert_eq!(plain, b"once upon\na time", "the decoded prompt alone");
    let messages = outline(
        Operation::Messages,
        r#"{"messages":[{"role":"user","content":"hi"}],"system":"be kind"}"#,
    );
    let chat = chat(
        r#"{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}]}"#,
    );
    assert_eq!(messages, chat);
    let responses = outline(Operation::Responses, r#"{"input":"hi","instructions":"be kind"}"#);
    assert_eq!(responses, chat);
    let (request, body) = scanned(Operation::Embeddings, r#"{"input":"hi"}"#);
    assert!(Outline::of(&request, body.as_bytes()).is_none());
}

#[test]
fn changing_line_of_claude_code_is_left_out() {
    let line = |nonce: &str| {
        format!(
            "x-anthropic-billing-header: cc_version=2.1.{nonce}; cc_entrypoint=cli; cch={nonce};"
        )
    };
    let text = "You are terse.\n\"Quoted\" é";
    let user = json!({"role": "user", "content": "hi"});
    let of = |nonce: &str| {
        let (line, joined) = (line(nonce), format!("{}\n{text}", line(nonce)));
        let parts = json!([{"type": "text", "text": line}, {"type": "text", "text": text}]);
        let chat = |role: &str, content: &Value| {
            chat(&json!({"messages": [{"role": role, "content": content}, user]}).to_string())
        };
        let messages = |system: &Value| {
            outline(Operation::Messages, &json!({"system": system, "messages": [user]}).to_string())
        };
        let late = json!({"messages": [{"content": joined, "role": "system"}]}).to_string();
        vec![
            messages(&parts),
            messages(&json!(joined)),
            messages(&json!(line)),
            chat("system", &parts),
            chat("developer", &json!(joined)),
            self::chat(&late),
            outline(
                Operation::Responses,
                &json!({"instructions": joined, "input": "hi"}).to_string(),
            ),
        ]
    };
    assert_eq!(of("00ff1"), of("a1b2c"), "the line makes no difference");
    for kept in [0, 1, 3, 4, 5, 6] {
        assert!(String::from_utf8_lossy(&of("1")[kept]).contains(text), "{kept}");
    }
    let plain = json!({"system": text, "messages": [user]}).to_string();
    assert_eq!(of("1")[1], outline(Operation::Messages, &plain));
    let quoted =
        |nonce| chat(&json!({"messages": [{"role": "user", "content": line(nonce)}]}).to_string());
    assert_ne!(quoted("1"), quoted("2"), "a user may write the same");
}

#[test]
fn cache_salt_is_returned() {
    for (body, salt) in
        [(r#"{"messages":[],"cache_salt":"team a"}"#, "\"team a\""), (r#"{"messages":[]}"#, "")]
    {
        let (request, body) = scanned(Operation::Chat, body);
        let outline = Outline::of(&request, body.as_bytes()).unwrap();
        assert_eq!(outline.salt(), salt.as_bytes());
    }
}

proptest! {
    #[test]
    fn every_text_is_found_decoded(text: String, name: String) {
        let body = json!({"messages": [{"role": "user", "content": text, "x": name}]}).to_string();
        let mut expected = [MESSAGE, b"user", CONTENT, text.as_bytes(), OTHER].concat();
        expected.extend_from_slice(json!(name).to_string().as_bytes());
        prop_assert_eq!(chat(&body), expected);
        let spaced = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&body).unwrap()).unwrap();
        prop_assert_eq!(chat(&spaced), chat(&body));
    }
}
