//! Compares the token estimate with the counts of a real tokenizer: `auto` is within 25 % for every
//! kind of text. Characters are right for alphabets and far too low for Chinese, Japanese and
//! Korean; bytes are right for those and far too high for Cyrillic. Also checks the published
//! table.

use penstock_api::Operation;

use super::super::TokenEstimate;
use super::counted_texts::{Counted, KINDS};
use super::tokens;

const PUBLISHED: &str = include_str!("../../../../docs/routing/how-it-works.md");

/// Returns the error of an estimate, in percent of the real count.
fn error(texts: &[Counted], estimate: TokenEstimate) -> f64 {
    let (mut estimated, mut counted) = (0, 0);
    for (text, count) in texts {
        let message = serde_json::json!({"role": "user", "content": text});
        let body = serde_json::json!({"model": "m", "messages": [message]}).to_string();
        estimated += tokens(Operation::Chat, estimate, &body);
        counted += count;
    }
    f64::from(estimated) * 100.0 / f64::from(counted) - 100.0
}

#[test]
fn auto_is_within_a_quarter_for_every_kind_of_text() {
    for kind in KINDS {
        let error = error(kind.texts, TokenEstimate::Auto);
        assert!(error.abs() <= 25.0, "{}: {error:+.0} %", kind.name);
    }
    let texts: usize = KINDS.iter().map(|kind| kind.texts.len()).sum();
    assert!(texts >= 40, "{texts} texts are too few to tell");
}

#[test]
fn published_errors_are_those_measured() {
    let mut missing = Vec::new();
    for kind in KINDS {
        let cells = TokenEstimate::ALL.iter().map(|estimate| {
            let of = |text: &Counted| error(std::slice::from_ref(text), *estimate);
            let errors: Vec<f64> = kind.texts.iter().map(of).collect();
            let least = errors.iter().copied().fold(f64::INFINITY, f64::min);
            let most = errors.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let all = error(kind.texts, *estimate).round() + 0.0;
            format!("{all:+.0} % ({least:+.0}..{most:+.0})")
        });
        let cells: Vec<String> = cells.collect();
        let line = format!("| {} | {} | {} |", kind.name, kind.texts.len(), cells.join(" | "));

        missing.extend((!PUBLISHED.contains(&line)).then_some(line));
    }
    assert!(missing.is_empty(), "how-it-works.md lacks these rows:\n{}", missing.join("\n"));
}
