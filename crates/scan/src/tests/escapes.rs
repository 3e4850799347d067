//! Strings full of escapes, which take a separate path: the same verdict, offset and length as
//! `serde_json`, at any offset of an escape in a stretch.

use penstock_api::Operation;
use proptest::prelude::*;

use super::super::{ScanError, ScanOptions, TokenEstimate, scan};

/// A piece of a string as written: mostly valid escapes.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-zé日 ]{0,40}",
        4 => prop::sample::select(vec![
            r"\n", r#"\""#, r"\\", r"\\\\\\", r"\t", r"\r", r"\/", r"\b", r"\f", r"\u0041",
            r"\u00e9", r"\u20AC", r"\ud83d\ude00", r"\u0000", r"\\u0041", r#"\\\""#,
        ]).prop_map(str::to_owned),
        1 => "[a-z]{200,300}",
    ]
}

/// A piece that is invalid in a string, or that ends it.
fn odd_piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "",
        "",
        "",
        "\u{1}",
        "\n",
        r"\x",
        r"\ud83d",
        r"\ude00",
        r"\ud83d\u0041",
        r"\u12g4",
        r"\u12",
        r#"""#,
        r"\",
        "\\\n",
        r"\ud83d\",
    ])
}

fn check(text: &str, estimate: TokenEstimate) -> Result<(), TestCaseError> {
    let body = format!(r#"{{"model":"m","prompt":"{text}"}}"#);
    let options = ScanOptions { estimate, ..ScanOptions::default() };
    let found = scan(Operation::Completions, None, body.as_bytes(), options);
    match serde_json::from_str::<serde_json::Value>(&body) {
        Ok(value) => {
            let prompt = value["prompt"].as_str().unwrap();
            let length = super::length(prompt, estimate);
            let found = found.map_err(|error| TestCaseError::fail(format!("{error}: {body}")))?;
            if !super::is_measured(&body, estimate) {
                prop_assert_eq!(found.estimated_tokens.0 as usize, length / 4, "{}", body);
            }
        }
        Err(error) => {
            let refused = matches!(
                found,
                Err(ScanError::Malformed { .. }
                    | ScanError::TrailingComma { .. }
                    | ScanError::Truncated { .. })
            );
            prop_assert!(refused, "{error} in {body}, found {found:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn escapes_are_taken_as_serde_json_takes_them(
        pieces in prop::collection::vec(piece(), 0..24),
        odd in odd_piece(),
        more in prop::collection::vec(piece(), 0..6),
        estimate in prop::sample::select(&TokenEstimate::ALL),
    ) {
        let text = format!("{}{odd}{}", pieces.concat(), more.concat());
        check(&text, estimate)?;
    }
}

#[test]
fn a_pair_of_surrogates_may_lie_across_the_end_of_any_stretch() {
    for before in 0..140 {
        for after in [0, 1, 30, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 130] {
            for pair in [r"\ud83d\ude00", r"\u00e9", r"\u65e5", r"\\", r"\\\n"] {
                let text = format!(r"\n{}{pair}{}", "x".repeat(before), "y".repeat(after));
                for estimate in TokenEstimate::ALL {
                    check(&text, estimate).unwrap();
                }
            }
        }
    }
}
