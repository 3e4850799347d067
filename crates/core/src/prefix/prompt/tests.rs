//! Tests of prompts cut into blocks: `max_blocks` cuts the chain and nothing else, in every layout.

use penstock_api::Operation;
use penstock_scan::{ScanOptions, scan};
use penstock_scoring::PrefixParams;
use proptest::prelude::*;

use super::prompt_chain;
use crate::prefix::Chain;

/// Raw text: plain, in several scripts, and with every kind of escape.
const TEXTS: [&str; 10] =
    ["a", "some words ", r"\n", r"\u00e9", "é", r"\ud83d\ude00", r#"\""#, r"\\", r"\/", r"\u0041"];

fn body(messages: &[String]) -> String {
    let messages: Vec<String> = messages
        .iter()
        .map(|content| format!(r#"{{"role":"user","content":"{content}"}}"#))
        .collect();
    format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","))
}

fn chain_of(operation: Operation, body: &str, model: &str, params: PrefixParams) -> Chain {
    let request = scan(operation, None, body.as_bytes(), ScanOptions::default()).unwrap();
    let mut chain = Chain::default();
    prompt_chain(&request, body.as_bytes(), model, params, &mut chain);
    chain
}

fn message() -> impl Strategy<Value = String> {
    let part = (prop::sample::select(&TEXTS[..]), 1_usize..400);
    prop::collection::vec(part, 0..6)
        .prop_map(|parts| parts.iter().map(|(text, times)| text.repeat(*times)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn max_blocks_truncates_the_chain(
        conversation in prop::collection::vec(message(), 1..5),
        max_blocks in 1_u32..200,
    ) {
        let body = body(&conversation);
        for block_tokens in [1, 14, 16, 33, 64, 256] {
            let all = PrefixParams { block_tokens, max_blocks: u32::MAX, ..PrefixParams::default() };
            let whole = chain_of(Operation::Chat, &body, "m", all);
            let few = chain_of(Operation::Chat, &body, "m", PrefixParams { max_blocks, ..all });
            let most = whole.hashes().len().min(max_blocks as usize);
            prop_assert_eq!(few.hashes(), &whole.hashes()[..most]);
            let other = chain_of(Operation::Chat, &body, "n", all);
            prop_assert!(whole.first() != other.first(), "models share no blocks");
        }
    }
}

#[test]
fn salts_models_and_tools_share_no_blocks() {
    let text = "word ".repeat(200);
    let body = |more: &str| {
        format!(r#"{{"model":"m",{more}"messages":[{{"role":"user","content":"{text}"}}]}}"#)
    };
    let blocks = |more: &str, model: &str| {
        chain_of(Operation::Chat, &body(more), model, PrefixParams::default()).hashes().to_vec()
    };
    let plain = blocks("", "m");
    assert!(plain.len() > 10 && plain == blocks("", "m"));
    let salted = blocks(r#""cache_salt":"tenant-1","#, "m");
    assert_eq!(salted, blocks(r#""cache_salt":"tenant-1","#, "m"), "the same tenant shares");
    let tools = r#""tools":[{"type":"function","function":{"name":"f"}}],"#;
    for (other, why) in [
        (salted, "a salt"),
        (blocks(r#""cache_salt":"tenant-2","#, "m"), "another salt"),
        (blocks("", "n"), "another model"),
        (blocks(tools, "m"), "tools"),
    ] {
        let shared = plain.iter().filter(|hash| other.contains(hash)).count();
        assert_eq!(shared, 0, "{why} changes every block");
    }
    let [one, two] = [1, 2].map(|n| blocks(&format!(r#""cache_salt":"tenant-{n}","#), "m"));
    assert_ne!(one[0], two[0], "tenants share no blocks");
}

#[test]
fn max_blocks_truncates_in_every_layout() {
    let text = "of all that there is to say, ".repeat(700);
    let part = format!(r#"{{"type":"text","text":"{text}"}}"#);
    let messages = format!(
        r#"[{{"role":"user","content":[{part},{part}]}},{{"content":"{text}","role":"user","name":"n"}}]"#
    );
    let tool = format!(r#"{{"type":"function","function":{{"name":"f","description":"{text}"}}}}"#);
    let bodies = [
        (Operation::Chat, format!(r#"{{"model":"m","messages":{messages}}}"#)),
        (Operation::Chat, format!(r#"{{"model":"m","messages":{messages},"tools":[{tool}]}}"#)),
        (
            Operation::Messages,
            format!(r#"{{"model":"m","max_tokens":1,"system":[{part}],"messages":{messages}}}"#),
        ),
        (
            Operation::Responses,
            format!(r#"{{"model":"m","instructions":"{text}","input":{messages}}}"#),
        ),
        (Operation::Responses, format!(r#"{{"model":"m","input":"{text}"}}"#)),
        (Operation::Completions, format!(r#"{{"model":"m","prompt":["{text}",[1,2],"{text}"]}}"#)),
        (Operation::Completions, format!(r#"{{"model":"m","prompt":"{text}"}}"#)),
    ];
    let all = PrefixParams { max_blocks: u32::MAX, ..PrefixParams::default() };
    for (operation, body) in &bodies {
        let whole = chain_of(*operation, body, "m", all);
        assert!(whole.hashes().len() > 300, "{}", whole.hashes().len());
        for max_blocks in [1, 2, 31, 32, 100, 312, 313, 314, 320, 650, 5000] {
            let expected = &whole.hashes()[..whole.hashes().len().min(max_blocks as usize)];
            let chain = chain_of(*operation, body, "m", PrefixParams { max_blocks, ..all });
            assert_eq!(chain.hashes(), expected, "{operation:?}, {max_blocks} blocks");
        }
    }
}

#[test]
fn prompts_are_followed_to_their_ends() {
    let session: String = (0..40_000).map(|n| format!("word {n:>5} ")).collect();
    let turn = |more: &str| {
        let body = body(&[session.clone(), more.to_owned()]);
        chain_of(Operation::Chat, &body, "m", PrefixParams::default())
    };
    let (one, other) = (turn(&"one".repeat(100)), turn(&"other".repeat(100)));
    let shared = one.hashes().iter().zip(other.hashes()).take_while(|(a, b)| a == b).count();
    let least = session.len() / 64;
    assert!((least..=least + 1).contains(&shared), "{shared} of {least}, 110,000 tokens");
    assert!(one.hashes().len() > shared && other.hashes().len() > shared);
}
