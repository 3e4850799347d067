//! Tests the parts of a prompt that count in its length in addition to the text of its messages.

use penstock_api::Operation;
use proptest::prelude::*;

use super::super::TokenEstimate;
use super::oracle::bodies::{Json, Printer, a_value};
use super::{length, scan_as};

/// A text of 40,000 characters, about 10,000 tokens.
fn long() -> String {
    "word ".repeat(8000)
}

/// Returns both estimates for a body to which a model is added.
fn figures(operation: Operation, members: &str) -> (u32, u32) {
    let body = format!("{{\"model\":\"m\",{members}}}");
    let profile = scan_as(operation, &body).unwrap_or_else(|error| panic!("{error}: {body}"));
    (profile.estimated_tokens.0, profile.prompt_tokens.0)
}

#[test]
fn plain_text_has_one_length() {
    let word = "\"12345678\"";
    for (operation, members) in [
        (
            Operation::Chat,
            format!(r#""messages":[{{"role":"user","content":{word},"name":"bob"}}]"#),
        ),
        (
            Operation::Chat,
            format!(
                r#""messages":[{{"content":[{{"text":{word},"type":"text","cache_control":{{"type":"ephemeral"}}}}]}}]"#
            ),
        ),
        (Operation::Messages, format!(r#""system":{word},"messages":[]"#)),
        (
            Operation::Responses,
            format!(
                r#""input":[{{"type":"message","id":"msg_1","status":"completed","content":[{{"type":"output_text","text":{word},"annotations":[{{}}]}}]}}]"#
            ),
        ),
        (Operation::Completions, format!(r#""prompt":{word}"#)),
        (Operation::Completions, format!(r#""prompt":"","suffix":{word}"#)),
        (Operation::Embeddings, format!(r#""input":[{word}]"#)),
        (Operation::Rerank, format!(r#""query":"","documents":[{word},{{"text":""}}]"#)),
        (Operation::OllamaGenerate, format!(r#""prompt":{word},"context":[],"images":[]"#)),
        (
            Operation::Chat,
            format!(
                r#""messages":[{{"content":{word}}}],"response_format":{{"type":"json_object"}}"#
            ),
        ),
        (
            Operation::Chat,
            format!(r#""messages":[{{"content":{word},"tool_calls":null}}],"tools":null"#),
        ),
    ] {
        assert_eq!(figures(operation, &members), (2, 2), "{members}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of requests")]
fn arguments_and_results_of_tools_count_in_every_api() {
    let text = long();
    let json = serde_json::json!({"x": text}).to_string();
    let quoted = serde_json::Value::from(json.clone()).to_string();
    for (operation, members) in [
        (
            Operation::Chat,
            format!(r#""messages":[{{"role":"tool","tool_call_id":"c","content":"{text}"}}]"#),
        ),
        (
            Operation::Chat,
            format!(
                r#""messages":[{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function","function":{{"name":"w","arguments":{quoted}}}}}]}}]"#
            ),
        ),
        (
            Operation::Chat,
            format!(r#""messages":[{{"function_call":{{"name":"w","arguments":{quoted}}}}}]"#),
        ),
        (
            Operation::Messages,
            format!(
                r#""messages":[{{"content":[{{"type":"tool_result","tool_use_id":"t","content":"{text}"}}]}}]"#
            ),
        ),
        (
            Operation::Messages,
            format!(
                r#""messages":[{{"content":[{{"content":[{{"text":"{text}","type":"text"}}],"type":"tool_result"}}]}}]"#
            ),
        ),
        (
            Operation::Messages,
            format!(
                r#""messages":[{{"content":[{{"type":"tool_use","id":"t","name":"w","input":{json}}}]}}]"#
            ),
        ),
        (
            Operation::Responses,
            format!(r#""input":[{{"type":"function_call_output","output":"{text}"}}]"#),
        ),
        (
            Operation::Responses,
            format!(
                r#""input":[{{"type":"function_call_output","output":[{{"type":"input_text","text":"{text}"}}]}}]"#
            ),
        ),
        (
            Operation::Responses,
            format!(r#""input":[{{"type":"custom_tool_call_output","output":"{text}"}}]"#),
        ),
        (
            Operation::Responses,
            format!(r#""input":[{{"type":"custom_tool_call","input":"{text}"}}]"#),
        ),
        (
            Operation::Responses,
            format!(r#""input":[{{"type":"function_call","arguments":{quoted}}}]"#),
        ),
        (
            Operation::Responses,
            format!(r#""input":[{{"type":"mcp_call","arguments":"{{}}","output":"{text}"}}]"#),
        ),
        (
            Operation::OllamaChat,
            format!(
                r#""messages":[{{"tool_calls":[{{"function":{{"name":"w","arguments":{json}}}}}]}}]"#
            ),
        ),
    ] {
        let (estimated, prompt) = figures(operation, &members);
        let shown = &members[..60];
        assert!((10_000..10_010).contains(&estimated), "{shown}: {estimated}");
        assert!((estimated..estimated + 20).contains(&prompt), "{shown}: {prompt}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of requests")]
fn what_an_engine_reads_beside_the_conversation_counts_in_the_prompt_alone() {
    let text = long();
    let schema = format!(r#"{{"type":"object","description":"{text}"}}"#);
    for (operation, members) in [
        (
            Operation::Chat,
            format!(
                r#""tools":[{{"type":"function","function":{{"name":"w","parameters":{schema}}}}}]"#
            ),
        ),
        (Operation::Chat, format!(r#""functions":[{{"name":"w","parameters":{schema}}}]"#)),
        (Operation::Messages, format!(r#""tools":[{{"name":"w","input_schema":{schema}}}]"#)),
        (
            Operation::Responses,
            format!(
                r#""tools":[{{"type":"namespace","name":"n","tools":[{{"type":"function","description":"{text}"}}]}}]"#
            ),
        ),
        (Operation::OllamaChat, format!(r#""tools":[{{"function":{{"description":"{text}"}}}}]"#)),
        (
            Operation::Chat,
            format!(
                r#""response_format":{{"type":"json_schema","json_schema":{{"name":"n","schema":{schema}}}}}"#
            ),
        ),
        (
            Operation::Responses,
            format!(r#""text":{{"format":{{"type":"json_schema","schema":{schema}}}}}"#),
        ),
        (
            Operation::Messages,
            format!(r#""output_format":{{"type":"json_schema","schema":{schema}}}"#),
        ),
        (Operation::OllamaChat, format!(r#""format":{schema}"#)),
        (Operation::Chat, format!(r#""documents":[{{"text":"{text}"}}]"#)),
        (Operation::Chat, format!(r#""messages":[{{"content":"","reasoning_content":"{text}"}}]"#)),
        (Operation::OllamaChat, format!(r#""messages":[{{"content":"","thinking":"{text}"}}]"#)),
        (
            Operation::Messages,
            format!(
                r#""messages":[{{"content":[{{"type":"thinking","thinking":"{text}","signature":"{text}"}}]}}]"#
            ),
        ),
        (
            Operation::Responses,
            format!(
                r#""input":[{{"type":"reasoning","summary":[{{"type":"summary_text","text":"{text}"}}],"encrypted_content":"{text}"}}]"#
            ),
        ),
        (
            Operation::Messages,
            format!(
                r#""messages":[{{"content":[{{"type":"document","source":{{"type":"text","data":"{text}"}}}}]}}]"#
            ),
        ),
        (
            Operation::Responses,
            format!(
                r#""input":[{{"type":"shell_call_output","output":[{{"stdout":"{text}","stderr":""}}]}}]"#
            ),
        ),
    ] {
        let (estimated, prompt) = figures(operation, &members);
        let shown = &members[..60];
        assert_eq!(estimated, 0, "{shown}");
        assert!((10_000..10_030).contains(&prompt), "{shown}: {prompt}");
    }
}

#[test]
fn images_and_files_count_by_number_and_not_by_their_bytes() {
    let data = "iVBORw0KGgoAAAANSUhEUgAAA+/8".repeat(4000);
    for (operation, members) in [
        (
            Operation::Chat,
            format!(r#""messages":[{{"content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]}}]"#),
        ),
        (Operation::Chat, r#""messages":[{"content":[{"type":"image_url","image_url":{"url":"https://a.b/c"}}]}]"#.to_owned()),
        (
            Operation::Chat,
            format!(r#""messages":[{{"content":[{{"type":"input_audio","input_audio":{{"data":"{data}","format":"wav"}}}}]}}]"#),
        ),
        (
            Operation::Chat,
            format!(r#""messages":[{{"content":[{{"type":"file","file":{{"filename":"a.pdf","file_data":"data:application/pdf;base64,{data}"}}}}]}}]"#),
        ),
        (
            Operation::Messages,
            format!(r#""messages":[{{"content":[{{"type":"image","source":{{"type":"base64","data":"{data}"}}}}]}}]"#),
        ),
        (
            Operation::Messages,
            format!(r#""messages":[{{"content":[{{"type":"tool_result","content":[{{"type":"image","source":{{"data":"{data}"}}}}]}}]}}]"#),
        ),
        (
            Operation::Messages,
            format!(r#""messages":[{{"content":[{{"type":"document","source":{{"type":"base64","media_type":"application/pdf","data":"{data}"}}}}]}}]"#),
        ),
        (Operation::Responses, format!(r#""input":[{{"content":[{{"type":"input_image","image_url":"data:,{data}"}}]}}]"#)),
        (
            Operation::Responses,
            format!(r#""input":[{{"type":"computer_call_output","output":{{"type":"computer_screenshot","image_url":"data:,{data}"}}}}]"#),
        ),
        (
            Operation::Responses,
            format!(r#""input":[{{"type":"function_call_output","output":[{{"type":"input_image","image_url":"data:,{data}"}}]}}]"#),
        ),
        (Operation::OllamaChat, format!(r#""messages":[{{"content":"","images":["{data}"]}}]"#)),
        (Operation::OllamaGenerate, r#""prompt":"","images":["aGk="]"#.to_owned()),
    ] {
        let (estimated, prompt) = figures(operation, &members);
        let shown = &members[..members.len().min(90)];
        assert_eq!(estimated, 0, "{shown}");
        assert!((768..808).contains(&prompt), "{shown}: {prompt}");
    }
    let two = r#""messages":[{"content":"","images":["aGk=","aGk="]}]"#;
    assert_eq!(figures(Operation::OllamaChat, two), (0, 1_536));
}

#[test]
fn base64_that_a_tool_is_called_with_is_text() {
    let data = "iVBORw0KGgoAAAANSUhEUgAAA+/8".repeat(1000);
    let members = format!(
        r#""messages":[{{"content":[{{"type":"tool_use","name":"write","input":{{"content":"{data}"}}}}]}}]"#
    );
    assert!(figures(Operation::Messages, &members).1 >= 7_000);
    let tools = format!(r#""tools":[{{"description":"{data}"}}]"#);
    assert!(figures(Operation::Chat, &tools).1 >= 7_000, "no way around a limit of tokens");
}

#[test]
fn the_last_definition_counts() {
    let text = long();
    let members = format!(r#""tools":[{{"description":"{text}"}}],"tools":[]"#);
    assert_eq!(figures(Operation::Chat, &members).1, 0);
}

/// Returns the length of JSON, found by a walk over its tree.
fn json_length(json: &Json, estimate: TokenEstimate) -> usize {
    match json {
        Json::Text(text) => length(text, estimate) + 6,
        Json::Number(number) => number.len() + 6,
        Json::Literal(literal) => literal.len() + 6,
        Json::Array(elements) => elements.iter().map(|one| json_length(one, estimate)).sum(),
        Json::Object(members) => members
            .iter()
            .map(|(name, value)| length(name, estimate) + 6 + json_length(value, estimate))
            .sum(),
    }
}

proptest! {
    #[test]
    fn tools_have_the_length_that_a_walk_over_them_finds(
        value in a_value(), dice: u64, estimate in prop::sample::select(&TokenEstimate::ALL),
    ) {
        let tools = Json::Array(vec![value]);
        let expected = json_length(&tools, estimate) / 4;
        let body = format!(r#"{{"model":"m","tools":{}}}"#, Printer::print(&tools, dice));
        let options = super::super::ScanOptions { estimate, ..Default::default() };
        let profile = super::super::scan(Operation::Chat, None, body.as_bytes(), options).unwrap();
        if !super::is_measured(&body, estimate) {
            prop_assert_eq!(profile.prompt_tokens.0 as usize, expected, "{}", body);
        }
        prop_assert_eq!(profile.estimated_tokens.0, 0);
    }
}
