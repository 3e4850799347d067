//! Tests the refusals of engines and hosted APIs, and errors that are none.

use serde_json::json;

use super::*;

fn refusal(prompt: u32, limit: u32, output: u32) -> ContextRefusal {
    ContextRefusal { prompt: Some(prompt), limit: Some(limit), output }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table with the words of each engine")]
fn refusals_of_engines_are_read() {
    for (text, expected) in [
        (
            "This model's maximum context length is 4096 tokens. However, you requested 4200 tokens \
             (3700 in the messages, 500 in the completion). Please reduce the length of the messages or completion.",
            refusal(3700, 4096, 500),
        ),
        (
            "This model's maximum context length is 32768 tokens. However, your request has 33000 input tokens. \
             Please reduce the length of the input messages.",
            refusal(33000, 32768, 0),
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 512 output tokens and your \
             prompt contains at least 3585 input tokens, for a total of at least 4097 tokens.",
            refusal(3585, 4096, 512),
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 4096 \
             tokens and your request has 3800 input tokens (500 > 4096 - 3800).",
            refusal(3800, 4096, 500),
        ),
        (
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that",
            refusal(5000, 4096, 0),
        ),
        (
            "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
            refusal(5000, 4096, 0),
        ),
        (
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of \
             5000 tokens: 4500 tokens from the input messages and 500 tokens for the completion.",
            refusal(4500, 4096, 500),
        ),
        (
            "This model's maximum context length is 4097 tokens. However, your messages resulted in 5000 tokens.",
            refusal(5000, 4097, 0),
        ),
        ("prompt is too long: 205678 tokens > 200000 maximum", refusal(205_678, 200_000, 0)),
        (
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
            refusal(190_000, 200_000, 20_000),
        ),
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens and \
             20 `max_new_tokens`",
            refusal(9000, 8192, 20),
        ),
        (
            "Input validation error: `inputs` must have less than 8191 tokens. Given: 9000",
            refusal(9000, 8191, 0),
        ),
        (
            "The sum of prompt length (9351.0), query length (0) should not exceed max_num_tokens (8192)",
            refusal(9351, 8192, 0),
        ),
        (
            "The sum of prompt length (8000.0) and query length (0) max_tokens (500) should not exceed max_seq_len (8192)",
            refusal(8000, 8192, 500),
        ),
        ("Prompt length (9000) exceeds maximum input length (8192).", refusal(9000, 8192, 0)),
        (
            "Too many input tokens. Max input tokens: 8192, request input token count: 9279 ",
            refusal(9279, 8192, 0),
        ),
        (
            "too many tokens: total number of tokens in the prompt cannot exceed 128000 - received 150000.",
            refusal(150_000, 128_000, 0),
        ),
        (
            "too many tokens: size limit exceeded by 1234 tokens. Try using shorter or fewer inputs.",
            ContextRefusal::default(),
        ),
        ("Input is too long for requested model.", ContextRefusal::default()),
        (
            "the input length exceeds the context length",
            ContextRefusal { prompt: None, limit: None, output: 0 },
        ),
    ] {
        for body in [
            json!({"error": {"message": text, "code": 400}}),
            json!({"error": text}),
            json!({"object": "error", "message": text}),
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": text}}),
        ] {
            assert_eq!(read_refusal(body.to_string().as_bytes()), Some(expected), "{body}");
        }
    }
    let structured = br#"{"error":{"code":400,"message":"request (8016 tokens) exceeds the available context size (512 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":8016,"n_ctx":512}}"#;
    assert_eq!(read_refusal(structured), Some(refusal(8016, 512, 0)));
    let reworded = br#"{"error":{"code":400,"message":"too much","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}"#;
    assert_eq!(read_refusal(reworded), Some(refusal(9, 8, 0)), "fields count, whatever the words");
    for other in [
        r#"{"error":{"message":"temperature must be at most 2"}}"#,
        r#"{"error":{"message":"request (12 tokens) is odd"}}"#,
        r#"{"error":"Input validation error: `max_new_tokens` must be <= 4096. Given: 9000"}"#,
        r#"{"error":"Input validation error: `max_new_tokens` must be strictly positive"}"#,
        r#"{"error":{"message":"max_tokens (9000) exceeds maximum output length (8192)"}}"#,
        r#"{"message":"Too many tokens, please wait before trying again."}"#,
        r#"{"message":"too many tokens per minute: limit 6000, requested 200"}"#,
        r#"{"message":"max_tokens must be less than or equal to 4096"}"#,
        r#"{"error":"`inputs` must have less than 100 characters"}"#,
        r#"{"error":"system prompt length (2000) exceeds the limit of 1000 characters"}"#,
        "",
        "not json",
    ] {
        assert_eq!(read_refusal(other.as_bytes()), None, "{other}");
    }
}
