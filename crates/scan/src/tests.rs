//! Tests of the scanner: its rules in `rules`, forms in `form`, comparison with `serde_json` in
//! `oracle`, rejected bodies in `malformed`, Ollama's own API in `ollama`, escapes in `escapes`,
//! prompt parts other than text in `prompt_tokens` and `nested_content`, lists of prompts in
//! `batches`, requests of agents in `agents`, counted allocations in `allocations`, and the token
//! estimate compared with real counts in `estimate`.

mod agents;
mod allocations;
mod batches;
mod counted_texts;
mod escapes;
mod estimate;
mod form;
mod malformed;
mod nested_content;
mod ollama;
mod oracle;
mod prompt_tokens;
mod rules;
mod twins;

use penstock_api::Operation;

use super::{RequestProfile, ScanError, ScanOptions, TokenEstimate, scan};

fn scan_as(operation: Operation, body: &str) -> Result<RequestProfile, ScanError> {
    scan(operation, None, body.as_bytes(), ScanOptions::default())
}

fn scan_chat(body: &str) -> Result<RequestProfile, ScanError> {
    scan_as(Operation::Chat, body)
}

/// Returns the length of a decoded text in the unit of an estimate, computed naively.
fn length(text: &str, estimate: TokenEstimate) -> usize {
    let weigh = |character: char| super::script::weigh_character(character.into());
    match estimate {
        TokenEstimate::Auto => text.chars().map(weigh).sum(),
        TokenEstimate::Chars => text.chars().count(),
        TokenEstimate::Utf8 => text.len(),
    }
}

/// Returns whether the estimate of a body depends on the density of its texts, which a walk over
/// its tree does not find.
fn is_measured(body: &str, estimate: TokenEstimate) -> bool {
    let unescaped = body.replace("\\\\", "__").replace("\\\"", "__");
    let is_long = |text: &str| text.len() >= super::density::MIN_MEASURED;
    estimate == TokenEstimate::Auto && unescaped.split('"').any(is_long)
}

fn tokens(operation: Operation, estimate: TokenEstimate, body: &str) -> u32 {
    let options = ScanOptions { estimate, ..ScanOptions::default() };
    scan(operation, None, body.as_bytes(), options).unwrap().estimated_tokens.0
}
