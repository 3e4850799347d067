//! Tests of images and texts that are not simply a part of a message: in the content of documents
//! and results, in items, in prompts that are objects, and beside a prompt.

use penstock_api::{Capabilities, Operation};

use super::scan_as;

/// Returns the tokens of a prompt, and whether it needs vision.
fn figures(operation: Operation, members: &str) -> (u32, bool) {
    let body = format!("{{\"model\":\"m\",{members}}}");
    let profile = scan_as(operation, &body).unwrap_or_else(|error| panic!("{error}: {body}"));
    (profile.prompt_tokens.0, profile.needs.contains(Capabilities::VISION))
}

fn message(content: &str) -> String {
    format!(r#""messages":[{{"role":"user","content":{content}}}]"#)
}

const URL: &str = r#"{"url":"data:,x"}"#;
const ANTHROPIC: &str = r#"{"type":"image","source":{"type":"base64","data":"AAAA"}}"#;

/// Members of a body for each way to put an image into it.
fn with_images() -> Vec<(Operation, String)> {
    let image = format!(r#"{{"type":"image_url","image_url":{URL}}}"#);
    let of = |content: String| message(&content);
    let document =
        format!(r#"{{"type":"document","source":{{"type":"content","content":[{ANTHROPIC}]}}}}"#);
    let result = |kind: &str, content: &str| {
        of(format!(r#"[{{"type":"{kind}","tool_use_id":"t","content":{content}}}]"#))
    };
    vec![
        (Operation::Chat, of(format!(r#"[{{"type":"video_url","video_url":{URL}}}]"#))),
        (Operation::Chat, of(r#"[{"type":"image_embeds","image_embeds":"AAAA"}]"#.to_owned())),
        (Operation::Chat, of(format!(r#"[{{"image_url":{URL}}}]"#))),
        (Operation::Chat, of(r#"[{"type":null,"image":"data:,x"}]"#.to_owned())),
        (Operation::Messages, of(format!("[{document}]"))),
        (Operation::Messages, result("tool_result", &format!("[{document}]"))),
        (Operation::Messages, result("mcp_tool_result", &format!("[{ANTHROPIC}]"))),
        (
            Operation::Messages,
            result("web_fetch_tool_result", &format!(r#"{{"type":"web_fetch_result","content":{document}}}"#)),
        ),
        (
            Operation::Responses,
            r#""input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:,x"}}]"#.to_owned(),
        ),
        (
            Operation::Responses,
            r#""input":[{"type":"computer_call_output","output":{"file_id":"f","type":"computer_screenshot"}}]"#.to_owned(),
        ),
        (Operation::Embeddings, of(format!("[{image}]"))),
        (Operation::Embeddings, format!(r#""input":[{{"content":[{image}]}}]"#)),
        (Operation::Embeddings, r#""input":[{"text":"a"},{"image":"data:,x"}]"#.to_owned()),
        (Operation::Classify, of(format!("[{image}]"))),
        (Operation::Rerank, format!(r#""query":"q","documents":[{{"content":[{image}]}}]"#)),
        (Operation::Rerank, format!(r#""query":"q","documents":{{"content":[{image}]}}"#)),
        (Operation::Rerank, r#""query":{"image":"data:,x"},"documents":["a"]"#.to_owned()),
        (Operation::Score, format!(r#""text_1":"q","text_2":{{"content":[{image}]}}"#)),
        (
            Operation::NativeCompletion,
            r#""prompt":{"prompt_string":"","multimodal_data":["AAAA"]}"#.to_owned(),
        ),
        (
            Operation::NativeCompletion,
            r#""prompt":["a",{"multimodal_data":["AAAA"],"prompt_string":""}]"#.to_owned(),
        ),
        (Operation::NativeCompletion, r#""prompt":"","image_data":[{"data":"AAAA","id":1}]"#.to_owned()),
        (Operation::NativeEmbedding, r#""content":{"prompt_string":"","multimodal_data":["AAAA"]}"#.to_owned()),
    ]
}

#[test]
fn image_needs_vision_in_all_content() {
    for (operation, members) in with_images() {
        let (tokens, needs_vision) = figures(operation, &members);
        assert!(needs_vision, "{} {members}", operation.name());
        assert!((768..800).contains(&tokens), "{} {members}: {tokens}", operation.name());
    }
}

#[test]
fn text_about_images_needs_no_vision() {
    let text = r#"{\"type\":\"image_url\",\"image_url\":{}}"#;
    for (operation, members) in [
        (Operation::Chat, message(&format!("[{{\"type\":\"text\",\"text\":\"{text}\"}}]"))),
        (Operation::Chat, message(r#"[{"type":"text","text":"a","image_url":{"url":"x"}}]"#)),
        (Operation::Chat, message(r#"[{"image_url":null},{"image":""},{"video":7}]"#)),
        (Operation::Chat, message(r#"[{"type":"input_audio","image":"x"}]"#)),
        (
            Operation::Messages,
            message(
                r#"[{"type":"tool_use","name":"w","input":{"type":"image","image_url":{"url":"x"}}}]"#,
            ),
        ),
        (
            Operation::Messages,
            message(
                r#"[{"type":"document","title":"image","source":{"type":"text","data":"image_url"}}]"#,
            ),
        ),
        (
            Operation::Messages,
            message(r#"[{"type":"tool_result","content":[{"type":"text","text":"image"}]}]"#),
        ),
        (Operation::Rerank, r#""query":"q","documents":[{"text":"a","image":"a.png"}]"#.to_owned()),
        (Operation::NativeCompletion, r#""prompt":"a","image_data":[]"#.to_owned()),
        (Operation::NativeCompletion, r#""prompt":"a","image_data":null"#.to_owned()),
        (
            Operation::NativeCompletion,
            r#""prompt":{"prompt_string":"a","multimodal_data":[]}"#.to_owned(),
        ),
        (Operation::Completions, r#""prompt":"a","image_data":[{"data":"AAAA"}]"#.to_owned()),
    ] {
        assert!(!figures(operation, &members).1, "{} {members}", operation.name());
    }
}

#[test]
fn text_counts_in_all_content() {
    let text = format!("\"{}\"", "word ".repeat(8000));
    let result = |kind: &str, content: &str| {
        message(&format!(r#"[{{"type":"{kind}","tool_use_id":"t","content":{content}}}]"#))
    };
    let document = format!(
        r#"{{"type":"document","source":{{"type":"text","media_type":"text/plain","data":{text}}}}}"#
    );
    for (operation, members) in [
        (
            Operation::Messages,
            result(
                "bash_code_execution_tool_result",
                &format!(
                    r#"{{"type":"bash_code_execution_result","stdout":{text},"stderr":"","return_code":0,"content":[]}}"#
                ),
            ),
        ),
        (
            Operation::Messages,
            result(
                "text_editor_code_execution_tool_result",
                &format!(r#"{{"type":"text_editor_code_execution_view_result","content":{text}}}"#),
            ),
        ),
        (
            Operation::Messages,
            result(
                "web_fetch_tool_result",
                &format!(r#"{{"type":"web_fetch_result","url":"u","content":{document}}}"#),
            ),
        ),
        (
            Operation::Messages,
            result(
                "unheard_of_tool_result",
                &format!(r#"[{{"type":"unheard_of","content":{{"content":[{text}]}}}}]"#),
            ),
        ),
        (Operation::Messages, result("tool_result", &format!("[{document}]"))),
        (Operation::Chat, message(&format!("[{text}]"))),
        (Operation::Embeddings, message(&text)),
        (Operation::NativeCompletion, format!(r#""prompt":{{"prompt_string":{text}}}"#)),
        (Operation::NativeCompletion, format!(r#""prompt":[{{"prompt_string":{text}}}]"#)),
        (Operation::NativeEmbedding, format!(r#""content":[{text}]"#)),
        (Operation::Rerank, format!(r#""documents":[{{"content":{text}}}]"#)),
    ] {
        let tokens = figures(operation, &members).0;
        let shown = &members[..60.min(members.len())];
        assert!((10_000..10_060).contains(&tokens), "{} {shown}: {tokens}", operation.name());
    }
}

#[test]
fn documents_in_one_object_have_contexts_to_themselves() {
    let image = r#"{"type":"image_url","image_url":{"url":"x"}}"#;
    let body = |documents: String| {
        format!("{{\"model\":\"m\",\"text_1\":\"word\",\"text_2\":{documents}}}")
    };
    let several = body(format!("{{\"content\":[{image},{image},{image}]}}"));
    let profile = scan_as(Operation::Score, &several).unwrap();
    assert_eq!((profile.prompt_tokens.0, profile.context_tokens().0), (3 * 768 + 1, 769));
    let one = body(format!("[{{\"content\":[{image},{image}]}},\"word\"]"));
    let profile = scan_as(Operation::Score, &one).unwrap();
    assert_eq!((profile.prompt_tokens.0, profile.context_tokens().0), (2 * 768 + 2, 2 * 768 + 1));
}

#[test]
fn prompts_that_are_objects_are_prompts() {
    let body =
        r#"{"model":"m","n_predict":9,"prompt":[{"prompt_string":"a"},{"prompt_string":"b"},"c"]}"#;
    let profile = scan_as(Operation::NativeCompletion, body).unwrap();
    assert_eq!((profile.choices, profile.output_limit.unwrap().0), (3, 27));
}

#[test]
fn deeply_nested_content_is_weighed() {
    let mut content = r#""word word word word word word word word""#.to_owned();
    for _ in 0..40 {
        content = format!(r#"[{{"type":"x","content":{content}}}]"#);
    }
    assert!(figures(Operation::Chat, &message(&content)).0 >= 9);
}

#[test]
fn text_files_in_base64_count_their_text() {
    let data = "QUJDREVG".repeat(1000);
    let member =
        |kind: &str| format!(r#"{{"filename":"a.b","file_data":"data:{kind};base64,{data}"}}"#);
    let source = |members: &str| {
        message(&format!(r#"[{{"type":"document","source":{{{members},"data":"{data}"}}}}]"#))
    };
    let after = format!(
        r#"[{{"type":"document","source":{{"data":"{data}","media_type":"text/csv","type":"base64"}}}}]"#
    );
    for (operation, members) in [
        (
            Operation::Responses,
            format!(
                r#""input":[{{"content":[{{"type":"input_file","file_data":"data:text/plain;base64,{data}"}}]}}]"#
            ),
        ),
        (
            Operation::Chat,
            message(&format!(r#"[{{"type":"file","file":{}}}]"#, member("text/csv"))),
        ),
        (
            Operation::Chat,
            message(&format!(r#"[{{"type":"file","file":{}}}]"#, member("application/ld+json"))),
        ),
        (Operation::Messages, source(r#""type":"base64","media_type":"text/plain""#)),
        (Operation::Messages, message(&after)),
    ] {
        let (tokens, _) = figures(operation, &members);
        let shown = &members[..members.len().min(120)];
        assert!((1500..1540).contains(&tokens), "{} {shown}: {tokens}", operation.name());
    }
    let text = source(r#""type":"text","media_type":"text/plain""#);
    assert!(figures(Operation::Messages, &text).0 >= 2000, "a text is no base64");
}

#[test]
fn values_of_templates_and_variables_count_as_text() {
    let text = "some words ".repeat(400);
    let kwargs = |value: &str| format!("{},\"chat_template_kwargs\":{value}", message("\"\""));
    let variables = |value: &str| {
        format!(r#""input":"","prompt":{{"id":"p","variables":{{"a":{value}}},"version":"2"}}"#)
    };
    let text_part = format!(r#"{{"type":"input_text","text":"{text}"}}"#);
    for (operation, members, expected) in [
        (Operation::Chat, kwargs(&format!(r#"{{"context":"{text}"}}"#)), 1100),
        (Operation::Chat, kwargs(&format!(r#"{{"documents":[{{"text":"{text}"}}]}}"#)), 1104),
        (Operation::Chat, kwargs(r#"{"enable_thinking":false,"thinking_budget":1000}"#), 0),
        (Operation::Chat, kwargs("null"), 0),
        (Operation::Responses, variables(&format!("\"{text}\"")), 1100),
        (Operation::Responses, variables(&text_part), 1100),
        (Operation::Responses, variables("null"), 0),
        (Operation::Responses, r#""input":"","prompt":"p""#.to_owned(), 0),
    ] {
        let shown = &members[..members.len().min(90)];
        assert_eq!(figures(operation, &members), (expected, false), "{shown}");
    }
    let image = variables(r#"{"type":"input_image","image_url":"data:,x"}"#);
    assert_eq!(figures(Operation::Responses, &image), (768, true));
}
