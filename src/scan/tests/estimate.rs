//! How far the token estimate is from what a real tokenizer counts. The bounds are wide and the
//! misses are known: characters are right for Latin letters and far too low for Chinese, Japanese
//! and Korean, bytes are right for those and far too high for Cyrillic.

use super::super::TokenEstimate;
use super::counted_texts::{KINDS, Kind};
use super::tokens;
use crate::api::Operation;

/// The estimate for all texts of a kind together, in percent of the real count.
fn percent(kind: &Kind, estimate: TokenEstimate) -> u32 {
    let mut estimated = 0;
    let mut counted = 0;
    for (text, count) in kind.texts {
        let message = serde_json::json!({"role": "user", "content": text});
        let body = serde_json::json!({"model": "m", "messages": [message]}).to_string();
        estimated += tokens(Operation::Chat, estimate, &body);
        counted += count;
    }
    estimated * 100 / counted
}

#[test]
fn the_estimate_is_as_near_as_the_table_says() {
    let expected = [
        ("english prose", 110..=130, 110..=130),
        ("code", 75..=110, 75..=110),
        ("json", 70..=95, 70..=95),
        ("markdown", 70..=105, 70..=105),
        ("german and french", 100..=125, 105..=130),
        ("spanish and polish", 75..=110, 80..=115),
        ("cyrillic", 75..=115, 140..=200),
        ("chinese", 25..=40, 80..=115),
        ("japanese", 25..=45, 90..=125),
        ("korean", 30..=50, 85..=115),
    ];
    assert_eq!(KINDS.len(), expected.len());
    for (kind, (name, chars, utf8)) in KINDS.iter().zip(expected) {
        assert_eq!(kind.name, name);
        let found = percent(kind, TokenEstimate::Chars);
        assert!(chars.contains(&found), "{name}: characters give {found} % of the real count");
        let found = percent(kind, TokenEstimate::Utf8);
        assert!(utf8.contains(&found), "{name}: bytes give {found} % of the real count");
    }
    let texts: usize = KINDS.iter().map(|kind| kind.texts.len()).sum();
    assert!(texts >= 40, "{texts} texts are too few to tell");
}
