//! Tests the scan of requests of Ollama's own API.

use penstock_api::units::TokenCount;
use penstock_api::{Capabilities, Dialect, Operation};

use super::super::{RequestProfile, ResidencyChange};
use super::{ScanError, scan_as};

fn chat(members: &str) -> RequestProfile {
    let messages = r#""messages":[{"role":"user","content":"12345678"}]"#;
    let body = format!("{{\"model\":\"m\",{messages}{members}}}");
    scan_as(Operation::OllamaChat, &body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

fn generate(members: &str) -> RequestProfile {
    let body = format!("{{\"model\":\"m\"{members}}}");
    scan_as(Operation::OllamaGenerate, &body).unwrap_or_else(|error| panic!("{body}: {error}"))
}

#[test]
fn empty_list_of_tools_offers_none() {
    for (member, needs) in [
        (",\"tools\":[]", Capabilities::NONE),
        (",\"tools\":[ ]", Capabilities::NONE),
        (",\"tools\":[{}]", Capabilities::TOOLS),
    ] {
        assert_eq!(chat(member).needs, needs, "{member}");
    }
}

#[test]
fn chat_and_generate_stream_unless_the_client_says_no() {
    for (member, streams) in [
        ("", true),
        (",\"stream\":true", true),
        (",\"stream\":null", true),
        (",\"stream\":false", false),
    ] {
        assert_eq!(chat(member).streaming, streams, "{member}");
        assert_eq!(generate(member).streaming, streams, "{member}");
    }
    let embed = scan_as(Operation::OllamaEmbed, r#"{"model":"m","input":["a"]}"#).unwrap();
    assert!(!embed.streaming);
    assert_eq!(embed.dialect, Dialect::Ollama);
}

#[test]
fn options_limit_tokens_and_ask_for_a_context() {
    let profile = chat(r#","options":{"temperature":0,"num_predict":7,"num_ctx":4096}"#);
    assert_eq!(profile.max_tokens, Some(TokenCount(7)));
    assert_eq!(profile.context_length, Some(TokenCount(4096)));
    assert_eq!(profile.estimated_tokens, TokenCount(2));
    for open in ["-1", "-2", "null", "0", "\"7\""] {
        assert_eq!(chat(&format!(",\"options\":{{\"num_predict\":{open}}}")).max_tokens, None);
    }
    assert_eq!(chat(",\"max_tokens\":7").max_tokens, None, "OpenAI's member means nothing here");
}

#[test]
fn needs_come_from_images_tools_and_format() {
    let with_images = |images: &str| {
        let body = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"x","images":{images}}}]}}"#
        );
        let find = |operation| scan_as(operation, &body).unwrap().needs;
        (find(Operation::OllamaChat), find(Operation::Chat))
    };
    assert_eq!(with_images(r#"["aGk="]"#), (Capabilities::VISION, Capabilities::NONE));
    assert_eq!(with_images("[]").0, Capabilities::NONE);
    assert_eq!(with_images("null").0, Capabilities::NONE);
    assert_eq!(generate(r#","prompt":"x","images":["aGk="]"#).needs, Capabilities::VISION);
    assert_eq!(chat(r#","tools":[{"type":"function"}]"#).needs, Capabilities::TOOLS);
    for (format, needs) in [
        (r#""json""#, Capabilities::JSON_MODE),
        (r#"{"type":"object"}"#, Capabilities::JSON_MODE),
        (r#""""#, Capabilities::NONE),
        ("null", Capabilities::NONE),
    ] {
        assert_eq!(chat(&format!(",\"format\":{format}")).needs, needs, "{format}");
    }
}

#[test]
fn generate_counts_all_its_texts() {
    let body = r#","prompt":"12345678","system":"1234","suffix":"1234","context":[1,2,3]"#;
    assert_eq!(generate(body).estimated_tokens, TokenCount(7));
}

#[test]
fn requests_without_a_prompt_load_or_unload_the_model() {
    let of = |operation, members: &str| {
        let body = format!("{{\"model\":\"m\"{members}}}");
        scan_as(operation, &body).unwrap().residency_change
    };
    let (load, unload) = (Some(ResidencyChange::Load), Some(ResidencyChange::Unload));
    for (members, expected) in [
        ("", load),
        (",\"messages\":[]", load),
        (",\"messages\": [ ]", load),
        (",\"messages\":null,\"keep_alive\":-1", load),
        (",\"messages\":[],\"keep_alive\":0", unload),
        (",\"keep_alive\":\"0s\"", unload),
        (",\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"keep_alive\":0", None),
    ] {
        assert_eq!(of(Operation::OllamaChat, members), expected, "{members}");
    }
    assert_eq!(of(Operation::OllamaGenerate, ",\"prompt\":\"\""), load);
    assert_eq!(of(Operation::OllamaGenerate, ",\"prompt\":\"\",\"keep_alive\":0"), unload);
    assert_eq!(of(Operation::OllamaGenerate, ",\"prompt\":\"x\",\"keep_alive\":0"), None);
    assert_eq!(of(Operation::OllamaEmbed, ",\"input\":[]"), load);
    assert_eq!(of(Operation::OllamaEmbed, ",\"input\":\"\",\"keep_alive\":0"), unload);
    assert_eq!(of(Operation::OllamaEmbed, ",\"input\":[\"x\"]"), None);
    assert_eq!(of(Operation::OllamaEmbeddings, ",\"prompt\":\"\""), load);
    assert_eq!(of(Operation::OllamaEmbeddings, ",\"prompt\":\"x\""), None);
    assert_eq!(of(Operation::Embeddings, ",\"input\":[]"), None);
    assert_eq!(of(Operation::Chat, ",\"messages\":[]"), None);
}

#[test]
fn messages_of_another_type_are_rejected() {
    let error = scan_as(Operation::OllamaChat, r#"{"model":"m","messages":"x"}"#);
    let expected = ScanError::WrongType { field: "messages", expected: "an array" };
    assert_eq!(error, Err(expected));
}
