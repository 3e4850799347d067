//! Tests which whole responses are results, and which of those are empty.

use super::*;

fn assert_all(operation: Operation, expected: WholeResult, bodies: &[&str]) {
    for body in bodies {
        let read = WholeResult::read(operation, body.as_bytes());
        assert_eq!(read, expected, "{} {body}", operation.name());
    }
}

#[test]
fn json_of_another_form_passes_unless_it_is_cut_off() {
    let others = [r#"{"ok":true}"#, r#"{"id":"x","object":"chat.completion","created":1}"#];
    for operation in [
        Operation::Chat,
        Operation::Completions,
        Operation::Responses,
        Operation::Messages,
        Operation::OllamaChat,
        Operation::OllamaGenerate,
        Operation::NativeCompletion,
        Operation::Embeddings,
        Operation::OllamaEmbed,
        Operation::Rerank,
        Operation::Moderations,
    ] {
        assert_all(operation, WholeResult::Filled, &others);
        assert_all(operation, WholeResult::Missing, &[r#"{"x":1"#]);
    }
    for operation in [Operation::Tokenize, Operation::CountTokens, Operation::Passthrough] {
        assert_all(operation, WholeResult::Filled, &others);
    }
    let list = r#"[{"error":{"code":500,"message":"x"}}]"#;
    assert_all(Operation::Chat, WholeResult::Missing, &[list]);
    assert_all(Operation::Chat, WholeResult::Filled, &[r#"["a"]"#, r#"[{"backend":"a"}]"#]);
    assert_all(Operation::Rerank, WholeResult::Filled, &[r#"[{"index":0,"score":1}]"#]);
}

#[test]
fn completion_without_output_is_empty() {
    assert_all(
        Operation::Chat,
        WholeResult::Missing,
        &[
            r#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"he"#,
            r#"{"id":"x","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop""#,
        ],
    );
    let empty = [
        r#"{"id":"x","choices":[],"usage":{"completion_tokens":0}}"#,
        r#"{"id":"x","choices":null}"#,
        r#"{"id":"x","choices":[null]}"#,
        r#"{"choices":[{"message":{"role":"assistant","content":""},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"message":{"content":null,"tool_calls":[],"refusal":null}}]}"#,
        r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"t","function":{"name":"","arguments":""}}]}}]}"#,
        r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
        r#"{"choices":[{"index":0,"message":null,"content_filter_results":{"hate":{}}}]}"#,
    ];
    assert_all(Operation::Chat, WholeResult::Empty, &empty);
    assert_all(Operation::FillInTheMiddle, WholeResult::Filled, &empty);
    assert_all(
        Operation::Chat,
        WholeResult::Filled,
        &[
            r#"{"choices":[{"message":{"content":"a"}}]}"#,
            r#"{"choices":[{"message":{"content":""}},{"message":{"content":"a"}}]}"#,
            r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"t"}]}}]}"#,
            r#"{"choices":[{"message":{"content":"","reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"message":{"content":null,"audio":{"data":"AA"}}}]}"#,
            r#"{"choices":[{"message":{"content":"","images":[{"type":"image_url"}]}}]}"#,
            r#"{"choices":[{"message":{"content":null,"refusal":"no"}}]}"#,
            r#"{"choices":[{"text":"a","logprobs":{"x":-Infinity}}]}"#,
        ],
    );
}

#[test]
fn messages_and_responses_have_items() {
    let of = |expected, bodies: &[&str]| assert_all(Operation::Messages, expected, bodies);
    of(
        WholeResult::Empty,
        &[
            r#"{"type":"message","content":null}"#,
            r#"{"type":"message","content":[],"stop_reason":"end_turn"}"#,
            r#"{"content":[{"type":"text","text":""}]}"#,
        ],
    );
    of(
        WholeResult::Filled,
        &[
            r#"{"content":[{"type":"text","text":"a"}]}"#,
            r#"{"content":[{"type":"tool_use","name":"f","input":{}}]}"#,
            r#"{"content":[{"type":"redacted_thinking","data":"x"}]}"#,
        ],
    );
    let of = |expected, bodies: &[&str]| assert_all(Operation::Responses, expected, bodies);
    of(
        WholeResult::Empty,
        &[
            r#"{"id":"r","status":"completed","output":[]}"#,
            r#"{"output":[{"type":"message","content":[{"type":"output_text","text":""}]}]}"#,
        ],
    );
    of(
        WholeResult::Filled,
        &[
            r#"{"id":"r","status":"queued","output":[]}"#,
            r#"{"id":"r","status":"cancelled","output":[]}"#,
            r#"{"id":"r","status":"in_progress"}"#,
            r#"{"output":[{"type":"function_call","name":"f"}],"status":"completed"}"#,
            r#"{"output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}]}"#,
            r#"{"output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}"#,
        ],
    );
}

#[test]
fn native_apis_have_their_own_forms() {
    let of = |expected, bodies: &[&str]| assert_all(Operation::OllamaChat, expected, bodies);
    of(
        WholeResult::Missing,
        &[
            r#"{"message":{"role":"assistant","content":"a"},"done":false}"#,
            r#"{"message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}"#,
        ],
    );
    of(
        WholeResult::Empty,
        &[r#"{"message":{"role":"assistant","content":""},"done":true,"eval_count":0}"#],
    );
    of(
        WholeResult::Filled,
        &[
            r#"{"message":{"content":"","thinking":"hm"},"done":true}"#,
            r#"{"message":{"content":"","tool_calls":[{}]},"done":true}"#,
            "{\"message\":{\"content\":\"a\"},\"done\":false}\n{\"done\":true}",
        ],
    );
    assert_all(Operation::OllamaGenerate, WholeResult::Filled, &[r#"{"response":"a"}"#]);
    assert_all(Operation::OllamaGenerate, WholeResult::Empty, &[r#"{"response":""}"#]);
    let text = [r#"{"content":"","stop":true}"#];
    assert_all(Operation::NativeCompletion, WholeResult::Empty, &text);
    assert_all(Operation::Infill, WholeResult::Filled, &text);
    assert_all(Operation::NativeCompletion, WholeResult::Filled, &[r#"[{"content":"a"}]"#]);
}

#[test]
fn vectors_and_ranks_are_output() {
    let of = |expected, bodies: &[&str]| assert_all(Operation::Embeddings, expected, bodies);
    of(WholeResult::Missing, &[r#"{"data":[{"embedding":[NaN,NaN]}]}"#]);
    of(
        WholeResult::Empty,
        &[
            r#"{"data":null}"#,
            r#"{"object":"list","data":[],"usage":{"total_tokens":0}}"#,
            r#"{"data":[{"embedding":[]}]}"#,
            r#"{"data":[{"embedding":[null,null]}]}"#,
            r#"{"data":[{"embedding":""}]}"#,
        ],
    );
    of(
        WholeResult::Filled,
        &[
            r#"{"data":[{"embedding":[-0.1,0.2]}]}"#,
            r#"{"data":[{"index":0,"embedding":"AACAPw=="}]}"#,
            r#"{"data":[{"embedding":[[0.1],[0.2]]}]}"#,
            r#"{"embedding":[0.1]}"#,
            r#"{"embeddings":[[0.1]]}"#,
        ],
    );
    let of = |expected, bodies: &[&str]| assert_all(Operation::Rerank, expected, bodies);
    of(WholeResult::Empty, &[r#"{"id":"r","results":[],"usage":{"total_tokens":3}}"#]);
    of(
        WholeResult::Filled,
        &[r#"{"results":[{"index":0}]}"#, r#"{"scores":[0.5]}"#, r#"{"score":0.5}"#],
    );
}

#[test]
fn transcripts_and_pictures_may_be_empty() {
    let of = |expected, bodies: &[&str]| assert_all(Operation::Transcriptions, expected, bodies);
    of(WholeResult::Empty, &["", " \n", r#"{"text":""}"#, r#"{"text":"","segments":[]}"#]);
    of(WholeResult::Missing, &[r#"{"text":"a"#, r#"[{"error":{"message":"x"}}]"#]);
    of(
        WholeResult::Filled,
        &["[Music] hello", r"{\an8}hello", "WEBVTT\n", r#"{"text":"a"}"#, r#"{"id":"x"}"#],
    );
    let of = |expected, bodies: &[&str]| assert_all(Operation::ImageEdits, expected, bodies);
    of(WholeResult::Empty, &[r#"{"created":1,"data":[]}"#]);
    of(WholeResult::Filled, &[r#"{"data":[{"url":"x"}]}"#, r#"{"created":1}"#]);
}

#[test]
fn withheld_output_is_no_empty_result() {
    let message = r#"{"choices":[{"message":{"content":null,"refusal":null},"finish_reason":"#;
    let of = |reason: &str| format!("{message}\"{reason}\"}}]}}");
    assert_all(Operation::Chat, WholeResult::Filled, &[&of("content_filter")]);
    assert_all(Operation::Chat, WholeResult::Empty, &[&of("stop")]);
    let of = |reason: &str| format!(r#"{{"content":[],"stop_reason": "{reason}","usage":{{}}}}"#);
    assert_all(Operation::Messages, WholeResult::Filled, &[&of("refusal"), &of("pause_turn")]);
    assert_all(Operation::Messages, WholeResult::Empty, &[&of("end_turn")]);
    let incomplete =
        r#"{"status":"incomplete","incomplete_details":{"reason":"content_filter"},"output":[]}"#;
    assert_all(Operation::Responses, WholeResult::Filled, &[incomplete]);
}

#[test]
fn numbers_of_python_are_no_fault() {
    let logprobs = r#"{"choices":[{"logprobs":{"content":[{"logprob":-Infinity}]},"message":{"content":"a"}}]}"#;
    let before = r#"{"prompt_logprobs":[null,{"1":{"logprob":NaN}}],"choices":[{"message":{"content":"a"}}]}"#;
    assert_all(Operation::Chat, WholeResult::Filled, &[logprobs, before]);
    assert_all(
        Operation::Chat,
        WholeResult::Empty,
        &[r#"{"choices":[],"timings":{"n":Infinity}}"#],
    );
    assert_all(Operation::Chat, WholeResult::Missing, &[r#"{"x":Nan,"choices":[]}"#]);
    assert_all(Operation::Classify, WholeResult::Filled, &[r#"{"data":[{"probs":[NaN,0.1]}]}"#]);
    let vector = r#"{"usage":{"x":NaN},"data":[{"embedding":[0.5]}]}"#;
    assert_all(Operation::Embeddings, WholeResult::Filled, &[vector]);
    assert_all(Operation::Embeddings, WholeResult::Missing, &[r#"{"data":[{"embedding":[NaN]}]}"#]);
}

#[test]
fn white_space_is_no_output_where_text_is_expected() {
    let chat = r#"{"choices":[{"message":{"role":"assistant","content":" \n\u0020"}}]}"#;
    assert_all(Operation::Chat, WholeResult::Empty, &[chat]);
    assert_all(Operation::FillInTheMiddle, WholeResult::Filled, &[chat]);
    let text = r#"{"choices":[{"text":"\n","finish_reason":"stop"}]}"#;
    assert_all(Operation::Completions, WholeResult::Filled, &[text]);
    assert_all(Operation::NativeCompletion, WholeResult::Filled, &[r#"{"content":" "}"#]);
    assert_all(
        Operation::Chat,
        WholeResult::Filled,
        &[
            r#"{"choices":[{"message":{"content":"\n\na"}}]}"#,
            r#"{"choices":[{"message":{"content":" ","tool_calls":[{"id":"t"}]}}]}"#,
            r#"{"choices":[{"message":{"content":" ","reasoning_content":"hm"}}]}"#,
        ],
    );
    let blocks = r#"{"content":[{"type":"text","text":"\t"}]}"#;
    assert_all(Operation::Messages, WholeResult::Empty, &[blocks]);
    let items = r#"{"output":[{"type":"message","content":[{"type":"output_text","text":" "}]}]}"#;
    assert_all(Operation::Responses, WholeResult::Empty, &[items]);
    let message = r#"{"message":{"role":"assistant","content":"\n"},"done":true}"#;
    assert_all(Operation::OllamaChat, WholeResult::Empty, &[message]);
    assert_all(Operation::OllamaGenerate, WholeResult::Filled, &[r#"{"response":"\r\n"}"#]);
    assert_all(Operation::OllamaGenerate, WholeResult::Empty, &[r#"{"response":""}"#]);
}

#[test]
fn white_space_that_was_cut_short_is_output() {
    for (operation, body) in [
        (Operation::Chat, r#"{"choices":[{"message":{"content":"\n"},"finish_reason":"length"}]}"#),
        (
            Operation::Messages,
            r#"{"content":[{"type":"text","text":" "}],"stop_reason": "max_tokens"}"#,
        ),
        (
            Operation::Messages,
            r#"{"content":[{"type":"text","text":" "}],"stop_reason":"stop_sequence"}"#,
        ),
        (
            Operation::Responses,
            r#"{"status":"incomplete","output":[{"type":"message","content":[{"type":"output_text","text":" "}]}]}"#,
        ),
    ] {
        assert_all(operation, WholeResult::Filled, &[body]);
    }
    let ended =
        r#"{"content":[{"type":"text","text":" "}],"stop_reason":"end_turn","stop_sequence":null}"#;
    assert_all(Operation::Messages, WholeResult::Empty, &[ended]);
}
