//! Tests of lists of prompts: all of them are work, but each has a context to itself.

use penstock_api::Operation;

use super::scan_as;

/// Returns the tokens of a prompt in all, and those that one context must hold.
fn figures(operation: Operation, members: &str) -> (u32, u32) {
    let body = format!("{{\"model\":\"m\",{members}}}");
    let profile = scan_as(operation, &body).unwrap_or_else(|error| panic!("{error}: {body}"));
    (profile.prompt_tokens.0, profile.context_tokens().0)
}

/// A string of `count` tokens.
fn text(count: usize) -> String {
    format!("\"{}\"", "word".repeat(count))
}

#[test]
fn longest_prompt_of_a_list_decides() {
    let texts = format!("[{},{},{}]", text(10), text(70), text(20));
    for (operation, member) in [
        (Operation::Embeddings, "input"),
        (Operation::Completions, "prompt"),
        (Operation::NativeCompletion, "prompt"),
        (Operation::NativeEmbedding, "content"),
        (Operation::Classify, "input"),
        (Operation::Pooling, "input"),
        (Operation::Moderations, "input"),
        (Operation::OllamaEmbed, "input"),
        (Operation::Rerank, "documents"),
        (Operation::Rerank, "texts"),
        (Operation::Score, "text_2"),
    ] {
        let members = format!("\"{member}\":{texts}");
        assert_eq!(figures(operation, &members), (100, 70), "{} {member}", operation.name());
        let one = format!("\"{member}\":{}", text(100));
        assert_eq!(figures(operation, &one), (100, 100), "{} {member}", operation.name());
    }
}

#[test]
fn query_shares_the_context_of_each_document() {
    let documents = format!("[{},{{\"text\":{}}}]", text(70), text(20));
    let both = |operation, query, documents_name| {
        figures(operation, &format!("\"{query}\":{},\"{documents_name}\":{documents}", text(10)))
    };
    assert_eq!(both(Operation::Rerank, "query", "documents"), (100, 80));
    assert_eq!(both(Operation::Rerank, "query", "texts"), (100, 80));
    assert_eq!(both(Operation::Score, "text_1", "text_2"), (100, 80));
    let pairs = format!("\"text_1\":[{0},{1}],\"text_2\":[{1},{0}]", text(20), text(70));
    assert_eq!(figures(Operation::Score, &pairs), (180, 140), "at most");
}

#[test]
fn token_ids_are_one_prompt_and_lists_of_them_several() {
    let ids = |count: usize| format!("[{}]", vec!["17"; count].join(","));
    for (input, expected) in [
        (ids(30), (30, 30)),
        (format!("[{},{},{}]", ids(10), ids(30), ids(20)), (60, 30)),
        (format!("[{},{}]", text(10), ids(30)), (40, 30)),
        (format!("[12,{},34,{}]", text(10), text(20)), (32, 32)),
        (format!("[{},12]", text(10)), (11, 11)),
        (format!("[[12,{},34],{}]", text(10), text(5)), (17, 12)),
        ("[]".to_owned(), (0, 0)),
        ("[[],[]]".to_owned(), (0, 0)),
    ] {
        for (operation, member) in
            [(Operation::NativeCompletion, "prompt"), (Operation::Embeddings, "input")]
        {
            assert_eq!(figures(operation, &format!("\"{member}\":{input}")), expected, "{input}");
        }
    }
    let mixed = format!("{{\"model\":\"m\",\"prompt\":[12,{},{}]}}", text(1), text(1));
    assert_eq!(scan_as(Operation::NativeCompletion, &mixed).unwrap().choices, 1);
}

#[test]
fn parts_of_one_prompt_share_its_context() {
    let files = format!("[{{\"text\":{}}},{{\"text\":{}}}]", text(20), text(30));
    let infill = format!(
        "\"input_extra\":{files},\"input_prefix\":{},\"input_suffix\":{}",
        text(5),
        text(5)
    );
    assert_eq!(figures(Operation::Infill, &infill), (60, 60));
    let messages = format!("\"messages\":[{{\"content\":{0}}},{{\"content\":{0}}}]", text(20));
    assert_eq!(figures(Operation::Chat, &messages), (40, 40));
    assert_eq!(figures(Operation::Pooling, &messages), (40, 40));
    let earlier = format!("\"prompt\":{},\"context\":[1,2,3]", text(20));
    assert_eq!(figures(Operation::OllamaGenerate, &earlier), (23, 23));
}

#[test]
fn operation_without_a_model_run_fits_every_context() {
    let (all, longest) = figures(Operation::Tokenize, &format!("\"prompt\":{}", text(100)));
    assert_eq!((all, longest), (100, 0));
}

#[test]
fn engine_may_cut_prompts_where_the_client_allows_it() {
    let cut = |operation, members: &str| {
        let body = format!("{{\"model\":\"m\"{members}}}");
        scan_as(operation, &body).unwrap().cut_to.map(|length| length.0)
    };
    for (members, expected) in [
        ("", None),
        (r#","truncate_prompt_tokens":512"#, Some(512)),
        (r#","truncate_prompt_tokens":-1"#, Some(0)),
        (r#","truncate_prompt_tokens":null"#, None),
        (r#","truncate_prompt_tokens":0"#, None),
        (r#","truncate_prompt_tokens":"512""#, None),
        (r#","truncate":true"#, Some(0)),
        (r#","truncate":"END""#, Some(0)),
        (r#","truncate":"NONE""#, None),
        (r#","truncate":false"#, None),
        (r#","truncate":null"#, None),
        (r#","truncate":true,"truncate_prompt_tokens":9"#, Some(9)),
        (r#","truncate":true,"truncate":false"#, None),
    ] {
        for operation in [Operation::Embeddings, Operation::Rerank, Operation::Classify] {
            assert_eq!(cut(operation, members), expected, "{members}");
        }
    }
    for operation in [Operation::OllamaEmbed, Operation::OllamaEmbeddings] {
        for (members, expected) in [
            ("", Some(0)),
            (r#","truncate":true"#, Some(0)),
            (r#","truncate":null"#, Some(0)),
            (r#","truncate":false"#, None),
            (r#","truncate_prompt_tokens":9"#, Some(0)),
        ] {
            assert_eq!(cut(operation, members), expected, "{members}");
        }
    }
    assert_eq!(cut(Operation::Completions, r#","truncate_prompt_tokens":9"#), Some(9));
    for operation in [Operation::Chat, Operation::OllamaChat, Operation::OllamaGenerate] {
        assert_eq!(cut(operation, r#","truncate":true"#), None, "{}", operation.name());
    }
}
