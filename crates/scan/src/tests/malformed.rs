//! Bodies that no backend could parse: each is refused as invalid JSON, and `serde_json` refuses
//! them too.

use penstock_api::{ErrorCode, Operation};

use super::super::{ScanOptions, scan};
use super::oracle::{serde_takes, we_take};

/// Broken bodies, and valid ones broken by the text after `@`: `@` stands for a value in an object.
const MALFORMED: [&[u8]; 121] = [
    // Not a JSON value at all.
    b"",
    b" ",
    b"\n\n",
    b"\0",
    b"model",
    b"{",
    b"}",
    b"{{",
    b"{}}",
    b"{}{}",
    b"{} x",
    b"{},",
    b"[",
    b"]",
    b"[]",
    b"[{}]",
    b"null",
    b"true",
    b"\"model\"",
    b"12",
    b"-",
    b"\xef\xbb\xbf\xef\xbb\xbf{}",
    b" \xef\xbb\xbf{}",
    b"\xef\xbb{}",
    b"\xef\xbb\xbf",
    b"{\0}",
    b"{}\0",
    b"\xff\xfe{\0}\0",
    b"{\0\"\0}\0",
    b"{}\x0b",
    b"\x0c{}",
    b"\xc2\xa0{}",
    b"// x\n{}",
    b"{} // x",
    b"/* */{}",
    b"model=llama3",
    b"<xml/>",
    b"---\nmodel: x",
    // Members.
    br#"{"a"}"#,
    br#"{"a":}"#,
    br#"{"a" 1}"#,
    br#"{"a":1,}"#,
    br#"{,"a":1}"#,
    br#"{"a":1,,"b":2}"#,
    br#"{"a":1 "b":2}"#,
    br#"{"a":1;"b":2}"#,
    br#"{"a"::1}"#,
    br#"{"a":1:2}"#,
    br#"{a:1}"#,
    br#"{'a':1}"#,
    br#"{1:1}"#,
    br#"{null:1}"#,
    br#"{"a":'x'}"#,
    br#"{"a":1"#,
    br#"{"a":1]"#,
    br#"{"a":"#,
    br#"{"a"#,
    br#"{"a":{"b":1}"#,
    br#"{"a":{]}"#,
    br#"{"a":{"b"]}"#,
    br#"{"a":undefined}"#,
    // Arrays.
    b"@[",
    b"@[1,]",
    b"@[,1]",
    b"@[1 2]",
    b"@[1,,2]",
    b"@[}",
    b"@[1}",
    b"@[[]",
    b"@[]]",
    b"@[1:2]",
    b"@[\"a\":1]",
    // Literals.
    b"@True",
    b"@TRUE",
    b"@tru",
    b"@truee",
    b"@nul",
    b"@None",
    b"@fals",
    b"@NaN",
    b"@Infinity",
    b"@-Infinity",
    // Numbers.
    b"@01",
    b"@-01",
    b"@00",
    b"@+1",
    b"@.5",
    b"@-.5",
    b"@1.",
    b"@-",
    b"@--1",
    b"@1e",
    b"@1e+",
    b"@1E-",
    b"@1.e1",
    b"@1.2.3",
    b"@0x10",
    b"@1_000",
    b"@1e1.5",
    b"@1,5",
    // Strings.
    b"@\"",
    b"@\"a",
    b"@\"\\\"",
    b"@\"\\x41\"",
    b"@\"\\u12\"",
    b"@\"\\u12g4\"",
    b"@\"\\U0041\"",
    b"@\"\\'\"",
    b"@\"\\ud800\"",
    b"@\"\\udc00\"",
    b"@\"\\ud800\\u0041\"",
    b"@\"\\ud800x\"",
    b"@\"a\nb\"",
    b"@\"a\tb\"",
    b"@\"\0\"",
    b"@\"\x1f\"",
    // UTF-8.
    b"@\"\xff\"",
    b"@\"\xc3\"",
    b"@\"\xc0\x80\"",
    b"@\"\xed\xa0\x80\"",
    b"@\"\xf4\x90\x80\x80\"",
];

fn body_of(broken: &[u8], field: &str) -> Vec<u8> {
    match broken.strip_prefix(b"@") {
        Some(value) => [b"{\"model\":\"m\",\"", field.as_bytes(), b"\":", value, b"}"].concat(),
        None => broken.to_vec(),
    }
}

#[test]
fn each_kind_of_bad_json_is_refused() {
    for broken in MALFORMED {
        for field in ["x", "messages", "stream", "model", "max_tokens", "tools", "response_format"]
        {
            let body = body_of(broken, field);
            let shown = String::from_utf8_lossy(&body);
            assert_eq!(serde_takes(&body), Some(false), "serde_json takes {shown}");
            let error = scan(Operation::Chat, None, &body, ScanOptions::default()).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidJson, "{shown}");
            assert_eq!(error.param(), None);
        }
    }
}

#[test]
fn malformed_strings_are_found_at_any_length() {
    // Strings are read in words, windows and a remainder: each must detect the same errors.
    for length in (0..150).chain([8 << 10, (8 << 10) + 63, 20_000]) {
        let lead = "a".repeat(length);
        for (broken, good) in [("\n", false), ("\\q", false), ("\u{7f}é", true), ("\\n", true)] {
            let body = format!("{{\"x\":\"{lead}{broken}{lead}\"}}");
            assert_eq!(we_take(body.as_bytes()), good, "{broken:?} after {length} bytes");
        }
        let mut bad_utf8 = format!("{{\"x\":\"{lead}").into_bytes();
        bad_utf8.extend(b"\xe9\"}");
        assert!(!we_take(&bad_utf8), "bad UTF-8 after {length} bytes");
    }
}

#[test]
fn a_depth_bomb_is_refused_after_a_few_bytes() {
    for bomb in ["[".repeat(1_000_000), "{\"a\":".repeat(1_000_000)] {
        for field in ["x", "messages", "tools", "response_format"] {
            let body = format!("{{\"{field}\":{bomb}");
            let error =
                scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default()).unwrap_err();
            assert!(error.to_string().contains("nesting"), "{error}");
        }
    }
}

#[test]
fn errors_say_what_was_expected_and_where() {
    let message = |body: &str| {
        scan(Operation::Chat, None, body.as_bytes(), ScanOptions::default())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        message(r#"{"model": "m",5}"#),
        "the body is not valid JSON: expected a quoted name at byte 14"
    );
    for (body, offset) in [
        (r#"{"model": "m",}"#, 14),
        (r#"{"model": "m" , }"#, 16),
        (r#"{"stop": ["a",]}"#, 14),
        (r#"{"messages": [{"role": "user",}]}"#, 30),
        (r#"{"messages": [{"role": "user"},]}"#, 31),
        (r#"{"tools": [{"x": {"y": [1,]}}]}"#, 26),
    ] {
        let expected = format!(
            "the body is not valid JSON: a comma before byte {offset} has nothing behind it \
             (trailing comma)"
        );
        assert_eq!(message(body), expected, "{body}");
    }
    assert_eq!(
        message(r#"{"model""#),
        "the body is not valid JSON: it ends where a colon should follow"
    );
    assert_eq!(message("[]"), "the body is not valid JSON: expected a JSON object at byte 0");
}
