//! One test per rule of the scan.

use penstock_api::units::{Timestamp, TokenCount};
use penstock_api::{Capabilities, Dialect, ErrorCode, Operation};

use super::super::{ModelForm, ScanError, TokenEstimate};
use super::{scan_as, scan_chat, tokens};

fn needs(body: &str) -> Capabilities {
    scan_chat(body).unwrap().needs
}

fn with_content(content: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#)
}

#[test]
fn the_facts_of_a_usual_request_are_found() {
    let body = r#"{"model":"llama3:8b","messages":[{"role":"user","content":"12345678"}],
        "stream":true,"max_tokens":64,"temperature":0.2}"#;
    let profile = scan_chat(body).unwrap();
    assert_eq!(profile.model.of(body.as_bytes()), b"llama3:8b");
    assert_eq!(profile.model_form, ModelForm::Plain);
    assert!(profile.streaming);
    assert_eq!(profile.estimated_tokens, TokenCount(2));
    assert_eq!(profile.max_tokens, Some(TokenCount(64)));
    assert_eq!(profile.needs, Capabilities::NONE);
    assert_eq!(profile.dialect, Dialect::OpenAi);
    assert_eq!(profile.arrived_at, Timestamp(0));
    let shown = profile.to_requirements(&profile.model_name(body.as_bytes()));
    assert_eq!(
        serde_json::to_string(&shown).unwrap(),
        r#"{"model":"llama3:8b","estimated_tokens":2,"prompt_tokens":2,"needs_vision":false,"needs_tools":false,"needs_json_mode":false,"prefers_streaming":true}"#
    );
}

#[test]
fn an_image_part_needs_vision_wherever_it_stands() {
    let image = r#"{"type":"image_url","image_url":{"url":"data:,"}}"#;
    let text = r#"{"type":"text","text":"what is this"}"#;
    for content in
        [format!("[{image}]"), format!("[{text},{image},{text}]"), format!("[{image},{image}]")]
    {
        assert_eq!(needs(&with_content(&content)), Capabilities::VISION);
    }
    assert_eq!(needs(&with_content(&format!("[{text}]"))), Capabilities::NONE);
    for kind in ["input_image", "image", r"image\u005furl"] {
        let content = format!(r#"[{{"source":{{}},"type":"{kind}"}}]"#);
        assert_eq!(needs(&with_content(&content)), Capabilities::VISION, "{kind}");
    }
    assert_eq!(
        needs(&with_content(r#"[{"type":"image_url2"},{"type":"Image_URL"}]"#)),
        Capabilities::NONE
    );
    let elsewhere =
        r#"{"model":"m","metadata":[{"type":"image_url"}],"messages":[{"type":"image_url"}]}"#;
    assert_eq!(needs(elsewhere), Capabilities::NONE);
}

#[test]
fn parts_without_a_known_type_need_and_count_nothing() {
    for part in [
        "{}",
        r#"{"text":"12345678"}"#,
        r#"{"type":null}"#,
        r#"{"type":7,"text":"12345678"}"#,
        r#"{"type":"unheard_of","text":"12345678"}"#,
        "null",
        "7",
        r#""12345678""#,
        "[]",
    ] {
        let body = with_content(&format!("[{part}]"));
        assert_eq!(needs(&body), Capabilities::NONE, "{part}");
        assert_eq!(tokens(Operation::Chat, TokenEstimate::Chars, &body), 0, "{part}");
    }
}

#[test]
fn tools_count_also_when_the_list_is_empty_but_not_when_null() {
    for field in ["tools", "functions"] {
        for (value, needed) in [("[]", true), ("[{}]", true), ("{}", true), ("null", false)] {
            let body = format!(r#"{{"model":"m","{field}":{value},"messages":[]}}"#);
            assert_eq!(needs(&body).contains(Capabilities::TOOLS), needed, "{field}: {value}");
        }
    }
    assert_eq!(needs(r#"{"model":"m","metadata":{"tools":[]}}"#), Capabilities::NONE);
}

#[test]
fn json_formats_need_json_mode() {
    for (format, needed) in [
        (r#"{"type":"json_object"}"#, true),
        (r#"{"json_schema":{"type":"object"},"type":"json_schema"}"#, true),
        (r#"{"type":"json\u005fobject"}"#, true),
        (r#"{"type":"text"}"#, false),
        (r#"{"type":["json_object"]}"#, false),
        (r#"{"json_schema":{"type":"json_object"}}"#, false),
        (r#""json_object""#, false),
        ("{}", false),
        ("null", false),
    ] {
        let body = format!(r#"{{"model":"m","response_format":{format}}}"#);
        assert_eq!(needs(&body).contains(Capabilities::JSON_MODE), needed, "{format}");
        let body = format!(r#"{{"model":"m","text":{{"verbosity":"low","format":{format}}}}}"#);
        let profile = scan_as(Operation::Responses, &body).unwrap();
        assert_eq!(profile.needs.contains(Capabilities::JSON_MODE), needed, "{format}");
        assert_eq!(needs(&body), Capabilities::NONE, "chat has no text.format");
    }
}

#[test]
fn only_true_is_a_stream() {
    for (value, streaming) in [
        ("true", true),
        ("false", false),
        ("null", false),
        ("1", false),
        (r#""true""#, false),
        ("[true]", false),
    ] {
        let body = format!(r#"{{"model":"m","stream":{value}}}"#);
        assert_eq!(scan_chat(&body).unwrap().streaming, streaming, "{value}");
    }
    assert!(!scan_chat(r#"{"model":"m","stream_options":{"stream":true}}"#).unwrap().streaming);
}

#[test]
fn the_last_of_two_members_counts() {
    let body = r#"{"model":"a","stream":true,"tools":[],"response_format":{"type":"json_object"},
        "max_tokens":5,"messages":[{"content":[{"type":"image_url"},{"type":"text","text":"12345678"}]}],
        "model":"b","stream":false,"tools":null,"response_format":null,"max_tokens":null,
        "messages":[{"content":"1234","content":"12345678","content":"12345678"}]}"#;
    let profile = scan_chat(body).unwrap();
    assert_eq!(profile.model_name(body.as_bytes()), "b");
    assert!(!profile.streaming);
    assert_eq!(profile.needs, Capabilities::NONE);
    assert_eq!(profile.max_tokens, None);
    assert_eq!(profile.estimated_tokens, TokenCount(2));
    let part = r#"[{"type":"image_url","text":"1234","type":"text","text":"12345678"}]"#;
    let body = with_content(part);
    assert_eq!(needs(&body), Capabilities::NONE);
    assert_eq!(tokens(Operation::Chat, TokenEstimate::Chars, &body), 2);
    assert!(scan_chat(r#"{"model":7,"messages":7,"model":"a","messages":[]}"#).is_ok());
}

#[test]
fn escaped_names_are_the_names_they_decode_to() {
    let body = r#"{"mod\u0065l":"a\/b\ud83d\ude00","str\u0065am":true,"\u0074ools":[],
        "messag\u0065s":[{"cont\u0065nt":[{"typ\u0065":"text","t\u0065xt":"12345678"}]}]}"#;
    let profile = scan_chat(body).unwrap();
    assert_eq!(profile.model_form, ModelForm::Escaped);
    assert_eq!(profile.model.of(body.as_bytes()), br"a\/b\ud83d\ude00");
    assert_eq!(profile.model_name(body.as_bytes()), "a/b\u{1f600}");
    assert!(profile.streaming);
    assert_eq!(profile.needs, Capabilities::TOOLS);
    assert_eq!(profile.estimated_tokens, TokenCount(2));
    let hidden = r#"{"model":"a","mod\u0065l":"b"}"#;
    assert_eq!(scan_chat(hidden).unwrap().model_name(hidden.as_bytes()), "b");
}

#[test]
fn nested_members_are_not_the_bodys() {
    let body = r#"{"metadata":{"model":"x","stream":true,"tools":[]},"model":"m","messages":[{"model":"y","stream":true}]}"#;
    let profile = scan_chat(body).unwrap();
    assert_eq!(profile.model_name(body.as_bytes()), "m");
    assert!(!profile.streaming);
    assert_eq!(profile.needs, Capabilities::NONE);
}

#[test]
fn a_missing_model_is_seen_and_an_empty_one_refused() {
    for body in ["{}", " { }", r#"{"x":{"model":"m"}}"#] {
        let profile = scan_chat(body).unwrap();
        assert_eq!(profile.model_form, ModelForm::Missing, "{body}");
        let (brace, place) = (body.find('{').unwrap(), profile.model.range());
        assert_eq!((place.start, place.end), (brace + 1, brace + 1), "{body}");
    }
    let null = r#"{"model": null}"#;
    let profile = scan_chat(null).unwrap();
    assert_eq!(profile.model.of(null.as_bytes()), b"null");
    assert!(!profile.names_model() && profile.model_name(null.as_bytes()).is_empty());
    for name in ["", " ", r"\t", r"\u3000 \n", "\u{a0}"] {
        let error = scan_chat(&format!(r#"{{"model":"{name}"}}"#)).unwrap_err();
        assert_eq!(error, ScanError::EmptyModel, "{name:?}");
        assert_eq!(error.code(), ErrorCode::MissingModel);
        assert_eq!(error.param(), Some("model"));
    }
    assert!(scan_chat(r#"{"model":"日本"}"#).is_ok());
}

#[test]
fn wrong_types_are_refused_by_name() {
    for value in ["7", "true", "[]", "{}", r#"["m"]"#] {
        let error = scan_chat(&format!(r#"{{"model":{value}}}"#)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidType);
        assert_eq!(error.to_string(), "'model' must be a string");
    }
    for value in ["7", "null", "{}", r#""hi""#] {
        let body = format!(r#"{{"model":"m","messages":{value}}}"#);
        for operation in [Operation::Chat, Operation::Messages] {
            let error = scan_as(operation, &body).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidType);
            assert_eq!(error.param(), Some("messages"));
        }
        assert!(scan_as(Operation::Completions, &body).is_ok(), "no field of completions");
    }
}

#[test]
fn text_is_counted_decoded_and_as_a_whole() {
    let count = |estimate, content: &str| tokens(Operation::Chat, estimate, &with_content(content));
    for (content, chars, auto, utf8) in [
        (format!("\"{}\"", "a".repeat(4000)), 1000, 1000, 1000),
        (format!("\"{}\"", "a".repeat(40_000)), 10_000, 10_000, 10_000),
        (format!("\"{}\"", "日".repeat(400)), 100, 300, 300),
        (format!("\"{}\"", r"\u65e5".repeat(400)), 100, 300, 300),
        (format!("\"{}\"", "😀".repeat(40)), 10, 80, 40),
        (format!("\"{}\"", r"\ud83d\ude00".repeat(40)), 10, 80, 40),
        (format!("\"{}\"", "ሰላም".repeat(4)), 3, 24, 9),
        (format!("\"{}\"", r"\u1230\u120b\u121d".repeat(4)), 3, 24, 9),
        (format!("\"{}\"", r"\n\u000a\u0394".repeat(4)), 3, 4, 4),
        (format!("\"{}\"", "Да, ü".repeat(4)), 5, 5, 8),
        (r#""123""#.to_owned(), 0, 0, 0),
        // Three characters in each of four parts: the total is divided, not the parts.
        (format!("[{}]", [r#"{"type":"text","text":"abc"}"#; 4].join(",")), 3, 3, 3),
        (
            r#"[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAAAAAAAAAA"}}]"#
                .to_owned(),
            0,
            0,
            0,
        ),
        ("null".to_owned(), 0, 0, 0),
        ("7".to_owned(), 0, 0, 0),
        (r#"{"type":"text","text":"12345678"}"#.to_owned(), 0, 0, 0),
    ] {
        assert_eq!(count(TokenEstimate::Chars, &content), chars, "{content}");
        assert_eq!(count(TokenEstimate::Auto, &content), auto, "{content}");
        assert_eq!(count(TokenEstimate::Utf8, &content), utf8, "{content}");
    }
    let empty = r#"{"model":"m","messages":[]}"#;
    assert_eq!(tokens(Operation::Chat, TokenEstimate::Chars, empty), 0);
}

#[test]
fn each_operation_counts_its_own_fields() {
    const WORD: &str = r#""12345678""#;
    let items = r#"[{"content":"12345678"},{"type":"message","content":[{"type":"input_text","text":"12345678"}]},
        {"type":"function_call","arguments":"12345678"}]"#;
    let result = r#"[{"content":[{"type":"tool_result","content":"12345678"},
        {"type":"tool_result","content":[{"type":"text","text":"12345678"}]}]}]"#;
    for (operation, fields, expected) in [
        (Operation::Completions, format!(r#""prompt":{WORD}"#), 2),
        (Operation::Completions, format!(r#""prompt":[{WORD},{WORD}]"#), 4),
        (Operation::Completions, r#""prompt":[1,2,3,4,5]"#.to_owned(), 5),
        (Operation::Embeddings, r#""input":[[1,2,3],[4,5]]"#.to_owned(), 5),
        (Operation::Embeddings, format!(r#""input":[{WORD},[{WORD}]]"#), 4),
        (Operation::Embeddings, format!(r#""input":[[[{WORD}]]]"#), 0),
        (Operation::Responses, format!(r#""instructions":{WORD},"input":{WORD}"#), 4),
        (Operation::Responses, format!(r#""input":{items}"#), 6),
        (Operation::Messages, format!(r#""system":{WORD},"messages":{result}"#), 6),
        (Operation::Messages, r#""system":[{"type":"text","text":"12345678"}]"#.to_owned(), 2),
        (Operation::Rerank, format!(r#""query":{WORD},"documents":[{WORD},{{"text":{WORD}}}]"#), 6),
        (Operation::Score, format!(r#""text_1":{WORD},"text_2":[{WORD},{WORD}]"#), 6),
        (Operation::Score, format!(r#""query":{WORD},"documents":[{WORD}]"#), 4),
        (Operation::Moderations, format!(r#""input":[{{"type":"text","text":{WORD}}}]"#), 2),
        (Operation::Speech, format!(r#""input":{WORD}"#), 2),
        (Operation::ImageGenerations, format!(r#""prompt":{WORD}"#), 2),
        (Operation::Chat, format!(r#""prompt":{WORD},"input":{WORD},"system":{WORD}"#), 0),
    ] {
        let body = format!(r#"{{"model":"m",{fields}}}"#);
        assert_eq!(tokens(operation, TokenEstimate::Chars, &body), expected, "{fields}");
    }
}

#[test]
fn images_in_other_operations_need_vision_too() {
    for (operation, fields) in [
        (Operation::Responses, r#""input":[{"role":"user","content":[{"type":"input_image"}]}]"#),
        (Operation::Messages, r#""messages":[{"content":[{"type":"image","source":{}}]}]"#),
        (
            Operation::Messages,
            r#""messages":[{"content":[{"type":"tool_result","content":[{"type":"image"}]}]}]"#,
        ),
        (Operation::Moderations, r#""input":[{"type":"image_url","image_url":{}}]"#),
    ] {
        let body = format!(r#"{{"model":"m",{fields}}}"#);
        assert_eq!(scan_as(operation, &body).unwrap().needs, Capabilities::VISION, "{fields}");
    }
}

#[test]
fn limit_of_llama_cpp_counts_after_those_of_openai() {
    let limit = |operation, members: &str| {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        scan_as(operation, &body).unwrap().max_tokens.map(|limit| limit.0)
    };
    for operation in [Operation::NativeCompletion, Operation::Chat] {
        assert_eq!(limit(operation, r#""n_predict":64"#), Some(64));
        assert_eq!(limit(operation, r#""n_predict":-1"#), None);
        assert_eq!(limit(operation, r#""n_predict":64,"max_tokens":8"#), Some(8));
    }
}

#[test]
fn limits_saturate_and_wrong_ones_are_ignored() {
    for (value, limit) in [
        ("0", Some(0)),
        ("4294967295", Some(u32::MAX)),
        ("99999999999999999999999", Some(u32::MAX)),
        ("-1", None),
        // Lenient engines read these as numbers.
        ("1.0", Some(1)),
        ("1.5", Some(2)),
        ("1e3", Some(1000)),
        (r#""7""#, Some(7)),
        (r#"" 7 ""#, Some(7)),
        (r#""seven""#, None),
        (r#""-7""#, None),
        (r#""\u0037""#, Some(u32::MAX)),
        (r#"["\u0037"]"#, None),
        ("null", None),
        ("[7]", None),
    ] {
        for field in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
            let body = format!(r#"{{"model":"m","{field}":{value}}}"#);
            let found = scan_chat(&body).unwrap().max_tokens;
            assert_eq!(found, limit.map(TokenCount), "{field}: {value}");
        }
    }
    let both = r#"{"model":"m","max_completion_tokens":7,"max_tokens":9}"#;
    assert_eq!(scan_chat(both).unwrap().max_tokens, Some(TokenCount(7)));
}

#[test]
fn a_message_counts_the_same_however_it_begins() {
    for role in ["user", "assistant", "system", "tool", "users"] {
        for (rest, expected) in [
            (r#","content":"abcdefgh"}"#, 2),
            (r#", "content":"abcdefgh"}"#, 2),
            (r#","content" : "abcdefgh" }"#, 2),
            (r#","content":"abcdefgh","name":"abcd"}"#, 2),
            (r#","content":"abcdefgh" , "content":"abcd"}"#, 1),
            (r#","content":"abcdefgh","content":null}"#, 0),
            (r#","content":null,"content":"abcd"}"#, 1),
            (r#","content":[{"type":"text","text":"abcd"}],"role":"user"}"#, 1),
            (r#","content": 1 }"#, 0),
            ("}", 0),
        ] {
            let message = format!(r#"{{"role":"{role}"{rest}"#);
            let body = format!(r#"{{"model":"m","messages":[{message},{message}]}}"#);
            let found = tokens(Operation::Chat, TokenEstimate::Chars, &body);
            assert_eq!(found, 2 * expected, "{message}");
        }
        for rest in
            ["", "}", "\"a\",}", "\"a\"]", "\"a\"\"b\"}", "\"a\"", "\"a", ",", "\"a\",\"b\"}"]
        {
            let message = format!(r#"{{"role":"{role}","content":{rest}"#);
            let body = format!(r#"{{"model":"m","messages":[{message}]}}"#);
            assert_eq!(scan_chat(&body).unwrap_err().code(), ErrorCode::InvalidJson, "{message}");
        }
    }
}

#[test]
fn the_end_of_a_long_string_is_found_wherever_it_is() {
    for len in [0, 7, 8, 15, 16, 17, 191, 192, 193, 1023, 1024, 3071, 3072, 99_999] {
        for end in ["", " ", "é", "\\n", "\\\\", "é\\u00e9 é"] {
            let text = format!("{}{end}", "Q".repeat(len));
            let body = format!(r#"{{"model":"m","messages":[{{"content":"{text}"}}]}}"#);
            let value: serde_json::Value = serde_json::from_str(&body).unwrap();
            let expected = value["messages"][0]["content"].as_str().unwrap().chars().count() / 4;
            let found = tokens(Operation::Chat, TokenEstimate::Chars, &body);
            assert_eq!(found as usize, expected, "{len} bytes and {end:?}");
            let broken =
                format!("{{\"model\":\"m\",\"messages\":[{{\"content\":\"{text}\u{1f}\"}}]}}");
            assert_eq!(scan_chat(&broken).unwrap_err().code(), ErrorCode::InvalidJson);
        }
    }
}

#[test]
fn byte_order_mark_before_the_body_is_skipped() {
    let plain = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hello there"}]}"#;
    let marked = format!("\u{feff} {plain}");
    let (one, other) = (scan_chat(plain).unwrap(), scan_chat(&marked).unwrap());
    assert_eq!(other.model_name(marked.as_bytes()), "gpt-4o");
    assert_eq!(other.estimated_tokens, one.estimated_tokens);
    assert_eq!(other.model.start, one.model.start + 4, "offsets are those of the whole body");
}
